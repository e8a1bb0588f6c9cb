"""The files that tell containers what they were given: a directory for each, which is mounted in it.

The directory is mounted and not the file, because what is mounted is an inode: a file that is replaced by
rename(2) is seen through the mount of its directory only. Readers see one version or the next, whole: it is
written beside and renamed. Whoever is killed in between leaves a file beside, which the next write replaces.
Root writes, everybody reads: in user namespaces root is nobody.
"""

import json
import os
from pathlib import Path
from typing import Final

from bayplan.errors import HostError
from bayplan.files import read_file
from bayplan.host import shadow_mode
from bayplan.printable import pattern

FILE: Final = "placement.json"
DIRECTORY: Final = Path("/run/bayplan-placements")
"""Unless another one is configured. Not below /run/bayplan: systemd removes that when the daemon stops."""

_FRESH: Final = f".{FILE}"
_ID: Final = pattern(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,254}")
_EVERYBODY_READS: Final = 0o755
_MOST_BYTES: Final = 1 << 20


class PlacementDirectory:
    """The directories of all containers, below *root*. All calls block."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def source(self, container_id: str) -> str:
        """The directory of a container.

        Raises:
            HostError: the id cannot be the name of one.
        """
        if _ID.fullmatch(container_id) is None:
            problem = f"no name of a directory: {container_id[:80]!r}"
            raise HostError(str(self._root), problem)
        return f"{self._root}/{container_id}"

    def write(self, container_id: str, content: bytes, *, make: bool = True) -> bool:
        """Have *content* in the file of a container; *make*: also where its directory is missing. Whether it
        is there now.

        Raises:
            HostError: it cannot be written.
        """
        directory = self.source(container_id)
        shadow_mode.check_off(directory)
        try:
            if make:
                self._make(directory)
            descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise HostError(directory, f"cannot be made: {error.strerror}") from error
        try:
            _replace(descriptor, content)
        except OSError as error:
            raise HostError(f"{directory}/{FILE}", f"cannot be written: {error.strerror}") from error
        finally:
            os.close(descriptor)
        return True

    def generation(self, container_id: str) -> tuple[int, bytes]:
        """The generation of a container's file, and the file; 0 for one that is not there, or is no longer
        what was written."""
        try:
            content = read_file(f"{self.source(container_id)}/{FILE}", _MOST_BYTES, follow=False).content
            number = json.loads(content)["metadata"]["generation"]
        except (OSError, ValueError, LookupError, TypeError, RecursionError, HostError):
            return 0, b""
        return (number, content) if isinstance(number, int) and number > 0 else (0, b"")

    def ages_s(self, now_s: float) -> dict[str, float]:
        """For each container with a directory, how long ago that was last changed.

        Raises:
            HostError: they cannot be listed.
        """
        try:
            with os.scandir(self._root) as found:
                return {
                    one.name: now_s - one.stat(follow_symlinks=False).st_mtime
                    for one in found
                    if one.is_dir(follow_symlinks=False) and _ID.fullmatch(one.name)
                }
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise HostError(str(self._root), f"cannot be listed: {error.strerror}") from error

    def remove(self, container_id: str) -> None:
        """Remove the directory of a container that is gone, if there is one. What somebody else
        puts there stays, and with it the directory.

        Raises:
            HostError: it cannot be removed.
        """
        directory = self.source(container_id)
        shadow_mode.check_off(directory)
        try:
            for name in (FILE, _FRESH):
                Path(directory, name).unlink(missing_ok=True)
            Path(directory).rmdir()
        except FileNotFoundError:
            return
        except OSError as error:
            raise HostError(directory, f"cannot be removed: {error.strerror}") from error

    def _make(self, directory: str) -> None:
        for path in (self._root, Path(directory)):
            path.mkdir(mode=0o755, parents=True, exist_ok=True)
            if path.stat().st_mode & 0o777 != _EVERYBODY_READS:  # whatever the umask is
                path.chmod(_EVERYBODY_READS)


def _replace(directory: int, content: bytes) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(_FRESH, flags, 0o644, dir_fd=directory)
    try:
        os.fchmod(descriptor, 0o444)
        view = memoryview(content)
        while view:
            view = view[os.write(descriptor, view) :]
    finally:
        os.close(descriptor)
    os.rename(_FRESH, FILE, src_dir_fd=directory, dst_dir_fd=directory)
