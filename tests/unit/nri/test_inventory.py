"""A Synchronize is taken apart without the library: held side by side with it here."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayplan._proto.nri import api_pb2 as pb
from bayplan.nri import PayloadError
from bayplan.nri.handler import EndlessListError
from bayplan.nri.translate import (
    MAX_BYTES,
    MAX_KEPT_BYTES,
    MAX_MESSAGES,
    MAX_OBJECTS,
    Inventory,
    container_from,
    pod_from,
)

short = st.text(max_size=5)
pods = st.lists(
    st.builds(pb.PodSandbox, id=short, name=short, labels=st.dictionaries(short, short, max_size=3)),
    max_size=5,
)
containers = st.lists(
    st.builds(pb.Container, id=short, env=st.lists(short, max_size=3), pid=st.integers(0, (1 << 32) - 1)),
    max_size=5,
)
requests = st.builds(pb.SynchronizeRequest, pods=pods, containers=containers, more=st.booleans())


@given(requests)
def test_the_same_as_the_library(request):
    inventory = Inventory()
    assert inventory.add(request.SerializeToString()) == request.more
    assert inventory.pods == [pod_from(pod) for pod in request.pods]
    assert inventory.containers == [container_from(container) for container in request.containers]


def test_messages_add_up_in_any_order():
    inventory = Inventory()
    assert inventory.add(
        pb.SynchronizeRequest(containers=[pb.Container(id="c1")], more=True).SerializeToString()
    )
    assert inventory.add(pb.SynchronizeRequest(more=True).SerializeToString())
    assert not inventory.add(
        pb.SynchronizeRequest(
            pods=[pb.PodSandbox(id="p1")], containers=[pb.Container(id="c2")]
        ).SerializeToString()
    )
    assert [pod.id for pod in inventory.pods] == ["p1"]
    assert [container.id for container in inventory.containers] == ["c1", "c2"]


def test_fields_of_the_future_are_skipped():
    inventory = Inventory()
    unknown_number = bytes([4 << 3, 0x96, 0x01])
    unknown_text = bytes([5 << 3 | 2, 3]) + b"abc"
    payload = unknown_number + pb.SynchronizeRequest(pods=[pb.PodSandbox(id="p1")]).SerializeToString()
    assert not inventory.add(payload + unknown_text)
    assert [pod.id for pod in inventory.pods] == ["p1"]


@given(st.binary(max_size=300))
def test_garbage_is_a_typed_error(payload):
    with suppress(PayloadError):
        Inventory().add(payload)


@given(requests, st.data())
def test_a_truncated_message_is_an_error_or_a_shorter_message(request, data):
    payload = request.SerializeToString()
    cut = data.draw(st.integers(0, len(payload)))
    inventory = Inventory()
    try:
        inventory.add(payload[:cut])
    except PayloadError:
        return
    whole = pb.SynchronizeRequest.FromString(payload[:cut])
    assert len(inventory.pods) == len(whole.pods)


def test_what_is_listed_is_bounded_in_bytes():
    inventory = Inventory()
    ballast = bytes([5 << 3 | 2]) + b"\x80\x80\x80\x02" + bytes(1 << 22)  # an unknown field of 4 MiB
    for _ in range(MAX_BYTES // len(ballast)):
        inventory.add(ballast)
    with pytest.raises(PayloadError, match=f"more than {MAX_BYTES} bytes"):
        inventory.add(ballast)


@pytest.mark.parametrize(
    ("payload", "problem"),
    [
        (b"\x0a\x05abc", "longer than the message"),
        (b"\x09" + bytes(8), "wire type 1"),
        (b"\x0a" + b"\xff" * 11, "more than 10 bytes"),
        (b"\x12\x02\x0a\xff", "cannot be decoded"),
        (b"\x18", "cannot be decoded"),
    ],
)
def test_what_is_wrong_is_said(payload, problem):
    with pytest.raises(PayloadError, match=problem):
        Inventory().add(payload)


def test_a_list_without_end_is_refused():
    inventory = Inventory()
    many = pb.SynchronizeRequest(pods=[pb.PodSandbox()] * (MAX_OBJECTS // 2), more=True).SerializeToString()
    inventory.add(many)
    inventory.add(many)
    with pytest.raises(EndlessListError, match=f"more than {MAX_OBJECTS} pods"):
        inventory.add(many)
    assert len(inventory.pods) == MAX_OBJECTS


def test_messages_without_end_are_refused():
    inventory, empty = Inventory(), pb.SynchronizeRequest(more=True).SerializeToString()
    for _ in range(MAX_MESSAGES):
        assert inventory.add(empty)
    with pytest.raises(EndlessListError, match=f"more than {MAX_MESSAGES} messages"):
        inventory.add(empty)


LARGE = "x" * (1 << 20)


@pytest.mark.parametrize(
    "listed",
    [
        {"pods": [pb.PodSandbox(id="p", annotations={"a": LARGE})]},
        {"pods": [pb.PodSandbox(id="p", labels={LARGE: "a"})]},
        {"pods": [pb.PodSandbox(id=LARGE)]},
        {"pods": [pb.PodSandbox(name=LARGE)]},
        {"containers": [pb.Container(id="c", annotations={"a": LARGE})]},
        {"containers": [pb.Container(id="c", labels={LARGE: "a"})]},
        {"containers": [pb.Container(name=LARGE)]},
        {"containers": [pb.Container(linux=pb.LinuxContainer(cgroups_path=LARGE))]},
        {
            "containers": [
                pb.Container(
                    linux=pb.LinuxContainer(resources=pb.LinuxResources(unified={"memory.high": LARGE}))
                )
            ]
        },
    ],
)
def test_what_is_kept_is_bounded_however_it_is_listed(listed):
    inventory, message = Inventory(), pb.SynchronizeRequest(more=True, **listed).SerializeToString()
    for _ in range(MAX_KEPT_BYTES // len(LARGE) - 1):
        inventory.add(message)
    with pytest.raises(EndlessListError, match=f"more than {MAX_KEPT_BYTES} bytes of names"):
        inventory.add(message + message)


def test_what_is_not_kept_may_be_long():
    inventory = Inventory()
    message = pb.SynchronizeRequest(more=True, containers=[pb.Container(env=[LARGE])]).SerializeToString()
    for _ in range(2 * MAX_KEPT_BYTES // len(LARGE)):
        assert inventory.add(message)
