"""The Memory Manager's policy Static."""

from collections.abc import Mapping
from typing import Any

from bayplan.engines.kubelet.memory_checkpoint import checkpoint_of, format_checkpoint
from bayplan.engines.kubelet.memory_manager import (
    MemoryManager,
    check_shared_pool,
    pod_wants,
    takes_part,
    violates_groups,
)
from bayplan.engines.kubelet.memory_state import (
    Block,
    Blocks,
    EmptyPodSharedPoolError,
    MemoryManagerError,
    MemoryState,
    MemoryTable,
    Nodes,
    NumaNodeState,
)
from bayplan.engines.kubelet.state_files import start
from bayplan.engines.kubelet.topology_hints import NO_HINT, Hint, ProviderHints
from bayplan.kubelet.manager_options import MemoryManagerPolicy
from bayplan.kubelet.pod import FeatureGates, PodLevelResources, PodSpec
from bayplan.model.machine import MEMORY, Machine
from bayplan.quantity import parse_bytes
from bayplan.sets import NodeSet
from conformance.endings import memory_without
from conformance.sections import Case, Folder, Section, expect
from conformance.sections.pods import container, gates, machine, pod
from support.kubelet_start import restored

Written = Mapping[str, Any]


def nodes(written: Written | None) -> dict[int, NumaNodeState]:
    """The machine state as the state file names it."""
    return {
        int(node): NumaNodeState(
            tables={name: _table(table) for name, table in (each["memoryMap"] or {}).items()},
            assignments=each["numberOfAssignments"],
            group=NodeSet(each["cells"] or ()),
        )
        for node, each in (written or {}).items()
    }


def state(written_nodes: Written | None, written_assignments: Written | None) -> MemoryState:
    """Nodes and assignments as the state file names them."""
    assignments = {
        uid: {name: blocks(each) for name, each in containers.items()}
        for uid, containers in (written_assignments or {}).items()
    }
    return MemoryState(nodes(written_nodes), assignments)


def _table(written: Written) -> MemoryTable:
    return MemoryTable(
        total=written["total"],
        system_reserved=written["systemReserved"],
        allocatable=written["allocatable"],
        reserved=written["reserved"],
        free=written["free"],
    )


def blocks(written: list[Written] | None) -> Blocks:
    """Blocks as the state file has them."""
    return tuple(
        Block(NodeSet(each["numaAffinity"] or ()), each["type"], each["size"]) for each in written or ()
    )


def _switches(case: Case) -> FeatureGates:
    return gates(
        pod_level=case["feature_pod_level_resources"],
        managers=case["feature_pod_level_resource_managers"],
    )


def _manager(case: Case) -> MemoryManager:
    found = state(case["machine_state"], case["assignments"])
    return MemoryManager(MemoryManagerPolicy.STATIC, found, _switches(case))


def reserved(written: Written | None) -> dict[int, dict[str, int]]:
    """Bytes kept from containers, by node and resource."""
    return {int(node): dict(sizes) for node, sizes in (written or {}).items()}


def _hint(written: Written | None) -> Hint:
    if written is None:
        return NO_HINT
    affinity = written["affinity"]
    return Hint(None if affinity is None else NodeSet(affinity), written["preferred"])


def expect_state(found: MemoryState, case: Case, names: tuple[str, str]) -> None:
    """The order of blocks means nothing, and inside a group only sums of free and reserved count."""
    assignments, machine_state = names
    if case.get(assignments) is not None:
        expect("assignments", _shown(found), _shown(state(None, case[assignments])))
    if case.get(machine_state) is not None:
        expect("machine state", _summed(found.nodes), _summed(nodes(case[machine_state])))


def _shown(found: MemoryState) -> dict[str, dict[str, list[tuple[str, tuple[int, ...], int]]]]:
    return {
        uid: {
            name: sorted((block.resource, tuple(block.nodes), block.size_bytes) for block in blocks)
            for name, blocks in containers.items()
        }
        for uid, containers in found.assignments.items()
    }


