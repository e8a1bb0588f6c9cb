"""The OCI socket over a real unix socket: its form, its limits, and who gets in."""

import asyncio
import os
import stat
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from bayplan.errors import UnavailableError
from bayplan.host.unix_socket import MAX_REQUEST_WAIT_S, Peer
from bayplan.oci.protocol import (
    MAX_BODY_BYTES,
    MAX_CLIENTS,
    MAX_STATE_BYTES,
    MAX_TEXT_BYTES,
    Answer,
    OciServer,
    Status,
    Verb,
)
from support.oci_client import ask, exchange

Scenario = Callable[[OciServer, Path], Awaitable[None]]


class Daemon:
    """What stands behind the socket: remembers what it was asked, and answers as told."""

    def __init__(self, answer: Answer = Answer(Status.OK, b"yes")) -> None:
        self.asked: list[tuple[Verb, bytes]] = []
        self.peers: list[Peer] = []
        self.answer = answer

    async def __call__(self, verb: Verb, body: bytes, peer: Peer) -> Answer:
        self.asked.append((verb, body))
        self.peers.append(peer)
        return self.answer


def serve(path: Path, daemon: Daemon, scenario: Scenario, client_timeout_s: float = 30) -> None:
    async def run() -> None:
        server = OciServer(path, daemon, client_timeout_s)
        await server.start()
        try:
            await scenario(server, path)
        finally:
            await server.close()

    asyncio.run(run())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run" / "oci.sock"


@pytest.mark.parametrize("verb", list(Verb))
def test_a_request_reaches_the_daemon_and_its_answer_the_client(path: Path, verb: Verb) -> None:
    daemon = Daemon()

    async def scenario(server: OciServer, path: Path) -> None:
        assert await ask(path, verb.value, b"\0body\n") == ("ok", b"yes")
        assert daemon.asked == [(verb, b"\0body\n")]
        assert daemon.peers == [Peer(os.getpid(), os.geteuid())]

    serve(path, daemon, scenario)


def test_bytes_come_in_pieces(path: Path) -> None:
    daemon = Daemon()

    async def scenario(server: OciServer, path: Path) -> None:
        reader, writer = await asyncio.open_unix_connection(str(path))
        for byte in b"bayplan-oci/1 delete 3\nabc":
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0)
        assert await reader.readline() == b"ok 3\n"
        writer.transport.abort()

    serve(path, daemon, scenario)
    assert daemon.asked == [(Verb.DELETE, b"abc")]


@pytest.mark.parametrize(
    ("request_bytes", "words"),
    [
        (b"\n", "expected 'bayplan-oci/1 VERB LENGTH'"),
        (b"bayplan-oci/2 delete 3\nabc", "expected 'bayplan-oci/1"),
        (b"bayplan-oci/1 delete -3\nabc", "expected 'bayplan-oci/1"),
        (b"bayplan-oci/1 delete 3 4\nabc", "expected 'bayplan-oci/1"),
        (b"bayplan-oci/1 delete 9999999999\n", "expected 'bayplan-oci/1"),
        (b"bayplan-oci/1 reboot 0\n", "'reboot', expected one of createRuntime, "),
        (b"\xff\xfe\n", "expected 'bayplan-oci/1"),
        (b"GET / HTTP/1.1\r\n\r\n", "expected 'bayplan-oci/1"),
        (b"x" * 100_000, "no first line within"),
        (b"bayplan-oci/1 delete %d\n" % (MAX_STATE_BYTES + 1), f"at most {MAX_STATE_BYTES}"),
        (b"bayplan-oci/1 precreate %d\n" % (MAX_BODY_BYTES + 1), f"at most {MAX_BODY_BYTES}"),
    ],
)
def test_what_is_no_request_is_answered_and_goes_no_further(
    path: Path, request_bytes: bytes, words: str
) -> None:
    daemon = Daemon()

    async def scenario(server: OciServer, path: Path) -> None:
        reader, writer = await asyncio.open_unix_connection(str(path))
        writer.write(request_bytes)
        writer.write_eof()
        whole = await reader.read()
        writer.transport.abort()
        assert whole.startswith(b"error ")
        assert words in whole.decode()

    serve(path, daemon, scenario)
    assert daemon.asked == []


def test_a_large_spec_goes_through_and_an_answer_is_one_short_line(path: Path) -> None:
    daemon = Daemon(Answer.saying(Status.REFUSED, "first\n" + "ä" * 10_000))

    async def scenario(server: OciServer, path: Path) -> None:
        status, text = await ask(path, "precreate", b" " * (3 << 20))
        assert status == "refused"
        assert text.startswith(b"first \xc3\xa4")
        assert text.endswith(b"...")
        assert len(text) <= MAX_TEXT_BYTES
        text.decode()

    serve(path, daemon, scenario)
    assert len(daemon.asked[0][1]) == 3 << 20


def test_a_slow_client_is_told_so(path: Path) -> None:
    async def scenario(server: OciServer, path: Path) -> None:
        for begun in (b"bayplan-oci/1 dele", b"bayplan-oci/1 delete 5\nab"):
            reader, writer = await asyncio.open_unix_connection(str(path))
            writer.write(begun)
            assert b"no request within 0.05 seconds" in await reader.read()
            writer.transport.abort()

    serve(path, Daemon(), scenario, client_timeout_s=0.05)


def test_a_client_that_leaves_in_the_middle_does_no_harm(path: Path) -> None:
    daemon = Daemon()

    async def scenario(server: OciServer, path: Path) -> None:
        for begun in (b"", b"bayplan-oci/1", b"bayplan-oci/1 delete 5\nab"):
            _, writer = await asyncio.open_unix_connection(str(path))
            writer.write(begun)
            await writer.drain()
            writer.transport.abort()
        assert await ask(path, "delete", b"x") == ("ok", b"yes")

    serve(path, daemon, scenario)
    assert daemon.asked == [(Verb.DELETE, b"x")]


