"""The devices that the spec of a container names, and where they are; and the CDI specs: those of the
machine, and our own, which tell containers which resource claims they have.

A device's numbers lead to its directory in sysfs, and the first ``numa_node`` on the way up is the answer;
-1 is none. Some virtual devices stand for real ones (VFIO groups, device mapper, MD, NVMe multipath), and are
where those are. Nothing is remembered: the numbers of a device that was unplugged are given to another one.

CDI specs say which device nodes a name like ``vendor.com/class=name`` stands for. A file is read again when
it has changed. Later directories win, as in every CDI client. A file that cannot be read is left out, and
mentioned where a name is not found.

Of mounts, only sources below /dev and /sys are read: others may be
on a file system that does not answer.
"""

import json
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
from msgspec import Struct

from bayplan.engines.device_hints import Findings
from bayplan.errors import HostError
from bayplan.files import MAX_FILE_BYTES, read_file
from bayplan.host import shadow_mode
from bayplan.host.kernelfs import parse_file, parse_number, read_optional, refusal
from bayplan.model.claims import (
    CDI_KIND,
    DRIVER,
    AdoptedClaim,
    ClaimedDevice,
    HeldClaim,
    cdi_name,
    is_uid,
    variable_of,
)
from bayplan.model.decision import DeviceHint
from bayplan.model.workload import Container, DeviceType
from bayplan.printable import pattern
from bayplan.sets import NodeSet, text_to_set

MAX_DEPTH: Final = 8
"""Of virtual devices upon virtual devices: ends a circle; real ones are two or three deep."""

NVIDIA_MAJOR: Final = 195
"""Registered for NVIDIA's devices, for which the driver makes no entries below /sys/dev."""

