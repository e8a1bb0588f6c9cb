"""The ledger: which container was promised what. An immutable value; changes return a new ledger.

The totals per node and per set of nodes are kept beside the entries, so that a decision does not walk all
containers. Invariant: every total equals the sum over the entries, and no CPU is exclusive to two containers,
unless their pod has it as a whole (`bayplan.model.pod_as_a_whole`) or they are members of one named pool.
All members have the same CPUs: what an entry that is added says holds for all of them.

In what two ledgers differ is recorded, and sent to those who follow the ledger. Invariant: whoever applies to
*before* what differs in *after* has the promises of *after*.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from bayplan.model.claims import HeldClaim, Parts, sum_of
from bayplan.model.decision import (
    LATER_CODES,
    MEMORY_TAKEN,
    MOVED_OVER,
    OVERCOMMITTED,
    RELOCATED,
    Booking,
    Claim,
    Decision,
    Move,
    Outcome,
    Placement,
    Promise,
    QosSource,
    Reason,
    Request,
)
from bayplan.model.machine import MEMORY, Machine
from bayplan.model.origin import NRI, Origin, WithoutNri
from bayplan.model.pod_as_a_whole import held_cpus, is_member, settled, shares_promise
from bayplan.model.qos import corrected_claim, explained_by_others
from bayplan.persistent_map import PersistentMap
from bayplan.sets import CpuSet, IdSet, NodeSet, nodes_text

ScoreKey = tuple[str, int]
"""Pod and oom_score_adj."""


class Entry(Struct, frozen=True):
    """One container.

    ``notified_cpus`` (recorded as ``told_cpus``) is the cpuset.cpus that bayplan sent to the runtime for this
    container and that the runtime can have applied: in the spec of its creation, or in an update of a
    container that the runtime knew. None if there was none, or if it is not known. If the container should
    have other CPUs by now, an update of it is due. ``previous_cpus`` (recorded as ``left_cpus``) is what the
    runtime has until it has carried out the update that gave the container exclusive CPUs; None once it has.
    ``recorded_origin`` (recorded as ``origin``) is how a container came that did not come over NRI.
    ``oom_group``: that container's adjustment set memory.oom.group. ``ended``: the container is
    gone and holds nothing; the entry says what its pod was given as a whole, until the pod's next container
    comes. ``resource_claim``: it is of no container, but of that claim, and counts as ended."""

    decision: Decision
    notified_cpus: CpuSet | None = field(default=None, name="told_cpus")
    previous_cpus: CpuSet | None = field(default=None, name="left_cpus")
    recorded_origin: WithoutNri | None = field(default=None, name="origin")
    oom_group: bool = False
    ended: bool = False
    resource_claim: HeldClaim | None = None

    @property
    def container_id(self) -> str:
        """The runtime's id of the container."""
        return self.decision.request.container_id

    @property
    def origin(self) -> Origin:
        """The way in which the container came."""
        return self.recorded_origin or NRI

    @property
    def is_of_claim(self) -> bool:
        """Whether it is of a resource claim, and of no container."""
        return self.resource_claim is not None


