"""A request, the decision about it, and the reasons: what logs, status, explain and refusals show; and what
the history keeps beside decisions: which containers were evicted and by which numbers, and what became of
pages that were to be moved.

Nothing here decides. A Decision is complete in itself: the store keeps it, the ledger is rebuilt from it.
"""

import enum
from collections.abc import Mapping
from typing import ClassVar, Final

from msgspec import Struct, field
from msgspec.structs import replace

from bayplan.model.claims import Amounts, ClaimShare, Parts, divided, hugepages_of, in_proportion, sum_of
from bayplan.model.machine import MEMORY
from bayplan.model.policy import PlacementStrategy
from bayplan.quantity import MILLI_PER_CPU, format_bytes, format_count, parse_quantity
from bayplan.sets import CpuSet, NodeSet, nodes_text

ROOM_TAKEN: Final = "room taken"
"""The criterion of the exact engine whose values are bytes."""

SHARE_TAKEN: Final = "share taken"
"""The one whose values are thousandths."""


class QosClass(enum.Enum):
    """Kubernetes' quality-of-service classes, by their API names."""

    GUARANTEED = "Guaranteed"
    BURSTABLE = "Burstable"
    BEST_EFFORT = "BestEffort"


class QosSource(enum.Enum):
    """How the class is known: from kubelet's cgroup tree, from kubelet's oom_score_adj, or inferred from the
    resources asked for, because the pod is outside of kubelet's tree."""

    CGROUP_PARENT = "cgroup parent"
    OOM_SCORE_ADJ = "oom_score_adj"
    INFERRED = "inferred from resources"


class Interval(Struct, frozen=True):
    """A memory request known to lie in [low_bytes, high_bytes], and the signal that says so.

    The OCI spec carries no memory request; only where low and high are equal is it exact.
    ``usual_low_bytes`` is the low end for all but the containers that kubelet scores by more than their own
    request (sidecars, pods with pod-level requests), which a spec does not distinguish; None: ``low_bytes``.
    """

    low_bytes: int
    high_bytes: int
    source: str
    usual_low_bytes: int | None = None

    @property
    def likely_low_bytes(self) -> int:
        """The low end to work with where an error does no harm: right for all ordinary containers."""
        return self.low_bytes if self.usual_low_bytes is None else self.usual_low_bytes

    @property
    def exact(self) -> bool:
        """Whether the request is known to the byte."""
        return self.low_bytes == self.high_bytes


class PodTotals(Struct, frozen=True):
    """What the pod of a container asks for as a whole, its containers together. ``memory_bytes`` and
    ``hugepages_bytes`` are limits. ``exclusive_cpus`` is how many CPUs its containers have to themselves at
    most at a time, None where that is not known."""

    memory_bytes: int
    cpu_milli: int = 0
    hugepages_bytes: Mapping[str, int] = field(default_factory=dict)
    exclusive_cpus: int | None = None

    @property
    def amounts_bytes(self) -> Amounts:
        """What it asks for by resource."""
        return {MEMORY: self.memory_bytes, **self.hugepages_bytes}


class DeviceHint(Struct, frozen=True):
    """A device of the container, and the nodes it is close to. ``required`` where its driver says so.

    ``names`` are all names of a device that was found, its PCI address among them. A hint from an annotation
    has none: to say so is not to have the device. Devices of one ``kind`` (a CDI kind, a driver's major
    number) could stand in for each other; one without a kind stands alone.
    """

    device: str
    nodes: NodeSet
    required: bool = False
    names: tuple[str, ...] = ()
    kind: str = ""


class NodeWish(Struct, frozen=True):
    """Memory on these nodes: only there if ``required``, else there as long as there is room."""

    nodes: NodeSet
    required: bool = False


class TierWish(Struct, frozen=True):
    """Memory of this tier (0 is the fastest): only of it if ``required``, else as long as there is room."""

    tier: int
    required: bool = False


