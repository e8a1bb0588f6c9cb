"""kubelet's managers together: their options, and what they do with a pod on one immutable state. Devices are
chosen already when a runtime asks, so that there is none of kubelet's Device Manager, only its hints.

Nothing is decided here; the managers decide. What a refused pod got before it was refused stays in the
returned state, as in kubelet, until `KubeletManagers.without_pod` takes it back.
"""

from collections.abc import Iterator

from msgspec import Struct, field
from msgspec.structs import replace

from bayplan.engines.kubelet.attached_devices import AttachedDevices
from bayplan.engines.kubelet.cpu.manager import StaticCpuPolicy
from bayplan.engines.kubelet.cpu.state import CpuState
from bayplan.engines.kubelet.cpu.topology import CpuTopology
from bayplan.engines.kubelet.memory.manager import MemoryManager
from bayplan.engines.kubelet.memory.state import MemoryState, Nodes, empty_nodes
from bayplan.engines.kubelet.topology.hints import Hint, ProviderHints
from bayplan.engines.kubelet.topology.manager import Admission, Provider, TopologyManager
from bayplan.kubelet.manager_options import ManagerOptions, MemoryManagerPolicy
from bayplan.kubelet.pod import ContainerSpec, FeatureGates, PodSpec
from bayplan.model.basis import Allocatable
from bayplan.model.machine import Machine
from bayplan.model.policy import PlacementPolicy
from bayplan.sets import CpuSet, NodeSet

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

    def started(self, state: ManagersState, pod: PodSpec, container: ContainerSpec) -> ManagersState:
        """The state after a container was started: the init containers before it have released their memory.
        Their CPUs and devices stay with the pod."""
        return replace(state, memory=state.memory.started(pod, container))

    def without_container(self, state: ManagersState, pod_uid: str, container: str) -> ManagersState:
        """The state after a container is gone for good."""
        return replace(
            state,
            cpus=state.cpus if self.cpus is None else self.cpus.remove(state.cpus, pod_uid, container),
            memory=state.memory.without(pod_uid, container),
        )

    def without_pod(self, state: ManagersState, pod: PodSpec) -> ManagersState:
        """The state after a pod is gone, or was refused."""
        for container in pod.all_containers:
            state = self.without_container(state, pod.uid, container.name)
        return state

    def exclusive_cpus(self, state: ManagersState, pod_uid: str, container: str) -> CpuSet:
        """The CPUs that a container has to itself; none if it shares."""
        return state.cpus.of(pod_uid, container) or CpuSet()

    def mems(self, state: ManagersState, pod_uid: str, container: str) -> NodeSet | None:
        """The nodes that a container's memory is bound to; None if to none in particular."""
        return state.memory.mems(pod_uid, container)


class PreparedManagers(Struct, frozen=True):
    """The managers with their options on one machine under one policy; ``empty`` are the machine's nodes
    before anything is promised."""

    machine: Machine
    policy: PlacementPolicy
    options: ManagerOptions
    kubelet: KubeletManagers
    empty: Nodes

    @classmethod
    def of(cls, machine: Machine, policy: PlacementPolicy, options: ManagerOptions) -> "PreparedManagers":
        """The managers that *options* describe."""
        topology = TopologyManager.of(machine, policy.topology, options.scope, options.topology_options)
        cpus = None
        if options.static_cpus:
            kept = Allocatable(machine, policy).reserved_cpus
            gates = FeatureGates(rules=policy.kubelet_rules)
            cpus = StaticCpuPolicy(CpuTopology.of_machine(machine), options.cpu_options, kept, gates)
        empty = empty_nodes(machine, policy.reserved_bytes)
        return cls(machine, policy, options, KubeletManagers(topology, cpus), empty)


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
