"""Having the kernel reclaim page cache before somebody has to wait for it. Blocks while the kernel does."""

import errno
from pathlib import Path
from typing import Final

from bayplan.host.hierarchy import MEMORY, Hierarchy
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


def missing_abilities(hierarchy: Hierarchy, node: int) -> str:
    """What this machine cannot do about memory that runs out, as a sentence; empty for nothing. *node* is one
    of its nodes."""
    if not hierarchy.unified:
        found = (
            "with cgroup v1 the kernel's memory of containers, and what services hold, is not known, and"
            " nobody is slowed down until promised memory is freed"
        )
        return (
            found if can_reclaim_nodes(node, hierarchy.root) else f"{found}, and page cache is not reclaimed"
        )
    if can_reclaim_nodes(node, hierarchy.root) or Path(hierarchy.mounts[MEMORY], _CGROUP).exists():
        return ""
    return "page cache is not reclaimed: the kernel has memory.reclaim from 5.19 on"


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
