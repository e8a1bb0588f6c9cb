"""kubelet's managers together: their options, their state, which is made from the ledger, what they do with a
pod on it, and the placement that follows from the state afterwards.

Nothing is decided here; the managers decide. What a refused pod got before it was refused stays in the
returned state, as in kubelet, which takes it back later.

The state is made anew for every decision, in any order of the ledger's entries. What a container has on
each node is what was booked for it, so that state and ledger never differ. kubelet's own state, which
releases the lowest node first, may split a group's memory otherwise; the sums over a group are the same.

Devices are chosen already when a runtime asks, so that of kubelet's Device Manager, which chooses them
after the merge, there are only the hints, for devices that a container has already. Devices of one kind
count as one resource: every set that touches them all, of which the smallest are preferred. For a single
device these are all sets with a node of it, and those of one node.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from bayplan.engines.device_hints import names_text
from bayplan.engines.kubelet.booking import REST_OF_POD, KeptForPod, kept_for_pods
from bayplan.engines.kubelet.cpu_manager import StaticCpuPolicy
from bayplan.engines.kubelet.cpu_state import CpuState
from bayplan.engines.kubelet.cpu_topology import CpuTopology
from bayplan.engines.kubelet.hint_merge import narrowest_size
from bayplan.engines.kubelet.memory_manager import MemoryManager
from bayplan.engines.kubelet.memory_state import (
    Block,
    Blocks,
    MemoryState,
    Nodes,
    NumaNodeState,
    empty_nodes,
    narrowest_set,
)
from bayplan.engines.kubelet.topology_hints import Hint, HintSet, NodeAmounts, OfSize, ProviderHints, Region
from bayplan.engines.kubelet.topology_manager import Admission, Provider, TopologyManager
from bayplan.kubelet.manager_options import ManagerOptions, MemoryManagerPolicy
from bayplan.kubelet.pod import ContainerSpec, FeatureGates, PodSpec
from bayplan.model.basis import Allocatable, kept_by_pin
from bayplan.model.claims import sum_of
from bayplan.model.decision import Affinity, Decision, DeviceHint, Placement
from bayplan.model.ledger import Ledger
from bayplan.model.machine import Machine
from bayplan.model.policy import PlacementPolicy
from bayplan.sets import CpuSet, NodeSet

State = TypeVar("State")


class AttachedDevices(Struct, frozen=True):
    """A provider for one container, known by its name; it allocates nothing. ``everything`` are all nodes of
    the machine."""

    container: str
    devices: tuple[DeviceHint, ...]
    everything: NodeSet

    def resources(self) -> dict[str, NodeAmounts]:
        """What each resource demands of nodes, by the names of its devices. Devices without a kind that are
        on the same nodes give the same hints, and count as one resource too."""
        groups: dict[str | NodeSet, list[DeviceHint]] = {}
        for device in self.devices:
            if not device.nodes.isdisjoint(self.everything):
                groups.setdefault(device.kind or device.nodes, []).append(device)
        return {
            names_text([device.device for device in group]): _all_of(
                frozenset(device.nodes for device in group)
            )
            for group in groups.values()
        }

    def hints(self, state: State, pod: PodSpec, container: ContainerSpec) -> ProviderHints:
        """Where the container's devices are."""
        return self.pod_hints(state, pod) if container.name == self.container else None

    def pod_hints(self, state: State, pod: PodSpec) -> ProviderHints:  # noqa: ARG002 - the signature is the interface's
        """The same: of the pod's other containers the devices are not known yet."""
        hints = {}
        for name, demand in self.resources().items():
            region = Region(self.everything, (demand,), OfSize(0))
            size = narrowest_size(region) or len(self.everything)
            hints[name] = HintSet(regions=(replace(region, preferred=OfSize(size)),))
        return hints

    def allocate(self, state: State, pod: PodSpec, container: ContainerSpec, hint: Hint) -> State:  # noqa: ARG002 - the signature is the interface's
        """Nothing to be done: it has them."""
        return state

    def allocate_pod(self, state: State, pod: PodSpec, hint: Hint) -> State:  # noqa: ARG002 - the signature is the interface's
        """Nothing to be done: it has them."""
        return state

    def needs(self, container: ContainerSpec | None) -> Iterable[NodeAmounts]:
        """The devices as demands on nodes, for the container or (None) its pod."""
        return self.resources().values() if container is None or container.name == self.container else ()


