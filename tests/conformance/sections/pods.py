"""Pods, machines and memory blocks as the vector files write them. Not a section: it checks nothing."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from bayplan.kubelet.pod import CPU, Amounts, ContainerSpec, FeatureGates, PodLevelResources, PodSpec
from bayplan.model.decision import QosClass
from bayplan.model.kubelet_version import KubeletRules, rules_of
from bayplan.model.machine import Machine, Node
from bayplan.sets import CpuSet


def amounts(written: Mapping[str, int] | None) -> Amounts:
    """Requests or limits; the files call thousandths of a CPU ``cpu_milli``."""
    return {CPU if name == "cpu_milli" else name: amount for name, amount in (written or {}).items()}


def container(written: Mapping[str, Any]) -> ContainerSpec:
    """A container, in either of the two spellings of its restart policy."""
    return ContainerSpec(
        name=written["name"],
        requests=amounts(written.get("requests")),
        limits=amounts(written.get("limits")),
        restartable=written.get("restart_policy") == "Always" or bool(written.get("sidecar")),
    )


def pod(written: Mapping[str, Any]) -> PodSpec:
    """A pod. Its class is computed, unless the file gives one."""
    level = written.get("pod_resources")
    return PodSpec(
        uid=written["uid"],
        name=written.get("name", ""),
        containers=_containers(written["containers"]),
        init_containers=_containers(written.get("init_containers") or written.get("init") or ()),
        resources=None
        if level is None
        else PodLevelResources(amounts(level.get("requests")), amounts(level.get("limits"))),
        priority=written.get("priority"),
        priority_class_name=written.get("priority_class_name") or "",
        annotations=written.get("annotations") or {},
        qos=QosClass(written["qos"]) if written.get("qos") else None,
    )


RULES: Final = rules_of(36)
"""Of the kubelet that answered, where a file does not say otherwise."""


_SINCE_1_37: Final = ("pod_memory_high_factor_0.9", "result_memoryqos_off", "final_v1.37.2")
"""Keys that only records of kubelet 1.37 have."""


def rules_of_case(case: Mapping[str, Any]) -> KubeletRules:
    """The rules of the kubelet that gave the answers of a case."""
    return rules_of(37) if any(key in case for key in _SINCE_1_37) else RULES


def gates(*, pod_level: bool = True, managers: bool = False, rules: KubeletRules = RULES) -> FeatureGates:
    """Feature gates from the two that the files switch."""
    return FeatureGates(pod_level_resources=pod_level, pod_level_resource_managers=managers, rules=rules)


def machine(written: Mapping[str, Any] | None) -> Machine:
    """A machine of which only the memory matters; without one, a machine without nodes."""
    nodes = (written or {"nodes": ()})["nodes"]
    return Machine(
        nodes=tuple(
            Node(
                id=node["id"],
                cpus=CpuSet(),
                memory_bytes=node["memory"],
                hugepages_bytes={
                    pool["page_size_kb"] << 10: (pool["page_size_kb"] << 10) * pool["num_pages"]
                    for pool in node["hugepages"]
                },
            )
            for node in nodes
        ),
        cpus=(),
    )


def _containers(written: Iterable[Mapping[str, Any]]) -> tuple[ContainerSpec, ...]:
    return tuple(container(each) for each in written)
