"""The interfaces of real network namespaces, and answers that the kernel never gives."""

import asyncio
import os
import socket
import struct
import subprocess
import threading
from pathlib import Path

import pytest

from bayplan.errors import HostError
from bayplan.host.network_namespace import socket_in
from bayplan.host.rtnetlink import interfaces_in, interfaces_of, rtnetlink_socket

PATIENCE_S = 20


@pytest.fixture
def namespace(root_user):
    """A network namespace of its own, by path, with a pair of virtual interfaces."""
    name = f"bayplan-test-{os.getpid()}"
    subprocess.run(["ip", "netns", "add", name], check=True)
    try:
        pair = ["link", "add", "inside0", "type", "veth", "peer", "name", "inside1"]
        subprocess.run(["ip", "-n", name, *pair], check=True)
        yield f"/run/netns/{name}"
    finally:
        subprocess.run(["ip", "netns", "del", name], check=True)


def own_namespace():
    return Path("/proc/thread-self/ns/net").stat().st_ino


def own_interfaces():
    return sorted(name for _, name in socket.if_nameindex())


@pytest.mark.root
def test_a_socket_inside_a_namespace_leaves_this_process_outside(namespace):
    async def scenario():
        before = own_namespace()
        inside = await socket_in(namespace, own_interfaces)
        assert own_namespace() == before == await asyncio.to_thread(own_namespace)
        for thread in threading.enumerate():
            if thread.name == "network-namespace":
                thread.join(PATIENCE_S)
                assert not thread.is_alive()
        assert inside == ["inside0", "inside1", "lo"]

    asyncio.run(scenario())


@pytest.mark.root
def test_virtual_interfaces_have_no_parent_and_looking_keeps_no_namespace(namespace):
    def open_files():
        return len(list(Path("/proc/self/fd").iterdir()))

    async def scenario():
        before = open_files()
        assert await interfaces_in(namespace) == ()
        assert open_files() == before

    asyncio.run(scenario())


def test_the_host_s_own_namespace_says_nothing_about_a_pod():
    assert asyncio.run(interfaces_in("/proc/self/ns/net")) == ()


def test_parents_are_those_that_sysfs_has():
    """On this machine's own interfaces, whatever they are."""

    async def scenario():
        return await interfaces_of(rtnetlink_socket(), "this one")

    expected = {}
    for interface in Path("/sys/class/net").iterdir():
        device = interface / "device"
        if device.exists():
            bus = (device / "subsystem").resolve().name
            expected[interface.name] = (bus, device.resolve().name)
    assert {one.name: (one.bus, one.device) for one in asyncio.run(scenario())} == expected


@pytest.mark.parametrize("path", ["/nowhere/at/all", "/etc/passwd", "/dev/null"])
def test_what_is_no_namespace_is_an_error_with_the_path(path):
    with pytest.raises(HostError, match=f"^{path}: cannot be entered as a network namespace"):
        asyncio.run(interfaces_in(path))


def test_a_fifo_in_place_of_a_namespace_holds_up_nobody(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(HostError):
        asyncio.run(interfaces_in(str(tmp_path / "fifo")))


@pytest.mark.root
def test_an_error_inside_of_a_namespace_comes_out(namespace):
    def broken():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        asyncio.run(socket_in(namespace, broken))


def answered(*answers):
    async def scenario():
        ours, kernel = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with kernel:
            ours.setblocking(False)
            for answer in answers:
                kernel.send(answer)
            return await interfaces_of(ours, "a pod")

    return asyncio.run(scenario())


def message(kind, body=b""):
    return struct.pack("=IHHII", 16 + len(body), kind, 0, 1, 0) + body


def link(**texts):
    numbers = {"name": 3, "parent": 56, "bus": 57, "alias": 20}
    parts = []
    for key, text in texts.items():
        content = text.encode() + b"\0"
        parts.append(struct.pack("=HH", 4 + len(content), numbers[key]) + content + bytes(-len(content) % 4))
    return message(16, bytes(16) + b"".join(parts))


DONE = message(3, bytes(4))


def test_a_list_in_several_datagrams():
    first = link(name="eth1", alias="uplink", parent="0000:01:00.0", bus="pci") + link(name="lo")
    found = answered(first, link(name="eth0", bus="virtio", parent="virtio2"), DONE)
    assert [(one.name, one.bus, one.device) for one in found] == [
        ("eth0", "virtio", "virtio2"),
        ("eth1", "pci", "0000:01:00.0"),
    ]


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (message(2, struct.pack("=i", -1)), "the kernel refuses"),
        (struct.pack("=IHHII", 4, 16, 0, 1, 0), "a message of 4 bytes"),
        (message(16, bytes(16) + struct.pack("=HH", 2, 3)), "an attribute of 2 bytes"),
        (b"short", "requires a buffer"),
        (b"", "the socket has ended"),
    ],
)
def test_an_answer_that_is_none(answer, problem):
    with pytest.raises(HostError, match=f"a pod: its interfaces cannot be listed: .*{problem}"):
        answered(answer)
