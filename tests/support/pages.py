"""Pages without a kernel: a cgroup's memory.numa_stat as a file, and what migrate_pages(2) would do to it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from bayplan.sets import NodeSet

_KINDS: Final = ("inactive_anon", "active_anon", "unevictable")
_PAGE_BYTES: Final = 4096


class CgroupPages:
    """The memory of the container whose cgroup is *directory*.

    ``room_bytes`` is what the nodes that it goes to can take yet, without end if None. ``calls`` are those of
    `migrate`, each with its process, the nodes to leave and the nodes to stay on.
    """

    def __init__(self, directory: Path, room_bytes: int | None = None) -> None:
        self.calls: list[tuple[int, NodeSet, NodeSet]] = []
        self.room_bytes = room_bytes
        self._file = directory / "memory.numa_stat"

    def hold(self, amounts: Mapping[str, Mapping[int, int]]) -> None:
        """Have this memory: kind -> node -> bytes."""
        lists: dict[str, Mapping[int, int]] = {kind: {} for kind in _KINDS}
        rows = (
            " ".join((kind, *(f"N{node}={amount}" for node, amount in sorted(row.items()))))
            for kind, row in (lists | dict(amounts)).items()
        )
        self._file.write_text("\n".join(rows) + "\n")

    @property
    def held(self) -> dict[str, dict[int, int]]:
        """The memory that it has: kind -> node -> bytes."""
        found = {}
        for line in self._file.read_text().splitlines():
            kind, *columns = line.split()
            pairs = (column.removeprefix("N").split("=") for column in columns)
            if columns:
                found[kind] = {int(node): int(amount) for node, amount in pairs}
        return found

    def migrate(self, pid: int, leave: NodeSet, stay: NodeSet) -> int:
        """See `bayplan.host.page_migration.migrate_pages`; all pages are those of every process."""
        self.calls.append((pid, leave, stay))
        held, left_bytes = self.held, 0
        target = next(iter(stay))
        for kind in held.keys() & set(_KINDS):
            row = held[kind]
            for node in leave:
                there_bytes = row.get(node, 0)
                moved_bytes = there_bytes if self.room_bytes is None else min(there_bytes, self.room_bytes)
                if self.room_bytes is not None:
                    self.room_bytes -= moved_bytes
                row[node] = there_bytes - moved_bytes
                row[target] = row.get(target, 0) + moved_bytes
                left_bytes += row[node]
        self.hold(held)
        return left_bytes // _PAGE_BYTES
