"""One decision about one new Guaranteed container without foreign cpusets, and why a pod was refused; or
about a pod as a whole.

The request becomes a pod of one container, or, under the scope pod, of that container and the rest of its
pod; the managers admit that pod, and what they gave to the container is its placement.

kubelet's rules refuse pods for which there is room: memory that is bound to other groups of nodes,
preferred sizes that do not depend on what is free. This engine refuses them too. Beside kubelet's words
the reasons, for humans, name what each resource would have preferred, and the nodes on which everything
would have fitted.

kubelet itself admits a pod as a whole, all of its containers in their order, before the first one starts:
`PodAdmission`, for those who know the pod and not only its next container, as the simulator does. What an
init container was given is to be used again by those after it: CPUs always, memory if it is on the same
nodes. kubelet refuses what cannot (kubernetes#110306), and keeps what was not used again with the pod until
that is gone (kubernetes#123816).
"""

from collections.abc import Iterator, Mapping
from itertools import combinations
from math import comb
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from bayplan.engines.kubelet.booking import REST_OF_POD, book, kept_for_pods, memory_need
from bayplan.engines.kubelet.cpu_manager import StaticCpuPolicy, pod_exclusive_cpus
from bayplan.engines.kubelet.hint_merge import best_hint, narrowest_size
from bayplan.engines.kubelet.managers import (
    AttachedDevices,
    KubeletManagers,
    ManagersState,
    PreparedManagers,
    placement_of,
)
from bayplan.engines.kubelet.memory_manager import container_wants, pod_wants, takes_part
from bayplan.engines.kubelet.topology_hints import Hint, HintSet, NodeAmounts, OfSize, Region
from bayplan.engines.kubelet.topology_manager import AFFINITY_ERROR, UNEXPECTED_ERROR, Admission, allocate
from bayplan.kubelet.manager_options import MemoryManagerPolicy
from bayplan.kubelet.pod import CPU, ContainerSpec, PodSpec
from bayplan.model.basis import Basis
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
from bayplan.model.sentences import verb_after
from bayplan.sets import CpuSet, NodeSet, cpus_text, nodes_text

REFUSED: Final = "kubelet-refuses"
HINT: Final = "kubelet-hint"
ROOM: Final = "room-elsewhere"
CUT_SHORT: Final = "merge-cut-short"
"""Codes of the reasons."""

_SETS_NAMED: Final = 3
_SETS_LOOKED_AT: Final = 100
"""All pairs of 14 nodes."""

_Need = tuple[NodeAmounts, NodeAmounts]
"""What is asked of one resource, out of what is free now and out of all there could ever be."""


def reasons(
    kubelet: KubeletManagers, pod: PodSpec, admission: Admission[ManagersState]
) -> tuple[Reason, ...]:
    """The reasons for a refusal, in the order of the argument; none for an admitted pod."""
    return () if admission.admitted else tuple(_reasons(kubelet, pod, admission))


def room(
    kubelet: KubeletManagers, state: ManagersState, pod: PodSpec, container: ContainerSpec | None
) -> NodeSet | None:
    """The fewest nodes that have everything free that is asked for, whatever kubelet's groups and preferred
    sizes say; None if there are none, or more than the policy allows. For a container, or for the pod.

    single-numa-node allows one node, restricted as many as the request needs on an empty machine, wherever
    its devices are.
    """
    needs = [need for need in _needs(kubelet, state, pod, container) if need[0].needed > 0]
    if not needs:
        return None
    everything = kubelet.topology.everything
    devices = () if kubelet.attached is None else tuple(kubelet.attached.needs(container))
    free = Region(everything, (*(now for now, _ in needs), *devices), OfSize(0))
    most = len(everything)
    if kubelet.topology.policy is TopologyPolicy.SINGLE_NUMA_NODE:
        most = 1
    elif kubelet.topology.policy is TopologyPolicy.RESTRICTED:
        most = narrowest_size(Region(everything, tuple(ever for _, ever in needs), OfSize(0))) or 0
    found = best_hint(HintSet(regions=(free,)))
    if found is None or found.nodes is None or len(found.nodes) > most:
        return None
    return found.nodes


