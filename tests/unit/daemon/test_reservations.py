"""Settings against a machine: what each node keeps, and everything that the machine does not have."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayplan.daemon.amounts import Threshold
from bayplan.daemon.config import resolve_policy
from bayplan.daemon.settings import Settings
from bayplan.domain.policy import MemoryQos, MemoryReservationPolicy, TopologyPolicy
from bayplan.domain.topology import Cpu, Machine, Node
from bayplan.errors import ConfigError
from bayplan.sets import CpuSet

GIB, MIB = 1 << 30, 1 << 20


def machine(*memory_bytes: int, pages: dict[int, int] | None = None) -> Machine:
    """One node for each amount, ids 0, 2, 4, ..., one CPU each; *pages* is the 2Mi pool by position."""
    nodes = tuple(
        Node(2 * index, CpuSet([index]), amount, {2 * MIB: (pages or {}).get(index, 0)})
        for index, amount in enumerate(memory_bytes)
    )
    return Machine(nodes, tuple(Cpu(index, index, 0, 2 * index, None) for index in range(len(nodes))))


def problems_of(settings: Settings, hardware: Machine) -> list[str]:
    with pytest.raises(ConfigError) as raised:
        resolve_policy(settings, hardware)
    return [f"{one.path}: {one.found} | {one.expected}" for one in raised.value.problems]


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
        kube_reserved_bytes={"memory": GIB, "hugepages-2Mi": 6 * MIB},
        system_reserved_bytes={"memory": GIB},
        eviction=Threshold(percent=Decimal(5)),
    )
    hardware = machine(10 * GIB, 10 * GIB, pages={0: 64 * MIB, 1: 64 * MIB})
    reserved = resolve_policy(settings, hardware).reserved_bytes
    assert reserved == {
        0: {"memory": GIB + GIB // 2, "hugepages-2Mi": 4 * MIB},
        2: {"memory": GIB + GIB // 2, "hugepages-2Mi": 2 * MIB},
    }


def test_reserved_memory_is_taken_as_it_is() -> None:
    given_bytes = {0: {"memory": GIB}, 2: {"hugepages-2Mi": 2 * MIB}}
    settings = Settings(reserved_memory=given_bytes, kube_reserved_bytes={"memory": 7 * GIB})
    hardware = machine(2 * GIB, 2 * GIB, pages={1: 4 * MIB})
    assert resolve_policy(settings, hardware).reserved_bytes == given_bytes


def test_no_reservation_is_possible() -> None:
    assert resolve_policy(Settings(reserved_memory={}), machine(GIB)).reserved_bytes == {}
    assert resolve_policy(Settings(eviction=Threshold(0)), machine(GIB)).reserved_bytes == {}


def test_everything_else_reaches_the_policy() -> None:
    settings = Settings(
        topology=TopologyPolicy.RESTRICTED,
        reserved_cpus=CpuSet([1]),
        memory_qos=True,
        memory_throttling_factor=None,
        memory_reservation=MemoryReservationPolicy.TIERED,
        single_process_oom_kill=True,
        set_oom_score_adj=False,
        default_memory_limit_bytes={"Burstable": GIB},
        refuse_wrong_annotations=True,
    )
    policy = resolve_policy(settings, machine(GIB, GIB))
    assert policy.topology is TopologyPolicy.RESTRICTED
    assert policy.reserved_cpus == CpuSet([1])
    assert policy.memory_qos == MemoryQos(None, MemoryReservationPolicy.TIERED)
    assert policy.single_process_oom_kill
    assert not policy.set_oom_score_adj
    assert policy.default_memory_limit_bytes == {"Burstable": GIB}
    assert policy.refuse_wrong_annotations


def test_every_problem_with_the_machine_is_reported_at_once() -> None:
    settings = Settings(
        reserved_memory={
            0: {"memory": 3 * GIB, "hugepages-1Gi": GIB, "hugepages-2Mi": 66 * MIB},
            1: {"memory": GIB},
            2: {"memory": 2 * GIB},
        },
        reserved_cpus=CpuSet([0, 7, 9]),
    )
    assert problems_of(settings, machine(2 * GIB, 2 * GIB, pages={0: 64 * MIB})) == [
        "reservedMemory, node 0, hugepages-1Gi: a size the node lacks | one of the node's: hugepages-2Mi",
        "reservedMemory, node 0, hugepages-2Mi: 66Mi (69206016 bytes) | at most 64Mi (67108864 bytes)",
        "reservedMemory, node 0, memory: 3Gi (3221225472 bytes) | at most 1984Mi (2080374784 bytes)",
        "reservedMemory: node 1 | NUMA nodes of this machine: 0,2",
        "reservedSystemCPUs: 0,7,9 (no CPU 7,9) | CPUs of this machine: 0-1",
    ]


def test_node_wide_reservations_larger_than_the_machine() -> None:
    settings = Settings(kube_reserved_bytes={"memory": 2 * GIB, "hugepages-1Gi": GIB})
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
    settings = Settings(eviction=Threshold(amount))
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
