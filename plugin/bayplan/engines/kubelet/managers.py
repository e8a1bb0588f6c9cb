"""kubelet's managers together: their options, and what they do with a pod on one immutable state.

Nothing is decided here; the managers decide. What a refused pod got before it was refused stays in the
returned state, as in kubelet, which takes it back later.

Devices are chosen already when a runtime asks, so that of kubelet's Device Manager, which chooses them
after the merge, there are only the hints, for devices that a container has already. Devices of one kind
count as one resource: every set that touches them all, of which the smallest are preferred. For a single
device these are all sets with a node of it, and those of one node.
"""

from collections.abc import Iterable, Iterator
from typing import TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from bayplan.engines.device_hints import names_text
from bayplan.engines.kubelet.cpu_manager import StaticCpuPolicy
from bayplan.engines.kubelet.cpu_state import CpuState
from bayplan.engines.kubelet.cpu_topology import CpuTopology
from bayplan.engines.kubelet.hint_merge import narrowest_size
from bayplan.engines.kubelet.memory_manager import MemoryManager
from bayplan.engines.kubelet.memory_state import MemoryState, Nodes, empty_nodes
from bayplan.engines.kubelet.topology_hints import Hint, HintSet, NodeAmounts, OfSize, ProviderHints, Region
from bayplan.engines.kubelet.topology_manager import Admission, Provider, TopologyManager
from bayplan.kubelet.manager_options import ManagerOptions, MemoryManagerPolicy
from bayplan.kubelet.pod import ContainerSpec, FeatureGates, PodSpec
from bayplan.model.basis import Allocatable
from bayplan.model.decision import DeviceHint
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

    def exclusive_cpus(self, state: ManagersState, pod_uid: str, container: str) -> CpuSet:
        """The CPUs that a container has to itself; none if it shares."""
        return state.cpus.of(pod_uid, container) or CpuSet()

    def mems(self, state: ManagersState, pod_uid: str, container: str) -> NodeSet | None:
        """The nodes that a container's memory is bound to; None if to none in particular."""
        return state.memory.mems(pod_uid, container)


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
