"""Containers in named pools: the first one is placed as if the pool's CPUs were its own, the others go near
these, and the pool gets as many as its members request.

A pool has from its minimum to its maximum of CPUs as long as it has members, and none without. What it may
still grow to stays in the shared pool (`Basis.exclusive_room`), so that it finds room
unless CPUs went away or the configuration changed. Invariants: no CPU goes to a pool that another container
or pool has; a pool that grows keeps what it has, and one that shrinks gets no other.
"""

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Final, NamedTuple

from msgspec.structs import replace

from bayplan.engines.exact.claiming import STRICT, is_bounded
from bayplan.engines.exact.cpu_choice import WantedCpus, choose
from bayplan.engines.exact.exclusive_cpus import distances_to, kept_shared, rules_of
from bayplan.engines.exact.topology import NodeTopology
from bayplan.model.basis import Basis
from bayplan.model.decision import Decision, DeviceHint, Outcome, Placement, Reason, Request
from bayplan.model.ledger import Ledger
from bayplan.model.policy import CpuPool
from bayplan.quantity import MILLI_PER_CPU, counted
from bayplan.sets import CpuSet, NodeSet

IN_POOL: Final = "cpu-pool"
"""Code of the reason that a container is in a named pool."""

POOL_FULL: Final = "cpu-pool-full"
"""That the members request more than the pool may have."""

POOL_SHORT: Final = "cpu-pool-short"
"""That the pool has fewer CPUs than it is to have."""

Decide = Callable[[Request, NodeSet], Decision]
"""The decision about a request as if it were in no pool, its memory rather on those nodes than elsewhere."""


class Members(NamedTuple):
    """What the members of a named pool have together: ``milli``, thousandths of a CPU that they request; the
    nodes that their memory is confined to; and the nodes that their devices are close to."""

    milli: int
    nodes: NodeSet
    hints: tuple[DeviceHint, ...]

    @classmethod
    def of(cls, ledger: Ledger, pool: str) -> "Members":
        """What the members of *pool* in *ledger* have together."""
        found = cls(0, NodeSet(), ())
        for entry in ledger.members(pool):
            found = found.with_one(entry.decision.request, entry.decision.placement)
        return found

    def with_one(self, request: Request, placement: Placement) -> "Members":
        """With a container that asks for *request* and has *placement*."""
        nodes = placement.promise.nodes if is_bounded(request) else NodeSet()
        return Members(
            self.milli + request.requested_milli, self.nodes | nodes, (*self.hints, *request.hints)
        )


def decide_for_member(
    topology: NodeTopology,
    basis: Basis,
    request: Request,
    current: Placement | None,
    decide: Decide,
) -> Decision:
    """The decision about *request*, which is in a pool and not in the ledger; *current* is its placement if
    it runs. Where CPUs lack a new container is refused under a strict policy."""
    ledger, strict = basis.ledger, basis.policy.topology in STRICT
    had = ledger.pool_cpus(request.pool) or (CpuSet() if current is None else current.pool_cpus)
    pool = _Pool(topology, basis, request.pool, had)
    others = Members.of(ledger, request.pool)
    wanted = pool.size(others.milli + request.requested_milli)
    cpus, decision = had, None
    if not had:
        asking = replace(request, exclusive_cpus=min(wanted, pool.room), cpu_kind=pool.kind)
        as_own = decide(asking, NodeSet())
        if as_own.outcome is not Outcome.REFUSED:
            decision, cpus = as_own, as_own.placement.exclusive_cpus
    if decision is None:
        # Also where a new pool is larger than the nodes that the policy allows one container.
        decision = decide(request, topology.nodes_near(had))
        if decision.outcome is Outcome.REFUSED:
            return replace(decision, request=request)
        cpus = pool.resized(wanted, others.with_one(request, decision.placement))
    lacking = pool.lacking(request, cpus, wanted, others)
    if lacking is not None and current is None and strict:
        return Decision(request, Outcome.REFUSED, reasons=(*decision.reasons, lacking))
    reasons = [*decision.reasons, in_pool(basis, request.pool), *([] if lacking is None else [lacking])]
    outcome = decision.outcome if lacking is None else Outcome.DEGRADED
    placement = replace(decision.placement, exclusive_cpus=CpuSet(), pool_cpus=cpus)
    return replace(decision, request=request, outcome=outcome, placement=placement, reasons=tuple(reasons))


def in_pool(basis: Basis, name: str) -> Reason:
    """That a container is in the pool *name*."""
    pool, cpus = basis.policy.cpu_pools.get(name), len(basis.ledger.pool_cpus(name))
    minimum, maximum = (cpus, cpus) if pool is None else (pool.minimum, pool.maximum)
    bounds = f"{minimum} to {counted(maximum, 'CPU')}"
    return Reason(IN_POOL, f"in the pool {name}: its containers share {bounds}")


