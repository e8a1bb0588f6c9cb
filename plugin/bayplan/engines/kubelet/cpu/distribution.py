"""CPUs spread evenly over NUMA nodes: the policy option distribute-cpus-across-numa.

Source: Kubernetes v1.37, takeByTopologyNUMADistributed. Two differences, both where kubelet is defective:
it never returns when a subset of nodes cannot give the remainder in whole groups (here such a subset is not
considered), and its lists of four or of six to eight nodes are overwritten while they are remembered (here
they are not). The uncore cache is not considered, as in kubelet.
"""

from bayplan.engines.kubelet.cpu.assignment import FreeCpus, take_packed
from bayplan.engines.kubelet.cpu.balance import Split, best_aligned_split, best_split
from bayplan.engines.kubelet.cpu.errors import CpuShortageError
from bayplan.engines.kubelet.cpu.topology import CpuTopology
from bayplan.sets import CpuSet


def take_distributed(
    topology: CpuTopology,
    available: CpuSet,
    count: int,
    group: int,
    *,
    spread: bool = False,
    align_by_socket: bool = False,
) -> CpuSet:
    """Exactly *count* CPUs of *available*, in groups of *group*, evenly from the fewest NUMA nodes that can
    share them; packed if *count* is not a number of groups, or if no nodes can share them. Of as many nodes,
    those of one socket come first with *align_by_socket*, also where they share less evenly.

    Raises:
        CpuShortageError: *available* holds fewer.
    """
    if count % group:
        return take_packed(topology, available, count, spread=spread)
    free = FreeCpus(topology, available, count)
    if free.satisfied:
        return free.taken
    if free.failed:
        raise CpuShortageError(count, len(available))
    nodes = tuple(dict.fromkeys(free.nodes()))  # a node that spans sockets would be listed once for each
    node_cpus = [CpuSet.of_mask(topology.node_cpus[node]) & available for node in nodes]
    free_counts = [len(cpus) for cpus in node_cpus]
    groups = count // group
    groups_per_node = _ceil(_ceil(len(topology.all_cpus), group), len(topology.nodes))
    for width in range(_ceil(groups, groups_per_node), min(groups, len(nodes)) + 1):
        found: tuple[Split, int] | None = None
        if align_by_socket:
            sockets = [frozenset(topology.sockets_of_node[node]) for node in nodes]
            found = best_aligned_split(free_counts, sockets, width, groups, group)
        else:
            share = groups // width * group
            split = best_split(free_counts, width, share, group, groups % width)
            found = None if split is None else (split, share)
        if found is not None:
            return _take(topology, node_cpus, *found, count, group, spread=spread)
    return take_packed(topology, available, count, spread=spread)


def _take(
    topology: CpuTopology,
    node_cpus: list[CpuSet],
    split: Split,
    share: int,
    count: int,
    group: int,
    *,
    spread: bool,
) -> CpuSet:
    """The share of every member, then the remainder in rounds, one group at a time."""
    taken = CpuSet()
    for place in split.members:
        taken |= take_packed(topology, node_cpus[place], share, spread=spread)
    while len(taken) < count:
        for place in split.remainder:
            left = node_cpus[place] - taken
            if len(taken) < count and len(left) >= group:
                taken |= take_packed(topology, left, group, spread=spread)
    return taken


def _ceil(amount: int, size: int) -> int:
    return -(-amount // size)
