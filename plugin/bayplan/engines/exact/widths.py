"""How wide a set of nodes may be under a topology policy, as kubelet sees it.

`restricted` allows what the machine could give at best if it were empty, `single-numa-node` one node.
"""

from collections.abc import Mapping

from bayplan.engines.exact.books import Amounts, Books
from bayplan.engines.exact.flow import bits
from bayplan.engines.exact.sites import Site
from bayplan.engines.interface import reserved_cpus
from bayplan.model.policy import TopologyPolicy
from bayplan.sets import NodeSet


def widest_allowed(site: Site, books: Books, ground: NodeSet, amounts: Amounts, cpus: int) -> int:
    """The most nodes that a set on *ground* may have for *amounts* and *cpus*; all of them where even an
    empty machine would not do, so that the minimum cut can say so."""
    topology = books.policy.topology
    if topology is TopologyPolicy.SINGLE_NUMA_NODE:
        return 1
    if topology is not TopologyPolicy.RESTRICTED:
        return len(ground)
    least = 1
    for resource, amount_bytes in amounts.items():
        capacity = books.capacity.get(resource, {})
        haves = [capacity.get(node, 0) for node in bits(ground.mask)]
        least = max(least, _how_many(haves, amount_bytes))
    if cpus:
        by_node = unreserved_cpus(site, books)
        least = max(least, _how_many([by_node.get(node, 0) for node in bits(ground.mask)], cpus))
    return least


def unreserved_cpus(site: Site, books: Books) -> dict[int, int]:
    """How many CPUs each node could give to containers, were there none yet."""
    return site.free_cpus(site.machine.online_cpus - reserved_cpus(site.machine, books.policy))


def most_on_empty(by_node: Mapping[int, int], ground: NodeSet, widest: int) -> tuple[int, NodeSet]:
    """The most of something that *widest* nodes of *ground* have together on an empty machine, and the nodes
    that have it, the lowest ids of equal ones."""
    nodes = sorted(bits(ground.mask), key=lambda node: (-by_node.get(node, 0), node))[:widest]
    return sum(by_node.get(node, 0) for node in nodes), NodeSet.of_mask(sum(nodes))


def _how_many(haves: list[int], needed: int) -> int:
    """How many of *haves*, the largest first, sum up to *needed*; all of them if that is not enough."""
    left, used = needed, 0
    for have in sorted(haves, reverse=True):
        if left <= 0:
            break
        left, used = left - have, used + 1
    return max(1, used)
