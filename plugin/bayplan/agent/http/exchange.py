"""What the server hands to those who answer, and what they hand back."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Final, TypeAlias

from msgspec import Struct

TEXT: Final = "text/plain; charset=utf-8"


class PageRequest(Struct, frozen=True):
    """A GET or HEAD request; the names of ``headers`` are in lower case."""

    path: str
    headers: Mapping[str, str] = {}
    query: Mapping[str, str] = {}


class Response(Struct, frozen=True):
    """An answer. ``chunks`` are sent one after the other until the client is gone, in place of ``body``."""

    body: bytes = b""
    content_type: str = TEXT
    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    chunks: AsyncGenerator[bytes, None] | None = None


Route: TypeAlias = Callable[[PageRequest], Awaitable[Response]]
"""Answers the requests for one path."""


def text(status: int, sentence: str, *headers: tuple[str, str]) -> Response:
    """An answer that is a sentence."""
    return Response(f"{sentence}\n".encode(), status=status, headers=headers)