class EvenHugepagesWish(Struct, frozen=True):
    """Huge pages, each size for itself, evenly on ``node_count`` nodes; nothing else will do."""

    node_count: int


class CpuUse(enum.Enum):
    """Who may use a container's CPUs: it alone; all that share; it alone, apart from the kernel's load
    balancing (isolcpus); or the members of a named pool."""

    EXCLUSIVE = "exclusive"
    SHARED = "shared"
    ISOLATED = "isolated"
    POOL = "pool"


class ExecCpus(enum.Enum):
    """Where processes run that enter a container with CPUs of its own later, by exec or for a probe: on the
    shared CPUs that it has beside these, or on the first of its own and these."""

    SHARED = "shared"
    FIRST = "first"


class CpuWish(Struct, frozen=True):
    """A wish for CPUs: all that the container requests are to be used so, or ``count`` of them, and the rest
    is on the shared CPUs of the same nodes. ``pool`` is the name of the pool that it is to be in."""

    use: CpuUse
    count: int | None = None
    pool: str = ""

    @property
    def leaves_none(self) -> bool:
        """Whether a container with it has no CPUs of its own."""
        return self.use in (CpuUse.SHARED, CpuUse.POOL)


MEMORY_POLICY_FLAGS: Final[Mapping[str, str]] = {
    flag: f"MPOL_F_{flag.upper()}" for flag in ("static_nodes", "relative_nodes", "numa_balancing")
}
"""The kernel's names of the flags of memory policies, by ours."""

STATIC: Final = ("static_nodes",)
"""The flag of each policy that is chosen here: without it the kernel shifts its nodes when cpuset.mems
changes (mm/mempolicy.c, `mpol_rebind_nodemask`): of node 1 in 1 it makes node 0 in 0-1."""


class MemoryPolicyMode(enum.Enum):
    """The kernel's NUMA memory policies (set_mempolicy(2)) a container can be started with. DEFAULT, which is
    none, occurs only where a spec says so."""

    DEFAULT = "default"
    PREFERRED = "preferred"
    PREFERRED_MANY = "preferred-many"
    BIND = "bind"
    INTERLEAVE = "interleave"
    WEIGHTED_INTERLEAVE = "weighted-interleave"
    LOCAL = "local"

    @property
    def kernel_name(self) -> str:
        """The kernel's, by which OCI documents and NRI call it."""
        return f"MPOL_{self.name}"


class MemoryPolicyWish(Struct, frozen=True):
    """A NUMA memory policy that the container's processes shall start with. ``nodes`` None means all nodes
    that the container is placed on; ``flags`` are the kernel's names without ``MPOL_F_``, in lower case."""

    mode: MemoryPolicyMode
    nodes: NodeSet | None = None
    flags: tuple[str, ...] = ()


class MemoryPolicySetting(Struct, frozen=True):
    """The NUMA memory policy that a placement comes with, with its nodes. MPOL_LOCAL has none."""

    mode: MemoryPolicyMode
    nodes: NodeSet = NodeSet()
    flags: tuple[str, ...] = ()

    @property
    def kernel_flags(self) -> list[str]:
        """The kernel's names of the flags."""
        return [MEMORY_POLICY_FLAGS[flag] for flag in self.flags]