class Ledger(Struct, frozen=True):
    """All entries by container id, with the totals that decisions need.

    ``booked_bytes``: by node, of placements without a claim. ``claimed_bytes``: by set of nodes, of those
    with one. ``exclusive_cpus``: of all containers and named pools. ``bound``: how many containers are bound
    to each set of nodes. ``retained``: who has no container at the moment: pods, by id, that were given room
    as a whole, each with the entry of its last one; and resource claims, by their keys.

    ``ids_by_notice``: the containers that share CPUs, by the cpuset.cpus that the runtime was sent for them;
    under the empty set those of which it is not known, and those with exclusive or a pool's CPUs for which it
    was sent others.

    ``ids_by_score``: the containers that share a pod and an oom_score_adj, in the order in which they came;
    see `bayplan.model.qos`. ``short_ids``: those whose claims could not be promised in full.
    ``pinned_ids``: those whose CPUs somebody else has chosen. ``shared_milli``: thousandths of a CPU that the
    containers on the shared CPUs ask for. ``beside_ids``: those that bayplan gives shared CPUs beside their
    own. ``followed_ids``: those for which more than cpusets follows the ledger: a placement file, a partition
    of CPUs, the affinity of interrupts, the CPUs of processes that enter it later. ``pool_ids``: the members
    of each named pool that has some. ``ids_by_pod``: the containers of each pod, in the order of ``entries``.

    What has a key for each container or pod is a `PersistentMap`: nothing that a request does walks or copies
    all of them.
    """

    entries: PersistentMap[str, Entry] = field(default_factory=PersistentMap)
    booked_bytes: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    exclusive_cpus: CpuSet = CpuSet()
    bound: Mapping[NodeSet, int] = field(default_factory=dict)
    claimed_bytes: Mapping[NodeSet, Mapping[str, int]] = field(default_factory=dict)
    retained: Mapping[str, Entry] = field(default_factory=dict)
    ids_by_notice: Mapping[int, PersistentMap[str, None]] = field(default_factory=dict)
    ids_by_score: PersistentMap[ScoreKey, tuple[str, ...]] = field(default_factory=PersistentMap)
    short_ids: frozenset[str] = frozenset()
    pinned_ids: frozenset[str] = frozenset()
    shared_milli: Mapping[QosSource, int] = field(default_factory=dict)
    beside_ids: frozenset[str] = frozenset()
    followed_ids: frozenset[str] = frozenset()
    pool_ids: Mapping[str, frozenset[str]] = field(default_factory=dict)
    ids_by_pod: PersistentMap[str, tuple[str, ...]] = field(default_factory=PersistentMap)

    @property
    def adopted(self) -> dict[str, str]:
        """The names, by id, of containers that nobody decided about (``unmanaged`` in views)."""
        decisions = {key: entry.decision for key, entry in self.entries.items()}
        return {key: one.request.name for key, one in decisions.items() if one.outcome is Outcome.ADOPTED}

    @classmethod
    def of(cls, entries: Iterable[Entry]) -> "Ledger":
        """The ledger that holds *entries*; a later entry replaces an earlier one of the same container."""
        listed, order = _with_pools_settled(entries), dict[str, str]()
        for entry in listed:
            order.pop(entry.container_id, None)
            order[entry.container_id] = entry.decision.request.pod_id
        # Pods are independent of each other, and each change copies its ledger: that of one pod only.
        of_pods = dict[str, Ledger]()
        for entry in listed:
            pod_id = entry.decision.request.pod_id
            if order[entry.container_id] == pod_id:
                of_pods[pod_id] = of_pods.get(pod_id, cls()).with_entry(entry)
        return _united(of_pods.values(), order)

    def with_entry(self, entry: Entry) -> "Ledger":
        """A ledger in which *entry* is the only entry of its container."""
        request, placement = entry.decision.request, entry.decision.placement
        pod_id, container_id = request.pod_id, request.container_id
        before = self.entries.get(container_id)
        base = self if before is None else self._left_without(before)
        if entry.ended:
            return _retaining(base, entry)
        last = base.retained.get(pod_id)
        if last is not None:
            base = base.without_retained(pod_id)
        if request.cpus is not None and (pool := request.pool):
            base = base.with_pool_cpus(pool, placement.pool_cpus)
        if request.score is None:
            after = _added(base, entry)
            if not (request.pod_level and is_member(request)):
                return after
            return _settled_pod(after, pod_id, container_id, None if last is None else last.decision)
        key = (pod_id, request.score)
        others = self.ids_by_score.get(key, ())
        order = _in_order(others, entry) if others else (container_id,)
        after = _added(base, entry, base.ids_by_score.with_item(key, order))
        # Asked only of a booking: a call less on the way of each creation.
        alone = not others and not (placement.claim or placement.promise).explained_bytes
        return after if alone else _settled(after, key)

    def without(self, container_id: str) -> "Ledger":
        """A ledger without that container; the same ledger if it holds none. What it held of a pod that has
        resources as a whole goes to the pod's others."""
        gone = self.entries.get(container_id)
        if gone is None:
            return self
        left = self._left_without(gone)
        if not is_member(gone.decision.request):
            return left
        return _settled_pod(left, gone.decision.request.pod_id, leaving=gone.decision)

    def _left_without(self, gone: Entry) -> "Ledger":
        left, key = _removed(self, gone), score_key(gone.decision.request)
        if key is None:
            return left
        ids = without_member(self.ids_by_score, key, gone.container_id)
        return _settled(replace(left, ids_by_score=ids), key)

    def as_if_newest(self, request: Request) -> "Ledger":
        """The ledger on which to decide about *request*, which is to be the newest container of its pod: what
        others claim by the same score, which then proves nothing of them any more, is not claimed in it."""
        key, ledger = score_key(request), self
        for other in self.ids_by_score.get(key, ()) if key is not None else ():
            explained, _ = explained_by_others((ledger.entries[other].decision.request, request))
            if explained:
                ledger = _claiming(ledger, other, explained=True)
        return ledger

    def after_end_of(self, container_id: str, *, pod_stays: bool = True) -> "Ledger":
        """A ledger without that container.

        If it was the last of a pod that was given room as a whole and stays, the pod keeps that for its next
        container; a pod whose end nobody reports keeps nothing.
        """
        entry, left = self.entries.get(container_id), self.without(container_id)
        if entry is None or not entry.origin.reports_end_of_pod or not pod_stays:
            return left
        request = entry.decision.request
        if not entry.decision.placement.is_with_whole_pod or request.pod_totals is None:
            return left
        if request.pod_id in left.ids_by_pod:
            return left
        return left.with_entry(replace(with_pool_cpus(entry, CpuSet()), ended=True))

    def of_pod(self, pod_id: str) -> Iterator[Entry]:
        """What the pod with that id retains, then the entries of its containers."""
        if (last := self.retained.get(pod_id)) is not None:
            yield last
        for container_id in self.ids_by_pod.get(pod_id, ()):
            yield self.entries[container_id]

    def without_retained(self, pod_id: str) -> "Ledger":
        """A ledger that retains nothing for that pod."""
        last = self.retained.get(pod_id)
        if last is None:
            return self
        left = {key: one for key, one in self.retained.items() if key != pod_id}
        ledger = replace(self, retained=left)
        return _holding(ledger, last, -1) if holds_alone(last) else ledger

    def moved(self, moves: Iterable[Move]) -> "Ledger":
        """The ledger after *moves*.

        A container that is moved off the nodes it was placed on remembers these as its original nodes until
        it is back. One that may use every node may still do so. One that relocates is promised all of it on
        its new nodes at once, and may use those before until its pages have left.
        """
        ledger, relocated = self, list[Entry]()
        for move in moves:
            if move.relocates:
                relocated.append(_relocated(self.entries[move.container_id], move))
                # Two of them may change CPUs with each other.
                ledger = ledger.without(move.container_id)
        for entry in relocated:
            ledger = ledger.with_entry(entry)
        for move in moves:
            entry = ledger.entries[move.container_id]
            moved = entry if move.relocates else _moved(entry, move.after)
            if moved is not entry:
                ledger = ledger.with_entry(moved)
        return ledger

    def with_claims(self, claims: Mapping[str, Claim]) -> "Ledger":
        """The ledger after containers were promised more than at their decision (container id -> claim).

        A decision that was degraded for nothing else is as asked, once all of it is promised.
        """
        ledger = self
        for container_id, claim in claims.items():
            entry = ledger.entries[container_id]
            decision = replace(
                entry.decision, placement=replace(entry.decision.placement, claim=claim, booked_bytes={})
            )
            if not claim.short_bytes:
                kept = tuple(reason for reason in decision.reasons if reason.code != OVERCOMMITTED)
                later = Reason("promised-later", "all of it could be promised when others were gone")
                as_asked = all(reason.code in LATER_CODES for reason in kept)
                degraded = decision.outcome is Outcome.DEGRADED and as_asked
                decision = replace(
                    decision,
                    outcome=Outcome.PLACED if degraded else decision.outcome,
                    reasons=(*kept, later) if kept != decision.reasons else kept,
                    shortage=None,
                )
            ledger = ledger.with_entry(replace(entry, decision=decision))
        return ledger

    def members(self, pool: str) -> Iterator[Entry]:
        """The containers in that named pool."""
        for key in sorted(self.pool_ids.get(pool, ())):
            yield self.entries[key]

    def pool_cpus(self, pool: str) -> CpuSet:
        """The CPUs of that named pool; none while it has no members."""
        return next((one.decision.placement.pool_cpus for one in self.members(pool)), CpuSet())

    @property
    def cpus_of_pools(self) -> dict[str, CpuSet]:
        """The CPUs of each named pool that has members."""
        return {pool: self.pool_cpus(pool) for pool in sorted(self.pool_ids)}

    @property
    def own_cpus(self) -> CpuSet:
        """The CPUs that are exclusive to containers or pods: those of named pools are not."""
        pooled = CpuSet()
        for cpus in self.cpus_of_pools.values():
            pooled |= cpus
        return self.exclusive_cpus - pooled

    def with_pool_cpus(self, pool: str, cpus: CpuSet) -> "Ledger":
        """The ledger in which that named pool has *cpus*, which its members share."""
        had = self.pool_cpus(pool)
        if cpus == had:
            return self
        entries, noted, milli = self.entries, self.ids_by_notice, self.shared_milli
        for before in self.members(pool):
            after = with_pool_cpus(before, cpus)
            entries = entries.with_item(before.container_id, after)
            noted = with_notice(with_notice(noted, before, belongs=False), after, belongs=True)
            source = before.decision.request.qos_source
            milli = with_shared_milli(milli, source, after.decision.pool_milli - before.decision.pool_milli)
        exclusive = self.exclusive_cpus - had | (cpus if self.pool_ids.get(pool) else CpuSet())
        return replace(
            self, entries=entries, ids_by_notice=noted, shared_milli=milli, exclusive_cpus=exclusive
        )

    def shared_cpus(
        self, machine: Machine, withheld: CpuSet = CpuSet(), becoming_exclusive: CpuSet = CpuSet()
    ) -> CpuSet:
        """The CPUs that no container has to itself, without those *withheld* from all of them, and without
        those *becoming_exclusive*, which a container is about to have.

        Never empty, because reserved CPUs never become exclusive: with nothing else left, the withheld ones
        are shared after all, as an empty cpuset.cpus cannot be written.
        """
        shared = machine.online_cpus.mask & ~self.exclusive_cpus.mask & ~becoming_exclusive.mask
        return CpuSet.of_mask(shared & ~withheld.mask or shared)

    @property
    def resource_claims(self) -> dict[str, HeldClaim]:
        """What resource claims hold, by their keys."""
        return {key: one.resource_claim for key, one in self.retained.items() if one.resource_claim}

    @property
    def holders(self) -> list[Entry]:
        """The entries of all that hold something by a decision: containers and resource claims."""
        claims = (one for one in self.retained.values() if one.is_of_claim)
        return [*self.entries.values(), *claims]

    @property
    def claimed_memory_bytes(self) -> dict[str, int]:
        """The memory that resource claims hold, by the uid of the pod that they are reserved for."""
        return sum_of(
            {uid: held.claim.amounts_bytes.get(MEMORY, 0)}
            for held in self.resource_claims.values()
            for uid in held.claim.pod_uids
        )

    def has_due_updates(self, shared: CpuSet) -> bool:
        """Whether a runtime has other CPUs for a container than it should; *shared* are those of the
        containers without exclusive CPUs."""
        return next(self.due_ids(shared), None) is not None

    def due_ids(self, shared: CpuSet) -> Iterator[str]:
        """The ids of the containers for which a runtime has other CPUs than it should, where *shared* are the
        CPUs of the containers without exclusive ones; those that have waited longest come first."""
        for cpus, ids in self.ids_by_notice.items():
            if cpus != shared.mask:
                yield from ids
        for key in sorted(self.beside_ids):
            one = self.entries[key]
            if one.decision.placement.cpus_among(shared) != one.notified_cpus:
                yield key

    def with_notified_cpus(self, cpus: Mapping[str, CpuSet | None], *, carried_out: bool = False) -> "Ledger":
        """The same promises, after updates with *cpus* (container id -> cpuset.cpus) were sent to the
        runtime, or *carried_out* by it; None for a container of which it is not known what the runtime
        applied."""
        entries, noted = self.entries, self.ids_by_notice
        for container_id, sent in cpus.items():
            before = entries[container_id]
            previous = None if carried_out else _previous_cpus(before, sent)
            if (sent, previous) != (before.notified_cpus, before.previous_cpus):
                after = replace(before, notified_cpus=sent, previous_cpus=previous)
                entries = entries.with_item(container_id, after)
                noted = with_notice(with_notice(noted, before, belongs=False), after, belongs=True)
        if entries is self.entries:
            return self
        return replace(self, entries=entries, ids_by_notice=noted)


