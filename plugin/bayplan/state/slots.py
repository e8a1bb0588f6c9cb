"""Which row of the table of containers belongs to which container: a copy in memory of what the table says.

The table has no index of the ids, because each commit would write the index too, and no tree of them, whose
rows of more than 1 kB lie on two pages: a commit takes 0.11 ms instead of 0.17 (a bare flush takes 0.1).
Freed rows are used again, so that the file stays as small as the most containers that there ever were.
"""

from collections.abc import Iterable
from typing import Self


class Slots:
    """The numbers of rows by container id. A step works on a copy, which counts once it is committed."""

    def __init__(self, by_id: dict[str, int], free: list[int]) -> None:
        self._by_id = by_id
        self._free = free

    @classmethod
    def of(cls, rows: Iterable[tuple[int, str]]) -> Self:
        """The slots that a table of (slot, container id) uses; ids must not occur twice."""
        by_id = {container_id: slot for slot, container_id in rows}
        unused = set(range(max(by_id.values(), default=-1) + 1)) - set(by_id.values())
        return cls(by_id, sorted(unused, reverse=True))

    def copy(self) -> Self:
        """Slots that can change without changing these."""
        return type(self)(self._by_id.copy(), self._free.copy())

    def take(self, container_id: str) -> int:
        """The slot of a container, which gets one if it has none."""
        slot = self._by_id.get(container_id)
        if slot is None:
            slot = self._free.pop() if self._free else len(self._by_id)
            self._by_id[container_id] = slot
        return slot

    def give_back(self, container_id: str) -> int | None:
        """The slot that a container had and has no longer; None if it had none."""
        slot = self._by_id.pop(container_id, None)
        if slot is not None:
            self._free.append(slot)
        return slot
