"""A client of the agent's HTTP port that says its bytes itself, and reads all that comes."""

import asyncio
import gzip
import ssl
from typing import NamedTuple


class Answer(NamedTuple):
    """Status, headers (names in lower case) and body."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        """The body, unpacked."""
        packed = self.headers.get("content-encoding") == "gzip"
        return (gzip.decompress(self.body) if packed else self.body).decode()


async def exchange(address: tuple[str, int], said: bytes, tls: ssl.SSLContext | None = None) -> bytes:
    """Everything that comes as an answer to *said*, up to the end of the connection."""
    reader, writer = await asyncio.open_connection(*address, ssl=tls)
    try:
        writer.write(said)
        return await reader.read()
    finally:
        writer.transport.abort()


async def get(
    address: tuple[str, int], path: str, tls: ssl.SSLContext | None = None, **headers: str
) -> Answer:
    """The answer to a GET of *path*; an underscore in the name of a header is a dash."""
    named = {"Host": "localhost", "Connection": "close", **headers}
    lines = [f"GET {path} HTTP/1.1"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in named.items()]
    return parse(await exchange(address, "\r\n".join([*lines, "", ""]).encode(), tls))


def parse(answer: bytes) -> Answer:
    """An answer with a length."""
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *rest = head.decode().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in rest)}
    return Answer(int(first.split()[1]), headers, body)
