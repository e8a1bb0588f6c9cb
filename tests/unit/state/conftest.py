"""Entries as the daemon records them, for the tests of the store."""

from collections.abc import Callable

import pytest

from bayplan.domain.decision import (
    Decision,
    Interval,
    Outcome,
    Placement,
    QosClass,
    QosSource,
    Reason,
    Request,
)
from bayplan.domain.ledger import Entry
from bayplan.sets import CpuSet, NodeSet

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
    return Entry(decision, told_cpus=CpuSet([2, 3]))


@pytest.fixture
def entry() -> Callable[..., Entry]:
    return make_entry
