"""A kernel with pools of huge pages: files below a directory, and a write that does what Linux's does.

Of each node so much memory is free for pages, of that some only once its pages were moved together. A write
to ``nr_hugepages`` gives as many as there are, never takes what is used, and counts what it could not take as
surplus, as `set_max_huge_pages` does. It may end a process: before or after what it was to do.
"""

from collections.abc import Mapping
from pathlib import Path

from bayplan.host.kernelfs import RefusedError
from bayplan.model.machine import Machine
from support.sysfs import SYSTEM, SysfsTree


class KilledError(BaseException):
    """The process has ended here."""


class HugepageKernel:
    """The files of *machine* below *root*. ``free_bytes`` is what each node has for more pages,
    ``scattered_bytes`` what it has after compaction."""

    def __init__(
        self,
        root: Path,
        machine: Machine,
        free_bytes: Mapping[int, int],
        scattered_bytes: Mapping[int, int] | None = None,
        *,
        compaction: bool = True,
    ) -> None:
        self.root = SysfsTree(machine).write(root)
        self.free_bytes = dict(free_bytes)
        self.scattered_bytes = dict(scattered_bytes or {})
        self.refuses = ""
        self.writes: list[str] = []
        self.killed_at: int | None = None
        """The write that ends the process, counted from 0; even numbers before it is done, odd ones after."""
        self.taken: dict[tuple[int, int], int] = {}
        for node in machine.nodes:
            for size, amount in node.hugepages_bytes.items():
                self._show(node.id, size, amount // size)
            if compaction:
                (self.root / SYSTEM / f"node/node{node.id}/compact").write_text("")
        self.show_blocks()

    def pages(self, node: int, size: int) -> int:
        """How many pages a pool has."""
        return int((self._pool(node, size) / "nr_hugepages").read_text())

    def use(self, node: int, size: int, pages: int) -> None:
        """Have so many pages be in use."""
        self.taken[node, size] = pages
        self._show(node, size, self.pages(node, size))

    def write(self, path: str, text: str) -> None:
        """What the kernel does with *text*."""
        self._end_at(2 * len(self.writes))
        self.writes.append(f"{Path(path).relative_to(self.root)} {text}")
        if self.refuses:
            raise RefusedError(path, f"cannot take {text!r}: {self.refuses}", 30)
        file = Path(path)
        node = int(next(part for part in file.parts if part.startswith("node") and part != "node")[4:])
        if file.name == "compact":
            self.free_bytes[node] += self.scattered_bytes.pop(node, 0)
        else:
            size = int(file.parent.name.removeprefix("hugepages-").removesuffix("kB")) << 10
            now = self.pages(node, size)
            most = now + self.free_bytes[node] // size
            then = (
                min(int(text), most) if int(text) > now else max(int(text), self.taken.get((node, size), 0))
            )
            self.free_bytes[node] -= (then - now) * size
            self._show(node, size, then)
        self.show_blocks()
        self._end_at(2 * len(self.writes) - 1)

    def _end_at(self, number: int) -> None:
        if self.killed_at == number:
            raise KilledError

    def _pool(self, node: int, size: int) -> Path:
        return self.root / SYSTEM / f"node/node{node}/hugepages/hugepages-{size >> 10}kB"

    def _show(self, node: int, size: int, pages: int) -> None:
        pool, free = self._pool(node, size), pages - self.taken.get((node, size), 0)
        for name, number in (("nr_hugepages", pages), ("free_hugepages", free), ("surplus_hugepages", 0)):
            (pool / name).write_text(f"{number}\n")

    def show_blocks(self) -> None:
        """Free blocks of 2 MiB, as /proc/buddyinfo has them: order 9 of the orders 0 to 10."""
        lines = [
            f"Node {node}, zone   Normal {'0 ' * 9}{amount >> 21} 0\n"
            for node, amount in sorted(self.free_bytes.items())
        ]
        (self.root / "proc").mkdir(exist_ok=True)
        (self.root / "proc/buddyinfo").write_text("".join(lines))
