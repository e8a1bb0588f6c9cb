"""The Memory Manager: policy Static, reserved memory, the manager around the policy."""

from collections.abc import Mapping
from typing import Any

from bayplan.domain.kubelet.hints import Hint, ProviderHints
from bayplan.domain.kubelet.memory_checkpoint import checkpoint_of, format_checkpoint, restored
from bayplan.domain.kubelet.memory_errors import EmptyPodSharedPoolError, MemoryManagerError
from bayplan.domain.kubelet.memory_hints import violates_groups
from bayplan.domain.kubelet.memory_manager import NO_HINT, MemoryManager, MemoryPolicy
from bayplan.domain.kubelet.memory_pool import check_shared_pool
from bayplan.domain.kubelet.memory_requests import pod_wants
from bayplan.domain.kubelet.memory_reservation import (
    Reservation,
    ReservationProblem,
    by_node,
    check_machine,
    check_sums,
    check_values,
)
from bayplan.domain.kubelet.memory_restore import start
from bayplan.domain.kubelet.memory_state import (
    Block,
    Blocks,
    MemoryState,
    MemoryTable,
    NodeMemory,
    Nodes,
)
from bayplan.domain.kubelet.pod import FeatureGates, PodLevelResources, PodSpec
from bayplan.domain.topology import MEMORY, Machine
from bayplan.quantity import parse_bytes
from bayplan.sets import NodeSet
from bayplan.testing.vector_sections import Case, Folder, MismatchError, Section, expect
from bayplan.testing.vector_sections.pods import container, gates, machine, pod

Written = Mapping[str, Any]


