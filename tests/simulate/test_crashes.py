"""Crashes at every point: whatever dies and when, afterwards ledger, disk and runtime agree."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path

import pytest

from bayplan._proto.nri import api_pb2 as pb
from bayplan.model.policy import PlacementPolicy
from bayplan.nri import Identity, Session, UnixSocket
from bayplan.placement.adjustment import cpus_for
from bayplan.quantity import MIB
from bayplan.sets import CpuSet
from support.controllers import Controlled, controlled
from support.flavors import CONTAINERD_1_7_20, CONTAINERD_2_1, CONTAINERD_2_3, Flavor
from support.machines import machine
from support.plugin import UNHURRIED
from support.runtime import FakeRuntime
from support.workloads import BEST_EFFORT, GUARANTEED, make_container, make_pod

MACHINE = machine(2, cpus_per_node=4)
OWNER, OTHERS = make_pod("db", qos=GUARANTEED), make_pod("batch", qos=BEST_EFFORT)
Step = Callable[[FakeRuntime], Awaitable[object]]


def exclusive(name: str, cpus: int) -> pb.Container:
    return make_container(
        OWNER,
        name,
        memory_limit_bytes=100 * MIB,
        cpu_shares=1024 * cpus,
        cpu_quota_us=100_000 * cpus,
        oom_score_adj=-997,
    )


def shared(name: str) -> pb.Container:
    return make_container(OTHERS, name, cpu_shares=2, oom_score_adj=1000)


def creates(pod: pb.PodSandbox, container: pb.Container) -> Step:
    return lambda runtime: runtime.create_container(pod, container)


def does(verb: str, container: pb.Container) -> Step:
    return lambda runtime: getattr(runtime, verb)(container.id)


A, B, C, D = exclusive("a", 2), shared("b"), exclusive("c", 1), shared("d")
STEPS: tuple[Step, ...] = (
    creates(OTHERS, B),
    does("start_container", B),
    creates(OWNER, A),
    does("start_container", A),
    creates(OTHERS, D),
    creates(OWNER, C),
    does("start_container", C),
    does("stop_container", A),
    does("start_container", D),
    does("remove_container", A),
    does("remove_container", B),
)


@asynccontextmanager
async def running(runtime: FakeRuntime, directory: Path) -> AsyncIterator[Controlled]:
    """A daemon that serves *runtime*. When this is left, all of it is gone at once, as after a crash."""
    async with controlled(directory / "state", PlacementPolicy(), None, MACHINE) as daemon:
        endpoint = UnixSocket(str(directory / "nri.sock"))
        session = Session(daemon.controller, Identity("bayplan", "90"), endpoint, timeouts=UNHURRIED)
        task = asyncio.get_running_loop().create_task(session.run())
        try:
            await runtime.synchronized()
            yield daemon
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


def agree(runtime: FakeRuntime, daemon: Controlled, directory: Path) -> None:
    """Every container has a record and the CPUs that the ledger says; no record is without a container."""
    living = {key: one for key, one in runtime.containers.items() if one.state != pb.CONTAINER_STOPPED}
    ledger = daemon.controller.state.ledger
    assert set(ledger.entries) == set(living)
    with closing(sqlite3.connect(directory / "state" / "state.db")) as connection, connection:
        assert {
            row[0] for row in connection.execute("SELECT container_id FROM decisions WHERE current")
        } == set(living)
    pool = ledger.shared_cpus(MACHINE)
    for container_id, entry in ledger.entries.items():
        spec = CpuSet.parse(living[container_id].linux.resources.cpu.cpus)
        assert spec == cpus_for(entry.decision, pool)
    taken = [entry.decision.placement.exclusive_cpus for entry in ledger.entries.values()]
    assert sum(len(cpus) for cpus in taken) == len(ledger.exclusive_cpus)


flavors = pytest.mark.parametrize(
    "flavor", [CONTAINERD_1_7_20, CONTAINERD_2_1, CONTAINERD_2_3], ids=lambda flavor: flavor.version
)
points = pytest.mark.parametrize("point", range(len(STEPS) + 1))


@flavors
@points
async def test_a_daemon_that_dies_between_two_steps(tmp_path: Path, flavor: Flavor, point: int) -> None:
    runtime = FakeRuntime(flavor)
    await runtime.listen(tmp_path / "nri.sock")
    async with running(runtime, tmp_path):
        for step in STEPS[:point]:
            await step(runtime)
    async with running(runtime, tmp_path) as daemon:
        assert daemon.controller.state.ledger.adopted == {}
        for step in STEPS[point:]:
            await step(runtime)
        agree(runtime, daemon, tmp_path)
    await runtime.stop()


@flavors
@points
async def test_a_daemon_that_is_down_for_a_step(tmp_path: Path, flavor: Flavor, point: int) -> None:
    runtime = FakeRuntime(flavor)
    await runtime.listen(tmp_path / "nri.sock")
    async with running(runtime, tmp_path):
        for step in STEPS[:point]:
            await step(runtime)
    await runtime.abandoned()
    for step in STEPS[point : point + 1]:
        await step(runtime)
    async with running(runtime, tmp_path) as daemon:
        created = point < len(STEPS) and point in {0, 2, 4, 5}
        assert len(daemon.controller.state.ledger.adopted) == created
        for step in STEPS[point + 1 :]:
            await step(runtime)
        agree(runtime, daemon, tmp_path)
    await runtime.stop()


@flavors
@points
async def test_a_runtime_that_restarts_under_a_running_daemon(
    tmp_path: Path, flavor: Flavor, point: int
) -> None:
    runtime = FakeRuntime(flavor)
    await runtime.listen(tmp_path / "nri.sock")
    async with running(runtime, tmp_path) as daemon:
        for step in STEPS[:point]:
            await step(runtime)
        await runtime.stop()
        (tmp_path / "nri.sock").unlink(missing_ok=True)
        await runtime.listen(tmp_path / "nri.sock")
        await runtime.synchronized()
        for step in STEPS[point:]:
            await step(runtime)
        agree(runtime, daemon, tmp_path)
    await runtime.stop()


@flavors
async def test_a_lost_database_is_rebuilt_from_the_runtime(tmp_path: Path, flavor: Flavor) -> None:
    runtime = FakeRuntime(flavor)
    await runtime.listen(tmp_path / "nri.sock")
    async with running(runtime, tmp_path) as daemon:
        for step in STEPS[:7]:
            await step(runtime)
        before = {
            key: entry.decision.placement for key, entry in daemon.controller.state.ledger.entries.items()
        }
    for path in (tmp_path / "state").glob("state.db*"):
        path.unlink(missing_ok=True)
    async with running(runtime, tmp_path) as daemon:
        after = {
            key: entry.decision.placement for key, entry in daemon.controller.state.ledger.entries.items()
        }
        assert after == before
        for step in STEPS[7:]:
            await step(runtime)
        agree(runtime, daemon, tmp_path)
    await runtime.stop()
