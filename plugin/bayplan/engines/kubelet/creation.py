"""One decision about one new Guaranteed container without foreign cpusets.

The request becomes a pod of one container, or, under the scope pod, of that container and the rest of its
pod; the managers admit that pod, and what they gave to the container is its placement.
"""

from collections.abc import Mapping

from msgspec.structs import replace

from bayplan.engines.kubelet.attached_devices import AttachedDevices
from bayplan.engines.kubelet.booking import memory_need
from bayplan.engines.kubelet.kept_for_pods import REST_OF_POD, kept_for_pods
from bayplan.engines.kubelet.ledger_state import placement_of
from bayplan.engines.kubelet.managers import ManagersState, PreparedManagers
from bayplan.engines.kubelet.topology.hints import Hint
from bayplan.engines.kubelet.topology.manager import UNEXPECTED_ERROR, Admission
from bayplan.engines.kubelet.topology.refusals import reasons
from bayplan.errors import BayplanError
from bayplan.kubelet.manager_options import MemoryManagerPolicy
from bayplan.kubelet.pod import CPU, ContainerSpec, PodSpec
from bayplan.model.decision import (
    Affinity,
    Decision,
    Outcome,
    Placement,
    QosClass,
    Reason,
    Request,
)
from bayplan.model.ledger import Entry, Ledger
from bayplan.model.machine import MEMORY, union
from bayplan.model.policy import TopologyPolicy, TopologyScope
from bayplan.sets import CpuSet, nodes_text


