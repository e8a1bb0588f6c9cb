"""Ledger, engine, machine and policy have one owner: who changes them waits for a turn; the disk follows."""

import asyncio
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from bayplan.control.state import RETRY_S
from bayplan.engines.kubelet.engine import KubeletEngine
from bayplan.errors import PlacementError, StateError
from bayplan.model.decision import QosClass
from bayplan.model.ledger import Ledger
from bayplan.model.machine import MEMORY
from bayplan.model.policy import PlacementPolicy, TopologyPolicy
from bayplan.model.resources import Resources
from bayplan.model.workload import Container
from bayplan.nri import Event
from bayplan.quantity import GIB, MIB
from bayplan.sets import CpuSet, NodeSet
from support.clock import ManualClock
from support.controllers import Controlled, by_hook, controlled, full_disk
from support.coroutines import PATIENCE_S
from support.machines import container, machine, pod

GUARANTEED = pod("g", QosClass.GUARANTEED)
BEST_EFFORT = pod("be", QosClass.BEST_EFFORT)
BOUND = replace(pod("w", QosClass.GUARANTEED), annotations={"bayplan.dev/required-nodes": "0"})


def memory(name: str, mebibytes: int = 600) -> Container:
    return container(name, GUARANTEED, memory_bytes=mebibytes * MIB, milli_cpus=500)


def exclusive(name: str, cpus: int = 2) -> Container:
    return container(name, GUARANTEED, memory_bytes=100 * MIB, milli_cpus=1000 * cpus)


LATE = container("late", BOUND, memory_bytes=900 * MIB, milli_cpus=500)


class Stall:
    """A disk that takes nothing until it is let go."""

    def __init__(self, one: Controlled) -> None:
        self._gate = threading.Event()
        one.controller.state.recorder._thread.submit(self._gate.wait)

    def end(self) -> None:
        self._gate.set()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 - no event reports it
            await asyncio.sleep(0)


async def agree(one: Controlled) -> None:
    """The disk says what the ledger says, and no more."""
    recorded = await one.controller.state.recorder.ledger()
    assert dict(recorded.entries) == dict(one.controller.state.ledger.entries)
    assert not one.controller.state.unrecorded


CHANGES: dict[str, Callable[[Controlled], None]] = {
    "engine": lambda one: one.controller.state.take_engine(KubeletEngine()),
    "machine": lambda one: one.accept(machine(3, cpus_per_node=4)),
    "policy": lambda one: one.accept(policy=PlacementPolicy(reserved_bytes={0: {MEMORY: GIB}})),
    "missed creation": lambda one: one.controller.missed(Event.CREATE_CONTAINER, "a", "late"),
    "missed stop": lambda one: one.controller.missed(Event.STOP_CONTAINER, "a", "late"),
}


@pytest.mark.parametrize("change", CHANGES)
async def test_whatever_changes_waits_until_a_commit_is_done(tmp_path: Path, change: str) -> None:
    async with controlled(tmp_path) as one:
        controller = one.controller
        await controller.create_container(GUARANTEED, memory("a"))
        stall = Stall(one)
        creation = asyncio.create_task(controller.create_container(GUARANTEED, memory("b")))
        await until(controller.state._lock.locked)
        before = controller.state.basis
        CHANGES[change](one)
        assert controller.state.basis is before
        stall.end()
        await creation
        assert "b" in controller.state.ledger.entries
        assert controller.state.basis != before
        await agree(one)


async def test_a_new_engine_counts_what_was_being_promised(tmp_path: Path) -> None:
    async with controlled(tmp_path) as one:
        controller = one.controller
        await controller.create_container(GUARANTEED, memory("a"))
        stall = Stall(one)
        creation = asyncio.create_task(controller.create_container(GUARANTEED, memory("b")))
        await until(controller.state._lock.locked)
        controller.state.take_engine(KubeletEngine())
        stall.end()
        await creation
        promised = [entry.decision.placement for entry in controller.state.ledger.entries.values()]
        assert [placement.claim for placement in promised] == [None, None]
        assert controller.state.ledger.claimed_bytes == {}
        # 600 MiB of each 1 GiB are promised: another 600 fit nowhere.
        with pytest.raises(PlacementError):
            await controller.create_container(GUARANTEED, memory("c"))
        await agree(one)
    async with controlled(tmp_path) as one:
        assert set(one.controller.state.ledger.entries) == {"a", "b"}


async def test_what_decisions_depend_on_changes_in_an_open_transaction_only(tmp_path: Path) -> None:
    async with controlled(tmp_path) as one:
        async with one.controller.state.transaction() as transaction:
            pass
        with pytest.raises(AssertionError, match="the transaction has ended"):
            transaction.accept(ledger=Ledger())
        for name in ("ledger", "engine", "machine", "policy"):
            with pytest.raises(AttributeError):
                setattr(one.controller.state, name, None)


