"""The second copy of an entry: an annotation of the container itself, which its runtime gives back when it
lists what runs (containerd from its metadata, CRI-O from config.json; both keep it through a restart).

Written once, with the answer to the creation: what became of the container later is not in it. A text is
accepted only if it names the container that has it. Others that set annotations (a pod, an image,
a CRI client) do so before the runtime has chosen the container's random id, so that they cannot name it.
"""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec
from msgspec.structs import replace

from bayplan.errors import ParseError
from bayplan.model.ledger import Entry
from bayplan.model.wishes import DECISION_ANNOTATION
from bayplan.model.workload import Container
from bayplan.state.codec import decode_entry, encode

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
