"""A pod as kubelet admits it: as a whole, all of its containers in their order, before the first one starts.

For those who know the pod and not only its next container: the simulator. Init containers, sidecars and the
pod's containers are asked for at one moment, and what an init container was given is to be used again by
those after it: CPUs always, memory if it is on the same nodes. kubelet refuses what cannot
(kubernetes#110306), and keeps what was not used again with the pod until that is gone (kubernetes#123816).
"""

from msgspec import Struct
from msgspec.structs import replace

from bayplan.engines.kubelet.booking import book, memory_need
from bayplan.engines.kubelet.creation import CreationDecision
from bayplan.engines.kubelet.managers import ManagersState, PreparedManagers
from bayplan.engines.kubelet.topology_manager import Admission
from bayplan.kubelet.pod import PodSpec
from bayplan.model.basis import Basis
from bayplan.model.decision import Decision, Outcome, Placement, Reason, Request
from bayplan.model.ledger import Ledger
from bayplan.model.machine import union
from bayplan.sets import CpuSet, NodeSet, cpus_text

KEPT_WITH_POD = "kept-with-pod"
REUSE = "init-cpus"
"""Codes of the reasons."""


class PodAdmission(Struct, frozen=True):
    """kubelet's answer about *pod*, which the managers in *before* knew nothing of."""

    prepared: PreparedManagers
    before: ManagersState
    pod: PodSpec
    admission: Admission[ManagersState]

    @classmethod
    def of(cls, prepared: PreparedManagers, before: ManagersState, pod: PodSpec) -> "PodAdmission":
        """Ask the managers."""
        return cls(prepared, before, pod, prepared.kubelet.admit(before, pod))

    @property
    def refused(self) -> str:
        """The name of the container for which the pod was refused, the first one if it was for all of them;
        empty if it is admitted."""
        if self.admission.admitted:
            return ""
        at = self.admission.refused
        return self.pod.all_containers[0].name if at is None else at.name

    def cpus(self, container: str) -> CpuSet:
        """The CPUs that *container* was given for itself."""
        return self.admission.state.cpus.of(self.pod.uid, container) or CpuSet()

    def refusal(self, ledger: Ledger, request: Request) -> Decision:
        """The refusal, as that of *request*."""
        decision = CreationDecision(self.prepared, ledger, self.before, request).refused(
            self.pod, self.admission
        )
        left = self.admission.state.cpus.reusable.get(self.pod.uid, CpuSet())
        if not left:
            return decision
        text = f"kubelet has {cpus_text(left)} of its init containers used again, wherever others are free"
        return replace(decision, reasons=(*decision.reasons, Reason(REUSE, text)))

    def decision(self, ledger: Ledger, request: Request) -> Decision:
        """What *request*, that of a Guaranteed container of the admitted pod, was given; *ledger* has what
        runs beside it."""
        name = request.name.rpartition("/")[2]
        hint = self.admission.hint(name)
        memory = self.admission.state.memory
        blocks = memory.state.blocks(self.pod.uid, name) or ()
        nodes = NodeSet(node for block in blocks for node in block.nodes)
        free = Basis(self.prepared.machine, self.prepared.policy, ledger).free_bytes
        creation = CreationDecision(self.prepared, ledger, self.before, request)
        placed = Placement(
            memory.mems(self.pod.uid, name),
            self.cpus(name),
            book(free, nodes, memory_need(request)),
            creation.affinity_of(hint),
        )
        return creation.admitted(hint, placed)

    def kept(self, ended: Decision) -> Decision | None:
        """What stays with the pod of the init container of *ended*, which is over: CPUs that no other one of
        its containers was given. None if that is nothing."""
        others = union(
            self.cpus(container.name)
            for container in self.pod.all_containers
            if not self.pod.is_regular_init(container.name)
        )
        left = ended.placement.exclusive_cpus - others
        if not left:
            return None
        text = f"over; kubelet keeps {cpus_text(left)} with its pod, for nobody"
        placement = Placement(exclusive_cpus=left)
        return Decision(ended.request, Outcome.PLACED, placement, (Reason(KEPT_WITH_POD, text),))