class Request(Struct, frozen=True):
    """What one container asks for, and how we know.

    ``name`` is for humans: ``namespace/pod/container``. ``exclusive_cpus`` is the number of whole CPUs to
    give to it alone, 0 for the shared pool. ``pinned_cpus`` and ``pinned_mems`` were set in the spec by
    somebody else (kubelet's own managers, another plugin) and are respected, never changed. ``pod_totals`` is
    None where the runtime does not show the pod's sums. ``hints``, ``nodes``, ``tier``, ``memory_policy`` and
    ``even_hugepages`` are wishes beside the amounts; a container that ``opted_out`` is accounted, nothing
    about it is changed; pages of one that ``keeps_pages`` are not moved for the sake of others, and one that
    not ``may_move`` does not go to other nodes for them.
    ``score`` is the oom_score_adj that kubelet gave it for its memory request, None where it says nothing.
    ``pod_level``: its pod evidently has resources of its own (``spec.resources``), so that the container's
    limits are not its requests, whatever the class. ``pinned_by_update``: the pins came with an update of the
    running container, not with its spec. ``strategy`` is None where the pod leaves it to the operator.
    ``spec_memory``: what the spec alone shows of the memory request, where ``memory`` is what kubelet says of
    it; else None.
    ``cpus`` is how its CPUs are wished to be used, whatever its class; ``cpu_kind`` which of CORE_KINDS its
    own ones are to be, empty for any one of them.
    ``given_policy`` is the memory policy that its spec has already. ``cpu_weighed``: ``cpu_milli`` stands for
    CPU shares outside of kubelet's tree, which are a weight there and request nothing.
    ``placement_file``: a directory of ours is mounted in it, with a file that says what it was given;
    ``environment``: the programs whose variables were set for it at its creation. ``exec_cpus`` is None
    where processes that enter it later may run on all of its CPUs. ``partition``: CPUs of its own are to be
    an isolated partition of cgroup v2; ``irqs_away``: interrupts are to be handled on others. ``claimed`` is
    what it has through resource claims of its pod, None without.
    """

    container_id: str
    pod_id: str
    name: str
    qos: QosClass
    qos_source: QosSource
    memory: Interval
    memory_limit_bytes: int | None = None
    cpu_milli: int = 0
    exclusive_cpus: int = 0
    hugepages_bytes: Mapping[str, int] = field(default_factory=dict)
    pinned_cpus: CpuSet | None = None
    pinned_mems: NodeSet | None = None
    pod_totals: PodTotals | None = None
    hints: tuple[DeviceHint, ...] = ()
    nodes: NodeWish | None = None
    tier: TierWish | None = None
    memory_policy: MemoryPolicyWish | None = None
    opted_out: bool = False
    keeps_pages: bool = False
    pod_level: bool = False
    pinned_by_update: bool = False
    score: int | None = None
    strategy: PlacementStrategy | None = None
    even_hugepages: EvenHugepagesWish | None = None
    spec_memory: Interval | None = None
    given_policy: MemoryPolicySetting | None = None
    cpu_weighed: bool = False
    cpus: CpuWish | None = None
    cpu_kind: str = ""
    placement_file: bool = False
    environment: tuple[str, ...] = ()
    exec_cpus: ExecCpus | None = None
    may_move: bool = True
    partition: bool = False
    irqs_away: bool = False
    claimed: ClaimShare | None = None

    @property
    def wishes_isolated_cpus(self) -> bool:
        """Whether its own CPUs are to be isolated ones."""
        return self.cpus is not None and self.cpus.use is CpuUse.ISOLATED

    @property
    def pool(self) -> str:
        """The name of the pool that it is in, empty for none."""
        if self.cpus is None or self.pod_level or self.pinned_cpus is not None or self.opted_out:
            return ""
        return self.cpus.pool

    @property
    def shares_rest(self) -> bool:
        """Whether it is to have shared CPUs beside its own."""
        return (
            self.cpus is not None and self.cpus.count is not None and self.pool_milli(self.exclusive_cpus) > 0
        )

    def pool_milli(self, own: int) -> int:
        """What it asks of shared CPUs beside *own* ones, in thousandths of a CPU."""
        return max(0, self.cpu_milli - own * MILLI_PER_CPU)

    @property
    def requested_milli(self) -> int:
        """Thousandths of a CPU that count as a request."""
        return 0 if self.cpu_weighed else self.cpu_milli

    @property
    def shown_memory(self) -> Interval:
        """The memory request as the spec alone shows it."""
        return self.spec_memory or self.memory

    @property
    def memory_waits_for_proof(self) -> bool:
        """Whether kubelet says less of the memory request than the spec proves: that counts only as long as
        another container explains the score (see `bayplan.model.qos`)."""
        return self.memory.high_bytes < self.shown_memory.likely_low_bytes

    @property
    def cpus_chosen_by_others(self) -> bool:
        """Whether somebody else decides which CPUs it runs on."""
        return self.pinned_cpus is not None or self.opted_out

    @property
    def wishes_nodes(self) -> bool:
        """Whether it wishes something of the nodes that its memory is on."""
        return self.nodes is not None or self.tier is not None or self.even_hugepages is not None


