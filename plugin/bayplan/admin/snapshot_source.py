"""Takes the snapshot that the views show: reads the state, and of the kernel what nobody else keeps."""

import logging
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

from msgspec.structs import asdict

from bayplan.control.state import NodeState
from bayplan.control.verify import Drift
from bayplan.errors import BayplanError
from bayplan.host import proc
from bayplan.model.decision import Outcome
from bayplan.model.wishes import unmatched_rules
from bayplan.placement.foreign_cpusets import pin_sentences
from bayplan.placement.page_placement import LivePages
from bayplan.placement.shortfall import crowded_pool
from bayplan.sets import CpuSet
from bayplan.views.snapshot import Drifted, MemoryReservation, RuntimeState, Snapshot, Unmanaged

logger = logging.getLogger(__name__)


def snapshot_of(
    state: NodeState,
    started_us: int,
    drift: tuple[Drift, ...],
    notices: tuple[str, ...] = (),
    reservations: Mapping[int, MemoryReservation] = MappingProxyType({}),
    kernel_oom_score_adj: Mapping[str, int] = MappingProxyType({}),
    live: LivePages | None = None,
    kernel_cpus: Mapping[str, CpuSet] = MappingProxyType({}),
    *,
    partitions: frozenset[str] = frozenset(),
    placement_directory: str = "",
    kubelet_known_by: str = "",
    shadow: bool = False,
) -> Snapshot:
    """Everything at this moment, with *notices* of settings and hardware. Cheap: the ledger is immutable, and
    so is not copied. *kernel_oom_score_adj* are the values of the containers' first processes, *live* is what
    was seen last of the nodes' memory, *kernel_cpus* the CPUs that containers were found to have otherwise
    than decided, *partitions* the ids of those that have one, *placement_directory* is where placement files
    are, *kubelet_known_by* the source of kubelet's version. *shadow*: nothing is applied."""
    known, runtime = state.known, state.runtime
    return Snapshot(
        taken_us=time.time_ns() // 1000,
        started_us=started_us,
        pid=os.getpid(),
        machine=state.machine,
        policy=state.policy,
        ledger=state.ledger,
        engine=state.engine.name,
        runtime=None
        if runtime is None
        else RuntimeState(
            runtime.name, runtime.version, str(runtime.nri_version), asdict(runtime.capabilities)
        ),
        counters=dict(state.counters),
        durations=state.latency.durations(),
        unmanaged=tuple(Unmanaged(key, name) for key, name in sorted(state.ledger.unmanaged.items())),
        drift=tuple(Drifted(one.expectation.container.id, one.expectation.name, str(one)) for one in drift),
        oom_score_adj=dict(known.oom_score_adj),
        kernel_oom_score_adj=dict(kernel_oom_score_adj),
        kernel_cpus=dict(kernel_cpus),
        partitions=partitions,
        placement_directory=placement_directory,
        kubelet_known_by=kubelet_known_by,
        problems=tuple(_problems(state, notices)),
        reservations=dict(reservations),
        live=live,
        shadow=shadow,
        unmatched_cpu_rules=unmatched_rules(
            state.policy.cpu_rules,
            ((pod, one.name) for one in known.containers.values() if (pod := known.pods.get(one.pod_id))),
        ),
    )


def kernel_oom_score_adj(state: NodeState, root: Path) -> dict[str, int]:
    """The oom_score_adj that the kernel has for the first process of each container, as far as that is known
    and still there. Two small files each."""
    found = {}
    for container in state.known.containers.values():
        try:
            value = (
                proc.oom_score_adj_within(container.pid, container.id, root) if container.pid > 1 else None
            )
        except BayplanError as error:
            logger.debug("unknown oom_score_adj", extra={"container": container.id, "problem": str(error)})
            continue
        if value is not None:
            found[container.id] = value
    return found


def _problems(state: NodeState, notices: tuple[str, ...]) -> Iterator[str]:
    if state.recorder.problem is not None:
        yield state.recorder.problem
    yield from notices
    crowded = crowded_pool(state.basis)
    if crowded is not None:
        yield str(crowded)
    decisions = [entry.decision for entry in state.ledger.entries.values()]
    decided = [one.request for one in decisions if one.outcome is not Outcome.ADOPTED]
    yield from pin_sentences(decided, state.decision_log.pins.configured)
