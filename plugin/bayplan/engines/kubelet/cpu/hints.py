"""CPU hints: on which sets of NUMA nodes so many CPUs could be had, and which of them are preferred.

kubelet counts the CPUs of each of the 2^n sets. Here the answer is one region: the nodes' numbers of CPUs,
how many are needed, and the nodes that must be in because the pod already holds CPUs there.
"""

from bayplan.engines.kubelet.cpu.topology import CpuTopology
from bayplan.engines.kubelet.topology.hints import Demand, HintSet, OfSize, Preference, Region, Touching
from bayplan.sets import CpuSet, NodeSet


def cpu_hints(
    topology: CpuTopology,
    available: CpuSet,
    reusable: CpuSet,
    needed: int,
    *,
    align_by_socket: bool = False,
) -> HintSet:
    """Hints for *needed* CPUs out of *available* and *reusable*, all of the latter included.

    Preferred are the sets of the smallest size that could ever hold so many CPUs, in use or not; with
    *align_by_socket* also those which touch no more sockets than that size needs.
    """
    demand = Demand(
        amounts={
            node: (available.mask & mask).bit_count() + (reusable.mask & mask).bit_count()
            for node, mask in topology.node_cpus.items()
        },
        needed=needed,
    )
    size = smallest_size(topology, needed)
    must = topology.nodes_of(reusable)
    preferences: list[Preference] = [OfSize(size)]
    if align_by_socket:
        preferences += _socket_preference(topology, size)
    return HintSet(
        regions=tuple(
            Region(ground=topology.nodes, demands=(demand,), preferred=preferred, must=must)
            for preferred in preferences
        )
    )


def smallest_size(topology: CpuTopology, needed: int) -> int:
    """The size of the smallest sets of NUMA nodes with so many CPUs; all nodes, if no set has."""
    held = 0
    sizes = sorted((mask.bit_count() for mask in topology.node_cpus.values()), reverse=True)
    for size, cpus in enumerate(sizes, start=1):
        held += cpus
        if held >= needed:
            return size
    return len(topology.nodes)


def _socket_preference(topology: CpuTopology, size: int) -> list[Touching]:
    """Kubelet's rule of align-by-socket; none where a socket has no NUMA node of its own."""
    nodes_per_socket = topology.num_nodes // topology.num_sockets if topology.num_sockets else 0
    if not nodes_per_socket:
        return []
    sockets = tuple(NodeSet(nodes) for nodes in topology.nodes_of_socket.values())
    return [Touching(sockets, -(-size // nodes_per_socket))]
