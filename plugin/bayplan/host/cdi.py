"""The CDI specs of the machine: which device nodes a name like ``vendor.com/class=name`` stands for; and
those of our own, which tell containers which resource claims they have.

A file is read again when it has changed. Later directories win, as in every CDI client. A
file that cannot be read is left out, and mentioned where a name is not found.
"""

import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
from msgspec import Struct

from bayplan.errors import HostError
from bayplan.files import MAX_FILE_BYTES, read_file
from bayplan.host import shadow_mode
from bayplan.host.kernelfs import refusal
from bayplan.model.resource_claim import CDI_KIND, cdi_name, is_uid, variable_of

DIRECTORIES: Final = ("/etc/cdi", "/var/run/cdi")

_CLAIM_FILE: Final = "bayplan.dev-claim-*.json"
_CDI_VERSION: Final = "0.3.0"
"""The oldest one that every runtime with CDI reads; newer ones have nothing that is needed here."""


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


class ClaimSpecs:
    """The CDI specs of the resource claims that are held, a file for each in *directory*: by its devices,
    one for each request, a runtime tells a container which claims it has. All calls block.

    Readers see a file whole or not at all: it is written beside, under a name that is no spec's, and renamed.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def write(self, uid: str, requests: Iterable[str]) -> None:
        """Have the spec of a claim there; nothing is written where it is.

        Raises:
            HostError: it cannot be written.
        """
        path, content = self._path(uid), _claim_spec(uid, requests)
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

    def remove(self, uid: str) -> None:
        """Have no spec of that claim.

        Raises:
            HostError: it cannot be removed.
        """
        path = self._path(uid)
        shadow_mode.check_off(str(path))
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise HostError(str(path), f"cannot be removed: {error.strerror}") from error

    def uids(self) -> list[str]:
        """The claims whose specs are there.

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

    def _path(self, uid: str) -> Path:
        if not is_uid(uid):
            raise HostError(str(self._directory), f"no uid of a claim: {uid[:80]!r}")
        return self._directory / _CLAIM_FILE.replace("*", uid)


def _claim_spec(uid: str, requests: Iterable[str]) -> bytes:
    devices = [
        {
            "name": cdi_name(uid, request).rpartition("=")[2],
            "containerEdits": {"env": ["=".join(variable_of(uid, request))]},
        }
        for request in requests
    ]
    return json.dumps({"cdiVersion": _CDI_VERSION, "kind": CDI_KIND, "devices": devices}).encode() + b"\n"
