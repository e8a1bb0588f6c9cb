"""A container's bundle: its config.json, read and replaced through descriptors, without following links.

The bundle is a directory that a container engine made for one container. Root names it to us, but the
file is checked all the same: a regular file of bounded size, in that very directory.
"""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from bayplan.files import read_file
from bayplan.host import shadow_mode
from bayplan.oci.documents import OciError
from bayplan.oci.protocol import MAX_BODY_BYTES

CONFIG: Final = "config.json"
_FRESH: Final = ".config.json.bayplan"
_WRITABLE_BY_OTHERS: Final = stat.S_IWGRP | stat.S_IWOTH
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def read_config(bundle: str) -> bytes:
    """The text of the bundle's config.json.

    Raises:
        OciError: *bundle* is not the plain path of a directory, or its config.json is missing, a link, no
            regular file, writable by others, or longer than 16 MiB.
    """
    with _opened(bundle) as directory:
        return _read(directory, bundle)[0]


def replace_config(bundle: str, expected: bytes, replacement: bytes) -> None:
    """Put *replacement* in the place of a config.json that still has the text *expected*: all at once, with
    the mode and the owner of the old one.

    Raises:
        OciError: as `read_config`; or it has another text by now, or cannot be replaced.
    """
    path = f"{bundle}/{CONFIG}"
    shadow_mode.check_off(path)
    with _opened(bundle) as directory:
        found, status = _read(directory, bundle)
        if found != expected:
            raise OciError(path, "was changed by somebody else meanwhile")
        try:
            _write(directory, replacement, status)
        except OSError as error:
            raise OciError(path, f"cannot be replaced: {error.strerror}") from error


def sibling_config(bundle: str, container_id: str, name: str) -> bytes | None:
    """The config.json of another container of the same engine, None if it cannot be read.

    Engines keep bundles side by side: containerd as ``.../ID``, CRI-O and podman as ``.../ID/userdata``.
    *name* is the id of this bundle's container.
    """
    head, found, tail = bundle.rpartition(f"/{name}")
    if not found or "/" in container_id or tail not in ("", "/userdata"):
        return None
    try:
        return read_config(f"{head}/{container_id}{tail}")
    except OciError:
        return None


@contextmanager
def _opened(bundle: str) -> Iterator[int]:
    plain = os.path.normpath(bundle) if bundle else ""
    if not bundle.startswith("/") or "\0" in bundle or bundle.rstrip("/") != plain:
        raise OciError("bundle", f"found {bundle[:200]!r}, expected an absolute path without '.' and '..'")
    try:
        descriptor = os.open(plain, _DIRECTORY)
    except OSError as error:
        # A link that was to be opened as a directory is "not a directory" to the kernel.
        reason = "it is a symbolic link" if Path(plain).is_symlink() else _reason(error)
        raise OciError(plain, f"is not a bundle: {reason}") from error
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _read(directory: int, bundle: str) -> tuple[bytes, os.stat_result]:
    path = f"{bundle}/{CONFIG}"
    try:
        content, status = read_file(CONFIG, MAX_BODY_BYTES, dir_fd=directory, follow=False)
    except OSError as error:
        raise OciError(path, f"cannot be read: {_reason(error)}") from error
    if status.st_mode & _WRITABLE_BY_OTHERS:
        raise OciError(path, f"is writable by others (mode {stat.S_IMODE(status.st_mode):o})")
    return content, status


def _write(directory: int, content: bytes, like: os.stat_result) -> None:
    # Left by a daemon that was killed here.
    with suppress(FileNotFoundError):
        os.unlink(_FRESH, dir_fd=directory)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(_FRESH, flags, 0o600, dir_fd=directory)
    try:
        try:
            rest = memoryview(content)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
            # In this order: once it is somebody else's, its mode takes a capability to change.
            os.fchmod(descriptor, stat.S_IMODE(like.st_mode))
            os.fchown(descriptor, like.st_uid, like.st_gid)
        finally:
            os.close(descriptor)
        os.rename(_FRESH, CONFIG, src_dir_fd=directory, dst_dir_fd=directory)
    except OSError:
        with suppress(FileNotFoundError):
            os.unlink(_FRESH, dir_fd=directory)
        raise


def _reason(error: OSError) -> str:
    if error.errno == errno.ELOOP:
        return "it is a symbolic link"
    return error.strerror or str(error)
