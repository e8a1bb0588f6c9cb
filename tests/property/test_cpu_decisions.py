"""What containers and pools get of CPUs, against every choice that there is: on small machines with kinds of
cores, isolated CPUs and broken cores, under kubelet's options, while containers come, change and go.

Memory is no obstacle here. Counted one by one, with what the documents say and nothing of the engine: who may
have which CPU, how many it gets, on which nodes, and which ones of these.
"""

import math
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, combinations

from hypothesis import event, given
from hypothesis import strategies as st
from msgspec.structs import replace

from bayplan.engines.exact.cpu_choice import Occupation, Rules, WantedCpus
from bayplan.engines.exact.engine import ExactEngine
from bayplan.model.basis import Basis
from bayplan.model.decision import CpuUse, CpuWish, Decision, Outcome, Placement, Request
from bayplan.model.ledger import Entry, Ledger
from bayplan.model.machine import Machine
from bayplan.model.policy import CpuAlignment, CpuPool, KeepWhole, PlacementPolicy, TopologyPolicy
from bayplan.placement.changed_promises import with_resized_pools
from bayplan.quantity import GIB, MIB
from bayplan.sets import CpuSet, NodeSet
from support import cpu_order
from support.cpu_machines import machines
from support.requests import guaranteed_request

OPTIONS = (
    "full_pcpus_only",
    "distribute_cpus_across_numa",
    "align_by_socket",
    "distribute_cpus_across_cores",
    "prefer_align_cpus_by_uncorecache",
    "strict_cpu_reservation",
)
EXCLUDED = (
    {"full_pcpus_only", "distribute_cpus_across_cores"},
    {"distribute_cpus_across_numa", "distribute_cpus_across_cores"},
)
"""Pairs that kubelet refuses."""
STRICT = (TopologyPolicy.RESTRICTED, TopologyPolicy.SINGLE_NUMA_NODE)


@st.composite
def options(draw: st.DrawFn) -> frozenset[str]:
    """None, one or two of kubelet's."""
    pairs = chain.from_iterable(combinations(OPTIONS, count) for count in range(3))
    return draw(st.sampled_from([frozenset(pair) for pair in pairs if set(pair) not in EXCLUDED]))


@st.composite
def bases(draw: st.DrawFn) -> Basis:
    """A machine and a policy."""
    machine = draw(machines())
    ids = [cpu.id for cpu in machine.cpus]
    core_ids = sorted({cpu.core_id for cpu in machine.cpus})
    strong = draw(st.sets(st.sampled_from(core_ids))) if draw(st.booleans()) else set()
    kinds = {core: "performance" if core in strong else "efficiency" for core in core_ids} if strong else {}
    isolated = CpuSet(draw(st.sets(st.sampled_from(ids), max_size=3)) if draw(st.integers(0, 2)) == 2 else ())
    reserved = CpuSet(draw(st.sets(st.sampled_from(ids), max_size=2))) - isolated
    distances = {
        pair: draw(st.sampled_from([12, 20, 32])) for pair in combinations(sorted(machine.node_ids), 2)
    }
    bare = draw(st.sampled_from([*machine.node_ids, None, None, None]))
    every = [
        replace(
            node,
            memory_bytes=0 if node.id == bare and len(machine.nodes) > 1 else GIB,
            distances={
                other: 10 if other == node.id else distances[min(other, node.id), max(other, node.id)]
                for other in machine.node_ids
            },
        )
        for node in machine.nodes
    ]
    machine = Machine(
        tuple(every),
        tuple(replace(cpu, kind=kinds.get(cpu.core_id, "")) for cpu in machine.cpus),
        isolated=isolated,
    )
    chosen = draw(options())
    alignment = CpuAlignment(
        **dict.fromkeys(chosen - {"strict_cpu_reservation", "prefer_align_cpus_by_uncorecache"}, True),
        prefer_align_cpus_by_uncorecache="prefer_align_cpus_by_uncorecache" in chosen or draw(st.booleans()),
    )
    pools = {}
    if draw(st.integers(0, 2)) == 2:
        minimum = draw(st.integers(1, 3))
        kind = draw(st.sampled_from(["", *machine.cpus_by_kind]))
        pools["pool"] = CpuPool(minimum, minimum + draw(st.integers(0, 3)), kind)
    topologies = [TopologyPolicy.BEST_EFFORT, TopologyPolicy.BEST_EFFORT, *STRICT]
    topology = draw(st.sampled_from(topologies))
    if alignment.align_by_socket and topology is TopologyPolicy.SINGLE_NUMA_NODE:
        topology = TopologyPolicy.RESTRICTED  # kubelet refuses the other pair
    strict = "strict_cpu_reservation" in chosen
    policy = PlacementPolicy(
        topology,
        reserved_cpus=reserved,
        withheld_cpus=isolated | (reserved if strict else CpuSet()),
        isolated_cpus=isolated,
        shared_cpus_minimum=draw(st.sampled_from([0, 0, 0, 2])),
        cpu_alignment=alignment,
        cpu_pools=pools,
        keep_whole=draw(st.sampled_from(KeepWhole)),
    )
    event(f"options {', '.join(sorted(chosen)) or 'none'}")
    return Basis(machine, policy, Ledger())


