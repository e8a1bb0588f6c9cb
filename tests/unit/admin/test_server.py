"""The admin socket over a real unix socket: answers, refusals, limits, and the place in the file system."""

# ruff: noqa: ASYNC240 - files are touched between the steps of a scenario, nothing else is running

import asyncio
import contextlib
import json
import logging
import socket
import stat
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from bayplan.admin.server import MAX_CLIENTS, AdminServer
from bayplan.admin_protocol import MAX_REQUEST_BYTES
from bayplan.errors import HostError, UnavailableError
from bayplan.views.snapshot import Snapshot

Scenario = Callable[[AdminServer, Path], Awaitable[None]]


class Levels:
    """What the daemon gives for changing the log level."""

    def __init__(self) -> None:
        self.level = "info"

    def __call__(self, level: str | None) -> str:
        self.level = level or self.level
        return self.level


def serve(
    path: Path, snapshot: Callable[[], Snapshot], scenario: Scenario, client_timeout_s: float = 30
) -> None:
    async def run() -> None:
        server = AdminServer(path, snapshot, Levels(), client_timeout_s)
        await server.start()
        try:
            await scenario(server, path)
        finally:
            await server.close()

    asyncio.run(run())


async def until(condition: Callable[[], bool]) -> None:
    """Let the server run until *condition* holds; the test's own time limit is the end of patience."""
    while not condition():  # noqa: ASYNC110 - there is no event inside the server for a test to wait for
        await asyncio.sleep(0)


async def ask(path: Path, line: bytes) -> dict:
    reader, writer = await asyncio.open_unix_connection(path, limit=1 << 24)
    try:
        writer.write(line)
        answer = await reader.readline()
        # The server may leave the rest of a request that it refuses unread; then the end is a reset.
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
    finally:
        writer.transport.abort()
    assert answer.endswith(b"\n")
    return json.loads(answer)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run" / "admin.sock"


@pytest.mark.parametrize(("verb", "kind"), [("ping", "Pong"), ("status", "Status"), ("nodes", "Nodes")])
def test_every_view_is_served(path: Path, snapshot: Snapshot, verb: str, kind: str) -> None:
    async def scenario(server: AdminServer, path: Path) -> None:
        answer = await ask(path, json.dumps({"verb": verb}).encode() + b"\n")
        assert (answer["apiVersion"], answer["kind"]) == ("bayplan/v1", kind)

    serve(path, lambda: snapshot, scenario)


def test_the_log_level_is_shown_and_set(path: Path, snapshot: Snapshot) -> None:
    async def scenario(server: AdminServer, path: Path) -> None:
        assert (await ask(path, b'{"verb":"log-level"}\n'))["level"] == "info"
        assert (await ask(path, b'{"verb":"log-level","level":"debug"}\n'))["level"] == "debug"
        assert (await ask(path, b'{"verb":"log-level"}\n'))["level"] == "debug"
        wrong = await ask(path, b'{"verb":"log-level","level":"loud"}\n')
        assert (wrong["kind"], wrong["code"]) == ("Error", "BadRequest")
        assert "loud" in wrong["message"]
        assert "debug" in wrong["message"]

    serve(path, lambda: snapshot, scenario)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"\n", "not JSON"),
        (b"\xff\xff\n", "not JSON"),
        (b"[" * 50_000 + b"\n", "not JSON"),
        (b"[]\n", "not a JSON object"),
        (b"{}\n", "verb"),
        (b'{"verb":"reboot"}\n', "'reboot'"),
        (b'{"verb":["status"]}\n', "verb"),
        (b'{"apiVersion":"bayplan/v9","verb":"ping"}\n', "bayplan/v9"),
        (b'{"verb":"' + b"x" * MAX_REQUEST_BYTES + b'"}\n', str(MAX_REQUEST_BYTES)),
    ],
)
def test_a_bad_request_is_answered_with_what_is_wrong(
    path: Path, snapshot: Snapshot, line: bytes, words: str
) -> None:
    async def scenario(server: AdminServer, path: Path) -> None:
        answer = await ask(path, line)
        assert (answer["kind"], answer["code"]) == ("Error", "BadRequest")
        assert words in answer["message"]
        assert (await ask(path, b'{"verb":"ping"}\n'))["kind"] == "Pong"

    serve(path, lambda: snapshot, scenario)


def test_a_request_in_pieces(path: Path, snapshot: Snapshot) -> None:
    async def scenario(server: AdminServer, path: Path) -> None:
        reader, writer = await asyncio.open_unix_connection(path)
        for byte in b'{"verb":"ping"}\n':
            writer.write(bytes([byte]))
            await writer.drain()
        assert json.loads(await reader.read())["kind"] == "Pong"
        writer.close()
        await writer.wait_closed()

    serve(path, lambda: snapshot, scenario)


