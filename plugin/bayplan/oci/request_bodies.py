"""Parsers for the bodies of requests on the OCI socket, which `bayplan.oci.request_handler` describes."""

from bayplan.oci.documents import check_id, parse_state
from bayplan.oci.errors import OciError
from bayplan.oci.protocol import Verb
from bayplan.quantity import counted


def texts(body: bytes, number: int, expected: str) -> list[str]:
    """The *number* texts of a body that has zero bytes between them.

    Raises:
        OciError: it has another number of parts, or is not UTF-8.
    """
    parts = body.split(b"\0")
    if len(parts) != number:
        raise OciError("request", f"has {counted(len(parts), 'part')}, expected {number}: {expected}")
    try:
        return [part.decode() for part in parts]
    except UnicodeDecodeError as error:
        raise OciError("request", f"is not UTF-8: {error}") from error


def id_and_rest(body: bytes) -> tuple[str, bytes]:
    """The container's id before the first zero byte of a body, and what follows it.

    Raises:
        OciError: it is no id.
    """
    container_id, _, rest = body.partition(b"\0")
    return check_id(container_id.decode("ascii", "backslashreplace")), rest


def container_id_in(verb: Verb, body: bytes) -> str:
    """The id of the container that a request is about, for people; empty where it does not say."""
    try:
        if verb in (Verb.CREATE_RUNTIME, Verb.POSTSTOP):
            return parse_state(body).id
        parts = body.split(b"\0", 2)
        return "" if verb is Verb.PRECREATE else check_id(parts[1 if verb is Verb.CREATE else 0].decode())
    except (OciError, IndexError, UnicodeDecodeError):
        return ""
