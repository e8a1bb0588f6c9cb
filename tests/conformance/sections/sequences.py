"""Whole machines: pods come and go, all managers together, their state after every step.

Three of kubelet's defects can show here, and the engine does not have them:

* Memory booked on a single node inside a group of nodes can break the group apart; kubelet's state then
  contradicts itself and kubelet does not start again. The engine repairs the group. Where the record
  contradicts itself the two may part, in nothing but the groups and how much of an amount is on which node.
* Spreading CPUs over four or more of more than four nodes, kubelet's slices overwrite each other and it takes
  other nodes than it had found best. There the two may part, in nothing but which CPUs they are.
* kubelet hangs; the record then has a marker instead of an answer.

Once the two have parted only the engine's own state is checked: it adds up and can be restored.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from msgspec.structs import replace

from bayplan.engines.kubelet.cpu_checkpoint import format_checkpoint as format_cpus
from bayplan.engines.kubelet.cpu_manager import StaticCpuPolicy
from bayplan.engines.kubelet.cpu_state import CpuManagerError, CpuState
from bayplan.engines.kubelet.cpu_topology import CpuTopology
from bayplan.engines.kubelet.managers import KubeletManagers, ManagersState
from bayplan.engines.kubelet.memory_checkpoint import checkpoint_of, parse_checkpoint, state_of
from bayplan.engines.kubelet.memory_checkpoint import format_checkpoint as format_memory
from bayplan.engines.kubelet.memory_state import MemoryManagerError, MemoryState
from bayplan.engines.kubelet.state_files import start as start_memory
from bayplan.engines.kubelet.topology_manager import TopologyManager
from bayplan.kubelet.manager_options import STATIC, CpuOptions, MemoryManagerPolicy, TopologyOptions
from bayplan.kubelet.pod import PodSpec
from bayplan.model.machine import Cpu, Machine, Node
from bayplan.model.policy import TopologyPolicy, TopologyScope
from bayplan.sets import CpuSet
from conformance.endings import after_start, without_container, without_pod
from conformance.sections import Case, Folder, Section, expect
from conformance.sections.pods import gates, pod, rules_of_case
from conformance.sections.topology import hint

Written = Mapping[str, Any]

_HANG: Final = "zz-hang"
"""What the record has where kubelet would never have answered."""

_FEW_NODES: Final = 4
"""kubelet's slices overwrite each other only when so many nodes are combined out of more."""


@dataclass(slots=True)
class _Run:
    """One machine on its way through the operations. ``contradicted``: kubelet's state once did, so that the
    two may part from then on; ``parted``: they have, and kubelet's state cannot be compared."""

    engine: KubeletManagers
    machine: Machine
    reserved_bytes: Mapping[int, Mapping[str, int]]
    state: ManagersState
    pods: dict[str, PodSpec] = field(default_factory=dict)
    contradicted: bool = False
    parted: bool = False


def _sequence(case: Case, _: Folder) -> None:
    run = _start(case)
    for number, written in enumerate(case["ops"]):
        what = f"operation {number}, {written['op']}"
        _operate(run, written, what)
        if not run.parted:
            _expect_books(run, written, what)
        if "memory" in case:
            _check_own_books(run, what)
    if "cpu" in case:
        _expect_cpu_file(run, case["final"])
    if "memory" in case:
        _expect_memory_file(run, case["final"])


def _start(case: Case) -> _Run:
    machine = recorded_machine(case["machine"])
    topology = TopologyManager.of(
        machine,
        TopologyPolicy(case["tm"]["policy"]),
        TopologyScope(case["tm"]["scope"]),
        TopologyOptions.parse(case["tm"]["options"]),
    )
    state = ManagersState()
    cpus = None
    parted = False
    if "cpu" in case:
        written = case["cpu"]
        options = CpuOptions.parse(written["options"], alpha=True)
        listed = CpuSet.parse(written["reserved_list"])
        cpus = StaticCpuPolicy.reserving(
            CpuTopology.of_machine(machine),
            options,
            written["num_reserved"],
            listed,
            gates=gates(rules=rules_of_case(case)),
        )
        parted = _spread_otherwise(cpus, cpus.reserved, CpuSet.parse(written["reserved_effective"]))
        state = replace(state, cpus=cpus.start(CpuState()))
        if not parted:
            expect("reserved CPUs", str(cpus.reserved), written["reserved_effective"])
            _expect_cpus(state, written["initial"], "start")
    reserved_bytes: dict[int, Mapping[str, int]] = {}
    if "memory" in case:
        reserved_bytes = {int(node): sizes for node, sizes in case["memory"]["reserved"].items()}
        memory = start_memory(MemoryManagerPolicy.STATIC, machine, reserved_bytes, gates())
        state = replace(state, memory=memory)
        _expect_tables(memory.state, case["memory"]["initial_tables"])
    return _Run(KubeletManagers(topology, cpus), machine, reserved_bytes, state, parted=parted)