def _all_of(places: frozenset[NodeSet]) -> NodeAmounts:
    """The demand that a set of nodes touches each of *places*."""
    single = {node: 1 for nodes in places if len(nodes) == 1 for node in nodes}
    several = sorted((nodes for nodes in places if len(nodes) > 1), key=tuple)
    return NodeAmounts(single, len(places), tuple((nodes, 1) for nodes in several))


NO_MEMORY_MANAGER = MemoryManager(MemoryManagerPolicy.NONE, MemoryState())
"""The policy None: no state, no hints, no refusals."""


class ManagersState(Struct, frozen=True):
    """What all managers have given away."""

    cpus: CpuState = field(default=CpuState())
    memory: MemoryManager = field(default=NO_MEMORY_MANAGER)


class KubeletManagers(Struct, frozen=True):
    """The managers of one machine. ``cpus`` None is the CPU Manager's policy none; the Memory Manager is part
    of the state, because it is a value that contains its state; ``attached`` are the devices that the
    container in question has already."""

    topology: TopologyManager
    cpus: StaticCpuPolicy | None = None
    attached: AttachedDevices | None = None

    def providers(self) -> Iterator[Provider[ManagersState]]:
        """The managers in the order in which kubelet asks them."""
        if self.attached is not None:
            yield self.attached
        if self.cpus is not None:
            yield _Cpus(self.cpus)
        yield _Memory()

    def admit(self, state: ManagersState, pod: PodSpec) -> Admission[ManagersState]:
        """Admit a pod with all of its containers, or refuse it."""
        return self.topology.admit(state, pod, tuple(self.providers()))


class PreparedManagers(Struct, frozen=True):
    """The managers with their options for what is ``allocatable`` of one machine under one policy; ``empty``
    are the machine's nodes before anything is promised."""

    allocatable: Allocatable
    options: ManagerOptions
    kubelet: KubeletManagers
    empty: Nodes

    @classmethod
    def of(cls, allocatable: Allocatable, options: ManagerOptions) -> "PreparedManagers":
        """The managers that *options* describe."""
        machine, policy = allocatable.machine, allocatable.policy
        topology = TopologyManager.of(machine, policy.topology, options.scope, options.topology_options)
        cpus = None
        if options.static_cpus:
            kept = allocatable.reserved_cpus
            gates = FeatureGates(rules=policy.kubelet_rules)
            cpus = StaticCpuPolicy(CpuTopology.of_machine(machine), options.cpu_options, kept, gates)
        empty = empty_nodes(machine, policy.reserved_bytes)
        return cls(allocatable, options, KubeletManagers(topology, cpus), empty)

    @property
    def machine(self) -> Machine:
        """The machine that they are on."""
        return self.allocatable.machine

    @property
    def policy(self) -> PlacementPolicy:
        """The policy that they are under."""
        return self.allocatable.policy


class _Cpus:
    """The CPU Manager as a provider."""

    def __init__(self, policy: StaticCpuPolicy) -> None:
        self._policy = policy

    def hints(self, state: ManagersState, pod: PodSpec, container: ContainerSpec) -> ProviderHints:
        return self._policy.hints(state.cpus, pod, container)

    def pod_hints(self, state: ManagersState, pod: PodSpec) -> ProviderHints:
        return self._policy.pod_hints(state.cpus, pod)

    def allocate(
        self, state: ManagersState, pod: PodSpec, container: ContainerSpec, hint: Hint
    ) -> ManagersState:
        return replace(state, cpus=self._policy.allocate(state.cpus, pod, container, hint.nodes))

    def allocate_pod(self, state: ManagersState, pod: PodSpec, hint: Hint) -> ManagersState:
        return replace(state, cpus=self._policy.allocate_pod(state.cpus, pod, hint.nodes))


class _Memory:
    """The Memory Manager as a provider."""

    def hints(self, state: ManagersState, pod: PodSpec, container: ContainerSpec) -> ProviderHints:
        return state.memory.hints(pod, container)

    def pod_hints(self, state: ManagersState, pod: PodSpec) -> ProviderHints:
        return state.memory.pod_hints(pod)

    def allocate(
        self, state: ManagersState, pod: PodSpec, container: ContainerSpec, hint: Hint
    ) -> ManagersState:
        return replace(state, memory=state.memory.allocate(pod, container, hint))

    def allocate_pod(self, state: ManagersState, pod: PodSpec, hint: Hint) -> ManagersState:
        return replace(state, memory=state.memory.allocate_pod(pod, hint))


