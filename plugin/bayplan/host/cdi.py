"""The CDI specs of the machine: which device nodes a name like ``vendor.com/class=name`` stands for.

A file is read again when it has changed. Later directories win, as in every CDI client. A
file that cannot be read is left out, and mentioned where a name is not found.
"""

import os
from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec
from msgspec import Struct

from bayplan.errors import HostError
from bayplan.files import MAX_FILE_BYTES, read_file
from bayplan.host.kernelfs import refusal

DIRECTORIES: Final = ("/etc/cdi", "/var/run/cdi")


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
    name: str
    container_edits: _Edits = _Edits()


class _Spec(msgspec.Struct, frozen=True):
    kind: str
    devices: tuple[_Device, ...] = ()


class _Version(NamedTuple):
    """Differs if the file was changed or replaced."""

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
    decode = msgspec.json.decode if path.endswith(".json") else msgspec.yaml.decode
    try:
        spec = decode(read_file(path, MAX_FILE_BYTES).content, type=_Spec)
    except OSError as error:
        return _File(version, {}, f"{path} cannot be read: {error.strerror}")
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        # ValueError: a value that YAML takes for a date and that is none.
        return _File(version, {}, f"{path} is no CDI spec: {error}")
    devices = {
        f"{spec.kind}={device.name}": device.container_edits.device_nodes or () for device in spec.devices
    }
    return _File(version, devices)
