"""QoS classes, oom_score_adj, and the values of container and pod cgroups."""

from typing import Any

from msgspec.structs import replace

from bayplan.kubelet.pod import CPU, Amounts, ContainerSpec, FeatureGates, PodLevelResources, PodSpec
from bayplan.kubelet.qos import (
    CONFIG_MIRROR,
    ContainerValues,
    NodeSettings,
    PodValues,
    container_hugepage_limits,
    container_oom_score_adj,
    container_values,
    hugepage_limits,
    is_critical,
    is_node_critical,
    pod_values,
    qos_class,
)
from bayplan.model.decision import QosClass
from bayplan.model.machine import MEMORY
from bayplan.model.policy import MemoryQos, MemoryReservationPolicy
from bayplan.model.qos import quota_from_milli, shares_from_milli
from bayplan.model.resources import MEMORY_HIGH
from bayplan.quantity import format_page_size, parse_bytes, parse_page_size
from conformance.cgroup_weights import reported_milli, weight_linear, weight_quadratic
from conformance.sections import Case, Folder, Section, expect
from conformance.sections.pods import RULES, amounts, gates, pod, rules_of_case
from conformance.swap import SwapBehavior, swap_behavior

_TIERED = MemoryQos(0.9, reservation=MemoryReservationPolicy.TIERED)
_CAPACITY_BYTES = 8 << 30
"""Any capacity will do where a table does not look at scores."""


def _scores(case: Case, folder: Folder) -> None:
    """Scores of a pod's containers, by the unit test's name for them."""
    del folder
    found = pod(case["pod"])
    switches = gates(pod_level=case["feature_pod_level_resources"])
    expect("class", qos_class(found, switches).value, case["qos"])
    expect("node critical", is_node_critical(found), case["node_critical"])
    scores = _all_scores(found, case["memory_capacity"], switches)
    expect("oom_score_adj", scores, case["actual"])


def _pods(case: Case, folder: Folder) -> None:
    """Everything that follows from a random pod."""
    del folder
    found, switches = pod(case["pod"]), gates(rules=rules_of_case(case))
    expect("class", qos_class(found, switches).value, case["qos"])
    expect("critical", is_critical(found), case["critical"])
    expect("node critical", is_node_critical(found), case["node_critical"])
    expect("oom_score_adj", _all_scores(found, case["memory_capacity"], switches), case["oom_score_adj"])
    node = NodeSettings(case["memory_capacity"], memory_qos=_TIERED)
    values = pod_values(found, node, switches)
    expected = case["pod_cgroup"]
    expect("cpu.shares", values.cpu_shares, expected["cpu_shares"])
    expect("quota", values.cpu_quota_us, expected["cpu_quota"])
    expect("period", values.cpu_period_us, expected["cpu_period"])
    expect("memory limit", values.memory_limit_bytes, expected["memory"])
    unified = dict(values.unified)
    throttled = unified.pop(MEMORY_HIGH, None)
    expect("unified", unified, expected["unified_tiered"] or {})
    expect("memory.high", throttled, case.get("pod_memory_high_factor_0.9"))


def _pod_config(case: Case, folder: Folder) -> None:
    """A pod's cgroup, with the quota computed by the configured period."""
    del folder
    node = NodeSettings(
        _CAPACITY_BYTES,
        enforce_quota=case["enforceCPULimits"],
        period_us=case["quotaPeriod"],
        custom_period=True,
    )
    values = pod_values(pod(case["pod"]), node, gates(pod_level=case["podLevelResourcesEnabled"]))
    expect("config", _pod_config_as_written(values), case["expected"])


def _pod_config_memory_qos(case: Case, folder: Folder) -> None:
    """The same with MemoryQoS. Kubelet computes quotas by the configured period exactly with the gate
    CustomCPUCFSQuotaPeriod (`NodeSettings.quota_us`). The rows do not say whether it is on, and one state of
    it does not explain all (200m by 5000 as 20000, 100m as 1000): a quota has to be that of one of both."""
    del folder
    node = NodeSettings(
        _CAPACITY_BYTES,
        enforce_quota=case["enforceCPULimits"],
        period_us=case["quotaPeriod"],
        memory_qos=_TIERED,
        custom_period=True,
    )
    found, other = (
        _pod_config_as_written(pod_values(pod(case["pod"]), one, gates(pod_level=True)))
        for one in (node, replace(node, custom_period=False))
    )
    if case["expected"].get("CPUQuota") == other.get("CPUQuota"):
        found = other
    expect("config", found, case["expected"])


def _quota(case: Case, folder: Folder) -> None:
    del folder
    expect("quota", quota_from_milli(case["input"], case["period"]), case["quota"])