def managers_state(
    policy: MemoryManagerPolicy,
    empty: Nodes,
    cpus: StaticCpuPolicy | None,
    ledger: Ledger,
    for_pod: str | None = None,
    *,
    blocks: bool = True,
) -> ManagersState:
    """What the managers have given away when everything in *ledger* is promised.

    *empty* are the machine's nodes without any promise. Containers are known by the ids of pod and container.
    What is kept for the rest of a pod is given away too, but for the pod *for_pod*. Without *blocks* the
    state does not list which container has what of the memory: a decision about another one needs no list.
    """
    entries = (*ledger.entries.values(), *ledger.retained.values())
    kept = [rest for rest in kept_for_pods(entries) if rest.pod_id != for_pod]
    return ManagersState(
        cpus=CpuState() if cpus is None else _cpu_state(cpus, ledger, kept),
        memory=NO_MEMORY_MANAGER
        if policy is MemoryManagerPolicy.NONE
        else _memory_manager(policy, empty, ledger, kept, blocks=blocks),
    )


def placement_of(
    before: ManagersState, after: ManagersState, pod_uid: str, container: str, affinity: Affinity | None
) -> Placement:
    """Where a container is that was allocated between *before* and *after*, and nothing else was."""
    memory = after.memory
    mems = memory.mems(pod_uid, container)
    booked: dict[int, dict[str, int]] = {}
    for block in memory.state.blocks(pod_uid, container) or ():
        for node in block.nodes:
            amount_bytes = _reserved(memory.state.nodes[node], block.resource) - _reserved(
                before.memory.state.nodes[node], block.resource
            )
            # Without cpuset.mems only this says to which nodes it is bound: also those without a byte.
            if amount_bytes or mems is None:
                booked.setdefault(node, {})[block.resource] = amount_bytes
    return Placement(mems, after.cpus.of(pod_uid, container) or CpuSet(), booked, affinity)


def _cpu_state(policy: StaticCpuPolicy, ledger: Ledger, kept: list[KeptForPod]) -> CpuState:
    taken = ledger.exclusive_cpus
    assignments: dict[str, dict[str, CpuSet]] = {}
    for entry in ledger.entries.values():
        request, own = entry.decision.request, entry.decision.placement.exclusive_cpus
        if own:
            assignments.setdefault(request.pod_id, {})[request.container_id] = own
        if request.pinned_cpus is not None:
            taken |= kept_by_pin(request, policy.topology.all_cpus)
    for rest in kept:
        if rest.cpus:
            assignments.setdefault(rest.pod_id, {})[REST_OF_POD] = rest.cpus
            taken |= rest.cpus
    return CpuState(policy.managed - taken, assignments)


def _memory_manager(
    policy: MemoryManagerPolicy, empty: Nodes, ledger: Ledger, kept: list[KeptForPod], *, blocks: bool
) -> MemoryManager:
    everything = NodeSet(empty)
    counts = dict.fromkeys(empty, 0)
    sets: dict[int, set[NodeSet]] = {node: set() for node in empty}
    for where, number in _bound(policy, everything, ledger, kept):
        for node in where:
            counts[node] += number
            sets[node].add(where)
    nodes = {}
    for node, memory in empty.items():
        group = narrowest_set(sets[node]) if sets[node] else memory.group
        nodes[node] = NumaNodeState(memory.tables, counts[node], group)
        for resource, amount_bytes in ledger.booked_bytes.get(node, {}).items():
            nodes[node] = _taken(nodes[node], resource, amount_bytes)
    for claim in ledger.resource_claims.values():
        for node, row in claim.by_node().items():
            for resource, amount_bytes in row.items() if node in nodes else ():
                nodes[node] = _taken(nodes[node], resource, amount_bytes)
    for where, need in _kept_together(everything, kept):
        for resource, amount_bytes in need.items():
            _take_together(nodes, where, resource, amount_bytes)
    assignments = _assignments(policy, everything, ledger, kept) if blocks else {}
    return MemoryManager(policy, MemoryState(nodes, assignments))


