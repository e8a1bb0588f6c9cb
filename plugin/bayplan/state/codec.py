"""Entries and decisions as bytes, and back.

JSON made from the dataclasses themselves, so that a field added with a default can still be read from older
rows. Sets are written in the kernel's list format. Whatever is read is checked against the types.
"""

from dataclasses import fields
from typing import Any, Final, TypeVar

import msgspec

from bayplan.domain.decision import Decision
from bayplan.domain.ledger import Entry
from bayplan.errors import ParseError
from bayplan.sets import IdSet

Value = TypeVar("Value", Entry, Decision)


def encode(value: Entry | Decision) -> bytes:
    """*value* as a JSON document."""
    return _ENCODER.encode(value)


def encode_entry(entry: Entry) -> tuple[bytes, bytes]:
    """*entry* as a JSON document, and its decision as one of its own."""
    decision = _ENCODER.encode(entry.decision)
    rest = {name: getattr(entry, name) for name in _BESIDE_THE_DECISION}
    return _ENCODER.encode({"decision": msgspec.Raw(decision), **rest}), decision


def decode_entry(document: object) -> Entry:
    """The entry that `encode` made *document* from.

    Raises:
        ParseError: the document is not an entry, or not even bytes.
    """
    return _decode(_ENTRIES, "entry", document)


def decode_decision(document: object) -> Decision:
    """The decision that `encode` made *document* from.

    Raises:
        ParseError: the document is not a decision, or not even bytes.
    """
    return _decode(_DECISIONS, "decision", document)


def _decode(decoder: msgspec.json.Decoder[Value], kind: str, document: object) -> Value:
    problem = "bytes"
    if isinstance(document, bytes):
        try:
            return decoder.decode(document)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            problem = str(error)
    raise ParseError(f"recorded {kind}", repr(document)[:100], f"what was written ({problem})")


def _set_to_text(value: object) -> str:
    if isinstance(value, IdSet):
        return str(value)
    raise NotImplementedError(f"no text form for {type(value).__name__}")


def _text_to_set(kind: type, text: Any) -> object:
    if issubclass(kind, IdSet) and isinstance(text, str):
        return kind.parse(text)
    raise ValueError(f"expected a list of ids, found {text!r}")


_BESIDE_THE_DECISION: Final = tuple(field.name for field in fields(Entry) if field.name != "decision")
_ENCODER: Final = msgspec.json.Encoder(enc_hook=_set_to_text)
_ENTRIES: Final = msgspec.json.Decoder(Entry, dec_hook=_text_to_set)
_DECISIONS: Final = msgspec.json.Decoder(Decision, dec_hook=_text_to_set)
