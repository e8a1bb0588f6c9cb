"""Protobuf messages that somebody else has encoded."""

from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from bayplan.errors import ParseError

Decoded = TypeVar("Decoded", bound=Message)


def decoded(kind: type[Decoded], encoded: bytes, what: str = "message") -> Decoded:
    """The message of that *kind* in *encoded*. gRPC itself is given no deserializer: what cannot be read it
    logs as a defect of ours, with a traceback.

    Raises:
        ParseError: it is none; *what* it was to be.
    """
    try:
        return kind.FromString(encoded)
    except (DecodeError, UnicodeDecodeError, RecursionError) as error:
        expected = f"a {kind.DESCRIPTOR.full_name} in protobuf ({error})"
        raise ParseError(what, repr(encoded[:100]), expected) from error
