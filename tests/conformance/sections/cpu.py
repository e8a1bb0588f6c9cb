"""Which CPUs are chosen, and the CPU Manager's state file. The static policy's tables are in `cpu_static`."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from bayplan.engines.kubelet.cpu_assignment import FreeCpus, take_distributed, take_packed
from bayplan.engines.kubelet.cpu_checkpoint import decode_checkpoint, format_checkpoint
from bayplan.engines.kubelet.cpu_state import CpuManagerError, CpuState
from bayplan.engines.kubelet.cpu_topology import CpuTopology, LogicalCpu
from bayplan.kubelet.manager_options import ManagerConfigError
from bayplan.sets import CpuSet
from conformance.sections import Case, Folder, Section, expect, expect_error
from support.kubelet_start import restore_checkpoint

NAMED_TOPOLOGIES: Final = "cpu_topologies.json"
RANDOM_TOPOLOGIES: Final = "oracle_cpu_topologies.json"
_RECORDED: Final = Folder(Path(__file__).parents[2] / "data" / "vectors")
"""Has the machines for folders that say which of them, and not what they are."""
_ASSIGNMENT: Final = "cpu_assignment.json"
_STATE: Final = "cpu_manager_state.json"


def topology(written: Mapping[str, Any]) -> CpuTopology:
    """A topology, in the spelling of either file of topologies."""
    counts = [
        written.get(f"num_{name}", written.get(name, 0))
        for name in ("cpus", "cores", "sockets", "numa_nodes", "uncore_caches")
    ]
    rows = written["rows_cpu_core_numa_socket_uncore"]
    return CpuTopology(tuple(LogicalCpu(*row) for row in rows), *counts)


def named_topology(name: str, folder: Folder) -> CpuTopology:
    """A topology of kubelet's unit tests."""
    return topology(folder.load(NAMED_TOPOLOGIES)["topologies"][name])


def assignments(written: Mapping[str, Mapping[str, list[int]]] | None) -> dict[str, dict[str, CpuSet]]:
    """CPU sets by pod and container, from lists of ids."""
    return {
        pod: {container: CpuSet(cpus) for container, cpus in containers.items()}
        for pod, containers in (written or {}).items()
    }


def error_of(do: Callable[[], object]) -> str | None:
    """The text of the error that *do* raises, if any."""
    try:
        do()
    except (CpuManagerError, ManagerConfigError) as error:
        return str(error)
    return None


def _taken(take: Callable[[], CpuSet]) -> str | dict[str, str]:
    """CPUs or error, in the spelling of the random cases."""
    try:
        return str(take())
    except CpuManagerError as error:
        return {"error": str(error)}


def _recorded(case: Case) -> str | dict[str, str]:
    error = case["expected_error"]
    return {"error": error} if error else str(CpuSet(case["expected"]))


def _packed(case: Case, folder: Folder) -> None:
    machine, options = named_topology(case["topology"], folder), case["options"]
    taken = _taken(
        lambda: take_packed(
            machine,
            CpuSet(case["available_cpus"]),
            case["num_cpus"],
            spread=options.get("DistributeCPUsAcrossCores", False),
            align_uncore=options.get("PreferAlignByUncoreCacheOption", False),
        )
    )
    expect("CPUs", taken, _recorded(case))


def _distributed(case: Case, folder: Folder) -> None:
    machine, available = named_topology(case["topology"], folder), CpuSet(case["available_cpus"])
    group = case["cpu_group_size"]
    taken = _taken(lambda: take_distributed(machine, available, case["num_cpus"], group))
    expect("CPUs", taken, _recorded(case))


def _random(case: Case, folder: Folder) -> None:
    """Up to seven algorithms on one request. Where Go's reuse of slices changed kubelet's answer, the answer
    without that counts; where kubelet never returned, only that the answer is a proper one."""
    machines = folder if folder.has(RANDOM_TOPOLOGIES) else _RECORDED
    machine = topology(machines.load(RANDOM_TOPOLOGIES)[case["topology"]])
    available, count = CpuSet.parse(case["available"]), case["num_cpus"]
    takes: dict[str, Callable[[], CpuSet]] = {
        "packed": lambda: take_packed(machine, available, count),
        "packed_uncore": lambda: take_packed(machine, available, count, align_uncore=True),
        "spread": lambda: take_packed(machine, available, count, spread=True),
    }
    for group, size in (("group1", 1), ("groupcore", machine.cpus_per_core)):
        take = partial(take_distributed, machine, available, count, size)
        takes[f"distributed_{group}"] = take
        takes[f"distributed_align_{group}"] = partial(take, align_by_socket=True)
    recorded = {name: case.get(f"{name}_clean", case[name]) for name in takes if name in case}
    for name, expected in (recorded | case.get("without_slice_aliasing", {})).items():
        if isinstance(expected, dict) and "hang" in "".join((*expected, *expected.values())):
            taken = takes[name]()
            expect(
                f"{name}: number and availability of CPUs", (len(taken), taken <= available), (count, True)
            )
        else:
            expect(name, _taken(takes[name]), expected)