def test_a_client_that_leaves_early_harms_nobody(
    path: Path, snapshot: Snapshot, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(server: AdminServer, path: Path) -> None:
        for line in (b"", b'{"verb"', b'{"verb":"status"}\n'):
            _, writer = await asyncio.open_unix_connection(path)
            writer.write(line)
            writer.transport.abort()
        assert (await ask(path, b'{"verb":"ping"}\n'))["kind"] == "Pong"

    caplog.set_level(logging.INFO)
    serve(path, lambda: snapshot, scenario)
    assert caplog.records == []


def test_silent_clients_time_out(path: Path, snapshot: Snapshot) -> None:
    async def scenario(server: AdminServer, path: Path) -> None:
        answer = await ask(path, b'{"verb":')
        assert (answer["kind"], answer["code"]) == ("Error", "Timeout")

    serve(path, lambda: snapshot, scenario, client_timeout_s=0.05)


def test_clients_that_do_not_read_are_dropped(path: Path, snapshot: Snapshot) -> None:
    """The answer is far larger than the buffers of a socket."""
    large = replace(snapshot, problems=("x" * (4 << 20),))

    async def scenario(server: AdminServer, path: Path) -> None:
        _, writer = await asyncio.open_unix_connection(path, limit=1)
        writer.write(b'{"verb":"status"}\n')
        await until(lambda: bool(server.clients))
        await asyncio.wait(list(server.clients))
        writer.transport.abort()
        # The next one is not hurried: a busy machine may be late.
        server._client_timeout_s = 30
        assert (await ask(path, b'{"verb":"ping"}\n'))["kind"] == "Pong"

    serve(path, lambda: large, scenario, client_timeout_s=0.2)


def test_clients_that_say_nothing_lose_their_places_to_those_who_wait(path: Path, snapshot: Snapshot) -> None:
    async def scenario(server: AdminServer, path: Path) -> None:
        server._max_wait_s = 0.0
        silent = [await asyncio.open_unix_connection(path) for _ in range(MAX_CLIENTS)]
        await until(lambda: len(server.clients) == MAX_CLIENTS)
        assert (await ask(path, b'{"verb":"ping"}\n'))["kind"] == "Pong"
        assert await silent[0][0].read() == b""
        for _, writer in silent:
            writer.transport.abort()

    serve(path, lambda: snapshot, scenario)


def test_a_defect_in_a_view_is_answered_and_logged(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> Snapshot:
        raise KeyError("node 7")

    async def scenario(server: AdminServer, path: Path) -> None:
        answer = await ask(path, b'{"verb":"status"}\n')
        assert (answer["kind"], answer["code"]) == ("Error", "Internal")

    serve(path, broken, scenario)
    assert "node 7" in caplog.text


def test_only_the_owner_may_connect(path: Path, snapshot: Snapshot) -> None:
    async def scenario(server: AdminServer, path: Path) -> None:
        status = path.stat()
        assert stat.S_ISSOCK(status.st_mode)
        assert stat.S_IMODE(status.st_mode) == 0o600
        assert [one.name for one in path.parent.iterdir()] == [path.name]

    serve(path, lambda: snapshot, scenario)


@pytest.mark.root
def test_another_user_is_turned_away_even_with_access(open_directory: Path, snapshot: Snapshot) -> None:
    async def scenario(server: AdminServer, path: Path) -> None:
        path.chmod(0o666)
        client = (
            "import os,socket,sys; os.setuid(65534); s=socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]);"
            's.sendall(b\'{"verb":"status"}\\n\'); sys.stdout.buffer.write(s.makefile("rb").readline())'
        )
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", client, str(path), stdout=asyncio.subprocess.PIPE
        )
        output, _ = await process.communicate()
        answer = json.loads(output)
        assert answer["kind"] == "Error"
        assert "65534" in answer["message"]

    serve(open_directory / "admin.sock", lambda: snapshot, scenario)


def test_the_file_goes_when_the_server_goes(path: Path, snapshot: Snapshot) -> None:
    async def scenario(server: AdminServer, path: Path) -> None:
        assert path.exists()

    serve(path, lambda: snapshot, scenario)
    assert not path.exists()


def test_a_stale_socket_is_replaced(path: Path, snapshot: Snapshot) -> None:
    path.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))

    async def scenario(server: AdminServer, path: Path) -> None:
        assert (await ask(path, b'{"verb":"ping"}\n'))["kind"] == "Pong"

    serve(path, lambda: snapshot, scenario)


def test_a_living_daemon_keeps_its_socket(path: Path, snapshot: Snapshot) -> None:
    async def scenario(server: AdminServer, path: Path) -> None:
        second = AdminServer(path, lambda: snapshot, Levels())
        with pytest.raises(UnavailableError, match="another daemon"):
            await second.start()
        await second.close()
        assert (await ask(path, b'{"verb":"ping"}\n'))["kind"] == "Pong"

    serve(path, lambda: snapshot, scenario)


def test_somebody_elses_socket_is_left_alone_at_the_end(path: Path, snapshot: Snapshot) -> None:
    async def scenario(server: AdminServer, path: Path) -> None:
        path.unlink()
        path.write_text("theirs")

    serve(path, lambda: snapshot, scenario)
    assert path.read_text() == "theirs"


def test_a_file_that_is_no_socket_is_never_replaced(path: Path, snapshot: Snapshot) -> None:
    path.parent.mkdir()
    path.write_text("precious")
    with pytest.raises(UnavailableError, match="not a socket"):
        asyncio.run(AdminServer(path, lambda: snapshot, Levels()).start())
    assert path.read_text() == "precious"


def test_a_place_that_cannot_be_taken_is_named(tmp_path: Path, snapshot: Snapshot) -> None:
    (tmp_path / "file").touch()
    path = tmp_path / "file" / "admin.sock"
    with pytest.raises(HostError, match=str(path)):
        asyncio.run(AdminServer(path, lambda: snapshot, Levels()).start())
