"""The whole: what one end sends the other receives, in any fragmentation."""

import pytest

from bayplan.errors import LocalProtocolError, RemoteProtocolError
from bayplan.nri.wire import (
    MAX_MESSAGE_BYTES,
    NEED_DATA,
    Code,
    Connection,
    ConnectionClosed,
    MessageTooLargeError,
    RefusedMessage,
    Role,
    TtrpcRequest,
    TtrpcResponse,
)
from bayplan.nri.wire.connection_events import (
    MAX_BACKLOG_BYTES,
    MAX_CONSECUTIVE_REFUSALS,
    MAX_FRAME_BYTES,
    MAX_OUTSTANDING_CALLS,
    MAX_STREAM_ID,
    MAX_UNANSWERED_BYTES,
    MAX_UNANSWERED_REQUESTS,
)
from support import ttrpc_messages

BOTH_ROLES = pytest.mark.parametrize("role", Role)
SIZES = pytest.mark.parametrize("size", [0, 1, 4000, 4086, 4096, 4097, 9000])
LARGE = ttrpc_messages.Request(payload=bytes(MAX_MESSAGE_BYTES - 5)).SerializeToString()


# ---- Calls and answers -------------------------------------------------------------------------------


@BOTH_ROLES
@SIZES
def test_a_call_and_its_answer(pair, role, size):
    call = pair[role].request("service", "Method", b"q" * size, timeout_ns=5, metadata=(("k", "v"),))
    assert pair.send(role, call) == [call]
    answer = TtrpcResponse(call.stream_id, payload=b"a" * size)
    assert pair.send(role.peer, answer) == [answer]


def test_both_ends_call_at_the_same_time_on_the_same_stream_id(pair):
    for _ in range(3):
        calls = {role: pair[role].request("s", role.name, b"") for role in Role}
        for role in Role:
            assert pair.send(role, calls[role]) == [calls[role]]
        for role in Role:
            answer = TtrpcResponse(calls[role].stream_id, payload=role.name.encode())
            assert pair.send(role.peer, answer) == [answer]


def test_stream_ids_are_odd_and_increase(plugin):
    assert [plugin.request("s", "m", b"").stream_id for _ in range(4)] == [1, 3, 5, 7]


def test_answers_may_come_in_any_order(pair):
    calls = [pair[Role.RUNTIME].request("s", "m", b"") for _ in range(3)]
    for call in calls:
        pair.send(Role.RUNTIME, call)
    for call in reversed(calls):
        answer = TtrpcResponse(call.stream_id, Code.ABORTED, f"{call.stream_id}")
        assert pair.send(Role.PLUGIN, answer) == [answer]


def test_several_messages_in_one_chunk_come_out_in_order(plugin, deliver, raw):
    plugin.send(plugin.request("s", "m", b""))
    chunk = raw.call(1) + raw.answer(1) + raw.call(3)
    assert deliver(plugin, chunk) == [TtrpcRequest(1, "s", "m"), TtrpcResponse(1), TtrpcRequest(3, "s", "m")]


def test_frames_need_not_agree_with_messages(plugin, deliver, raw):
    body = b"\x0a\x01s\x12\x01m"
    stream = raw.message(1, raw.REQUEST, body) + raw.message(3, raw.REQUEST, body)
    chunk = b"".join(raw.frame(raw.SERVE, stream[at : at + 3]) for at in range(0, len(stream), 3))
    assert deliver(plugin, chunk) == [TtrpcRequest(1, "s", "m"), TtrpcRequest(3, "s", "m")]


def test_two_messages_in_one_frame(plugin, deliver, raw):
    stream = raw.message(1, raw.REQUEST) + raw.message(3, raw.REQUEST)
    assert deliver(plugin, raw.frame(raw.SERVE, stream)) == [TtrpcRequest(1, "", ""), TtrpcRequest(3, "", "")]


def test_messages_on_both_connections_may_interleave(plugin, deliver, raw):
    plugin.send(plugin.request("s", "m", b""))
    call = raw.message(1, raw.REQUEST, b"\x0a\x01s\x12\x01m")
    answer = raw.message(1, raw.RESPONSE, b"\x12\x01p")
    chunk = b"".join(
        raw.frame(raw.SERVE, bytes((one,))) + raw.frame(raw.CALL, bytes((other,)))
        for one, other in zip(call, answer.ljust(len(call), b"\x00"), strict=True)
    )
    # What follows the answer is the beginning of a header that never ends.
    assert deliver(plugin, chunk) == [TtrpcResponse(1, payload=b"p"), TtrpcRequest(1, "s", "m")]