def _with_pools_settled(entries: Iterable[Entry]) -> list[Entry]:
    """*entries*, of which the members of a named pool have the CPUs of the last one."""
    listed = list(entries)
    cpus = {one.decision.request.pool: one.decision.placement.pool_cpus for one in listed if not one.ended}
    return [
        one if one.ended or not (pool := one.decision.request.pool) else with_pool_cpus(one, cpus[pool])
        for one in listed
    ]


def with_pool_cpus(entry: Entry, cpus: CpuSet) -> Entry:
    """*entry* of a member of a named pool that has *cpus*."""
    placement = entry.decision.placement
    if placement.pool_cpus == cpus:
        return entry
    return replace(entry, decision=replace(entry.decision, placement=replace(placement, pool_cpus=cpus)))


def _moved(entry: Entry, nodes: NodeSet) -> Entry:
    """*entry* with its claim on *nodes*, where others have it go, or where it goes back to."""
    placement, claim = entry.decision.placement, entry.decision.placement.promise
    if isinstance(claim, Booking):
        return entry
    if claim.nodes == nodes:
        return entry if placement.leaving is None else _left(entry, placement.leaving)
    on_nodes = replace(claim, nodes=nodes)
    if placement.mems is None:
        placement = replace(placement, claim=on_nodes)
        return replace(entry, decision=replace(entry.decision, placement=placement))
    original = placement.original_nodes or claim.nodes
    # Nodes beside the claim's, such as a device's memory, stay.
    beside = placement.mems - claim.nodes
    moved = replace(
        placement,
        mems=nodes | beside,
        claim=on_nodes,
        original_nodes=None if original == nodes else original,
        previous_mems=placement.mems,
    )
    ended = (MOVED_OVER, MEMORY_TAKEN)
    reasons = tuple(reason for reason in entry.decision.reasons if reason.code not in ended)
    if moved.original_nodes is not None:
        where = f"from {nodes_text(original)} to {nodes_text(nodes)}"
        text = f"moved over for others {where}; goes back when there is room"
        reasons = (*reasons, Reason(MOVED_OVER, text))
    return replace(entry, decision=replace(entry.decision, placement=moved, reasons=reasons))


