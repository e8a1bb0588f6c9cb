"""What is recorded, written down: an entry as bytes and back, what one commit changes, and the second copy
that a container carries.

*Bytes* are JSON made from the values themselves, so that a field added with a default can still be read
from older rows. Sets are written in the kernel's list format. Whatever is read is checked against the
types.

*A step* has documents instead of values, so that committing is SQL alone. It is encoded in the thread
that has the values: in the committing thread it takes twice as long, as they are not in its processor's
caches.

*The annotation* of the container itself is given back by its runtime when it lists what runs (containerd
from its metadata, CRI-O from config.json; both keep it through a restart). Written once, with the answer
to the creation: what became of the container later is not in it. A text is accepted only if it names the
container that has it. Others that set annotations (a pod, an image, a CRI client) do so before the
runtime has chosen the container's random id, so that they cannot name it.
"""

from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter
from types import MappingProxyType
from typing import Final, NamedTuple, Self

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from bayplan.errors import ParseError
from bayplan.model.decision import Decision
from bayplan.model.ledger import Entry
from bayplan.model.wishes import DECISION_ANNOTATION
from bayplan.model.workload import Container
from bayplan.sets import text_to_set

encode: Final[Callable[[Entry], bytes]] = msgspec.json.Encoder(enc_hook=attrgetter("text")).encode
"""An entry as a JSON document. What JSON has no form for in it are sets."""


def decode_entry(document: object) -> Entry:
    """The entry that `encode` made *document* from.

    Raises:
        ParseError: the document is not an entry, or not even bytes.
    """
    problem = "bytes"
    if isinstance(document, bytes):
        try:
            return _DECODER.decode(document)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            problem = str(error)
    raise ParseError("recorded entry", repr(document)[:100], f"what was written ({problem})")


_DECODER: Final = msgspec.json.Decoder(Entry, dec_hook=text_to_set)


class EntryRow(NamedTuple):
    """A container's id, its name, and the document of its entry; ``decision`` tells its decisions apart as
    long as this process runs, 0 none."""

    container_id: str
    name: str
    document: bytes
    decision: int = 0


class Step(Struct, frozen=True):
    """What one commit changes. ``gone`` are the ids of containers to forget; with ``kept``, all that are not
    in it are forgotten too. ``decided`` are entries that the history lists as well, each decision once
    however often it is written. ``unlisted`` are entries that changed otherwise, ``refused`` are refusals."""

    gone: tuple[str, ...] = ()
    decided: tuple[EntryRow, ...] = ()
    unlisted: tuple[EntryRow, ...] = ()
    refused: tuple[EntryRow, ...] = ()
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
        """The step that records *entries* with their decisions, which go into the history; forgets the
        containers *gone*; records *unlisted* entries, which do not go into the history; and keeps only the
        ids *kept*, unless that is None. *decisions* has the numbers of decisions that may be written again,
        by container id."""
        decided = tuple(_row(one, decisions.get(one.decision.request.container_id, 0)) for one in entries)
        otherwise = tuple(map(_row, unlisted))
        return cls(tuple(gone), decided, otherwise, kept=kept)

    @classmethod
    def refusal(cls, decision: Decision) -> Self:
        """The step that only adds the refusal *decision* to the history."""
        return cls(refused=(_row(Entry(decision)),))


def _row(entry: Entry, decision: int = 0) -> EntryRow:
    request = entry.decision.request
    return EntryRow(request.container_id, request.name, encode(entry), decision)


MAX_CHARACTERS: Final = 16_384
"""In an annotation that is read; an entry has some 1100, on many nodes a few thousand."""


class _Written(msgspec.Struct):
    at_us: int = 0


_TIME: Final = msgspec.json.Decoder(_Written)
_MAX_REASONS: Final = 8
_MAX_REASON_CHARACTERS: Final = 200


def annotations_of(entry: Entry, at_us: int) -> Mapping[str, str]:
    """The annotation that has *entry*, decided *at_us* (microseconds since the epoch), as far as it is needed
    to make the record again: nothing that only explains the decision, but for short reasons; nothing where
    it would be too long to be read."""
    decision = entry.decision
    reasons = [one for one in decision.reasons if len(one.text) <= _MAX_REASON_CHARACTERS]
    bare = replace(
        decision,
        reasons=tuple(reasons[:_MAX_REASONS]),
        moves=(),
        candidates=(),
        advantage=None,
        shortage=None,
        plan=None,
    )
    document = encode(replace(entry, decision=bare, recorded_origin=None)).decode()
    text = f'{{"at_us":{at_us},{document[1:]}'
    return {DECISION_ANNOTATION: text} if len(text) <= MAX_CHARACTERS else {}


def entries_in(containers: Iterable[Container]) -> dict[str, Entry]:
    """The entries that were written into *containers* when they were created, by id, in the order of their
    creation: what several containers of a pod claim together depends on it."""
    found = sorted((one for one in map(_read, containers) if one is not None), key=lambda one: one[:2])
    return {container_id: entry for _, container_id, entry in found}


def _read(container: Container) -> tuple[int, str, Entry] | None:
    text = container.annotations.get(DECISION_ANNOTATION)
    if text is None or len(text) > MAX_CHARACTERS:
        return None
    try:
        document = text.encode(errors="replace")
        entry = decode_entry(document)
        at_us = _TIME.decode(document).at_us
    except (ParseError, msgspec.MsgspecError):
        return None
    if entry.container_id != container.id or entry.ended:
        return None
    return at_us, container.id, replace(entry, recorded_origin=None)