def _summed(found: Nodes) -> dict[int, object]:
    shown: dict[int, object] = {}
    for node, memory in found.items():
        tables = {}
        for name, table in memory.tables.items():
            group = [found[each].tables[name] for each in memory.group]
            free, reserved = sum(each.free for each in group), sum(each.reserved for each in group)
            tables[name] = (table.total, table.system_reserved, table.allocatable, free, reserved)
        shown[node] = (memory.assignments, tuple(memory.group), tables)
    return shown


def expect_hints(found: ProviderHints, expected: Written | None) -> None:
    """No preference is null in the tables, whether kubelet said nil or gave an empty map."""
    shown = {
        name: [{"affinity": list(hint.nodes or ()), "preferred": hint.preferred} for hint in hints.listed()]
        for name, hints in (found or {}).items()
        if hints is not None
    }
    expect("hints", shown or None, expected or None)


def _new(case: Case, folder: Folder) -> None:
    del folder
    empty = Machine((), ())
    found = raised(
        lambda: start(MemoryManagerPolicy.STATIC, empty, reserved(case["system_reserved"]), _switches(case))
    )
    expect("error", found, case["expected_error"])


def _start(case: Case, folder: Folder) -> None:
    del folder
    recorded = state(case["machine_state"], case["assignments"])
    where, kept = machine(case["machine_info"]), reserved(case["system_reserved"])
    try:
        manager = start(MemoryManagerPolicy.STATIC, where, kept, _switches(case), recorded)
    except MemoryManagerError as error:
        expect("error", str(error), case["expected_error"])
        return
    expect("error", None, case["expected_error"])
    expect_state(manager.state, case, ("expected_assignments", "expected_machine_state"))


def _allocate(case: Case, folder: Folder) -> None:
    del folder
    found = pod(case["pod"])
    _check_allocated(case, _manager(case), [(found, each) for each in found.containers[:1]])


def _allocate_all(case: Case, folder: Folder) -> None:
    """Init containers, then the others; the expected error is every call's."""
    del folder
    found = pod(case["pod"])
    _check_allocated(case, _manager(case), [(found, each) for each in found.all_containers])


def _check_allocated(case: Case, manager: MemoryManager, todo: list[tuple[PodSpec, Any]]) -> None:
    errors: set[str | None] = set()
    for found, each in todo:
        try:
            manager = manager.allocate(found, each, _hint(case["tm_hint"]))
            errors.add(None)
        except MemoryManagerError as error:
            errors.add(str(error))
    expect("errors", errors - {None} or {None}, {case["expected_error"]})
    expect_state(manager.state, case, ("expected_assignments", "expected_machine_state"))


def _allocate_pod(case: Case, folder: Folder) -> None:
    del folder
    manager = _manager(case)
    found = pod(case["pod"])
    error = None
    try:
        manager = manager.allocate_pod(found, _hint(case["tm_hint"]))
    except MemoryManagerError as refused:
        error = str(refused)
    expect("error", error, case["expected_error"])
    expect_state(manager.state, case, ("expected_assignments", "expected_machine_state"))


def _remove(case: Case, folder: Folder) -> None:
    del folder
    manager = memory_without(_manager(case), "pod1", "container1")
    expect_state(manager.state, case, ("expected_assignments", "expected_machine_state"))


def _hints(case: Case, folder: Folder) -> None:
    del folder
    found = pod(case["pod"])
    expect_hints(_manager(case).hints(found, found.containers[0]), case["expected_hints"])


def _pod_hints(case: Case, folder: Folder) -> None:
    del folder
    expect_hints(_manager(case).pod_hints(pod(case["pod"])), case["expected_hints"])


def _pod_requests(case: Case, folder: Folder) -> None:
    del folder
    expect("requests", dict(pod_wants(pod(case["pod"]), gates())), case["expected"])


