"""CPU hints against kubelet's count over every set of nodes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayplan.engines.kubelet.cpu_manager import cpu_hints
from bayplan.engines.kubelet.cpu_topology import CpuTopology, LogicalCpu
from bayplan.engines.kubelet.topology_hints import subsets
from bayplan.sets import CpuSet, NodeSet


def by_count(topology, available, reusable, needed, *, align_by_socket):
    """Set by set, CPU by CPU."""
    place = {cpu.id: cpu.node for cpu in topology.cpus}
    smallest, possible = len(topology.nodes), []
    for nodes in subsets(topology.nodes):
        if len(topology.cpus_in_nodes(nodes)) >= needed:
            smallest = min(smallest, len(nodes))
        if all(place[cpu] in nodes for cpu in reusable):
            matching = len(reusable) + sum(place[cpu] in nodes for cpu in available)
            if matching >= needed:
                possible.append(nodes)
    per_socket = topology.num_nodes // topology.num_sockets
    found = {}
    for nodes in possible:
        preferred = len(nodes) == smallest
        if align_by_socket and per_socket:
            preferred |= len(topology.sockets_in_nodes(nodes)) == -(-smallest // per_socket)
        found[nodes] = preferred
    return found


def listed(hints):
    found = {}
    for hint in hints.listed():
        found[hint.nodes] = found.get(hint.nodes, False) or hint.preferred
    return found


def machine(sockets, nodes, cpus, sparse=1):
    """*nodes* per socket, *cpus* per node; node ids are multiples of *sparse*."""
    return CpuTopology.of_cpus(
        LogicalCpu(
            id=cpu, core=cpu, node=cpu // cpus * sparse, socket=cpu // (nodes * cpus), uncore=cpu // cpus
        )
        for cpu in range(sockets * nodes * cpus)
    )


@given(
    st.builds(machine, st.integers(1, 2), st.integers(1, 3), st.integers(1, 4), st.sampled_from([1, 3])),
    st.booleans(),
    st.data(),
)
def test_hints_are_those_that_counting_finds(topology, align_by_socket, data):
    cpus = list(topology.all_cpus)
    available = CpuSet(data.draw(st.sets(st.sampled_from(cpus))))
    reusable = CpuSet(data.draw(st.sets(st.sampled_from(cpus), max_size=2))) - available
    needed = data.draw(st.integers(1, len(cpus) + 1))

    hints = cpu_hints(topology, available, reusable, needed, align_by_socket=align_by_socket)

    assert listed(hints) == by_count(topology, available, reusable, needed, align_by_socket=align_by_socket)


def test_sockets_prefer_nothing_where_a_node_holds_several():
    topology = CpuTopology.of_cpus(
        LogicalCpu(id=cpu, core=cpu, node=cpu // 4, socket=cpu // 2, uncore=0) for cpu in range(8)
    )

    hints = cpu_hints(topology, topology.all_cpus, CpuSet(), 2, align_by_socket=True)

    assert listed(hints) == {NodeSet([0]): True, NodeSet([1]): True, NodeSet([0, 1]): False}


@pytest.mark.parametrize("needed", [1, 64, 1024])
def test_sixty_four_nodes_are_described_without_being_listed(needed):
    topology = machine(sockets=8, nodes=8, cpus=16)

    hints = cpu_hints(topology, topology.all_cpus, CpuSet(), needed)

    assert topology.nodes in hints.regions[0]
    assert len(hints.regions) == 1
