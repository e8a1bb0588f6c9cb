"""The engine `kubelet`: what kubelet's managers would answer, one container at a time.

A runtime asks about containers, kubelet admits pods: each request becomes a pod of one container (under
the scope pod: of that container and the rest of its pod). The managers' state is made from the ledger
each time. Only Guaranteed containers without foreign cpusets take part; for the others the decision is
trivial: CPUs and nodes that somebody else pinned stay as they are, and containers that are not Guaranteed
share the CPUs and may use every node. Nothing looks for room then.

kubelet resizes no Guaranteed container under a static manager. Here the nodes and CPUs that the container
has stay, and what still fits there is granted; everything else is kubelet's refusal.
"""

from collections.abc import Collection, Mapping
from typing import Final

from msgspec.structs import replace

from bayplan.engines.exact.witness import settled_by_node
from bayplan.engines.interface import KUBELET, OPTED_OUT, EngineKind, pinned_reason, pinned_text, unmet_wish
from bayplan.engines.kubelet.booking import book, covers, memory_need
from bayplan.engines.kubelet.creation import REFUSED, CreationDecision, PodAdmission
from bayplan.engines.kubelet.managers import (
    NO_MEMORY_MANAGER,
    ManagersState,
    PreparedManagers,
    managers_state,
)
from bayplan.kubelet.manager_options import ManagerOptions, MemoryManagerPolicy
from bayplan.kubelet.pod import PodSpec
from bayplan.model.basis import Basis
from bayplan.model.decision import (
    OVERCOMMITTED,
    Claim,
    Decision,
    Move,
    Outcome,
    Placement,
    QosClass,
    Reason,
    Request,
)
from bayplan.model.ledger import Ledger
from bayplan.model.policy import PlacementPolicy, TopologyPolicy
from bayplan.quantity import counted
from bayplan.sets import CpuSet, NodeSet, nodes_text


def trivial_decision(
    basis: Basis,
    request: Request,
    current: Placement | None = None,
) -> Decision | None:
    """The decision where nothing is left to decide; None for a Guaranteed request without pins.

    *current* is the placement of a running container: what of it was not pinned stays promised.
    """
    if request.opted_out and request.pinned_cpus is None and request.pinned_mems is None:
        return Decision(request, Outcome.PLACED, Placement(), (OPTED_OUT,))
    if request.pinned_cpus is not None or request.pinned_mems is not None:
        return _respect_pins(basis, request, current or Placement())
    if request.qos is not QosClass.GUARANTEED:
        text = f"{request.qos.value} containers share the CPUs and may use every node"
        reason = Reason("shared-pool", text)
        return Decision(request, Outcome.PLACED, Placement(), (reason,))
    return None


def _respect_pins(basis: Basis, request: Request, current: Placement) -> Decision:
    """The decision that keeps what somebody else set, and books what the container uses, so that it is
    promised to no other."""
    reason = pinned_reason(request)
    placement = current if request.pinned_mems is None else replace(current, mems=None)
    if request.pinned_cpus is not None:
        placement = replace(placement, exclusive_cpus=CpuSet())
    nodes = request.pinned_mems or placement.mems or NodeSet(placement.booked_bytes)
    if request.qos is QosClass.GUARANTEED:
        need = memory_need(request)
        placement = replace(placement, booked_bytes=book(basis.free_bytes, nodes, need))
    return Decision(request, Outcome.PLACED, placement, (reason,))


INFEASIBLE: Final = "Infeasible"
"""kubelet's word for a resize that it never tries."""

_NO_RESIZE: Final = "Resize is infeasible for Guaranteed Pods alongside"


class ResizeDecision:
    """One decision about a running container; see the module."""

    def __init__(
        self, prepared: PreparedManagers, state: ManagersState, request: Request, current: Placement
    ) -> None:
        self.prepared, self.state, self.request, self.current = prepared, state, request, current
        self.options = prepared.options

    def decide(self) -> Decision:
        """The decision: the container keeps its nodes and CPUs, or the resize is infeasible."""
        request, current = self.request, self.current
        wanted, own = request.exclusive_cpus, len(current.exclusive_cpus)
        if self.options.static_cpus and wanted != own:
            why = f"it has {counted(own, 'CPU')} of its own and would need {wanted}"
            return self._refused('CPU Manager policy "static"', why)
        if self.options.memory is MemoryManagerPolicy.NONE:
            return self._granted(replace(current, booked_bytes={}))
        nodes = current.mems or NodeSet(current.booked_bytes) or self.prepared.machine.memory_nodes
        need = memory_need(request)
        free = {
            node: {name: memory.free_bytes(name) for name in need}
            for node, memory in self.state.memory.state.nodes.items()
        }
        fits = covers(free, nodes, need)
        if not fits and self.options.memory is MemoryManagerPolicy.STATIC:
            return self._refused('Memory Manager policy "Static"', f"it does not fit on {nodes_text(nodes)}")
        booked = book(free, nodes, need)
        if current.mems is None and current.affinity is not None:
            booked = {node: booked.get(node, dict.fromkeys(need, 0)) for node in nodes}
        granted = self._granted(replace(current, booked_bytes=booked))
        if fits:
            return granted
        reason = Reason(OVERCOMMITTED, f"not all of it could be booked on {nodes_text(nodes)}")
        return replace(granted, outcome=Outcome.DEGRADED, reasons=(*granted.reasons, reason))

    def _granted(self, placed: Placement) -> Decision:
        where = "where it is" if placed.mems is None else f"on {nodes_text(placed.mems)}"
        # The pod's sums have changed, and no message says to what.
        request = replace(self.request, pod_totals=None)
        return Decision(request, Outcome.PLACED, placed, (Reason("resized", f"resized {where}"),))

    def _refused(self, whose: str, why: str) -> Decision:
        reason = Reason(REFUSED, f"{_NO_RESIZE} {whose} ({why})")
        return Decision(self.request, Outcome.REFUSED, reasons=(reason,), refused_as=INFEASIBLE)


