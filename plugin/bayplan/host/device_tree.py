"""Where in sysfs a device is, and the NUMA node it is attached to.

A device's numbers lead to its directory in sysfs, and the first ``numa_node`` on the way up is the answer;
-1 is none. Some virtual devices stand for real ones (VFIO groups, device mapper, MD, NVMe multipath), and are
where those are. Nothing is remembered: the numbers of a device that was unplugged are given to another one.
"""

import os
import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from bayplan.host.kernelfs import parse_file, parse_number, read_optional, refusal
from bayplan.model.workload import DeviceType
from bayplan.sets import NodeSet

MAX_DEPTH: Final = 8
"""Of virtual devices upon virtual devices: ends a circle; real ones are two or three deep."""

NVIDIA_MAJOR: Final = 195
"""Registered for NVIDIA's devices, for which the driver makes no entries below /sys/dev."""

_VFIO_GROUP: Final = re.compile(r"/devices/virtual/vfio/(?:noiommu-)?([0-9]{1,9})")
_NVME_SUBSYSTEM: Final = re.compile(r"(.*/nvme-subsystem/nvme-subsys[0-9]{1,9})(?:/.*)?")
_NVME_CONTROLLER: Final = re.compile(r"nvme[0-9]{1,9}")
_PCI_ADDRESS: Final = re.compile(r"/([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])(?=/|$)")
_PCI_ROOT: Final = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")


class Place(NamedTuple):
    """The NUMA nodes of a device, none if they are not known, and its PCI address: several for devices that
    count as one."""

    nodes: NodeSet = NodeSet()
    addresses: frozenset[str] = frozenset()

    def and_also(self, other: "Place") -> "Place":
        """The place of two devices that count as one."""
        return Place(self.nodes | other.nodes, self.addresses | other.addresses)


UNKNOWN: Final = Place()


class DeviceTree:
    """sysfs below *root*, a path without a slash at its end. Every method raises HostError where sysfs has
    something that cannot be."""

    def __init__(self, root: str = "") -> None:
        self._root = root
        self._sys = f"{root}/sys"

    def of_numbers(self, kind: DeviceType, major: int, minor: int) -> Place:
        """The place of the device with these numbers."""
        tree = "block" if kind is DeviceType.BLOCK else "char"
        link = f"{self._sys}/dev/{tree}/{major}:{minor}"
        if kind is DeviceType.CHARACTER and major == NVIDIA_MAJOR and not os.path.lexists(link):
            return self._of_nvidia(minor)
        return self._at(link, MAX_DEPTH)

    def of_bus_device(self, bus: str, name: str) -> Place:
        """The place of the device *name* on *bus*, the parent of a network interface for instance."""
        return self._at(f"{self._sys}/bus/{bus}/devices/{name}", MAX_DEPTH)

    def of_pci_root(self, name: str) -> Place:
        """The place of what is below a root of PCI devices, such as ``pci0000:3a``."""
        place = UNKNOWN
        for path in _entries(f"{self._sys}/devices/{name}") if _PCI_ROOT.fullmatch(name) else ():
            if _PCI_ADDRESS.search(path):
                place = place.and_also(self._climbed(path) or UNKNOWN)
        return place

    def of_path(self, path: str) -> Place:
        """The place of the device that a *path* below /sys belongs to."""
        return self._at(self._root + path, MAX_DEPTH)

    def _at(self, path: str, depth: int) -> Place:
        """The place of the device with that directory (or link to it), or of the devices it stands for."""
        directory = os.path.realpath(path)
        place = self._climbed(directory)
        if place is not None or depth == 0:
            return place or UNKNOWN
        place = UNKNOWN
        for lower in self._stands_for(directory):
            place = place.and_also(self._at(lower, depth - 1))
        return place

    def _climbed(self, directory: str) -> Place | None:
        """What the first ``numa_node`` from *directory* upwards says; None if there is none."""
        devices = f"{self._sys}/devices/"
        while directory.startswith(devices):
            path = f"{directory}/numa_node"
            text = read_optional(path)
            if text is not None:
                node = parse_file(path, _parse_node, text)
                addresses = frozenset(_PCI_ADDRESS.findall(directory)[-1:])
                return UNKNOWN if node is None else Place(NodeSet([node]), addresses)
            directory = directory.rpartition("/")[0]
        return None

    def _stands_for(self, directory: str) -> Iterator[str]:
        """The directories of the real devices behind a virtual one."""
        group = _VFIO_GROUP.fullmatch(directory.removeprefix(self._sys))
        if group is not None:
            yield from _entries(f"{self._sys}/kernel/iommu_groups/{group[1]}/devices")
            return
        subsystem = _NVME_SUBSYSTEM.fullmatch(directory)
        if subsystem is not None:
            for path in _entries(subsystem[1]):
                if _NVME_CONTROLLER.fullmatch(path.rpartition("/")[2]):
                    yield path
            return
        disk = directory.rpartition("/")[0] if read_optional(f"{directory}/partition") else directory
        yield from _entries(f"{disk}/slaves")

    def _of_nvidia(self, minor: int) -> Place:
        """The place of the GPU with that minor number, which the driver shows in /proc by PCI address."""
        for directory in _entries(f"{self._root}/proc/driver/nvidia/gpus"):
            for line in (read_optional(f"{directory}/information") or "").splitlines():
                name, _, value = line.partition(":")
                if name.strip() == "Device Minor" and value.strip() == str(minor):
                    return self.of_bus_device("pci", directory.rpartition("/")[2])
        return UNKNOWN


def _parse_node(text: str) -> int | None:
    """A node id; None for -1, the kernel's "not known"."""
    return None if text.strip() == "-1" else parse_number(text)


def _entries(directory: str) -> list[str]:
    """The paths of a directory's entries, sorted; none if it is absent."""
    try:
        return sorted(f"{directory}/{name}" for name in os.listdir(directory))  # noqa: PTH208 - names are wanted, not paths
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise refusal(directory, "cannot be listed", error) from error
