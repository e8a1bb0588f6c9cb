"""Memory that nobody promised takes a node: who was promised it gets another one, and goes back after."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from msgspec.structs import replace

from bayplan.config.settings import MemoryPressure
from bayplan.daemon.memory_pressure import PressureWatch
from bayplan.daemon.page_relief import PageRelief
from bayplan.engines.interface import Engine
from bayplan.engines.kubelet.engine import KubeletEngine
from bayplan.host.page_moves import PagesMoved
from bayplan.model.decision import QosClass
from bayplan.model.workload import Container, Pod
from bayplan.quantity import GIB, MIB
from support.controllers import Controlled, controlled, here
from support.live_nodes import LiveNodes
from support.machines import container, pod
from support.oci_node import OciNode


def database(annotations: dict[str, str] | None = None) -> tuple[Pod, Container]:
    owner = pod("shop-db", QosClass.GUARANTEED, annotations or {})
    one = container("db", owner, memory_bytes=600 * MIB, milli_cpus=500)
    return owner, replace(one, cgroups_path=f"{owner.cgroup_parent}/db")


@dataclass
class Around:
    one: Controlled
    live: LiveNodes
    watch: PressureWatch
    now_s: list[float]

    async def look(self, times: int = 3) -> None:
        for _ in range(times):
            self.now_s[0] += 5
            while await self.watch.look():
                self.now_s[0] += 1

    def taken(self, amount_bytes: int) -> None:
        """Somebody outside of containers holds so much of node 0."""
        self.live.outside_bytes[0] = amount_bytes
        self.live.write()

    async def batch(self, held_bytes: dict[int, int]) -> None:
        """A BestEffort container is created, whose pages lie there."""
        owner = pod("batch", QosClass.BEST_EFFORT)
        path = f"{owner.cgroup_parent}/batch"
        batch = replace(container("batch", owner, oom_score_adj=1000), cgroups_path=path)
        await self.one.controller.create_container(owner, batch)
        self.live.hold(path, held_bytes)

    @property
    def nodes(self) -> str:
        return str(self.one.controller.state.ledger.entries["db"].decision.placement.mems)

    @property
    def codes(self) -> list[str]:
        return [one.code for one in self.one.controller.state.ledger.entries["db"].decision.reasons]


@asynccontextmanager
async def around(
    tmp_path: Path,
    mode: MemoryPressure = MemoryPressure.RELIEVE,
    annotations: dict[str, str] | None = None,
    engine: Engine | None = None,
) -> AsyncIterator[Around]:
    """Two nodes of 1 GiB; "db" is promised 600 MiB on node 0 and uses 100 MiB of it."""
    live, now_s = LiveNodes(OciNode(tmp_path / "root"), {0: GIB, 1: GIB}), [1000.0]
    async with controlled(tmp_path / "state", engine=engine) as one:
        owner, db = database(annotations)

        def moved(
            cgroup: str, source: int, target: int, wanted: int, go_on: Callable[[int], bool]
        ) -> PagesMoved:
            return PagesMoved(live.move(cgroup, source, target, wanted), exhausted=True)

        hierarchy = live.node.hierarchy
        promised = one.promised_nodes(hierarchy, lambda: now_s[0])
        relief = PageRelief(hierarchy, GIB, move=moved, clock_s=lambda: now_s[0])
        watch = PressureWatch(
            one.controller.state, hierarchy, here, mode, relief, promised, clock_s=lambda: now_s[0]
        )
        await one.controller.create_container(owner, db)
        live.hold(db.cgroups_path, {0: 100 * MIB})
        yield Around(one, live, watch, now_s)


async def test_a_promise_gets_another_node_while_its_own_is_taken_and_goes_back(tmp_path: Path) -> None:
    async with around(tmp_path) as it:
        await it.look()
        assert (it.nodes, it.watch.problems()) == ("0", ())
        it.taken(700 * MIB)
        await it.look()
        assert (it.nodes, it.codes[-2:]) == ("0-1", ["moved-over", "memory-taken"])
        assert it.watch.problems() == ()
        controller = it.one.controller
        assert controller.state.counters["moves"] == 1
        # It is in the history, with the numbers, and the runtime gets it with the next reply.
        (_, decision), *_ = await controller.state.recorder.history(10, "db")
        assert decision.reasons[-1].code == "memory-taken"
        assert "500Mi" in decision.reasons[-1].text
        assert "db" in controller.state.notifications.nodes_due
        # By the ledger there is room on node 0: but not in fact.
        it.live.hold(database()[1].cgroups_path, {0: 100 * MIB, 1: 200 * MIB})
        await it.look(8)
        assert it.nodes == "0-1"
        it.taken(0)
        # Nothing is at risk, so that pages are counted every 30 s only.
        await it.look(8)
        assert it.live.held[database()[1].cgroups_path] == {0: 300 * MIB, 1: 0}
        assert (it.nodes, it.codes) == ("0", ["best-set"])


@pytest.mark.parametrize("mode", [MemoryPressure.OBSERVE, MemoryPressure.OFF])
async def test_it_goes_back_where_nothing_is_relieved_any_more(tmp_path: Path, mode: MemoryPressure) -> None:
    async with around(tmp_path) as it:
        it.taken(700 * MIB)
        await it.look()
        assert it.nodes == "0-1"
        it.live.hold(database()[1].cgroups_path, {0: 100 * MIB, 1: 200 * MIB})
        it.watch.mode = mode
        await it.look(8)
        # As long as it would have to leave again it stays.
        assert it.nodes == "0-1"
        it.taken(0)
        await it.look(8)
        assert it.nodes == "0"
        assert it.live.held[database()[1].cgroups_path] == {0: 300 * MIB, 1: 0}
        await it.look()
        assert (it.watch.latest is None) == (mode is MemoryPressure.OFF)


@pytest.mark.parametrize(
    ("mode", "annotations"),
    [
        (MemoryPressure.OBSERVE, {}),
        (MemoryPressure.RELIEVE, {"bayplan.dev/keep-pages": "true"}),
        (MemoryPressure.RELIEVE, {"bayplan.dev/required-nodes": "0"}),
    ],
)
async def test_who_may_not_be_moved_stays(
    tmp_path: Path, mode: MemoryPressure, annotations: dict[str, str]
) -> None:
    async with around(tmp_path, mode, annotations) as it:
        it.taken(700 * MIB)
        await it.look()
        assert it.nodes == "0"
        assert it.watch.problems()


async def test_only_the_exact_engine_proves_room(tmp_path: Path) -> None:
    async with around(tmp_path, engine=KubeletEngine()) as it:
        before = it.one.controller.state.ledger
        it.taken(900 * MIB)
        await it.look()
        assert it.one.controller.state.ledger is before


async def test_where_no_other_node_has_the_memory_nobody_is_moved(tmp_path: Path) -> None:
    async with around(tmp_path) as it:
        it.live.outside_bytes[1] = 1000 * MIB
        it.taken(700 * MIB)
        await it.look()
        assert it.nodes == "0"


async def test_nobody_goes_back_where_somebody_would_have_to_leave_for_it(tmp_path: Path) -> None:
    async with around(tmp_path) as it:
        it.taken(700 * MIB)
        await it.look()
        assert it.nodes == "0-1"
        # By the ledger node 0 has room again. In fact others' pages lie there, which could be moved.
        it.taken(0)
        await it.batch({0: 800 * MIB})
        await it.look(8)
        assert it.nodes == "0-1"


async def test_nobody_goes_back_while_pages_are_moved_off_a_node_that_is_short(tmp_path: Path) -> None:
    """Not even somebody who does not want that node."""
    async with around(tmp_path) as it:
        it.taken(700 * MIB)
        await it.look()
        assert it.nodes == "0-1"
        it.taken(0)
        owner = pod("late", QosClass.GUARANTEED, {"bayplan.dev/required-nodes": "1"})
        late = container("late", owner, memory_bytes=300 * MIB, milli_cpus=500)
        late = replace(late, cgroups_path=f"{owner.cgroup_parent}/late")
        await it.one.controller.create_container(owner, late)
        await it.batch({1: 800 * MIB})
        it.now_s[0] += 5
        await it.watch.look()
        latest = it.watch.latest
        assert latest is not None
        assert {move.container_id for move in latest.plan.moves} == {"batch"}
        assert it.nodes == "0-1"
        # Once they are moved it goes back.
        await it.look(8)
        assert it.nodes == "0"