def _reasons(kubelet: KubeletManagers, pod: PodSpec, admission: Admission[ManagersState]) -> Iterator[Reason]:
    explain = getattr(admission.error, "explanation", None)
    detail = f" ({explain()})" if callable(explain) else ""
    yield Reason(REFUSED, f"{admission.reason}: {admission.message}{detail}")
    if admission.error is None:
        for answer in admission.asked:
            for name, hints in (answer or {}).items():
                yield Reason(HINT, f"{name}: {_described(hints)}")
    if not admission.exact:
        yield Reason(CUT_SHORT, "the search for common nodes was cut short, there may be better ones")
    if admission.reason not in {AFFINITY_ERROR, UNEXPECTED_ERROR}:
        return
    where = room(kubelet, admission.state, pod, admission.refused)
    if where is not None:
        yield Reason(
            ROOM,
            f"{nodes_text(where)} {verb_after(where, 'has')} all of it free; only kubelet's rules refuse it, "
            "the exact engine would not",
        )


def _described(hints: HintSet | None) -> str:
    if hints is None:
        return "no preference"
    best = best_hint(hints)
    if best is None or best.nodes is None:
        return "on no set of nodes"
    alike = _alike(hints, best.nodes, preferred=best.preferred)
    where = nodes_text(best.nodes)
    if len(alike) > 1 and len(best.nodes) == 1:
        where = f"any of {nodes_text(NodeSet(node for nodes in alike for node in nodes))}"
    elif len(alike) > 1:
        more = f" or {len(alike) - _SETS_NAMED} more" if len(alike) > _SETS_NAMED else ""
        where = f"nodes {' or '.join(map(str, alike[:_SETS_NAMED]))}{more}"
    return f"preferred on {where}" if best.preferred else f"possible on {where}, but not preferred"


def _alike(hints: HintSet, best: NodeSet, *, preferred: bool) -> list[NodeSet]:
    """The sets that are as good as *best*: of its size, and preferred as it is. *best* alone where these are
    too many to look at."""
    found = {one.nodes for one in hints.hints if one.nodes is not None and one.preferred is preferred}
    for region in hints.regions:
        if comb(len(region.ground), len(best)) > _SETS_LOOKED_AT:
            return [best]
        sets = map(NodeSet, combinations(region.ground, len(best)))
        found |= {one for one in sets if one in region and region.preferred.holds(one) is preferred}
    return sorted((one for one in found if len(one) == len(best)), key=lambda one: one.mask)


def _needs(
    kubelet: KubeletManagers, state: ManagersState, pod: PodSpec, container: ContainerSpec | None
) -> Iterator[_Need]:
    if kubelet.cpus is not None:
        yield _cpu_need(kubelet.cpus, state, pod, container)
    memory = state.memory
    nodes = memory.state.nodes
    if nodes and takes_part(pod, memory.gates):
        if container is None:
            wanted = pod_wants(pod, memory.gates)
        else:
            wanted = container_wants(pod, container, memory.gates)
        for name, needed in wanted.items():
            free = {node: each.free_bytes(name) for node, each in nodes.items()}
            allocatable = {node: each.allocatable_bytes(name) for node, each in nodes.items()}
            yield NodeAmounts(free, needed), NodeAmounts(allocatable, needed)


def _cpu_need(
    policy: StaticCpuPolicy, state: ManagersState, pod: PodSpec, container: ContainerSpec | None
) -> _Need:
    """CPUs by node. With full-pcpus-only those of cores of which every CPU is free."""
    if container is None:
        needed = pod_exclusive_cpus(pod, policy.gates)
    else:
        needed = policy.exclusive_cpus(pod, container)
    topology = policy.topology
    free = policy.available(state.cpus) | state.cpus.reusable.get(pod.uid, CpuSet())
    if policy.options.full_pcpus_only:
        free -= topology.siblings(topology.all_cpus - free)
    return _by_node(free, topology.node_cpus, needed), _by_node(topology.all_cpus, topology.node_cpus, needed)


def _by_node(cpus: CpuSet, node_cpus: Mapping[int, int], needed: int) -> NodeAmounts:
    return NodeAmounts({node: (cpus.mask & mask).bit_count() for node, mask in node_cpus.items()}, needed)


class CreationDecision:
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
        settled = Admission(self.state, admitted=True, hints={self.container.name: hint})
        return allocate(settled, self.pod, self.container, hint, self.kubelet.providers())

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