def _relocated(entry: Entry, move: Move) -> Entry:
    """*entry* with its promise on the nodes where *move* has it go."""
    placement, claim = entry.decision.placement, entry.decision.placement.promise
    assert isinstance(claim, Claim)
    text = f"makes room for {move.newcomer}: its CPUs are {move.cpus} now"
    if claim.nodes != move.after and placement.mems is not None:
        affinity = placement.affinity
        way = f"from {nodes_text(claim.nodes)} to {nodes_text(move.after)}"
        text = f"moves {way}, so that {move.newcomer} fits"
        placement = replace(
            placement,
            mems=placement.mems | move.after,
            claim=replace(claim, nodes=move.after),
            booked_bytes={},
            affinity=None if affinity is None else replace(affinity, nodes=move.after),
            leaving=claim.nodes - move.after,
            previous_mems=placement.mems,
        )
    placement = replace(placement, exclusive_cpus=move.cpus, relocated=True)
    reasons = (*entry.decision.reasons, Reason(RELOCATED, text))
    return replace(entry, decision=replace(entry.decision, placement=placement, reasons=reasons))


def _left(entry: Entry, nodes: NodeSet) -> Entry:
    """*entry* once its pages have left *nodes*. The runtime may have the cpuset.mems of before both steps, or
    of the first."""
    placement = entry.decision.placement
    mems = None if placement.mems is None else placement.mems - nodes
    placement = replace(placement, mems=mems, leaving=None)
    return replace(entry, decision=replace(entry.decision, placement=placement))