class Booking(Struct, frozen=True):
    """What is promised on each node by itself, by resource, as the engine `kubelet` does; or nothing."""

    by_node: Mapping[int, Mapping[str, int]]

    short_bytes: ClassVar[Amounts] = {}
    """What was asked for beyond that and could not be promised."""
    explained_bytes: ClassVar[int] = 0
    flexible: ClassVar[bool] = False
    """Whether it may go to other nodes for the sake of others."""
    is_by_node: ClassVar[bool] = True
    """Whether it says of each node what is promised there."""

    def staying(self, mems: NodeSet | None = None) -> "Booking":  # noqa: ARG002 - it stays where it is
        """The same promise for a container that is not moved for the sake of others, on *mems* if given."""
        return self

    @property
    def nodes(self) -> NodeSet:
        """The nodes that something is promised on."""
        return NodeSet(self.by_node)

    @property
    def amounts_bytes(self) -> Amounts:
        """What is promised in all."""
        return sum_of(self.by_node.values())

    @property
    def parts(self) -> Parts:
        """What is promised on each set by itself."""
        return tuple((NodeSet([node]), row) for node, row in sorted(self.by_node.items()))

    @property
    def claimed_parts(self) -> Parts:
        """The ``parts`` that a flow has to find room for: none, as their nodes are settled."""
        return ()

    @property
    def booked_bytes(self) -> Mapping[int, Mapping[str, int]]:
        """What is taken of each node for good, whatever else is promised."""
        return self.by_node


class Claim(Struct, frozen=True):
    """What is promised on a set of nodes as a whole, as the engine `exact` does: resource -> bytes that must
    fit on ``nodes`` together.

    Which node keeps how much is settled by a flow over all claims, not here; only of ``even_hugepages`` each
    node keeps the same, with ``shares`` of these very nodes each keeps its part of everything, and with
    ``by_node`` what it says, which sums to the amounts. A ``flexible`` claim may be given other nodes for the
    sake of a later request. ``short_bytes`` is as of `Booking`, ``explained_bytes`` the memory that is
    claimed by another container with the same score (see `bayplan.model.qos`).
    """

    nodes: NodeSet
    amounts_bytes: Mapping[str, int] = field(default_factory=dict)
    flexible: bool = False
    short_bytes: Mapping[str, int] = field(default_factory=dict)
    explained_bytes: int = 0
    even_hugepages: bool = False
    shares: Mapping[int, int] = field(default_factory=dict)
    by_node: Mapping[int, Mapping[str, int]] = field(default_factory=dict)

    @property
    def is_by_node(self) -> bool:
        """As of `Booking`."""
        return self.even_hugepages or bool(self.by_node)

    def staying(self, mems: NodeSet | None = None) -> "Claim":
        """As of `Booking`."""
        return replace(self, flexible=False, nodes=self.nodes if mems is None else mems)

    @property
    def parts(self) -> Parts:
        """What is promised on each set by itself."""
        if self.by_node:
            return tuple((NodeSet([node]), row) for node, row in sorted(self.by_node.items()))
        if self.shares and self.shares.keys() == set(self.nodes):
            return in_proportion(self.amounts_bytes, self.shares)
        if self.even_hugepages:
            return divided(self.nodes, self.amounts_bytes, hugepages_of(self.amounts_bytes))
        return ((self.nodes, self.amounts_bytes),)

    @property
    def claimed_parts(self) -> Parts:
        """As of `Booking`: all that it has."""
        if self.even_hugepages or self.shares or self.by_node:
            return self.parts if self.amounts_bytes else ()
        return ((self.nodes, self.amounts_bytes),) if self.amounts_bytes else ()

    @property
    def booked_bytes(self) -> Mapping[int, Mapping[str, int]]:
        """As of `Booking`: nothing, the claims settle among themselves which node keeps how much."""
        return {}


