"""The pump between a transport and the codec, on a transport that is a list of bytes."""

import asyncio
import logging

import pytest

from bayplan.nri import Link
from bayplan.nri.transport import MAX_UNSENT_BYTES
from bayplan.nri.wire import Code, MessageTooLargeError, Role, TtrpcRequest, TtrpcResponse


class ListTransport(asyncio.Transport):
    """Keeps what is written; the peer takes nothing of it."""

    def __init__(self, link: Link, unsent_bytes: int = 0) -> None:
        super().__init__()
        self.link = link
        self.writes: list[bytes] = []
        self.unsent_bytes = unsent_bytes
        self.ending = ""
        self.broken = False
        link.connection_made(self)

    def write(self, data):
        self.writes.append(bytes(data))

    def get_write_buffer_size(self):
        return self.unsent_bytes

    def is_closing(self):
        return self.broken or bool(self.ending)

    def close(self):
        self.ending = self.ending or "close"

    def abort(self):
        self.ending = "abort"

    def lose(self, error=None):
        self.link.connection_lost(error)


class Owner:
    def __init__(self) -> None:
        self.received = []
        self.endings = []

    def receive(self, message):
        self.received.append(message)

    def link(self, role=Role.PLUGIN, receive=None) -> Link:
        return Link(role, receive or self.receive, self.endings.append)


def calls(*methods: str) -> bytes:
    """What a runtime sends."""
    runtime = Link(Role.RUNTIME, print, print).wire
    return b"".join(runtime.send(runtime.request("service", method, b"payload")) for method in methods)


@pytest.mark.parametrize("size", [1, 3, 1 << 20])
def test_delivers_in_order_whatever_the_fragments(size):
    owner = Owner()
    link = owner.link()
    ListTransport(link)
    sent = calls("A", "B", "C")
    for at in range(0, len(sent), size):
        link.data_received(sent[at : at + size])
    assert [message.method for message in owner.received] == ["A", "B", "C"]


def test_writes_what_is_sent():
    owner = Owner()
    link = owner.link()
    transport = ListTransport(link)
    link.data_received(calls("A"))
    assert link.send(TtrpcResponse(1, payload=b"answer"))
    peer = Link(Role.RUNTIME, print, print)
    assert len(transport.writes) == 1
    assert b"answer" in transport.writes[0]
    assert peer.wire.role is Role.RUNTIME


def test_cannot_send_before_and_after():
    owner = Owner()
    link = owner.link()
    assert not link.open
    assert not link.send(link.wire.request("s", "M", b""))
    transport = ListTransport(link)
    assert link.open
    link.close("enough")
    assert not link.open
    assert not link.send(link.wire.request("s", "M", b""))
    assert transport.writes == []
    assert transport.ending == "close"
    assert owner.endings == []
    transport.lose()
    assert owner.endings == ["enough"]


def test_a_transport_that_found_its_peer_gone_is_written_to_no_more():
    owner = Owner()
    link = owner.link()
    transport = ListTransport(link)
    link.data_received(calls("M"))
    transport.broken = True
    assert not link.open
    assert not link.send(TtrpcResponse(1))
    link.data_received(calls("M"))  # a stream id for the second time: refused
    assert transport.writes == []


def test_an_oversized_message_is_the_senders_problem():
    owner = Owner()
    link = owner.link()
    transport = ListTransport(link)
    link.data_received(calls("A"))
    with pytest.raises(MessageTooLargeError):
        link.send(TtrpcResponse(1, payload=bytes(5 << 20)))
    assert transport.ending == ""
    assert link.send(TtrpcResponse(1))


def test_garbage_ends_the_connection_with_a_reason():
    owner = Owner()
    link = owner.link()
    transport = ListTransport(link)
    link.data_received(b"\xff" * 16)
    assert transport.ending == "abort"
    transport.lose()
    assert len(owner.endings) == 1
    assert "4294967295" in owner.endings[0]


def test_what_comes_after_the_end_is_taken_and_dropped():
    owner = Owner()
    link = owner.link()
    ListTransport(link)
    link.close("enough")
    link.data_received(calls("A"))
    assert owner.received == []


def test_end_of_stream():
    owner = Owner()
    link = owner.link()
    transport = ListTransport(link)
    link.data_received(calls("A"))
    link.eof_received()
    transport.lose()
    assert [message.method for message in owner.received] == ["A"]
    assert owner.endings == ["closed by the peer"]


def test_end_of_stream_inside_a_message():
    owner = Owner()
    link = owner.link()
    transport = ListTransport(link)
    link.data_received(calls("A")[:-1])
    link.eof_received()
    transport.lose()
    assert "inside a message" in owner.endings[0]


def test_a_lost_connection_says_why():
    owner = Owner()
    transport = ListTransport(owner.link())
    transport.lose(ConnectionResetError(104, "Connection reset by peer"))
    assert owner.endings == ["[Errno 104] Connection reset by peer"]


def test_a_refused_message_is_answered_here(caplog):
    owner = Owner()
    link = owner.link()
    transport = ListTransport(link)
    runtime = Link(Role.RUNTIME, print, print).wire
    sent = bytearray(runtime.send(runtime.request("service", "A", b"")))
    sent[15] = 2  # an even stream id
    with caplog.at_level(logging.WARNING):
        link.data_received(bytes(sent))
    assert owner.received == []
    assert len(transport.writes) == 1
    assert caplog.records[0].code == Code.INVALID_ARGUMENT.name
    assert link.open


def test_an_error_of_ours_ends_the_connection_and_is_logged(caplog):
    def fail(message: TtrpcRequest | TtrpcResponse) -> None:
        raise ZeroDivisionError(message.stream_id)

    owner = Owner()
    link = owner.link(receive=fail)
    transport = ListTransport(link)
    link.data_received(calls("A", "B"))
    transport.lose()
    assert owner.endings == ["an error of ours"]
    assert caplog.records[0].exc_info[0] is ZeroDivisionError


def test_nothing_is_delivered_after_the_owner_has_ended_it():
    owner = Owner()
    link = owner.link(receive=lambda message: (owner.receive(message), link.abort("enough")))
    ListTransport(link)
    link.data_received(calls("A", "B"))
    assert [message.method for message in owner.received] == ["A"]


def test_a_peer_that_does_not_read_is_given_up():
    owner = Owner()
    link = owner.link()
    transport = ListTransport(link, unsent_bytes=MAX_UNSENT_BYTES)
    link.data_received(calls("A", "B"))
    link.send(TtrpcResponse(1))
    assert link.open
    transport.unsent_bytes += 1
    link.send(TtrpcResponse(3))
    assert transport.ending == "abort"
    transport.lose()
    assert "does not read" in owner.endings[0]