def _united(parts: Iterable[Ledger], order: Iterable[str]) -> Ledger:
    """The ledger of all that *parts*, which have no container in common, hold, in *order* (container ids)."""
    entries, retained = dict[str, Entry](), dict[str, Entry]()
    booked: dict[int, Counter[str]] = {}
    claimed: dict[NodeSet, Counter[str]] = {}
    bound: Counter[NodeSet] = Counter()
    noted: dict[int, dict[str, None]] = {}
    exclusive_cpus, ids_by_score = CpuSet(), dict[ScoreKey, tuple[str, ...]]()
    short_ids, pinned_ids = set[str](), set[str]()
    shared_milli: Counter[QosSource] = Counter()
    beside_ids, followed_ids, pool_ids = set[str](), set[str](), dict[str, frozenset[str]]()
    for part in parts:
        entries.update(part.entries)
        retained.update(part.retained)
        for node, row in part.booked_bytes.items():
            booked.setdefault(node, Counter()).update(row)
        for nodes, row in part.claimed_bytes.items():
            claimed.setdefault(nodes, Counter()).update(row)
        bound.update(part.bound)
        exclusive_cpus |= part.exclusive_cpus
        for cpus, told in part.ids_by_notice.items():
            noted.setdefault(cpus, {}).update(told)
        ids_by_score.update(part.ids_by_score)
        short_ids |= part.short_ids
        pinned_ids |= part.pinned_ids
        shared_milli.update(part.shared_milli)
        beside_ids |= part.beside_ids
        followed_ids |= part.followed_ids
        for pool, ids in part.pool_ids.items():
            pool_ids[pool] = pool_ids.get(pool, frozenset()) | ids
    entries = {key: entries[key] for key in order if key in entries}
    ids_by_pod = dict[str, list[str]]()
    for key, entry in entries.items():
        ids_by_pod.setdefault(entry.decision.request.pod_id, []).append(key)
    return Ledger(
        PersistentMap(entries),
        {node: dict(row) for node, row in booked.items()},
        exclusive_cpus,
        dict(bound),
        {nodes: dict(row) for nodes, row in claimed.items()},
        retained,
        {cpus: PersistentMap(ids) for cpus, ids in noted.items()},
        PersistentMap(ids_by_score),
        frozenset(short_ids),
        frozenset(pinned_ids),
        dict(shared_milli),
        frozenset(beside_ids),
        frozenset(followed_ids),
        pool_ids,
        PersistentMap({pod_id: tuple(ids) for pod_id, ids in ids_by_pod.items()}),
    )


