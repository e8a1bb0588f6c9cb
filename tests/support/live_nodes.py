"""NUMA nodes and the pages of containers as files: meminfo of each node, memory.numa_stat of each cgroup.

What a container holds is taken from what its node has free, and moving pages moves them, as a kernel would
do; only the bytes count.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from bayplan.quantity import KIB
from support.oci_node import OciNode

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_KINDS = ("inactive_anon", "active_anon", "unevictable", "slab_unreclaimable", "shmem", "file_mapped")


class LiveNodes:
    """Nodes of *total_bytes* (by node) below the root of *node*, nothing of them used."""

    def __init__(self, node: OciNode, total_bytes: Mapping[int, int]) -> None:
        self.node = node
        self.total_bytes = dict(total_bytes)
        self.cache_bytes = dict.fromkeys(total_bytes, 0)
        self.outside_bytes = dict.fromkeys(total_bytes, 0)
        self.held: dict[str, dict[int, int]] = {}
        self.unmapped: dict[str, dict[int, int]] = {}
        """What of it is shared memory that no process has mapped."""
        (node.root / "proc").mkdir(parents=True, exist_ok=True)
        self.write()

    def hold(self, path: str, amounts_bytes: Mapping[int, int]) -> None:
        """Have the processes of the cgroup *path*, which is made if it is missing, hold so much."""
        if path not in self.held:
            self.node.make_cgroup(path)
        self.held[path] = dict(amounts_bytes)
        self.write()

    def move(self, path: str, source: int, target: int, wanted_bytes: int, *, write: bool = True) -> int:
        """Move pages as far as there is room; how many bytes."""
        row = self.held[path]
        movable = row.get(source, 0) - self.unmapped.get(path, {}).get(source, 0)
        part = max(0, min(wanted_bytes, movable, self.free(target) + self.cache_bytes[target]))
        row[source] = row.get(source, 0) - part
        row[target] = row.get(target, 0) + part
        self.cache_bytes[target] += min(0, self.free(target))
        if write:
            self.write()
        return part

    def free(self, node: int) -> int:
        """Bytes that nobody uses."""
        held = sum(row.get(node, 0) for row in self.held.values())
        return self.total_bytes[node] - held - self.cache_bytes[node] - self.outside_bytes[node]

    def write(self) -> None:
        """Write the files."""
        for node, total in self.total_bytes.items():
            directory = self.node.root / f"sys/devices/system/node/node{node}"
            directory.mkdir(parents=True, exist_ok=True)
            amounts = {
                "MemTotal": total,
                "MemFree": self.free(node),
                "Active(file)": 0,
                "Inactive(file)": self.cache_bytes[node],
                "Dirty": 0,
                "Writeback": 0,
                "KReclaimable": 0,
            }
            lines = (f"Node {node} {name}: {amount // KIB} kB\n" for name, amount in amounts.items())
            (directory / "meminfo").write_text("".join(lines))
        for path, row in self.held.items():
            self._write_numa_stat(path, self.node.directory(path), row)

    def _write_numa_stat(self, path: str, directory: Path, row: Mapping[int, int]) -> None:
        if not directory.exists():
            return
        if not self.node.hierarchy.unified:
            pages = {node: row.get(node, 0) // PAGE_BYTES for node in sorted(self.total_bytes)}
            columns = (f"N{node}={count}" for node, count in pages.items())
            text = " ".join((f"hierarchical_anon={sum(pages.values())}", *columns))
            (directory / "memory.numa_stat").write_text(f"{text}\n")
            return
        (directory / "memory.current").write_text(f"{sum(row.values())}\n")
        lines = []
        for kind in _KINDS:
            of_kind = {"inactive_anon": row, "shmem": self.unmapped.get(path, {})}.get(kind, {})
            columns = (f"N{node}={of_kind.get(node, 0)}" for node in sorted(self.total_bytes))
            lines.append(" ".join((kind, *columns)))
        (directory / "memory.numa_stat").write_text("\n".join(lines) + "\n")
