"""Packed, spread and distributed choices: always exactly what was asked for, only from what is available."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayplan.engines.kubelet.cpu_assignment import FreeCpus, take_distributed, take_packed
from bayplan.engines.kubelet.cpu_state import CpuShortageError
from bayplan.engines.kubelet.cpu_topology import CpuTopology, LogicalCpu
from bayplan.model.machine import Cpu, Machine, Node
from bayplan.sets import CpuSet, NodeSet


def regular(sockets=2, nodes=1, caches=1, cores=4, threads=2):
    """*nodes* per socket, *caches* per node, *cores* per cache; second threads numbered after all first."""
    total = sockets * nodes * caches * cores
    return CpuTopology.of_cpus(
        LogicalCpu(
            id=thread * total + core,
            core=core,
            node=core // (caches * cores),
            socket=core // (nodes * caches * cores),
            uncore=core // cores,
        )
        for core in range(total)
        for thread in range(threads)
    )


def hybrid():
    """Four cores with two threads (0-7) and eight with one (8-15): one CPU per core on average."""
    return CpuTopology.of_cpus(
        LogicalCpu(id=cpu, core=cpu // 2 * 2 if cpu < 8 else cpu, node=0, socket=0, uncore=0)
        for cpu in range(16)
    )


topologies = st.one_of(
    st.builds(
        regular,
        sockets=st.integers(1, 3),
        nodes=st.integers(1, 3),
        caches=st.integers(1, 2),
        cores=st.integers(1, 4),
        threads=st.sampled_from([1, 2, 4]),
    ),
    st.builds(hybrid),
    st.lists(st.tuples(*[st.integers(0, 3)] * 4), min_size=1, max_size=24).map(
        lambda rows: CpuTopology.of_cpus(LogicalCpu(cpu, *row) for cpu, row in enumerate(rows))
    ),
)


@given(topologies, st.data())
def test_exactly_what_was_asked_for_and_only_from_what_is_available(topology, data):
    available = CpuSet(data.draw(st.sets(st.sampled_from(list(topology.all_cpus)))))
    count = data.draw(st.integers(0, len(available)))

    taken = [
        take_packed(topology, available, count),
        take_packed(topology, available, count, spread=True),
        take_packed(topology, available, count, align_uncore=True),
        take_distributed(topology, available, count, 1),
        take_distributed(topology, available, count, max(1, topology.cpus_per_core)),
    ]

    assert [len(cpus) for cpus in taken] == [count] * len(taken)
    assert all(cpus <= available for cpus in taken)


@given(topologies, st.data())
def test_order_of_description_does_not_matter(topology, data):
    available = CpuSet(data.draw(st.sets(st.sampled_from(list(topology.all_cpus)), min_size=1)))
    count = data.draw(st.integers(1, len(available)))
    shuffled = CpuTopology.of_cpus(data.draw(st.permutations(topology.cpus)))

    assert shuffled == topology
    assert take_packed(shuffled, available, count) == take_packed(topology, available, count)
    assert take_distributed(shuffled, available, count, 1) == take_distributed(topology, available, count, 1)


@pytest.mark.parametrize(
    "take",
    [
        lambda available, count: take_packed(regular(), available, count),
        lambda available, count: take_distributed(regular(), available, count, 1),
        lambda available, count: take_distributed(regular(), available, count, 2),
    ],
)
def test_shortage_names_both_numbers(take):
    with pytest.raises(
        CpuShortageError, match="not enough cpus available to satisfy request: requested=3, available=2"
    ):
        take(CpuSet([0, 8]), 3)


def test_most_used_node_is_filled_first():
    topology = regular()

    assert take_packed(topology, topology.all_cpus - CpuSet([4]), 2) == CpuSet([5, 13])


def test_whole_node_before_anything_smaller():
    topology = regular()

    assert take_packed(topology, topology.all_cpus - CpuSet([0]), 10) == CpuSet.parse("1,4-7,9,12-15")


def test_spread_avoids_siblings():
    assert take_packed(regular(), regular().all_cpus, 4, spread=True) == CpuSet.parse("0-3")


def test_one_cache_where_it_suffices():
    topology = regular(sockets=1, caches=2, cores=4)

    assert take_packed(topology, topology.all_cpus, 6, align_uncore=True) == CpuSet.parse("0-2,8-10")


def test_a_core_with_more_threads_than_the_average_is_never_taken_with_a_thread_in_use():
    """The free thread of a half used core equals the average core, which kubelet takes for a whole core."""
    taken = take_packed(hybrid(), CpuSet([0]) | CpuSet.parse("8-15"), 3)

    assert taken <= CpuSet([0]) | CpuSet.parse("8-15")
    assert len(taken) == 3


def test_distributed_takes_equal_shares():
    topology = regular(sockets=1, nodes=4, cores=4)

    taken = take_distributed(topology, topology.all_cpus, 16, 1)

    assert [len(taken & topology.cpus_in_nodes(NodeSet([node]))) for node in range(4)] == [8, 8, 0, 0]


def test_distributed_is_packed_where_the_groups_do_not_come_out_even():
    topology = regular()

    assert take_distributed(topology, topology.all_cpus, 9, 2) == take_packed(topology, topology.all_cpus, 9)


def test_distributed_is_packed_where_no_nodes_can_share():
    """Every core has lost a thread: no group of two is left on any node, yet there are enough CPUs."""
    topology = regular(sockets=2, cores=1)

    assert take_distributed(topology, CpuSet([0, 1]), 2, 2) == CpuSet([0, 1])


def test_a_remainder_that_no_node_can_give_in_whole_groups_ends():
    """Two nodes with three free CPUs each: after a share of one core, neither has another core to give."""
    topology = regular(sockets=3, cores=2)
    available = CpuSet.parse("0-1,6,2-3,8,4-5,10")

    taken = take_distributed(topology, available, 6, 2)

    assert len(taken) == 6
    assert taken <= available


def test_a_node_that_spans_sockets_counts_once():
    """Three nodes on two sockets, the first node on both, so that going by sockets meets it twice."""
    places = [(0, 0), (0, 1), (0, 0), (0, 1), (1, 0), (2, 1)]
    topology = CpuTopology.of_cpus(
        LogicalCpu(id=cpu, core=cpu, node=node, socket=socket, uncore=0)
        for cpu, (node, socket) in enumerate(places)
    )

    for count in range(7):
        assert len(take_distributed(topology, topology.all_cpus, count, 1)) == count


def test_a_socket_that_spans_nodes_is_not_taken_twice():
    places = [(0, 0), (1, 0), (1, 1), (1, 1)]
    topology = CpuTopology.of_cpus(
        LogicalCpu(id=cpu, core=0, node=node, socket=socket, uncore=0)
        for cpu, (node, socket) in enumerate(places)
    )

    for count in range(5):
        assert len(take_packed(topology, topology.all_cpus - CpuSet([3]), min(count, 3))) == min(count, 3)


def test_free_cpus_cannot_be_taken_twice():
    free = FreeCpus(regular(), regular().all_cpus, 2)
    free.take(CpuSet([0]))

    with pytest.raises(AssertionError):
        free.take(CpuSet([0]))


def test_topology_of_a_machine_has_its_online_cpus():
    cpus = (
        Cpu(id=0, core_id=0, socket_id=0, node_id=0, l3_cache_id=0),
        Cpu(id=1, core_id=1, socket_id=0, node_id=1, l3_cache_id=1),
        Cpu(id=2, core_id=0, socket_id=0, node_id=0, l3_cache_id=0),
        Cpu(id=3, core_id=1, socket_id=0, node_id=None, l3_cache_id=None, online=False),
        Cpu(id=4, core_id=4, socket_id=1, node_id=None, l3_cache_id=None),
    )
    nodes = (Node(0, CpuSet([0, 2]), 1 << 30), Node(1, CpuSet([1]), 1 << 30), Node(2, CpuSet(), 1 << 30))

    topology = CpuTopology.of_machine(Machine(nodes, cpus))

    assert topology.all_cpus == CpuSet([0, 1, 2, 4])
    assert topology.nodes == NodeSet([0, 1])
    assert topology.cpus[-1] == LogicalCpu(id=4, core=4, node=0, socket=1, uncore=1)
    assert (topology.cpus_per_core, topology.cpus_per_socket, topology.cpus_per_uncore) == (1, 2, 2)
    assert topology.siblings(CpuSet([0])) == CpuSet([0, 2])


def test_topology_without_cpus_has_no_sizes():
    empty = CpuTopology.of_cpus(())

    assert (empty.cpus_per_core, empty.cpus_per_socket, empty.cpus_per_uncore) == (0, 0, 0)
    assert take_packed(empty, CpuSet(), 0) == CpuSet()