def test_noise_between_messages_is_skipped(plugin, deliver, raw):
    noise = raw.frame(7, b"junk") + raw.frame(0, b"") + raw.frame(raw.SERVE, b"") * 150
    assert deliver(plugin, noise + raw.call(1) + noise) == [TtrpcRequest(1, "s", "m")]


def test_a_message_of_the_largest_size_passes_in_both_directions():
    plugin, runtime = Connection(Role.PLUGIN), Connection(Role.RUNTIME)
    size = MAX_MESSAGE_BYTES - len(b"\x0a\x01s\x12\x01m\x1a\x80\x80\x80\x02")
    call = runtime.request("s", "m", b"q" * size)
    sent = runtime.send(call)
    assert len(sent) == 8 + 4096 + 8 + MAX_MESSAGE_BYTES + 10 - 4096
    for at in range(0, len(sent), 1000):
        assert plugin.next_event() is NEED_DATA
        plugin.receive_data(sent[at : at + 1000])
    assert plugin.next_event() == call
    answer = TtrpcResponse(1, payload=b"a" * (MAX_MESSAGE_BYTES - 5))
    runtime.receive_data(plugin.send(answer))
    assert runtime.next_event() == answer


# ---- Sending what may not be sent --------------------------------------------------------------------


def test_an_answer_too_large_leaves_the_request_to_be_answered(pair):
    call = pair[Role.RUNTIME].request("s", "m", b"")
    pair.send(Role.RUNTIME, call)
    with pytest.raises(MessageTooLargeError) as caught:
        pair[Role.PLUGIN].send(TtrpcResponse(1, payload=bytes(MAX_MESSAGE_BYTES)))
    assert caught.value.stream_id == 1
    assert caught.value.size_bytes == MAX_MESSAGE_BYTES + 5
    assert str(MAX_MESSAGE_BYTES) in str(caught.value)
    instead = TtrpcResponse(1, Code.RESOURCE_EXHAUSTED, str(caught.value))
    assert pair.send(Role.PLUGIN, instead) == [instead]


def test_a_call_too_large_is_not_outstanding(pair):
    plugin = pair[Role.PLUGIN]
    call = plugin.request("s", "m", bytes(MAX_MESSAGE_BYTES))
    for _ in range(MAX_OUTSTANDING_CALLS + 1):
        with pytest.raises(MessageTooLargeError):
            plugin.send(call)
    small = plugin.request("s", "m", b"")
    assert pair.send(Role.PLUGIN, small) == [small]


def test_an_answer_needs_a_request(pair):
    with pytest.raises(LocalProtocolError, match="no request waits"):
        pair[Role.PLUGIN].send(TtrpcResponse(1))
    pair.send(Role.RUNTIME, pair[Role.RUNTIME].request("s", "m", b""))
    pair.send(Role.PLUGIN, TtrpcResponse(1))
    with pytest.raises(LocalProtocolError) as caught:
        pair[Role.PLUGIN].send(TtrpcResponse(1))
    assert caught.value.subject == "stream 1"


def test_calls_are_sent_in_the_order_in_which_they_were_made(plugin):
    first, second, third = (plugin.request("s", "m", b"") for _ in range(3))
    plugin.send(second)
    for late in (first, second):
        with pytest.raises(LocalProtocolError, match="must increase"):
            plugin.send(late)
    plugin.send(third)


@pytest.mark.parametrize("stream_id", [-1, 0, 2, 3, 99])
def test_calls_are_made_by_the_connection(plugin, stream_id):
    plugin.request("s", "m", b"")
    with pytest.raises(LocalProtocolError, match="not allocated"):
        plugin.send(TtrpcRequest(stream_id, "s", "m"))


def test_a_call_that_the_wire_cannot_carry_is_not_outstanding(plugin):
    with pytest.raises(LocalProtocolError, match="UTF-8"):
        plugin.send(plugin.request("\ud800", "m", b""))
    plugin.send(plugin.request("s", "m", b""))


