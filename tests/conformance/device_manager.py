"""kubelet's Device Manager: where the devices that a container asks for are, and which of them it gets.

Pure: every method takes a state and returns a new one. kubelet picks among equal devices in random order;
here the order is fixed, by the number of devices on their node and then by id. Source: Kubernetes v1.36.
Nothing here finds devices; `bayplan.host` does.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import ClassVar

from msgspec import Struct, field
from msgspec.structs import replace

from bayplan.engines.kubelet.hint_merge import narrowest_size
from bayplan.engines.kubelet.managers import KubeletManagers, ManagersState
from bayplan.engines.kubelet.topology_hints import Hint, HintSet, NodeAmounts, OfSize, ProviderHints, Region
from bayplan.engines.kubelet.topology_manager import Provider
from bayplan.errors import BayplanError
from bayplan.kubelet.pod import ContainerSpec, FeatureGates, PodSpec, pod_limits
from bayplan.sets import NodeSet

Devices = frozenset[str]
"""Device ids of one resource."""

Preference = Callable[[str, Devices, Devices, int], Iterable[str]]
"""A device plugin's say: of which resource, available devices, those that must be among them, how many; it
answers with the devices that it would rather give away. An empty answer leaves the choice to the manager."""


class DeviceManagerError(BayplanError):
    """The Device Manager cannot do what was asked. ``reason`` is the word for the pod's status."""

    reason: ClassVar[str] = "UnexpectedAdmissionError"


class DeviceShortageError(DeviceManagerError):
    """Fewer devices are available than are still needed."""

    def __init__(self, resource: str, requested: int, available: int) -> None:
        super().__init__(resource, requested, available)
        self.resource = resource
        self.requested = requested
        self.available = available

    def __str__(self) -> str:
        return (
            f"requested number of devices unavailable for {self.resource}. "
            f"Requested: {self.requested}, Available: {self.available}"
        )


class DeviceRequestChangedError(DeviceManagerError):
    """A container that has devices asks for another number of them."""

    def __init__(self, pod_uid: str, container: str, resource: str, held: int, requested: int) -> None:
        super().__init__(pod_uid, container, resource, held, requested)
        self.pod_uid = pod_uid
        self.container = container
        self.resource = resource
        self.held = held
        self.requested = requested

    def __str__(self) -> str:
        return (
            f'pod "{self.pod_uid}" container "{self.container}" changed request for resource '
            f'"{self.resource}" from {self.held} to {self.requested}'
        )


class Device(Struct, frozen=True):
    """One device. ``nodes`` are the NUMA nodes that it is attached to, None if nothing is known of that."""

    nodes: NodeSet | None = None
    healthy: bool = True


class DeviceState(Struct, frozen=True):
    """What has been given away: pod uid -> container -> resource -> devices. ``reusable`` maps a pod uid to
    the devices, by resource, that its finished init containers leave to its other containers."""

    assignments: Mapping[str, Mapping[str, Mapping[str, Devices]]] = field(default_factory=dict)
    reusable: Mapping[str, Mapping[str, Devices]] = field(default_factory=dict)

    def of(self, pod_uid: str, container: str, resource: str) -> Devices:
        """A container's devices of one resource."""
        return self.assignments.get(pod_uid, {}).get(container, {}).get(resource, Devices())

    def of_pod(self, pod_uid: str, resource: str) -> Devices:
        """The devices of all containers of a pod."""
        held = self.assignments.get(pod_uid, {}).values()
        return Devices().union(*(each.get(resource, Devices()) for each in held))

    def in_use(self, resource: str) -> Devices:
        """All devices of a resource that are given away."""
        return Devices().union(*(self.of_pod(pod_uid, resource) for pod_uid in self.assignments))

    def with_devices(self, pod_uid: str, container: str, resource: str, given: Devices) -> "DeviceState":
        """The state in which the container also has *given*."""
        containers = self.assignments.get(pod_uid, {})
        held = containers.get(container, {})
        more = {**held, resource: held.get(resource, Devices()) | given}
        return replace(self, assignments={**self.assignments, pod_uid: {**containers, container: more}})

    def without(self, pod_uid: str, container: str) -> "DeviceState":
        """The state without that container; the same state if it has no devices."""
        containers = self.assignments.get(pod_uid, {})
        if container not in containers:
            return self
        left = {name: held for name, held in containers.items() if name != container}
        assignments = {uid: each for uid, each in self.assignments.items() if uid != pod_uid}
        return replace(self, assignments={**assignments, pod_uid: left} if left else assignments)


