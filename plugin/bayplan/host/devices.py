"""Devices of a container and the NUMA nodes they are attached to, as sysfs tells.

A device node's numbers lead to its directory in sysfs, and the first ``numa_node`` on the way up is the
answer; -1 is none. Some virtual devices stand for real ones (VFIO groups, device mapper, MD, NVMe multipath),
and are where those are. Of mounts, only sources below /dev and /sys are looked at: others may be on a file
system that does not answer. Nothing is remembered but CDI specs: the numbers of a device that was unplugged
are given to another one.
"""

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from bayplan.domain.decision import DeviceHint
from bayplan.domain.device_hints import Findings
from bayplan.domain.workload import Container, DeviceType, Mount
from bayplan.errors import HostError
from bayplan.host.cdi import CdiNode, CdiSpecs
from bayplan.host.kernelfs import parse_file, parse_number, read_optional, refusal
from bayplan.sets import NodeSet

MAX_DEPTH: Final = 8
"""Of virtual devices upon virtual devices; the kernel's device mapper warns from a depth of 8 on."""

MAX_DIRECTORY_ENTRIES: Final = 256
NVIDIA_MAJOR: Final = 195
"""Registered for NVIDIA's devices, for which the driver makes no entries below /sys/dev."""

_PCI_ADDRESS: Final = re.compile(r"/([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])(?=/|$)")
_VFIO_GROUP: Final = re.compile(r"/devices/virtual/vfio/(?:noiommu-)?([0-9]{1,9})")
_NVME_SUBSYSTEM: Final = re.compile(r"(.*/nvme-subsystem/nvme-subsys[0-9]{1,9})(?:/.*)?")
_NVME_CONTROLLER: Final = re.compile(r"nvme[0-9]{1,9}")

_Numbers = tuple[DeviceType, int, int]