def resized_pools(topology: NodeTopology, basis: Basis) -> Mapping[str, CpuSet]:
    """The CPUs of those pools that are to have others than they have in the ledger, by name."""
    resized = {}
    for name in sorted(basis.ledger.pool_ids.keys() & basis.policy.cpu_pools.keys()):
        had, members = basis.ledger.pool_cpus(name), Members.of(basis.ledger, name)
        pool = _Pool(topology, basis, name, had)
        wanted = pool.size(members.milli)
        if len(had) == wanted and had <= topology.machine.online_cpus:
            continue
        cpus = pool.resized(wanted, members)
        if cpus != had:
            resized[name] = cpus
            basis = basis.with_ledger(basis.ledger.with_pool_cpus(name, cpus))
    return resized


class _Pool:
    """One named pool, which has some CPUs by the ledger: how many it is to have, and which. A pool that is no
    longer in the policy keeps what it has."""

    def __init__(self, topology: NodeTopology, basis: Basis, name: str, had: CpuSet) -> None:
        self._topology, self._basis, self._name, self._had = topology, basis, name, had
        self._pool = basis.policy.cpu_pools.get(name) or CpuPool(len(had), len(had))
        self._only_cores = basis.policy.cpu_alignment.full_pcpus_only
        # If it has no other members, its CPUs count as shared.
        self._not_shared = len(had - basis.shared_cpus)
        self.kind = self._pool.cpu_kind

    def size(self, milli: int) -> int:
        """How many CPUs it is to have where its members request *milli*; with full-pcpus-only in whole
        cores."""
        return self._in_whole_cores(self._pool.size(milli))

    @cached_property
    def room(self) -> int:
        """How many CPUs it may get beside those that it has."""
        most = self._basis.exclusive_room(growing=self._name) + self._not_shared - len(self._had)
        room = min(most, len(self._free))
        while self._only_cores and 0 < room < self._in_whole_cores(room):
            room -= 1
        return max(0, room)

    def resized(self, wanted: int, members: Members) -> CpuSet:
        """What it has with *wanted* CPUs, as far as there is room: near the memory, the devices and the CPUs
        of its *members*."""
        topology, kept = self._topology, self._had & self._topology.machine.online_cpus
        free, nodes = self._free, members.nodes | topology.nodes_near(kept)
        if wanted <= len(kept):
            count, available, stays = wanted, kept, CpuSet()
        else:
            count = len(kept) + min(wanted - len(kept), self.room)
            near = (topology.cpus_near(nodes) & free) | kept
            available, stays = (near, kept) if count <= len(near) else (free | kept, near)
        looked_for = WantedCpus(
            count,
            available.mask,
            (free | kept).mask,
            stays.mask,
            distances_to(topology, nodes, members.hints),
            rules_of(self._basis.policy.cpu_alignment),
        )
        return CpuSet.of_mask(choose(topology.cpu_layout, looked_for).cpus)

    def lacking(self, request: Request, cpus: CpuSet, wanted: int, others: Members) -> Reason | None:
        """Why it has too few CPUs for *request* beside *others*, if it has: these *cpus* of *wanted* ones."""
        milli, runs = others.milli + request.requested_milli, "" if cpus else "; runs on the shared CPUs"
        if len(cpus) < wanted:
            kept = kept_shared(wanted - self._not_shared, self._basis, growing=self._name)
            why = "no others are free" if kept is None else kept.text
            text = f"the pool {self._name} is to have {counted(wanted, 'CPU')} and has {len(cpus)}: {why}"
            return Reason(POOL_SHORT, f"{text}{runs}")
        if request.requested_milli and milli > MILLI_PER_CPU * len(cpus):
            together = f"{milli / MILLI_PER_CPU:g} of CPU together"
            text = f"the containers in the pool {self._name} request {together}"
            return Reason(POOL_FULL, f"{text}, and it may have {self._pool.maximum}")
        return None

    def _in_whole_cores(self, count: int) -> int:
        if not self._only_cores:
            return count
        of_kind = self._basis.machine.cpus_by_kind.get(self.kind)
        return self._topology.cpu_layout.in_whole_cores(count, -1 if of_kind is None else of_kind.mask)

    @cached_property
    def _free(self) -> CpuSet:
        """The CPUs that it may take."""
        free = self._basis.exclusive_candidates(growing=self._name)
        if self._only_cores:
            free = CpuSet.of_mask(self._topology.cpu_layout.whole_cores(free.mask))
        of_kind = self._basis.machine.cpus_by_kind.get(self.kind)
        return (free if of_kind is None else free & of_kind) - self._had
