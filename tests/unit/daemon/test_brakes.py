"""Who is slowed down gets what is freed, is let go if nothing is, and never stays slowed down."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from bayplan.admin.release import given_back
from bayplan.config.settings import MemoryPressure
from bayplan.daemon.brakes import LET_GO_S, STALLED_S, Brakes
from bayplan.host.hierarchy import Layout
from bayplan.model.decision import QosClass
from bayplan.quantity import GIB, MIB
from support.racing_nodes import MarksInMemory, Racing, racing

RATE = 100 * MIB


@asynccontextmanager
async def crowded(tmp_path: Path, layout: Layout = Layout.UNIFIED, filled: int = 0) -> AsyncIterator[Racing]:
    """Two nodes of 1 GiB. "web" has *filled* one, "owner" is promised 600 MiB of node 0 then."""
    async with racing(tmp_path, [GIB, GIB], RATE, layout) as it:
        await it.create("web", QosClass.BURSTABLE, 950 * MIB)
        it.has("web", {filled: 900 * MIB})
        await it.pass_by(2)
        await it.create("owner", QosClass.GUARANTEED, 600 * MIB, node=0)
        yield it


def high(it: Racing, name: str) -> str:
    return (it.live.node.directory(it.touchers[name].path) / "memory.high").read_text().strip()


async def started(it: Racing) -> "asyncio.Future[float]":
    """The owner is about to start, and waits for its memory."""
    starting = asyncio.ensure_future(it.start("owner", 540 * MIB, 400 * MIB))
    for _ in range(8):
        await asyncio.sleep(0)
    return starting


async def test_a_start_waits_and_the_owner_gets_the_rest_as_it_is_freed(tmp_path: Path) -> None:
    async with crowded(tmp_path) as it:
        starting = await started(it)
        assert not starting.done()
        assert 100 * MIB < int(high(it, "owner")) < 125 * MIB
        assert high(it, "web") == "max"
        await it.pass_by(1.5)
        # It was bounded, and is counted.
        assert 0.4 <= await starting <= 1.0
        counters = it.one.controller.state.counters
        assert counters["starts_held"] == counters["slowed_down"] == 1
        assert 400 <= counters["starts_held_ms"] <= 1000
        await it.pass_by(30)
        assert (it.holds("owner"), it.killed, high(it, "owner")) == (540 * MIB, [], "max")
        assert it.live.held[it.touchers["owner"].path] == {0: 540 * MIB}
        assert it.watch.problems() == ()


async def test_who_has_room_starts_at_once_and_is_not_slowed_down(tmp_path: Path) -> None:
    async with crowded(tmp_path, filled=1) as it:
        assert await it.start("owner", 540 * MIB, 400 * MIB) == 0
        await it.pass_by(5)
        assert it.one.controller.state.counters["slowed_down"] == 0


async def test_nobody_is_slowed_down_any_more_once_it_is_switched_off(tmp_path: Path) -> None:
    async with crowded(tmp_path) as it:
        await started(it)
        it.watch.mode = MemoryPressure.OBSERVE
        await it.pass_by(2)
        assert high(it, "owner") == "max"


async def test_nor_once_the_daemon_ends(tmp_path: Path) -> None:
    async with crowded(tmp_path) as it:
        await started(it)
        it.watch.stop()
        assert high(it, "owner") == "max"
        await it.pass_by(3)
        assert high(it, "owner") == "max"


async def killed_and_started(it: Racing) -> MarksInMemory:
    """The owner waits for its memory, and the daemon is killed and started; the marks of cgroups."""
    it.watch.brakes = brakes(it, marks := MarksInMemory())
    await started(it)
    assert high(it, "owner") != "max"
    it.watch.brakes = brakes(it, marks)
    return marks


def brakes(it: Racing, marks: MarksInMemory) -> Brakes:
    return Brakes(
        it.one.controller.state, it.live.node.hierarchy, it.watch.read_nodes, lambda: it.now_s, marks
    )


async def test_nor_by_a_daemon_that_was_killed_and_slows_down_nobody_any_more(tmp_path: Path) -> None:
    async with crowded(tmp_path) as it:
        marks = await killed_and_started(it)
        it.watch.mode = MemoryPressure.OBSERVE
        it.watch.take_over()
        assert (high(it, "owner"), marks.marks) == ("max", {})


async def test_nor_by_a_daemon_that_was_killed_where_it_is_switched_off_before_a_look(tmp_path: Path) -> None:
    async with crowded(tmp_path) as it:
        marks = await killed_and_started(it)
        it.watch.take_over()
        it.watch.mode, it.watch.latest = MemoryPressure.OFF, None
        assert it.watch.is_look_due()
        await it.watch.look()
        assert (high(it, "owner"), marks.marks) == ("max", {})


async def test_who_waits_when_the_daemon_is_killed_goes_on_waiting_until_its_memory_is_there(
    tmp_path: Path,
) -> None:
    async with crowded(tmp_path) as it:
        marks = await killed_and_started(it)
        it.watch.take_over()
        assert high(it, "owner") != "max"
        # Touching as fast as it can, with 900 MiB of another one in its way.
        it.touchers["owner"].runs = True
        it.advance(3)
        await it.pass_by(30)
        assert (it.holds("owner"), it.killed, high(it, "owner")) == (540 * MIB, [], "max")
        assert marks.marks == {}


async def test_who_is_not_known_after_the_daemon_was_killed_does_not_wait_for_long(tmp_path: Path) -> None:
    async with crowded(tmp_path) as it:
        marks = await killed_and_started(it)
        it.one.controller.state.known.containers.pop("owner")
        it.watch.take_over()
        await it.pass_by(STALLED_S / 2)
        assert high(it, "owner") != "max"
        await it.pass_by(STALLED_S)
        assert (high(it, "owner"), marks.marks) == ("max", {})


async def test_nor_who_is_given_back(tmp_path: Path) -> None:
    async with crowded(tmp_path) as it:
        await started(it)
        controller = it.one.controller
        entry = controller.state.ledger.entries["owner"]
        it.one.accept(ledger=controller.state.ledger.with_entry(given_back(entry)))
        await it.pass_by(1)
        assert high(it, "owner") == "max"


async def test_nor_who_has_ended(tmp_path: Path) -> None:
    async with crowded(tmp_path) as it:
        (await started(it)).cancel()
        assert "owner" in it.watch.brakes
        directory = it.live.node.directory(it.touchers["owner"].path)
        for file in directory.iterdir():
            file.unlink()
        directory.rmdir()
        await it.pass_by(1)
        assert "owner" not in it.watch.brakes


async def test_who_waits_in_vain_is_named_and_let_go(tmp_path: Path) -> None:
    async with crowded(tmp_path) as it:
        # Files of a tmpfs: nobody can move them, and the owner has to stay.
        it.has("web", {0: 900 * MIB}, {0: 900 * MIB})
        await it.pass_by(2)
        await started(it)
        await it.pass_by(10)
        assert any("owner" in one and "slowed down" in one for one in it.watch.problems())
        await it.pass_by(STALLED_S)
        assert it.one.controller.state.counters["slowed_in_vain"] == 1
        assert high(it, "owner") == "max"
        assert it.one.controller.state.counters["slowed_down"] == 1
        await it.pass_by(LET_GO_S / 2)
        assert it.one.controller.state.counters["slowed_down"] == 1


async def test_on_cgroup_v1_a_start_does_not_wait(tmp_path: Path) -> None:
    async with crowded(tmp_path, Layout.LEGACY) as it:
        assert await it.start("owner", 0, 0) == 0
        assert it.one.controller.state.counters["slowed_down"] == 0


async def test_who_takes_what_others_need_is_slowed_down_too(tmp_path: Path) -> None:
    async with racing(tmp_path, [GIB, GIB], RATE) as it:
        await it.create("batch", QosClass.BEST_EFFORT, 0)
        it.touchers["batch"].claims = False
        await it.create("owner", QosClass.GUARANTEED, 600 * MIB, node=0)
        await it.pass_by(2)
        await it.start("owner", 100 * MIB, 10 * MIB)
        await it.start("batch", 3 * GIB, 300 * MIB, (0, 1))
        await it.pass_by(4)
        assert it.touchers["batch"].slowed_s > 0
        assert it.touchers["owner"].slowed_s == 0
        await it.start("owner", 540 * MIB, 20 * MIB)
        await it.pass_by(60)
        assert it.killed == []
        assert it.holds("owner") == 540 * MIB
