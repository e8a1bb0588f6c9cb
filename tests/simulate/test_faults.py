"""Slow handlers, stalled peers, bytes in pieces: with the timeouts of a real runtime, moved by hand."""

import asyncio
import socket

import pytest

from bayplan._proto.nri import api_pb2 as pb
from bayplan.model.workload import Adjustment
from bayplan.nri import Event, UnixSocket
from bayplan.sets import CpuSet, NodeSet
from support.clock import ManualClock
from support.flavors import CONTAINERD_2_2, CONTAINERD_2_3
from support.memory_transport import MemoryEndpoint
from support.plugin import Gate, RecordingHandler, serving
from support.runtime import FakeRuntime
from support.workloads import make_container, make_pod

POD = make_pod("web")


async def test_a_stuck_handler_costs_a_second_and_not_the_connection(tmp_path):
    """One clock for both: the runtime would drop us at 2 s."""
    path = tmp_path / "nri.sock"
    clock, handler, gate = ManualClock(), RecordingHandler(), Gate()
    runtime = FakeRuntime(clock=clock)
    await runtime.listen(path)
    handler.on_create = lambda *_: gate.wait()
    handler.fallback = Adjustment(cpuset_cpus=CpuSet([0, 1]))
    async with serving(handler, UnixSocket(str(path)), clock=clock):
        await runtime.synchronized()
        creation = asyncio.create_task(runtime.create_container(POD, make_container(POD)))
        await gate.reached.wait()
        clock.advance(1.0)
        answer = await creation
        assert answer.adjust.linux.resources.cpu.cpus == "0-1"
        assert len(runtime.plugins) == 1
    assert len(runtime.dropped) == 1
    assert [event for event, _, _ in handler.misses] == [Event.CREATE_CONTAINER]
    await runtime.stop()


async def test_a_plugin_that_is_dropped_for_being_late_comes_back(tmp_path):
    """As when our whole process was stopped: the runtime's timer fires, ours does not."""
    path = tmp_path / "nri.sock"
    theirs, ours, handler, gate = ManualClock(), ManualClock(), RecordingHandler(), Gate()
    runtime = FakeRuntime(clock=theirs)
    await runtime.listen(path)
    handler.on_create = lambda *_: gate.wait()
    async with serving(handler, UnixSocket(str(path)), clock=ours):
        await runtime.synchronized()
        container = make_container(POD)
        creation = asyncio.create_task(runtime.create_container(POD, container))
        await gate.reached.wait()
        theirs.advance(2.0)
        assert await creation == pb.CreateContainerResponse(), "created, unadjusted"
        await ours.until_armed(0.0501)
        ours.advance(0.1)
        await runtime.synchronized()
    assert handler.heard[2:7] == [
        "create main",
        "missed CREATE_CONTAINER",
        "disconnected",
        "connected to containerd",
        "synchronize 1 1",
    ]
    assert [one.id for one in handler.containers] == [container.id]
    await runtime.stop()


@pytest.mark.parametrize("piece_bytes", [1, 2, 7, 4096])
@pytest.mark.parametrize("flavor", [CONTAINERD_2_2, CONTAINERD_2_3], ids=str)
async def test_bytes_in_pieces(piece_bytes, flavor):
    runtime, handler = FakeRuntime(flavor, objects_per_message=1, reply_late=True), RecordingHandler()

    async def pin(*_):
        return Adjustment(cpuset_mems=NodeSet([1])), ()

    handler.on_create = pin
    container = make_container(POD, ballast_bytes=9_000)
    async with serving(handler, MemoryEndpoint(runtime.accept, piece_bytes)):
        await runtime.synchronized()
        await runtime.run_pod(POD)
        answer = await runtime.create_container(POD, container)
        await runtime.start_container(container.id)
        await runtime.stop_container(container.id)
    assert answer.adjust.linux.resources.cpu.mems == "1"
    assert handler.heard[-2] == "stop main"


async def test_the_runtime_is_never_blocked_by_a_stuck_handler(tmp_path):
    """A request far larger than the socket's buffer goes through while a handler does not move."""
    path = str(tmp_path / "nri.sock")
    handler, gate = RecordingHandler(), Gate()
    handler.on_event = lambda _: gate.wait()
    runtime = FakeRuntime(CONTAINERD_2_3)
    await runtime.listen(path)
    async with serving(handler, UnixSocket(path)):
        plugin = await runtime.synchronized()
        starting = asyncio.create_task(runtime.run_pod(POD))
        await gate.reached.wait()
        large = make_container(POD)
        large.env.append("X" * (4_000_000))
        asked = pb.StopContainerRequest(pod=POD, container=large)
        stopping = asyncio.create_task(plugin.call("StopContainer", asked, pb.StopContainerResponse, 2.0))
        behind_it = asyncio.create_task(plugin.call("ValidateContainerAdjustment", pb.Empty(), pb.Empty, 2.0))
        assert await behind_it == pb.Empty()
        assert plugin.link._transport.get_write_buffer_size() == 0
        gate.opened.set()
        await asyncio.gather(starting, stopping)
    await runtime.stop()


async def test_a_peer_that_is_no_runtime(tmp_path):
    """Somebody else's socket: dropped with a reason, tried again, and the right one found later."""
    path = str(tmp_path / "nri.sock")
    clock, handler = ManualClock(), RecordingHandler()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        listener.setblocking(False)
        async with serving(handler, UnixSocket(path), clock=clock):
            loop = asyncio.get_running_loop()
            stranger, _ = await loop.sock_accept(listener)
            await loop.sock_sendall(stranger, b"220 mail.example.org ESMTP\r\n")
            await clock.until_armed(0.0501)
            stranger.close()
            (tmp_path / "nri.sock").unlink(missing_ok=True)
            runtime = FakeRuntime()
            await runtime.listen(path)
            clock.advance(1.0)
            await runtime.synchronized()
    assert handler.heard[0] == "connected to containerd"
    await runtime.stop()


async def test_a_silent_peer_keeps_us_only_as_long_as_a_registration_may_take(tmp_path):
    path = str(tmp_path / "nri.sock")
    theirs, ours, handler = ManualClock(), ManualClock(), RecordingHandler()
    runtime = FakeRuntime(clock=theirs)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(path)
        silent.listen()
        async with serving(handler, UnixSocket(path), clock=ours):
            assert await ours.until_armed() == 60.0
            (tmp_path / "nri.sock").unlink(missing_ok=True)
            await runtime.listen(path)
            ours.advance(60.0)
            await ours.until_armed(0.0501)
            ours.advance(1.0)
            await runtime.synchronized()
    await runtime.stop()
