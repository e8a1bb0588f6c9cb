"""By what sets of nodes are compared: one named function each, in the order of `criteria_of`, smaller is
better.

The kernel fills nodes by first touch and knows no limit per node. Nothing makes it keep promises on sets that
cross each other, so that sets that are nested or disjoint come before everything else. The strategy decides
only between sets that are alike in all that; so it changes neither what fits nor how narrow it is.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from bayplan.engines.exact.budget import CountedFlows, StepBudget
from bayplan.engines.exact.cpu_choice import Fit
from bayplan.engines.exact.flow import bits
from bayplan.engines.exact.resources import Parts, ResourceFlows
from bayplan.engines.exact.shares import Shares
from bayplan.engines.exact.topology import EIGHTHS, NodeTopology
from bayplan.model.claim_parts import Amounts, divided
from bayplan.model.decision import ROOM_TAKEN, SHARE_TAKEN
from bayplan.model.machine import MEMORY
from bayplan.sets import NodeSet

BEGUN_CACHES: Final = "begun caches"
CPUS_LEFT: Final = "CPUs left"
"""What decides last with the strategy `pack` only."""


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

    @property
    def flows(self) -> ResourceFlows:
        """All promises."""
        return self.counted.flows

    def plausible(self, nodes: int) -> bool:
        """Whether *nodes* have CPUs and devices, and as much room as the nodes have one by one at best."""
        if self.cpus and self.cpus_on(nodes) < self.cpus:
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
        return self.counted.fits(self.parts(nodes))

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


def overlapping_sets(question: Question, nodes: int) -> int:
    """How many sets with promises cross *nodes*."""
    return question.counted.crossed(nodes)


def width(question: Question, nodes: int) -> int:  # noqa: ARG001 - all criteria have one shape
    """The number of nodes."""
    return nodes.bit_count()


def distance(question: Question, nodes: int) -> int:
    """The sum of the kernel's distances over all ordered pairs, so that asymmetric ones count both ways."""
    return question.topology.distance(nodes)


def remote_initiators(question: Question, nodes: int) -> int:
    """How many of the nodes are reached best from CPUs that are not on *nodes* (HMAT access0; where that is
    not known, nodes without CPUs)."""
    return question.topology.remote_initiators(nodes)


def devices_elsewhere(question: Question, nodes: int) -> int:
    """How many of the container's devices are close to none of the nodes."""
    return sum([not hint & nodes for hint in question.hints]) if question.hints else 0


def broken_cores(question: Question, nodes: int) -> int:
    """How many whole cores on *nodes* are broken by the CPUs that the container gets."""
    return 0 if question.cpu_fit is None else question.cpu_fit(nodes).broken


def split_cores(question: Question, nodes: int) -> int:
    """How many cores on *nodes* it shares with others."""
    return 0 if question.cpu_fit is None else question.cpu_fit(nodes).split


def caches(question: Question, nodes: int) -> int:
    """Over how many L3 caches its CPUs on *nodes* lie at least."""
    return 0 if question.cpu_fit is None else question.cpu_fit(nodes).caches


def begun_caches(question: Question, nodes: int) -> int:
    """How many L3 caches on *nodes* have nobody's CPUs yet, and will have some of the container's."""
    return 0 if question.cpu_fit is None else question.cpu_fit(nodes).begun


def cpus_left(question: Question, nodes: int) -> int:
    """How many CPUs more could be taken at the caches that the container's CPUs on *nodes* lie at."""
    return 0 if question.cpu_fit is None else question.cpu_fit(nodes).left


def scarce_resources(question: Question, nodes: int) -> int:
    """What *nodes* have, and others have less of or lack, of huge pages and devices that are not asked for:
    others cannot do without them."""
    return sum([question.scarce.get(node, 0) for node in bits(nodes)]) if question.scarce else 0


def room_taken(question: Question, nodes: int) -> int:
    """Bytes on *nodes* that are not promised to containers of single nodes: the less, the more stays in one
    piece elsewhere for a large request.

    In eighths of a node, all nodes taken to be as large as the largest: they differ by what their kernel took
    at boot, and empty ones are to be filled in the order of their ids.
    """
    flows = question.flows
    flow = flows.flow(MEMORY)
    capacity, slack = flow.capacity, flow.slack
    capacity_bytes = capacity.get(nodes, 0)  # most sets have one node
    free_bytes = slack[nodes] if capacity_bytes else 0
    if not capacity_bytes:
        for node in bits(nodes):
            capacity_bytes += capacity.get(node, 0)
            free_bytes += max(0, slack.get(node, 0))
    if free_bytes <= 0 or not capacity_bytes:
        return 0
    return free_bytes * EIGHTHS // capacity_bytes * (flows.largest_node_bytes // EIGHTHS)


def share_taken(question: Question, nodes: int) -> int:
    """How much of *nodes* is taken by others, in thousandths: of memory, of what is asked for beside it, or
    of CPUs that can be exclusive, whichever is the most."""
    assert question.shares is not None
    return question.shares.of_set(nodes)


Criteria = Mapping[str, Callable[[Question, int], int]]

_PLACE: Final[Criteria] = {
    "overlapping sets": overlapping_sets,
    "nodes": width,
    "distance": distance,
    "remote initiators": remote_initiators,
    "devices elsewhere": devices_elsewhere,
}
_CPUS: Final[Criteria] = {"broken cores": broken_cores, "split cores": split_cores, "L3 caches": caches}
_SCARCE: Final[Criteria] = {"scarce resources": scarce_resources}
_WHOLE_CACHES: Final[Criteria] = {BEGUN_CACHES: begun_caches, CPUS_LEFT: cpus_left}
_PACK: Final[Criteria] = {ROOM_TAKEN: room_taken}
_SPREAD: Final[Criteria] = {SHARE_TAKEN: share_taken}
_ALL: Final[Mapping[tuple[bool, bool], Criteria]] = {
    (cpus, spread): {
        **_PLACE,
        **(_CPUS if cpus else {}),
        **_SCARCE,
        **(_SPREAD if spread else _PACK),
        **(_WHOLE_CACHES if cpus and not spread else {}),
    }
    for cpus in (False, True)
    for spread in (False, True)
}
"""After these the lowest ids decide."""


def criteria_of(question: Question) -> Criteria:
    """What sets of nodes are compared by, in this order."""
    return _ALL[question.cpu_fit is not None, question.shares is not None]


def values(question: Question, nodes: int) -> tuple[int, ...]:
    """*nodes* by all criteria."""
    return tuple([criterion(question, nodes) for criterion in criteria_of(question).values()])
