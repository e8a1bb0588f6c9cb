"""The two ends of the OCI socket together: the real programs ask the real server, nothing between them."""

import asyncio
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from bayplan.control.container_files import Starts
from bayplan.host.unix_socket import Peer
from bayplan.oci.protocol import MAX_BODY_BYTES, MAX_TEXT_BYTES, Answer, OciServer, Status, Verb

if TYPE_CHECKING:
    from conftest import Installation, Runtime


class AnsweringHandler:
    """Answers as it is told, behind the daemon's own server."""

    def __init__(self) -> None:
        self.answer = Answer(Status.OK)
        self.asked: list[tuple[Verb, bytes]] = []

    async def serve(self, verb: Verb, body: bytes, _peer: Peer) -> Answer:
        self.asked.append((verb, body))
        return self.answer


@pytest.fixture
def handler(installed: "Installation") -> Iterator[AnsweringHandler]:
    one = AnsweringHandler()
    loop = asyncio.new_event_loop()
    server = OciServer(installed.socket, one.serve)
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    asyncio.run_coroutine_threadsafe(server.start(), loop).result()
    yield one
    asyncio.run_coroutine_threadsafe(server.close(), loop).result()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


SPEC = b'{"process":{}}'


@pytest.mark.parametrize("verb", ["createRuntime", "poststop", "precreate"])
def test_the_hook_is_understood(installed: "Installation", handler: AnsweringHandler, verb: str) -> None:
    finished = installed.run_hook("--timeout", "60", verb, stdin=SPEC)
    assert (finished.returncode, finished.stderr) == (0, b"")
    assert handler.asked == [(Verb(verb), SPEC)]


def test_the_wrapper_is_understood(
    installed: "Installation", handler: AnsweringHandler, runtime: "Runtime"
) -> None:
    (runtime.out / "read-stdin").touch()
    Starts(installed.socket).expect("c1")
    verbs = (["create", "-b", "/b", "c1"], ["update", "-r", "-", "c1"], ["start", "c1"], ["delete", "c1"])
    for arguments in verbs:
        if arguments[0] == "update":
            handler.answer = Answer(Status.OK, SPEC)
        assert installed.run_wrapper("--root", "/r", *arguments, input=b"{}").returncode == 0
        if arguments[0] == "update":
            assert (runtime.out / "stdin").read_bytes() == SPEC
    assert handler.asked == [
        (Verb.CREATE, f"/b\0c1\0{runtime.path}\0/r".encode()),
        (Verb.UPDATE, b"c1\0{}"),
        (Verb.START, b"c1"),
        (Verb.DELETE, b"c1"),
    ]


def test_both_ends_allow_the_same_length(installed: "Installation", handler: AnsweringHandler) -> None:
    spec = b"{" + b" " * (MAX_BODY_BYTES - 2) + b"}"
    handler.answer = Answer(Status.OK, b"{ " + spec[2:])
    finished = installed.run_hook("--timeout", "60", "precreate", stdin=spec)
    assert (finished.returncode, finished.stderr) == (0, b"")
    assert finished.stdout == handler.answer.body
    assert [len(body) for _, body in handler.asked] == [MAX_BODY_BYTES]


def test_a_request_that_is_too_long_hears_why(installed: "Installation", handler: AnsweringHandler) -> None:
    finished = installed.run_hook("--timeout", "60", "createRuntime", stdin=b" " * (2 << 20))
    assert finished.returncode == 0
    assert b"announces 2097152 bytes for createRuntime, expected at most 1048576" in finished.stderr
    assert handler.asked == []


@pytest.mark.parametrize("status", [Status.REFUSED, Status.ERROR])
def test_texts_arrive(installed: "Installation", handler: AnsweringHandler, status: Status) -> None:
    handler.answer = Answer.saying(status, "no room:\n" + "x" * 2 * MAX_TEXT_BYTES)
    finished = installed.run_hook("--timeout", "60", "createRuntime", stdin=SPEC)
    assert finished.returncode == (status is Status.REFUSED)
    assert finished.stderr.startswith(b"bayplan: createRuntime: no room: xxx")