_POD_LEVEL: Final = Reason(
    "pod-level",
    "the pod has resources as a whole; kubelet's managers leave such pods alone, it shares the CPUs",
)


class KubeletEngine:
    """See the module. It remembers the managers that were prepared for the last machine and policy, nothing
    else."""

    kind = EngineKind.of(KUBELET)
    name: str = KUBELET

    def __init__(self, managers: ManagerOptions | None = None) -> None:
        self.managers = managers or ManagerOptions()
        self._prepared: PreparedManagers | None = None

    def separate_copy(self) -> "KubeletEngine":
        """See `Engine.separate_copy`."""
        return KubeletEngine(self.managers)

    def decide(
        self,
        basis: Basis,
        request: Request,
        current: Placement | None = None,
    ) -> Decision:
        """See `Engine.decide`. The policy must be one that `bayplan.config.reservations` found good. kubelet
        knows no wishes: a place that one happens not to meet is degraded."""
        machine = basis.machine
        decision = self._as_kubelet(basis, request, current)
        if not request.wishes_nodes or decision.outcome is Outcome.REFUSED:
            return decision
        mems = decision.placement.mems if request.pinned_mems is None else request.pinned_mems
        pinned = request.pinned_mems is not None
        has = pinned_text(request) if pinned else "the engine kubelet grants no wishes"
        unmet = unmet_wish(machine, request, mems, has)
        if unmet is None:
            return decision
        return replace(decision, outcome=Outcome.DEGRADED, reasons=(*decision.reasons, unmet.reason))

    def _as_kubelet(
        self,
        basis: Basis,
        request: Request,
        current: Placement | None,
    ) -> Decision:
        """What kubelet's managers answer."""
        policy, ledger = basis.policy, basis.ledger
        answer = trivial_decision(basis, request, current)
        if answer is not None and (current is not None or not _aligns_devices(policy, request)):
            return answer
        if request.pod_level:
            return answer or Decision(request, Outcome.PLACED, reasons=(_POD_LEVEL,))
        prepared = self._managers_on(basis)
        if answer is not None:
            return CreationDecision(prepared, ledger, ManagersState(), request).refusal() or answer
        for_pod = request.pod_id if current is None else None
        state = managers_state(
            self.managers.memory, prepared.empty, prepared.kubelet.cpus, ledger, for_pod, blocks=False
        )
        if current is not None:
            return ResizeDecision(prepared, state, request, current).decide()
        if not memory_need(request):
            # A Guaranteed container without a visible limit: kubelet's Memory Manager knows no such thing.
            state = replace(state, memory=NO_MEMORY_MANAGER)
        return CreationDecision(prepared, ledger, state, request).decide()

    def admission(self, basis: Basis, pod: PodSpec) -> PodAdmission:
        """What kubelet answers about *pod*, a new one, as a whole. Its uid is the id that requests have."""
        prepared = self._managers_on(basis)
        state = managers_state(
            self.managers.memory, prepared.empty, prepared.kubelet.cpus, basis.ledger, blocks=False
        )
        return PodAdmission.of(prepared, state, pod)

    def _managers_on(self, basis: Basis) -> PreparedManagers:
        prepared = self._prepared
        if prepared is None or prepared.machine is not basis.machine or prepared.policy is not basis.policy:
            prepared = self._prepared = PreparedManagers.of(basis.allocatable, self.managers)
        return prepared

    def adopt(
        self,
        basis: Basis,
        request: Request,
        mems: NodeSet | None,
    ) -> Placement:
        """See `Engine.adopt`: booked where its spec lets it go, as far as there is room."""
        machine = basis.machine
        need = memory_need(request) if request.qos is QosClass.GUARANTEED else {}
        return Placement(booked_bytes=book(basis.free_bytes, mems or machine.memory_nodes, need))

    def moves_back(
        self,
        basis: Basis,  # noqa: ARG002 - the engines have one shape
        staying: Collection[str] = (),  # noqa: ARG002 - the engines have one shape
    ) -> tuple[Move, ...]:
        """See `Engine.moves_back`: kubelet moves no container."""
        return ()

    def widened_placements(
        self,
        basis: Basis,  # noqa: ARG002 - the engines have one shape
    ) -> Mapping[str, Placement]:
        """See `Engine.widened_placements`: those that kubelet does not confine have nothing on any node."""
        return {}

    def completed_claims(
        self,
        basis: Basis,  # noqa: ARG002 - the engines have one shape
    ) -> Mapping[str, Claim]:
        """See `Engine.completed_claims`: kubelet promises all or nothing."""
        return {}

    def resized_pools(
        self,
        basis: Basis,  # noqa: ARG002 - the signature is the interface's
    ) -> Mapping[str, CpuSet]:
        """See `Engine.resized_pools`: kubelet knows none, and those of before stay as they are."""
        return {}

    def converted(self, basis: Basis) -> Ledger:
        """See `Engine.converted`: no container has a claim, not even on nothing."""
        entries = basis.ledger.entries.values()
        claiming = any(isinstance(entry.decision.placement.promise, Claim) for entry in entries)
        return settled_by_node(basis) if claiming or basis.ledger.claimed_bytes else basis.ledger


def _aligns_devices(policy: PlacementPolicy, request: Request) -> bool:
    """Whether kubelet would align the devices of a container for which nothing else is aligned."""
    left_alone = request.opted_out or request.pinned_cpus is not None or request.pinned_mems is not None
    return bool(request.hints) and not left_alone and policy.topology is not TopologyPolicy.NONE