Promise = Claim | Booking
"""What a container was promised."""


class Affinity(Struct, frozen=True):
    """The nodes on which a pod is aligned as a whole, None if any will do, and whether no better ones were
    conceivable. ``whole``: room was found for all of the pod's sums, its memory on ``mems`` and, as far as it
    has CPUs of its own, on ``cpus``; that is kept for the pod. In a pod with resources as a whole ``cpus``
    are those of all its containers (see `bayplan.model.pod_as_a_whole`)."""

    nodes: NodeSet | None
    preferred: bool
    whole: bool = False
    mems: NodeSet | None = None
    cpus: CpuSet = CpuSet()


class Placement(Struct, frozen=True):
    """Where a container goes.

    ``mems`` None leaves it free to use every node. ``exclusive_cpus`` empty means the shared pool.
    ``booked_bytes`` maps node id -> resource -> bytes promised there: the witness of the promise. It sums
    to the claim in each resource, unless the decision is degraded. ``affinity`` is what the later containers
    of the same pod are held to; None where containers are placed one by one.

    With a ``claim`` (engine `exact`) the promise is the claim, and ``booked_bytes`` is the witness as it was
    at the decision: later decisions may route it otherwise. ``overlapping``: the nodes are shared with a set
    that neither contains them nor lies within them. ``memory_policy`` is what the processes shall start
    with. ``original_nodes`` (recorded as ``home``) are the nodes it was placed on, if it was moved to others
    since; ``previous_mems`` (recorded as ``left``) is the cpuset.mems before the last move. ``beside_cpus``
    are those of which it uses the shared ones beside its own; empty for none. ``claimed_cpus`` belong to a
    resource claim of its pod: it runs on them, alone or with others that have that claim. ``pool_cpus`` are
    those of the named pool that it is in, the same for all members. ``leaving`` are nodes of ``mems`` on
    which nothing is promised any more: it leaves them with its pages. ``relocated``: it went to other nodes
    once, so that another container fits.
    """

    mems: NodeSet | None = None
    exclusive_cpus: CpuSet = CpuSet()
    booked_bytes: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    affinity: Affinity | None = None
    claim: Claim | None = None
    overlapping: bool = False
    memory_policy: MemoryPolicySetting | None = None
    original_nodes: NodeSet | None = field(default=None, name="home")
    previous_mems: NodeSet | None = field(default=None, name="left")
    beside_cpus: CpuSet = CpuSet()
    claimed_cpus: CpuSet | None = None
    pool_cpus: CpuSet = CpuSet()
    leaving: NodeSet | None = None
    relocated: bool = False

    @property
    def promise(self) -> Promise:
        """What is promised with it."""
        return Booking(self.booked_bytes) if self.claim is None else self.claim

    @property
    def claimed(self) -> Claim:
        """Its claim, which each has while the engine is `exact`; of a booking one that says the same of each
        node."""
        booked_bytes = self.booked_bytes
        return self.claim or Claim(NodeSet(booked_bytes), sum_of(booked_bytes.values()), by_node=booked_bytes)

    @property
    def own_cpus(self) -> CpuSet:
        """The CPUs that no container of another pod runs on: its own, and those of its resource claims."""
        return self.exclusive_cpus if self.claimed_cpus is None else self.exclusive_cpus | self.claimed_cpus

    @property
    def apart_cpus(self) -> CpuSet:
        """`own_cpus`, and the CPUs of the named pool that it is in."""
        return self.own_cpus | self.pool_cpus if self.pool_cpus.mask else self.own_cpus

    def staying(self, mems: NodeSet | None = None) -> "Placement":
        """The same placement with a promise that is not moved for the sake of others, on *mems* if given."""
        return replace(self, claim=self.claim and self.claim.staying(mems))

    @property
    def is_with_whole_pod(self) -> bool:
        """Whether room was found for all of its pod."""
        return self.affinity is not None and self.affinity.whole

    def cpus_among(self, shared: CpuSet) -> CpuSet:
        """The cpuset.cpus of the container while *shared* are the shared CPUs."""
        own = self.exclusive_cpus.mask
        if own and self.beside_cpus.mask:
            return CpuSet.of_mask(own | (shared.mask & self.beside_cpus.mask or shared.mask))
        apart = self.apart_cpus
        return apart if apart.mask else shared


