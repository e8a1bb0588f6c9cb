"""Going back to fewer nodes: pages, kernel, record, in this order, and what happens when one fails."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest
from msgspec.structs import replace

from bayplan.config.settings import MemoryPressure
from bayplan.control.promised_nodes import Bounds, PromisedNodes
from bayplan.daemon.memory_pressure import COUNT_S, PressureWatch
from bayplan.daemon.page_relief import PageRelief
from bayplan.host.page_moves import PagesMoved
from bayplan.model.decision import Outcome, QosClass
from bayplan.model.machine import Machine
from bayplan.model.origin import Hook
from bayplan.model.resources import Resources
from bayplan.model.workload import Container, ContainerState, Pod, Update
from bayplan.nri import Event
from bayplan.quantity import GIB, MIB
from bayplan.sets import CpuSet, NodeSet
from bayplan.state import Store
from support.controllers import BOUNDS, MACHINE, Controlled, announced, begun, controlled, here
from support.live_nodes import LiveNodes
from support.machines import container, machine, pod
from support.oci_node import OciNode

Result = TypeVar("Result")

FLEXIBLE_POD = pod("flexible", QosClass.GUARANTEED)
LATE_POD = pod("late", QosClass.GUARANTEED, {"bayplan.dev/required-nodes": "0"})
PATH = "/kubepods/podflexible/flexible"
FLEXIBLE = replace(
    container("flexible", FLEXIBLE_POD, memory_bytes=600 * MIB, milli_cpus=500), cgroups_path=PATH
)
LATE = container("late", LATE_POD, memory_bytes=900 * MIB, milli_cpus=500)
BACK = Update("flexible", cpuset_mems=NodeSet([0]))


@dataclass
class Around:
    """A controller, its watch, and the container "flexible" as the kernel has it."""

    one: Controlled
    promised: PromisedNodes
    watch: PressureWatch
    live: LiveNodes
    now_s: float = 1000.0
    room_bytes: int = GIB
    """So much can still be moved."""
    moves: list[tuple[int, int]] = field(default_factory=list)
    meanwhile: list[Callable[[], Awaitable[object]]] = field(default_factory=list)
    """What happens while the kernel gets its nodes, once each."""
    settled: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def node(self) -> OciNode:
        return self.live.node

    @property
    def mems(self) -> str:
        """What the kernel was told."""
        return self.node.shown(PATH, "cpuset.mems")[0]

    @property
    def recorded(self) -> dict[str, str]:
        """The nodes of all containers by the ledger."""
        return {
            key: str(entry.decision.placement.mems)
            for key, entry in self.one.controller.state.ledger.entries.items()
        }

    def codes(self) -> list[str]:
        decision = self.one.controller.state.ledger.entries["flexible"].decision
        return [reason.code for reason in decision.reasons]

    def move(
        self, cgroup: str, source: int, target: int, wanted: int, go_on: Callable[[int], bool]
    ) -> PagesMoved:
        assert self.mems == "0-1"
        self.moves.append((source, target))
        moved = self.live.move(cgroup, source, target, min(wanted, self.room_bytes)) if go_on(0) else 0
        self.room_bytes -= moved
        problem = "" if moved == wanted else "no room"
        return PagesMoved(moved, wanted - moved, problem, exhausted=True, passing=True)

    async def use_freed_memory(self) -> None:
        """Do all that follows from it."""
        await self.promised.use_freed_memory()
        for _ in range(8):
            self.now_s += 3
            await self.watch.look()


@asynccontextmanager
async def around(
    tmp_path: Path, nri: str | None = "0.12.0", bounds: Bounds = BOUNDS, on: Machine = MACHINE
) -> AsyncIterator[Around]:
    """The container "flexible" has 300 MiB on node 0 and 200 MiB on node 1; nothing is relieved."""
    live = LiveNodes(OciNode(tmp_path / "root"), {0: GIB, 1: GIB})
    hierarchy = live.node.hierarchy
    live.hold(PATH, {0: 300 * MIB, 1: 200 * MIB})
    live.node.make_process(42, PATH)
    (live.node.directory(PATH) / "cpuset.mems").write_text("0-1\n")
    async with controlled(tmp_path / "state", nri=nri, on=on) as one:
        controller = one.controller

        async def in_thread(work: Callable[[], Result]) -> Result:
            assert not controller.state._lock.locked()  # Nobody may have to wait for pages.
            result = work()
            while made.meanwhile:
                await made.meanwhile.pop(0)()
            return result

        def verify_soon() -> None:
            one.verify_soon()
            made.settled.set()

        def clock_s() -> float:
            return made.now_s

        def move(*arguments: Any) -> PagesMoved:
            return made.move(*arguments)

        promised = PromisedNodes(controller.state, hierarchy, in_thread, verify_soon, bounds, clock_s)
        relief = PageRelief(hierarchy, GIB, move=move, clock_s=clock_s)
        watch = PressureWatch(
            controller.state, hierarchy, here, MemoryPressure.OFF, relief, promised, clock_s=clock_s
        )
        made = Around(one, promised, watch, live)
        yield made


async def widened(one: Controlled, late: Container = LATE) -> None:
    """Have "flexible" move over for "late"."""
    await begun(one.controller, FLEXIBLE_POD, FLEXIBLE)
    await begun(one.controller, LATE_POD, late)


async def test_pages_then_kernel_then_record_then_runtime(tmp_path: Path) -> None:
    async with around(tmp_path) as it:
        controller = it.one.controller
        await widened(it.one)
        await it.use_freed_memory()
        assert (it.moves, it.mems) == ([], "0-1")
        await controller.stop_container(LATE_POD, LATE)
        assert it.recorded == {"flexible": "0-1"}
        await it.use_freed_memory()
        assert it.moves == [(1, 0)]
        assert it.live.held[PATH] == {0: 500 * MIB, 1: 0}
        assert (it.mems, it.recorded) == ("0", {"flexible": "0"})
        assert controller.state.ledger.entries["flexible"].decision.placement.original_nodes is None
        assert controller.state.counters["pages_moved_bytes"] == 200 * MIB
        # The runtime hears of it with the next reply, once.
        other = pod("other", QosClass.BEST_EFFORT)
        _, updates = await controller.create_container(other, container("other", other))
        assert list(updates) == [BACK]
        assert list(await controller.stop_container(other, container("other", other))) == []
    store = Store.open(tmp_path / "state")
    (entry,) = store.entries()
    store.close()
    assert str(entry.decision.placement.mems) == "0"


async def test_whose_pages_do_not_fit_stays_says_why_and_tries_again(tmp_path: Path) -> None:
    async with around(tmp_path) as it:
        controller = it.one.controller
        await widened(it.one)
        await controller.stop_container(LATE_POD, LATE)
        it.room_bytes = 50 * MIB
        await it.use_freed_memory()
        assert (it.mems, it.recorded) == ("0-1", {"flexible": "0-1"})
        decision = controller.state.ledger.entries["flexible"].decision
        assert decision.reasons[-1].code == "stays-wide"
        assert "150Mi on node 1" in decision.reasons[-1].text
        assert "no room" in decision.reasons[-1].text
        assert decision.outcome is Outcome.PLACED
        assert controller.state.counters["returns_failed"] == 1
    async with around(tmp_path) as it:
        # After a restart it is still wide, and still says why.
        controller = it.one.controller
        assert it.codes() == ["best-set", "moved-over", "stays-wide"]
        spec = replace(FLEXIBLE.resources, cpuset_mems=NodeSet([0, 1]), cpuset_cpus=CpuSet(range(8)))
        running = replace(FLEXIBLE, state=ContainerState.RUNNING, resources=spec)
        assert list(await controller.synchronize([FLEXIBLE_POD], [running])) == []
        assert it.one.room_due.is_set()
        await it.use_freed_memory()
        assert (it.mems, it.recorded, it.codes()) == ("0", {"flexible": "0"}, ["best-set"])


async def test_the_others_go_back_if_one_cannot(tmp_path: Path) -> None:
    async with around(tmp_path) as it:
        controller = it.one.controller
        await widened(it.one)
        await controller.stop_container(LATE_POD, LATE)
        second = replace(
            container("second", FLEXIBLE_POD, memory_bytes=100 * MIB, milli_cpus=500),
            cgroups_path="/kubepods/podflexible/second",
        )
        await controller.create_container(FLEXIBLE_POD, second)
        entry = controller.state.ledger.entries["second"]
        placement, claim = entry.decision.placement, entry.decision.placement.claim
        assert claim is not None
        wide = replace(
            placement,
            mems=NodeSet([0, 1]),
            claim=replace(claim, nodes=NodeSet([0, 1])),
            original_nodes=NodeSet([1]),
        )
        there = replace(entry, decision=replace(entry.decision, placement=wide))
        it.one.accept(ledger=controller.state.ledger.with_entry(there))
        it.live.hold("/kubepods/podflexible/second", {})
        it.room_bytes = 0
        await it.use_freed_memory()
        assert it.recorded == {"flexible": "0-1", "second": "1"}
        assert it.node.shown("/kubepods/podflexible/second", "cpuset.mems") == ("1",)


async def test_nobody_waits_for_those_whose_nodes_are_full(tmp_path: Path) -> None:
    """However many these are, and whatever their names."""
    async with around(tmp_path) as it:
        controller = it.one.controller
        for name in [f"a{number}" for number in range(10)] + ["z"]:
            path = f"/kubepods/podflexible/{name}"
            one = container(name, FLEXIBLE_POD, memory_bytes=20 * MIB, milli_cpus=500)
            await controller.create_container(FLEXIBLE_POD, replace(one, cgroups_path=path))
            entry = controller.state.ledger.entries[name]
            claim = entry.decision.placement.claim
            assert claim is not None
            wide = replace(
                entry.decision.placement,
                mems=NodeSet([0, 1]),
                claim=replace(claim, nodes=NodeSet([0, 1])),
                original_nodes=NodeSet([1 if name == "z" else 0]),
            )
            there = replace(entry, decision=replace(entry.decision, placement=wide))
            it.one.accept(ledger=controller.state.ledger.with_entry(there))
            it.live.hold(path, {})
        it.live.outside_bytes[0] = 720 * MIB
        it.live.write()
        await it.use_freed_memory()
        assert (it.recorded["z"], it.recorded["a0"]) == ("1", "0-1")
        # In fact there is no room for them; once there is, they go back, whether or not somebody stops.
        it.live.outside_bytes[0] = 0
        it.live.write()
        for _ in range(30):
            it.now_s += COUNT_S
            await it.watch.look()
        assert {it.recorded[f"a{number}"] for number in range(10)} == {"0"}


async def test_room_that_is_taken_meanwhile_stays_taken(tmp_path: Path) -> None:
    async with around(tmp_path) as it:
        controller = it.one.controller
        await widened(it.one)
        await controller.stop_container(LATE_POD, LATE)
        it.meanwhile.append(lambda: controller.create_container(LATE_POD, LATE))
        before = it.one.verifications
        await it.use_freed_memory()
        # The kernel was told; verification tells it otherwise again.
        assert it.recorded == {"flexible": "0-1", "late": "0"}
        assert it.one.verifications > before
        assert controller.state.notifications.nodes_due == set()


async def test_a_container_that_stops_or_changes_meanwhile_is_left_alone(tmp_path: Path) -> None:
    async with around(tmp_path) as it:
        controller = it.one.controller
        await widened(it.one)
        await controller.stop_container(LATE_POD, LATE)
        larger = Resources(memory_limit_bytes=1200 * MIB)
        it.meanwhile.append(lambda: controller.update_container(FLEXIBLE_POD, FLEXIBLE, larger))
        await it.use_freed_memory()
        assert it.recorded == {"flexible": "0-1"}
        it.node.shown(PATH, "cpuset.mems")
        smaller = Resources(memory_limit_bytes=500 * MIB)
        await controller.update_container(FLEXIBLE_POD, FLEXIBLE, smaller)
        (it.node.directory(PATH) / "cpuset.mems").write_text("0-1\n")
        it.meanwhile.append(lambda: controller.stop_container(FLEXIBLE_POD, FLEXIBLE))
        await it.use_freed_memory()
        assert it.recorded == {}


async def test_the_kernel_that_refuses_keeps_it_wide(tmp_path: Path) -> None:
    async with around(tmp_path) as it:
        controller = it.one.controller
        await widened(it.one)
        await controller.stop_container(LATE_POD, LATE)
        (it.node.directory(PATH) / "cpuset.mems").unlink()
        (it.node.directory(PATH) / "cpuset.mems").mkdir()
        it.live.hold(PATH, {0: 500 * MIB})
        await it.use_freed_memory()
        assert it.recorded == {"flexible": "0-1"}
        assert it.codes()[-1] == "stays-wide"
        assert "cpuset.mems: " in controller.state.ledger.entries["flexible"].decision.reasons[-1].text
        # A container without a cgroup is about to be released: nothing is said of it.
        (it.node.directory(PATH) / "cpuset.mems").rmdir()
        it.node.end(42)
        await it.use_freed_memory()
        assert controller.state.counters["returns_failed"] == 1


async def test_what_could_not_be_recorded_is_not_so(tmp_path: Path) -> None:
    async with around(tmp_path) as it:
        controller = it.one.controller
        await widened(it.one)
        await controller.stop_container(LATE_POD, LATE)

        async def full() -> None:
            with closing(sqlite3.connect(tmp_path / "state" / "state.db")) as blocker, blocker:
                blocker.execute("DROP TABLE decisions")
            blocker.close()

        it.meanwhile.append(full)
        before = it.one.verifications
        await it.use_freed_memory()
        assert (it.mems, it.recorded) == ("0", {"flexible": "0-1"})
        # Verification lets the kernel have what is recorded.
        assert it.one.verifications > before
        assert controller.state.notifications.nodes_due == set()


async def test_containers_without_nri_go_back_too_and_no_reply_tells_of_it(tmp_path: Path) -> None:
    async with around(tmp_path, nri=None) as it:
        controller = it.one.controller
        origin = Hook.of(FLEXIBLE_POD, FLEXIBLE)
        origin = replace(origin, cgroups={"cpuset": PATH, "memory": PATH})
        await announced(controller, FLEXIBLE_POD, FLEXIBLE, origin)
        controller.state.known.add_recorded(controller.state.ledger.entries)
        await controller.create_container(LATE_POD, LATE)
        await controller.stop_container(LATE_POD, LATE)
        await it.use_freed_memory()
        assert (it.mems, it.recorded, controller.state.notifications.nodes_due) == (
            "0",
            {"flexible": "0"},
            set(),
        )


async def test_who_shrinks_after_it_grew_goes_back(tmp_path: Path) -> None:
    async with around(tmp_path) as it:
        controller = it.one.controller
        await controller.create_container(FLEXIBLE_POD, FLEXIBLE)
        other = container("other", LATE_POD, memory_bytes=200 * MIB, milli_cpus=500)
        await controller.create_container(LATE_POD, other)
        it.one.room_due.clear()
        grown = Resources(memory_limit_bytes=1000 * MIB)
        updates = await controller.update_container(FLEXIBLE_POD, FLEXIBLE, grown)
        assert list(updates) == [Update("flexible", cpuset_mems=NodeSet([0, 1]))]
        await it.use_freed_memory()
        assert it.recorded == {"flexible": "0-1", "other": "0"}
        larger = replace(FLEXIBLE, resources=replace(FLEXIBLE.resources, memory_limit_bytes=1000 * MIB))
        it.one.room_due.clear()
        await controller.update_container(FLEXIBLE_POD, larger, Resources(memory_limit_bytes=300 * MIB))
        assert it.one.room_due.is_set()
        await it.use_freed_memory()
        assert (it.mems, it.recorded["flexible"]) == ("0", "0")


async def test_short_promises_are_made_up_for_where_no_reply_did(tmp_path: Path) -> None:
    owner: Pod = pod("g", QosClass.GUARANTEED)
    made = [container(name, owner, memory_bytes=900 * MIB, milli_cpus=500) for name in "abc"]
    async with around(tmp_path) as it:
        controller = it.one.controller
        for each in made:
            await controller.create_container(owner, each)
        assert controller.state.ledger.entries["c"].decision.outcome is Outcome.DEGRADED
        # More memory came.
        it.one.accept(machine(3, cpus_per_node=4, memory_bytes=2 * GIB))
        await it.use_freed_memory()
    async with controlled(tmp_path / "state") as one:
        decision = one.controller.state.ledger.entries["c"].decision
        assert (decision.outcome, decision.reasons[-1].code) == (Outcome.PLACED, "promised-later")


async def test_nodes_that_come_are_opened_to_those_who_may_use_all(tmp_path: Path) -> None:
    async with around(tmp_path) as it:
        controller = it.one.controller
        it.one.accept(machine(2, cpu_less={8: GIB}))
        owner = pod("b", QosClass.BURSTABLE)
        free = container("free", owner, resources=Resources(cpu_shares=512), oom_score_adj=900)
        await controller.create_container(owner, free)
        assert it.recorded == {"free": "0-1"}
        it.one.accept(machine(3, cpu_less={8: GIB}))
        before = it.one.verifications
        await it.use_freed_memory()
        assert it.recorded == {"free": "0-2"}
        assert it.one.verifications > before
        updates = await controller.update_container(owner, free, Resources(cpu_shares=1024))
        assert [update.cpuset_mems for update in updates] == [NodeSet([0, 1, 2])]


async def test_told_to_stop_it_moves_nobody(tmp_path: Path) -> None:
    async with around(tmp_path) as it:
        await widened(it.one)
        await it.one.controller.stop_container(LATE_POD, LATE)
        it.watch.stop()
        await it.promised.use_freed_memory()
        await it.watch.look()
        assert (it.live.held[PATH][1], it.mems, it.recorded) == (200 * MIB, "0-1", {"flexible": "0-1"})


async def test_more_than_may_be_moved_at_once_stays_where_it_is(tmp_path: Path) -> None:
    async with around(tmp_path, bounds=BOUNDS._replace(most_bytes=100 * MIB)) as it:
        await widened(it.one)
        await it.one.controller.stop_container(LATE_POD, LATE)
        await it.use_freed_memory()
        assert (it.moves, it.mems, it.codes()[-1]) == ([], "0-1", "stays-wide")


async def test_no_step_begins_after_the_deadline(tmp_path: Path) -> None:
    async with around(tmp_path, bounds=BOUNDS._replace(deadline_s=7.0)) as it:
        await widened(it.one)
        await it.one.controller.stop_container(LATE_POD, LATE)

        def slowly(cgroup: str, source: int, target: int, *_: object) -> PagesMoved:
            it.now_s += 3
            return PagesMoved(it.live.move(cgroup, source, target, 20 * MIB))

        it.watch.relief._move = slowly
        await it.use_freed_memory()
        assert (it.live.held[PATH][1], it.mems, it.codes()[-1]) == (140 * MIB, "0-1", "stays-wide")
        assert it.one.controller.state.counters["pages_moved_bytes"] == 60 * MIB


async def test_counters_that_lag_behind_are_waited_for(tmp_path: Path) -> None:
    async with around(tmp_path) as it:
        await widened(it.one)
        await it.one.controller.stop_container(LATE_POD, LATE)
        it.watch.relief._move = lambda *_: PagesMoved(200 * MIB, exhausted=True)
        await it.promised.use_freed_memory()
        await it.watch.look()
        it.now_s += 1
        await it.watch.look()
        assert (it.mems, it.codes()[-1]) == ("0-1", "moved-over")
        it.live.hold(PATH, {0: 500 * MIB})
        it.now_s += 1
        await it.use_freed_memory()
        assert (it.mems, it.codes()) == ("0", ["best-set"])


async def test_it_follows_until_it_is_cancelled(tmp_path: Path) -> None:
    async with around(tmp_path) as it:
        await widened(it.one)
        tasks = [it.promised.follow(it.one.room_due, pause_s=0), it.watch.follow(pause_s=0.01)]
        following = asyncio.gather(*tasks)
        await it.one.controller.stop_container(LATE_POD, LATE)
        await it.settled.wait()
        assert it.recorded == {"flexible": "0"}
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


@pytest.mark.parametrize(
    ("numa_maps", "promised"),
    [
        ("55d0 bind:1 anon=3 N1=3\n55d8 bind=static:1 anon=1 N1=1\n", "1"),
        ("55d0 default anon=3 N1=3\n", "0-1"),
        ("55d0 bind:1 anon=3 N1=3\n55d8 default anon=1 N1=1\n", "0-1"),
        ("", "0-1"),
    ],
)
async def test_who_is_on_movable_nodes_gets_one_for_the_kernel_before_it_starts(
    tmp_path: Path, numa_maps: str, promised: str
) -> None:
    nodes = (replace(one, is_movable=one.id == 1) for one in MACHINE.nodes)
    async with around(tmp_path, on=replace(MACHINE, nodes=tuple(nodes))) as it:
        owner = pod("flexible", QosClass.GUARANTEED, {"bayplan.dev/required-nodes": "1"})
        adjustment, _ = await it.one.controller.create_container(owner, FLEXIBLE)
        assert adjustment.cpuset_mems == NodeSet([1])
        (it.node.directory(PATH) / "cpuset.mems").write_text("1\n")
        (it.node.root / "proc/42/numa_maps").write_text(numa_maps)
        await it.one.controller.state_changed(Event.POST_CREATE_CONTAINER, owner, FLEXIBLE)
        await it.promised.before_start("flexible")
        assert (it.mems, it.recorded) == ("0-1", {"flexible": "0-1"})
        decision = it.one.controller.state.ledger.entries["flexible"].decision
        assert decision.placement.claim is not None
        assert str(decision.placement.claim.nodes) == promised
        assert (decision.outcome is Outcome.DEGRADED) == (promised == "0-1")
        # The runtime hears of it with the next reply, once; and it is asked no second time.
        other = pod("other", QosClass.BEST_EFFORT)
        _, updates = await it.one.controller.create_container(other, container("other", other))
        assert list(updates) == [Update("flexible", cpuset_mems=NodeSet([0, 1]))]
        await it.promised.before_start("flexible")
        assert it.one.controller.state.ledger.entries["flexible"].decision == decision
