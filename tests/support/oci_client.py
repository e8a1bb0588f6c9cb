"""The OCI socket's protocol as a client speaks it, written from its description alone."""

import asyncio
from pathlib import Path


async def exchange(path: Path, request: bytes) -> tuple[str, bytes]:
    """Send *request* as it is; the answer's status and body, once the server has closed."""
    reader, writer = await asyncio.open_unix_connection(str(path))
    try:
        writer.write(request)
        whole = await reader.read()
    finally:
        writer.transport.abort()
    line, _, body = whole.partition(b"\n")
    status, length = line.split(b" ")
    assert len(body) == int(length), whole
    return status.decode(), body


async def ask(path: Path, verb: str, body: bytes) -> tuple[str, bytes]:
    """The answer to one request."""
    return await exchange(path, b"bayplan-oci/1 %s %d\n%s" % (verb.encode(), len(body), body))