class DeviceManager(Struct, frozen=True):
    """The devices of a machine: resource name -> device id -> device."""

    devices: Mapping[str, Mapping[str, Device]]
    gates: FeatureGates = field(default=FeatureGates())
    prefer: Preference = field(default=lambda _resource, _available, _must, _size: ())

    def requested(self, container: ContainerSpec) -> dict[str, int]:
        """How many devices the container asks for, by resource. Limits count, as requests equal them."""
        return {name: count for name, count in container.limits.items() if name in self.devices}

    def pod_requested(self, pod: PodSpec) -> dict[str, int]:
        """How many devices the pod needs at the worst moment of its life, by resource."""
        limits = pod_limits(replace(pod, overhead={}), self.gates)
        return {name: count for name, count in limits.items() if name in self.devices}

    def hints(self, state: DeviceState, pod: PodSpec, container: ContainerSpec) -> ProviderHints:
        """Where the container's devices could be had; where they are, if it has them already."""
        reusable = state.reusable.get(pod.uid, {})
        return {
            resource: self._hints(
                state,
                resource,
                count,
                state.of(pod.uid, container.name, resource),
                reusable.get(resource, Devices()),
            )
            for resource, count in self.requested(container).items()
        }

    def pod_hints(self, state: DeviceState, pod: PodSpec) -> ProviderHints:
        """Where the devices of the whole pod could be had; where they are, if it has them already."""
        return {
            resource: self._hints(state, resource, count, state.of_pod(pod.uid, resource), Devices())
            for resource, count in self.pod_requested(pod).items()
        }

    def allocate(
        self, state: DeviceState, pod: PodSpec, container: ContainerSpec, nodes: NodeSet | None
    ) -> DeviceState:
        """Give the container its devices, from *nodes* as far as they go (None: from anywhere).

        Raises:
            DeviceShortageError: too few healthy devices are left.
            DeviceRequestChangedError: the container has devices, but not as many as it asks for.
        """
        state = replace(state, reusable={pod.uid: state.reusable.get(pod.uid, {})})
        for resource, count in self.requested(container).items():
            given = self.choose(state, pod.uid, container.name, resource, count, nodes)
            if given:
                state = state.with_devices(pod.uid, container.name, resource, given)
        left = dict(state.reusable[pod.uid])
        for resource, held in state.assignments.get(pod.uid, {}).get(container.name, {}).items():
            known = left.get(resource, Devices())
            left[resource] = known | held if pod.is_regular_init(container.name) else known - held
        return replace(state, reusable={pod.uid: left})

    def choose(
        self,
        state: DeviceState,
        pod_uid: str,
        container: str,
        resource: str,
        count: int,
        nodes: NodeSet | None,
    ) -> Devices:
        """The devices to give to a container: those that an init container left, then aligned ones, then the
        others; where there is a choice the plugin is asked. Empty if the container has what it asks for.

        Raises:
            DeviceShortageError: too few healthy devices are left.
            DeviceRequestChangedError: the container has devices, but not as many as it asks for.
        """
        held = state.of(pod_uid, container, resource)
        if held and len(held) != count:
            raise DeviceRequestChangedError(pod_uid, container, resource, len(held), count)
        choice = _Choice(
            Devices() if held else self._reusable(state, pod_uid, resource), 0 if held else count
        )
        if not choice.needed:
            return choice.taken
        available = self.available(state, resource)
        if len(available) < choice.needed:
            raise DeviceShortageError(resource, choice.needed, len(available))
        aligned, unaligned, unknown = self._by_affinity(resource, available, nodes)
        if choice.needed >= len(aligned):
            choice.take(aligned)
            pool = available
        else:
            pool = Devices(aligned)
        if choice.needed:
            preferred = self.prefer(resource, pool | choice.taken, choice.taken, count)
            choice.take(device for device in preferred if device in pool)
            choice.take((*aligned, *unaligned, *unknown))
        return choice.taken

    def available(self, state: DeviceState, resource: str) -> Devices:
        """The healthy devices of a resource that are not given away."""
        healthy = (device for device, known in self.devices[resource].items() if known.healthy)
        return Devices(healthy) - state.in_use(resource)

    def _reusable(self, state: DeviceState, pod_uid: str, resource: str) -> Iterable[str]:
        return sorted(state.reusable.get(pod_uid, {}).get(resource, Devices()))

    def _hints(
        self, state: DeviceState, resource: str, count: int, held: Devices, reusable: Devices
    ) -> HintSet | None:
        """Hints for *count* devices out of those held already, or else of the available and reusable ones."""
        known = self.devices[resource]
        if not any(device.nodes for device in known.values()):
            return None
        if held and len(held) != count:
            return HintSet()
        available = held or self.available(state, resource)
        reusable = Devices() if held else reusable
        if len(available | reusable) < count:
            return HintSet()
        ground = NodeSet(node for device in known.values() for node in device.nodes or ())
        whole = Region(ground, (_attached(known.values(), count),), OfSize(0))
        size = narrowest_size(whole) or len(ground)
        usable = (known[device] for device in available | reusable)
        kept = [known[device].nodes for device in sorted(reusable)]
        demands = [_attached(usable, count)]
        demands += [NodeAmounts({}, 1, ((nodes, 1),)) for nodes in kept if nodes is not None]
        return HintSet(regions=(Region(ground, tuple(demands), OfSize(size)),))

    def _by_affinity(
        self, resource: str, available: Devices, nodes: NodeSet | None
    ) -> tuple[list[str], list[str], list[str]]:
        """Available devices on *nodes*, elsewhere, and of unknown place; in the first two those on nodes with
        fewer devices come first. Without nodes, or where no device has a place, all are of unknown place."""
        known = self.devices[resource]
        if nodes is None or not any(device.nodes for device in known.values()):
            return [], [], sorted(available)
        on_node: dict[int, list[str]] = {}
        unknown = []
        for device in sorted(available):
            for node in known[device].nodes or ():
                on_node.setdefault(node, []).append(device)
            if not known[device].nodes:
                unknown.append(device)
        aligned: dict[str, None] = {}
        unaligned: dict[str, None] = {}
        for node, devices in sorted(on_node.items(), key=lambda item: (len(item[1]), item[0])):
            (aligned if node in nodes else unaligned).update(dict.fromkeys(devices))
        return list(aligned), list(unaligned), unknown


