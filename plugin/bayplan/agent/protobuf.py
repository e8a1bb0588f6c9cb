"""Protobuf messages that somebody else has encoded, and methods of gRPC services that take them."""

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import grpc
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


def unary_method(answer: Callable[..., Awaitable[Message]], request: type[Message]) -> Any:
    """A method of a gRPC server that answers one message of the kind *request* with another one."""

    async def answer_bytes(encoded: bytes, context: Any) -> Message:
        try:
            asked = decoded(request, encoded)
        except ParseError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            raise AssertionError from error  # abort() raises
        return await answer(asked, context)

    return grpc.unary_unary_rpc_method_handler(
        answer_bytes, response_serializer=lambda message: message.SerializeToString()
    )
