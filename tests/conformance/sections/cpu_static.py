"""The CPU Manager's static policy: configuration, start, allocation, removal, hints, reconciliation."""

from collections.abc import Mapping
from typing import Any, Final

from bayplan.engines.kubelet.cpu_manager import StaticCpuPolicy, cpu_policy, pod_exclusive_cpus
from bayplan.engines.kubelet.cpu_state import CpuState, SmtAlignmentError
from bayplan.engines.kubelet.cpu_topology import CpuTopology, LogicalCpu
from bayplan.engines.kubelet.topology_hints import ProviderHints
from bayplan.kubelet.manager_options import STATIC, CpuOptions, unavailable_cpu_option
from bayplan.kubelet.pod import CPU, ContainerSpec, FeatureGates, PodSpec
from bayplan.model.policy import TopologyPolicy
from bayplan.sets import CpuSet, NodeSet
from conformance.cpu_reconciliation import Running, UpdateNeed, reconcile_cpus
from conformance.endings import cpus_without
from conformance.sections import Case, Folder, Section, expect, expect_error
from conformance.sections.cpu import assignments, error_of, named_topology
from conformance.sections.pods import container, gates, pod

_FILE: Final = "cpu_manager_policy_static.json"

_OPTION_FIELDS: Final = {
    "AlignBySocket": "align_by_socket",
    "DistributeCPUsAcrossCores": "distribute_cpus_across_cores",
    "DistributeCPUsAcrossNUMA": "distribute_cpus_across_numa",
    "FullPhysicalCPUsOnly": "full_pcpus_only",
    "PreferAlignByUncoreCacheOption": "prefer_align_cpus_by_uncorecache",
    "StrictCPUReservation": "strict_cpu_reservation",
}

