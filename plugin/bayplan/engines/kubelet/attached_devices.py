"""Devices that a container has already, as the hints of kubelet's Device Manager for them.

The Device Manager chooses devices after the merge; here they are chosen already, and only the hints are left.
Devices of one kind count as one resource: every set that touches them all, of which the smallest are
preferred. For a single device these are all sets with a node of it, and those of one node.
"""

from collections.abc import Iterable
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from bayplan.engines.device_hints import names_text
from bayplan.engines.kubelet.topology.hints import Demand, Hint, HintSet, OfSize, ProviderHints, Region
from bayplan.engines.kubelet.topology.merge import narrowest_size
from bayplan.kubelet.pod import ContainerSpec, PodSpec
from bayplan.model.decision import DeviceHint
from bayplan.sets import NodeSet

State = TypeVar("State")


class AttachedDevices(Struct, frozen=True):
    """A provider for one container, known by its name; it allocates nothing. ``everything`` are all nodes of
    the machine."""

    container: str
    devices: tuple[DeviceHint, ...]
    everything: NodeSet

    def resources(self) -> dict[str, Demand]:
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

    def needs(self, container: ContainerSpec | None) -> Iterable[Demand]:
        """The devices as demands on nodes, for the container or (None) its pod."""
        return self.resources().values() if container is None or container.name == self.container else ()


def _all_of(places: frozenset[NodeSet]) -> Demand:
    """The demand that a set of nodes touches each of *places*."""
    single = {node: 1 for nodes in places if len(nodes) == 1 for node in nodes}
    several = sorted((nodes for nodes in places if len(nodes) > 1), key=tuple)
    return Demand(single, len(places), tuple((nodes, 1) for nodes in several))