def _operate(run: _Run, written: Written, what: str) -> None:
    engine, operation = run.engine, written["op"]
    if operation == "admit":
        admitted = run.pods[written["pod"]["uid"]] = pod(written["pod"])
        admission = engine.admit(run.state, admitted)
        run.state = admission.state
        run.parted = run.parted or _HANG in written["message"] or _parts(run, admitted, written)
        if not run.parted:
            found = (admission.admitted, admission.reason, admission.message)
            expect(what, found, (written["admit"], written["reason"], written["message"]))
            hints = {container.name: admission.hint(container.name) for container in admitted.all_containers}
            recorded = {name: hint(each) for name, each in written["affinity"].items()}
            expect(f"{what}: affinity", hints, recorded)
    elif operation in {"cleanup_rejected", "remove_pod"}:
        run.state = without_pod(run.state, run.pods[written["uid"]])
    elif operation == "remove_container":
        run.state = without_container(run.state, written["uid"], written["container"])
    elif operation == "start_containers_memory":
        started = run.pods[written["uid"]]
        for container in started.all_containers:
            run.state = after_start(run.state, started, container)
    else:
        expect(f"{what}: known operation", operation, None)


def recorded_machine(written: Written) -> Machine:
    """The machine of a sequence."""
    nodes = []
    cpus = []
    for node in written["nodes"]:
        for socket, uncore, siblings in node["cores"]:
            cpus += [Cpu(cpu, min(siblings), socket, node["id"], uncore) for cpu in siblings]
        pools = {int(size) << 10: (int(size) << 10) * pages for size, pages in node["hugepages_kb"].items()}
        own = CpuSet(cpu for _, _, siblings in node["cores"] for cpu in siblings)
        nodes.append(Node(node["id"], own, node["memory"], pools, dict(enumerate(node["distances"]))))
    return Machine(tuple(nodes), tuple(cpus))


def _contradicts(nodes: Written) -> bool:
    """Whether kubelet's record has a node in a group that another node of the group does not belong to."""
    groups = {int(node): group for node, (_, group, _) in nodes.items()}
    return any(groups[member] != group for group in groups.values() for member in group)


def _check_own_books(run: _Run, what: str) -> None:
    """The engine's state can be restored, which includes that it adds up."""
    memory = run.state.memory
    start_memory(MemoryManagerPolicy.STATIC, run.machine, run.reserved_bytes, gates(), memory.state)
    for node, each in memory.state.nodes.items():
        for name, table in each.tables.items():
            sizes = (table.reserved >= 0, table.free >= 0, table.reserved + table.free)
            expect(f"{what}: {name} of node {node}", sizes, (True, True, table.allocatable))


def _expect_books(run: _Run, written: Written, what: str) -> None:
    if "cpu_after" in written:
        _expect_cpus(run.state, written["cpu_after"], what)
    if "mem_after" in written:
        memory = run.state.memory.state
        recorded = written["mem_after"]
        nodes = {
            str(node): [
                each.assignments,
                list(each.group),
                {name: [table.reserved, table.free] for name, table in each.tables.items()},
            ]
            for node, each in memory.nodes.items()
        }
        expect(f"{what}: memory", _assigned(memory), _sorted_blocks(recorded["assignments"]))
        run.contradicted = run.contradicted or _contradicts(recorded["nodes"])
        if run.contradicted and nodes != recorded["nodes"]:
            run.parted = True
            expect(f"{what}: totals", _totals(nodes), _totals(recorded["nodes"]))
        else:
            expect(f"{what}: nodes", nodes, recorded["nodes"])


