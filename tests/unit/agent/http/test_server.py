"""The HTTP server over real connections: what it answers, and what it does with clients that misbehave."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from pathlib import Path

import pytest

from bayplan.agent.http.port import Certificate
from bayplan.agent.http.server import (
    MAX_REQUEST_BYTES,
    HttpResponse,
    HttpServer,
    PageRequest,
    Route,
    plain_text,
)
from bayplan.errors import HostError
from support.http import Answer, exchange, get, parse

TLS = Path(__file__).parents[3] / "data" / "tls"


async def hello(request: PageRequest) -> HttpResponse:
    return plain_text(200, f"hello {request.headers.get('x-name', 'you')}")


async def fails(_: PageRequest) -> HttpResponse:
    raise ZeroDivisionError


async def counts(_: PageRequest) -> HttpResponse:
    async def chunks() -> AsyncGenerator[bytes, None]:
        for number in range(3):
            yield f"{number}\n".encode()

    return HttpResponse(chunks=chunks())


ROUTES = {"/hello": hello, "/fails": fails, "/counts": counts}


@contextlib.asynccontextmanager
async def serving(routes: Mapping[str, Route] = ROUTES, **limits) -> AsyncIterator[tuple[str, int]]:
    server = HttpServer("127.0.0.1", 0, routes, **limits)
    await server.start()
    try:
        yield server.address
    finally:
        await server.close()


async def test_a_path_is_answered_by_its_route() -> None:
    async with serving() as address:
        answer = await get(address, "/hello?and=more", X_Name="Ada")
    assert (answer.status, answer.text) == (200, "hello Ada\n")
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert answer.headers["x-content-type-options"] == "nosniff"


async def test_head_is_answered_with_the_length_and_nothing_else() -> None:
    async with serving() as address:
        answer = parse(
            await exchange(address, b"HEAD /hello HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        )
    assert answer == Answer(200, {**answer.headers, "content-length": "10"}, b"")


async def test_a_connection_is_kept_for_further_requests() -> None:
    request = b"GET /hello HTTP/1.1\r\nHost: a\r\n\r\n"
    async with serving() as address:
        reader, writer = await asyncio.open_connection(*address)
        for _ in range(3):
            writer.write(request)
            assert (await reader.readuntil(b"hello you\n")).startswith(b"HTTP/1.1 200")
        writer.write(request * 3)  # without waiting
        for _ in range(3):
            await reader.readuntil(b"hello you\n")
        writer.transport.abort()


async def test_a_stream_is_sent_in_chunks() -> None:
    async with serving() as address:
        answer = await get(address, "/counts")
    assert answer.headers["transfer-encoding"] == "chunked"
    assert answer.body == b"2\r\n0\n\r\n2\r\n1\n\r\n2\r\n2\n\r\n0\r\n\r\n"


async def test_what_fails_inside_is_said_without_details(caplog: pytest.LogCaptureFixture) -> None:
    async with serving() as address:
        answer = await get(address, "/fails")
        assert (await get(address, "/hello")).status == 200
    assert (answer.status, answer.text) == (500, "the request failed inside the agent; its log says why\n")
    assert caplog.records[0].exc_info is not None


@pytest.mark.parametrize(
    ("said", "status"),
    [
        (b"\x00\xff garbage\r\n\r\n", 400),
        (b"GET /hello\r\n\r\n", 400),
        (b"GET /hello HTTP/1.1\r\n\r\n", 400),
        (b"GET /gone HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", 404),
        (b"DELETE /hello HTTP/1.1\r\nHost: a\r\n\r\n", 405),
        (b"GET /hello HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody", 413),
        (b"GET /hello HTTP/1.1\r\nHost: a\r\nA: " + b"x" * MAX_REQUEST_BYTES, 431),
    ],
)
async def test_what_is_no_request_for_us_gets_a_clear_error(said: bytes, status: int) -> None:
    async with serving() as address:
        answer = parse(await exchange(address, said))
        assert answer.status == status
        assert answer.text
        assert (await get(address, "/hello")).status == 200


@pytest.mark.parametrize("said", [b"", b"GET /hello HTTP/1.1\r\nHost"])
async def test_a_client_that_does_not_finish_its_request_is_disconnected(said: bytes) -> None:
    async with serving(client_timeout_s=0.05) as address:
        with contextlib.suppress(ConnectionResetError):
            assert await exchange(address, said) == b""


async def test_a_client_that_does_not_take_its_stream_is_disconnected() -> None:
    ended = asyncio.Event()

    async def endless(_: PageRequest) -> HttpResponse:
        async def chunks() -> AsyncGenerator[bytes, None]:
            try:
                while True:
                    yield bytes(1 << 16)
            finally:
                ended.set()

        return HttpResponse(chunks=chunks())

    async with serving({"/": endless}, client_timeout_s=0.05) as address:
        reader, writer = await asyncio.open_connection(*address, limit=1)
        writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        await ended.wait()
        writer.transport.abort()
        del reader


async def test_the_longest_waiting_client_makes_room_for_the_next() -> None:
    async with serving(max_clients=3) as address:
        silent = [await asyncio.open_connection(*address) for _ in range(50)]
        assert (await get(address, "/hello")).status == 200
        for reader, _ in silent[:47]:
            with contextlib.suppress(ConnectionResetError):
                assert await reader.read() == b""
        for _, writer in silent:
            writer.transport.abort()


async def test_a_client_in_the_middle_of_its_tls_handshake_is_a_client_too() -> None:
    tls = Certificate(TLS / "one.pem", TLS / "one.key").context
    trusting = ssl.create_default_context(cafile=str(TLS / "one.pem"))
    trusting.check_hostname = False
    async with serving(max_clients=3, client_timeout_s=3600, tls=tls) as address:
        silent = [await asyncio.open_connection(*address) for _ in range(50)]
        assert (await get(address, "/hello", trusting)).status == 200
        for reader, _ in silent[:47]:
            with contextlib.suppress(ConnectionResetError):
                assert await reader.read() == b""
        for _, writer in silent:
            writer.transport.abort()


async def test_a_tls_handshake_that_is_not_finished_ends() -> None:
    tls = Certificate(TLS / "one.pem", TLS / "one.key").context
    async with serving(client_timeout_s=0.05, tls=tls) as address:
        for said in (b"", b"GET /hello HTTP/1.1\r\n\r\n"):
            with contextlib.suppress(ConnectionResetError):
                assert b"hello" not in await exchange(address, said)


async def test_clients_that_are_being_answered_are_not_disconnected_for_others() -> None:
    go, begun = asyncio.Event(), asyncio.Semaphore(0)

    async def waits(_: PageRequest) -> HttpResponse:
        begun.release()
        await go.wait()
        return plain_text(200, "done")

    async with serving({"/": waits}, max_clients=2) as address:
        busy = [asyncio.create_task(get(address, "/")) for _ in range(2)]
        for _ in busy:
            await begun.acquire()
        with contextlib.suppress(ConnectionResetError):
            assert await exchange(address, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n") == b""
        go.set()
        assert [(await one).text for one in busy] == ["done\n", "done\n"]


@pytest.mark.parametrize("turns", range(6))
async def test_a_client_that_is_accepted_while_the_server_closes_is_disconnected(turns: int) -> None:
    """It would be answered for ever by a server that does not follow the daemon any more."""
    server = HttpServer("127.0.0.1", 0, ROUTES)
    await server.start()
    with contextlib.closing(socket.create_connection(server.address)) as client:
        for _ in range(turns):
            await asyncio.sleep(0)
        await server.close()
        with contextlib.suppress(OSError):
            client.sendall(b"GET /hello HTTP/1.1\r\nHost: localhost\r\n\r\n")
        client.setblocking(False)
        with contextlib.suppress(ConnectionError):  # that it was accepted and aborted
            assert await asyncio.get_running_loop().sock_recv(client, 1) == b""


async def test_an_address_that_cannot_be_had_is_named() -> None:
    async with serving() as (host, port):
        with pytest.raises(HostError, match=f"{host}:{port}: cannot be listened at"):
            await HttpServer(host, port, {}).start()
