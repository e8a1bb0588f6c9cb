"""What one commit changes, written down: documents instead of values, so that committing is SQL alone.

Encoded in the thread that has the values: in the committing thread it takes twice as long, as they are not in
its processor's caches.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple, Self

from msgspec import Struct

from bayplan.model.decision import Decision
from bayplan.model.ledger import Entry
from bayplan.state.codec import encode


class Row(NamedTuple):
    """A container's id, its name, and the document of its entry; ``decision`` tells its decisions apart as
    long as this process runs, 0 none."""

    container_id: str
    name: str
    document: bytes
    decision: int = 0


class Step(Struct, frozen=True):
    """First the ids of containers that are ``gone``, and with ``kept`` of all that are not in it; then the
    entries that were ``decided``, which the history lists too, each decision once however often it is
    written; the entries that changed otherwise and are ``unlisted`` there; and what was ``refused``."""

    gone: tuple[str, ...] = ()
    decided: tuple[Row, ...] = ()
    unlisted: tuple[Row, ...] = ()
    refused: tuple[Row, ...] = ()
    kept: frozenset[str] | None = None

    @classmethod
    def of(
        cls,
        entries: Iterable[Entry],
        gone: Iterable[str] = (),
        unlisted: Iterable[Entry] = (),
        kept: frozenset[str] | None = None,
        decisions: Mapping[str, int] = MappingProxyType({}),
    ) -> Self:
        """The decisions behind *entries*, which go into the history too, the ids of the containers that are
        *gone*, the entries that changed otherwise (*unlisted* in the history), and the ids of all that
        exist, unless it is None. *decisions* has the numbers of decisions that may be written again, by
        container id."""
        decided = tuple(_row(one, decisions.get(one.container_id, 0)) for one in entries)
        otherwise = tuple(map(_row, unlisted))
        return cls(tuple(gone), decided, otherwise, kept=kept)

    @classmethod
    def refusal(cls, decision: Decision) -> Self:
        """A decision that nothing but the history has."""
        return cls(refused=(_row(Entry(decision)),))


def _row(entry: Entry, decision: int = 0) -> Row:
    request = entry.decision.request
    return Row(request.container_id, request.name, encode(entry), decision)
