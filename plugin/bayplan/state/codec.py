"""Entries as bytes, and back.

JSON made from the values themselves, so that a field added with a default can still be read from older
rows. Sets are written in the kernel's list format. Whatever is read is checked against the types.
"""

from collections.abc import Callable
from typing import Final

import msgspec

from bayplan.errors import ParseError
from bayplan.model.ledger import Entry
from bayplan.sets import set_to_text, text_to_set

encode: Final[Callable[[Entry], bytes]] = msgspec.json.Encoder(enc_hook=set_to_text).encode
"""An entry as a JSON document."""


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
