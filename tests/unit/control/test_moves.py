"""Containers that move over for others: told in the same reply, recorded in the same step, and back again."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from bayplan.errors import StateError
from bayplan.model.decision import Outcome, QosClass
from bayplan.model.resources import Resources
from bayplan.model.workload import Container, ContainerState, Update
from bayplan.nri import Event
from bayplan.quantity import MIB
from bayplan.sets import CpuSet, NodeSet
from bayplan.state import Store
from support.controllers import begun, controlled, full_disk
from support.machines import container, pod

FLEXIBLE_POD = pod("flexible", QosClass.GUARANTEED)
LATE_POD = pod("late", QosClass.GUARANTEED, {"bayplan.dev/required-nodes": "0"})
FLEXIBLE = container("flexible", FLEXIBLE_POD, memory_bytes=600 * MIB, milli_cpus=500)
LATE = container("late", LATE_POD, memory_bytes=900 * MIB, milli_cpus=500)
WIDER = Update("flexible", cpuset_mems=NodeSet([0, 1]))


def recorded(directory: Path) -> dict[str, str]:
    """The nodes of every container on the disk."""
    store = Store.open(directory)
    entries = {one.container_id: str(one.decision.placement.mems) for one in store.entries()}
    store.close()
    return entries


def seen(one: Container, mems: str) -> Container:
    """*one* as the runtime lists it."""
    spec = replace(one.resources, cpuset_cpus=CpuSet(range(8)), cpuset_mems=NodeSet.parse(mems))
    return replace(one, state=ContainerState.RUNNING, resources=spec)


async def test_a_move_is_told_in_the_reply_and_recorded_with_the_decision(tmp_path: Path) -> None:
    async with controlled(tmp_path) as one:
        adjustment, _ = await begun(one.controller, FLEXIBLE_POD, FLEXIBLE)
        assert adjustment.cpuset_mems == NodeSet([0])
        adjustment, updates = await one.controller.create_container(LATE_POD, LATE)
        assert adjustment.cpuset_mems == NodeSet([0])
        assert list(updates) == [WIDER]
        assert recorded(tmp_path) == {"flexible": "0-1", "late": "0"}
        assert one.controller.state.counters["moves"] == 1
    async with controlled(tmp_path) as one:
        # Its pages come first, so that the reply has nothing of it.
        assert list(await one.controller.stop_container(LATE_POD, LATE)) == []
        assert one.room_due.is_set()
        assert recorded(tmp_path) == {"flexible": "0-1"}
        assert list(await one.controller.stop_container(FLEXIBLE_POD, FLEXIBLE)) == []


async def test_a_move_that_is_not_on_the_disk_does_not_count(tmp_path: Path) -> None:
    """The container that it is for carries its own decision, and nobody that of the others."""
    async with controlled(tmp_path) as one:
        await begun(one.controller, FLEXIBLE_POD, FLEXIBLE)
        with full_disk(one.controller.state.recorder), pytest.raises(StateError):
            await one.controller.create_container(LATE_POD, LATE)
        assert set(one.controller.state.ledger.entries) == {"flexible"}
        assert one.controller.state.ledger.entries["flexible"].decision.placement.mems == NodeSet([0])


async def test_who_moves_while_it_is_created_gets_its_nodes_as_soon_as_it_exists(tmp_path: Path) -> None:
    async with controlled(tmp_path) as one:
        await one.controller.create_container(FLEXIBLE_POD, FLEXIBLE)
        _, updates = await one.controller.create_container(LATE_POD, LATE)
        assert list(updates) == []  # The runtime would not know whom it is about.
        await one.controller.state_changed(Event.POST_CREATE_CONTAINER, FLEXIBLE_POD, FLEXIBLE)
        assert one.compared == [("flexible",)]


async def test_a_move_and_new_shared_cpus_are_one_update(tmp_path: Path) -> None:
    async with controlled(tmp_path) as one:
        await begun(one.controller, FLEXIBLE_POD, FLEXIBLE)
        exclusive = container("late", LATE_POD, memory_bytes=900 * MIB, milli_cpus=2000)
        _, updates = await one.controller.create_container(LATE_POD, exclusive)
        assert list(updates) == [
            Update("flexible", cpuset_cpus=CpuSet.parse("0,3-7"), cpuset_mems=NodeSet([0, 1]))
        ]


async def test_a_move_that_never_arrived_is_told_again(tmp_path: Path) -> None:
    async with controlled(tmp_path) as one:
        await begun(one.controller, FLEXIBLE_POD, FLEXIBLE)
        await one.controller.create_container(LATE_POD, LATE)
        pods, late = [FLEXIBLE_POD, LATE_POD], seen(LATE, "0")
        updates = await one.controller.synchronize(pods, [seen(FLEXIBLE, "0"), late])
        assert list(updates) == [WIDER]
        assert list(await one.controller.synchronize(pods, [seen(FLEXIBLE, "0-1"), late])) == []
        # Other nodes are somebody else's: the promise follows them.
        await one.controller.synchronize(pods, [seen(FLEXIBLE, "1"), late])
        placement = one.controller.state.ledger.entries["flexible"].decision.placement
        assert placement.claim is not None
        assert (placement.mems, placement.claim.nodes) == (None, NodeSet([1]))


async def test_after_a_missed_creation_there_may_be_room_for_those_who_moved(tmp_path: Path) -> None:
    async with controlled(tmp_path) as one:
        await begun(one.controller, FLEXIBLE_POD, FLEXIBLE)
        await one.controller.create_container(LATE_POD, LATE)
        assert not one.room_due.is_set()
        one.controller.missed(Event.CREATE_CONTAINER, "late", "too late")
        assert one.verifications == 1
        assert set(one.controller.state.ledger.entries) == {"flexible"}
        assert one.room_due.is_set()


async def test_a_resize_that_needs_room_of_others_is_told_to_them(tmp_path: Path) -> None:
    async with controlled(tmp_path) as one:
        await begun(one.controller, FLEXIBLE_POD, FLEXIBLE)
        small = container("late", LATE_POD, memory_bytes=200 * MIB, milli_cpus=500)
        await one.controller.create_container(LATE_POD, small)
        updates = await one.controller.update_container(
            LATE_POD, small, Resources(memory_limit_bytes=900 * MIB)
        )
        assert list(updates) == [WIDER]
        decision = one.controller.state.ledger.entries["late"].decision
        assert (decision.outcome, str(decision.placement.mems)) == (Outcome.PLACED, "0")


async def test_what_could_not_be_promised_is_promised_and_recorded_when_somebody_stops(
    tmp_path: Path,
) -> None:
    owner = pod("g", QosClass.GUARANTEED)
    made = [container(name, owner, memory_bytes=900 * MIB, milli_cpus=500) for name in "abc"]
    async with controlled(tmp_path) as one:
        for each in made:
            await one.controller.create_container(owner, each)
        assert one.controller.state.ledger.entries["c"].decision.outcome is Outcome.DEGRADED
        assert await one.controller.stop_container(owner, made[0]) == []
    async with controlled(tmp_path) as one:
        decision = one.controller.state.ledger.entries["c"].decision
        assert decision.outcome is Outcome.PLACED
        claim = decision.placement.claim
        assert claim is not None
        assert (claim.amounts_bytes, claim.short_bytes) == ({"memory": 900 * MIB}, {})


async def test_who_may_use_all_nodes_after_a_resize_is_told_all_nodes(tmp_path: Path) -> None:
    """An empty cpuset would leave it confined to the nodes before, which have no room for it."""

    owner = pod("g", QosClass.GUARANTEED)
    a, b = (container(name, owner, memory_bytes=900 * MIB, milli_cpus=500) for name in "ab")
    async with controlled(tmp_path) as one:
        await one.controller.create_container(owner, a)
        await one.controller.create_container(owner, b)
        updates = await one.controller.update_container(owner, b, Resources(memory_limit_bytes=1900 * MIB))
        decision = one.controller.state.ledger.entries["b"].decision
        assert decision.outcome is Outcome.DEGRADED
        assert decision.placement.claim is not None
        assert list(updates) == [Update("b", cpuset_mems=decision.placement.claim.nodes)]