class Creation:
    """One decision about one new container."""

    def __init__(
        self, prepared: PreparedManagers, ledger: Ledger, state: ManagersState, request: Request
    ) -> None:
        self.prepared, self.ledger, self.state, self.request = prepared, ledger, state, request
        self.options = prepared.options
        self.affinity: Affinity | None = None
        pod_name, _, name = request.name.rpartition("/")
        guaranteed = request.qos is QosClass.GUARANTEED
        self.container = (
            _container(name, request.cpu_milli, memory_need(request)) if guaranteed else ContainerSpec(name)
        )
        self.pod = PodSpec(request.pod_id, (self.container,), qos=request.qos, name=pod_name)
        attached = AttachedDevices(name, request.hints, prepared.machine.node_ids) if request.hints else None
        self.kubelet = replace(prepared.kubelet, attached=attached)

    def refusal(self) -> Decision | None:
        """The refusal of a container that asks for no resources of its own, only has devices that are too far
        apart for the policy; None if it is admitted. kubelet aligns devices in all classes."""
        admission = self.kubelet.admit(self.state, self.pod)
        return None if admission.admitted else self.refused(self.pod, admission)

    def decide(self) -> Decision:
        """The decision: where the container goes, or kubelet's refusal."""
        kubelet = self.kubelet
        if self._by_pod():
            pod, admission = self._admit_in_pod()
        else:
            pod, admission = self.pod, kubelet.admit(self.state, self.pod)
        if not admission.admitted:
            return self.refused(pod, admission)
        hint = admission.hint(self.container.name)
        affinity = self.affinity_of(hint)
        placed = placement_of(self.state, admission.state, self.pod.uid, self.container.name, affinity)
        return self.admitted(hint, placed)

    def affinity_of(self, hint: Hint) -> Affinity | None:
        """What the record keeps of *hint*, by which the container is placed."""
        if self.affinity is None and (
            self._by_pod() or self.options.memory is MemoryManagerPolicy.BEST_EFFORT
        ):
            return Affinity(hint.nodes, hint.preferred)
        return self.affinity

    def admitted(self, hint: Hint, placed: Placement) -> Decision:
        """The decision that the managers put the container at *placed*, by *hint*."""
        return Decision(self.request, self._outcome(hint, placed), placed, tuple(self._why(hint, placed)))

    def refused(self, pod: PodSpec, admission: Admission[ManagersState]) -> Decision:
        """The refusal of *pod* in kubelet's words."""
        why = reasons(self.kubelet, pod, replace(admission, state=self.state))
        plain = tuple(_without_kind(reason, admission.reason) for reason in why)
        return Decision(self.request, Outcome.REFUSED, reasons=plain, refused_as=admission.reason)

    def _by_pod(self) -> bool:
        return (
            self.options.scope is TopologyScope.POD
            and self.prepared.policy.topology is not TopologyPolicy.NONE
        )

    def _admit_in_pod(self) -> tuple[PodSpec, Admission[ManagersState]]:
        """Align the pod's first container together with the rest of the pod, later ones as the first."""
        self.affinity = affinity = self._affinity_of_pod()
        if affinity is not None:
            return self.pod, self._allocated(Hint(affinity.nodes, affinity.preferred))
        whole = replace(self.pod, containers=(self.container, *self._rest()))
        admission = self.kubelet.admit(self.state, whole)
        if not admission.admitted or self.request.pod_totals is None:
            return whole, admission
        hint, after, pod_id = admission.hint(self.container.name), admission.state, self.pod.uid
        cpus = union(after.cpus.of(pod_id, each.name) or CpuSet() for each in whole.containers)
        mems = after.memory.mems(pod_id, whole.containers[-1].name)
        self.affinity = Affinity(hint.nodes, hint.preferred, whole=True, mems=mems, cpus=cpus)
        return whole, admission if len(whole.containers) == 1 else self._allocated(hint)

    def _affinity_of_pod(self) -> Affinity | None:
        pod_id = self.request.pod_id
        last = self.ledger.retained.get(pod_id)
        if last is not None:
            return last.decision.placement.affinity
        for entry in self.ledger.entries.values():
            found = entry.decision.placement.affinity
            if found is not None and entry.decision.request.pod_id == pod_id:
                return found
        return None

    def _rest(self) -> tuple[ContainerSpec, ...]:
        """What the pod asks for beside this container, as one more container; nothing if that is unknown."""
        totals = self.request.pod_totals
        if totals is None:
            return ()
        own = memory_need(self.request)
        left = {name: amount - own.get(name, 0) for name, amount in totals.amounts_bytes.items()}
        if left[MEMORY] <= 0:
            return ()
        need = {name: amount for name, amount in left.items() if amount > 0}
        return (_container(REST_OF_POD, max(0, totals.cpu_milli - self.request.cpu_milli), need),)

    def _allocated(self, hint: Hint) -> Admission[ManagersState]:
        """This container with its resources by a hint that is settled."""
        admission = Admission(self.state, admitted=True, hints={self.container.name: hint})
        for provider in self.kubelet.providers():
            try:
                state = provider.allocate(admission.state, self.pod, self.container, hint)
            except BayplanError as error:
                kind, text = getattr(error, "reason", UNEXPECTED_ERROR), str(error)
                if kind == UNEXPECTED_ERROR:
                    text = f"Allocate failed due to {text}, which is unexpected"
                return replace(
                    admission,
                    admitted=False,
                    reason=kind,
                    message=text,
                    error=error,
                    refused=self.container,
                )
            admission = replace(admission, state=state)
        return admission

    def _kept(self, placed: Placement) -> list[Reason]:
        pod_id = self.request.pod_id
        pod = [one for one in self.ledger.entries.values() if one.decision.request.pod_id == pod_id]
        pod.append(Entry(Decision(self.request, Outcome.PLACED, placed)))
        return [
            Reason("kept-for-pod", f"kept for the rest of its pod: {rest}")
            for rest in kept_for_pods(pod)
            if rest
        ]

    def _outcome(self, hint: Hint, placed: Placement) -> Outcome:
        not_preferred = self.prepared.policy.topology is TopologyPolicy.BEST_EFFORT and not hint.preferred
        return Outcome.DEGRADED if not_preferred or self._without_memory(placed) else Outcome.PLACED

    def _without_memory(self, placed: Placement) -> bool:
        """Whether the container runs without a memory assignment, which only BestEffort allows."""
        manages = self.options.memory is not MemoryManagerPolicy.NONE
        return manages and not placed.booked_bytes and bool(memory_need(self.request))

    def _why(self, hint: Hint, placed: Placement) -> list[Reason]:
        policy, scope = self.prepared.policy.topology, self.options.scope.value
        if policy is TopologyPolicy.NONE:
            why = [Reason("not-aligned", "the Topology Manager's policy is none")]
        else:
            where = "any node will do" if hint.nodes is None else f"aligned on {nodes_text(hint.nodes)}"
            rank = "preferred" if hint.preferred else "not preferred"
            why = [Reason("kubelet-admits", f"{where} ({rank}; policy {policy.value}, scope {scope})")]
        if placed.mems is not None and placed.mems != hint.nodes:
            why.append(Reason("memory-nodes", f"its memory is on {nodes_text(placed.mems)}"))
        if placed.is_with_whole_pod:
            why += self._kept(placed)
        if self._without_memory(placed):
            why.append(Reason("no-memory-entry", "no room for its memory; BestEffort lets it run anywhere"))
        return why


def _container(name: str, cpu_milli: int, need: Mapping[str, int]) -> ContainerSpec:
    """A container of a Guaranteed pod: it requests what it is limited to."""
    amounts = {CPU: cpu_milli, **need}
    return ContainerSpec(name, amounts, amounts)


def _without_kind(reason: Reason, kind: str) -> Reason:
    """The reason without the word that stands before the whole refusal."""
    return replace(reason, text=reason.text.removeprefix(f"{kind}: "))