class Move(Struct, frozen=True):
    """Another container whose claim gets other nodes so that a request fits, or gets them back.

    ``moved_bytes`` is what its witness has on other nodes than before. ``relocates``: it goes there for good,
    with these ``cpus`` of its own, and leaves the nodes before with its pages, so that ``newcomer`` fits.
    """

    container_id: str
    name: str
    before: NodeSet
    after: NodeSet
    moved_bytes: int = 0
    relocates: bool = False
    cpus: CpuSet = CpuSet()
    newcomer: str = ""


class Relocation(Struct, frozen=True):
    """A container that would have to go to other nodes, with its CPUs and its memory.

    ``cpus`` are its own ones, before and after. ``moved_bytes`` is what it was promised of all resources and
    would lie on other nodes than before: what it has used of that is moved.
    """

    container_id: str
    name: str
    before: NodeSet
    after: NodeSet
    cpus_before: CpuSet = CpuSet()
    cpus_after: CpuSet = CpuSet()
    moved_bytes: int = 0


class RelocationPlan(Struct, frozen=True):
    """The fewest ``relocations``, and of these the ones with the fewest bytes, after which a request fits on
    ``nodes`` as it was asked. ``proven``: no other plan has fewer of either; else the search was given up."""

    nodes: NodeSet
    relocations: tuple[Relocation, ...]
    proven: bool = True

    @property
    def moved_bytes(self) -> int:
        """What is moved in all."""
        return sum(one.moved_bytes for one in self.relocations)


class Candidate(Struct, frozen=True):
    """A set of nodes that was considered. ``criteria`` are the values by which it was compared, in their
    order; smaller is better. ``obstacle`` says why it cannot be taken, empty if it can."""

    nodes: NodeSet
    criteria: Mapping[str, int] = field(default_factory=dict)
    obstacle: str = ""


class Advantage(Struct, frozen=True):
    """What made the winner better than the runner-up: the first criterion in which they differ, with both
    values."""

    criterion: str
    winner: int
    runner_up_nodes: NodeSet
    runner_up: int


class Holder(Struct, frozen=True):
    """A container that was promised ``held_bytes`` of what is short."""

    container_id: str
    name: str
    held_bytes: int