def _violates(case: Case, folder: Folder) -> None:
    del folder
    found = violates_groups(nodes(case["machine_state"]), NodeSet(case["mask"]))
    expect("violates", found, case["expected"])


def _shared_pool(case: Case, folder: Folder) -> None:
    del folder
    found, features = pod(case["pod"]), case["features"]
    switches = gates(pod_level=features["PodLevelResources"], managers=features["PodLevelResourceManagers"])
    error = None
    try:
        check_shared_pool(found, pod_wants(found, switches), switches)
    except EmptyPodSharedPoolError as refused:
        error = str(refused)
    expect("error", error, case["expectedErr"] or None)


def _restart(case: Case, folder: Folder) -> None:
    """A pod is placed, the state is written and read, and a new manager starts with it: everything is as
    before, and the pod is there as a whole only if it was placed so."""
    del folder
    switches = gates(
        pod_level=case["podLevelResourcesEnabled"], managers=case["podLevelResourceManagersEnabled"]
    )
    found = _pod_of_texts(case)
    where = machine({"nodes": [{"id": 0, "memory": 4 << 30, "hugepages": []}]})
    reserved = {0: {MEMORY: 1 << 30}}
    manager = start(MemoryManagerPolicy.STATIC, where, reserved, switches)
    if found.resources is not None:
        manager = manager.allocate_pod(found)
    else:
        for each in found.all_containers:
            manager = manager.allocate(found, each)
    version = 2 if switches.pod_level_resource_managers else 1
    text = format_checkpoint(checkpoint_of("Static", manager.state), version)
    again = start(
        MemoryManagerPolicy.STATIC, where, reserved, switches, restored(text, "f", "Static", switches)
    )
    expect("state", again.state, manager.state)
    expect("pod blocks", bool(again.state.pod_blocks.get(found.uid)), case["expectPodBlocks"])
    names = {each.name for each in found.all_containers} if takes_part(found, switches) else set()
    expect("containers", set(again.state.assignments.get(found.uid, {})), names)


def _pod_of_texts(case: Case) -> PodSpec:
    """A pod of which the case gives the memory only, as text; the CPUs are made Guaranteed as well."""
    written = [
        container(
            {
                "name": each["name"],
                "requests": _of_text(each["memRequest"]),
                "limits": _of_text(each["memLimit"]),
                "restart_policy": each["restartPolicy"],
            }
        )
        for each in case["containers"]
    ]
    level = case["podMemoryRequest"]
    sizes = {"cpu": 2000, MEMORY: parse_bytes(level)} if level else {}
    return PodSpec(
        "pod",
        tuple(each for each in written if not each.restartable),
        tuple(each for each in written if each.restartable),
        resources=PodLevelResources(sizes, sizes) if level else None,
    )


def _of_text(memory: str) -> dict[str, int]:
    return {"cpu_milli": 1000, MEMORY: parse_bytes(memory)} if memory else {}


def raised(call: Any) -> str | None:
    """What the manager says when it refuses a call; None if it does not."""
    try:
        call()
    except MemoryManagerError as error:
        return str(error)
    return None


_POLICY = "memory_manager_policy_static.json"

SECTIONS = (
    Section(_POLICY, "new", _new),
    Section(_POLICY, "start", _start),
    Section(_POLICY, "allocate", _allocate),
    Section(_POLICY, "allocate_with_init_containers", _allocate_all),
    Section(_POLICY, "allocate_with_restartable_init_containers", _allocate_all),
    Section(_POLICY, "remove_container", _remove),
    Section(_POLICY, "get_topology_hints", _hints),
    Section(_POLICY, "get_pod_topology_hints", _pod_hints),
    Section(_POLICY, "allocate_pod", _allocate_pod),
    Section(_POLICY, "pod_requested_resources", _pod_requests),
    Section(_POLICY, "is_affinity_violating_numa_allocations", _violates),
    Section(_POLICY, "validate_pod_scope_resources", _shared_pool),
    Section(_POLICY, "restart_restore", _restart),
)