def nodes(written: Written | None) -> dict[int, NodeMemory]:
    """The machine state as the state file names it."""
    return {
        int(node): NodeMemory(
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
    return MemoryManager(MemoryPolicy.STATIC, found, _switches(case))


def _reserved(written: Written | None) -> dict[int, dict[str, int]]:
    return {int(node): dict(sizes) for node, sizes in (written or {}).items()}


def _hint(written: Written | None) -> Hint:
    if written is None:
        return NO_HINT
    affinity = written["affinity"]
    return Hint(None if affinity is None else NodeSet(affinity), written["preferred"])


def _expect_state(found: MemoryState, case: Case, names: tuple[str, str]) -> None:
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


def _expect_hints(found: ProviderHints, expected: Written | None) -> None:
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
    found = _error(
        lambda: start(MemoryPolicy.STATIC, empty, _reserved(case["system_reserved"]), _switches(case))
    )
    expect("error", found, case["expected_error"])


def _start(case: Case, folder: Folder) -> None:
    del folder
    recorded = state(case["machine_state"], case["assignments"])
    where, reserved = machine(case["machine_info"]), _reserved(case["system_reserved"])
    try:
        manager = start(MemoryPolicy.STATIC, where, reserved, _switches(case), recorded)
    except MemoryManagerError as error:
        expect("error", str(error), case["expected_error"])
        return
    expect("error", None, case["expected_error"])
    _expect_state(manager.state, case, ("expected_assignments", "expected_machine_state"))


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
    _expect_state(manager.state, case, ("expected_assignments", "expected_machine_state"))


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
    _expect_state(manager.state, case, ("expected_assignments", "expected_machine_state"))


def _remove(case: Case, folder: Folder) -> None:
    del folder
    manager = _manager(case).without("pod1", "container1")
    _expect_state(manager.state, case, ("expected_assignments", "expected_machine_state"))


def _hints(case: Case, folder: Folder) -> None:
    del folder
    found = pod(case["pod"])
    _expect_hints(_manager(case).hints(found, found.containers[0]), case["expected_hints"])


def _pod_hints(case: Case, folder: Folder) -> None:
    del folder
    _expect_hints(_manager(case).pod_hints(pod(case["pod"])), case["expected_hints"])


def _pod_requests(case: Case, folder: Folder) -> None:
    del folder
    expect("requests", dict(pod_wants(pod(case["pod"]), FeatureGates())), case["expected"])


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
    manager = start(MemoryPolicy.STATIC, where, reserved, switches)
    if found.resources is not None:
        manager = manager.allocate_pod(found)
    else:
        for each in found.all_containers:
            manager = manager.allocate(found, each)
    version = 2 if switches.pod_level_resource_managers else 1
    text = format_checkpoint(checkpoint_of("Static", manager.state), version)
    again = start(MemoryPolicy.STATIC, where, reserved, switches, restored(text, "f", "Static", switches))
    expect("state", again.state, manager.state)
    expect("pod blocks", bool(again.state.pod_blocks.get(found.uid)), case["expectPodBlocks"])
    expect(
        "containers", set(again.state.assignments[found.uid]), {each.name for each in found.all_containers}
    )


def _pod_of_texts(case: Case) -> PodSpec:
    """A pod of which the case gives the memory only, as text; the CPUs are made Guaranteed as well."""
    written = [
        container(
            {
                "name": each["name"],
                "requests": {"cpu_milli": 1000, MEMORY: parse_bytes(each["memRequest"])},
                "limits": {"cpu_milli": 1000, MEMORY: parse_bytes(each["memLimit"])},
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


def _error(call: Any) -> str | None:
    try:
        call()
    except MemoryManagerError as error:
        return str(error)
    return None


def _reservations(written: list[Written] | None) -> tuple[Reservation, ...]:
    return tuple(Reservation(each["numa_node"], each["limits"]) for each in written or ())


def _said(problems: tuple[ReservationProblem, ...]) -> list[str]:
    """What kubelet would say about them."""
    return [problem.kubelet for problem in problems if problem.kubelet]


def _expect_one_of(found: list[str], expected: str | None) -> None:
    """Kubelet stops at the first problem, which is any of those of the same check."""
    if not (expected in found if expected else not found):
        raise MismatchError("error", found, expected)


def _validate(case: Case, folder: Folder) -> None:
    del folder
    _expect_one_of(_sum_errors(case), case["expectedError"])


def _sum_errors(case: Case) -> list[str]:
    found = _reservations(case["systemReservedMemory"])
    strangers = _said(check_machine(found, machine(case["machineInfo"])))
    return strangers or _said(check_sums(found, case["nodeAllocatableReservation"], {}))


def _convert(case: Case, folder: Folder) -> None:
    """The table's machine has two nodes."""
    del folder
    two: Written = {"nodes": [{"id": node, "memory": 0, "hugepages": []} for node in (0, 1)]}
    _expect_reserved(
        by_node(_reservations(case["systemReserved"]), machine(two)), case["systemReservedExpected"]
    )


def _system_reserved(case: Case, folder: Folder) -> None:
    del folder
    _expect_one_of(_sum_errors(case), case["expectedError"])
    found = by_node(_reservations(case["systemReservedMemory"]), machine(case["machineInfo"]))
    _expect_reserved(found, case["expectedReserved"])


def _expect_reserved(found: dict[int, dict[str, int]], expected: Written) -> None:
    expect("reserved", found, _reserved(expected))


def _configuration(case: Case, folder: Folder) -> None:
    """Several errors are written as ``[one, two]`` by kubelet, in any order."""
    del folder
    found = _said(check_values(_reservations(case["reserved_memory"])))
    expected = case["expected_error"]
    texts = expected.removeprefix("[").removesuffix("]").split(", invalid") if expected else []
    whole = [text if text.startswith("invalid") else f"invalid{text}" for text in texts]
    expect("errors", sorted(set(found)), sorted(set(whole)))


def _new_manager(case: Case, folder: Folder) -> None:
    """Policy, then reservations, then the policy's own demands, as kubelet checks them."""
    del folder
    found = machine(case["machineInfo"])
    reserved = by_node(_reservations(case["systemReservedMemory"]), found)
    errors = [_error(lambda: MemoryPolicy.named(case["policyName"]))]
    if errors == [None] and MemoryPolicy.named(case["policyName"]) is MemoryPolicy.STATIC:
        errors = list(_sum_errors(case)) or [
            _error(lambda: start(MemoryPolicy.STATIC, found, reserved, FeatureGates()))
        ]
    if case["expectedError"] not in errors:
        raise MismatchError("error", errors, case["expectedError"])
    if case["expectedError"] is None and case["policyName"] == MemoryPolicy.STATIC.value:
        _expect_reserved(reserved, case["expectedReserved"])


def _around(case: Case) -> MemoryManager | None:
    """The manager of a case; None where the unit test puts a policy that always fails into the manager. There
    are no policies to put in here, so that nothing of these cases can be run."""
    found = state(case["machineState"], case["assignments"])
    if case["policyName"] == "mock":
        return None
    return MemoryManager(MemoryPolicy.named(case["policyName"]), found)


_AFTER = ("expectedAssignments", "expectedMachineState")


def _stale(case: Case, folder: Folder) -> None:
    """No pod is active."""
    del folder
    manager = _around(case)
    if manager is not None:
        _expect_state(manager.without_stale(()).state, case, _AFTER)


def _add_container(case: Case, folder: Folder) -> None:
    """The first pod is admitted and started, then the other one. The assignments of the table are those at
    its begin, except where it says what active pods have."""
    del folder
    manager = _around(case)
    if manager is None:
        return
    active = [pod(each) for each in case.get("activePods") or ()]
    error = None
    todo = [case[key] for key in ("firstPod", "podAllocate") if case.get(key)]
    for written in todo:
        found = pod(written)
        active = [each for each in active if each.uid != found.uid] + [found]
        for each in found.all_containers:
            manager = manager.without_stale(active)
            try:
                manager = manager.allocate(found, each)
            except MemoryManagerError as refused:
                error = str(refused)
                break
            manager = manager.started(found, each)
    expect("error", error, case.get("expectedAllocateError") or None)
    _expect_state(manager.state, case, _AFTER)


def _admit_with_init(case: Case, folder: Folder) -> None:
    """All containers are admitted, then all are started, in their order."""
    del folder
    manager = _around(case)
    if manager is None:
        return
    found = pod(case["podAllocate"])
    for each in found.all_containers:
        manager = manager.allocate(found, each)
    for each in found.all_containers:
        manager = manager.started(found, each)
    _expect_state(manager.state, case, _AFTER)


def _remove_container(case: Case, folder: Folder) -> None:
    """``fakeID1`` and ``fakeID2`` are the containers of the only pod; other ids are nobody's."""
    del folder
    manager = _around(case)
    number = case["removeContainerID"].removeprefix("fakeID")
    name = f"fakeContainer{number}"
    if manager is not None:
        _expect_state(manager.without("fakePod1", name).state, case, _AFTER)


def _manager_hints(case: Case, folder: Folder) -> None:
    """No pod is active, so that what is assigned is stale; the unit test then asks for a new container."""
    del folder
    manager = _around(case)
    if manager is None:
        return
    manager = manager.without_stale(())
    sizes = {"cpu_milli": 1000, MEMORY: 1 << 30, "hugepages-1Gi": 1 << 30}
    alone = container({"name": "c", "requests": sizes, "limits": sizes})
    _expect_hints(manager.hints(PodSpec("new", (alone,)), alone), case["expectedHints"])


_POLICY = "memory_manager_policy_static.json"
_MANAGER = "memory_manager_manager.json"

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
    Section(_MANAGER, "validate_reserved_memory", _validate),
    Section(_MANAGER, "convert_pre_reserved", _convert),
    Section(_MANAGER, "get_system_reserved_memory", _system_reserved),
    Section(_MANAGER, "remove_stale_state", _stale),
    Section(_MANAGER, "add_container", _add_container),
    Section(_MANAGER, "remove_container", _remove_container),
    Section(_MANAGER, "new_manager", _new_manager),
    Section(_MANAGER, "get_topology_hints", _manager_hints),
    Section(_MANAGER, "allocate_and_add_pod_with_init_containers", _admit_with_init),
    Section(_MANAGER, "config_validation_reserved_memory", _configuration),
)
