"""What is read for an answer: the snapshot that the views show, and what nodes and containers use at this
moment.

What is used is read anew for each answer, in a thread: some small files of each container. Counters are
totals; the command line asks twice and shows rates.
"""

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType

from msgspec.structs import asdict

from bayplan.admin.questions import Question
from bayplan.admin_protocol import API_VERSION
from bayplan.control.state import NodeState
from bayplan.control.threads import InThread
from bayplan.control.verify import Drift
from bayplan.engines.exact.witness import by_node, witness
from bayplan.errors import BayplanError
from bayplan.host import proc
from bayplan.host.hierarchy import Hierarchy
from bayplan.host.live_memory import ActivityReader, ContainerActivity, read_allocations, read_nodes
from bayplan.model.basis import Basis
from bayplan.model.decision import Outcome
from bayplan.model.ledger import Entry
from bayplan.model.machine import MEMORY
from bayplan.model.wishes import unmatched_rules
from bayplan.placement.foreign_cpusets import pin_sentences
from bayplan.placement.page_placement import LivePages
from bayplan.placement.shortfall import crowded_pool
from bayplan.sets import CpuSet, NodeSet
from bayplan.views.decision_view import View
from bayplan.views.snapshot import Drifted, MemoryReservation, RuntimeState, Snapshot, Unmanaged
from bayplan.views.status import timestamp

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
        unmanaged=tuple(Unmanaged(key, name) for key, name in sorted(state.ledger.adopted.items())),
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
        seen=state.basis.seen,
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


Whereabouts = tuple[str, str, str, Mapping[str, str]]
"""A container's id, and where its cgroup is looked for: see `ContainerMemory.read`."""


def watching(
    hierarchy: Hierarchy, containers: Callable[[], Sequence[Whereabouts]], in_thread: InThread
) -> Question:
    """The question; *containers* are those that run now."""
    reader = ActivityReader(hierarchy)

    async def top(snapshot: Snapshot, _: Mapping[str, object]) -> View:
        return await in_thread(partial(_view, snapshot, hierarchy, reader, containers()))

    return top


def _view(
    snapshot: Snapshot, hierarchy: Hierarchy, reader: ActivityReader, containers: Sequence[Whereabouts]
) -> View:
    machine, entries = snapshot.machine, snapshot.ledger.entries
    reader.keep({one[0]: None for one in containers})
    seen = {
        one[0]: activity
        for one in containers
        if one[0] in entries and (activity := reader.read(*one)) is not None
    }
    pools = {node: sum(machine.node_by_id[node].hugepages_bytes.values()) for node in machine.memory_nodes}
    nodes = read_nodes(pools, {}, hierarchy.root)
    allocations = read_allocations(nodes, hierarchy.root)
    promised = by_node(witness(Basis(machine, snapshot.policy, snapshot.ledger)).values())
    return {
        "apiVersion": API_VERSION,
        "kind": "Top",
        "at": timestamp(snapshot.taken_us),
        "atMicroseconds": snapshot.taken_us,
        "nodes": [
            {
                "id": node,
                "totalBytes": machine.node_by_id[node].memory_bytes,
                "promisedBytes": promised.get(node, {}).get(MEMORY, 0),
                "usedBytes": one.used_bytes,
                "usedByContainersBytes": sum(held(each).get(node, 0) for each in seen.values()),
                "freeBytes": one.free_bytes,
                "reclaimableBytes": one.reclaimable_bytes,
                "missedPages": allocations[node].missed,
                "foreignPages": allocations[node].foreign,
                "remotePages": allocations[node].remote,
            }
            for node, one in nodes.items()
        ],
        "containers": [_container(entries[key], one, machine.memory_nodes) for key, one in seen.items()],
    }


def held(activity: ContainerActivity) -> dict[int, int]:
    """All that a container holds, by node: of its processes, of the kernel for it, and page cache."""
    found = activity.held.unreclaimable_bytes
    for node, amount in activity.held.of_files_bytes.items():
        found[node] = found.get(node, 0) + amount
    return found


def _container(entry: Entry, activity: ContainerActivity, everywhere: NodeSet) -> View:
    placement, request = entry.decision.placement, entry.decision.request
    mems = placement.mems if request.pinned_mems is None else request.pinned_mems
    used = held(activity)
    here = sum(amount for node, amount in used.items() if node in (mems or everywhere))
    return {
        "id": entry.container_id,
        "name": request.name,
        "nodes": None if mems is None else str(mems),
        "promisedBytes": entry.decision.promised_bytes,
        "usedBytes": {str(node): amount for node, amount in sorted(used.items())},
        "usedHereBytes": here,
        "usedElsewhereBytes": sum(used.values()) - here,
        "pageFaults": activity.page_faults,
        "majorPageFaults": activity.major_page_faults,
        "memoryStallPercent": activity.memory_stall_percent,
        "cpuStallPercent": activity.cpu_stall_percent,
    }
