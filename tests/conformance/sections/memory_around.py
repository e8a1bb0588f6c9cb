"""The manager around the policy, and reserved memory."""

from bayplan.engines.kubelet.memory_manager import MemoryManager
from bayplan.engines.kubelet.memory_state import MemoryManagerError
from bayplan.engines.kubelet.state_files import start
from bayplan.kubelet.manager_options import (
    ManagerConfigError,
    MemoryManagerPolicy,
    Reservation,
    ReservationProblem,
    by_node,
    check_machine,
    check_sums,
    check_values,
)
from bayplan.kubelet.pod import PodSpec
from bayplan.model.machine import MEMORY
from conformance.endings import memory_after_start, memory_without
from conformance.sections import Case, Folder, MismatchError, Section, expect
from conformance.sections.memory import (
    Written,
    expect_hints,
    expect_state,
    raised,
    reserved,
    state,
)
from conformance.sections.pods import amounts, container, gates, machine, pod
from support.kubelet_start import without_stale


def _reservations(written: list[Written] | None) -> tuple[Reservation, ...]:
    return tuple(Reservation(each["numa_node"], amounts(each["limits"])) for each in written or ())


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
    problems = _said(check_machine(found, machine(case["machineInfo"])))
    return problems or _said(check_sums(found, case["nodeAllocatableReservation"], {}))


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
    if case["expectedError"]:
        return
    found = by_node(_reservations(case["systemReservedMemory"]), machine(case["machineInfo"]))
    _expect_reserved(found, case["expectedReserved"])


def _expect_reserved(found: dict[int, dict[str, int]], expected: Written) -> None:
    expect("reserved", found, reserved(expected))


def _configuration(case: Case, folder: Folder) -> None:
    """Several errors are written as ``[one, two]`` by kubelet, in any order."""
    del folder
    found = _said(check_values(_reservations(case["reserved_memory"])))
    expected = case["expected_error"]
    texts = expected.removeprefix("[").removesuffix("]").split(", invalid") if expected else []
    whole = [text if text.startswith("invalid") else f"invalid{text}" for text in texts]
    expect("errors", sorted(set(found)), sorted(set(whole)))


def _policy_named(name: str) -> MemoryManagerPolicy:
    """The policy of that name, or kubelet's error; the daemon's own configuration knows names only."""
    try:
        return MemoryManagerPolicy(name)
    except ValueError:
        raise ManagerConfigError(f'unknown policy: "{name}"') from None


def _new_manager(case: Case, folder: Folder) -> None:
    """Policy, then reservations, then the policy's own demands, as kubelet checks them."""
    del folder
    found = machine(case["machineInfo"])
    kept = by_node(_reservations(case["systemReservedMemory"]), found)
    errors = [raised(lambda: _policy_named(case["policyName"]))]
    if errors == [None] and _policy_named(case["policyName"]) is MemoryManagerPolicy.STATIC:
        errors = list(_sum_errors(case)) or [
            raised(lambda: start(MemoryManagerPolicy.STATIC, found, kept, gates()))
        ]
    if case["expectedError"] not in errors:
        raise MismatchError("error", errors, case["expectedError"])
    if case["expectedError"] is None and case["policyName"] == MemoryManagerPolicy.STATIC.value:
        _expect_reserved(kept, case["expectedReserved"])


def _around(case: Case) -> MemoryManager | None:
    """The manager of a case; None where the unit test puts a policy that always fails into the manager. There
    are no policies to put in here, so that nothing of these cases can be run."""
    found = state(case["machineState"], case["assignments"])
    if case["policyName"] == "mock":
        return None
    return MemoryManager(_policy_named(case["policyName"]), found)


_AFTER = ("expectedAssignments", "expectedMachineState")


def _stale(case: Case, folder: Folder) -> None:
    """No pod is active."""
    del folder
    manager = _around(case)
    if manager is not None:
        expect_state(without_stale(manager, ()).state, case, _AFTER)


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
            manager = without_stale(manager, active)
            try:
                manager = manager.allocate(found, each)
            except MemoryManagerError as refused:
                error = str(refused)
                break
            manager = memory_after_start(manager, found, each)
    expect("error", error, case.get("expectedAllocateError") or None)
    expect_state(manager.state, case, _AFTER)


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
        manager = memory_after_start(manager, found, each)
    expect_state(manager.state, case, _AFTER)


def _remove_container(case: Case, folder: Folder) -> None:
    """``fakeID1`` and ``fakeID2`` are the containers of the only pod; other ids are unknown."""
    del folder
    manager = _around(case)
    number = case["removeContainerID"].removeprefix("fakeID")
    name = f"fakeContainer{number}"
    if manager is not None:
        expect_state(memory_without(manager, "fakePod1", name).state, case, _AFTER)


def _manager_hints(case: Case, folder: Folder) -> None:
    """No pod is active, so that what is assigned is stale; the unit test then asks for a new container."""
    del folder
    manager = _around(case)
    if manager is None:
        return
    manager = without_stale(manager, ())
    sizes = {"cpu_milli": 1000, MEMORY: 1 << 30, "hugepages-1Gi": 1 << 30}
    alone = container({"name": "c", "requests": sizes, "limits": sizes})
    expect_hints(manager.hints(PodSpec("new", (alone,)), alone), case["expectedHints"])


_MANAGER = "memory_manager_manager.json"

SECTIONS = (
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
