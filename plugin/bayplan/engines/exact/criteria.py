"""By what sets of nodes are compared: the order of `criteria_of`, in which smaller is better.

The kernel fills nodes by first touch and knows no limit per node. Nothing makes it keep promises on sets that
cross each other, so that sets that are nested or disjoint come before everything else. The strategy decides
only between sets that are alike in all that; so it changes neither what fits nor how narrow it is.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from bayplan.engines.exact.budget import CountedFlows, StepBudget
from bayplan.engines.exact.cpu_choice import Fit
from bayplan.engines.exact.flow import Flow, bits
from bayplan.engines.exact.resources import Parts, ResourceFlows
from bayplan.engines.exact.shares import Shares
from bayplan.engines.exact.topology import EIGHTHS, NodeTopology
from bayplan.model.claim_parts import Amounts, divided
from bayplan.model.decision import ROOM_TAKEN, SHARE_TAKEN
from bayplan.sets import NodeSet

BEGUN_CACHES: Final = "begun caches"
CPUS_LEFT: Final = "CPUs left"
"""What decides last with the strategy `pack` only."""

_PLACE: Final = (
    "overlapping sets",  # how many sets with promises cross the nodes
    "nodes",  # how many they are
    "distance",  # the kernel's over all ordered pairs, so that asymmetric ones count both ways
    # How many are reached best from CPUs that are not on them: HMAT access0, else nodes without CPUs.
    "remote initiators",
    "devices elsewhere",  # how many of the container's devices are close to none of them
)
_CPUS: Final = (
    "broken cores",  # whole ones of which the container's CPUs are a part
    "split cores",  # those that it shares with others
    "L3 caches",  # over how many its CPUs lie at least
)
# What others have less of or lack, of huge pages and devices that are not asked for: they cannot do without.
_SCARCE: Final = ("scarce resources",)
# Bytes that are not promised to containers of single nodes: the less, the more stays in one piece elsewhere
# for a large request.
_PACK: Final = (ROOM_TAKEN,)
# How much is taken by others, in thousandths: of memory, of what is asked for beside it, or of CPUs that can
# be exclusive, whichever is the most.
_SPREAD: Final = (SHARE_TAKEN,)
_WHOLE_CACHES: Final = (
    BEGUN_CACHES,  # how many have nobody's CPUs yet, and will have some of the container's
    CPUS_LEFT,  # how many CPUs more could be taken at the caches that its CPUs lie at
)
_ALL: Final[Mapping[tuple[bool, bool], Sequence[str]]] = {
    (False, False): (*_PLACE, *_SCARCE, *_PACK),
    (False, True): (*_PLACE, *_SCARCE, *_SPREAD),
    (True, False): (*_PLACE, *_CPUS, *_SCARCE, *_PACK, *_WHOLE_CACHES),
    (True, True): (*_PLACE, *_CPUS, *_SCARCE, *_SPREAD),
}
"""By whether it matters which CPUs of a node are taken, and whether the strategy is `spread`; after these the
lowest ids decide."""


class Question(Struct, frozen=True):
    """What a set of nodes is wanted for.

    ``rooms`` maps each resource to `ResourceFlows.rooms_by_node`. ``cpus`` is the number of exclusive CPUs
    that the set must have, ``free_cpus`` how many each node has. ``hints`` are the sets of nodes that devices
    are close to; the set must touch all ``required_hints``.
    ``counted`` has the answers about these flows. ``budget`` is what the search may take, and has taken.
    ``shares`` are what is taken of each node, for the strategy `spread`; None for `pack`.
    ``even`` are those of the amounts that are to lie evenly on the nodes of the set. ``scarce`` is what each
    node has more than others of what is not asked for, see `NodeTopology.scarce`. ``cpu_fit`` is what
    the best CPUs on a set cost; None where it does not matter which CPUs of a node are taken.
    ``cpus_on_empty`` is how many such CPUs each node would have were there no containers.
    ``cpus_together`` is how many CPUs a set has where nodes have some in common, of which ``free_cpus`` then
    counts each for each.
    """

    topology: NodeTopology
    amounts: Amounts
    rooms: Mapping[str, Mapping[int, int]]
    cpus: int
    free_cpus: Mapping[int, int]
    hints: tuple[int, ...]
    required_hints: tuple[int, ...]
    counted: CountedFlows
    budget: StepBudget
    shares: Shares | None = None
    even: Amounts = MappingProxyType({})
    scarce: Mapping[int, int] = MappingProxyType({})
    cpu_fit: Callable[[int], Fit] | None = None
    cpus_together: Callable[[int], int] | None = None
    cpus_on_empty: Mapping[int, int] = MappingProxyType({})

    def plausible(self, nodes: int) -> bool:
        """Whether *nodes* have CPUs and devices, and as much room as the nodes have one by one at best."""
        if self.cpus and self.free_cpus.get(nodes, -1) < self.cpus and self.cpus_on(nodes) < self.cpus:
            return False
        if self.required_hints and any(not hint & nodes for hint in self.required_hints):
            return False
        for resource, amount_bytes in self.amounts.items():
            rooms = self.rooms[resource]
            have_bytes = rooms.get(nodes)  # most sets have one node
            if have_bytes is None:
                have_bytes = sum(rooms.get(node, 0) for node in bits(nodes))
            if have_bytes < amount_bytes:
                return False
        return True

    def parts(self, nodes: int) -> Parts:
        """What is asked for if the set is *nodes*, on each set by itself."""
        if not self.even:
            return ((nodes, self.amounts),)
        every = divided(NodeSet.of_mask(nodes), self.amounts, self.even)
        return [(part.mask, amounts) for part, amounts in every]

    def fits(self, nodes: int) -> bool:
        """Whether there is room for all of it on *nodes*."""
        return self.counted.fits(self.parts(nodes) if self.even else ((nodes, self.amounts),))

    def on(self, flows: ResourceFlows) -> "Question":
        """The same question of other *flows*."""
        return replace(
            self,
            rooms={resource: flows.rooms_by_node(resource) for resource in self.amounts},
            counted=CountedFlows(flows),
        )

    def cpus_on(self, nodes: int) -> int:
        """How many CPUs that could become exclusive are on *nodes*."""
        if self.cpus_together is not None:
            return self.cpus_together(nodes)
        return sum(self.free_cpus.get(node, 0) for node in bits(nodes))


def criteria_of(question: Question) -> Sequence[str]:
    """What sets of nodes are compared by, in this order."""
    return _ALL[question.cpu_fit is not None, question.shares is not None]


def values(question: Question, nodes: int) -> tuple[int, ...]:
    """*nodes* by all criteria, in the order of `criteria_of`."""
    counted, fit = question.counted, None if question.cpu_fit is None else question.cpu_fit(nodes)
    width, distance, remote = question.topology.places.get(nodes) or question.topology.place(nodes)
    crossed = counted.crossed(nodes) if width > 1 else 0
    found = [crossed, width, distance, remote, sum([not hint & nodes for hint in question.hints])]
    if fit is not None:
        found += fit.broken, fit.split, fit.caches
    scarce = question.scarce
    found.append(sum([more for node, more in scarce.items() if node & nodes]))
    if question.shares is not None:
        found.append(question.shares.of_set(nodes))
        return tuple(found)
    found.append(_room_taken(counted.flows.largest_node_bytes, counted.memory, nodes))
    if fit is not None:
        found += fit.begun, fit.left
    return tuple(found)


def _room_taken(largest_node_bytes: int, memory: Flow, nodes: int) -> int:
    """Bytes on *nodes* that are not promised to containers of single nodes.

    In eighths of a node, all nodes taken to be as large as the largest: they differ by what their kernel took
    at boot, and empty ones are to be filled in the order of their ids.
    """
    capacity, slack = memory.capacity, memory.slack
    capacity_bytes = capacity.get(nodes, 0)  # most sets have one node
    free_bytes = slack[nodes] if capacity_bytes else 0
    if not capacity_bytes:
        for node in bits(nodes):
            capacity_bytes += capacity.get(node, 0)
            free_bytes += max(0, slack.get(node, 0))
    if free_bytes <= 0 or not capacity_bytes:
        return 0
    return free_bytes * EIGHTHS // capacity_bytes * (largest_node_bytes // EIGHTHS)
