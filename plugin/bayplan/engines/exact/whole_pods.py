"""Containers of a pod with resources as a whole: the first one is placed with all of it, the others join.

What the pod has is one promise (`bayplan.model.pod_as_a_whole`), so that a container that joins needs no
room: it gets the pod's nodes, and the pod's CPUs or its part of them. Only what the pod asks for beyond its
promise is looked for, on the same nodes. A pod that grows stays there: what does not fit is refused under a
strict policy, else promised as far as there is room.
"""

from collections.abc import Callable, Mapping

from msgspec.structs import replace

from bayplan.engines.exact.claiming import STRICT, without
from bayplan.engines.exact.exclusive_cpus import best_cpus, kept_shared
from bayplan.engines.exact.resources import ResourceFlows, parts_of, shortage
from bayplan.engines.exact.topology import NodeTopology
from bayplan.model.claims import sum_of
from bayplan.model.decision import (
    OVERCOMMITTED,
    Booking,
    Claim,
    Decision,
    Interval,
    Outcome,
    Placement,
    Reason,
    Request,
    Shortage,
)
from bayplan.model.machine import MEMORY, union
from bayplan.model.memory_kinds import device_nodes
from bayplan.model.pod_as_a_whole import (
    as_member,
    cpus_of_parts,
    group_of,
    has_part,
    held_cpus,
    part_bytes,
    shares_cpus,
    shares_promise,
    takes_from_pod,
    whole_affinity,
    whole_cpus,
)
from bayplan.model.sentences import verb_after
from bayplan.quantity import MILLI_PER_CPU, counted
from bayplan.sets import CpuSet, NodeSet, cpus_text, nodes_text

Decide = Callable[[Request, Placement | None], Decision]
"""The decision about a request as if it were an ordinary container's."""


def decide_in_pod(
    topology: NodeTopology,
    flows: ResourceFlows,
    request: Request,
    current: Placement | None,
    decide: Decide,
) -> Decision:
    """The decision about *request*, a member of its pod; *current* is its placement if it runs."""
    others = {
        entry.container_id: replace(entry.decision, request=as_member(entry.decision.request))
        for entry in flows.ledger.of_pod(request.pod_id)
        if shares_promise(entry.decision)
    }
    nodes, group = group_of(others)
    if group:
        return _Joining(topology, flows, request, others, nodes, group).decide(current)
    if has_part(request) and not (current is not None and current.is_with_whole_pod):
        return decide(request, current)
    asking = _asking_for_all(request, others)
    decision = decide(asking, current)
    placement, claim = decision.placement, decision.placement.promise
    if isinstance(claim, Booking):  # it was refused
        return replace(decision, request=request)
    cpus = placement.exclusive_cpus
    own = cpus
    if has_part(request):
        own = best_cpus(topology, flows.policy, cpus, request.exclusive_cpus, claim.nodes)
    placement = replace(placement, exclusive_cpus=own, affinity=whole_affinity(claim.nodes, cpus))
    text = f"its pod has resources as a whole, which are promised on {_place_text(claim.nodes, cpus)}"
    reason = Reason("pod-as-a-whole", text)
    return replace(decision, request=request, placement=placement, reasons=(*decision.reasons, reason))


def _place_text(nodes: NodeSet, cpus: CpuSet) -> str:
    return f"{nodes_text(nodes)}{f', {cpus_text(cpus)}' if cpus else ''}"


def _asking_for_all(request: Request, others: Mapping[str, Decision]) -> Request:
    """*request* as if the container asked for all that its pod does, beside the parts of *others*."""
    totals = request.pod_totals
    assert totals is not None
    parts = [one.request for one in others.values() if has_part(one.request)]
    asked = without(totals.amounts_bytes, sum_of(map(part_bytes, parts)))
    memory_bytes = asked.pop(MEMORY, 0)
    count = max(0, whole_cpus(totals) - sum(part.exclusive_cpus for part in parts))
    return replace(
        request,
        memory=Interval(memory_bytes, memory_bytes, "limit"),
        memory_limit_bytes=memory_bytes or None,
        cpu_milli=count * MILLI_PER_CPU or totals.cpu_milli,
        exclusive_cpus=count,
        hugepages_bytes=asked,
        pod_level=False,
        pod_totals=None,
    )