def _bound(
    policy: MemoryManagerPolicy, everything: NodeSet, ledger: Ledger, kept: list[KeptForPod]
) -> Iterator[tuple[NodeSet, int]]:
    """The sets of nodes that something is bound to, and how many promises of a resource each has."""
    # Counted by bit masks, because there are hundreds of entries and few sets.
    counts: dict[int, int] = {}
    for entry in ledger.entries.values():
        mask = _bound_to(policy, entry.decision).mask & everything.mask
        if mask:
            counts[mask] = counts.get(mask, 0) + _kinds(entry.decision.placement)
    for rest in kept:
        mask = rest.nodes.mask & everything.mask
        counts[mask] = counts.get(mask, 0) + len(rest.need)
    return ((NodeSet.of_mask(mask), count) for mask, count in counts.items() if count)


def _kept_together(everything: NodeSet, kept: list[KeptForPod]) -> list[tuple[NodeSet, Mapping[str, int]]]:
    """What is kept for pods on each set of nodes, the narrowest sets first."""
    needs: dict[int, dict[str, int]] = {}
    for rest in kept:
        need = needs.setdefault(rest.nodes.mask & everything.mask, {})
        for resource, amount_bytes in rest.need.items():
            need[resource] = need.get(resource, 0) + amount_bytes
    in_order = sorted(needs.items(), key=lambda one: (one[0].bit_count(), one[0]))
    return [(NodeSet.of_mask(mask), need) for mask, need in in_order]


def _assignments(
    policy: MemoryManagerPolicy, everything: NodeSet, ledger: Ledger, kept: list[KeptForPod]
) -> dict[str, dict[str, Blocks]]:
    """What each container, and each rest of a pod, has been promised."""
    found: dict[str, dict[str, Blocks]] = {}
    for entry in ledger.entries.values():
        where = _bound_to(policy, entry.decision) & everything
        blocks = _blocks(where, entry.decision.placement) if where else ()
        if blocks:
            found.setdefault(entry.decision.request.pod_id, {})[entry.container_id] = blocks
    for rest in kept:
        where = rest.nodes & everything
        if where and rest.need:
            needed = tuple(Block(where, resource, amount) for resource, amount in sorted(rest.need.items()))
            found.setdefault(rest.pod_id, {})[REST_OF_POD] = needed
    return found


def _take_together(nodes: dict[int, NumaNodeState], where: NodeSet, resource: str, amount_bytes: int) -> None:
    """Take so much from the nodes *where* together, the lowest first, as kubelet does."""
    for node in where:
        taken_bytes = min(amount_bytes, max(0, nodes[node].free_bytes(resource)))
        nodes[node] = _taken(nodes[node], resource, taken_bytes)
        amount_bytes -= taken_bytes


def _kinds(placed: Placement) -> int:
    """How many resources a container was promised: so often it counts on each of its nodes."""
    rows = placed.booked_bytes.values()
    return len(set().union(*rows)) if len(rows) > 1 else sum(map(len, rows))


def _blocks(where: NodeSet, placed: Placement) -> Blocks:
    """What a container was promised on *where* as a whole."""
    sizes = sum_of(placed.booked_bytes.values())
    return tuple(Block(where, resource, size_bytes) for resource, size_bytes in sorted(sizes.items()))


def _bound_to(policy: MemoryManagerPolicy, decision: Decision) -> NodeSet:
    """The set of nodes that a container's memory is counted for as a whole.

    Empty for a container that is bound to no nodes, or not by us: it makes no node a member of a group.
    """
    placed, request = decision.placement, decision.request
    if placed.mems is not None:
        return placed.mems
    if (
        policy is MemoryManagerPolicy.BEST_EFFORT
        and placed.affinity is not None
        and request.pinned_mems is None
    ):
        return NodeSet(placed.booked_bytes)
    return NodeSet()


def _taken(memory: NumaNodeState, resource: str, amount_bytes: int) -> NumaNodeState:
    """The node after so much was given away; never more than it has, as reservations may have grown."""
    return memory.moved(resource, min(amount_bytes, max(0, memory.free_bytes(resource))))


def _reserved(memory: NumaNodeState, resource: str) -> int:
    table = memory.tables.get(resource)
    return 0 if table is None else table.reserved
