"""Nodes that cannot give what was promised on them are seen, said and counted; no file is read in vain."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from bayplan.config.settings import MemoryPressure
from bayplan.daemon.memory_pressure import AT_RISK_S, COUNT_S, PressureWatch
from bayplan.model.decision import QosClass
from bayplan.model.workload import Container, Pod, Resources
from bayplan.quantity import GIB, MIB
from support.controllers import Controlled, controlled, here
from support.live_nodes import LiveNodes
from support.machines import container, pod
from support.oci_node import OciNode

CONFINED_POD = pod("db", QosClass.GUARANTEED)
FREE_POD = pod("batch", QosClass.BEST_EFFORT)


def placed_at(owner: Pod, name: str, one: Container) -> Container:
    return replace(one, cgroups_path=f"{owner.cgroup_parent}/{name}")


DB = placed_at(CONFINED_POD, "db", container("db", CONFINED_POD, memory_bytes=600 * MIB, milli_cpus=500))
BATCH = placed_at(
    FREE_POD, "batch", container("batch", FREE_POD, resources=Resources(cpu_shares=2), oom_score_adj=1000)
)
DB_PATH, BATCH_PATH = DB.cgroups_path, BATCH.cgroups_path


@dataclass
class Around:
    one: Controlled
    watch: PressureWatch
    live: LiveNodes
    now_s: float = 1000.0

    def events(self) -> int:
        return self.one.controller.counters["memory_at_risk"]


@asynccontextmanager
async def around(tmp_path: Path, mode: MemoryPressure = MemoryPressure.OBSERVE) -> AsyncIterator[Around]:
    """Two nodes of 1 GiB; "db" is promised 600 MiB on node 0, "batch" may lie anywhere."""
    live = LiveNodes(OciNode(tmp_path / "root"), {0: GIB, 1: GIB})
    async with controlled(tmp_path / "state") as one:
        watch = PressureWatch(one.controller, live.node.hierarchy, here, mode, clock_s=lambda: made.now_s)
        made = Around(one, watch, live)
        await one.controller.create_container(CONFINED_POD, DB)
        await one.controller.create_container(FREE_POD, BATCH)
        live.hold(DB_PATH, {0: 100 * MIB})
        live.hold(BATCH_PATH, {0: 100 * MIB, 1: 100 * MIB})
        yield made


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(scenario())  # type: ignore[arg-type]  # a coroutine, as all scenarios are


def test_what_is_there_is_seen_and_nothing_is_at_risk(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with around(tmp_path) as it:
            await it.watch.look()
            seen = it.watch.latest
            assert seen is not None
            assert seen.plan.expected_bytes == {0: 500 * MIB, 1: 0}
            assert seen.containers["db"].held_bytes == {0: 100 * MIB}
            assert seen.containers["batch"].movable_bytes == {0: 100 * MIB, 1: 100 * MIB}
            assert (it.events(), it.watch.problems()) == (0, ())

    run(scenario)


def test_pages_that_took_what_was_promised_are_named_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with around(tmp_path) as it:
            await it.watch.look()
            it.live.hold(BATCH_PATH, {0: 700 * MIB, 1: 100 * MIB})
            await it.watch.look()
            await it.watch.look()
            assert it.watch.latest is not None
            made = it.watch.latest.plan
            assert [str(risk.nodes) for risk in made.risks] == ["0"]
            assert str(made.risks[0]) == (
                "node 0: 500Mi of what was promised to default/db/db-name is not used yet, and only 224Mi "
                "can be had; default/batch/batch-name hold memory there"
            )
            # To the goal: twice the band of 16 MiB is free beside what is outstanding.
            assert [(move.container_id, move.target, move.amount_bytes) for move in made.moves] == [
                ("batch", 1, 308 * MIB)
            ]
            assert it.events() == 1
            # It can be helped, so that nobody has to hear of it.
            assert it.watch.problems() == ()
            it.live.hold(BATCH_PATH, {0: 100 * MIB, 1: 700 * MIB})
            it.now_s += AT_RISK_S
            await it.watch.look()
            assert it.watch.latest.plan.risks == ()

    run(scenario)


def test_what_cannot_be_helped_is_a_problem(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with around(tmp_path) as it:
            it.live.outside_bytes[0] = 800 * MIB
            it.live.write()
            await it.watch.look()
            assert "node 0: 500Mi of what was promised to default/db/db-name" in it.watch.problems()[0]

    run(scenario)


def test_containers_are_counted_only_when_it_matters(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with around(tmp_path) as it:
            await it.watch.look()
            first = it.watch.latest
            it.live.hold(BATCH_PATH, {0: 140 * MIB, 1: 100 * MIB})
            await it.watch.look()
            assert it.watch.latest is first
            # What node 0 has beside what is outstanding is half gone.
            it.live.hold(BATCH_PATH, {0: 300 * MIB, 1: 100 * MIB})
            await it.watch.look()
            second = it.watch.latest
            assert second is not first
            it.now_s += COUNT_S
            await it.watch.look()
            third = it.watch.latest
            assert third is not second
            await it.one.controller.stop_container(FREE_POD, BATCH)
            await it.watch.look()
            assert it.watch.latest is not third
            assert it.watch.latest is not None
            assert it.watch.latest.containers.keys() == {"db"}

    run(scenario)


def test_a_container_that_does_not_run_yet_is_owed_all_of_its_promise(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with around(tmp_path) as it:
            (it.live.node.directory(DB_PATH) / "memory.numa_stat").unlink()
            for name in it.live.node.directory(DB_PATH).iterdir():
                name.unlink()
            it.live.node.directory(DB_PATH).rmdir()
            await it.watch.look()
            assert it.watch.latest is not None
            assert it.watch.latest.plan.expected_bytes[0] == 600 * MIB

    run(scenario)


def test_what_cannot_be_read_is_said_and_looked_at_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with around(tmp_path) as it:
            path = it.live.node.root / "sys/devices/system/node/node1/meminfo"
            path.write_text("garbage\n")
            await it.watch.look()
            assert "node1/meminfo: found 'garbage'" in it.watch.problems()[0]
            it.live.write()
            await it.watch.look()
            assert it.watch.problems() == ()
            assert it.watch.latest is not None

    run(scenario)


def test_switched_off_it_shows_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with around(tmp_path) as it:
            await it.watch.look()
            it.watch.mode = MemoryPressure.OFF
            await it.watch.look()
            assert it.watch.latest is None

    run(scenario)
