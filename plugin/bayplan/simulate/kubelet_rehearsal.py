"""Decisions of the engine `kubelet` about pods, on a ledger of their own.

kubelet knows the pod and admits it as a whole (`bayplan.engines.kubelet.creation`); a simulation is to
refuse what kubelet refuses, so its pods are admitted so. All else is `bayplan.simulate.rehearsal`.
"""

from msgspec.structs import replace

from bayplan.engines.interface import Engine
from bayplan.engines.kubelet.creation import PodAdmission
from bayplan.engines.kubelet.engine import KubeletEngine
from bayplan.model.basis import Basis, SeenRequests
from bayplan.model.decision import Decision, Outcome, Placement, QosClass, Request
from bayplan.model.ledger import Entry
from bayplan.model.machine import Machine
from bayplan.model.policy import PlacementPolicy
from bayplan.placement.decide import read_annotations
from bayplan.simulate.manifest import PlannedPod
from bayplan.simulate.rehearsal import Rehearsal, known_of


def rehearsal_of_pods(machine: Machine, policy: PlacementPolicy, engine: Engine) -> Rehearsal:
    """The rehearsal in which *engine* is asked as whoever has it is: kubelet by whole pods."""
    if isinstance(engine, KubeletEngine):
        return KubeletRehearsal(machine, policy, engine)
    return Rehearsal(machine, policy, engine, requests=SeenRequests())


class KubeletRehearsal(Rehearsal):
    """Pods are admitted as a whole; its engine is a `KubeletEngine`."""

    def admit(self, planned: PlannedPod) -> list[Decision]:
        """See `Rehearsal.admit`. A refused pod has one decision: that about the container which kubelet
        refuses it for. A pod with annotations about its place is none of kubelet's: it is asked for container
        by container."""
        engine = self.engine
        if not isinstance(engine, KubeletEngine) or self._has_wishes(planned):
            return super().admit(planned)
        pod = replace(planned.spec, uid=planned.pod.id)
        admission = engine.admission(self.basis, pod)
        self.engine = _Answering(engine, admission)
        try:
            if admission.refused:
                refused = [one for one in planned.containers if one.container.name == admission.refused]
                known = known_of(planned.spec)
                return [self.create(planned.pod, one.container, known) for one in refused]
            decisions = super().admit(planned)
        finally:
            self.engine = engine
        if decisions[-1].outcome is Outcome.REFUSED:
            return decisions  # not by kubelet's managers, but for its annotations
        for one, decision in zip(planned.containers, decisions, strict=True):
            if one.ends and (kept := admission.kept(decision)) is not None:
                self.ledger = self.ledger.with_entry(Entry(kept))
                self.containers[one.container.id] = one.container
        return decisions

    def _has_wishes(self, planned: PlannedPod) -> bool:
        """Whether an annotation has it left alone, or hints at nodes of devices."""
        wishes = [
            read_annotations(self.basis, planned.pod, one.container).wishes for one in planned.containers
        ]
        return any(one.opted_out or one.added_hints or one.replaced_hints for one in wishes)


class _Answering(KubeletEngine):
    """The engine while the containers of one pod are created: what the managers said of the pod is the answer
    about each of them."""

    def __init__(self, engine: KubeletEngine, admission: PodAdmission) -> None:
        super().__init__(engine.managers)
        self._admission = admission

    def decide(
        self,
        basis: Basis,
        request: Request,
        current: Placement | None = None,
    ) -> Decision:
        """See `Engine.decide`."""
        ledger = basis.ledger
        if self._admission.refused:
            return self._admission.refusal(ledger, request)
        if request.qos is QosClass.GUARANTEED and not request.pod_level:
            return self._admission.decision(ledger, request)
        return super().decide(basis, request, current)