class HostDevices:
    """The devices of the machine whose file systems are below *root*. All methods block for a moment."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = str(root.resolve()).rstrip("/")
        self._sys = f"{self._root}/sys"
        self._cdi = CdiSpecs(self._root)

    def prepare(self) -> None:
        """Read ahead what takes long: the CDI specs."""
        self._cdi.refresh()

    def find(self, container: Container) -> Findings:
        """The hints of everything that the spec of *container* says about devices, each device once.

        A CDI name stands for its device nodes. A directory of device nodes counts as one device that is
        attached to the nodes of all in it. What fails is a problem, never an error.
        """
        hints: list[DeviceHint] = []
        problems: list[str] = []
        seen: dict[_Numbers, None] = {}
        named = 0
        for name, nodes in self._all(container, seen):
            own, named = list(seen)[named:], len(seen)
            if isinstance(nodes, str):
                problems.append(f"{name}: {nodes}")
            elif nodes:
                addresses = {self._pci_address(*numbers) for numbers in own} - {""}
                hints.append(DeviceHint(name, nodes, names=(name, *sorted(addresses))))
        return Findings(tuple(hints), tuple(problems))

    def nodes_of(self, kind: DeviceType, major: int, minor: int) -> NodeSet:
        """The nodes that the device with these numbers is attached to, empty if that is not known.

        Raises:
            HostError: sysfs has something there that cannot be.
        """
        tree = "block" if kind is DeviceType.BLOCK else "char"
        directory = self._resolved(f"{self._sys}/dev/{tree}/{major}:{minor}")
        if directory is not None:
            return self._nodes_at(directory, MAX_DEPTH)
        if kind is DeviceType.CHARACTER and major == NVIDIA_MAJOR:
            address = self._nvidia_address(minor)
            return self.nodes_of_parent("pci", address) if address else NodeSet()
        return NodeSet()

    def nodes_of_parent(self, bus: str, name: str) -> NodeSet:
        """The nodes of the device *name* on *bus*, the parent of a network interface for instance.

        Raises:
            HostError: sysfs has something there that cannot be.
        """
        directory = self._resolved(f"{self._sys}/bus/{bus}/devices/{name}")
        return NodeSet() if directory is None else self._nodes_at(directory, MAX_DEPTH)

    # ---- What a spec says ----------------------------------------------------------------------------

    def _all(self, container: Container, seen: dict[_Numbers, None]) -> Iterator[tuple[str, NodeSet | str]]:
        """Names with their nodes, or with what went wrong."""
        for name in container.cdi_devices:
            try:
                yield name, self._of_cdi(name, seen)
            except HostError as error:
                yield name, str(error)
        for device in container.devices:
            try:
                yield device.path, self._of_numbers((device.type, device.major, device.minor), seen)
            except HostError as error:
                yield device.path, str(error)
        for mount in container.device_mounts:
            try:
                yield mount.source, self._of_mount(mount, seen)
            except HostError as error:
                yield mount.source, str(error)

    def _of_numbers(self, numbers: _Numbers, seen: dict[_Numbers, None]) -> NodeSet:
        if numbers in seen:
            return NodeSet()
        seen[numbers] = None
        return self.nodes_of(*numbers)

    def _of_cdi(self, name: str, seen: dict[_Numbers, None]) -> NodeSet:
        nodes = NodeSet()
        for node in self._cdi.device_nodes(name):
            numbers = self._numbers_of_cdi(node)
            if numbers is not None:
                nodes |= self._of_numbers(numbers, seen)
        return nodes

    def _numbers_of_cdi(self, node: CdiNode) -> _Numbers | None:
        if node.type in {"b", "c", "u"} and node.major is not None and node.minor is not None:
            kind = DeviceType.BLOCK if node.type == "b" else DeviceType.CHARACTER
            return kind, node.major, node.minor
        return self._numbers_at(node.host_path or node.path)

    def _of_mount(self, mount: Mount, seen: dict[_Numbers, None]) -> NodeSet:
        path = os.path.normpath(mount.source)
        if path.startswith("/sys/"):
            directory = self._resolved(self._root + path)
            return NodeSet() if directory is None else self._nodes_at(directory, MAX_DEPTH)
        numbers = self._numbers_at(path)
        if numbers is not None:
            return self._of_numbers(numbers, seen)
        nodes = NodeSet()
        for below in self._device_nodes_in(path):
            nodes |= self._of_numbers(below, seen)
        return nodes

    def _numbers_at(self, path: str) -> _Numbers | None:
        """The numbers of the device node *path*; None if it is none, or not there."""
        try:
            return _numbers(os.stat(self._root + path))  # noqa: PTH116 - paths are text in here
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise refusal(path, "cannot be looked at", error) from error

    def _device_nodes_in(self, path: str) -> list[_Numbers]:
        """The device nodes directly in a directory below /dev. None in file systems that are mounted there
        (shared memory, huge pages, terminals), and none in /dev itself, which says nothing."""
        if path == "/dev":
            return []
        directory = self._root + path
        try:
            if os.stat(directory).st_dev != os.stat(f"{self._root}/dev").st_dev:  # noqa: PTH116
                return []
            with os.scandir(directory) as entries:
                found = [
                    _numbers(entry.stat())
                    for _, entry in zip(range(MAX_DIRECTORY_ENTRIES), entries, strict=False)
                ]
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise refusal(path, "cannot be listed", error) from error
        return [numbers for numbers in found if numbers is not None]

    # ---- sysfs ---------------------------------------------------------------------------------------

    def _nodes_at(self, directory: str, depth: int) -> NodeSet:
        """The nodes of a device by its directory, or those of the devices that it stands for."""
        nodes = self._numa_node(directory)
        if nodes is not None or depth == 0:
            return nodes or NodeSet()
        nodes = NodeSet()
        for lower in self._stands_for(directory):
            resolved = self._resolved(lower)
            if resolved is not None:
                nodes |= self._nodes_at(resolved, depth - 1)
        return nodes

    def _numa_node(self, directory: str) -> NodeSet | None:
        """What the first ``numa_node`` from *directory* upwards says; None if there is none."""
        devices = f"{self._sys}/devices/"
        while directory.startswith(devices):
            path = f"{directory}/numa_node"
            text = read_optional(path)
            if text is not None:
                node = parse_file(path, _parse_node, text)
                return NodeSet() if node is None else NodeSet([node])
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

    def _pci_address(self, kind: DeviceType, major: int, minor: int) -> str:
        """The PCI address of a device, empty if it has none."""
        tree = "block" if kind is DeviceType.BLOCK else "char"
        directory = self._resolved(f"{self._sys}/dev/{tree}/{major}:{minor}")
        if directory is not None:
            return next(iter(_PCI_ADDRESS.findall(directory)[-1:]), "")
        return self._nvidia_address(minor) if major == NVIDIA_MAJOR else ""

    def _nvidia_address(self, minor: int) -> str:
        """The PCI address of the GPU with that minor number, which the driver tells in /proc."""
        for directory in _entries(f"{self._root}/proc/driver/nvidia/gpus"):
            for line in (read_optional(f"{directory}/information") or "").splitlines():
                name, _, value = line.partition(":")
                if name.strip() == "Device Minor" and value.strip() == str(minor):
                    return directory.rpartition("/")[2]
        return ""

    def _resolved(self, path: str) -> str | None:
        """The real path of an entry of sysfs; None if there is none."""
        found = os.path.realpath(path)
        return found if os.path.exists(found) else None  # noqa: PTH110


def _numbers(status: os.stat_result) -> _Numbers | None:
    if stat.S_ISBLK(status.st_mode):
        kind = DeviceType.BLOCK
    elif stat.S_ISCHR(status.st_mode):
        kind = DeviceType.CHARACTER
    else:
        return None
    return kind, os.major(status.st_rdev), os.minor(status.st_rdev)


def _parse_node(text: str) -> int | None:
    """A node id; None for -1, the kernel's "not known"."""
    return None if text.strip() == "-1" else parse_number(text)


def _entries(directory: str) -> list[str]:
    """The paths of a directory's entries, sorted; none if it is absent."""
    try:
        return sorted(f"{directory}/{name}" for name in os.listdir(directory))  # noqa: PTH208
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise refusal(directory, "cannot be listed", error) from error