_HINTS_TOPOLOGY: Final = CpuTopology.of_cpus(
    LogicalCpu(id=cpu, core=cpu % 6, node=cpu % 6 // 3, socket=cpu % 6 // 3, uncore=0) for cpu in range(12)
)
"""The machine of kubelet's tests of hints, which the tables do not name: two sockets of three cores, two
threads each, the second threads numbered after all first ones."""


def _gates(case: Case) -> FeatureGates:
    return gates(
        pod_level=case.get("podLevelResourcesEnabled", True),
        managers=case.get("podLevelResourceManagersEnabled", False),
    )


def _policy(case: Case, folder: Folder, *, forced: Mapping[str, str] | None = None) -> StaticCpuPolicy:
    """The policy as a case of the allocation tables describes it.

    A "management partition" is an addition of one distribution, which keeps reserved CPUs out of the shared
    ones just as strict-cpu-reservation does.
    """
    options = {**(case.get("options") or case.get("cpuPolicyOptions") or {}), **(forced or {})}
    if case.get("managementPartition"):
        options["strict-cpu-reservation"] = "true"
    return StaticCpuPolicy.reserving(
        named_topology(case["topo"], folder),
        CpuOptions.parse(options, alpha=True),
        case["numReservedCPUs"],
        CpuSet(case.get("reservedCPUs") or case.get("reserved") or ()),
        gates=_gates(case),
    )


def _before(case: Case) -> CpuState:
    return CpuState(CpuSet(case["stDefaultCPUSet"]), assignments(case["stAssignments"]))


def _nodes(hint: Mapping[str, Any] | None) -> NodeSet | None:
    affinity = (hint or {}).get("affinity")
    return None if affinity is None else NodeSet(affinity)


def _start(case: Case, folder: Folder) -> None:
    refused = error_of(lambda: _policy(case, folder))
    expect_error(refused, case.get("expNewErr"))
    if refused is not None:
        return
    policy, before = _policy(case, folder), _before(case)
    expect_error(error_of(lambda: policy.start(before)), case["expErr"])
    if not case["expErr"]:
        expect("shared CPUs", policy.start(before).shared, CpuSet(case["expCSet"]))


def _check_allocation(case: Case, policy: StaticCpuPolicy) -> None:
    """Allocate for the first container and compare error, CPUs and the rest."""
    before, asked = _before(case), pod(case["pod"])
    first, nodes = asked.containers[0], _nodes(case.get("topologyHint"))
    refused = error_of(lambda: policy.allocate(before, asked, first, nodes))
    expect_error(refused, case["expErr"])
    after = before if refused is not None else policy.allocate(before, asked, first, nodes)
    given = after.of(asked.uid, first.name)
    expect("CPUs", given, CpuSet(case["expCSet"]) if case["expCPUAlloc"] else None)
    if given is not None:
        expect("shared CPUs among them", after.shared & given, CpuSet())


def _add(case: Case, folder: Folder) -> None:
    _check_allocation(case, _policy(case, folder))


def _add_either_way(case: Case, folder: Folder) -> None:
    for forced in ({}, {"full-pcpus-only": "true"}):
        _check_allocation(case, _policy(case, folder, forced=forced))


def _add_uncore(case: Case, folder: Folder) -> None:
    policy, state, asked = _policy(case, folder), _before(case), pod(case["pod"])
    for each in asked.containers:
        state = policy.allocate(state, asked, each, None)
    given = [state.of(asked.uid, each.name) or CpuSet() for each in asked.containers]
    if case["expCPUAlloc"]:
        expect("CPUs", given[0], CpuSet(case["expCSet"]))
    if case["expUncoreCache"]:
        places = {cpu.id: cpu.uncore for cpu in policy.topology.cpus}
        uncores = {places[cpu] for cpus in given for cpu in cpus}
        expect("uncore caches", sorted(uncores), sorted(case["expUncoreCache"]))


def _reuse(case: Case, folder: Folder) -> None:
    test = case["staticPolicyTest"]
    policy, state, asked = _policy(test, folder), _before(test), pod(test["pod"])
    for each in asked.all_containers:
        state = policy.allocate(state, asked, each, None)
    expect("shared CPUs after allocation", state.shared, CpuSet(case["expCSetAfterAlloc"]))
    if "expCSetAfterRemove" in case:
        state = cpus_without(state, asked.uid, test["containerName"])
        expect("shared CPUs after removal", state.shared, CpuSet(case["expCSetAfterRemove"]))


def _remove(case: Case, folder: Folder) -> None:
    del folder
    state = cpus_without(_before(case), case["podUID"], case["containerName"])
    expect("shared CPUs", state.shared, CpuSet(case["expCSet"]))
    expect("CPUs of the container", state.of(case["podUID"], case["containerName"]), None)


def _aligned(case: Case, folder: Folder) -> None:
    """Kubelet's test calls the step inside; here a container that asks for so many CPUs takes it."""
    policy = StaticCpuPolicy(named_topology(case["topo"], folder), CpuOptions(), CpuSet())
    resources = {CPU: case["numRequested"] * 1000, "memory": 1}
    asked = PodSpec("pod", (ContainerSpec("container", resources, resources),))
    mask = case["socketMask"]
    nodes = None if mask is None else NodeSet(mask)
    state = policy.allocate(_before(case), asked, asked.containers[0], nodes)
    expect("CPUs", state.of("pod", "container"), CpuSet(case["expCSet"]))


def _options(case: Case, folder: Folder) -> None:
    del folder
    written = case["policyOptions"] or {}
    failed = error_of(lambda: CpuOptions.parse(written)) is not None
    expect("whether refused", failed, case["expectedError"])
    if not failed:
        found, expected = CpuOptions.parse(written), case["expectedValue"]
        values = {name: getattr(found, field) for name, field in _OPTION_FIELDS.items()}
        expect("options", values, expected)


def _switched(case: Case) -> tuple[bool, bool]:
    """The feature gates of alpha and beta options; a case switches one of them, the other has its default."""
    switched = {case["featureGate"]: case.get("featureGateEnable", True)}
    return (
        switched.get("CPUManagerPolicyAlphaOptions", False),
        switched.get("CPUManagerPolicyBetaOptions", True),
    )


def _option_available(case: Case, folder: Folder) -> None:
    del folder
    alpha, beta = _switched(case)
    problem = unavailable_cpu_option(case["option"], alpha=alpha, beta=beta)
    expect(f"available ({problem})", problem is None, case["expectedAvailable"])


def _option_compatible(case: Case, folder: Folder) -> None:
    del folder
    alpha, beta = _switched(case)
    problem = error_of(lambda: CpuOptions.parse(case["policyOptions"], alpha=alpha, beta=beta))
    expect(f"refused ({problem})", problem is not None, case["expectedErr"])


def _option_valid(case: Case, folder: Folder) -> None:
    options = CpuOptions.parse(case["policyOption"], alpha=True)
    machine = named_topology(case["topology"], folder)
    sockets, nodes = machine.num_sockets, machine.num_nodes
    problem = error_of(lambda: options.check(sockets, nodes, TopologyPolicy(case["topoMgrPolicy"])))
    expect(f"refused ({problem})", problem is not None, case["expectedErr"])


def _smt_text(case: Case, folder: Folder) -> None:
    del folder
    fields = case["err"]
    physical = fields["AvailablePhysicalCPUs"] if fields["CausedByPhysicalCPUs"] else None
    error = SmtAlignmentError(fields["RequestedCPUs"], fields["CpusPerCore"], physical)
    expect("text", str(error), case["expected"])


def _shared_pool(case: Case, folder: Folder) -> None:
    features = case["features"]
    policy = StaticCpuPolicy.reserving(
        named_topology(case["topology"], folder),
        CpuOptions.parse(case["policyOptions"] or {}, alpha=True),
        case["numReserved"],
        CpuSet(case["reservedCPUs"] or ()),
        gates=gates(pod_level=features["PodLevelResources"], managers=features["PodLevelResourceManagers"]),
    )
    problem = error_of(lambda: policy.check_shared_pool(pod(case["pod"])))
    expect(f"refused ({problem})", problem is not None, case["expectErr"])


def _allocate_pod(case: Case, folder: Folder) -> None:
    policy, before, asked = _policy(case, folder), _before(case), pod(case["pod"])
    nodes = _nodes(case["topologyHint"])
    refused = error_of(lambda: policy.allocate_pod(before, asked, nodes))
    expect_error(refused, case["expErr"])
    after = before if refused is not None else policy.allocate_pod(before, asked, nodes)
    expect("shared CPUs", after.shared, CpuSet(case["expDefaultCPUSet"]))
    expect("CPUs of the containers", after.assignments, assignments(case["expPodAssignments"]))


def _pod_cpus(case: Case, folder: Folder) -> None:
    del folder
    expect("CPUs", pod_exclusive_cpus(pod(case["pod"]), _gates(case)), case["expectedCPU"])


def _expect_hints(what: str, found: ProviderHints, expected: list[dict[str, Any]] | None) -> None:
    """Compare hints as sets. kubelet's tests do not distinguish "no preference" from "nowhere"."""
    hints = (found or {}).get(CPU)
    listed: dict[NodeSet | None, bool] = {}
    for hint in hints.listed() if hints is not None else ():
        listed[hint.nodes] = listed.get(hint.nodes, False) or hint.preferred
    expect(what, listed, {NodeSet(hint["affinity"]): hint["preferred"] for hint in expected or ()})


def _hints_policy(case: Case, folder: Folder, switches: FeatureGates) -> StaticCpuPolicy:
    machine = named_topology(case["topology"], folder) if "topology" in case else _HINTS_TOPOLOGY
    return StaticCpuPolicy(
        machine, CpuOptions.parse(case.get("policyOptions") or {}, alpha=True), CpuSet(), switches
    )


def _hints_state(case: Case) -> CpuState:
    return CpuState(CpuSet(case["defaultCPUSet"]), assignments(case["assignments"]))


def _hints(case: Case, folder: Folder) -> None:
    policy, asked = _hints_policy(case, folder, _gates(case)), pod(case["pod"])
    found = policy.hints(_hints_state(case), asked, container(case["container"]))
    _expect_hints("hints", found, case["expectedHints"])


def _pod_hints(case: Case, folder: Folder) -> None:
    policy = _hints_policy(case, folder, _gates(case))
    _expect_hints("hints", policy.pod_hints(_hints_state(case), pod(case["pod"])), case["expectedHints"])


def _both_hints(case: Case, folder: Folder) -> None:
    policy = _hints_policy(case, folder, gates(pod_level=True, managers=True))
    state, asked = _hints_state(case), pod(case["pod"])
    found = policy.hints(state, asked, container(case["container"]))
    _expect_hints("hints of the container", found, case["expectedContainerLevelHints"])
    _expect_hints("hints of the pod", policy.pod_hints(state, asked), case["expectedPodLevelHints"])


def _init_containers(case: Case, folder: Folder) -> None:
    policy, state, asked = _policy(case, folder), _before(case), pod(case["pod"])
    expected = [CpuSet(cpus) for cpus in (*case["expInitCSets"], *case["expCSets"])]
    for each, cpus in zip(asked.all_containers, expected, strict=True):
        state = policy.allocate(state, asked, each, None)
        expect(f"CPUs of {each.name}", state.of(asked.uid, each.name) or CpuSet(), cpus)


def _configured(case: Case, folder: Folder) -> None:
    del folder
    machine = CpuTopology.of_cpus(
        LogicalCpu(id=cpu, core=cpu, node=0, socket=0, uncore=0)
        for cpu in range(0 if case["isTopologyBroken"] else 4)
    )
    reserved = (case["nodeAllocatableReservation"] or {}).get("cpu_milli")

    def configure() -> StaticCpuPolicy | None:
        return cpu_policy(case["cpuPolicyName"], machine, CpuOptions(), reserved_milli_cpus=reserved)

    expect_error(error_of(configure), case["expectedError"])
    if not case["expectedError"]:
        expect("policy", "none" if configure() is None else STATIC, case["expectedPolicy"])


def _running(status: Mapping[str, Any]) -> Running:
    for name, running in (
        ("Waiting", Running.WAITING), ("Terminated", Running.TERMINATED), ("Running", Running.RUNNING),
    ):  # fmt: skip
        if status["State"][name] is not None:
            return running
    return Running.WAITING


def _reconcile(case: Case, folder: Folder) -> None:
    """One round. A container that is up to date, or can be updated without an error, is a success."""
    del folder
    statuses = (case["pspPS"] or {}) if case["pspFound"] else {}
    listed = (*(statuses.get("InitContainerStatuses") or ()), *(statuses.get("ContainerStatuses") or ()))
    running = {status["Name"]: _running(status) for status in listed if status["ContainerID"]}
    known = [
        (asked.uid, each.name, running.get(each.name, Running.UNKNOWN))
        for asked in map(pod, case["activePods"])
        for each in asked.all_containers
    ]
    applied = CpuState(
        CpuSet(case["lastUpdateStDefaultCPUSet"]), assignments(case["lastUpdateStAssignments"])
    )
    succeeded: set[str] = set()
    failed: set[str] = set()
    for found in reconcile_cpus(_before(case), applied, known):
        refused = found.need is UpdateNeed.DUE and case["updateErr"]
        good = found.need is not UpdateNeed.FAILED and not refused
        (succeeded if good else failed).add(found.container)
    for what, names, expected in (
        ("succeeded", succeeded, case["expectSucceededContainerName"]),
        ("failed", failed, case["expectFailedContainerName"]),
    ):
        if expected:
            expect(what, sorted(names), [expected])


def _allocatable(case: Case, folder: Folder) -> None:
    written = case["policy"]
    if not written:
        policy = cpu_policy("none", _HINTS_TOPOLOGY, CpuOptions(), reserved_milli_cpus=None)
        expect("policy none", policy, None)
        expect("allocatable CPUs", [], case["expAllocatableCPUs"])
        return
    options = CpuOptions(**{_OPTION_FIELDS[name]: value for name, value in written["options"].items()})
    machine = named_topology(written["topology"], folder)
    policy = StaticCpuPolicy(machine, options, CpuSet(written["reservedCPUs"]))
    expect("allocatable CPUs", policy.allocatable, CpuSet(case["expAllocatableCPUs"]))


SECTIONS = tuple(
    Section(_FILE, key, check)
    for key, check in {
        "start": _start,
        "start_with_reserved_list": _start,
        "add_options_insensitive": _add_either_way,
        "add_default_options": _add,
        "add_full_pcpus_only": _add,
        "add_align_by_socket": _add,
        "add_with_reserved_list": _add,
        "add_with_uncore_alignment": _add_uncore,
        "reuse_cpus": _reuse,
        "do_not_reuse_cpus": _reuse,
        "remove": _remove,
        "topology_aware_allocate_cpus": _aligned,
        "options": _options,
        "smt_alignment_error_text": _smt_text,
        "validate_pod_scope_resources": _shared_pool,
        "allocate_pod": _allocate_pod,
        "pod_guaranteed_cpus": _pod_cpus,
        "get_topology_hints": _hints,
        "get_pod_topology_hints": _pod_hints,
        "get_pod_topology_hints_policy_options": _pod_hints,
        "hints_pod_level_resources": _both_hints,
        "policy_options_available": _option_available,
        "validate_static_policy_options": _option_valid,
        "policy_options_compatibility": _option_compatible,
        "manager_add_with_init_containers": _init_containers,
        "manager_generate": _configured,
        "reconcile_state": _reconcile,
        "allocatable_cpus": _allocatable,
    }.items()
)