class Shortage(Struct, frozen=True):
    """The minimum cut: the smallest set of nodes that is asked for more than it has.

    All claims that must lie within ``nodes``: ``promised_bytes`` of the ``holders`` and ``asked_bytes`` of
    the request, together more than ``capacity_bytes``. ``holders`` are the largest ones, ``more_holders``
    counts the others.
    """

    resource: str
    nodes: NodeSet
    capacity_bytes: int
    promised_bytes: int
    asked_bytes: int
    holders: tuple[Holder, ...] = ()
    more_holders: int = 0

    def sentence(self) -> str:
        """The cut as people read it; where the request could never fit, without what others are promised."""
        what = "" if self.resource == "memory" else f" of {self.resource}"
        text = f"{nodes_text(self.nodes)} hold{'' if len(self.nodes) != 1 else 's'} "
        text += f"{format_bytes(self.capacity_bytes)}{what}; "
        promised_bytes = self.promised_bytes if self.asked_bytes <= self.capacity_bytes else 0
        if promised_bytes:
            names = ", ".join(holder.name for holder in self.holders)
            others = f" and {self.more_holders} more" if self.more_holders else ""
            text += f"{format_bytes(promised_bytes)} are promised to {names}{others}; "
        text += f"you asked for {format_bytes(self.asked_bytes)} there"
        lacking_bytes = promised_bytes + self.asked_bytes - self.capacity_bytes
        shown = [promised_bytes, self.asked_bytes, self.capacity_bytes]
        promised, asked, capacity = (parse_quantity(format_bytes(amount)) for amount in shown)
        # Rounded, it may look as if it fitted: a node may have some pages less than 4Gi.
        hidden = lacking_bytes > 0 and promised + asked <= capacity
        return f"{text}, {format_bytes(lacking_bytes)} too much" if hidden else text


class Outcome(enum.Enum):
    """PLACED as asked; DEGRADED: placed, but not as well as asked, the reasons say why; REFUSED: not placed;
    ADOPTED: found running without a decision of ours, recorded as it is."""

    PLACED = "placed"
    DEGRADED = "degraded"
    REFUSED = "refused"
    ADOPTED = "adopted"


class Reason(Struct, frozen=True):
    """One step of the argument. ``code`` is stable, for machines and metrics; ``text`` is for humans."""

    code: str
    text: str


OVERCOMMITTED: Final = "overcommitted"
"""Code of the reason that not all of a claim could be promised."""

MOVED_OVER: Final = "moved-over"
"""Code of the reason why a container is not on the nodes that it was placed on."""

STAYS_WIDE: Final = "stays-wide"
"""Code of the reason why a container did not go back although there is room."""

MEMORY_TAKEN: Final = "memory-taken"
"""Code of the reason that memory which a container was promised is held by something outside of
containers."""

MOVES_WAIT: Final = "moves-wait"
"""Code of the reason that nobody moves for a container now, though it would fit then and moves are on."""
RELOCATED: Final = "relocated"
"""Code of the reason that a container went to other nodes so that another one fits."""

PAGES_ASTRAY: Final = "pages-astray"
"""Code of the reason why pages of a container lie where it may not have any."""

LATER_CODES: Final = frozenset({MOVED_OVER, STAYS_WIDE, MEMORY_TAKEN, RELOCATED, PAGES_ASTRAY})
"""Codes of what happened to a container since it was decided about."""


