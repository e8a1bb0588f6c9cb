"""Which CPUs a container gets to itself: near its nodes, those that it has already, and the best of the rest
by the order of `cpu_choice`.

The options that kubelet has for this count here: which CPUs may be taken (full-pcpus-only), which of them
are near (align-by-socket), on which nodes there is to be a number of them (distribute-cpus-across-numa), and
what of the order counts.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Final, NamedTuple

from msgspec.structs import replace

from bayplan.engines.device_hints import device_shares
from bayplan.engines.exact.claiming import STRICT, fewest, wished_nodes
from bayplan.engines.exact.cpu_choice import Fit, Occupation, Rules, WantedCpus, choose, first_of, fit
from bayplan.engines.exact.topology import NodeTopology
from bayplan.model.basis import Basis
from bayplan.model.claims import proportional
from bayplan.model.decision import DeviceHint, Placement, QosSource, Reason, Request
from bayplan.model.policy import CpuAlignment, KeepWhole, PlacementPolicy, PlacementStrategy, TopologyPolicy
from bayplan.model.sentences import verb_after
from bayplan.quantity import counted
from bayplan.sets import CpuSet, NodeSet, cpus_text

SHARED_CPUS_MINIMUM: Final = "shared-cpus-minimum"
"""Code of the reason that CPUs stay in the shared pool which a container asks for as its own."""

NO_EXCLUSIVE_CPUS: Final = "no-exclusive-cpus"
"""That it gets none, because too few are left."""

SMT_ALIGNMENT: Final = "smt-alignment"
"""That what it asks for is no whole number of cores."""

CPU_CHOICE_ENDED: Final = "cpu-choice-ended"
"""That the choice of its CPUs was given up before all others were ruled out."""

CORE_KINDS_MIXED: Final = "core-kinds-mixed"
"""That its CPUs are of several kinds of cores."""

ISOLATED_CPUS: Final = "isolated-cpus"
"""What the kernel does not do on the CPUs that it gets."""

NOHZ_FULL: Final = "nohz-full"
"""On which of its CPUs the timer tick stops."""

_ISOLATED: Final = Reason(
    ISOLATED_CPUS,
    "its CPUs are isolated: the kernel balances no load on them, each thread stays where it starts "
    "unless it chooses its CPU itself (sched_setaffinity)",
)
_EMPTIER: Final = 100
"""What a node loses of becoming empty for each container that it has less at each of its caches, on average,
than the fullest one, as `Occupation.lost_by` counts; measured (tests/bench/cpu_fit.py)."""
_FILLED: Final = 600
"""What a node gains where nothing of it stays free; measured likewise."""
_FULL_CORES: Final = "full-pcpus-only gives whole cores"
_NO_CPUS: Final = CpuSet()


class Taken(NamedTuple):
    """The CPUs that a container gets to itself; if it gets none, the reason; and further reasons to be
    shown."""

    cpus: CpuSet
    lacking: Reason | None = None
    remarks: tuple[Reason, ...] = ()


class ExclusiveCpus:
    """The CPUs that one container may have. ``own`` are those that it has already, if it runs; ``free`` are
    these and all that no container has. ``count`` is how many it gets: as many as it asks for, or with
    full-pcpus-only what these are in whole cores. They are of one kind of cores, and isolated where it wishes
    such. ``assignable`` are all that it could have on an empty machine. ``obstacle`` is why none of the
    others are free to it: the shared pool would be left with too few, or what it asks for is no whole number
    of cores. ``keeps_caches``: whole L3 caches are kept. Within the class sets of CPUs are masks."""

    def __init__(
        self, topology: NodeTopology, basis: Basis, request: Request, current: Placement | None
    ) -> None:
        self._topology, self._layout, self._basis = topology, topology.cpu_layout, basis
        self._hints, self._alignment = request.hints, basis.policy.cpu_alignment
        self._growing, self._isolated, self._rest_milli = "", False, 0
        if request.cpus is not None:
            self._growing, self._isolated = request.pool, request.wishes_isolated_cpus
            if request.qos_source is QosSource.CGROUP_PARENT and request.shares_rest:
                self._rest_milli = request.pool_milli(request.exclusive_cpus)
        self._wished_kind = request.cpu_kind
        wished = wished_nodes(basis.machine, request) if request.wishes_nodes else None
        self._wished = 0 if wished is None else self.near(wished.nodes)
        self._requires = wished is not None and wished.required
        self._rules = rules_of(self._alignment)
        packed = (request.strategy or basis.policy.strategy) is PlacementStrategy.PACK
        keeps = packed and basis.policy.keep_whole is KeepWhole.CACHE and self._rules.caches
        self.keeps_caches = keeps and self._layout.has_caches_within_nodes
        self.own = _NO_CPUS if current is None else current.exclusive_cpus
        self._online = self.own.mask & basis.machine.online_cpus.mask
        allocatable = basis.allocatable
        self._every = (allocatable.isolated_cpus if self._isolated else allocatable.exclusive_cpus).mask
        self._asked = 0 if request.pinned_cpus is not None else request.exclusive_cpus
        self._only_cores = self._alignment.full_pcpus_only and self._asked > len(self.own)
        self.count = self._asked
        if self._only_cores and basis.policy.topology not in STRICT:
            self.count = self._layout.in_whole_cores(self._asked, self._of_wished_kind)

    @cached_property
    def _occupation(self) -> Occupation | None:
        """Which containers have CPUs at which L3 cache, where whole ones are kept."""
        if not self.keeps_caches:
            return None
        ledger = self._basis.ledger
        held = [one.decision.placement.exclusive_cpus.mask for one in ledger.entries.values()]
        held += [cpus.mask for cpus in ledger.cpus_of_pools.values()]
        held = [mask for mask in held if mask]
        holders = {cache: sum([mask & cache != 0 for mask in held]) for cache in self._layout.caches}
        return Occupation(holders, self._every)

    @cached_property
    def free(self) -> int:
        """See the class."""
        return self._online if self.obstacle is not None else self._candidates

    @cached_property
    def obstacle(self) -> Reason | None:
        """See the class."""
        asked = f"{counted(self.count, 'exclusive CPU')} asked for"
        if self._only_cores and not self._are_whole_cores(self._of_wished_kind):
            return Reason(SMT_ALIGNMENT, f"{asked}, which is no whole number of cores; {_FULL_CORES}")
        if self._only_cores and not self.own and not self._are_whole_cores(self._candidates):
            return Reason(SMT_ALIGNMENT, f"{asked}, which no whole cores left make up; {_FULL_CORES}")
        own = self.own.mask
        if self._isolated or not own.bit_count() < self.count <= (self._candidates | own).bit_count():
            return None
        return kept_shared(self.count, self._basis, self._rest_milli, self._growing)

    @property
    def _of_wished_kind(self) -> int:
        """The CPUs of the kind of cores that it wishes, or all."""
        cpus = self._basis.machine.cpus_by_kind.get(self._wished_kind)
        return -1 if cpus is None else cpus.mask

    def _are_whole_cores(self, cpus: int) -> bool:
        """Whether cores within *cpus* have as many together as it is to have, or all have fewer."""
        return self._layout.in_whole_cores(self.count, cpus) == self.count

    @cached_property
    def _candidates(self) -> int:
        """The CPUs that may be its own, of one kind if that is enough; with full-pcpus-only those of cores of
        which others have nothing."""
        candidates = self._basis.exclusive_candidates(isolated=self._isolated, growing=self._growing)
        free = candidates.mask | self._online
        if self._only_cores:
            free = self._layout.whole_cores(free) | self._online
        return self._of_one_kind(free, self._widest) if self._basis.machine.cpus_by_kind else free

    def _of_one_kind(self, cpus: int, widest: int | None = None) -> int:
        """Those of *cpus* of the kind that it is to have: of those with enough, on wished nodes if one
        has there, the one that takes the fewest nodes. All of them if no kind has enough, or none has on the
        nodes that it requires, or on *widest* nodes, more than which it may not have."""
        kinds = self._basis.machine.cpus_by_kind
        if self._wished_kind in kinds:
            return cpus & kinds[self._wished_kind].mask
        of_kinds = [cpus & kinds[kind].mask for kind in self._kinds]
        enough = [of_kind for of_kind in of_kinds if of_kind.bit_count() >= self.count]
        if self._only_cores and not self.own:
            enough = [of_kind for of_kind in enough if self._are_whole_cores(of_kind)]
        if not enough:
            return cpus
        if self._wished:
            there = [one for one in enough if (one & self._wished).bit_count() >= self.count]
            if not there and self._requires and (cpus & self._wished).bit_count() >= self.count:
                return cpus
            enough = there or enough
        found = enough[0] if self.own else min(enough, key=self._width)
        return cpus if widest is not None and self._width(found)[0] > widest else found

    def _width(self, cpus: int) -> tuple[int, int]:
        """Near how few nodes *cpus* are as many as it is to have, which with align-by-socket is at how few
        sockets, and on how few."""
        on = fewest(self._topology.counted(cpus).values(), self.count)
        if not self._alignment.align_by_socket:
            return on, on
        sockets = {self.near(NodeSet([node])) for node in self._basis.machine.memory_nodes}
        return fewest([(socket & cpus).bit_count() for socket in sockets], self.count), on

    @cached_property
    def _widest(self) -> int | None:
        """On how many nodes its CPUs may be at most, as kubelet counts; None where nothing is refused."""
        policy = self._basis.policy.topology
        if policy not in STRICT:
            return None
        single = policy is TopologyPolicy.SINGLE_NUMA_NODE
        return 1 if single else self._width(self._of_one_kind(self._every))[1]

    @cached_property
    def _kinds(self) -> Sequence[str]:
        """The kinds of cores, the first ones rather than the others: what it has, else that of which most
        containers like it can have theirs."""
        kinds = self._basis.machine.cpus_by_kind

        def rank(kind: str) -> tuple[int, int]:
            cpus = kinds[kind].mask
            return (cpus & self.own.mask).bit_count(), (cpus & self._every).bit_count() // max(1, self.count)

        return sorted(kinds, key=rank, reverse=True)

    def assignable_by_node(self) -> dict[int, int]:
        """How many each node could give to it on an empty machine."""
        of_kind = self._of_one_kind(self._every) if self._basis.machine.cpus_by_kind else self._every
        return self._topology.counted(of_kind)

    def near(self, nodes: NodeSet) -> int:
        """The CPUs that count as those of *nodes*; with align-by-socket all of their sockets."""
        near = self._topology.near(nodes.mask)
        return self._layout.in_sockets_of(near) if self._alignment.align_by_socket else near

    def free_by_node(self) -> dict[int, int]:
        """How many free ones each node has."""
        if self._alignment.align_by_socket:
            return {1 << node: self.free_on(1 << node) for node in self._basis.machine.memory_nodes}
        return self._topology.counted(self.free)

    def free_on(self, nodes: int) -> int:
        """How many free ones *nodes* have together; with align-by-socket they can be the same ones."""
        return (self.near(NodeSet.of_mask(nodes)) & self.free).bit_count()

    def fit(self, count: int) -> Callable[[int], Fit] | None:
        """A function that says what the best *count* CPUs on a set of nodes cost; None where it does not
        matter which CPUs of a node are taken."""
        layout, topology, known = self._layout, self._topology, dict[int, Fit]()
        if not count or not layout.differs:
            return None
        free, rules, by_socket = self.free, self._rules, self._alignment.align_by_socket
        occupation = self._occupation
        most = 0
        if occupation is not None:
            most = max([_crowd(occupation, cpus) for cpus in layout.node_masks.values()], default=0)

        def fit_on(nodes: int) -> Fit:
            fitted = known.get(nodes)
            if fitted is None:
                cpus = topology.near(nodes)
                cpus = layout.in_sockets_of(cpus) if by_socket else cpus
                if occupation is None or nodes & (nodes - 1):
                    # There are many sets of several nodes, and to choose on each takes too long.
                    fitted = fit(layout, cpus & free, count, rules)
                else:
                    fitted = fit(layout, cpus & free, count, rules, occupation)
                    emptier = max(0, most - _crowd(occupation, cpus))
                    filled = _FILLED if (cpus & free).bit_count() == count else 0
                    fitted = replace(fitted, lost=fitted.lost + emptier - filled)
                known[nodes] = fitted
            return fitted

        return fit_on

    def take(self, nodes: NodeSet) -> Taken:
        """The exclusive CPUs, or the shared pool and the reason for it.

        On *nodes* rather than elsewhere (no nodes: anywhere), and among these rather those that it has; where
        the container's devices are on several of them, as many on each as it has of the devices, and with
        distribute-cpus-across-numa as many on each.
        """
        if self.count == 0 or self.obstacle is not None:
            return Taken(CpuSet(), self.obstacle)
        free = (self.free | self.own.mask).bit_count()
        if self.count > free:
            return Taken(CpuSet(), self._too_few(free))
        wanted, offline = self._wanted(nodes)
        parted = self._hints or self._alignment.distribute_cpus_across_numa
        for part, most in self._parts(nodes, wanted).items() if parted else ():
            held, there = wanted.kept & part, wanted.available & part
            count = min(most, there.bit_count(), wanted.count - (wanted.kept & ~part).bit_count())
            if count > held.bit_count():
                some = choose(self._layout, replace(wanted, count=count, available=there, kept=held))
                wanted = replace(wanted, kept=wanted.kept | some.cpus)
        choice, remarks = choose(self._layout, wanted), []
        if self.count != self._asked:
            text = f"{counted(self._asked, 'exclusive CPU')} asked for, and {self.count} given; {_FULL_CORES}"
            remarks.append(Reason(SMT_ALIGNMENT, text))
        if not choice.proven:
            text = "the choice of its CPUs ended after too many steps: better ones may exist"
            remarks.append(Reason(CPU_CHOICE_ENDED, text))
        cpus = CpuSet.of_mask(choice.cpus | offline)
        if self._isolated:
            remarks.append(_ISOLATED)
        if cpus.mask & self._basis.machine.nohz_full.mask:
            without_tick = cpus & self._basis.machine.nohz_full
            have = f"{cpus_text(without_tick)} of its own {verb_after(without_tick, 'has')}"
            text = f"{have} no timer tick while one thread alone runs there (nohz_full)"
            remarks.append(Reason(NOHZ_FULL, text))
        of_kinds = {kind: cpus & one for kind, one in self._basis.machine.cpus_by_kind.items() if cpus & one}
        if len(of_kinds) > 1:
            which = " and ".join(f"{one} {kind}" for kind, one in of_kinds.items())
            remarks.append(Reason(CORE_KINDS_MIXED, f"no kind of cores has enough CPUs left: {which}"))
        return Taken(cpus, remarks=tuple(remarks))

    def _too_few(self, left: int) -> Reason:
        """That only so many are *left* of those that it could have."""
        what = " isolated" if self._isolated else ""
        if self._wished_kind in self._basis.machine.cpus_by_kind:
            what += f" of the kind {self._wished_kind}"
        asked = f"{counted(self.count, 'exclusive CPU')} asked for"
        text = f"{asked}, {left}{what} left; runs on the shared CPUs"
        if self._basis.policy.isolated_cpus and not self._isolated:
            isolated = self._basis.policy.isolated_cpus
            are = f"{cpus_text(isolated)} {verb_after(isolated, 'is')}"
            text += f"; {are} isolated, for containers that ask for such"
        return Reason(NO_EXCLUSIVE_CPUS, text)

    def _wanted(self, nodes: NodeSet) -> tuple[WantedCpus, int]:
        """What is to be chosen on *nodes*, and which CPUs it keeps that are offline: only where others would
        have to come from elsewhere."""
        free, offline, online = self.free, 0, self._online
        near = self.near(nodes) & free if nodes.mask else free
        there = near.bit_count()
        if self.count <= there:
            kept = available = online & near
            if kept.bit_count() < self.count:
                available = near
            elif kept.bit_count() > self.count:
                kept = 0
        else:
            offline = first_of(self.own.mask & ~online, self.count - there)
            kept = near | first_of(online & ~near, self.count - there - offline.bit_count())
            available = free
        on_one = nodes.mask.bit_count() == 1 and not available & ~self._topology.cpus_of(nodes.mask)
        distances = {} if on_one else distances_to(self._topology, nodes, self._hints)
        count = self.count - offline.bit_count()
        return WantedCpus(count, available, free, kept, distances, self._rules, self._occupation), offline

    def _parts(self, nodes: NodeSet, wanted: WantedCpus) -> Mapping[int, int]:
        """The CPUs near each of *nodes* on which there is to be a number of them, in whole cores as far as
        they divide: where there are devices of the container near several of them, or all are to have as
        many."""
        shares = device_shares(self._hints, nodes)
        evenly = self._alignment.distribute_cpus_across_numa and nodes.mask.bit_count() > 1
        if len(shares) <= 1 and not evenly:
            return {}
        near = {node: self._topology.near(1 << node) for node in nodes}
        size = max(self._basis.machine.core_sizes.values(), default=1)
        cores = wanted.count // size
        if len(shares) > 1:
            parts = proportional(cores, shares)
        else:
            rooms = {node: (cpus & wanted.available).bit_count() // size for node, cpus in near.items()}
            parts = _evenly(cores, rooms)
        return {near[node]: size * count for node, count in parts.items()}

    def away_from(self, nodes: NodeSet, cpus: CpuSet) -> CpuSet:
        """Those of *cpus* that are online and not on *nodes*."""
        return CpuSet.of_mask(cpus.mask & self._basis.machine.online_cpus.mask & ~self.near(nodes))


def best_cpus(
    topology: NodeTopology, policy: PlacementPolicy, available: CpuSet, count: int, nodes: NodeSet
) -> CpuSet:
    """*count* CPUs of *available*, of those on *nodes* first; fewer if there are fewer."""
    online = available & topology.machine.online_cpus
    near, count = online & topology.cpus_near(nodes), min(count, len(online))
    enough = len(near) >= count
    wanted = WantedCpus(
        count,
        (near if enough else online).mask,
        online.mask,
        0 if enough else near.mask,
        distances_to(topology, nodes),
        rules_of(policy.cpu_alignment),
    )
    return CpuSet.of_mask(choose(topology.cpu_layout, wanted).cpus)


def rules_of(alignment: CpuAlignment) -> Rules:
    """What of the order of choices counts."""
    spread = alignment.distribute_cpus_across_cores
    return Rules(caches=alignment.prefer_align_cpus_by_uncorecache and not spread, spread=spread)


def distances_to(
    topology: NodeTopology, nodes: NodeSet, hints: Iterable[DeviceHint] = ()
) -> Mapping[int, int]:
    """How far each node with CPUs is from the memory on *nodes* and from devices, beyond the nearest one;
    empty where there is no memory to be near to, or no choice."""
    machine = topology.machine
    if not nodes or len(machine.cpu_nodes) <= 1:
        return {}
    targets = [NodeSet([node]) for node in nodes] + [hint.nodes for hint in hints if hint.nodes]
    found = {
        node: sum([min([machine.distance(node, other) for other in target]) for target in targets])
        for node in machine.cpu_nodes
    }
    least = min(found.values())
    return {node: distance - least for node, distance in found.items()}


def kept_shared(count: int, basis: Basis, rest_milli: int = 0, growing: str = "") -> Reason | None:
    """Why *count* CPUs of the shared pool cannot become exclusive to one container, which asks for
    *rest_milli* of it beside them, or go to the named pool that is *growing*: it would be left with fewer
    than are to stay. None if they can."""
    room = basis.exclusive_room(rest_milli, growing)
    if count <= room:
        return None
    least, growth = basis.shared_cpus_minimum(rest_milli, growing), basis.growth_of_pools(growing)
    configured = basis.policy.shared_cpus_minimum is not None
    whose = "stay in it at least (sharedCPUsMinimum)" if configured else "its containers request"
    grown = f" and {growth} are what named pools may grow by (cpuPools)" if growth else ""
    text = (
        f"{counted(count, 'exclusive CPU')} asked for; the shared pool has {len(basis.shared_cpus)}, of "
        f"which {least} {whose}{grown}; {max(0, room)} can become exclusive"
    )
    return Reason(SHARED_CPUS_MINIMUM, text)


def _crowd(occupation: Occupation, cpus: int) -> int:
    """How many containers have CPUs at a cache with some of *cpus*, on average, as `_EMPTIER` counts."""
    there = occupation.at(cpus)
    return _EMPTIER * sum(there) // max(1, len(there))


def _evenly(count: int, rooms: Mapping[int, int]) -> dict[int, int]:
    """*count* over *rooms*, as evenly as these are large."""
    found, left = {}, count
    for index, node in enumerate(sorted(rooms, key=lambda one: (rooms[one], -one))):
        found[node] = min(rooms[node], left // (len(rooms) - index))
        left -= found[node]
    return found