class _Joining:
    """One decision about a container whose pod, *others*, has a *group* with its promise on *nodes*."""

    def __init__(
        self,
        topology: NodeTopology,
        flows: ResourceFlows,
        request: Request,
        others: Mapping[str, Decision],
        nodes: NodeSet,
        group: Mapping[str, Decision],
    ) -> None:
        self.topology, self.flows, self.request = topology, flows, request
        self.others, self.nodes, self.group = others, nodes, group
        self.strict = flows.policy.topology in STRICT
        self._pool = CpuSet()

    def decide(self, current: Placement | None) -> Decision:
        """The decision."""
        claim, lacking = self._claim()
        cpus, own, few = self._cpus(CpuSet() if current is None else current.exclusive_cpus)
        away = (own & self.topology.machine.online_cpus) - self.topology.cpus_near(self.nodes)
        if few is None and away and not self.topology.machine.ordinary_nodes <= self.nodes:
            where = f"{cpus_text(away)} {verb_after(away, 'is')} not on {nodes_text(self.nodes)}"
            few = Reason("apart", f"{where}, where its pod is")
        if self.strict and current is not None and (lacking is not None or few is not None):
            why = [one for one in (few, lacking and Reason("shortage", lacking.sentence())) if one]
            unchanged = Reason("unchanged", "it keeps what it has")
            return Decision(self.request, Outcome.REFUSED, reasons=(*why, unchanged), shortage=lacking)
        first = next(iter(self.group.values())).placement
        mems = first.mems
        if mems is not None:
            mems |= device_nodes(self.topology.machine, self.request)
        placement = Placement(mems, own, affinity=whole_affinity(self.nodes, cpus), claim=claim)
        where = _place_text(self.nodes, cpus)
        part = " and has a part of its own there" if has_part(self.request) else ""
        if part and own == self._pool and any(takes_from_pod(one.request) for one in self.group.values()):
            part += ", which leaves no CPU to its pod's others: they run on the shared ones"
        reasons = [Reason("pod-as-a-whole", f"shares what its pod was promised as a whole on {where}{part}")]
        if lacking is not None:
            text = f"{lacking.sentence()}; placed without a promise for all of it"
            reasons.append(Reason(OVERCOMMITTED, text))
        reasons += [few] if few is not None else []
        outcome = Outcome.PLACED if len(reasons) == 1 else Outcome.DEGRADED
        return Decision(self.request, outcome, placement, tuple(reasons), shortage=lacking)

    def _claim(self) -> tuple[Claim, Shortage | None]:
        """What the pod is promised with this container beyond what it was, and what lacks of it."""
        totals = self.request.pod_totals
        assert totals is not None
        had = sum_of(one.placement.promise.amounts_bytes for one in self.others.values())
        more = without(totals.amounts_bytes, had)
        claim = Claim(self.nodes, more)
        cut = self.flows.cut(parts_of(claim)) if more else None
        if cut is None:
            return claim, None
        lacking = shortage(self.flows, cut)
        return replace(claim, amounts_bytes=self.flows.room(self.nodes.mask, more)), lacking

    def _cpus(self, had: CpuSet) -> tuple[CpuSet, CpuSet, Reason | None]:
        """The CPUs that the pod has as a whole, those that the container runs on, of which it *had* some, and
        the reason if these are too few."""
        request, topology = self.request, self.topology
        totals = request.pod_totals
        assert totals is not None
        cpus = union(held_cpus(one.placement) for one in self.group.values())
        parts = cpus_of_parts(self.group)
        apart = sum(
            one.request.exclusive_cpus
            for key, one in self.others.items()
            if key not in self.group and has_part(one.request)
        )
        wanted = max(0, whole_cpus(totals) - apart)
        if not whole_cpus(totals):
            wanted = len(parts) + request.exclusive_cpus
        policy, few = self.flows.policy, None
        if wanted > len(cpus):
            basis, more = self.flows.basis, wanted - len(cpus)
            free = basis.exclusive_candidates() - cpus
            few = kept_shared(min(more, len(free)), basis)
            most = max(0, basis.exclusive_room())
            cpus |= best_cpus(topology, policy, free, min(more, most), self.nodes)
        elif wanted < len(cpus):
            spare = max(0, wanted - len(parts))
            cpus = parts | best_cpus(topology, policy, cpus - parts, spare, self.nodes)
        if len(cpus) < wanted and few is None:
            text = (
                f"its pod asks for {counted(wanted, 'CPU')} to itself and has {len(cpus)}; no others are free"
            )
            few = Reason("no-exclusive-cpus", text)
        pool = self._pool = cpus - parts
        if shares_cpus(request):
            return cpus, pool, few
        kept = had & pool
        own = kept if len(kept) <= request.exclusive_cpus else CpuSet()
        own |= best_cpus(topology, policy, pool - own, request.exclusive_cpus - len(own), self.nodes)
        if len(own) < request.exclusive_cpus:
            text = f"its pod has {counted(len(own), 'CPU')} left for the {request.exclusive_cpus} of its own"
            return cpus, CpuSet(), few or Reason("no-exclusive-cpus", text)
        return cpus, own, few