class BusyDaemon(Daemon):
    """Answers nobody until it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.done = asyncio.Event()

    async def __call__(self, verb: Verb, body: bytes, peer: Peer) -> Answer:
        await self.done.wait()
        return await super().__call__(verb, body, peer)


def test_clients_beyond_the_limit_wait_for_those_before_them(path: Path) -> None:
    """Nobody is told to try again, and none of them costs the daemon a descriptor before its turn."""

    async def scenario(server: OciServer, path: Path) -> None:
        asked = []
        for number in range(MAX_CLIENTS + 50):
            asked.append(asyncio.ensure_future(ask(path, "delete", b"x")))
            # The kernel's queue has an end as well.
            while len(server.clients) < min(number, MAX_CLIENTS):  # noqa: ASYNC110 - no event reports it
                await asyncio.sleep(0)
        while server._without_request or len(server.clients) < MAX_CLIENTS:  # noqa: ASYNC110 - no event reports it
            await asyncio.sleep(0)
        server._max_wait_s = 0.0
        for _ in range(1000):
            await asyncio.sleep(0)
            assert len(server.clients) <= MAX_CLIENTS
        assert daemon.asked == []
        # Those who waited are accepted now, and have sent nothing yet.
        server._max_wait_s = MAX_REQUEST_WAIT_S
        daemon.done.set()
        assert await asyncio.gather(*asked) == [("ok", b"yes")] * len(asked)

    daemon = BusyDaemon()
    serve(path, daemon, scenario)


def test_a_request_that_is_there_is_read_however_long_the_daemon_was_busy(path: Path) -> None:
    """A decision may take longer than clients without a request may wait: those whose request was not read in
    that time are not the silent ones."""

    async def scenario(server: OciServer, path: Path) -> None:
        server._max_wait_s = 0.05
        for _ in range(3):
            asked = [asyncio.ensure_future(ask(path, "delete", b"x")) for _ in range(MAX_CLIENTS)]
            while len(server.clients) < MAX_CLIENTS:  # noqa: ASYNC110 - no event reports it
                await asyncio.sleep(0)
            asked += [asyncio.ensure_future(ask(path, "delete", b"x")) for _ in range(5)]
            for _ in range(3):
                await asyncio.sleep(0)
                time.sleep(0.1)  # noqa: ASYNC251 - as a decision does
            daemon.done.set()
            assert await asyncio.gather(*asked) == [("ok", b"yes")] * len(asked)
            daemon.done.clear()

    daemon = BusyDaemon()
    serve(path, daemon, scenario)


@pytest.mark.parametrize("begin", [b"", b"bayplan-oci/1 del"])
def test_clients_that_say_nothing_lose_their_places_to_those_who_wait(path: Path, begin: bytes) -> None:
    async def scenario(server: OciServer, path: Path) -> None:
        server._max_wait_s = 0.0
        silent = []
        for _ in range(MAX_CLIENTS):
            silent.append(await asyncio.open_unix_connection(str(path)))
            silent[-1][1].write(begin)
        while len(server.clients) < MAX_CLIENTS:  # noqa: ASYNC110 - no event reports it
            await asyncio.sleep(0)
        assert await ask(path, "delete", b"x") == ("ok", b"yes")
        assert await silent[0][0].read() == b""
        for _, writer in silent:
            writer.transport.abort()

    serve(path, Daemon(), scenario)


def test_only_the_owner_may_connect_and_the_file_goes_with_the_server(path: Path) -> None:
    async def scenario(server: OciServer, path: Path) -> None:
        status = path.stat()  # noqa: ASYNC240 - a file in memory
        assert stat.S_ISSOCK(status.st_mode)
        assert stat.S_IMODE(status.st_mode) == 0o600
        second = OciServer(path, Daemon())
        with pytest.raises(UnavailableError, match="another daemon serves this OCI socket"):
            await second.start()

    serve(path, Daemon(), scenario)
    assert not path.exists()


@pytest.mark.root
def test_another_user_is_turned_away_even_with_access(open_directory: Path) -> None:
    daemon = Daemon()

    async def scenario(server: OciServer, path: Path) -> None:
        path.chmod(0o666)  # noqa: ASYNC240 - a file in memory
        client = (
            "import os,socket,sys; os.setuid(65534); s=socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]);"
            "s.sendall(b'bayplan-oci/1 delete 1\\nx'); sys.stdout.buffer.write(s.makefile('rb').read())"
        )
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", client, str(path), stdout=asyncio.subprocess.PIPE
        )
        output, _ = await process.communicate()
        assert output.startswith(b"error ")
        assert b"user 65534 may not ask" in output

    serve(open_directory / "oci.sock", daemon, scenario)
    assert daemon.asked == []


def test_an_answer_that_nobody_takes_is_dropped(path: Path) -> None:
    large = Daemon(Answer(Status.OK, b"x" * (8 << 20)))

    async def scenario(server: OciServer, path: Path) -> None:
        _, writer = await asyncio.open_unix_connection(str(path), limit=1)
        writer.write(b"bayplan-oci/1 precreate 1\nx")
        while not server.clients:  # noqa: ASYNC110 - no event reports it
            await asyncio.sleep(0)
        await asyncio.wait(list(server.clients))
        writer.transport.abort()
        large.answer = Answer(Status.OK)
        # The next one is not hurried: a busy machine may be late.
        server._client_timeout_s = 30
        assert await exchange(path, b"bayplan-oci/1 delete 1\nx") == ("ok", b"")

    serve(path, large, scenario, client_timeout_s=0.2)
