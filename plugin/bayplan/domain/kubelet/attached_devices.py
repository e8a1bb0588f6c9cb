"""Devices that a container has already, as hints of kubelet's Device Manager for one device each.

The Device Manager chooses devices after the merge; here somebody has chosen, and only the hints are left:
every set with a node of the device, of which those with a single node are preferred. Devices on the same
nodes give the same hints and count as one resource.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar

from bayplan.domain.decision import DeviceHint
from bayplan.domain.kubelet.hints import Demand, Hint, HintSet, OfSize, ProviderHints, Region
from bayplan.domain.kubelet.pod import ContainerSpec, PodSpec
from bayplan.sets import NodeSet

State = TypeVar("State")


@dataclass(frozen=True, slots=True)
class AttachedDevices:
    """A provider for one container, known by its name; it allocates nothing. ``everything`` are all nodes of
    the machine."""

    container: str
    devices: tuple[DeviceHint, ...]
    everything: NodeSet

    def resources(self) -> dict[str, NodeSet]:
        """Nodes by the names of the devices on them."""
        names: dict[NodeSet, list[str]] = {}
        for device in self.devices:
            nodes = device.nodes & self.everything
            if nodes:
                names.setdefault(nodes, []).append(device.device)
        return {", ".join(devices): nodes for nodes, devices in names.items()}

    def hints(self, state: State, pod: PodSpec, container: ContainerSpec) -> ProviderHints:
        """Where the container's devices are."""
        return self.pod_hints(state, pod) if container.name == self.container else None

    def pod_hints(self, state: State, pod: PodSpec) -> ProviderHints:  # noqa: ARG002
        """The same: of the pod's other containers the devices are not known yet."""
        return {
            name: HintSet(regions=(Region(self.everything, (_one_of(nodes),), OfSize(1)),))
            for name, nodes in self.resources().items()
        }

    def allocate(self, state: State, pod: PodSpec, container: ContainerSpec, hint: Hint) -> State:  # noqa: ARG002
        """Nothing to be done: it has them."""
        return state

    def allocate_pod(self, state: State, pod: PodSpec, hint: Hint) -> State:  # noqa: ARG002
        """Nothing to be done: it has them."""
        return state

    def needs(self, container: ContainerSpec | None) -> Iterator[tuple[Demand, Demand]]:
        """The devices as demands on nodes, for the container or (None) its pod."""
        if container is None or container.name == self.container:
            for nodes in self.resources().values():
                yield _one_of(nodes), _one_of(nodes)


def _one_of(nodes: NodeSet) -> Demand:
    if len(nodes) == 1:
        return Demand(dict.fromkeys(nodes, 1), 1)
    return Demand({}, 1, ((nodes, 1),))
