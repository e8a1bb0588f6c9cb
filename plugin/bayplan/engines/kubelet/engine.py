"""The `kubelet` engine: what kubelet's managers would answer, one container at a time.

A runtime asks about containers, kubelet admits pods: each request becomes a pod of one container (under the
scope pod: of that container and the rest of its pod). The managers' books are made from the ledger each time.
Only Guaranteed containers that nobody pinned take part. How the managers decide is in `domain.kubelet`.
"""

from collections.abc import Collection, Mapping
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from bayplan.engines.exact.witness import settled_by_node
from bayplan.engines.interface import free_bytes, reserved_cpus
from bayplan.engines.kubelet.booking import book, covers
from bayplan.engines.kubelet.claims import memory_need, undisputed
from bayplan.engines.kubelet.cpu.manager import StaticCpuPolicy
from bayplan.engines.kubelet.cpu.options import CpuOptions
from bayplan.engines.kubelet.cpu.topology import CpuTopology
from bayplan.engines.kubelet.devices.attached import AttachedDevices
from bayplan.engines.kubelet.kept_for_pods import REST, rests
from bayplan.engines.kubelet.ledger_state import books, placement
from bayplan.engines.kubelet.managers import NO_MEMORY_MANAGER, KubeletManagers, ManagersState
from bayplan.engines.kubelet.memory.manager import MemoryManagerPolicy
from bayplan.engines.kubelet.memory.state import Nodes, empty_nodes
from bayplan.engines.kubelet.pod import CPU, ContainerSpec, PodSpec
from bayplan.engines.kubelet.topology.hints import Hint
from bayplan.engines.kubelet.topology.manager import UNEXPECTED_ERROR, Admission, TopologyManager
from bayplan.engines.kubelet.topology.options import Scope, TopologyOptions
from bayplan.engines.kubelet.topology.refusals import REFUSED, reasons
from bayplan.errors import BayplanError
from bayplan.model.decision import (
    Affinity,
    Claim,
    Decision,
    Move,
    Outcome,
    Placement,
    QosClass,
    Reason,
    Request,
)
from bayplan.model.ledger import Entry, Ledger
from bayplan.model.machine import MEMORY, Machine
from bayplan.model.policy import PlacementPolicy, TopologyPolicy
from bayplan.sets import CpuSet, NodeSet

INFEASIBLE: Final = "Infeasible"
"""kubelet's word for a resize that it never tries."""

_NO_RESIZE: Final = "Resize is infeasible for Guaranteed Pods alongside"
_POD_LEVEL: Final = Reason(
    "pod-level",
    "the pod has resources as a whole; kubelet's managers leave such pods alone, it shares the CPUs",
)


class ManagerOptions(Struct, frozen=True):
    """kubelet's managers as configured. ``static_cpus`` False is the CPU Manager's policy none."""

    memory: MemoryManagerPolicy = MemoryManagerPolicy.STATIC
    static_cpus: bool = True
    cpu_options: CpuOptions = field(default=CpuOptions())
    scope: Scope = Scope.CONTAINER
    topology_options: TopologyOptions = field(default=TopologyOptions())


class _PreparedManagers(Struct, frozen=True):
    """The managers on one machine under one policy, and its nodes without any promise."""

    machine: Machine
    policy: PlacementPolicy
    engine: KubeletManagers
    empty: Nodes

    @classmethod
    def of(cls, machine: Machine, policy: PlacementPolicy, managers: ManagerOptions) -> "_PreparedManagers":
        topology = TopologyManager.of(machine, policy.topology, managers.scope, managers.topology_options)
        cpus = None
        if managers.static_cpus:
            kept = reserved_cpus(machine, policy)
            cpus = StaticCpuPolicy(CpuTopology.of_machine(machine), managers.cpu_options, kept)
        return cls(
            machine, policy, KubeletManagers(topology, cpus), empty_nodes(machine, policy.reserved_bytes)
        )


