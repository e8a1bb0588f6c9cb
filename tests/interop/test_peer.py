"""Our codec against the Go multiplexer and ttRPC, used as no runtime uses them."""

import struct

import pytest

from bayplan._proto.nri import api_pb2
from bayplan.errors import RemoteProtocolError
from bayplan.nri.wire import Code, ConnectionClosed, TtrpcResponse
from bayplan.nri.wire.connection_events import MAX_CONSECUTIVE_REFUSALS, MAX_UNANSWERED_REQUESTS

pytestmark = pytest.mark.interop


@pytest.fixture
def peer(go_side):
    return go_side("-peer")


def message(stream_id: int, kind: int = 1, body: str = "0a0173 12016d", length: int | None = None) -> str:
    data = bytes.fromhex(body)
    return (struct.pack(">IIBB", len(data) if length is None else length, stream_id, kind, 0) + data).hex()


def same(request):
    return TtrpcResponse(request.stream_id)


@pytest.mark.parametrize(("count", "padding"), [(1, 0), (60, 100), (40, 30_000), (4, 3_900_000)])
def test_calls_at_the_same_time(peer, connect, count, padding):
    answer = api_pb2.CreateContainerResponse(
        adjust=api_pb2.ContainerAdjustment(annotations={"k": "v" * padding})
    ).SerializeToString()
    connect(peer, lambda request: TtrpcResponse(request.stream_id, payload=answer))
    result = peer.do("call", count=count, padding=padding)
    assert result["answers"] == {"OK": count}
    assert result["sizes"] == {str(len(answer)): count}


def test_a_flood_of_calls_is_answered_in_part_and_refused_in_part(peer, connect):
    plugin = connect(peer, lambda _: None)
    flood = 200
    number = peer.start("call", count=flood, padding=10)
    plugin.wait_until(lambda: len(plugin.requests) + len(plugin.refused) == flood)
    assert len(plugin.requests) == MAX_UNANSWERED_REQUESTS
    for request in plugin.requests:
        plugin.send(TtrpcResponse(request.stream_id))
    result = peer.finish(number)
    assert result["answers"] == {
        "OK": MAX_UNANSWERED_REQUESTS,
        "ResourceExhausted": flood - MAX_UNANSWERED_REQUESTS,
    }
    assert result["message"] == f"{MAX_UNANSWERED_REQUESTS} requests wait for an answer and no more may"


def test_a_flood_without_end_is_hung_up_on(peer, connect):
    plugin = connect(peer, lambda _: None)
    number = peer.start("call", count=2000, padding=1000)
    end = plugin.end.get(timeout=60)
    assert isinstance(end, RemoteProtocolError)
    assert "refused messages in a row" in end.problem
    assert len(plugin.requests) == MAX_UNANSWERED_REQUESTS
    assert len(plugin.refused) == MAX_CONSECUTIVE_REFUSALS
    answers = peer.finish(number)["answers"]
    assert sum(answers.values()) == 2000
    assert "OK" not in answers


def test_a_call_over_the_limit(peer, connect, nri_version):
    plugin = connect(peer, same)
    result = peer.do("call", count=1, padding=5 << 20)
    assert result["answers"] == {"ResourceExhausted": 1}
    # Since ttRPC 1.2.6 the Go client finds that out by itself.
    assert bool(plugin.refused) == (nri_version == "0.6.1")
    assert peer.do("call", count=1)["answers"] == {"OK": 1}


def test_messages_against_the_rules(peer, connect):
    connect(peer, same)
    result = peer.do(
        "raw",
        write=[
            message(1),
            message(2),  # even
            message(1),  # again
            message(3, body="ff"),  # not a request
            message(3, kind=2),  # a response where requests go
            message(5, kind=77),  # a type from the future
            message(5, kind=3),  # data for no stream
            message(5, length=(5 << 20) + 6),  # too large
            *["00*1048576"] * 5,
            message(5),
        ],
        count=7,
    )
    assert result["error"] == ""
    assert {(reply["type"], reply["flags"]) for reply in result["replies"]} == {(2, 0)}
    assert [(reply["stream"], Code(reply["code"])) for reply in result["replies"]] == [
        (1, Code.OK),
        (2, Code.INVALID_ARGUMENT),
        (1, Code.INVALID_ARGUMENT),
        (3, Code.INVALID_ARGUMENT),
        (5, Code.INVALID_ARGUMENT),
        (5, Code.RESOURCE_EXHAUSTED),
        (5, Code.OK),
    ]


def test_one_message_in_many_frames_and_many_messages_in_one(peer, connect):
    connect(peer, same)
    bytewise = [message(1)[at : at + 2] for at in range(0, len(message(1)), 2)]
    together = "".join(message(stream_id) for stream_id in (3, 5, 7))
    result = peer.do("raw", write=[*bytewise, together, message(9)], count=5)
    assert result["error"] == ""
    assert [reply["stream"] for reply in result["replies"]] == [1, 3, 5, 7, 9]


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\nHost: nri\r\n\r\n",
        bytes.fromhex("16030100c8010000c40303"),
        b"\xff" * 100,
        struct.pack(">II", 1, 1 << 31),
    ],
    ids=["HTTP", "TLS", "ones", "2 GiB"],
)
def test_garbage_is_hung_up_on(peer, connect, garbage):
    number = peer.start("trunk", write=[garbage.hex()])
    plugin = connect(peer, same)
    assert isinstance(plugin.end.get(timeout=60), RemoteProtocolError)
    assert peer.finish(number)["hung up"]


def test_a_peer_that_leaves_between_messages(peer, connect):
    plugin = connect(peer, same)
    assert peer.do("call", count=1)["answers"] == {"OK": 1}
    peer.close()
    assert plugin.end.get(timeout=60) == ConnectionClosed()


@pytest.mark.parametrize("begun", ["000000", "00000001 0000000c 00000002", "00000009 0000000c 00000002"])
def test_a_peer_that_leaves_inside_a_message(peer, connect, begun):
    number = peer.start("cut", write=[bytes.fromhex(begun).hex()])
    plugin = connect(peer, same)
    end = plugin.end.get(timeout=60)
    assert isinstance(end, RemoteProtocolError)
    assert "closed it inside" in end.problem
    assert peer.finish(number)["error"] == ""
