"""The devices that the spec of a container names, and where they are.

Device nodes, CDI names, and mounts. Of mounts, only sources below /dev and /sys are read: others may be
on a file system that does not answer. How a device leads to its NUMA node is in `bayplan.host.device_tree`.
"""

import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

from bayplan.engines.device_hints import Findings
from bayplan.errors import HostError
from bayplan.host.cdi import CdiNode, CdiSpecs
from bayplan.host.device_tree import UNKNOWN, DeviceTree, Place
from bayplan.host.kernelfs import refusal
from bayplan.model.decision import DeviceHint
from bayplan.model.resource_claim import CDI_KIND, ClaimedDevice
from bayplan.model.workload import Container, DeviceType
from bayplan.sets import NodeSet

MAX_DIRECTORY_ENTRIES: Final = 256

_ADDRESS: Final = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")

_Numbers = tuple[DeviceType, int, int]


class HostDevices:
    """The devices of the machine whose file systems are below *root*. All methods block for a moment."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = str(root.resolve()).rstrip("/")
        self._tree = DeviceTree(self._root)
        self._cdi = CdiSpecs(self._root)

    def prepare(self) -> None:
        """Read ahead what takes long: the CDI specs.

        Raises:
            HostError: their directories cannot be listed.
        """
        self._cdi.refresh()

    def find(self, container: Container) -> Findings:
        """The hints of all devices that the spec of *container* names, each device once.

        A CDI name stands for its device nodes. A directory of device nodes counts as one device that is
        attached to the nodes of all in it. What fails is a problem, never an error.
        """
        search = _Search(self._root, self._tree, self._cdi)
        hints, problems = [], []
        for name, kind, place_of in search.devices_of(container):
            try:
                place = place_of()
            except HostError as error:
                problems.append(f"{name}: {error}")
                continue
            if place.nodes:
                hints.append(_hint(name, place, kind))
        return Findings(tuple(hints), tuple(problems))

    def claimed(self, devices: Iterable[ClaimedDevice]) -> Findings:
        """The hints of devices that other drivers allocated: what the kernel says of an address goes before
        what a driver says of the node, and that before what the kernel says of a root."""
        hints, problems = [], []
        for device in devices:
            kind, names = device.name.partition("/")[0], [device.name]
            try:
                place = UNKNOWN
                if _ADDRESS.fullmatch(device.pci_address):
                    place = self._tree.of_bus_device("pci", device.pci_address)
                    names.append(device.pci_address)
                if not place.nodes and device.numa_node is not None:
                    place = Place(NodeSet([device.numa_node]))
                if not place.nodes:
                    place = Place(self._tree.of_pci_root(device.pcie_root).nodes)
            except HostError as error:
                problems.append(f"{device.name}: {error}")
                continue
            if place.nodes:
                hints.append(DeviceHint(device.name, place.nodes, names=tuple(names), kind=kind))
            else:
                problems.append(f"{device.name}: neither its driver nor the kernel says on which node it is")
        return Findings(tuple(hints), tuple(problems))

    def hint_of_parent(self, name: str, kind: str, bus: str, device: str) -> DeviceHint | None:
        """The hint *name* of a device as /sys/bus has it, of a *kind*; None if its nodes are not known.

        Raises:
            HostError: sysfs has something there that cannot be.
        """
        place = self._tree.of_bus_device(bus, device)
        return _hint(name, place, kind) if place.nodes else None


class _Search:
    """The search through one container's spec, which finds each device once."""

    def __init__(self, root: str, tree: DeviceTree, cdi: CdiSpecs) -> None:
        self._root, self._tree, self._cdi = root, tree, cdi
        self._seen: set[_Numbers] = set()

    def devices_of(self, container: Container) -> Iterator[tuple[str, str, Callable[[], Place]]]:
        """What is named, its kind, and the way to find its place. CDI names come first: device nodes that
        were made for one are better known by it. A mount has no kind: it was not chosen among others of
        one."""
        for name in container.cdi_devices:
            if name.startswith(f"{CDI_KIND}="):
                continue  # Not a device, but what we promised.
            yield name, name.rpartition("=")[0], partial(self._of_cdi, name)
        for device in container.devices:
            numbers = (device.type, device.major, device.minor)
            yield device.path, f"{device.type.value} {device.major}", partial(self._of_numbers, numbers)
        for mount in container.device_mounts:
            yield mount.source, "", partial(self._of_source, os.path.normpath(mount.source))

    def _of_numbers(self, *devices: _Numbers) -> Place:
        place = UNKNOWN
        for numbers in devices:
            if numbers not in self._seen:
                self._seen.add(numbers)
                place = place.and_also(self._tree.of_numbers(*numbers))
        return place

    def _of_cdi(self, name: str) -> Place:
        found = map(self._numbers_of_cdi, self._cdi.device_nodes(name))
        return self._of_numbers(*(numbers for numbers in found if numbers is not None))

    def _numbers_of_cdi(self, node: CdiNode) -> _Numbers | None:
        if node.type in {"b", "c", "u"} and node.major is not None and node.minor is not None:
            kind = DeviceType.BLOCK if node.type == "b" else DeviceType.CHARACTER
            return kind, node.major, node.minor
        return self._numbers_at(node.host_path or node.path)

    def _of_source(self, path: str) -> Place:
        if path.startswith("/sys/"):
            return self._tree.of_path(path)
        numbers = self._numbers_at(path)
        return self._of_numbers(*([numbers] if numbers is not None else self._numbers_in(path)))

    def _numbers_at(self, path: str) -> _Numbers | None:
        """The numbers of the device node *path*; None if it is none, or not there."""
        try:
            return _numbers(os.stat(self._root + path))  # noqa: PTH116 - paths are text in here
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise refusal(path, "cannot be examined", error) from error

    def _numbers_in(self, path: str) -> list[_Numbers]:
        """The device nodes directly in a directory below /dev. None in file systems that are mounted there
        (shared memory, huge pages, terminals), and none in /dev itself, which says nothing."""
        if path == "/dev":
            return []
        directory = self._root + path
        try:
            if os.stat(directory).st_dev != os.stat(f"{self._root}/dev").st_dev:  # noqa: PTH116 - the path is a text
                return []
            with os.scandir(directory) as entries:
                some = zip(range(MAX_DIRECTORY_ENTRIES), entries, strict=False)
                found = [_numbers(entry.stat()) for _, entry in some]
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise refusal(path, "cannot be listed", error) from error
        return [numbers for numbers in found if numbers is not None]


def _hint(name: str, place: Place, kind: str) -> DeviceHint:
    return DeviceHint(name, place.nodes, names=(name, *sorted(place.addresses)), kind=kind)


def _numbers(status: os.stat_result) -> _Numbers | None:
    if stat.S_ISBLK(status.st_mode):
        kind = DeviceType.BLOCK
    elif stat.S_ISCHR(status.st_mode):
        kind = DeviceType.CHARACTER
    else:
        return None
    return kind, os.major(status.st_rdev), os.minor(status.st_rdev)
