"""Entries as the daemon records them, for the tests of the store."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from bayplan.model.decision import (
    Decision,
    Interval,
    Outcome,
    Placement,
    QosClass,
    QosSource,
    Reason,
    Request,
)
from bayplan.model.ledger import Entry
from bayplan.sets import CpuSet, NodeSet
from bayplan.state import Step, Store

GIB = 1 << 30


def make_entry(container_id: str, name: str = "default/web-0/nginx", node: int = 0) -> Entry:
    request = Request(
        container_id=container_id,
        pod_id="pod-" + container_id,
        name=name,
        qos=QosClass.GUARANTEED,
        qos_source=QosSource.CGROUP_PARENT,
        memory=Interval(GIB, GIB, "limit"),
        memory_limit_bytes=GIB,
        cpu_milli=2000,
        exclusive_cpus=2,
    )
    placement = Placement(NodeSet([node]), CpuSet([2, 3]), {node: {"memory": GIB}})
    decision = Decision(request, Outcome.PLACED, placement, (Reason("best-set", "fits on one node"),))
    return Entry(decision, notified_cpus=CpuSet([2, 3]))


@pytest.fixture
def entry() -> Callable[..., Entry]:
    return make_entry


class Recording(Store):
    """A store that takes what steps are made of."""

    def record(
        self, entries: Iterable[Entry], gone: Iterable[str] = (), unlisted: Iterable[Entry] = ()
    ) -> None:
        self.commit(Step.of(entries, gone, unlisted))

    def forget(self, container_ids: Iterable[str]) -> None:
        self.record((), container_ids)

    def refused(self, decision: Decision) -> None:
        self.commit(Step.refusal(decision))


@pytest.fixture
def open_store(tmp_path: Path) -> Iterator[Callable[..., Recording]]:
    """Opens the store of this test; closes every one that was opened."""
    opened: list[Recording] = []

    def opener(directory: Path = tmp_path, **options: object) -> Recording:
        opened.append(Recording.open(directory, lambda: 1_700_000_000_000_000, **options))
        return opened[-1]

    yield opener
    for store in opened:
        store.close()