async def test_a_change_that_fails_harms_nobody_elses_turn(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with controlled(tmp_path) as one:
        async with one.controller.state.transaction():
            one.controller.state.schedule(lambda _: 1 / 0)  # type: ignore[arg-type, return-value]  # what the test hands over on purpose
            one.controller.state.take_engine(KubeletEngine())
        assert one.controller.state.engine.name == "kubelet"
        await one.controller.create_container(GUARANTEED, memory("a"))
    assert "scheduled change failed" in caplog.messages


@pytest.mark.parametrize("kind", ["creation that moves", "resize"])
async def test_what_is_cancelled_while_its_commit_is_queued_is_undone_whole(
    tmp_path: Path, kind: str
) -> None:
    async with controlled(tmp_path) as one:
        controller = one.controller
        first = memory("a")
        await controller.create_container(GUARANTEED, first)
        before = controller.state.ledger
        stall = Stall(one)
        if kind == "resize":
            larger = replace(first.resources, memory_limit_bytes=900 * MIB)
            late = asyncio.create_task(controller.update_container(GUARANTEED, first, larger))
        else:
            late = asyncio.create_task(controller.create_container(BOUND, LATE))
        await until(controller.state._lock.locked)
        await asyncio.sleep(0)
        late.cancel()
        await asyncio.gather(late, return_exceptions=True)
        assert late.cancelled()
        event = Event.UPDATE_CONTAINER if kind == "resize" else Event.CREATE_CONTAINER
        controller.missed(event, "a" if kind == "resize" else "late", "late")
        assert controller.state.ledger is before
        stall.end()
        await agree(one)
        assert one.verifications
        if kind != "resize":
            await controller.create_container(BOUND, LATE)
            assert controller.state.ledger.entries["a"].decision.placement.mems == NodeSet([0, 1])
            await agree(one)


async def test_a_creation_that_could_not_be_recorded_is_taken_back_with_the_next_write(
    tmp_path: Path,
) -> None:
    """A commit that failed may be on the disk all the same."""

    async with controlled(tmp_path) as one:
        controller = one.controller
        store, taken = controller.state.recorder.store, controller.state.recorder.store.commit

        def failing(step: object) -> None:
            taken(step)  # type: ignore[arg-type]  # what the test hands over on purpose
            raise StateError("the disk", "said nothing, and had it")

        store.commit = failing  # type: ignore[assignment, method-assign]  # stands in for it in a test
        with pytest.raises(StateError):
            await by_hook(controller, GUARANTEED, exclusive("first"))
        store.commit = taken  # type: ignore[method-assign]  # stands in for it in a test
        assert controller.state.ledger.entries == {}
        await controller.create_container(GUARANTEED, exclusive("second"))
        await agree(one)
        assert set(controller.state.ledger.entries) == {"second"}


async def test_a_full_disk_stays_a_problem_until_something_is_written(tmp_path: Path) -> None:
    clock = ManualClock()
    async with controlled(tmp_path, clock=clock) as one:
        controller, recorder = one.controller, one.controller.state.recorder
        with full_disk(recorder), pytest.raises(StateError):
            await by_hook(controller, GUARANTEED, exclusive("first"))
        # Nothing is left to take back, and nothing is written: that works on a full disk, too.
        clock.advance(RETRY_S)
        await agree(one)
        assert recorder.problem is not None
        await controller.create_container(GUARANTEED, exclusive("first"))
        assert recorder.problem is None


@pytest.mark.parametrize("end", ["stop", "missed stop", "missed creation", "removal of the pod"])
@pytest.mark.parametrize("settled_by", ["time", "the next creation"])
async def test_an_end_that_could_not_be_recorded_is_recorded_when_there_is_room(
    tmp_path: Path, end: str, settled_by: str
) -> None:
    clock = ManualClock()
    async with controlled(tmp_path, clock=clock) as one:
        controller, owner = one.controller, exclusive("owner")
        await controller.create_container(GUARANTEED, owner)
        with full_disk(one.controller.state.recorder):
            if end == "stop":
                await controller.stop_container(GUARANTEED, owner)
            elif end == "removal of the pod":
                await controller.state_changed(Event.REMOVE_POD_SANDBOX, GUARANTEED, None)
            else:
                event = Event.STOP_CONTAINER if end == "missed stop" else Event.CREATE_CONTAINER
                controller.missed(event, "owner", "late")
            assert controller.state.ledger.entries == {}
            assert set(controller.state.unrecorded) == {"owner"}
            with pytest.raises(StateError):
                await by_hook(controller, GUARANTEED, exclusive("next"))
            assert controller.state.recorder.problem is not None
        if settled_by == "time":
            clock.advance(RETRY_S)
        else:
            await controller.create_container(GUARANTEED, exclusive("next"))
        await agree(one)
        assert controller.state.recorder.problem is None
    async with controlled(tmp_path) as one:
        exclusives = [
            entry.decision.placement.exclusive_cpus for entry in one.controller.state.ledger.entries.values()
        ]
        assert sum(map(len, exclusives)) == len(one.controller.state.ledger.exclusive_cpus)


async def test_what_only_the_disk_knows_is_removed_at_synchronize(tmp_path: Path) -> None:
    async with controlled(tmp_path) as one:
        controller, known = one.controller, exclusive("known")
        await controller.create_container(GUARANTEED, known)
        await controller.create_container(GUARANTEED, exclusive("forgotten"))
        # As if a write about it had been lost without a word.
        controller.state.basis = controller.state.basis.with_ledger(
            controller.state.ledger.without("forgotten")
        )
        await controller.synchronize([GUARANTEED], [known])
        await agree(one)
        assert set(controller.state.ledger.entries) == {"known"}


async def test_a_synchronize_on_a_full_disk_counts_and_is_recorded_later(tmp_path: Path) -> None:
    clock = ManualClock()
    async with controlled(tmp_path, clock=clock) as one:
        controller = one.controller
        await controller.create_container(GUARANTEED, exclusive("gone"))
        with full_disk(one.controller.state.recorder):
            await controller.synchronize([GUARANTEED], [exclusive("found", 1)])
            assert set(controller.state.ledger.entries) == {"found"}
            await clock.until_armed()
        clock.advance(RETRY_S)
        await agree(one)


async def test_what_its_container_carries_is_promised_on_a_full_disk_and_recorded_later(
    tmp_path: Path,
) -> None:
    clock = ManualClock()
    async with controlled(tmp_path, clock=clock) as one:
        controller = one.controller
        with full_disk(controller.state.recorder):
            adjustment, _ = await controller.create_container(GUARANTEED, exclusive("carried"))
            assert set(controller.state.ledger.entries) == {"carried"}
            assert set(controller.state.unrecorded) == {"carried"}
        clock.advance(RETRY_S)
        await agree(one)
        [(_, decision)] = await controller.state.recorder.decided(0)
        assert decision.request.container_id == "carried"
    # As after a kill before there was room: the container has the entry.
    async with controlled(tmp_path / "empty") as one:
        spec = replace(exclusive("carried").resources, cpuset_cpus=adjustment.cpuset_cpus)
        spec = replace(spec, cpuset_mems=adjustment.cpuset_mems)
        carrying = replace(exclusive("carried"), annotations=adjustment.annotations, resources=spec)
        await one.controller.synchronize([GUARANTEED], [carrying])
        found = one.controller.state.ledger.entries["carried"].decision
        assert found.placement.exclusive_cpus == adjustment.cpuset_cpus


async def test_a_record_that_is_lost_is_made_again_from_the_ledger(tmp_path: Path) -> None:
    async with controlled(tmp_path) as one:
        controller, store = one.controller, one.controller.state.recorder.store
        for name in ("first", "second"):
            await controller.create_container(GUARANTEED, exclusive(name, 1))
        await controller.state.recorder._run(store.close)
        store.path.unlink()
        await controller.create_container(GUARANTEED, exclusive("third", 1))
        await agree(one)
        assert set(controller.state.ledger.entries) == {"first", "second", "third"}


async def test_a_record_is_made_again_without_a_write(tmp_path: Path) -> None:
    async with controlled(tmp_path / "state") as one:
        controller = one.controller
        await controller.create_container(GUARANTEED, exclusive("first", 1))
        shutil.rmtree(tmp_path / "state")
        assert await controller.state.recorder.ensure_in_place()
        await agree(one)
        shutil.rmtree(tmp_path / "state")
        (tmp_path / "state").write_text("in the way")
        with pytest.raises(StateError):
            await controller.state.recorder.ensure_in_place()
        assert controller.state.recorder.problem is not None
        (tmp_path / "state").unlink()
        assert await controller.state.recorder.ensure_in_place()
        assert controller.state.recorder.problem is None
        await agree(one)


async def test_a_refusal_holds_also_when_it_cannot_be_recorded(tmp_path: Path) -> None:
    async with controlled(tmp_path, PlacementPolicy(topology=TopologyPolicy.SINGLE_NUMA_NODE)) as one:
        with full_disk(one.controller.state.recorder), pytest.raises(PlacementError):
            await one.controller.create_container(GUARANTEED, memory("large", 1500))


async def test_who_was_let_through_is_entered_also_when_its_start_is_missed(tmp_path: Path) -> None:
    async with controlled(tmp_path) as one:
        controller, late = one.controller, container("late", BEST_EFFORT)
        controller.fallback_adjustment(BEST_EFFORT, late)
        controller.missed(Event.CREATE_CONTAINER, "late", "late")
        assert controller.state.ledger.entries == {}
        started = replace(late, resources=replace(late.resources, cpuset_cpus=CpuSet(range(8))))
        controller.missed(Event.START_CONTAINER, "late", "late", (BEST_EFFORT, started))
        request = controller.state.ledger.entries["late"].decision.request
        assert (request.container_id, request.pinned_cpus) == ("late", None)
        await agree(one)


async def test_cpus_of_an_earlier_life_are_nobodys_choice(tmp_path: Path) -> None:
    """Those of a default answer, and those of a decision about a container that was not listed meanwhile."""

    late, owner = container("late", BEST_EFFORT), exclusive("owner")
    async with controlled(tmp_path) as one:
        answers = {
            "late": one.controller.fallback_adjustment(BEST_EFFORT, late),
            "owner": (await one.controller.create_container(GUARANTEED, owner))[0],
        }
    started = {
        each.id: replace(
            each,
            resources=replace(each.resources, cpuset_cpus=answers[each.id].cpuset_cpus),
            annotations=answers[each.id].annotations,
        )
        for each in (late, owner)
    }
    async with controlled(tmp_path) as one:
        controller = one.controller
        await controller.synchronize([], [])
        await controller.create_container(GUARANTEED, exclusive("next"))
        for owned, one_pod in (("late", BEST_EFFORT), ("owner", GUARANTEED)):
            await controller.state_changed(Event.START_CONTAINER, one_pod, started[owned])
        entries = controller.state.ledger.entries
        assert entries["next"].decision.placement.exclusive_cpus == answers["owner"].cpuset_cpus
        assert not entries["owner"].decision.placement.exclusive_cpus
        assert {entry.decision.request.pinned_cpus for entry in entries.values()} == {None}
        shared = controller.state.basis.shared_cpus
        expected = {each.container.id: each.cpus for each in one.expectations()}
        assert expected["owner"] == expected["late"] == shared


@pytest.mark.parametrize("fails", [False, True])
async def test_the_history_lists_a_found_container_once_however_its_record_is_written(
    tmp_path: Path, *, fails: bool
) -> None:
    """Others are written before its write has ended, or has succeeded; so is the container itself."""
    clock = ManualClock()
    async with controlled(tmp_path, clock=clock) as one:
        found, others = container("f", BEST_EFFORT), [container(name, BEST_EFFORT) for name in ("o", "p")]
        if fails:
            with full_disk(one.controller.state.recorder):
                await one.controller.state_changed(Event.POST_START_CONTAINER, BEST_EFFORT, found)
                await one.controller.update_container(
                    BEST_EFFORT, found, Resources(unified={"memory.high": "1"})
                )
                await one.controller.state.wait_written()
        else:
            stall = Stall(one)
            entered = [
                asyncio.create_task(
                    one.controller.state_changed(Event.POST_START_CONTAINER, BEST_EFFORT, each)
                )
                for each in (found, *others)
            ]
            await until(lambda: len(one.controller.state.ledger.entries) == len(entered))
            await one.controller.update_container(BEST_EFFORT, found, Resources(unified={"memory.high": "1"}))
            stall.end()
            await asyncio.gather(*entered)
        clock.advance(RETRY_S)
        await one.controller.state.wait_written()
        await agree(one)
        recorded = await one.controller.state.recorder.decided(0)
    assert [decision.request.container_id for _, decision in recorded].count("f") == 1


async def test_the_history_lists_a_found_container_after_a_change_of_it_was_refused(tmp_path: Path) -> None:
    """The disk was full at both."""
    clock = ManualClock()
    async with controlled(tmp_path, clock=clock) as one:
        found = container("f", BEST_EFFORT)
        with full_disk(one.controller.state.recorder):
            await one.controller.state_changed(Event.POST_START_CONTAINER, BEST_EFFORT, found)
            with pytest.raises(StateError):
                await one.controller.update_container(BEST_EFFORT, found, Resources(cpu_shares=512))
        clock.advance(RETRY_S)
        await one.controller.state.wait_written()
        await agree(one)
        recorded = await one.controller.state.recorder.decided(0)
    assert [decision.request.container_id for _, decision in recorded] == ["f"]