class KubeletEngine:
    """See the module. It remembers what it worked out of the last machine and policy, nothing else."""

    name: str = "kubelet"

    def __init__(self, managers: ManagerOptions | None = None) -> None:
        self.managers = managers or ManagerOptions()
        self._site: _PreparedManagers | None = None

    def another(self) -> "KubeletEngine":
        """See `Engine.another`."""
        return KubeletEngine(self.managers)

    def decide(
        self,
        machine: Machine,
        policy: PlacementPolicy,
        ledger: Ledger,
        request: Request,
        current: Placement | None = None,
    ) -> Decision:
        """See `Engine.decide`. The policy must be one that `bayplan.config.reservations` found good."""
        answer = undisputed(machine, policy, ledger, request, current)
        if answer is not None and (current is not None or not _aligns_devices(policy, request)):
            return answer
        if request.pod_level:
            return answer or Decision(request, Outcome.PLACED, reasons=(_POD_LEVEL,))
        site = self._site
        if site is None or site.machine is not machine or site.policy is not policy:
            site = self._site = _PreparedManagers.of(machine, policy, self.managers)
        if answer is not None:
            return _Choice(self.managers, site, ledger, ManagersState(), request).refusal() or answer
        for_pod = request.pod_id if current is None else None
        state = books(self.managers.memory, site.empty, site.engine.cpus, ledger, for_pod, blocks=False)
        if current is not None:
            return _Resize(self.managers, site, state, request, current).decide()
        if not memory_need(request):
            # A Guaranteed container without a visible limit: kubelet's Memory Manager knows no such thing.
            state = replace(state, memory=NO_MEMORY_MANAGER)
        return _Choice(self.managers, site, ledger, state, request).decide()

    def adopt(
        self,
        machine: Machine,
        policy: PlacementPolicy,
        ledger: Ledger,
        request: Request,
        mems: NodeSet | None,
    ) -> Placement:
        """See `Engine.adopt`: booked where its spec lets it go, as far as there is room."""
        need = memory_need(request) if request.qos is QosClass.GUARANTEED else {}
        return Placement(
            booked_bytes=book(free_bytes(machine, policy, ledger), mems or machine.memory_nodes, need)
        )

    def returns(
        self,
        machine: Machine,  # noqa: ARG002 - the engines have one shape
        policy: PlacementPolicy,  # noqa: ARG002 - the signature is the interface's
        ledger: Ledger,  # noqa: ARG002 - the signature is the interface's
        staying: Collection[str] = (),  # noqa: ARG002 - the signature is the interface's
    ) -> tuple[Move, ...]:
        """See `Engine.returns`: kubelet moves nobody."""
        return ()

    def opened(
        self,
        machine: Machine,  # noqa: ARG002 - the engines have one shape
        policy: PlacementPolicy,  # noqa: ARG002 - the signature is the interface's
        ledger: Ledger,  # noqa: ARG002 - the signature is the interface's
    ) -> Mapping[str, Placement]:
        """See `Engine.opened`: those that kubelet does not confine have nothing on any node."""
        return {}

    def topped_up(
        self,
        machine: Machine,  # noqa: ARG002 - the engines have one shape
        policy: PlacementPolicy,  # noqa: ARG002 - the signature is the interface's
        ledger: Ledger,  # noqa: ARG002 - the signature is the interface's
    ) -> Mapping[str, Claim]:
        """See `Engine.topped_up`: kubelet promises all or nothing."""
        return {}

    def restored(self, machine: Machine, policy: PlacementPolicy, ledger: Ledger) -> Ledger:
        """See `Engine.restored`."""
        return settled_by_node(machine, policy, ledger) if ledger.claimed_bytes else ledger


