"""Which memory is everybody's: tiers with CPUs, never a device's."""

from bayplan.model.machine import Cpu, Machine, Node
from bayplan.quantity import GIB
from bayplan.sets import CpuSet, NodeSet


def ordinary(*nodes: Node) -> NodeSet:
    return Machine(nodes, ()).ordinary_nodes


def node(number: int, cpus: CpuSet = CpuSet(), memory_bytes: int = GIB, **more) -> Node:
    return Node(number, cpus, memory_bytes, **more)


CPUS = CpuSet([0, 1])


def test_a_slower_and_a_faster_tier_are_not_ordinary():
    found = ordinary(node(0, CPUS, tier=1), node(1, tier=0), node(2, tier=2))
    assert found == NodeSet([0])


def test_a_cpu_less_node_in_the_tier_of_the_cpus_is_ordinary():
    assert ordinary(node(0, CPUS, tier=0), node(5, tier=0)) == NodeSet([0, 5])


def test_a_cpu_less_node_of_unknown_tier_is_not_ordinary():
    assert ordinary(node(0, CPUS), node(1)) == NodeSet([0])
    assert ordinary(node(0, CPUS, tier=0), node(1)) == NodeSet([0])


def test_a_node_whose_cpus_are_all_offline_is_ordinary():
    offline = Cpu(4, 4, -1, 1, None, online=False)
    nodes = (node(0, CPUS), node(1), node(2))
    assert Machine(nodes, (offline,)).ordinary_nodes == NodeSet([0, 1])
    below = (node(0, CPUS, tier=0), node(1, tier=1))
    assert Machine(below, (offline,)).ordinary_nodes == NodeSet([0])


def test_memory_of_a_device_is_never_ordinary():
    assert ordinary(node(0, CPUS, tier=0), node(1, tier=0, owner="0009:01:00.0")) == NodeSet([0])
    assert ordinary(node(0, CPUS, memory_bytes=0), node(1, owner="0009:01:00.0")) == NodeSet()


def test_where_all_nodes_with_cpus_lack_memory_every_other_node_is_ordinary():
    assert ordinary(node(0, CPUS, memory_bytes=0), node(1), node(2, tier=1)) == NodeSet([1, 2])


def test_a_memory_less_node_is_not_ordinary():
    assert ordinary(node(0, CPUS), node(1, CpuSet([2]), memory_bytes=0)) == NodeSet([0])
