"""The memory of each node that no container can have: the kernel and processes outside of containers hold it
and it cannot be reclaimed, or the kernel keeps it free.

Held is what is used, without huge pages (their pools are not ordinary memory), page cache and other memory
that can be reclaimed, free pages on the lists of the CPUs, and the unreclaimable memory of the containers.
What remains has in it also what no counter names: pages of drivers, vmalloc, per-CPU memory. What is kept
free, `zoneinfo` says: an owner that touches it is killed.
"""

import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from bayplan.host.kernelfs import read_optional
from bayplan.host.meminfo import FILES, MEM_FREE, MEM_TOTAL, read_meminfo
from bayplan.host.numa_stat import HeldPages
from bayplan.host.zoneinfo import NO_ZONES, read_zones

_NODES: Final = "sys/devices/system/node"
_RECLAIMABLE: Final = ("KReclaimable", "SReclaimable")
"""The newer one (Linux 4.20) contains the older one."""

_ISOLATED: Final = re.compile(r"^nr_isolated_(?:anon|file) (\d+)$", re.MULTILINE)


def read_held_memory(
    containers: Iterable[HeldPages], hugepages_bytes: Mapping[int, int], root: Path = Path("/")
) -> dict[int, int]:
    """Bytes held outside of *containers* or kept free by the kernel, by node.

    *hugepages_bytes* is the size of all huge page pools together, for each node that is asked for.

    The files are not read at one moment: the result is good to a few MiB, and never below what is kept free.

    Raises:
        HostError: a file is missing or garbled.
    """
    inside: Counter[int] = Counter()
    for container in containers:
        inside.update(container.unreclaimable_bytes)
    zones = read_zones(root)
    held = {}
    for node, pools_bytes in hugepages_bytes.items():
        amounts = _amounts(root, node)
        reclaimable_bytes = sum(amounts.get(name, 0) for name in FILES)
        reclaimable_bytes += next((amounts[name] for name in _RECLAIMABLE if name in amounts), 0)
        zone = zones.get(node, NO_ZONES)
        used_bytes = amounts[MEM_TOTAL] - amounts[MEM_FREE] - pools_bytes - zone.lists.now_bytes
        used_bytes -= _isolated_bytes(root, node)
        held[node] = max(0, used_bytes - reclaimable_bytes - inside[node]) + zone.unusable_bytes
    return held


def read_memory_totals(nodes: Iterable[int], root: Path = Path("/")) -> dict[int, int]:
    """MemTotal of *nodes*, in bytes.

    Raises:
        HostError: a file is missing or garbled.
    """
    return {node: _amounts(root, node)[MEM_TOTAL] for node in nodes}


def _amounts(root: Path, node: int) -> dict[str, int]:
    """The lines of a node's meminfo that are in kB, in bytes; of the whole machine's without NUMA."""
    path = str(root / _NODES / f"node{node}/meminfo")
    text = read_optional(path)
    if text is None:
        path = str(root / "proc/meminfo")
    return read_meminfo(path, MEM_TOTAL, MEM_FREE, text=text)


def _isolated_bytes(root: Path, node: int) -> int:
    """Pages of processes and of the page cache that are on no list at the moment, because the kernel reclaims
    or moves them: under pressure, many. Nothing where the file is absent."""
    text = read_optional(str(root / _NODES / f"node{node}/vmstat"))
    pages = sum(map(int, _ISOLATED.findall(text or "")))
    return pages * os.sysconf("SC_PAGE_SIZE")