class _Choice:
    """Devices being picked: ``needed`` more after those ``taken``."""

    __slots__ = ("needed", "taken")

    def __init__(self, first: Iterable[str], needed: int) -> None:
        self.needed = needed
        self.taken = Devices()
        self.take(first)

    def take(self, devices: Iterable[str]) -> None:
        """Pick from *devices* in their order, as many as are needed."""
        for device in devices:
            if self.needed and device not in self.taken:
                self.taken |= {device}
                self.needed -= 1


def _attached(devices: Iterable[Device], count: int) -> NodeAmounts:
    """The demand for *count* of *devices*: one is had as soon as any of its nodes is in the set."""
    amounts: dict[int, int] = {}
    shared: dict[NodeSet, int] = {}
    for device in devices:
        nodes = device.nodes or NodeSet()
        if len(nodes) == 1:
            for node in nodes:
                amounts[node] = amounts.get(node, 0) + 1
        elif nodes:
            shared[nodes] = shared.get(nodes, 0) + 1
    return NodeAmounts(amounts, count, tuple(shared.items()))


class StateWithDevices(ManagersState, frozen=True):
    """What all managers have given away, the Device Manager among them."""

    devices: DeviceState = field(default=DeviceState())


class ManagersWithDevices(KubeletManagers, frozen=True):
    """All four managers; kubelet asks the Device Manager first. The states are `StateWithDevices`."""

    devices: DeviceManager = field(default_factory=lambda: DeviceManager({}))

    def providers(self) -> Iterator[Provider[ManagersState]]:
        """The managers in the order in which kubelet asks them."""
        yield _Devices(self.devices)
        yield from super().providers()


class _Devices:
    """The Device Manager as a provider."""

    def __init__(self, manager: DeviceManager) -> None:
        self._manager = manager

    def hints(self, state: ManagersState, pod: PodSpec, container: ContainerSpec) -> ProviderHints:
        return self._manager.hints(_with_devices(state).devices, pod, container)

    def pod_hints(self, state: ManagersState, pod: PodSpec) -> ProviderHints:
        return self._manager.pod_hints(_with_devices(state).devices, pod)

    def allocate(
        self, state: ManagersState, pod: PodSpec, container: ContainerSpec, hint: Hint
    ) -> ManagersState:
        before = _with_devices(state)
        return replace(before, devices=self._manager.allocate(before.devices, pod, container, hint.nodes))

    def allocate_pod(self, state: ManagersState, pod: PodSpec, hint: Hint) -> ManagersState:
        """Devices are given to containers one by one, whatever the pod has as a whole."""
        for container in pod.all_containers:
            state = self.allocate(state, pod, container, hint)
        return state


def _with_devices(state: ManagersState) -> StateWithDevices:
    assert isinstance(state, StateWithDevices)
    return state
