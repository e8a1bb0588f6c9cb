"""Departures that the daemon did not hear of: those who moved over go back all the same."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from bayplan._proto.nri import api_pb2 as pb
from bayplan.config.settings import MemoryPressure
from bayplan.control.promised_nodes import Bounds, PromisedNodes
from bayplan.daemon.memory_pressure import PressureWatch
from bayplan.daemon.page_relief import PageRelief
from bayplan.host.hierarchy import container_path
from bayplan.host.page_moves import PagesMoved
from bayplan.nri import Identity, Session, UnixSocket
from bayplan.quantity import GIB, MIB
from support.controllers import controlled, here
from support.flavors import CONTAINERD_1_7_20, CONTAINERD_2_1, CONTAINERD_2_3, Flavor
from support.live_nodes import LiveNodes
from support.oci_node import OciNode
from support.plugin import UNHURRIED
from support.runtime import FakeRuntime
from support.workloads import BEST_EFFORT, GUARANTEED, make_container, make_pod

FLEXIBLE_POD = make_pod("flexible", qos=GUARANTEED)
LATE_POD = make_pod("late", qos=GUARANTEED, annotations={"bayplan.dev/required-nodes": "0"})
NEXT_POD = make_pod("next", qos=BEST_EFFORT)


def guaranteed(pod: pb.PodSandbox, mib: int) -> pb.Container:
    return make_container(
        pod, memory_limit_bytes=mib * MIB, cpu_shares=512, cpu_quota_us=50_000, oom_score_adj=-997
    )


FLEXIBLE, LATE = guaranteed(FLEXIBLE_POD, 600), guaranteed(LATE_POD, 900)
NEXT = make_container(NEXT_POD, cpu_shares=2, oom_score_adj=1000)
PATH = container_path(FLEXIBLE.linux.cgroups_path)

flavors = pytest.mark.parametrize(
    "flavor", [CONTAINERD_1_7_20, CONTAINERD_2_1, CONTAINERD_2_3], ids=lambda flavor: flavor.version
)


class Kernel:
    """The container "flexible" as the kernel has it: 200 MiB of it came to node 1."""

    def __init__(self, directory: Path) -> None:
        self.live = LiveNodes(OciNode(directory / "root"), {0: GIB, 1: GIB})
        self.live.hold(PATH, {0: 300 * MIB, 1: 200 * MIB})
        self.live.node.make_process(42, PATH)

    @property
    def mems(self) -> str:
        return self.live.node.shown(PATH, "cpuset.mems")[0]

    def move(
        self, cgroup: str, source: int, target: int, wanted: int, go_on: Callable[[int], bool]
    ) -> PagesMoved:
        return PagesMoved(self.live.move(cgroup, source, target, wanted) if go_on(0) else 0, exhausted=True)


@asynccontextmanager
async def stage(directory: Path, flavor: Flavor) -> AsyncIterator[tuple[FakeRuntime, Kernel]]:
    """A runtime that listens, and the kernel below it."""
    runtime = FakeRuntime(flavor)
    await runtime.listen(directory / "nri.sock")
    try:
        yield runtime, Kernel(directory)
    finally:
        await runtime.stop()


@asynccontextmanager
async def daemon(directory: Path, runtime: FakeRuntime, kernel: Kernel) -> AsyncIterator[asyncio.Event]:
    """The daemon's parts, connected to *runtime*; the event is set whenever somebody was brought back."""
    async with controlled(directory / "state", nri=None) as one:
        controller, done = one.controller, asyncio.Event()

        hierarchy = kernel.live.node.hierarchy
        promised = PromisedNodes(controller.state, hierarchy, here, done.set, Bounds(30, GIB))
        relief = PageRelief(hierarchy, GIB, move=kernel.move)
        watch = PressureWatch(controller.state, hierarchy, here, MemoryPressure.OFF, relief, promised)
        endpoint = UnixSocket(str(directory / "nri.sock"))
        identity = Identity("bayplan", "90")
        session = Session(controller, identity, endpoint, timeouts=UNHURRIED, jitter=lambda: 0.0)
        tasks = [
            asyncio.create_task(session.run()),
            asyncio.create_task(promised.follow(one.room_due, pause_s=0)),
            asyncio.create_task(watch.follow(pause_s=0.01)),
        ]
        try:
            await runtime.synchronized()
            yield done
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def spec_mems(runtime: FakeRuntime) -> str:
    return runtime.containers[FLEXIBLE.id].linux.resources.cpu.mems


async def widened(runtime: FakeRuntime) -> None:
    for pod, container in ((FLEXIBLE_POD, FLEXIBLE), (LATE_POD, LATE)):
        await runtime.create_container(pod, container)
        await runtime.start_container(container.id)
    assert spec_mems(runtime) == "0-1"


async def is_back(runtime: FakeRuntime, kernel: Kernel) -> None:
    assert kernel.mems == "0"
    assert kernel.live.held[PATH] == {0: 500 * MIB, 1: 0}
    # The runtime hears of it in the next reply, and nothing before that.
    assert spec_mems(runtime) == "0-1"
    await runtime.create_container(NEXT_POD, NEXT)
    assert spec_mems(runtime) == "0"


@flavors
async def test_heard_of(tmp_path, flavor):
    async with stage(tmp_path, flavor) as (runtime, kernel), daemon(tmp_path, runtime, kernel) as done:
        await widened(runtime)
        await runtime.stop_container(LATE.id)
        await done.wait()
        await is_back(runtime, kernel)


@flavors
async def test_while_the_daemon_was_down(tmp_path, flavor):
    async with stage(tmp_path, flavor) as (runtime, kernel):
        async with daemon(tmp_path, runtime, kernel):
            await widened(runtime)
        await runtime.abandoned()
        await runtime.stop_container(LATE.id)
        async with daemon(tmp_path, runtime, kernel) as done:
            await done.wait()
            await is_back(runtime, kernel)


@flavors
async def test_while_the_connection_was_lost(tmp_path, flavor):
    async with stage(tmp_path, flavor) as (runtime, kernel), daemon(tmp_path, runtime, kernel) as done:
        await widened(runtime)
        await runtime.stop()
        (tmp_path / "nri.sock").unlink(missing_ok=True)
        await runtime.stop_container(LATE.id)
        await runtime.listen(tmp_path / "nri.sock")
        await runtime.synchronized()
        await done.wait()
        await is_back(runtime, kernel)


@flavors
async def test_a_return_that_the_runtime_never_heard_of(tmp_path, flavor):
    async with stage(tmp_path, flavor) as (runtime, kernel):
        async with daemon(tmp_path, runtime, kernel) as done:
            await widened(runtime)
            await runtime.stop_container(LATE.id)
            await done.wait()
        await runtime.abandoned()
        assert spec_mems(runtime) == "0-1"
        async with daemon(tmp_path, runtime, kernel):
            assert spec_mems(runtime) == "0"


@flavors
async def test_a_return_that_a_crash_interrupted_is_made_up_for(tmp_path, flavor):
    """Pages and kernel are there already, the record is not: the way back is taken again."""
    async with stage(tmp_path, flavor) as (runtime, kernel):
        async with daemon(tmp_path, runtime, kernel):
            await widened(runtime)
        await runtime.abandoned()
        await runtime.stop_container(LATE.id)
        kernel.live.hold(PATH, {0: 500 * MIB, 1: 0})
        (kernel.live.node.directory(PATH) / "cpuset.mems").write_text("0\n")
        async with daemon(tmp_path, runtime, kernel) as done:
            await done.wait()
            await is_back(runtime, kernel)
