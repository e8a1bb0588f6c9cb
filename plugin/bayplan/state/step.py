"""What one commit changes, written down: documents instead of values, so that committing is SQL alone.

Made where the values are at hand. It takes a processor twice as long to encode them in the thread that
commits, whose caches have none of them.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from bayplan.domain.decision import Decision
from bayplan.domain.ledger import Entry
from bayplan.state.codec import encode, encode_entry

Row = tuple[str, bytes]
"""A container id and the document of its entry."""
HistoryRow = tuple[str, str, bytes]
"""A container id, the container's name and the document of a decision about it."""


@dataclass(frozen=True, slots=True)
class Step:
    """The containers that are ``gone``, then the entries that are new or changed, and new history."""

    gone: tuple[str, ...] = ()
    rows: tuple[Row, ...] = ()
    history: tuple[HistoryRow, ...] = ()

    @classmethod
    def of(cls, entries: Iterable[Entry], gone: Iterable[str] = (), told: Iterable[Entry] = ()) -> Self:
        """The decisions behind *entries*, which go into the history too, the ids of the containers that are
        *gone*, and what other containers were *told*."""
        rows: list[Row] = []
        history: list[HistoryRow] = []
        for entry in entries:
            document, decision = encode_entry(entry)
            rows.append((entry.container_id, document))
            history.append((entry.container_id, entry.decision.request.name, decision))
        rows.extend((entry.container_id, encode(entry)) for entry in told)
        return cls(tuple(gone), tuple(rows), tuple(history))

    @classmethod
    def refusal(cls, decision: Decision) -> Self:
        """A decision that nothing but the history has."""
        request = decision.request
        return cls(history=((request.container_id, request.name, encode(decision)),))
