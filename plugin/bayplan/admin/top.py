"""The question ``top``: what nodes and containers use at this moment, beside what was promised to them.

Read anew for each answer, in a thread: some small files of each container. Counters are totals; the command
line asks twice and shows rates.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from bayplan.admin.questions import Question
from bayplan.admin_protocol import API_VERSION
from bayplan.control.threads import InThread
from bayplan.engines.exact.witness import by_node, witness
from bayplan.host.hierarchy import Hierarchy
from bayplan.host.live_memory import ActivityReader, ContainerActivity, read_allocations, read_nodes
from bayplan.model.basis import Basis
from bayplan.model.ledger import Entry
from bayplan.model.machine import MEMORY
from bayplan.sets import NodeSet
from bayplan.views.decision_view import View
from bayplan.views.snapshot import Snapshot
from bayplan.views.status import timestamp

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
