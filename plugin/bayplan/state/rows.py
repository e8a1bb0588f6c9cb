"""Where the current entry of each container is in its table: a copy in memory of what the table says.

With it the table needs no index, which each commit would write too. Here is how a step becomes statements;
the store runs them.
"""

from collections.abc import Iterable, Iterator
from typing import Final, Self

from bayplan.state.step import Row, Step

_INSERT: Final = """
    INSERT INTO decisions (id, at_us, container_id, name, listed, current, document)
    VALUES (?, ?, ?, ?, ?, ?, ?)
"""
_AMEND: Final = "UPDATE decisions SET amended = ? WHERE id = ?"
_END: Final = "UPDATE decisions SET current = 0 WHERE id = ?"
_DELETE: Final = "DELETE FROM decisions WHERE id = ?"

Statement = tuple[str, tuple[object, ...]]


class Rows:
    """The rows that are current, by container id, and the number of the next one. A value: `after` makes a
    new one, which counts once its statements are committed."""

    def __init__(self, current: dict[str, tuple[int, int | None]], next_id: int) -> None:
        self._current = current
        """Number and decision; unlisted rows have None."""
        self._next = next_id

    @classmethod
    def of(cls, rows: Iterable[tuple[str, int, int]], last: int) -> Self:
        """What a table says whose current rows are (container id, number, listed), the *last* row of all
        having that number."""
        current = {container_id: (number, 0 if listed else None) for container_id, number, listed in rows}
        return cls(current, last + 1)

    def after(self, step: Step, at_us: int) -> tuple[Self, list[Statement]]:
        """The rows after *step*, and the statements that lead there."""
        rows = type(self)(self._current.copy(), self._next)
        return rows, list(rows._take(step, at_us))  # noqa: SLF001 - of its own class

    def _take(self, step: Step, at_us: int) -> Iterator[Statement]:
        unknown = [] if step.kept is None else sorted(self._current.keys() - step.kept)
        for container_id in (*step.gone, *unknown):
            yield from self._ended(container_id)
        for row in step.decided:
            known = self._current.get(row.container_id)
            if known and row.decision and known[1] == row.decision:
                yield _AMEND, (row.document, known[0])
                continue
            yield from self._ended(row.container_id)
            yield self._inserted(row, at_us)
        for row in step.unlisted:
            known = self._current.get(row.container_id)
            yield (_AMEND, (row.document, known[0])) if known else self._inserted(row, at_us, listed=False)
        for row in step.refused:
            yield self._inserted(row, at_us, current=False)

    def _inserted(self, row: Row, at_us: int, *, listed: bool = True, current: bool = True) -> Statement:
        container_id, name, document, decision = row
        number, self._next = self._next, self._next + 1
        if current:
            self._current[container_id] = number, decision if listed else None
        return _INSERT, (number, at_us, container_id, name, listed, current, document)

    def _ended(self, container_id: str) -> list[Statement]:
        known = self._current.pop(container_id, None)
        if known is None:
            return []
        number, decision = known
        return [(_DELETE if decision is None else _END, (number,))]