def _page_sizes(case: Case, folder: Folder) -> None:
    """Resource names to page sizes; the last value of a repeated name counts."""
    del folder
    written = {each["key"]: parse_bytes(each["input"]) for each in case["inputs"]}
    expect("limits", {str(size): limit for size, limit in hugepage_limits(written).items()}, case["expected"])


def _linux_resources(case: Case, folder: Folder) -> None:
    """A container without a pod worth speaking of; an absent ``cpuReq`` is an absent request."""
    del folder
    requests = {} if case.get("cpuReq") is None else {CPU: case["cpuReq"]}
    limits = {CPU: case["cpuLim"], MEMORY: case["memLim"]}
    alone = ContainerSpec("c", requests, limits)
    node = NodeSettings(
        _CAPACITY_BYTES,
        cgroup_v2=case["cgroupVersion"] == "v2",
        single_process_oom_kill=case["singleProcessOOMKill"],
    )
    values = container_values(PodSpec("u", (alone,)), alone, node, gates())
    _expect_container(values, case["expected"])


def _container_config(case: Case, folder: Folder) -> None:
    """A container named ``foo`` in pod ``12345678``, with the CPU sets that the CPU Manager has assigned."""
    del folder
    switches = {"PodLevelResources": True, "DisableCPUQuotaWithExclusiveCPUs": True}
    switches |= case.get("enableFeatures") or {}
    written, level = case["containerResources"], case.get("podResources")
    alone = ContainerSpec("foo", amounts(written.get("Requests")), amounts(written.get("Limits")))
    found = PodSpec("12345678", (alone,), resources=_level(level) if level else None)
    exclusive = bool((case.get("cpuSets") or {}).get(f"{found.uid}/{alone.name}"))
    values = container_values(
        found,
        alone,
        NodeSettings(_CAPACITY_BYTES, single_process_oom_kill=True),
        FeatureGates(
            pod_level_resources=switches["PodLevelResources"],
            pod_level_resource_managers=switches.get("PodLevelResourceManagers", False),
            no_quota_for_exclusive_cpus=switches["DisableCPUQuotaWithExclusiveCPUs"],
            rules=RULES,
        ),
        exclusive_cpus=exclusive,
    )
    _expect_container(values, case["expected"])


def _hugepage_config(case: Case, folder: Folder) -> None:
    """The machine has the page sizes that the case expects a limit for."""
    del folder
    alone = ContainerSpec("c", limits=amounts(case["resources"].get("Limits")))
    found = PodSpec("u", (alone,), resources=_level(case["podResources"]))
    sizes = [parse_page_size(each["PageSize"]) for each in case["expected"]]
    limits = container_hugepage_limits(found, alone, sizes, gates(pod_level=case["podLevelResourcesEnabled"]))
    shown = [
        {"Limit": limit, "PageSize": format_page_size(size).replace("i", "") + "B"}
        for size, limit in limits.items()
    ]
    expect("limits", shown, case["expected"])


def _swap(case: Case, folder: Folder) -> None:
    """The table gives the container's memory only in the case's name: ``zero memory`` and ``equal``."""
    del folder
    name = case["name"].lower()
    requests: Amounts = {MEMORY: 1 << 20}
    limits: Amounts = {MEMORY: 2 << 20}
    if "zero memory" in name:
        requests = limits = {MEMORY: 0}
    elif "equal" in name:
        requests = limits
    alone = ContainerSpec("c", requests, limits)
    found = PodSpec(
        "u",
        (alone,),
        annotations={CONFIG_MIRROR: "m"} if case["isCriticalPod"] else {},
        qos=QosClass(case["qosClass"] or "Burstable"),
    )
    configured = (
        SwapBehavior.LIMITED_SWAP if case["configuredMemorySwap"] == "LimitedSwap" else SwapBehavior.NO_SWAP
    )
    behavior = swap_behavior(
        configured,
        found,
        alone,
        gates(),
        cgroup_v2=case["cgroupVersion"] == "v2",
        swap_controller=case["isSwapControllerAvailable"],
    )
    expect("behaviour", behavior.value, case["expected"])


def _random_container(case: Case, folder: Folder) -> None:
    """A random container alone in its pod, on cgroup v2 with MemoryQoS; -1 is an absent CPU value."""
    del folder
    requests = {CPU: case["cpu_request_milli"], MEMORY: case["memory_request"]}
    limits = {CPU: case["cpu_limit_milli"], MEMORY: case["memory_limit"]}
    alone = ContainerSpec("c", _present(requests), _present(limits))
    node = NodeSettings(
        capacity_bytes=case["memory_capacity"],
        allocatable_bytes=case["node_allocatable_memory"],
        page_bytes=case["page_size"],
        memory_qos=MemoryQos(case["throttling_factor"], MemoryReservationPolicy(case["reservation_policy"])),
    )
    switches, settings = gates(rules=rules_of_case(case)), node.memory_qos
    assert settings is not None
    variants = {
        "result": settings,
        "result_throttling_factor_nil": replace(settings, throttling_factor=None),
        "result_memoryqos_off": None,
    }
    for name, memory_qos in variants.items():
        if name in case:
            values = container_values(
                PodSpec("u", (alone,)), alone, replace(node, memory_qos=memory_qos), switches
            )
            _expect_random(values, case[name])