class Decision(Struct, frozen=True):
    """The answer to a request, with its reasons. A refusal has an empty placement; ``refused_as`` is the word
    that kubelet has for it in a pod's status, empty for the usual one.

    ``moves`` are the other containers that get other nodes with this decision. ``candidates`` are the best
    few sets of nodes that were compared, the winner first, and ``advantage`` is how it won; ``shortage`` is
    why a request was refused, or placed less well than asked. ``plan``: which others would have to go
    elsewhere for it to fit as asked; None if none was found. Nothing of it was done.
    """

    request: Request
    outcome: Outcome
    placement: Placement = Placement()
    reasons: tuple[Reason, ...] = ()
    refused_as: str = ""
    moves: tuple[Move, ...] = ()
    candidates: tuple[Candidate, ...] = ()
    advantage: Advantage | None = None
    shortage: Shortage | None = None
    plan: RelocationPlan | None = None

    @property
    def shares_cpus(self) -> bool:
        """Whether the container runs on the CPUs that are nobody's own: not on exclusive ones, nor on those
        of a named pool, nor on some that somebody else chose."""
        placement = self.placement
        if placement.exclusive_cpus.mask or placement.claimed_cpus is not None or placement.pool_cpus.mask:
            return False
        return self.request.pinned_cpus is None and not self.request.opted_out

    @property
    def promises(self) -> Parts:
        """What the container is promised, on each set of nodes as a whole: what its resource claims hold,
        which all containers that have them share, then what is its own."""
        claimed = self.request.claimed
        of_claims = () if claimed is None else ((claimed.nodes, claimed.amounts_bytes),)
        return tuple(
            (nodes, row) for nodes, row in (*of_claims, *self.placement.promise.parts) if any(row.values())
        )

    @property
    def own_bytes(self) -> int:
        """The memory that is promised to the container itself."""
        return self.placement.promise.amounts_bytes.get(MEMORY, 0)

    @property
    def promised_bytes(self) -> int:
        """The memory that it is promised: its own, and of its resource claims as much as its limit lets it
        use."""
        claimed, own_bytes = self.request.claimed, self.own_bytes
        if claimed is None:
            return own_bytes
        limit_bytes = self.request.memory_limit_bytes
        most_bytes = claimed.amounts_bytes.get(MEMORY, 0)
        if limit_bytes is not None:
            most_bytes = min(most_bytes, max(0, limit_bytes - own_bytes))
        return own_bytes + most_bytes

    @property
    def pool_milli(self) -> int:
        """What it asks of the shared CPUs, in thousandths of a CPU; a weight, where that is what it has."""
        request, placement = self.request, self.placement
        claimed = 0 if placement.claimed_cpus is None else placement.claimed_cpus.mask
        own = placement.exclusive_cpus.mask or claimed or placement.pool_cpus.mask
        if request.pinned_cpus is not None or request.opted_out or (own and not placement.beside_cpus.mask):
            return 0
        return max(0, request.cpu_milli - own.bit_count() * MILLI_PER_CPU)

    def explanation(self) -> str:
        """The reasons as one line for humans."""
        return "; ".join(reason.text for reason in self.reasons)


class EvictionRecord(Struct, frozen=True):
    """One container of a pod that was evicted at ``at_us`` (since the epoch), because less than
    ``threshold`` was available of ``signal``. ``used`` is what the pod used of it (of memory the working set)
    and ``request`` what it requests: bytes, inodes or process ids, as the signal. ``message`` is kubelet's.
    ``obstacle`` says why the pod was not ended, empty if it was to be."""

    at_us: int
    container_id: str
    name: str
    signal: str
    qos: QosClass
    threshold: int
    available: int
    used: int
    request: int
    priority: int
    message: str
    obstacle: str = ""
    in_bytes: bool = True

    def __str__(self) -> str:
        text = (
            f"{self.signal}: {self.message.strip()} The pod, {self.qos.value} with priority {self.priority}, "
        )
        used, request = map(format_bytes if self.in_bytes else format_count, (self.used, self.request))
        text += f"was using {used} and requests {request}"
        return f"{text}; it was not ended: {self.obstacle}" if self.obstacle else text


class PageMoveRecord(Struct, frozen=True):
    """Pages of one container that were to go from one node to another, over ``duration_ms``. ``at_us`` (since
    the epoch) is when it ended; ``obstacle`` says why the rest was not moved, empty if all was. ``at_risk``
    are the nodes for whose sake it was done."""

    at_us: int
    container_id: str
    name: str
    source: int
    target: int
    wanted_bytes: int
    moved_bytes: int
    duration_ms: int
    at_risk: NodeSet
    obstacle: str = ""

    @property
    def is_done(self) -> bool:
        """Whether all was moved: what counters, report and history count as a move; the rest has failed."""
        return not self.obstacle

    def __str__(self) -> str:
        text = f"{format_bytes(self.moved_bytes)} moved from node {self.source} to node {self.target}"
        text += (
            f" in {self.duration_ms} ms, as memory on {nodes_text(self.at_risk)} was outstanding to others"
        )
        if not self.obstacle:
            return text
        left_bytes = self.wanted_bytes - self.moved_bytes
        return f"{text}; {format_bytes(left_bytes)} more could not be moved: {self.obstacle}"
