"""What kubelet's two state files have in common: Go's JSON, the checksum over a dump of a structure, and the
payload that kubelet 1.37 writes beside it.

kubelet prints the structure in memory with Go's spew printer (keys sorted, no addresses, no capacities)
and hashes that text with FNV-1a of 32 bits, so that the text here must be spew's to the byte. None stands
for Go's nil.

Since version 4 of cpu_manager_state and version 3 of memory_manager_state (Kubernetes v1.37) a file holds its
content twice: in the fields of the format before pods as a whole, for a kubelet that is older, and as JSON in
the string ``data``, with ``dataChecksum`` over that string. Only the latter counts then: kubelet does not
look at the other checksum, and never falls back on the fields of a file whose ``data`` is damaged.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeGuard

from msgspec import Struct

NIL: Final = "<nil>"
CORRUPTED: Final = "checkpoint is corrupted"
ENDS_EARLY: Final = "unexpected end of JSON input"
"""Go's words for a truncated file, which is what a crash leaves."""

_NO_CHECKSUM: Final = -1
"""What no text has."""
_FNV_OFFSET: Final = 0x811C9DC5
_FNV_PRIME: Final = 0x01000193
_ESCAPED: Final = str.maketrans(
    {char: f"\\u{ord(char):04x}" for char in ("<", ">", "&", "\N{LINE SEPARATOR}", "\N{PARAGRAPH SEPARATOR}")}
)
"""What Go's JSON encoder escapes beyond Python's."""


def fnv1a_32(text: str) -> int:
    """The hash FNV-1a, 32 bits, of *text* in UTF-8."""
    value = _FNV_OFFSET
    for byte in text.encode(errors="surrogatepass"):
        value = (value ^ byte) * _FNV_PRIME & 0xFFFFFFFF
    return value


def dump_map(items: Iterable[str]) -> str:
    """A map as spew prints it, of its printed members."""
    return f"map[{' '.join(items)}]"


def go_json(content: Mapping[str, Any]) -> str:
    """*content* as Go's JSON encoder writes it. Go sorts the keys of maps, which the caller has done."""
    text = json.dumps(content, separators=(",", ":"), ensure_ascii=False)
    return text.translate(_ESCAPED)


def json_of(text: str) -> Any:
    """The value that *text* is in JSON.

    Raises:
        JSONDecodeError: it is none, or one that is nested too deeply, or has a number of too many digits.
    """
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        raise
    except (ValueError, RecursionError) as error:
        raise json.JSONDecodeError(str(error), text, 0) from error


def ends_early(error: json.JSONDecodeError) -> bool:
    """Whether the text is not JSON only because it ends too early."""
    rest = error.doc[error.pos :].strip()
    unfinished = any(word.startswith(rest) for word in ("true", "false", "null"))
    return unfinished or error.msg.startswith("Unterminated string")


class Payload(Struct, frozen=True):
    """The string ``data`` of a file, and the checksum that the file has for it."""

    text: str
    checksum: int

    @property
    def intact(self) -> bool:
        """Whether the checksum is that of the text."""
        return self.checksum == fnv1a_32(f"(string){self.text}")


def payload_of(text: str) -> Payload | None:
    """The payload of a file with the content *text*; None if the file has none, as older kubelets write it.

    A value of the wrong type leaves the other one to say that there is a payload, which is damaged then.
    Without any kubelet falls back on the older formats. Of a name that is there in several spellings the last
    value counts that is not null.
    """
    try:
        content = json_of(text)
    except json.JSONDecodeError:
        return None
    if not isinstance(content, dict):
        return None
    found = {key.lower(): value for key, value in content.items() if value is not None}
    data, checksum = found.get("data", ""), found.get("datachecksum", 0)
    written = data if isinstance(data, str) else ""
    number = checksum if is_uint64(checksum) else 0
    if not written and not number:
        return None
    if written is data and number is checksum:
        return Payload(written, number)
    return Payload("", _NO_CHECKSUM)


def is_uint64(value: Any) -> TypeGuard[int]:
    """Whether a value of JSON is one of Go's uint64."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 64