def _parts(run: _Run, admitted: PodSpec, written: Written) -> bool:
    """Whether the pod's CPUs and the record's part here: what its first container with other CPUs has is
    spread otherwise. The hints and the CPUs of the pod's next containers follow from that."""
    policy = run.engine.cpus
    if policy is None:
        return False
    recorded = written["cpu_after"]["assignments"].get(admitted.uid, {})
    for container in admitted.all_containers:
        ours = run.state.cpus.of(admitted.uid, container.name) or CpuSet()
        theirs = CpuSet.parse(recorded.get(container.name, ""))
        if ours != theirs:
            return _spread_otherwise(policy, ours, theirs)
    return False


def _spread_otherwise(policy: StaticCpuPolicy, ours: CpuSet, theirs: CpuSet) -> bool:
    """Whether these are as many CPUs, but others, on so many nodes that kubelet's choice is not the one that
    it meant."""
    nodes_of = policy.topology.nodes_of
    return (
        policy.options.distribute_cpus_across_numa
        and policy.topology.num_nodes > _FEW_NODES
        and ours != theirs
        and len(ours) == len(theirs)
        and min(len(nodes_of(ours)), len(nodes_of(theirs))) >= _FEW_NODES
    )


def _totals(nodes: Written) -> tuple[dict[str, int], dict[str, int]]:
    """What must be the same even if groups are not: assignments by node, and what is reserved of each
    resource on all nodes together."""
    reserved: dict[str, int] = {}
    for _, _, tables in nodes.values():
        for name, (amount, _) in tables.items():
            reserved[name] = reserved.get(name, 0) + amount
    return {node: count for node, (count, _, _) in nodes.items()}, reserved


def _expect_cpus(state: ManagersState, written: Written, what: str) -> None:
    assignments = {
        pod_uid: {name: str(cpus) for name, cpus in containers.items()}
        for pod_uid, containers in state.cpus.assignments.items()
    }
    expect(f"{what}: CPUs", assignments, written["assignments"])
    expect(f"{what}: shared CPUs", str(state.cpus.shared), written["default"])


def _expect_tables(state: MemoryState, written: Written) -> None:
    found = {
        str(node): {
            name: {
                "total": table.total,
                "systemReserved": table.system_reserved,
                "allocatable": table.allocatable,
                "reserved": table.reserved,
                "free": table.free,
            }
            for name, table in each.tables.items()
        }
        for node, each in state.nodes.items()
    }
    expect("memory tables", found, written)


def _assigned(state: MemoryState) -> dict[str, dict[str, list[Any]]]:
    return {
        uid: {
            name: sorted([b.resource, list(b.nodes), b.size_bytes] for b in blocks)
            for name, blocks in each.items()
        }
        for uid, each in state.assignments.items()
    }


def _sorted_blocks(written: Written) -> dict[str, dict[str, list[Any]]]:
    return {
        uid: {name: sorted(blocks) for name, blocks in containers.items()}
        for uid, containers in written.items()
    }


def _expect_cpu_file(run: _Run, final: Written) -> None:
    """The state file byte for byte, and whether kubelet starts again on it."""
    error = None
    if run.engine.cpus is not None:
        try:
            run.engine.cpus.start(run.state.cpus)
        except CpuManagerError as raised:
            error = str(raised)
    if run.parted:
        expect("own CPU restart", error if run.state.cpus.shared else None, None)
        return
    expect("CPU state file", format_cpus(run.state.cpus, STATIC), final["cpu_state_file"])
    expect("CPU restart", error, final["cpu_restart_error"])


def _expect_memory_file(run: _Run, final: Written) -> None:
    """The state file byte for byte, but for the order of a container's blocks, which is random in kubelet;
    and whether it can be restored."""
    if run.parted:
        return
    recorded = state_of(parse_checkpoint(final["memory_state_file"]))
    found = run.state.memory.state
    expect("memory in the state file", _assigned(found), _assigned(recorded))
    ordered = replace(found, assignments=recorded.assignments)
    text = format_memory(checkpoint_of(MemoryManagerPolicy.STATIC.value, ordered), version=1)
    expect("memory state file", text, final["memory_state_file"])
    error = None
    try:
        start_memory(MemoryManagerPolicy.STATIC, run.machine, run.reserved_bytes, gates(), found)
    except MemoryManagerError as raised:
        error = str(raised)
    expect("memory restart", error, final["memory_restart_error"])


SECTIONS: Final = (Section("oracle_sequences.jsonl", None, _sequence),)
