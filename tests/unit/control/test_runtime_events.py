"""NRI events and other writers take turns at the controller, and which updates a reply has."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from bayplan.model.decision import QosClass
from bayplan.model.origin import Hook, Wrapper
from bayplan.model.workload import ContainerState, Update
from bayplan.nri import Event
from bayplan.quantity import GIB
from bayplan.sets import CpuSet
from bayplan.state import Store
from support.controllers import announced, begun, controlled, runtime
from support.machines import container, pod

GUARANTEED = pod("g", QosClass.GUARANTEED)
BEST_EFFORT = pod("be", QosClass.BEST_EFFORT)
SHARED = container("s", BEST_EFFORT)
EXCLUSIVE = container("x", GUARANTEED, memory_bytes=GIB // 2, milli_cpus=2000)


async def test_the_runtime_hears_nothing_of_a_container_that_is_not_its_own(tmp_path: Path) -> None:
    async with controlled(tmp_path) as one:
        origin = Hook.of(BEST_EFFORT, SHARED)
        await announced(one.controller, BEST_EFFORT, SHARED, origin)
        for name in ("l", "o"):
            await begun(one.controller, BEST_EFFORT, container(name, BEST_EFFORT))
        await one.controller.create_container(GUARANTEED, EXCLUSIVE)
        updates = await one.controller.stop_container(BEST_EFFORT, container("o", BEST_EFFORT))
        assert updates == [Update("l", cpuset_cpus=CpuSet.parse("0,3-7"))]


async def test_a_created_container_is_looked_at_only_if_an_update_of_it_is_due(tmp_path: Path) -> None:
    async with controlled(tmp_path) as one:
        controller, looks = one.controller, one.compared
        await controller.create_container(BEST_EFFORT, SHARED)
        await controller.state_changed(Event.POST_CREATE_CONTAINER, BEST_EFFORT, SHARED)
        assert looks == []

        overtaken = container("o", BEST_EFFORT)
        await controller.create_container(BEST_EFFORT, overtaken)
        await controller.create_container(GUARANTEED, EXCLUSIVE)
        await controller.state_changed(Event.POST_CREATE_CONTAINER, BEST_EFFORT, overtaken)
        assert looks == [("o",)]

        await controller.state_changed(Event.POST_CREATE_CONTAINER, GUARANTEED, EXCLUSIVE)
        assert looks == [("o",)]
        await controller.state_changed(Event.START_CONTAINER, BEST_EFFORT, SHARED)
        await controller.state_changed(Event.POST_START_CONTAINER, BEST_EFFORT, SHARED)
        assert looks == [("o",), ("s",), ("s",)]


async def test_a_synchronize_without_it_keeps_what_came_otherwise_and_drops_what_came_over_nri(
    tmp_path: Path,
) -> None:
    async with controlled(tmp_path) as one:
        await announced(one.controller, GUARANTEED, EXCLUSIVE, Hook.of(GUARANTEED, EXCLUSIVE))
        await one.controller.create_container(BEST_EFFORT, SHARED)
        assert await one.controller.synchronize([], []) == []
        assert set(one.controller.state.ledger.entries) == {"x"}
        assert set(one.controller.state.known.containers) == {"x"}
        assert one.controller.state.known.oom_score_adj == {"x": -997}
        stopped = replace(EXCLUSIVE, state=ContainerState.STOPPED)
        assert await one.controller.synchronize([GUARANTEED], [stopped]) == []
        assert one.controller.state.ledger.entries == {}


async def test_what_came_otherwise_is_known_again_after_a_restart(tmp_path: Path) -> None:
    async with controlled(tmp_path) as one:
        origin = Wrapper.of(GUARANTEED, EXCLUSIVE, bundle="/run/b")
        await announced(one.controller, GUARANTEED, EXCLUSIVE, origin)
    async with controlled(tmp_path) as one:
        entry = one.controller.state.ledger.entries["x"]
        assert (type(entry.origin), entry.origin.bundle) == (Wrapper, "/run/b")
        assert entry.origin.applied.cpuset_cpus == entry.notified_cpus == CpuSet([1, 2])
        assert one.controller.state.known.containers["x"].resources == EXCLUSIVE.resources


async def test_a_missed_event_waits_for_the_turn_of_another_writer(tmp_path: Path) -> None:
    async with controlled(tmp_path) as one:
        await one.controller.create_container(GUARANTEED, EXCLUSIVE)
        async with one.controller.state.transaction():
            one.controller.missed(Event.CREATE_CONTAINER, "x", "late")
            assert "x" in one.controller.state.ledger.entries
        assert one.controller.state.ledger.entries == {}
        await one.controller.create_container(GUARANTEED, EXCLUSIVE)
        one.controller.missed(Event.CREATE_CONTAINER, "x", "late")
        assert one.controller.state.ledger.entries == {}
    store = Store.open(tmp_path)
    assert store.entries() == []
    store.close()


async def test_a_late_miss_does_not_undo_what_was_decided_on_another_way_since(tmp_path: Path) -> None:
    async with controlled(tmp_path) as one:
        origin = Hook.of(GUARANTEED, EXCLUSIVE)
        await announced(one.controller, GUARANTEED, EXCLUSIVE, origin)
        one.controller.missed(Event.CREATE_CONTAINER, "x", "late")
        assert set(one.controller.state.ledger.entries) == {"x"}
        one.controller.missed(Event.STOP_CONTAINER, "x", "late")
        assert one.controller.state.ledger.entries == {}


@pytest.mark.parametrize(("config", "said"), [("", 0), (" \n", 0), ("logLevel: debug\n", 1)])
async def test_what_the_runtime_has_for_us_in_its_own_directory_is_not_passed_over_silently(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, config: str, said: int
) -> None:
    async with controlled(tmp_path, nri=None) as one:
        one.controller.connected(replace(runtime("0.12.0"), config=config))
    assert len([record for record in caplog.records if "/etc/bayplan" in record.message]) == said