_VFIO_GROUP: Final = pattern(r"/devices/virtual/vfio/(?:noiommu-)?([0-9]{1,9})")
_NVME_SUBSYSTEM: Final = pattern(r"(.*/nvme-subsystem/nvme-subsys[0-9]{1,9})(?:/.*)?")
_NVME_CONTROLLER: Final = pattern(r"nvme[0-9]{1,9}")
_PCI_ADDRESS: Final = pattern(r"/([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])(?=/|$)")
_PCI_ROOT: Final = pattern(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")


class DevicePlace(NamedTuple):
    """The NUMA nodes of a device, none if they are not known, and its PCI address: several for devices that
    count as one."""

    nodes: NodeSet = NodeSet()
    addresses: frozenset[str] = frozenset()

    def and_also(self, other: "DevicePlace") -> "DevicePlace":
        """The place of two devices that count as one: this one and *other*."""
        return DevicePlace(self.nodes | other.nodes, self.addresses | other.addresses)


UNKNOWN: Final = DevicePlace()


class DeviceTree:
    """sysfs below *root*, a path without a slash at its end. Every method raises HostError where sysfs has
    something that cannot be."""

    def __init__(self, root: str = "") -> None:
        self._root = root
        self._sys = f"{root}/sys"

    def of_numbers(self, kind: DeviceType, major: int, minor: int) -> DevicePlace:
        """The place of the device with these numbers."""
        tree = "block" if kind is DeviceType.BLOCK else "char"
        link = f"{self._sys}/dev/{tree}/{major}:{minor}"
        if kind is DeviceType.CHARACTER and major == NVIDIA_MAJOR and not os.path.lexists(link):
            return self._of_nvidia(minor)
        return self._at(link, MAX_DEPTH)

    def of_bus_device(self, bus: str, name: str) -> DevicePlace:
        """The place of the device *name* on *bus*, the parent of a network interface for instance."""
        return self._at(f"{self._sys}/bus/{bus}/devices/{name}", MAX_DEPTH)

    def of_pci_root(self, name: str) -> DevicePlace:
        """The place of what is below a root of PCI devices, such as ``pci0000:3a``."""
        place = UNKNOWN
        for path in _entries(f"{self._sys}/devices/{name}") if _PCI_ROOT.fullmatch(name) else ():
            if _PCI_ADDRESS.search(path):
                place = place.and_also(self._climbed(path) or UNKNOWN)
        return place

    def of_path(self, path: str) -> DevicePlace:
        """The place of the device that a *path* below /sys belongs to."""
        return self._at(self._root + path, MAX_DEPTH)

    def _at(self, path: str, depth: int) -> DevicePlace:
        """The place of the device with that directory (or link to it), or of the devices it stands for."""
        directory = os.path.realpath(path)
        place = self._climbed(directory)
        if place is not None or depth == 0:
            return place or UNKNOWN
        place = UNKNOWN
        for lower in self._stands_for(directory):
            place = place.and_also(self._at(lower, depth - 1))
        return place

    def _climbed(self, directory: str) -> DevicePlace | None:
        """What the first ``numa_node`` from *directory* upwards says; None if there is none."""
        devices = f"{self._sys}/devices/"
        while directory.startswith(devices):
            path = f"{directory}/numa_node"
            text = read_optional(path)
            if text is not None:
                node = parse_file(path, _parse_node, text)
                addresses = frozenset(_PCI_ADDRESS.findall(directory)[-1:])
                return UNKNOWN if node is None else DevicePlace(NodeSet([node]), addresses)
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

    def _of_nvidia(self, minor: int) -> DevicePlace:
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


DIRECTORIES: Final = ("/etc/cdi", "/var/run/cdi")

_CLAIM_FILE: Final = "bayplan.dev-claim-*.json"
_CDI_VERSION: Final = "0.6.0"
"""The oldest one with annotations."""
_HELD: Final = f"{DRIVER}/held"
"""Annotation of a spec: what the claim holds."""


class CdiNode(msgspec.Struct, frozen=True, rename="camel"):
    """A device node to be made in a container. Without numbers those of ``host_path``, or ``path``, count."""

    path: str
    host_path: str | None = None
    type: str | None = None
    major: int | None = None
    minor: int | None = None


class _Edits(msgspec.Struct, frozen=True, rename="camel"):
    device_nodes: tuple[CdiNode, ...] | None = None


class _Device(msgspec.Struct, frozen=True, rename="camel"):
    """A device of a spec. CDI clients (sigs.k8s.io/yaml) take a number or a truth value where a text is
    expected."""

    name: str | bool | int | float
    container_edits: _Edits | None = None

    def full_name(self, kind: str) -> str:
        """The name by which containers ask for it."""
        name = str(self.name).removesuffix(".0") if isinstance(self.name, float) else self.name
        return f"{kind}={str(name).lower() if isinstance(name, bool) else name}"


class _Spec(msgspec.Struct, frozen=True):
    kind: str
    devices: tuple[_Device, ...] | None = None


class _Version(NamedTuple):
    """Differs from the version before if the file was changed or replaced."""

    device: int
    inode: int
    size_bytes: int
    modified_ns: int


class _File(Struct, frozen=True):
    """A file as it was read: device nodes by full name, or why it could not be read."""

    version: _Version
    devices: Mapping[str, tuple[CdiNode, ...]]
    problem: str = ""


class CdiSpecs:
    """The specs below *root* (a path without a slash at its end)."""

    def __init__(self, root: str = "") -> None:
        self._root = root
        self._files: dict[str, _File] = {}

    def device_nodes(self, name: str) -> tuple[CdiNode, ...]:
        """The device nodes that are made for this device alone.

        Raises:
            HostError: no spec names it.
        """
        self.refresh()
        for file in self._files.values():
            if name in file.devices:
                return file.devices[name]
        unread = "".join(f"; {file.problem}" for file in self._files.values() if file.problem)
        raise HostError(" and ".join(DIRECTORIES), f"no CDI spec there names {name}{unread}")

    def refresh(self) -> None:
        """Read the files that are new or changed, and forget those that are gone."""
        files: dict[str, _File] = {}
        for directory in reversed(DIRECTORIES):
            for path, version in _listed(self._root + directory):
                known = self._files.get(path)
                files[path] = (
                    known if known is not None and known.version == version else _read(path, version)
                )
        self._files = files


def _listed(directory: str) -> list[tuple[str, _Version]]:
    """The spec files of a directory with their versions, by name."""
    found = []
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                if entry.name.endswith((".json", ".yaml")) and entry.is_file():
                    status = entry.stat()
                    version = _Version(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
                    found.append((entry.path, version))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise refusal(directory, "cannot be listed", error) from error
    return sorted(found)


def _read(path: str, version: _Version) -> _File:
    try:
        content = read_file(path, MAX_FILE_BYTES).content
        # CDI clients read every file as YAML, whatever its name ends in; JSON takes a hundredth of the time.
        decode = msgspec.json.decode if content.lstrip().startswith((b"{", b"[")) else msgspec.yaml.decode
        spec = decode(content, type=_Spec)
    except OSError as error:
        return _File(version, {}, f"{path} cannot be read: {error.strerror}")
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        # ValueError: a value that YAML takes for a date and that is none.
        return _File(version, {}, f"{path} is no CDI spec: {error}")
    devices = {
        device.full_name(spec.kind): (device.container_edits or _Edits()).device_nodes or ()
        for device in spec.devices or ()
    }
    return _File(version, devices)


class ClaimSpecs:
    """The CDI specs of the resource claims that are held, files in *directory*: by their devices, one for
    each request, a runtime tells a container which claims it has. Of a claim that another driver has prepared
    they are that driver's. All calls block.

    Readers see a file whole or not at all: it is written beside, under a name that is no spec's, and renamed.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def write(self, held: HeldClaim) -> None:
        """Have the specs of a claim there; nothing is written where they are.

        Raises:
            HostError: one cannot be written.
        """
        if held.adopted is not None:
            files = {self._directory / name: text.encode() for name, text in held.adopted.specs.items()}
        else:
            files = {self._path(held.claim.uid): _claim_spec(held)}
        for path, content in files.items():
            self._write(path, content)

    def remove(self, uid: str) -> None:
        """Have no spec of that claim, which is ours.

        Raises:
            HostError: it cannot be removed.
        """
        self._remove(self._path(uid))

    def remove_adopted(self, adopted: AdoptedClaim) -> None:
        """Have no spec of a claim that another driver has prepared.

        Raises:
            HostError: one cannot be removed.
        """
        for name in adopted.specs:
            self._remove(self._directory / name)

    def uids(self) -> list[str]:
        """The claims whose specs are there and ours.

        Raises:
            HostError: they cannot be listed.
        """
        try:
            names = [one.name for one in self._directory.iterdir()]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise HostError(str(self._directory), f"cannot be listed: {error.strerror}") from error
        begin, end = _CLAIM_FILE.split("*")
        found = [name.removeprefix(begin).removesuffix(end) for name in names if name.startswith(begin)]
        return sorted(uid for uid in found if is_uid(uid))

    def held(self) -> list[HeldClaim]:
        """The claims as our specs describe them; a claim whose specs cannot be read is left out.

        Raises:
            HostError: they cannot be listed.
        """
        found = []
        for uid in self.uids():
            with suppress(OSError, msgspec.MsgspecError, ValueError, RecursionError):
                spec = msgspec.json.decode(read_file(self._path(uid), follow=False).content, type=_ClaimSpec)
                held = msgspec.json.decode(spec.annotations[_HELD], type=HeldClaim, dec_hook=text_to_set)
                if held.claim.uid == uid and len(held.cpus) == len(held.claim.devices):
                    found.append(held)
        return found

    def _path(self, uid: str) -> Path:
        if not is_uid(uid):
            raise HostError(str(self._directory), f"no uid of a claim: {uid[:80]!r}")
        return self._directory / _CLAIM_FILE.replace("*", uid)

    def _write(self, path: Path, content: bytes) -> None:
        with suppress(OSError):
            if read_file(path, follow=False).content == content:
                return
        shadow_mode.check_off(str(path))
        beside = path.with_name(f".{path.name}.new")
        try:
            self._directory.mkdir(mode=0o755, parents=True, exist_ok=True)
            beside.unlink(missing_ok=True)
            with beside.open("xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            beside.chmod(0o644)
            beside.rename(path)
        except OSError as error:
            raise HostError(str(path), f"cannot be written: {error.strerror}") from error

    def _remove(self, path: Path) -> None:
        shadow_mode.check_off(str(path))
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise HostError(str(path), f"cannot be removed: {error.strerror}") from error


class _ClaimSpec(Struct, frozen=True):
    annotations: dict[str, str]


def _claim_spec(held: HeldClaim) -> bytes:
    claim = held.claim
    devices = [
        {
            "name": cdi_name(claim.uid, request).rpartition("=")[2],
            "containerEdits": {"env": ["=".join(variable_of(claim.uid, request))]},
        }
        for request in claim.requests
    ]
    said = {_HELD: msgspec.json.encode(held, enc_hook=attrgetter("text")).decode()}
    spec = {"cdiVersion": _CDI_VERSION, "kind": CDI_KIND, "annotations": said, "devices": devices}
    return json.dumps(spec).encode() + b"\n"


MAX_DIRECTORY_ENTRIES: Final = 256

_ADDRESS: Final = pattern(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")

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
                    place = DevicePlace(NodeSet([device.numa_node]))
                if not place.nodes:
                    place = DevicePlace(self._tree.of_pci_root(device.pcie_root).nodes)
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

    def devices_of(self, container: Container) -> Iterator[tuple[str, str, Callable[[], DevicePlace]]]:
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

    def _of_numbers(self, *devices: _Numbers) -> DevicePlace:
        place = UNKNOWN
        for numbers in devices:
            if numbers not in self._seen:
                self._seen.add(numbers)
                place = place.and_also(self._tree.of_numbers(*numbers))
        return place

    def _of_cdi(self, name: str) -> DevicePlace:
        found = map(self._numbers_of_cdi, self._cdi.device_nodes(name))
        return self._of_numbers(*(numbers for numbers in found if numbers is not None))

    def _numbers_of_cdi(self, node: CdiNode) -> _Numbers | None:
        if node.type in {"b", "c", "u"} and node.major is not None and node.minor is not None:
            kind = DeviceType.BLOCK if node.type == "b" else DeviceType.CHARACTER
            return kind, node.major, node.minor
        return self._numbers_at(node.host_path or node.path)

    def _of_source(self, path: str) -> DevicePlace:
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


def _hint(name: str, place: DevicePlace, kind: str) -> DeviceHint:
    return DeviceHint(name, place.nodes, names=(name, *sorted(place.addresses)), kind=kind)


def _numbers(status: os.stat_result) -> _Numbers | None:
    if stat.S_ISBLK(status.st_mode):
        kind = DeviceType.BLOCK
    elif stat.S_ISCHR(status.st_mode):
        kind = DeviceType.CHARACTER
    else:
        return None
    return kind, os.major(status.st_rdev), os.minor(status.st_rdev)
