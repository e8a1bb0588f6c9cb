"""Hotplug: bursts, failures and beginnings from a source of our own; then the kernel's real socket.

Interfaces: those of real network namespaces.
"""

import asyncio
import contextlib
import logging
import os
import subprocess
import threading
from pathlib import Path

import pytest

from bayplan.errors import HostError
from bayplan.host.namespaces import socket_in
from bayplan.host.netlink import (
    UNKNOWN,
    interfaces_in,
    interfaces_of,
    kernel_events,
    rtnetlink_socket,
    watch_hotplug,
)
from support.coroutines import PATIENCE_S


def make_kernel_events(count=1):
    for _ in range(count):
        Path("/sys/devices/system/node/node0/uevent").write_text("change")


class Source:
    """Event streams as scripted: each listens to one queue; None ends it with an error."""

    def __init__(self):
        self.opened = 0
        self.closed = 0
        self.queue = asyncio.Queue()

    async def events(self):
        self.opened += 1
        try:
            yield UNKNOWN
            while True:
                subsystem = await self.queue.get()
                if subsystem is None:
                    raise HostError("netlink", "the socket broke")
                yield subsystem
        finally:
            self.closed += 1


@contextlib.asynccontextmanager
async def watching(*arguments, **options):
    """The calls of watch_hotplug as a queue."""
    calls = asyncio.Queue()
    task = asyncio.create_task(watch_hotplug(calls.put_nowait, *arguments, **options))

    async def following():
        return await asyncio.wait_for(calls.get(), PATIENCE_S)

    try:
        yield following
    finally:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_listening_begins_with_a_reason_to_look():
    source = Source()
    async with watching(source.events, settle_s=0) as following:
        assert await following() == {UNKNOWN}
    assert (source.opened, source.closed) == (1, 1)


async def test_only_nodes_cpus_and_memory_count_and_a_burst_is_told_once():
    source = Source()
    async with watching(source.events, settle_s=0.01) as following:
        assert await following() == {UNKNOWN}
        for subsystem in ("net", "block", "memory", "memory", "usb", "cpu"):
            source.queue.put_nowait(subsystem)
        assert await following() == {"memory", "cpu"}
        for subsystem in ("net", "node", "memory_tiering"):
            source.queue.put_nowait(subsystem)
        assert await following() == {"node", "memory_tiering"}


async def test_a_broken_socket_is_opened_again_and_logged_once(caplog):
    caplog.set_level(logging.WARNING)

    source = Source()
    async with watching(source.events, settle_s=0, retry_s=0) as following:
        assert await following() == {UNKNOWN}
        source.queue.put_nowait(None)
        assert await following() == {UNKNOWN}
        source.queue.put_nowait("node")
        assert await following() == {"node"}
    assert (source.opened, source.closed) == (2, 2)
    assert caplog.messages == ["hotplug is not noticed, trying again every 0 s: netlink: the socket broke"]


async def test_a_socket_that_cannot_be_had_is_logged_once_however_often_it_is_tried(caplog):
    caplog.set_level(logging.WARNING)

    tries = 0
    enough = asyncio.Event()

    async def refused():
        nonlocal tries
        tries += 1
        if tries == 5:
            enough.set()
        raise HostError("netlink", "not permitted")
        yield

    async with watching(refused, settle_s=0, retry_s=0):
        await asyncio.wait_for(enough.wait(), PATIENCE_S)
    assert len(caplog.messages) == 1


async def test_an_error_of_the_callback_is_not_swallowed():
    def broken(subsystems):
        raise ZeroDivisionError(str(subsystems))

    with pytest.raises(ExceptionGroup) as caught:
        await asyncio.wait_for(watch_hotplug(broken, Source().events, settle_s=0), PATIENCE_S)
    assert caught.group_contains(ZeroDivisionError)


@pytest.mark.root
async def test_the_kernel_s_own_events(root_user):
    async with watching(settle_s=0.01) as following:
        assert UNKNOWN in await following()
        make_kernel_events()
        while "node" not in await following():
            pass


@pytest.mark.root
async def test_an_overrun_of_the_kernel_s_queue_is_a_reason_to_look(root_user):
    async with contextlib.aclosing(kernel_events()) as stream:
        assert await anext(stream) == UNKNOWN
        make_kernel_events(20000)  # the loop reads nothing meanwhile, and the buffer holds some hundred
        seen = set()
        while not {UNKNOWN, "node"} <= seen:
            seen.add(await asyncio.wait_for(anext(stream), PATIENCE_S))
        make_kernel_events()
        assert await asyncio.wait_for(anext(stream), PATIENCE_S)


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


@pytest.mark.root
async def test_a_socket_inside_a_namespace_leaves_this_process_outside(namespace):
    from pyroute2 import AsyncIPRoute

    before = own_namespace()
    socket = await socket_in(namespace, rtnetlink_socket)
    assert own_namespace() == before == await asyncio.to_thread(own_namespace)
    for thread in threading.enumerate():
        if thread.name == "network-namespace":
            thread.join(PATIENCE_S)
            assert not thread.is_alive()
    route = AsyncIPRoute(fileno=socket.detach())
    links = [link async for link in await route.get_links()]
    route.close()
    assert sorted(link.get("ifname") for link in links) == ["inside0", "inside1", "lo"]


@pytest.mark.root
async def test_virtual_interfaces_have_no_parent_and_looking_keeps_no_namespace(namespace):
    def open_files():
        return len(list(Path("/proc/self/fd").iterdir()))

    before = open_files()
    assert await interfaces_in(namespace) == ()
    assert open_files() == before


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