def _added(
    ledger: Ledger, entry: Entry, ids_by_score: PersistentMap[ScoreKey, tuple[str, ...]] | None = None
) -> Ledger:
    """*ledger* with *entry*, whose container it does not hold, and with *ids_by_score* if they are others."""
    decision, claim = entry.decision, entry.decision.placement.claim
    request, placement = decision.request, decision.placement
    container_id, pod_id = request.container_id, request.pod_id
    promise = claim or placement.promise
    held = placement.exclusive_cpus.mask or placement.pool_cpus.mask or placement.affinity is not None
    beside = placement.beside_cpus.mask and shares_beside(entry)
    of_pod = (*ledger.ids_by_pod.get(pod_id, ()), container_id)
    ids_by_pod = ledger.ids_by_pod.with_item(pod_id, of_pod)
    entries = ledger.entries.with_item(container_id, entry)
    parts, milli = promise.claimed_parts, decision.pool_milli
    return Ledger(
        entries=entries,
        booked_bytes=ledger.booked_bytes if claim else with_booking(ledger.booked_bytes, promise, 1),
        exclusive_cpus=ledger.exclusive_cpus | held_cpus(placement) if held else ledger.exclusive_cpus,
        bound=ledger.bound if placement.mems is None else with_count(ledger.bound, placement.mems, 1),
        claimed_bytes=with_claim(ledger.claimed_bytes, parts, 1),
        retained=ledger.retained,
        ids_by_notice=with_notice(ledger.ids_by_notice, entry, belongs=True),
        ids_by_score=ledger.ids_by_score if ids_by_score is None else ids_by_score,
        short_ids=ledger.short_ids | {container_id} if promise.short_bytes else ledger.short_ids,
        pinned_ids=ledger.pinned_ids if request.pinned_cpus is None else ledger.pinned_ids | {container_id},
        shared_milli=with_shared_milli(ledger.shared_milli, request.qos_source, milli),
        beside_ids=ledger.beside_ids | {container_id} if beside else ledger.beside_ids,
        followed_ids=ledger.followed_ids | {container_id} if is_followed(entry) else ledger.followed_ids,
        pool_ids=ledger.pool_ids
        if request.cpus is None
        else with_member(ledger.pool_ids, request, belongs=True),
        ids_by_pod=ids_by_pod,
    )


def _retaining(ledger: Ledger, last: Entry) -> Ledger:
    """*ledger* that keeps what a pod was given as a whole, whose *last* container has ended."""
    pod_id = last.decision.request.pod_id
    ledger = ledger.without_retained(pod_id)
    ledger = replace(ledger, retained={**ledger.retained, pod_id: last})
    return _holding(ledger, last, 1) if holds_alone(last) else ledger


def holds_alone(retained: Entry) -> bool:
    """Whether the totals have the promise of an entry that is of no container any more, or never was."""
    return retained.is_of_claim or is_member(retained.decision.request)


def _holding(ledger: Ledger, last: Entry, sign: int) -> Ledger:
    """*ledger* after the promise of a holder without a container came (*sign* +1) or went (-1)."""
    placement = last.decision.placement
    cpus = held_cpus(placement)
    return replace(
        ledger,
        claimed_bytes=with_claim(ledger.claimed_bytes, placement.promise.claimed_parts, sign),
        exclusive_cpus=ledger.exclusive_cpus | cpus if sign > 0 else ledger.exclusive_cpus - cpus,
    )


def _settled_pod(
    ledger: Ledger, pod_id: str, added: str | None = None, leaving: Decision | None = None
) -> Ledger:
    """*ledger* in which the containers of a pod hold what it has as a whole; see
    `bayplan.model.pod_as_a_whole`."""
    before = {
        key: decision
        for key in ledger.ids_by_pod.get(pod_id, ())
        if shares_promise(decision := ledger.entries[key].decision)
    }
    if not before:
        return ledger
    for key, decision in settled(before, added, leaving).items():
        if decision != before[key]:
            entry = ledger.entries[key]
            ledger = _added(_removed(ledger, entry), replace(entry, decision=decision))
    held = ledger.exclusive_cpus
    for key in before:
        # Each of them was taken out for a moment, with CPUs that others of the pod have too.
        held |= held_cpus(ledger.entries[key].decision.placement)
    return replace(ledger, exclusive_cpus=held)


def notice_of(entry: Entry) -> int | None:
    """The key of *entry* in ``ids_by_notice``; None where no update can become due."""
    decision, sent = entry.decision, entry.notified_cpus
    if not (entry.recorded_origin or NRI).runtime_applies:
        return None
    if decision.shares_cpus:
        return 0 if sent is None else sent.mask
    apart = decision.placement.apart_cpus.mask
    was_sent = sent is not None and apart == sent.mask
    return 0 if apart and not was_sent and not shares_beside(entry) else None


def shares_beside(entry: Entry) -> bool:
    """Whether bayplan gives it shared CPUs beside its own, which change with those of all."""
    placement = entry.decision.placement
    beside = placement.exclusive_cpus.mask and placement.beside_cpus.mask
    return bool(beside) and entry.origin.runtime_applies


def is_followed(entry: Entry) -> bool:
    """Whether more than its cpusets follows the ledger."""
    request = entry.decision.request
    told = request.placement_file or request.exec_cpus is not None
    return told or request.partition or request.irqs_away


def _previous_cpus(entry: Entry, sent: CpuSet | None) -> CpuSet | None:
    """What the runtime has of *entry* until it carries out an update with the CPUs *sent*; None where that
    makes no difference, because they are not its own."""
    if not entry.decision.placement.own_cpus:
        return None
    if sent == entry.notified_cpus:
        return entry.previous_cpus
    return entry.previous_cpus or entry.notified_cpus


def score_key(request: Request) -> ScoreKey | None:
    """The containers that *request* is compared with; None if its score says nothing."""
    return None if request.score is None else (request.pod_id, request.score)


