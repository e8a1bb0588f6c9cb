"""The form of the OCI socket: one request, one answer, then the end. Made so that a client needs no JSON.

A request is the line ``bayplan-oci/1 VERB LENGTH`` and LENGTH bytes of body; an answer is a line with a
status and a length, and the body. A client that reads another first line is connected to another program.
"""

import re
from dataclasses import dataclass
from enum import Enum
from typing import Final

from bayplan.oci.errors import OciError
from bayplan.printable import printable

MAX_HEADER_BYTES: Final = 64
MAX_BODY_BYTES: Final = 16 << 20
"""A spec with a long seccomp profile and many mounts is about 100 kB."""

MAX_STATE_BYTES: Final = 1 << 20
"""Of everything that is not a whole spec; a state has the container's annotations in it."""

MAX_TEXT_BYTES: Final = 4096
_HEADER: Final = re.compile(rb"bayplan-oci/1 ([A-Za-z]{1,16}) ([0-9]{1,9})\n")


class Verb(Enum):
    """What a client asks for. `bayplan.oci.request_handler` describes the bodies."""

    CREATE_RUNTIME = "createRuntime"
    POSTSTOP = "poststop"
    PRECREATE = "precreate"
    CREATE = "create"
    UPDATE = "update"
    START = "start"
    DELETE = "delete"


class Status(Enum):
    """OK: done, or nothing was to be done. REFUSED: by a decision; the container must not be created. ERROR:
    no decision could be made or carried out; the client's own configuration says what that means."""

    OK = "ok"
    REFUSED = "refused"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Header:
    """The first line of a request."""

    verb: Verb
    body_bytes: int


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a request; ``body`` of a refusal or an error is its text."""

    status: Status
    body: bytes = b""

    @classmethod
    def saying(cls, status: Status, text: str) -> "Answer":
        """An answer whose body is *text* as one printable line of bounded length."""
        line = printable(" ".join(text.split())).encode()
        if len(line) > MAX_TEXT_BYTES:
            line = line[: MAX_TEXT_BYTES - 3].decode("utf-8", "ignore").encode() + b"..."
        return cls(status, line)

    def encode(self) -> bytes:
        """The answer as it is sent."""
        return b"%s %d\n%s" % (self.status.value.encode(), len(self.body), self.body)


def parse_header(line: bytes) -> Header:
    """The header in the first *line* of a request, its end included.

    Raises:
        OciError: it is none, has an unknown verb, or announces a body that is too long.
    """
    match = _HEADER.fullmatch(line)
    if match is None:
        raise OciError("request", f"found {line[:MAX_HEADER_BYTES]!r}, expected 'bayplan-oci/1 VERB LENGTH'")
    word, length = match[1].decode(), int(match[2])
    try:
        verb = Verb(word)
    except ValueError:
        known = ", ".join(verb.value for verb in Verb)
        raise OciError("request", f"found the verb {word!r}, expected one of {known}") from None
    limit = MAX_BODY_BYTES if verb is Verb.PRECREATE else MAX_STATE_BYTES
    if length > limit:
        raise OciError("request", f"announces {length} bytes for {word}, expected at most {limit}")
    return Header(verb, length)