@dataclass
class Judge:
    """What everybody has, by the decisions so far; and what may be decided next."""

    basis: Basis
    engine: ExactEngine = field(default_factory=ExactEngine)
    count: int = 0

    @property
    def machine(self) -> Machine:
        return self.basis.machine

    @property
    def policy(self) -> PlacementPolicy:
        return self.basis.policy

    @property
    def reserved(self) -> CpuSet:
        """Those of the policy, else the lowest one that is not isolated."""
        online, policy = self.machine.online_cpus, self.policy
        return policy.reserved_cpus or CpuSet([min(online - policy.isolated_cpus or online)])

    def taken(self, but: str = "") -> CpuSet:
        """The CPUs that containers and pools have, but for one container or pool."""
        found = CpuSet()
        for name, entry in self.basis.ledger.entries.items():
            placement = entry.decision.placement
            if name != but:
                found |= placement.exclusive_cpus
            if entry.decision.request.pool != but:
                found |= placement.pool_cpus
        return found

    def may_have(self, request: Request, but: str) -> CpuSet:
        """The CPUs that nobody else has and that *request* may have, whatever their kind."""
        policy = self.policy
        isolated = request.cpus is not None and request.cpus.use is CpuUse.ISOLATED
        free = self.machine.online_cpus - self.reserved - self.taken(but)
        return free & policy.isolated_cpus if isolated else self.not_kept(free - policy.isolated_cpus)

    def not_kept(self, free: CpuSet) -> CpuSet:
        """*free* without what pools of a kind may grow to: of its last cores."""
        for name, pool in self.policy.cpu_pools.items():
            growth = max(0, pool.maximum - len(self.basis.ledger.pool_cpus(name)))
            of_kind = self.machine.cpus_by_kind.get(pool.cpu_kind, CpuSet())
            last = sorted((self.machine.cpu_by_id[cpu].core_id, cpu) for cpu in free & of_kind)[::-1]
            free -= CpuSet(cpu for _, cpu in last[:growth])
        return free

    def near(self, nodes: NodeSet) -> CpuSet:
        """The CPUs of *nodes*, and those that nodes without memory lend to the nearest one; with
        align-by-socket all of their sockets."""
        machine, found = self.machine, self._on(nodes)
        if self.policy.cpu_alignment.align_by_socket:
            sockets = {machine.cpu_by_id[cpu].socket_id for cpu in found}
            found = CpuSet(cpu.id for cpu in machine.cpus if cpu.online and cpu.socket_id in sockets)
        return found

    def _on(self, nodes: NodeSet) -> CpuSet:
        return CpuSet(
            cpu.id for cpu in self.machine.cpus if cpu.online and self._lends_to(cpu.node_id or 0) in nodes
        )

    def _lends_to(self, node: int) -> int:
        machine = self.machine
        if node in machine.memory_nodes:
            return node
        return min(machine.memory_nodes, key=lambda other: (machine.distance(node, other), other))

    def whole(self, cpus: CpuSet) -> CpuSet:
        """Those of *cpus* whose cores lie in it as a whole."""
        cores: dict[int, set[int]] = {}
        for cpu in self.machine.cpus:
            cores.setdefault(cpu.core_id, set()).add(cpu.id)
        return CpuSet(cpu for core in cores.values() if core <= set(cpus) for cpu in core)

    def room(self, growing: str = "") -> int:
        """How many CPUs may leave the shared pool, those of the pool that is *growing* among them."""
        policy, machine = self.policy, self.machine
        shared = machine.online_cpus - policy.withheld_cpus - self.taken(growing)
        least = policy.shared_cpus_minimum or 0
        growth = sum(
            max(0, pool.maximum - len(self.basis.ledger.pool_cpus(name)))
            for name, pool in policy.cpu_pools.items()
            if name != growing
        )
        if growth:
            least = max(least, len(self.reserved & shared))
        return len(shared) - least - growth

    def wanted(self, nodes: NodeSet, free: CpuSet, available: CpuSet, kept: CpuSet, count: int) -> WantedCpus:
        """What the best choice is looked for among."""
        alignment, machine = self.policy.cpu_alignment, self.machine
        rules = Rules(
            alignment.prefer_align_cpus_by_uncorecache and not alignment.distribute_cpus_across_cores,
            alignment.distribute_cpus_across_cores,
        )
        distances = {
            node: sum(machine.distance(node, other) for other in nodes) for node in machine.cpu_nodes
        }
        return WantedCpus(count, available.mask, free.mask, kept.mask, distances, rules)

    def of_container(self, wanted: WantedCpus, request: Request) -> WantedCpus:
        """*wanted* by a container that gets CPUs of its own: where nodes have several L3 caches, it has them
        where caches lose least, unless nothing is kept whole."""
        nodes = {cpu.node_id for cpu in self.machine.cpus}
        caches: dict[object, CpuSet] = {}
        for cpu in self.machine.cpus:
            key = cpu_order.cache_of(cpu)
            caches[key] = caches.get(key, CpuSet()) | CpuSet([cpu.id])
        kept = self.policy.keep_whole is KeepWhole.CACHE and wanted.rules.caches
        if not kept or len(caches) <= len(nodes):
            return wanted
        ledger, policy = self.basis.ledger, self.policy
        held = [entry.decision.placement.exclusive_cpus for entry in ledger.entries.values()]
        held += [ledger.pool_cpus(name) for name in policy.cpu_pools]
        holders = {cache.mask: sum(bool(one & cache) for one in held) for cache in caches.values()}
        isolated = request.cpus is not None and request.cpus.use is CpuUse.ISOLATED
        every = self.machine.online_cpus - self.reserved
        possible = every & policy.isolated_cpus if isolated else every - policy.isolated_cpus
        event("caches kept whole")
        return replace(wanted, occupation=Occupation(holders, possible.mask))

    def check_best(self, wanted: WantedCpus, cpus: CpuSet) -> None:
        """No other choice comes before *cpus*."""
        key = partial(cpu_order.key, self.machine, wanted)
        kept = frozenset(CpuSet.of_mask(wanted.kept))
        rest = sorted(set(CpuSet.of_mask(wanted.available)) - kept)
        every = (kept | set(more) for more in combinations(rest, wanted.count - len(kept)))
        best = min(every, key=key)
        assert sorted(cpus) == sorted(best), (key(frozenset(cpus)), key(best))

    def own_cpus(self, decision: Decision, current: Placement | None) -> None:
        """A container that asks for CPUs of its own, or has some."""
        request, own = decision.request, CpuSet() if current is None else current.exclusive_cpus
        cpus, count, strict = (
            decision.placement.exclusive_cpus,
            request.exclusive_cpus,
            self.policy.topology in STRICT,
        )
        only_cores = self.policy.cpu_alignment.full_pcpus_only and count > len(own)
        every = self.may_have(request, request.container_id) | own
        assert cpus <= every, f"{cpus} of {every}"
        if only_cores and not strict:
            count = self.in_whole_cores(count, self.of_wished_kind(request))
        free = self.whole(every) | own if only_cores else every
        if request.cpu_kind in self.machine.cpus_by_kind:
            free &= self.machine.cpus_by_kind[request.cpu_kind]
        isolated = request.cpus is not None
        enough = count <= len(free) and (isolated or count <= max(len(own), self.room()))
        alike = only_cores and self.in_whole_cores(count, self.of_wished_kind(request)) == count
        if not enough or (only_cores and not (alike and (own or self.in_whole_cores(count, free) == count))):
            event("not enough")
            assert not cpus or current is not None
        elif decision.outcome is Outcome.REFUSED:
            event("refused")
            assert strict
            assert self._width(free, count)[0] > self._widest(request, count)
        else:
            assert len(cpus) == count
            assert not only_cores or own or self.whole(cpus) == cpus
            self.check_choice(decision, current, self.of_kind_of(request, cpus, free, count, own))

    def check_choice(self, decision: Decision, current: Placement | None, free: CpuSet) -> None:
        """The nodes are the best, where it is new, and so are its CPUs there."""
        nodes, cpus = decision.placement.mems, decision.placement.exclusive_cpus
        assert nodes is not None
        near, count = self.near(nodes) & free, len(cpus)
        if count > len(near):
            event("CPUs from elsewhere")
            return
        kept = CpuSet() if current is None else current.exclusive_cpus & near
        available = near if count > len(kept) else kept
        if self.policy.cpu_alignment.distribute_cpus_across_numa and len(nodes) > 1:
            if current is None:
                self.check_even(cpus, nodes, available)
        else:
            kept = kept if count >= len(kept) else CpuSet()
            wanted = self.wanted(nodes, free, available, kept, count)
            self.check_best(self.of_container(wanted, decision.request), cpus)
        if current is None:
            self.check_nodes(nodes, free, count, self._widest(decision.request, count))
        event("judged")

    def of_wished_kind(self, request: Request) -> CpuSet:
        """The CPUs of the kind of cores that it wishes, or all."""
        return self.machine.cpus_by_kind.get(request.cpu_kind, CpuSet(cpu.id for cpu in self.machine.cpus))

    def in_whole_cores(self, count: int, within: CpuSet | None = None) -> int:
        """*count*, or the least number above it that some cores *within* these CPUs have together."""
        sums = {0}
        there = Counter(self.machine.cpu_by_id[cpu].core_id for cpu in within or ())
        for core, size in self.machine.core_sizes.items():
            if within is None or there[core] == size:
                sums |= {one + size for one in sums}
        return min((one for one in sums if one >= count), default=count)

    def _sets(self) -> Iterator[NodeSet]:
        ids = sorted(self.machine.memory_nodes)
        for width in range(1, len(ids) + 1):
            yield from map(NodeSet, combinations(ids, width))

    def _width(self, free: CpuSet, count: int) -> tuple[float, float]:
        """Near how few nodes *free* are as many, and on how few."""
        sets = [
            (len(nodes), len(self.near(nodes) & free) >= count, len(self._on(nodes) & free) >= count)
            for nodes in self._sets()
        ]
        near = min((width for width, enough, _ in sets if enough), default=math.inf)
        return near, min((width for width, _, enough in sets if enough), default=math.inf)

    def _widest(self, request: Request, count: int) -> float:
        """How many nodes it may have: one, or on how many there are as many CPUs of a kind on an empty
        machine."""
        if self.policy.topology not in STRICT:
            return math.inf
        if self.policy.topology is TopologyPolicy.SINGLE_NUMA_NODE:
            return 1
        isolated = request.cpus is not None and request.cpus.use is CpuUse.ISOLATED
        every = self.machine.online_cpus - self.reserved
        every = every & self.policy.isolated_cpus if isolated else every - self.policy.isolated_cpus
        kinds = self.machine.cpus_by_kind
        wished = [kinds[request.cpu_kind]] if request.cpu_kind in kinds else list(kinds.values())
        widths = [width for kind in wished if (width := self._width(every & kind, count))[1] < math.inf]
        return min(widths, default=self._width(every, count))[1]

    def of_kind_of(self, request: Request, cpus: CpuSet, free: CpuSet, count: int, own: CpuSet) -> CpuSet:
        """Those of *free* of the kind that *cpus* are of: the one that takes the fewest nodes. They are of
        several only where no kind has enough on as many nodes as it may have."""
        kinds = [kind for kind in self.machine.cpus_by_kind.values() if kind & cpus]
        if not kinds:
            return free
        able = list(self.machine.cpus_by_kind.values())
        if self.policy.cpu_alignment.full_pcpus_only and count > len(own) and not own:
            able = [kind for kind in able if self.in_whole_cores(count, free & kind) == count]
        widths = [self._width(free & kind, count) for kind in able]
        if len(kinds) > 1:
            event("of several kinds")
            assert own or all(
                one > min(self._widest(request, count), len(self.machine.nodes)) for one, _ in widths
            )
            return free
        assert own or self._width(free & kinds[0], count) == min(widths)
        return free & kinds[0]

    def check_nodes(self, nodes: NodeSet, free: CpuSet, count: int, widest: float) -> None:
        """No other set of at most *widest* nodes crosses fewer sets with promises, is narrower or nearer, or
        has the CPUs with fewer cores broken, then split, then at fewer caches where whole ones are asked for.
        """
        found = self._rank(nodes, free, count)
        sets = [one for one in self._sets() if len(one) <= widest and len(self.near(one) & free) >= count]
        best = min(self._rank(one, free, count) for one in sets)
        assert found == best, (nodes, found, best)

    def _rank(self, nodes: NodeSet, free: CpuSet, count: int) -> tuple[object, ...]:
        machine, near = self.machine, self.near(nodes) & free
        remote = sum(not machine.node_by_id[node].cpus for node in nodes)
        wanted = self.wanted(nodes, near, near, CpuSet(), count)
        fit: Sequence[object] = ()
        if not wanted.rules.spread:
            criteria = 3 if wanted.rules.caches and self._are_whole_caches(count) else 2
            fit = min(
                cpu_order.key(machine, wanted, frozenset(one))[:criteria]
                for one in combinations(sorted(near), count)
            )
        return self._crossed(nodes), len(nodes), machine.total_distance(nodes), remote, fit

    def _are_whole_caches(self, count: int) -> bool:
        """Whether *count* CPUs are those of whole L3 caches, all of one size, and it matters which CPUs of a
        node are taken."""
        online = [cpu for cpu in self.machine.cpus if cpu.online]
        caches = Counter(
            ("socket", cpu.socket_id) if cpu.l3_cache_id is None else ("cache", cpu.l3_cache_id)
            for cpu in online
        )
        nodes = {cpu.node_id for cpu in online}
        matters = len(caches) > len(nodes) or set(self.machine.core_sizes.values()) != {1}
        return matters and len(set(caches.values())) == 1 and count % min(caches.values()) == 0

    def _crossed(self, nodes: NodeSet) -> int:
        """With how many sets of promises *nodes* overlap, of which neither lies within the other."""
        claims = [entry.decision.placement.claim for entry in self.basis.ledger.entries.values()]
        every = {claim.nodes for claim in claims if claim is not None}
        return sum(bool(one & nodes) and not (one <= nodes or nodes <= one) for one in every)

    def check_even(self, cpus: CpuSet, nodes: NodeSet, available: CpuSet) -> None:
        """Each node has its part in whole cores, unless it has no more."""
        size = max(self.machine.core_sizes.values())
        shares = Counter(self._lends_to(self.machine.cpu_by_id[cpu].node_id or 0) for cpu in cpus)
        for node in nodes:
            most = len(self.near(NodeSet([node])) & available)
            least = min(len(cpus) // size // len(nodes), most // size) * size
            if not self.policy.cpu_alignment.align_by_socket:
                assert shares[node] >= least, (shares, least)
        event("distributed")

    def pool_cpus(self, decision: Decision, had: CpuSet) -> None:
        """A member of the pool, which *had* these CPUs before."""
        request, cpus = decision.request, decision.placement.pool_cpus
        if decision.outcome is Outcome.REFUSED:
            event("refused")
            return
        pool = self.policy.cpu_pools[request.pool]
        members = [entry.decision.request for entry in self.basis.ledger.members(request.pool)]
        milli = request.requested_milli + sum(
            one.requested_milli for one in members if one.container_id != request.container_id
        )
        wanted = min(max(pool.minimum, math.ceil(milli / 1000)), pool.maximum)
        if self.policy.cpu_alignment.full_pcpus_only:
            wanted = self.in_whole_cores(wanted, self.machine.cpus_by_kind.get(pool.cpu_kind))
        free = self.machine.online_cpus - self.reserved - self.policy.isolated_cpus - self.taken(request.pool)
        if self.policy.cpu_alignment.full_pcpus_only:
            free = self.whole(free | had) | had
        if pool.cpu_kind:
            free &= self.machine.cpus_by_kind[pool.cpu_kind]
        assert cpus <= free | had
        assert had <= cpus or cpus <= had
        assert len(cpus) <= max(wanted, len(had))
        if wanted > len(had):
            most = min(wanted, max(len(had), min(self.room(request.pool), len(free | had))))
            # Of whole cores there may be none that make up what is left.
            assert len(cpus) == most or (most < wanted and self.policy.cpu_alignment.full_pcpus_only)
            event("a pool grew" if len(cpus) > len(had) else "a pool had no room to grow")
        if wanted <= len(had):
            assert len(cpus) == wanted
            event("a pool shrank or stayed")
            self.check_best(
                self.wanted(self._home(request.pool, decision, had), free | had, had, CpuSet(), wanted), cpus
            )

    def _home(self, pool: str, decision: Decision, had: CpuSet) -> NodeSet:
        """The nodes of the memory of all members, and of the pool's CPUs."""
        placements = [entry.decision.placement for entry in self.basis.ledger.members(pool)]
        nodes = NodeSet(self._lends_to(self.machine.cpu_by_id[cpu].node_id or 0) for cpu in had)
        for placement in (*placements, decision.placement):
            nodes |= placement.promise.nodes
        return nodes

    def decide(self, request: Request, current: Placement | None = None) -> None:
        """Decide about *request*, and judge that."""
        ledger = self.basis.ledger
        had = ledger.pool_cpus(request.pool) if request.pool else CpuSet()
        others = self.basis.with_ledger(ledger.without(request.container_id))
        decision = self.engine.decide(others, request, current)
        if request.pool:
            self.pool_cpus(decision, had)
        else:
            self.basis = others
            self.own_cpus(decision, current)
        if decision.outcome is Outcome.REFUSED:
            self.basis = self.basis.with_ledger(ledger)
            return
        self.basis = others.with_ledger(others.ledger.moved(decision.moves).with_entry(Entry(decision)))
        self.check_owners()

    def end(self, name: str) -> None:
        """It ends, and pools have what is left of their members."""
        self.basis = self.basis.with_ledger(self.basis.ledger.after_end_of(name))
        self.basis = self.basis.with_ledger(with_resized_pools(self.basis, self.engine))
        self.check_owners()

    def check_owners(self) -> None:
        """Nobody has what another one has, or what nobody is to have."""
        owner: dict[int, str] = {}
        for name, entry in self.basis.ledger.entries.items():
            placement, pool = entry.decision.placement, entry.decision.request.pool
            assert not placement.pool_cpus or placement.pool_cpus == self.basis.ledger.pool_cpus(pool)
            for cpu in placement.exclusive_cpus | placement.pool_cpus:
                assert owner.setdefault(cpu, pool or name) == (pool or name)
        assert not CpuSet(owner) & self.reserved
        shared = self.basis.shared_cpus
        assert shared
        assert not shared & CpuSet(owner)
        if shared - self.policy.withheld_cpus:
            assert not shared & self.policy.withheld_cpus

    def step(self, draw: random.Random) -> None:
        """Somebody comes, changes or goes."""
        entries, most = self.basis.ledger.entries, max(1, len(self.machine.cpus) // 2)
        kind, name = draw.choice(("create", "create", "resize", "end")), draw.choice(sorted(entries) or [""])
        if kind == "end" and name:
            self.end(name)
        elif kind == "resize" and name:
            old, count = entries[name].decision, draw.randint(1, most)
            exclusive = 0 if old.request.pool else count
            request = replace(old.request, exclusive_cpus=exclusive, cpu_milli=1000 * count)
            self.decide(request, old.placement)
        else:
            self.count += 1
            count = draw.randint(1, most)
            request = replace(guaranteed_request(f"c{self.count:03}", MIB, count), cpu_milli=1000 * count)
            use = draw.randint(0, 9)
            if use < 2 and self.policy.cpu_pools:
                request = replace(request, exclusive_cpus=0, cpus=CpuWish(CpuUse.POOL, pool="pool"))
            elif use == 2 and self.policy.isolated_cpus:
                request = replace(request, cpus=CpuWish(CpuUse.ISOLATED))
            elif use == 3 and self.machine.cpus_by_kind:
                request = replace(request, cpu_kind=draw.choice([*self.machine.cpus_by_kind]))
            self.decide(request)


@given(bases(), st.integers(0, 2**32))
def test_no_other_decision_about_cpus_comes_first(basis: Basis, seed: int) -> None:
    judge, draw = Judge(basis), random.Random(seed)
    for _ in range(8):
        judge.step(draw)