def _settled(ledger: Ledger, key: ScoreKey) -> Ledger:
    """The ledger in which each of the containers of *key* claims what its score proves."""
    order = ledger.ids_by_score.get(key, ())
    found = explained_by_others([ledger.entries[one].decision.request for one in order])
    for container_id, explained in zip(order, found, strict=True):
        ledger = _claiming(ledger, container_id, explained=explained)
    return ledger


def _claiming(ledger: Ledger, container_id: str, *, explained: bool) -> Ledger:
    entry = ledger.entries[container_id]
    placement, request = entry.decision.placement, entry.decision.request
    claim = placement.claim and corrected_claim(placement.claim, request, explained=explained)
    if claim == placement.claim:
        return ledger
    placement = replace(placement, claim=claim, booked_bytes={})
    changed = replace(entry, decision=replace(entry.decision, placement=placement))
    return replace(
        ledger,
        entries=ledger.entries.with_item(container_id, changed),
        claimed_bytes=with_claim(
            with_claim(ledger.claimed_bytes, entry.decision.placement.promise.claimed_parts, -1),
            placement.promise.claimed_parts,
            1,
        ),
        short_ids=with_id(ledger.short_ids, container_id, belongs=is_short(placement)),
    )


def _removed(ledger: Ledger, gone: Entry) -> Ledger:
    container_id, placement = gone.container_id, gone.decision.placement
    promise = placement.promise
    pool_ids = with_member(ledger.pool_ids, gone.decision.request, belongs=False)
    freed = held_cpus(placement)
    if gone.decision.request.pool in pool_ids:
        freed -= placement.pool_cpus
    return Ledger(
        entries=ledger.entries.without(container_id),
        booked_bytes=with_booking(ledger.booked_bytes, promise, -1),
        exclusive_cpus=ledger.exclusive_cpus - freed,
        bound=with_count(ledger.bound, placement.mems, -1),
        claimed_bytes=with_claim(ledger.claimed_bytes, promise.claimed_parts, -1),
        retained=ledger.retained,
        ids_by_notice=with_notice(ledger.ids_by_notice, gone, belongs=False),
        ids_by_score=ledger.ids_by_score,
        short_ids=with_id(ledger.short_ids, container_id, belongs=False),
        pinned_ids=with_id(ledger.pinned_ids, container_id, belongs=False),
        shared_milli=with_shared_milli(
            ledger.shared_milli, gone.decision.request.qos_source, -gone.decision.pool_milli
        ),
        beside_ids=with_id(ledger.beside_ids, container_id, belongs=False),
        followed_ids=with_id(ledger.followed_ids, container_id, belongs=False),
        pool_ids=pool_ids,
        ids_by_pod=without_member(ledger.ids_by_pod, gone.decision.request.pod_id, container_id),
    )


def _in_order(order: tuple[str, ...], entry: Entry) -> tuple[str, ...]:
    """*order* with the id of *entry*: last if it is new, but first if another container explained its score
    when it was recorded."""
    if entry.container_id in order:
        return order
    first = entry.decision.placement.promise.explained_bytes
    return (entry.container_id, *order) if first else (*order, entry.container_id)


Ids = TypeVar("Ids", bound=IdSet)
GroupKey = TypeVar("GroupKey", str, ScoreKey)


def without_member(
    groups: PersistentMap[GroupKey, tuple[str, ...]], key: GroupKey, container_id: str
) -> PersistentMap[GroupKey, tuple[str, ...]]:
    """*groups* of containers without that one in the group *key*; without the group if it was the last."""
    left = tuple(one for one in groups[key] if one != container_id)
    return groups.with_item(key, left) if left else groups.without(key)


def with_booking(
    totals: Mapping[int, Mapping[str, int]], promise: Promise, sign: int
) -> Mapping[int, Mapping[str, int]]:
    """The totals after *promise* came (+1) or went (-1)."""
    booked_bytes = promise.booked_bytes
    if not booked_bytes:
        return totals
    changed = dict(totals)
    for node, resources in booked_bytes.items():
        row = dict(changed.get(node, {}))
        for resource, amount_bytes in resources.items():
            row[resource] = row.get(resource, 0) + sign * amount_bytes
        changed[node] = row
    return changed


def with_claim(
    totals: Mapping[NodeSet, Mapping[str, int]], parts: Parts, sign: int
) -> Mapping[NodeSet, Mapping[str, int]]:
    """The totals after the *parts* that a promise claims came (+1) or went (-1). Sets without a claim are
    left out."""
    if not parts:
        return totals
    changed = dict(totals)
    for nodes, amounts_bytes in parts:
        row = dict(changed.get(nodes, {}))
        for resource, amount_bytes in amounts_bytes.items():
            row[resource] = row.get(resource, 0) + sign * amount_bytes
        if any(row.values()):
            changed[nodes] = row
        else:
            changed.pop(nodes, None)
    return changed


