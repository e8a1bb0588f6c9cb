"""Having the kernel reclaim page cache before somebody has to wait for it. Blocks while the kernel does."""

import errno
from pathlib import Path
from typing import Final

from bayplan.host.kernelfs import RefusedError, write_text

_NODE: Final = "sys/devices/system/node/node{}/reclaim"
_CGROUP: Final = "memory.reclaim"
_ONLY_FILES: Final = " swappiness=0"
"""Linux 6.9: without it the kernel may swap out, too, where there is swap."""
_PARTLY: Final = (errno.EAGAIN, errno.EINTR)
"""The kernel reclaimed less than it was asked for."""


def can_reclaim_nodes(node: int, root: Path = Path("/")) -> bool:
    """Whether the kernel reclaims on single nodes (from Linux 6.17 on)."""
    return (root / _NODE.format(node)).exists()


def reclaim_on_node(node: int, amount_bytes: int, root: Path = Path("/")) -> None:
    """Reclaim page cache on *node*, whoever it belongs to.

    Raises:
        AbsentError: the kernel cannot, or the node is gone.
        RefusedError: it will not.
    """
    _write(str(root / _NODE.format(node)), amount_bytes)


def reclaim_in_cgroup(directory: str, amount_bytes: int) -> None:
    """Reclaim page cache of a cgroup, on whichever nodes it lies; *directory* is its path (cgroup v2, from
    Linux 5.19 on). Raises like `reclaim_on_node`.
    """
    _write(f"{directory}/{_CGROUP}", amount_bytes)


def _write(path: str, amount_bytes: int) -> None:
    try:
        try:
            write_text(path, f"{amount_bytes}{_ONLY_FILES}")
        except RefusedError as error:
            if error.errno != errno.EINVAL:
                raise
            write_text(path, str(amount_bytes))
    except RefusedError as error:
        if error.errno not in _PARTLY:
            raise
