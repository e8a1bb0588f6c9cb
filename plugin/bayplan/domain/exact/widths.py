"""How wide a set of nodes may be under a topology policy, as kubelet sees it.

`restricted` allows what the machine could give at best if it were empty, `single-numa-node` one node.
"""

from bayplan.domain.engine import reserved_cpus
from bayplan.domain.exact.books import Amounts, Books
from bayplan.domain.exact.flow import bits
from bayplan.domain.exact.sites import Site
from bayplan.domain.policy import TopologyPolicy
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
        unreserved = site.machine.online_cpus - reserved_cpus(site.machine, books.policy)
        by_node = site.free_cpus(unreserved)
        least = max(least, _how_many([by_node.get(node, 0) for node in bits(ground.mask)], cpus))
    return least


def _how_many(haves: list[int], needed: int) -> int:
    """How many of *haves*, the largest first, sum up to *needed*; all of them if that is not enough."""
    left, used = needed, 0
    for have in sorted(haves, reverse=True):
        if left <= 0:
            break
        left, used = left - have, used + 1
    return max(1, used)