def with_count(counts: Mapping[Ids, int], ids: Ids | None, sign: int) -> Mapping[Ids, int]:
    """The numbers of containers per set after one with *ids*, if it has any, came (+1) or went (-1)."""
    if ids is None:
        return counts
    changed = dict(counts)
    count = changed.pop(ids, 0) + sign
    if count:
        changed[ids] = count
    return changed


def with_notice(
    noted: Mapping[int, PersistentMap[str, None]], entry: Entry, *, belongs: bool
) -> Mapping[int, PersistentMap[str, None]]:
    """The containers by what the runtime was sent, with *entry* if it *belongs* there, else without it."""
    cpus = notice_of(entry)
    if cpus is None:
        return noted
    ids, container_id = noted.get(cpus), entry.decision.request.container_id
    if belongs:
        told: PersistentMap[str, None] = PersistentMap() if ids is None else ids
        return {**noted, cpus: told.with_item(container_id, None)}
    ids = PersistentMap() if ids is None else ids.without(container_id)
    return {**noted, cpus: ids} if ids else {key: one for key, one in noted.items() if key != cpus}


def with_shared_milli(
    totals: Mapping[QosSource, int], source: QosSource, milli: int
) -> Mapping[QosSource, int]:
    """What containers on the shared CPUs ask for, by what their class is known from, after one whose class is
    known from *source* and that asks for *milli* came, or with a minus went."""
    return {**totals, source: totals.get(source, 0) + milli} if milli else totals


def with_member(
    ids: Mapping[str, frozenset[str]], request: Request, *, belongs: bool
) -> Mapping[str, frozenset[str]]:
    """The members of each named pool with that of *request* if it *belongs* there, else without it."""
    if not request.pool:
        return ids
    members = with_id(ids.get(request.pool, frozenset()), request.container_id, belongs=belongs)
    others = {pool: one for pool, one in ids.items() if pool != request.pool}
    return {**others, request.pool: members} if members else others


def with_id(ids: frozenset[str], container_id: str, *, belongs: bool) -> frozenset[str]:
    """*ids* with that of the container if it *belongs* there, else without it."""
    if (container_id in ids) == belongs:
        return ids
    return ids | {container_id} if belongs else ids - {container_id}


def is_short(placement: Placement) -> bool:
    """Whether not all that was asked for could be promised."""
    return bool(placement.promise.short_bytes)


def changed_ids(before: Ledger, after: Ledger) -> set[str]:
    """The ids of the containers about which the two say different things."""
    ids = after.entries.differing_keys(before.entries)
    if after.retained is before.retained:
        return ids
    forgotten, kept = retained_changes(before, after)
    return ids.union(forgotten, [entry.container_id for entry in kept])


def changed_entries(before: Ledger, after: Ledger) -> dict[str, Entry | None]:
    """What *after* has of the containers about which the two say different things, by id, in the order of
    `entries_of`; None of those that are gone."""
    entries = after.entries.unlike(before.entries)
    if len(entries) == 1 and after.retained is before.retained:
        return entries
    ids, found = changed_ids(before, after), dict[str, Entry | None]()
    for entry in entries_of(after, ids):
        found.setdefault(entry.decision.request.container_id, entry)
    return found if len(found) == len(ids) else {**found, **dict.fromkeys(sorted(ids - found.keys()))}


def retained_changes(before: Ledger, after: Ledger) -> tuple[tuple[str, ...], tuple[Entry, ...]]:
    """The difference in ``retained``: the ids of the entries to remove, and the entries to record."""
    old, new = before.retained, after.retained
    gone = tuple(one.container_id for key, one in old.items() if new.get(key) != one)
    return gone, tuple(one for key, one in new.items() if old.get(key) != one)


def entries_of(ledger: Ledger, ids: Collection[str]) -> Iterator[Entry]:
    """What *ledger* has of the containers *ids*, those of a pod in its order, and of those that are gone and
    whose pod keeps their room."""
    found = [entry for key in ids if (entry := ledger.entries.get(key)) is not None]
    if len(found) > 1:
        pods = sorted({entry.decision.request.pod_id for entry in found})
        found = [ledger.entries[key] for pod_id in pods for key in ledger.ids_by_pod[pod_id] if key in ids]
    yield from found
    yield from (one for one in ledger.retained.values() if one.container_id in ids)


def with_changes(ledger: Ledger, entries: Iterable[Entry], gone: Iterable[str]) -> Ledger:
    """*ledger* without the containers *gone*, and without the room that a pod keeps after one of them, and
    with *entries*."""
    for container_id in gone:
        ledger = _without(ledger, container_id)
    for entry in entries:
        ledger = ledger.with_entry(entry)
    return ledger


def _without(ledger: Ledger, container_id: str) -> Ledger:
    for pod_id, last in ledger.retained.items():
        if last.container_id == container_id:
            return ledger.without_retained(pod_id)
    return ledger.without(container_id)
