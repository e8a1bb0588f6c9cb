"""Settings against a machine: what each node keeps, and everything that the machine does not have."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from bayplan.config.kubelet_rules import engine_of, remarks_on_machine
from bayplan.config.reservations import resolve_policy
from bayplan.config.settings import Settings
from bayplan.engines.kubelet.engine import KubeletEngine
from bayplan.errors import ConfigError
from bayplan.kubelet.eviction_manager import ThresholdValue, Values, parse_percentage
from bayplan.kubelet.manager_options import CpuOptions, ManagerOptions, MemoryManagerPolicy, TopologyOptions
from bayplan.model.machine import Cpu, Machine, Node
from bayplan.model.policy import (
    CpuAlignment,
    CpuPool,
    CpuRule,
    MemoryQos,
    MemoryReservationPolicy,
    OutsideRequests,
    PoolBounds,
    TopologyPolicy,
    TopologyScope,
)
from bayplan.sets import CpuSet

GIB, MIB = 1 << 30, 1 << 20


def machine(*memory_bytes: int, pages: dict[int, int] | None = None) -> Machine:
    """One node for each amount, ids 0, 2, 4, ..., one CPU each; *pages* is the 2Mi pool by position."""
    nodes = tuple(
        Node(2 * index, CpuSet([index]), amount, {2 * MIB: (pages or {}).get(index, 0)})
        for index, amount in enumerate(memory_bytes)
    )
    return Machine(nodes, tuple(Cpu(index, index, 0, 2 * index, None) for index in range(len(nodes))))


def free(value: ThresholdValue | None) -> Values:
    """evictionHard with this value for memory.available."""
    return {"memory.available": value}


def problems_of(settings: Settings, hardware: Machine) -> list[str]:
    with pytest.raises(ConfigError) as raised:
        resolve_policy(settings, hardware)
    return [f"{one.path}: {one.found} | {one.expected}" for one in raised.value.problems]


def found_in(settings: Settings, hardware: Machine) -> list[tuple[str, str]]:
    """What is wrong, as key and what was found."""
    with pytest.raises(ConfigError) as raised:
        resolve_policy(settings, hardware)
    return [(one.path, one.found) for one in raised.value.problems]


def test_the_default_is_100_mib_spread_evenly() -> None:
    policy = resolve_policy(Settings(), machine(GIB, GIB, 0, GIB, GIB))
    assert policy.reserved_bytes == {node: {"memory": 25 * MIB} for node in (0, 2, 6, 8)}
    assert policy.topology is TopologyPolicy.BEST_EFFORT
    assert policy.memory_qos is None


def test_what_does_not_divide_is_shared_in_whole_pages() -> None:
    reserved = resolve_policy(Settings(), machine(GIB, GIB, GIB)).reserved_bytes
    shares = [reserved[node]["memory"] for node in (0, 2, 4)]
    assert sum(shares) == 100 * MIB
    assert [share % 4096 for share in shares] == [0, 0, 0]
    assert shares == sorted(shares, reverse=True)
    assert max(shares) - min(shares) <= 4096


def test_a_small_node_keeps_all_it_has_and_others_take_the_rest() -> None:
    reserved = resolve_policy(Settings(), machine(GIB, 10 * MIB, GIB)).reserved_bytes
    assert reserved == {0: {"memory": 45 * MIB}, 2: {"memory": 10 * MIB}, 4: {"memory": 45 * MIB}}


def test_node_wide_reservations_are_kubelets_sum() -> None:
    settings = Settings(
        kube_reserved={"memory": GIB, "hugepages-2Mi": 6 * MIB},
        system_reserved={"memory": GIB},
        eviction_hard=free(ThresholdValue(share=0.05)),
    )
    hardware = machine(10 * GIB, 10 * GIB, pages={0: 64 * MIB, 1: 64 * MIB})
    reserved = resolve_policy(settings, hardware).reserved_bytes
    assert reserved == {
        0: {"memory": GIB + GIB // 2, "hugepages-2Mi": 4 * MIB},
        2: {"memory": GIB + GIB // 2, "hugepages-2Mi": 2 * MIB},
    }


def test_reserved_memory_is_taken_as_it_is() -> None:
    given_bytes = {0: {"memory": GIB}, 2: {"hugepages-2Mi": 2 * MIB}}
    settings = Settings(reserved_memory=given_bytes, kube_reserved={"memory": 7 * GIB})
    hardware = machine(2 * GIB, 2 * GIB, pages={1: 4 * MIB})
    assert resolve_policy(settings, hardware).reserved_bytes == given_bytes


def test_no_reservation_is_possible() -> None:
    assert resolve_policy(Settings(reserved_memory={}), machine(GIB)).reserved_bytes == {}
    assert resolve_policy(Settings(eviction_hard=free(None)), machine(GIB)).reserved_bytes == {}


def test_everything_else_reaches_the_policy() -> None:
    settings = Settings(
        topology=TopologyPolicy.RESTRICTED,
        reserved_cpus=CpuSet([1]),
        feature_gates={"MemoryQoS": True},
        memory_throttling_factor=None,
        memory_reservation=MemoryReservationPolicy.TIERED,
        single_process_oom_kill=True,
        set_oom_score_adj=False,
        default_memory_limit_bytes={"Burstable": GIB},
        refuse_wrong_annotations=True,
        forbidden_annotations=frozenset({"irqs"}),
        outside_requests=OutsideRequests.RESERVATIONS,
    )
    policy = resolve_policy(settings, machine(GIB, GIB))
    assert policy.topology is TopologyPolicy.RESTRICTED
    assert policy.reserved_cpus == CpuSet([1])
    assert policy.memory_qos == MemoryQos(None, MemoryReservationPolicy.TIERED)
    assert policy.single_process_oom_kill
    assert not policy.set_oom_score_adj
    assert policy.default_memory_limit_bytes == {"Burstable": GIB}
    assert policy.refuse_wrong_annotations
    assert policy.forbidden_annotations == {"irqs"}
    assert policy.outside_requests is OutsideRequests.RESERVATIONS


def test_every_problem_with_the_machine_is_reported_at_once() -> None:
    settings = Settings(
        reserved_memory={
            0: {"memory": 3 * GIB, "hugepages-1Gi": GIB, "hugepages-2Mi": 66 * MIB},
            1: {"memory": GIB},
            2: {"memory": 2 * GIB},
        },
        reserved_cpus=CpuSet([0, 7, 9]),
    )
    assert found_in(settings, machine(2 * GIB, 2 * GIB, pages={0: 64 * MIB})) == [
        ("reservedMemory", "hugepages-1Gi on NUMA node 0"),
        ("reservedMemory", "hugepages-2Mi=66Mi on NUMA node 0"),
        ("reservedMemory", "memory=3Gi on NUMA node 0"),
        ("reservedMemory", "NUMA node 1"),
        ("reservedSystemCPUs", "0,7,9 (no CPU 7,9)"),
    ]


def test_node_wide_reservations_larger_than_the_machine() -> None:
    settings = Settings(kube_reserved={"memory": 2 * GIB, "hugepages-1Gi": GIB})
    total = "kubeReserved + systemReserved + evictionHard"
    assert problems_of(settings, machine(GIB, GIB)) == [
        f"{total}, hugepages-1Gi: 1Gi (1073741824 bytes) | at most what all nodes have, 0 (0 bytes)",
        f"{total}, memory: 2148Mi (2252341248 bytes) | at most what all nodes have, 2Gi (2147483648 bytes)",
    ]


def test_offline_cpus_exist() -> None:
    hardware = Machine(
        (Node(0, CpuSet([0]), GIB),), (Cpu(0, 0, 0, 0, None), Cpu(1, 1, 0, None, None, online=False))
    )
    assert resolve_policy(Settings(reserved_cpus=CpuSet([1])), hardware).reserved_cpus == CpuSet([1])


@given(
    st.lists(st.integers(0, 1 << 40), min_size=1, max_size=9),
    st.integers(0, 1 << 42),
)
def test_the_spread_is_exact_and_fits_every_node(rooms: list[int], amount: int) -> None:
    settings = Settings(eviction_hard=free(ThresholdValue(amount)))
    hardware = machine(*rooms)
    if amount > sum(rooms):
        assert len(problems_of(settings, hardware)) == 1
        return
    reserved = resolve_policy(settings, hardware).reserved_bytes
    assert sum(row["memory"] for row in reserved.values()) == amount
    capacity = {node.id: node.memory_bytes for node in hardware.nodes}
    assert all(0 < row["memory"] <= capacity[node] for node, row in reserved.items())
    shares = {node: reserved.get(node, {}).get("memory", 0) for node in capacity}
    below = [share for node, share in shares.items() if share < capacity[node]]
    assert not below or max(below) - min(below) <= 4096 * len(rooms)


# --- kubelet's engine ---

ENOUGH = {0: {"memory": 60 * MIB}, 2: {"memory": 40 * MIB}}


def kubelet(**more: Any) -> Settings:
    usual: dict[str, Any] = {"engine": "kubelet", "reserved_memory": ENOUGH, "reserved_cpus": CpuSet([0])}
    return Settings(**usual | more)


def test_kubelets_engine_with_what_kubelet_demands() -> None:
    policy = resolve_policy(kubelet(), machine(GIB, GIB))
    assert policy.reserved_bytes == ENOUGH
    assert (policy.reserved_cpus, policy.withheld_cpus) == (CpuSet([0]), CpuSet())


def test_all_that_kubelet_would_not_start_with_is_reported_at_once() -> None:
    settings = kubelet(
        reserved_memory={0: {"memory": GIB, "hugepages-2Mi": 2 * MIB}, 2: {"memory": GIB}},
        reserved_cpus=CpuSet(),
        kube_reserved={"memory": GIB},
        system_reserved={"memory": GIB},
    )
    pages, memory, (key, _) = found_in(settings, machine(2 * GIB, 2 * GIB, pages={0: 64 * MIB}))
    assert pages == ("reservedMemory", "2Mi of hugepages-2Mi in all (node 0 2Mi)")
    assert memory == ("reservedMemory", "2Gi of memory in all (node 0 1Gi + node 2 1Gi)")
    assert key == "cpuManagerPolicy"


def test_nothing_reserved_anywhere_is_kubelets_error_too() -> None:
    settings = kubelet(reserved_memory={}, eviction_hard={})
    assert found_in(settings, machine(GIB, GIB)) == [("reservedMemory", "no memory")]


def test_without_managers_there_are_no_rules() -> None:
    settings = kubelet(
        reserved_memory=None,
        reserved_cpus=CpuSet(),
        memory_manager=MemoryManagerPolicy.NONE,
        cpu_manager="none",
    )
    assert resolve_policy(settings, machine(GIB, GIB)).reserved_bytes == {
        node: {"memory": 50 * MIB} for node in (0, 2)
    }


def test_a_percentage_is_computed_as_kubelet_does() -> None:
    fifth = parse_percentage("5%")
    settings = kubelet(
        eviction_hard=free(ThresholdValue(share=fifth)), reserved_memory={0: {"memory": GIB // 10}}
    )
    [problem] = problems_of(settings, machine(GIB, GIB))
    assert "evictionHard memory.available 107374184" in problem


def test_an_amount_of_reserved_cpus_is_picked_as_kubelet_picks_them() -> None:
    amounts = {"kube_reserved": {"cpu": 700_000_000}, "system_reserved": {"cpu": 400_000_000}}
    settings = kubelet(reserved_cpus=CpuSet(), **amounts)
    assert resolve_policy(settings, machine(GIB, GIB, GIB)).reserved_cpus == CpuSet([0, 1])


@pytest.mark.parametrize(("minor", "reserved"), [(36, CpuSet([0, 1])), (37, CpuSet([0]))])
def test_less_than_a_thousandth_of_a_cpu_reserves_one_only_before_1_37(minor: int, reserved: CpuSet) -> None:
    settings = kubelet(reserved_cpus=CpuSet(), kube_reserved={"cpu": 1_000_100_000}, kubelet_minor=minor)
    assert resolve_policy(settings, machine(GIB, GIB, GIB)).reserved_cpus == reserved


def test_strictly_reserved_cpus_are_withheld() -> None:
    settings = kubelet(cpu_options={"strict-cpu-reservation": "true"})
    assert resolve_policy(settings, machine(GIB, GIB)).withheld_cpus == CpuSet([0])


def test_the_cpu_options_of_the_engine_exact() -> None:
    assert resolve_policy(Settings(), machine(GIB, GIB)).cpu_alignment == CpuAlignment()
    options = {"full-pcpus-only": "true", "prefer-align-cpus-by-uncorecache": "false", "align-by-socket": "1"}
    settings = Settings(cpu_options=options, reserved_cpus=CpuSet([1]))
    policy = resolve_policy(settings, machine(GIB, GIB))
    assert policy.cpu_alignment == CpuAlignment(
        full_pcpus_only=True, align_by_socket=True, prefer_align_cpus_by_uncorecache=False
    )
    assert (policy.reserved_cpus, policy.withheld_cpus) == (CpuSet([1]), CpuSet())
    strict = Settings(cpu_options={"strict-cpu-reservation": "true"}, reserved_cpus=CpuSet([1]))
    assert resolve_policy(strict, machine(GIB, GIB)).withheld_cpus == CpuSet([1])


def test_cpu_options_of_the_engine_exact_against_the_machine() -> None:
    settings = Settings(topology=TopologyPolicy.SINGLE_NUMA_NODE, cpu_options={"align-by-socket": "true"})
    assert found_in(settings, machine(GIB, GIB)) == [("cpuManagerPolicyOptions", "align-by-socket")]


def test_options_against_the_machine() -> None:
    settings = kubelet(
        topology=TopologyPolicy.SINGLE_NUMA_NODE,
        cpu_options={"align-by-socket": "true"},
        feature_gates={"CPUManagerPolicyAlphaOptions": True},
        topology_options={"prefer-closest-numa-nodes": "true"},
    )
    keys = [key for key, _ in found_in(settings, machine(GIB, GIB))]
    assert keys == ["topologyManagerPolicyOptions", "cpuManagerPolicy"]


def test_the_engine_has_what_was_configured() -> None:
    settings = kubelet(
        topology_scope=TopologyScope.POD,
        memory_manager=MemoryManagerPolicy.BEST_EFFORT,
        cpu_options={"full-pcpus-only": "true"},
        topology_options={"max-allowable-numa-nodes": "64"},
    )
    engine = engine_of(settings)
    assert isinstance(engine, KubeletEngine)
    assert engine.managers == ManagerOptions(
        MemoryManagerPolicy.BEST_EFFORT,
        static_cpus=True,
        cpu_options=CpuOptions(full_pcpus_only=True),
        scope=TopologyScope.POD,
        topology_options=TopologyOptions(max_nodes=64),
    )
    assert engine_of(Settings()).name == "exact"


@pytest.mark.parametrize(
    ("pools", "found"),
    [
        ({0: {2 * MIB: PoolBounds(0, GIB)}}, []),
        ({0: {2 * MIB: PoolBounds(0, GIB + 2 * MIB)}}, [("hugepagePools.0.hugepages-2Mi.maximum", "1026Mi")]),
        ({0: {GIB: PoolBounds(0, GIB)}}, [("hugepagePools.0.hugepages-1Gi", "1Gi")]),
        ({7: {2 * MIB: PoolBounds(0, GIB)}}, [("hugepagePools.7", "node 7")]),
        (
            {0: {2 * MIB: PoolBounds(GIB // 2, GIB), 4 * MIB: PoolBounds(768 * MIB, GIB)}},
            [("hugepagePools.0", "1280Mi as minimum of all sizes together")],
        ),
    ],
)
def test_pools_of_huge_pages_that_the_machine_cannot_have(
    pools: dict[int, dict[int, PoolBounds]], found: list[tuple[str, str]]
) -> None:
    settings = Settings(hugepage_pools=pools)
    nodes = machine(GIB, GIB).nodes
    sizes = {2 * MIB: 0, 4 * MIB: 0}
    hardware = Machine(tuple(replace(node, hugepages_bytes=sizes) for node in nodes), machine(GIB, GIB).cpus)
    if found:
        assert found_in(settings, hardware) == found
    else:
        assert resolve_policy(settings, hardware).hugepage_pools == pools
        # kubelet's managers have the pools that there were at kubelet's start.
        assert resolve_policy(kubelet(hugepage_pools=pools), hardware).hugepage_pools == {}
        assert any(
            "hugepagePools" in one for one in remarks_on_machine(kubelet(hugepage_pools=pools), hardware)
        )


@pytest.mark.parametrize(
    ("pools", "rule", "found"),
    [
        ({"db": CpuPool(1, 3)}, "pool=db", []),
        ({"db": CpuPool(1, 4)}, "pool=db", [("cpuPools.db.maximum", "4")]),
        ({"db": CpuPool(1, 2), "web": CpuPool(1, 2)}, "pool=db", [("cpuPools", "4 CPUs together")]),
        ({"db": CpuPool(1, 2, "performance")}, "pool=db", [("cpuPools.db.cpuKind", "'performance'")]),
        ({"db": CpuPool(1, 2)}, "pool=web", [("cpuRules[0].cpus", "'pool=web'")]),
        ({}, "pool=web", [("cpuRules[0].cpus", "'pool=web'")]),
    ],
)
def test_pools_that_the_machine_has_no_room_for(
    pools: dict[str, CpuPool], rule: str, found: list[tuple[str, str]]
) -> None:
    """Of four CPUs the lowest is reserved."""
    settings = Settings(cpu_pools=pools, cpu_rules=(CpuRule(cpus=rule),))
    hardware = machine(GIB, GIB, GIB, GIB)
    if found:
        assert found_in(settings, hardware) == found
    else:
        assert resolve_policy(settings, hardware).cpu_pools == pools