def _expect_random(values: ContainerValues, expected: dict[str, Any]) -> None:
    expect("cpu.shares", values.cpu_shares, expected["cpu_shares"])
    expect("quota", values.cpu_quota_us, expected["cpu_quota"])
    expect("period", values.cpu_period_us, expected["cpu_period"])
    expect("memory limit", values.memory_limit_bytes, expected["memory_limit_in_bytes"])
    expect("oom_score_adj", values.oom_score_adj, expected["oom_score_adj"])
    expect("unified", dict(values.unified), expected["unified"])


def _milli(case: Case, folder: Folder) -> None:
    del folder
    shares = shares_from_milli(case["milli_cpu"])
    expect("shares", shares, case["shares"])
    expect("milli from shares", reported_milli(shares), case["milli_from_shares"])
    expect("linear weight", weight_linear(shares), case["weight_kubelet_linear"])
    expect("quadratic weight", weight_quadratic(shares), case["weight_runc_quadratic"])
    for period, quota in case["quota"].items():
        expect(f"quota per {period} us", quota_from_milli(case["milli_cpu"], int(period)), quota)


def _linear(case: Case, folder: Folder) -> None:
    del folder
    shares, weight = case
    expect(f"weight of {shares} shares", weight_linear(shares), weight)


def _quadratic(case: Case, folder: Folder) -> None:
    """The table lists where the weight changes: here it is reached, and just below it is not."""
    del folder
    shares, weight = case
    expect(f"weight of {shares} shares", weight_quadratic(shares), weight)
    if shares:
        expect(f"less for {shares - 1} shares", weight_quadratic(shares - 1) < weight, expected=True)


def _all_scores(found: PodSpec, capacity_bytes: int, switches: FeatureGates) -> dict[str, int]:
    return {
        each.name: container_oom_score_adj(found, each, capacity_bytes, switches)
        for each in found.all_containers
    }


def _present(written: dict[str, int]) -> Amounts:
    return {name: amount for name, amount in written.items() if amount >= 0}


def _level(written: dict[str, Any]) -> PodLevelResources:
    return PodLevelResources(amounts(written.get("Requests")), amounts(written.get("Limits")))


def _pod_config_as_written(values: PodValues) -> dict[str, Any]:
    shown: dict[str, Any] = {"CPUSet": [], "CPUShares": values.cpu_shares}
    optional = {
        "CPUPeriod": values.cpu_period_us,
        "CPUQuota": values.cpu_quota_us,
        "Memory": values.memory_limit_bytes,
        "HugePageLimit": {str(size): limit for size, limit in values.hugepage_limits_bytes.items()} or None,
        "Unified": dict(values.unified) or None,
    }
    return shown | {name: value for name, value in optional.items() if value is not None}


def _expect_container(values: ContainerValues, expected: dict[str, Any]) -> None:
    """These tables leave scores and CPU sets alone."""
    expect("shares", values.cpu_shares, expected["CpuShares"])
    expect("quota", values.cpu_quota_us, expected["CpuQuota"])
    expect("period", values.cpu_period_us, expected["CpuPeriod"])
    expect("memory limit", values.memory_limit_bytes, expected["MemoryLimitInBytes"])
    expect("unified", dict(values.unified), expected.get("Unified") or {})


SECTIONS = (
    Section("qos_oom_score.json", "oom_score_adj", _scores),
    Section("oracle_qos.jsonl", None, _pods),
    Section("cgroup_conversions.json", "resource_config_for_pod", _pod_config),
    Section("cgroup_conversions.json", "resource_config_for_pod_memory_qos", _pod_config_memory_qos),
    Section("cgroup_conversions.json", "milli_cpu_to_quota", _quota),
    Section("cgroup_conversions.json", "hugepage_limits", _page_sizes),
    Section("cgroup_conversions.json", "calculate_linux_resources", _linux_resources),
    Section("cgroup_conversions.json", "linux_container_config_resources", _container_config),
    Section("cgroup_conversions.json", "hugepage_limits_from_resources", _hugepage_config),
    Section("cgroup_conversions.json", "container_swap_behavior", _swap),
    Section("oracle_container_resources.jsonl", None, _random_container),
    Section("oracle_conversions.json", "milli", _milli),
    Section("oracle_conversions.json", "linear_samples", _linear),
    Section("oracle_conversions.json", "quadratic_breakpoints", _quadratic),
)