def test_outstanding_calls_are_bounded_until_they_are_forgotten(pair):
    plugin = pair[Role.PLUGIN]
    for _ in range(MAX_OUTSTANDING_CALLS):
        plugin.send(plugin.request("s", "m", b""))
    another = plugin.request("s", "m", b"")
    with pytest.raises(LocalProtocolError) as caught:
        plugin.send(another)
    assert str(MAX_OUTSTANDING_CALLS) in str(caught.value)
    plugin.forget(1)
    plugin.forget(1)
    plugin.send(another)


def test_stream_ids_end(plugin):
    plugin._called._next_id = MAX_STREAM_ID
    plugin.send(plugin.request("s", "m", b""))
    with pytest.raises(LocalProtocolError, match="end at"):
        plugin.request("s", "m", b"")


# ---- Receiving what may not be sent ------------------------------------------------------------------


def check_refusal(raw, event, code):
    """The reply of a refusal tells the peer what the event tells us; the reason."""
    assert isinstance(event, RefusedMessage)
    assert event.code is code
    head, body = event.reply[:18], event.reply[18:]
    assert head + body == raw.frame(raw.SERVE, raw.message(event.stream_id, raw.RESPONSE, body))
    reply = ttrpc_messages.Response.FromString(body)
    assert (reply.status.code, reply.status.message, reply.payload) == (code, event.message, b"")
    return event.message


def test_a_request_too_large_is_refused_and_the_connection_goes_on(plugin, raw):
    for stream_id, size in ((1, MAX_MESSAGE_BYTES + 1), (3, 40 << 20)):
        plugin.receive_data(raw.frame(raw.SERVE, raw.message(stream_id, raw.REQUEST, length=size)))
        left = size
        while left:
            assert plugin.next_event() is NEED_DATA
            piece = min(left, 1 << 20)
            plugin.receive_data(raw.frame(raw.SERVE, bytes(piece)))
            left -= piece
        reason = check_refusal(raw, plugin.next_event(), Code.RESOURCE_EXHAUSTED)
        assert f"{size} bytes" in reason
    plugin.receive_data(raw.call(1))
    assert plugin.next_event() == TtrpcRequest(1, "s", "m")


@pytest.mark.parametrize("stream_id", [0, 2, MAX_STREAM_ID - 1])
def test_the_stream_id_of_a_request_is_odd(plugin, deliver, raw, stream_id):
    events = deliver(plugin, raw.call(stream_id) + raw.call(1))
    assert events[0].stream_id == stream_id
    check_refusal(raw, events[0], Code.INVALID_ARGUMENT)
    assert events[1:] == [TtrpcRequest(1, "s", "m")]


def test_stream_ids_of_requests_increase(plugin, deliver, raw):
    events = deliver(plugin, raw.call(5) + raw.call(3) + raw.call(5) + raw.call(7))
    assert [type(event) for event in events] == [TtrpcRequest, RefusedMessage, RefusedMessage, TtrpcRequest]
    for event in events[1:3]:
        check_refusal(raw, event, Code.INVALID_ARGUMENT)
    assert plugin.send(TtrpcResponse(5))  # the refusal of its namesake has not answered the first one


def test_an_undecodable_request_is_refused(plugin, deliver, raw):
    events = deliver(plugin, raw.call(1, b"\xff\xff") + raw.call(3))
    assert "not a ttRPC request" in check_refusal(raw, events[0], Code.INVALID_ARGUMENT)
    assert events[1:] == [TtrpcRequest(3, "s", "m")]
    with pytest.raises(LocalProtocolError, match="no request waits"):
        plugin.send(TtrpcResponse(1))


def test_requests_wait_for_answers_in_limited_number(plugin, deliver, raw):
    ids = [1 + 2 * number for number in range(MAX_UNANSWERED_REQUESTS + 2)]
    events = deliver(plugin, b"".join(raw.call(stream_id) for stream_id in ids))
    assert [type(event) for event in events] == [TtrpcRequest] * MAX_UNANSWERED_REQUESTS + [
        RefusedMessage
    ] * 2
    check_refusal(raw, events[-1], Code.RESOURCE_EXHAUSTED)
    plugin.send(TtrpcResponse(1))
    assert deliver(plugin, raw.call(ids[-1] + 2)) == [TtrpcRequest(ids[-1] + 2, "s", "m")]


