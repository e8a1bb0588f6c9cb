"""A machine of many nodes with many containers, as the views show it: for pictures and pages."""

from collections.abc import Iterator

from msgspec.structs import replace

from bayplan.model.decision import (
    Claim,
    Decision,
    Interval,
    Outcome,
    Placement,
    QosClass,
    QosSource,
    Reason,
    Request,
)
from bayplan.model.ledger import Entry, Ledger
from bayplan.model.machine import Cpu, Machine, Node
from bayplan.model.policy import PlacementPolicy
from bayplan.placement.page_placement import ContainerPages, LivePages, NodeMemory, Plan
from bayplan.quantity import GIB, MIB
from bayplan.sets import CpuSet, NodeSet
from bayplan.views.snapshot import Snapshot
from support.snapshots import make_snapshot

_NODE_BYTES = 64 * GIB
_NAMES = ("postgres", "kafka", "frontend", "vllm", "redis", "batch", "router", "search")


def crowded_machine(nodes: int, cpus_per_node: int = 16) -> Machine:
    """Nodes of 64Gi with 16 CPUs, two of a core; up to four nodes on a socket, and the last one without CPUs
    where there are more than two."""
    per_socket, cpu_less = min(4, max(1, nodes // 2)), {nodes - 1} if nodes > 2 else set()
    cpus, members = [], {}
    for node in range(nodes):
        first = node * cpus_per_node
        members[node] = range(first, first + (0 if node in cpu_less else cpus_per_node))
        cpus += [Cpu(cpu, cpu - cpu % 2, node // per_socket, node, first) for cpu in members[node]]

    def distance(one: int, other: int) -> int:
        if one == other:
            return 10
        return 12 if one // per_socket == other // per_socket else 32

    return Machine(
        tuple(
            Node(
                node,
                CpuSet(members[node]),
                _NODE_BYTES,
                {2 * MIB: 2 * GIB} if node % 2 == 0 else {},
                {other: distance(node, other) for other in range(nodes)},
                tier=int(node in cpu_less),
            )
            for node in range(nodes)
        ),
        tuple(cpus),
    )


def crowded(nodes: int, containers: int, hostile_name: str = "") -> Snapshot:
    """A snapshot of such a machine with so many containers; the first one may have a *hostile_name*."""
    machine = crowded_machine(nodes)
    entries = list(_entries(machine, containers, hostile_name))
    ledger = Ledger.of(entries)
    pages = {
        entry.container_id: ContainerPages(
            entry.container_id,
            entry.decision.request.name,
            entry.decision.placement.mems or machine.node_ids,
            0,
            _held(entry, number),
            {number % nodes: GIB} if entry.decision.placement.mems is None else {},
        )
        for number, entry in enumerate(entries)
    }
    live = LivePages(
        1_700_000_000_000_000,
        {node.id: NodeMemory(20 * GIB, 6 * GIB, 30 * GIB) for node in machine.nodes},
        pages,
        Plan(expected_bytes={0: 3 * GIB}),
    )
    policy = PlacementPolicy(
        reserved_bytes={node.id: {"memory": 3 * GIB} for node in machine.nodes}, reserved_cpus=CpuSet([0, 1])
    )
    return replace(make_snapshot(), machine=machine, policy=policy, ledger=ledger, live=live)


def _held(entry: Entry, number: int) -> dict[int, int]:
    placement = entry.decision.placement
    if placement.mems is None:
        return {number % 2: 2 * GIB}
    first = next(iter(placement.mems))
    return {first: (5 + number % 4) * GIB, first ^ 1: 512 * MIB if number % 3 == 0 else 0}


def _entries(machine: Machine, containers: int, hostile_name: str) -> Iterator[Entry]:
    with_cpus = [node for node in machine.nodes if node.cpus]
    for number in range(containers):
        node = with_cpus[number % len(with_cpus)]
        kind = number % 4
        name = _NAMES[number % len(_NAMES)]
        name = f"team-{number % 3}/{name}-{number}/main"
        if number == 0 and hostile_name:
            name = f"default/{hostile_name}/{hostile_name}"
        size_bytes = (4 + 3 * (number % 4)) * GIB
        qos = QosClass.BURSTABLE if kind == 3 else QosClass.GUARANTEED
        own = [cpu for cpu in node.cpus if cpu > 1][4 * (number // len(with_cpus)) :][:4]
        exclusive = CpuSet(own if kind == 0 else ())
        nodes = NodeSet([node.id])
        request = Request(
            f"id-{number:04}",
            f"pod-{number:04}",
            name,
            qos,
            QosSource.CGROUP_PARENT,
            Interval(size_bytes, size_bytes, "limit"),
            exclusive_cpus=len(exclusive),
        )
        if qos is QosClass.BURSTABLE:
            placement = Placement(claim=Claim(machine.node_ids, {"memory": size_bytes}))
        else:
            placement = Placement(nodes, exclusive, claim=Claim(nodes, {"memory": size_bytes}))
        outcome = Outcome.DEGRADED if number == 5 else Outcome.PLACED
        yield Entry(Decision(request, outcome, placement, (Reason("best-set", "one node has room for all"),)))