def _free(case: Case, folder: Folder) -> FreeCpus:
    machine = named_topology(case["topo"], folder)
    return FreeCpus(machine, CpuSet(case["availableCPUs"]), case.get("numCPUs", 0))


def _free_sockets(case: Case, folder: Folder) -> None:
    expect("free sockets", sorted(_free(case, folder).free_sockets()), case["expect"])


def _free_nodes(case: Case, folder: Folder) -> None:
    expect("free NUMA nodes", sorted(_free(case, folder).free_nodes()), case["expect"])


def _free_both(case: Case, folder: Folder) -> None:
    free = _free(case, folder)
    expect("free sockets", sorted(free.free_sockets()), case["expectSockets"])
    expect("free NUMA nodes", sorted(free.free_nodes()), case["expectNUMANodes"])


def _free_cores(case: Case, folder: Folder) -> None:
    expect("free cores in order", _free(case, folder).free_cores(), case["expect"])


def _free_cpus(case: Case, folder: Folder) -> None:
    expect("free CPUs in order", _free(case, folder).cpus_packed(), case["expect"])


def _take(case: Case, folder: Folder) -> None:
    free = _free(case, folder)
    for cpus in case["takeCPUs"]:
        free.take(CpuSet(cpus))
    expect("satisfied", free.satisfied, case["expectSatisfied"])
    expect("failed", free.failed, case["expectFailed"])
    expect("taken", free.taken, CpuSet(cpu for cpus in case["takeCPUs"] for cpu in cpus))


def _state(written: Mapping[str, Any]) -> CpuState:
    """The part of kubelet's state that outlives a restart."""
    return CpuState(
        shared=CpuSet(written["defaultCPUSet"]),
        assignments=assignments(written.get("assignments")),
        budgets={pod: CpuSet(own["CPUSet"]) for pod, own in (written.get("podAssignments") or {}).items()},
    )


def _restore(case: Case, folder: Folder) -> None:
    del folder
    known = case.get("initialContainers") or {}
    refs = {key: (found["podUID"], found["containerName"]) for key, found in known.items()}

    def restore() -> CpuState:
        return restore_checkpoint(
            case.get("checkpointContent"),
            case["policyName"],
            container_refs=refs,
            pod_level_managers=case["podLevelResourceManagersEnabled"],
        )

    expect_error(error_of(restore), case["expectedError"])
    if not case["expectedError"]:
        expect("state", restore(), _state(case["expectedState"]))


def _store(case: Case, folder: Folder) -> None:
    """What is written is read back."""
    del folder
    written = case.get("expectedState") or {
        "defaultCPUSet": case["defaultCPUset"],
        "assignments": case["assignments"],
    }
    state = _state(written)
    for managers in (False, True):
        text = format_checkpoint(state, "static", pod_level_managers=managers)
        read = restore_checkpoint(text, "static", pod_level_managers=managers)
        expect("state read back", read, state)
    expect("state that was cleared", restore_checkpoint(None, "static"), CpuState())


def _generated(case: Case, folder: Folder) -> None:
    """A file that kubelet's code wrote: its hashed text, its checksum, and the same file written again."""
    del folder
    text, version = case["file_content"], case["format_version"]
    checkpoint = decode_checkpoint(text, version)
    expect("hashed text", checkpoint.dump(), case["dump_text"])
    expect("checksum", checkpoint.computed_checksum(), case["checksum"])
    managers = version > 2
    state = restore_checkpoint(text, checkpoint.policy_name, pod_level_managers=managers)
    written = format_checkpoint(state, checkpoint.policy_name, pod_level_managers=managers)
    expect("file", written, text)


SECTIONS = (
    Section(_ASSIGNMENT, "take_by_topology_packed", _packed),
    Section(_ASSIGNMENT, "take_by_topology_spread_option", _packed),
    Section(_ASSIGNMENT, "take_by_topology_distributed", _distributed),
    Section(_ASSIGNMENT, "accumulator_free_sockets", _free_sockets),
    Section(_ASSIGNMENT, "accumulator_free_numa_nodes", _free_nodes),
    Section(_ASSIGNMENT, "accumulator_free_sockets_and_numa_nodes", _free_both),
    Section(_ASSIGNMENT, "accumulator_free_cores", _free_cores),
    Section(_ASSIGNMENT, "accumulator_free_cpus", _free_cpus),
    Section(_ASSIGNMENT, "accumulator_take", _take),
    Section("oracle_take_by_topology.jsonl", None, _random),
    Section("take_align_by_socket.jsonl", None, _random),
    Section(_STATE, "restore", _restore),
    Section(_STATE, "store", _store),
    Section(_STATE, "helpers", _store),
    Section(_STATE, "generated_by_kubelet_code", _generated),
)

REFERENCES = {
    f"{NAMED_TOPOLOGIES}:topologies": "read by the cases of other tables",
    RANDOM_TOPOLOGIES: "read by oracle_take_by_topology.jsonl and take_align_by_socket.jsonl",
}