def test_requests_wait_for_answers_in_limited_size(plugin, raw):
    def receive(stream_id):
        plugin.receive_data(raw.call(stream_id, LARGE))
        return plugin.next_event()

    assert len(LARGE) == MAX_MESSAGE_BYTES
    for number in range(MAX_UNANSWERED_BYTES // MAX_MESSAGE_BYTES):
        assert isinstance(receive(2 * number + 1), TtrpcRequest)
    check_refusal(raw, receive(51), Code.RESOURCE_EXHAUSTED)
    plugin.receive_data(raw.call(53, b""))  # no bytes, no objection
    assert isinstance(plugin.next_event(), TtrpcRequest)
    plugin.send(TtrpcResponse(1))
    assert isinstance(receive(55), TtrpcRequest)


def test_a_peer_that_goes_on_with_what_is_refused_is_given_up(plugin, deliver, raw):
    events = deliver(plugin, raw.call(2) * (MAX_CONSECUTIVE_REFUSALS - 1) + raw.call(1))
    assert [type(event) for event in events] == [RefusedMessage] * (MAX_CONSECUTIVE_REFUSALS - 1) + [
        TtrpcRequest
    ]
    events = deliver(plugin, raw.call(2) * MAX_CONSECUTIVE_REFUSALS)
    assert len(events) == MAX_CONSECUTIVE_REFUSALS
    plugin.receive_data(raw.call(2))
    with pytest.raises(RemoteProtocolError) as caught:
        plugin.next_event()
    assert str(MAX_CONSECUTIVE_REFUSALS + 1) in caught.value.problem
    assert "must be odd" in str(caught.value)


@pytest.mark.parametrize("kind", [0, 2, 4, 255])
def test_other_types_are_ignored_where_we_serve(plugin, deliver, raw, kind):
    frame = raw.frame(raw.SERVE, raw.message(2, kind, b"whatever"))
    assert deliver(plugin, frame + raw.call(1)) == [TtrpcRequest(1, "s", "m")]


@pytest.mark.parametrize("kind", [0, 4, 255])
def test_other_types_are_ignored_where_we_call(plugin, deliver, raw, kind):
    plugin.send(plugin.request("s", "m", b""))
    assert deliver(plugin, raw.answer(1, b"whatever", kind=kind) + raw.answer(1)) == [TtrpcResponse(1)]


def test_flags_do_not_matter_to_unary_calls(plugin, deliver, raw):
    assert deliver(plugin, raw.call(1, flags=7)) == [TtrpcRequest(1, "s", "m")]


def test_data_for_no_stream_is_refused_and_an_end_of_stream_is_not(plugin, deliver, raw):
    assert deliver(plugin, raw.call(1, flags=2)) == [TtrpcRequest(1, "s", "m")]
    end_of_stream = raw.frame(raw.SERVE, raw.message(1, raw.DATA, flags=5))
    assert deliver(plugin, end_of_stream) == []
    plugin.send(TtrpcResponse(1))
    [refused] = deliver(plugin, end_of_stream)
    check_refusal(raw, refused, Code.INVALID_ARGUMENT)


def test_answers_that_nobody_waits_for_are_skipped(plugin, deliver, raw):
    plugin.send(plugin.request("s", "m", b""))
    plugin.send(plugin.request("s", "m", b""))
    plugin.forget(1)
    chunk = raw.answer(1, b"\xff") + raw.answer(2) + raw.answer(99) + raw.answer(3) + raw.answer(3)
    assert deliver(plugin, chunk) == [TtrpcResponse(3)]


def test_a_call_given_up_while_its_answer_arrives(plugin, raw):
    plugin.send(plugin.request("s", "m", b""))
    answer = raw.answer(1, b"\x12\x01p")
    plugin.receive_data(answer[:-1])
    assert plugin.next_event() is NEED_DATA
    plugin.forget(1)
    plugin.receive_data(answer[-1:])
    assert plugin.next_event() is NEED_DATA


def test_an_answer_too_large_fails_the_call_and_the_connection_goes_on(plugin, raw):
    plugin.send(plugin.request("s", "m", b""))
    plugin.send(plugin.request("s", "m", b""))
    plugin.receive_data(raw.answer(1, LARGE * 2, length=2 * len(LARGE)) + raw.answer(3))
    assert plugin.next_event() == TtrpcResponse(
        1, Code.RESOURCE_EXHAUSTED, f"message of {2 * len(LARGE)} bytes, expected at most {MAX_MESSAGE_BYTES}"
    )
    assert plugin.next_event() == TtrpcResponse(3)


def test_an_undecodable_answer_fails_the_call(plugin, deliver, raw):
    plugin.send(plugin.request("s", "m", b""))
    [answer] = deliver(plugin, raw.answer(1, b"\xff"))
    assert answer.code is Code.INTERNAL
    assert "not a ttRPC response" in answer.message


@pytest.mark.parametrize(("kind", "name"), [(1, "REQUEST"), (3, "DATA")])
def test_an_answer_of_the_wrong_type_fails_the_call(plugin, deliver, raw, kind, name):
    plugin.send(plugin.request("s", "m", b""))
    [answer] = deliver(plugin, raw.answer(1, b"data", kind=kind))
    assert answer == TtrpcResponse(1, Code.INTERNAL, f"a unary call was answered with a {name} message")


# ---- The end -----------------------------------------------------------------------------------------


def test_the_end_comes_after_the_last_event_and_stays(plugin, raw):
    plugin.receive_data(raw.call(1))
    plugin.receive_data(b"")
    assert plugin.next_event() == TtrpcRequest(1, "s", "m")
    for _ in range(2):
        assert plugin.next_event() == ConnectionClosed()
    plugin.receive_data(b"")
    assert plugin.next_event() == ConnectionClosed()


def test_after_the_end_nothing_is_received_or_called_but_answers_are_harmless(plugin, raw):
    plugin.receive_data(raw.call(1))
    plugin.next_event()
    plugin.receive_data(b"")
    with pytest.raises(LocalProtocolError, match="receive_data"):
        plugin.receive_data(b"x")
    with pytest.raises(LocalProtocolError, match="call of Method"):
        plugin.send(plugin.request("s", "Method", b""))
    assert plugin.next_event() == ConnectionClosed()
    assert plugin.send(TtrpcResponse(1))


CUT_OFF = {
    "frame header": ("a frame", lambda raw: b"\x00\x00\x00"),
    "frame header alone": ("a frame", lambda raw: raw.frame(1, b"abc")[:8]),
    "frame of nobody": ("a frame", lambda raw: raw.frame(7, b"abc")[:-1]),
    "message header": ("a message", lambda raw: raw.frame(1, b"\x00\x00")),
    "body": ("a message", lambda raw: raw.frame(1, raw.message(3, 1, b"ab")[:-1])),
    "body that is dropped": ("a message", lambda raw: raw.frame(1, raw.message(2, 1, b"ab")[:-1])),
    "answer": ("a message", lambda raw: raw.frame(2, raw.message(1, 2, b"ab")[:-1])),
}


@pytest.mark.parametrize("name", CUT_OFF)
def test_an_end_in_the_middle_is_an_error_and_stays_one(plugin, deliver, raw, name):
    where, data = CUT_OFF[name]
    assert deliver(plugin, raw.call(1) + data(raw)) == [TtrpcRequest(1, "s", "m")]
    plugin.receive_data(b"")
    for _ in range(3):
        with pytest.raises(RemoteProtocolError) as caught:
            plugin.next_event()
    assert where in caught.value.problem


def test_an_error_comes_after_the_events_before_it_and_stays(plugin, raw):
    plugin.receive_data(raw.call(1) + b"GET / HTTP/1.1\r\n\r\n" + raw.call(3))
    assert plugin.next_event() == TtrpcRequest(1, "s", "m")
    with pytest.raises(RemoteProtocolError) as first:
        plugin.next_event()
    with pytest.raises(RemoteProtocolError) as second:
        plugin.next_event()
    assert first.value is second.value
    assert str(MAX_FRAME_BYTES) in str(first.value)
    with pytest.raises(LocalProtocolError, match="has ended"):
        plugin.receive_data(b"x")
    with pytest.raises(LocalProtocolError, match="has ended"):
        plugin.send(plugin.request("s", "m", b""))
    assert plugin.send(TtrpcResponse(1))


# ---- What is kept ------------------------------------------------------------------------------------


def test_bytes_that_nobody_takes_are_bounded(plugin, raw):
    large = raw.call(1, LARGE)
    for _ in range(MAX_BACKLOG_BYTES // len(large) + 1):
        plugin.receive_data(large)
    with pytest.raises(LocalProtocolError) as caught:
        plugin.receive_data(b"x")
    assert caught.value.subject == "receive_data"
    assert str(MAX_BACKLOG_BYTES) in caught.value.problem
    assert "next_event" in str(caught.value)
    assert isinstance(plugin.next_event(), TtrpcRequest)
    plugin.receive_data(b"x")
