"""The engine `kubelet`: what kubelet's managers would answer, one container at a time.

A runtime asks about containers, kubelet admits pods: each request becomes a pod of one container (under the
scope pod: of that container and the rest of its pod). The managers' state is made from the ledger each time.
Only Guaranteed containers without foreign cpusets take part; for the others the decision is trivial.
"""

from collections.abc import Collection, Mapping
from typing import Final

from msgspec.structs import replace

from bayplan.engines.exact.witness import settled_by_node
from bayplan.engines.interface import KUBELET, pinned_text, unmet_wish
from bayplan.engines.kubelet.booking import book, memory_need
from bayplan.engines.kubelet.creation import Creation
from bayplan.engines.kubelet.ledger_state import managers_state
from bayplan.engines.kubelet.managers import NO_MEMORY_MANAGER, ManagersState, PreparedManagers
from bayplan.engines.kubelet.pod_admission import PodAdmission
from bayplan.engines.kubelet.resize import Resize
from bayplan.engines.kubelet.trivial_decision import trivial_decision
from bayplan.kubelet.manager_options import ManagerOptions
from bayplan.kubelet.pod import PodSpec
from bayplan.model.basis import Basis
from bayplan.model.decision import (
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
from bayplan.model.machine import Machine
from bayplan.model.policy import PlacementPolicy, TopologyPolicy
from bayplan.sets import CpuSet, NodeSet

_POD_LEVEL: Final = Reason(
    "pod-level",
    "the pod has resources as a whole; kubelet's managers leave such pods alone, it shares the CPUs",
)


class KubeletEngine:
    """See the module. It remembers the managers that were prepared for the last machine and policy, nothing
    else."""

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
        machine, policy, ledger = basis.machine, basis.policy, basis.ledger
        answer = trivial_decision(basis, request, current)
        if answer is not None and (current is not None or not _aligns_devices(policy, request)):
            return answer
        if request.pod_level:
            return answer or Decision(request, Outcome.PLACED, reasons=(_POD_LEVEL,))
        prepared = self._managers_on(machine, policy)
        if answer is not None:
            return Creation(prepared, ledger, ManagersState(), request).refusal() or answer
        for_pod = request.pod_id if current is None else None
        state = managers_state(
            self.managers.memory, prepared.empty, prepared.kubelet.cpus, ledger, for_pod, blocks=False
        )
        if current is not None:
            return Resize(prepared, state, request, current).decide()
        if not memory_need(request):
            # A Guaranteed container without a visible limit: kubelet's Memory Manager knows no such thing.
            state = replace(state, memory=NO_MEMORY_MANAGER)
        return Creation(prepared, ledger, state, request).decide()

    def admission(self, basis: Basis, pod: PodSpec) -> PodAdmission:
        """What kubelet answers about *pod*, a new one, as a whole. Its uid is the id that requests have."""
        machine, policy, ledger = basis.machine, basis.policy, basis.ledger
        prepared = self._managers_on(machine, policy)
        state = managers_state(
            self.managers.memory, prepared.empty, prepared.kubelet.cpus, ledger, blocks=False
        )
        return PodAdmission.of(prepared, state, pod)

    def _managers_on(self, machine: Machine, policy: PlacementPolicy) -> PreparedManagers:
        prepared = self._prepared
        if prepared is None or prepared.machine is not machine or prepared.policy is not policy:
            prepared = self._prepared = PreparedManagers.of(machine, policy, self.managers)
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
        """See `Engine.converted`."""
        ledger = basis.ledger
        return settled_by_node(basis) if ledger.claimed_bytes else ledger


def _aligns_devices(policy: PlacementPolicy, request: Request) -> bool:
    """Whether kubelet would align the devices of a container for which nothing else is aligned."""
    left_alone = request.opted_out or request.pinned_cpus is not None or request.pinned_mems is not None
    return bool(request.hints) and not left_alone and policy.topology is not TopologyPolicy.NONE