class _Choice:
    """One decision about one new container."""

    def __init__(
        self,
        managers: ManagerOptions,
        site: _PreparedManagers,
        ledger: Ledger,
        state: ManagersState,
        request: Request,
    ) -> None:
        self.managers, self.site, self.ledger, self.state = managers, site, ledger, state
        self.request = request
        self.affinity: Affinity | None = None
        pod_name, _, name = request.name.rpartition("/")
        guaranteed = request.qos is QosClass.GUARANTEED
        self.container = (
            _container(name, request.cpu_milli, memory_need(request)) if guaranteed else ContainerSpec(name)
        )
        self.pod = PodSpec(request.pod_id, (self.container,), qos=request.qos, name=pod_name)
        attached = AttachedDevices(name, request.hints, site.machine.node_ids) if request.hints else None
        self.engine = replace(site.engine, attached=attached)

    def refusal(self) -> Decision | None:
        """The refusal of a container that asks for no resources of its own, only has devices that are too far
        apart for the policy; None if it is admitted. kubelet aligns devices in all classes."""
        admission = self.engine.admit(self.state, self.pod)
        return None if admission.admitted else self._refused(self.pod, admission)

    def decide(self) -> Decision:
        engine = self.engine
        if self._pod_by_pod():
            pod, admission = self._admit_in_pod()
        else:
            pod, admission = self.pod, engine.admit(self.state, self.pod)
        if not admission.admitted:
            return self._refused(pod, admission)
        hint = admission.hint(self.container.name)
        affinity = self.affinity
        if affinity is None and (
            self._pod_by_pod() or self.managers.memory is MemoryManagerPolicy.BEST_EFFORT
        ):
            affinity = Affinity(hint.nodes, hint.preferred)
        placed = placement(self.state, admission.state, self.pod.uid, self.container.name, affinity)
        return Decision(self.request, self._outcome(hint, placed), placed, tuple(self._why(hint, placed)))

    def _refused(self, pod: PodSpec, admission: Admission[ManagersState]) -> Decision:
        why = reasons(self.engine, pod, replace(admission, state=self.state))
        plain = tuple(_without_kind(reason, admission.reason) for reason in why)
        return Decision(self.request, Outcome.REFUSED, reasons=plain, refused_as=admission.reason)

    def _pod_by_pod(self) -> bool:
        return self.managers.scope is Scope.POD and self.site.policy.topology is not TopologyPolicy.NONE

    def _admit_in_pod(self) -> tuple[PodSpec, Admission[ManagersState]]:
        """Align the pod's first container together with the rest of the pod, later ones as the first."""
        self.affinity = affinity = self._affinity_of_pod()
        if affinity is not None:
            return self.pod, self._allocated(Hint(affinity.nodes, affinity.preferred))
        whole = replace(self.pod, containers=(self.container, *self._rest()))
        admission = self.engine.admit(self.state, whole)
        if not admission.admitted or self.request.pod_totals is None:
            return whole, admission
        hint, after, pod_id = admission.hint(self.container.name), admission.state, self.pod.uid
        cpus = CpuSet()
        for each in whole.containers:
            cpus |= after.cpus.of(pod_id, each.name) or CpuSet()
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
        asked = {MEMORY: totals.memory_bytes, **totals.hugepages_bytes}
        left = {name: amount - own.get(name, 0) for name, amount in asked.items()}
        if left[MEMORY] <= 0:
            return ()
        need = {name: amount for name, amount in left.items() if amount > 0}
        return (_container(REST, max(0, totals.cpu_milli - self.request.cpu_milli), need),)

    def _allocated(self, hint: Hint) -> Admission[ManagersState]:
        """This container with its resources by a hint that is settled."""
        admission = Admission(self.state, admitted=True, hints={self.container.name: hint})
        for provider in self.engine.providers():
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
            Reason("kept-for-pod", f"kept for the rest of its pod: {rest}") for rest in rests(pod) if rest
        ]

    def _outcome(self, hint: Hint, placed: Placement) -> Outcome:
        not_preferred = self.site.policy.topology is TopologyPolicy.BEST_EFFORT and not hint.preferred
        return Outcome.DEGRADED if not_preferred or self._without_memory(placed) else Outcome.PLACED

    def _without_memory(self, placed: Placement) -> bool:
        """Whether the container runs without an entry in the books, which only BestEffort allows."""
        manages = self.managers.memory is not MemoryManagerPolicy.NONE
        return manages and not placed.booked_bytes and bool(memory_need(self.request))

    def _why(self, hint: Hint, placed: Placement) -> list[Reason]:
        policy, scope = self.site.policy.topology, self.managers.scope.value
        if policy is TopologyPolicy.NONE:
            why = [Reason("not-aligned", "the Topology Manager's policy is none")]
        else:
            where = "any node will do" if hint.nodes is None else f"aligned on node {hint.nodes}"
            rank = "preferred" if hint.preferred else "not preferred"
            why = [Reason("kubelet-admits", f"{where} ({rank}; policy {policy.value}, scope {scope})")]
        if placed.mems is not None and placed.mems != hint.nodes:
            why.append(Reason("memory-nodes", f"its memory is on node {placed.mems}"))
        if placed.affinity is not None and placed.affinity.whole:
            why += self._kept(placed)
        if self._without_memory(placed):
            why.append(Reason("no-memory-entry", "no room for its memory; BestEffort lets it run anywhere"))
        return why


class _Resize:
    """One decision about a running container whose request changed.

    kubelet resizes no Guaranteed container under a static manager. Here the nodes and CPUs that the container
    has stay, and what still fits there is granted; everything else is kubelet's refusal.
    """

    def __init__(
        self,
        managers: ManagerOptions,
        site: _PreparedManagers,
        state: ManagersState,
        request: Request,
        current: Placement,
    ) -> None:
        self.managers, self.site, self.state = managers, site, state
        self.request, self.current = request, current

    def decide(self) -> Decision:
        request, current = self.request, self.current
        wanted, own = request.exclusive_cpus, len(current.exclusive_cpus)
        if self.managers.static_cpus and wanted != own:
            why = f"it has {own} CPUs of its own and would need {wanted}"
            return self._refused('CPU Manager policy "static"', why)
        if self.managers.memory is MemoryManagerPolicy.NONE:
            return self._granted(replace(current, booked_bytes={}), Outcome.PLACED)
        nodes = current.mems or NodeSet(current.booked_bytes) or self.site.machine.memory_nodes
        need = memory_need(request)
        free = {
            node: {name: memory.free_bytes(name) for name in need}
            for node, memory in self.state.memory.state.nodes.items()
        }
        fits = covers(free, nodes, need)
        if not fits and self.managers.memory is MemoryManagerPolicy.STATIC:
            return self._refused('Memory Manager policy "Static"', f"it does not fit on node {nodes}")
        booked = book(free, nodes, need)
        if current.mems is None and current.affinity is not None:
            booked = {node: booked.get(node, dict.fromkeys(need, 0)) for node in nodes}
        return self._granted(
            replace(current, booked_bytes=booked), Outcome.PLACED if fits else Outcome.DEGRADED
        )

    def _granted(self, placed: Placement, outcome: Outcome) -> Decision:
        where = "where it is" if placed.mems is None else f"on node {placed.mems}"
        # The pod's sums are others now, and we are not told which.
        request = replace(self.request, pod_totals=None)
        return Decision(request, outcome, placed, (Reason("resized", f"resized {where}"),))

    def _refused(self, whose: str, why: str) -> Decision:
        reason = Reason(REFUSED, f"{_NO_RESIZE} {whose} ({why})")
        return Decision(self.request, Outcome.REFUSED, reasons=(reason,), refused_as=INFEASIBLE)


def _aligns_devices(policy: PlacementPolicy, request: Request) -> bool:
    """Whether kubelet would align the devices of a container for which nothing else is aligned."""
    left_alone = request.opted_out or request.pinned_cpus is not None or request.pinned_mems is not None
    return bool(request.hints) and not left_alone and policy.topology is not TopologyPolicy.NONE


def _container(name: str, cpu_milli: int, need: Mapping[str, int]) -> ContainerSpec:
    """A container of a Guaranteed pod: it requests what it is limited to."""
    amounts = {CPU: cpu_milli, **need}
    return ContainerSpec(name, amounts, amounts)


def _without_kind(reason: Reason, kind: str) -> Reason:
    """The reason without the word that stands before the whole refusal."""
    return replace(reason, text=reason.text.removeprefix(f"{kind}: "))
