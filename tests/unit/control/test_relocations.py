"""Containers that go to other nodes with their CPUs so that another fits: in the reply, on the disk, after a
restart, without the disk; when they may not; and their pages after it.

Two nodes of 1 GiB and four CPUs. "a" and "b" are on node 0, "c" is on node 1; for "new" there is room on node
0 once "b" is on node 1.
"""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import MappingProxyType

import pytest
from msgspec.structs import replace

from bayplan.admin.questions import rehearsing
from bayplan.admin.snapshot_source import snapshot_of
from bayplan.control.container_files import PlacementFileWriter
from bayplan.control.controller import Controller
from bayplan.control.promised_nodes import Bounds, PromisedNodes
from bayplan.engines.exact.engine import ExactEngine
from bayplan.errors import PlacementError, StateError
from bayplan.host.placement_files import FILE, PlacementDirectory
from bayplan.model.decision import Placement, QosClass
from bayplan.model.machine import MEMORY
from bayplan.model.policy import Defragment, PlacementPolicy, TopologyPolicy
from bayplan.model.resources import Resources
from bayplan.model.workload import Container, ContainerState, Pod, Update
from bayplan.nri import Event
from bayplan.placement.changed_promises import after_removal
from bayplan.placement.shortfall import overclaims
from bayplan.quantity import GIB, MIB
from bayplan.sets import CpuSet, NodeSet
from support.controllers import Controlled, begun, controlled, full_disk, here
from support.machines import container, pod
from support.oci_node import OciNode

MOVING = PlacementPolicy(topology=TopologyPolicy.SINGLE_NUMA_NODE, defragment=Defragment.MOVE)
PATH = "/kubepods/podb/b"
SIZES = {"a": (300, 0), "b": (400, 1), "c": (400, 0), "new": (700, 2)}
NONE: Mapping[str, str] = MappingProxyType({})
PODS = {name: pod(name, QosClass.GUARANTEED) for name in SIZES}


def sized(name: str) -> Container:
    memory, cpus = SIZES[name]
    milli = cpus * 1000 or 500
    one = container(name, PODS[name], memory_bytes=memory * MIB, milli_cpus=milli)
    return replace(one, cgroups_path=f"/kubepods/pod{name}/{name}")


def placement(controller: Controller, name: str) -> Placement:
    return controller.state.ledger.entries[name].decision.placement


@asynccontextmanager
async def in_pieces(directory: Path, policy: PlacementPolicy = MOVING) -> AsyncIterator[Controlled]:
    async with controlled(directory, policy) as one:
        await in_order(one.controller)
        where = {name: str(placement(one.controller, name).mems) for name in "abc"}
        assert where == {"a": "0", "b": "0", "c": "1"}
        yield one


async def in_order(
    controller: Controller, *, started: bool = True, stay: bool = False, more: Mapping[str, str] = NONE
) -> None:
    """Create "a", "b" and "c", which may not move if they *stay*; "b" is *started*."""
    annotations = {**({"bayplan.dev/may-move": "false"} if stay else {}), **more}
    for name in "abc":
        owner = replace(PODS[name], annotations=annotations)
        await controller.create_container(owner, sized(name))
        if started or name != "b":
            await controller.state_changed(Event.POST_START_CONTAINER, owner, sized(name))


async def all_gone(controller: Controller) -> None:
    for name in list(controller.state.ledger.entries):
        await controller.stop_container(PODS[name], sized(name))


def listed(one: Container, cpus: str, mems: str) -> tuple[Pod, Container]:
    spec = replace(one.resources, cpuset_cpus=CpuSet.parse(cpus), cpuset_mems=NodeSet.parse(mems))
    return PODS[one.id], replace(one, state=ContainerState.RUNNING, resources=spec)


async def test_cpus_and_nodes_change_in_one_step_and_in_the_reply(tmp_path: Path) -> None:
    async with in_pieces(tmp_path) as one:
        controller, before = one.controller, placement(one.controller, "b")
        assert str(before.exclusive_cpus) == "1"
        adjustment, updates = await controller.create_container(PODS["new"], sized("new"))
        assert adjustment.cpuset_mems == NodeSet([0])
        assert adjustment.cpuset_cpus is not None
        assert adjustment.cpuset_cpus <= CpuSet([1, 2, 3])
        moved = placement(controller, "b")
        assert moved.claim is not None
        assert (str(moved.claim.nodes), str(moved.mems), str(moved.leaving)) == ("1", "0-1", "0")
        assert moved.exclusive_cpus <= CpuSet([4, 5, 6, 7])
        assert list(updates) == [Update("b", moved.exclusive_cpus, NodeSet([0, 1]))]
        assert controller.state.counters["relocated"] == 1
        assert one.room_due.is_set()
        codes = [reason.code for reason in controller.state.ledger.entries["b"].decision.reasons]
        assert codes == ["best-set", "relocated"]
        # The kernel's cpusets are compared at once.
        assert one.changes_of_all
    async with controlled(tmp_path, MOVING) as one:
        assert placement(one.controller, "b") == moved


async def test_who_was_moved_is_not_moved_again(tmp_path: Path) -> None:
    async with in_pieces(tmp_path) as one:
        await begun(one.controller, PODS["new"], sized("new"))
        await one.controller.stop_container(PODS["new"], sized("new"))
        await one.controller.stop_container(PODS["c"], sized("c"))
        again = replace(sized("new"), id="again", resources=sized("new").resources)
        await one.controller.create_container(PODS["new"], again)
        decision = one.controller.state.ledger.entries["again"].decision
        assert decision.moves == ()


async def test_a_reply_that_the_daemon_did_not_live_to_give_is_made_up_for(tmp_path: Path) -> None:
    """The record has the move, and the runtime what was before it."""
    async with in_pieces(tmp_path) as one:
        shared = str(one.controller.state.basis.shared_cpus)
        await one.controller.create_container(PODS["new"], sized("new"))
        cpus = placement(one.controller, "b").exclusive_cpus
    async with controlled(tmp_path, MOVING) as one:
        seen = [
            listed(sized("a"), shared, "0"),
            listed(sized("b"), "1", "0"),
            listed(sized("c"), shared, "1"),
        ]
        updates = await one.controller.synchronize([pod for pod, _ in seen], [found for _, found in seen])
        by_id = {update.container_id: update for update in updates}
        assert by_id["b"] == Update("b", cpus, NodeSet([0, 1]))
        assert placement(one.controller, "b").exclusive_cpus == cpus
        assert one.controller.state.ledger.entries["b"].decision.request.pinned_mems is None


async def test_a_move_that_is_not_on_the_disk_does_not_count(tmp_path: Path) -> None:
    async with in_pieces(tmp_path) as one:
        before = placement(one.controller, "b")
        with full_disk(one.controller.state.recorder), pytest.raises(StateError):
            await one.controller.create_container(PODS["new"], sized("new"))
        assert placement(one.controller, "b") == before
        assert one.controller.state.counters["relocated"] == 0


async def test_without_the_record_it_is_where_its_cpusets_are(tmp_path: Path) -> None:
    """An update carries no annotations: that of "b" still says node 0."""
    async with in_pieces(tmp_path) as one:
        given = {}
        for name in "abc":
            await one.controller.stop_container(PODS[name], sized(name))
            given[name], _ = await begun(one.controller, PODS[name], sized(name))
        given["new"], _ = await begun(one.controller, PODS["new"], sized("new"))
        cpus = placement(one.controller, "b").exclusive_cpus
        own = str(placement(one.controller, "new").exclusive_cpus)
        shared = str(one.controller.state.basis.shared_cpus)
    async with controlled(tmp_path / "empty", MOVING) as one:
        seen = []
        for name, has, mems in (
            ("a", shared, "0"),
            ("b", str(cpus), "1"),
            ("c", shared, "1"),
            ("new", own, "0"),
        ):
            pod_of, found = listed(sized(name), has, mems)
            seen.append((pod_of, replace(found, annotations=given[name].annotations)))
        await one.controller.synchronize([pod for pod, _ in seen], [found for _, found in seen])
        moved = placement(one.controller, "b")
        assert moved.claim is not None
        assert (str(moved.mems), str(moved.claim.nodes), moved.exclusive_cpus) == ("1", "1", cpus)


@pytest.mark.parametrize("why", ["limit", "starting", "resized", "large", "planning", "stays"])
async def test_it_is_only_said_where_it_may_not_be_done(tmp_path: Path, why: str) -> None:
    policy = replace(MOVING, defragment=Defragment.PLAN) if why == "planning" else MOVING
    async with in_pieces(tmp_path, policy) as one:
        controller = one.controller
        if why == "limit":
            one.relocations_per_hour = 0
        elif why == "large":
            one.accept(policy=replace(MOVING, return_most_bytes=399 * MIB))
        elif why == "starting":
            await all_gone(controller)
            await in_order(controller, started=False)
        elif why == "resized":
            await controller.update_container(PODS["b"], sized("b"), sized("b").resources)
        elif why == "stays":
            await all_gone(controller)
            await in_order(controller, stay=True)
        before, placements = controller.state.ledger, controller.placements
        what_if = rehearsing(ExactEngine, placements.policy_ability, placements.moves_obstacle)
        sizes = {"memory": "700Mi", "cpus": "2", "name": "new"}
        said = await what_if(snapshot_of(controller.state, 0, ()), {"sizes": sizes})
        with pytest.raises(PlacementError):
            await controller.create_container(PODS["new"], sized("new"))
        assert controller.state.ledger is before
        assert controller.state.counters["relocated"] == 0
        ((_, refused),) = await controller.state.recorder.history(1, "new")
        waits = {reason.code for reason in refused.reasons} & {"moves-wait"}
        assert bool(waits) == (why in {"limit", "starting", "resized", "large"})
        assert (refused.plan is None) == (why == "stays")
        (foretold,) = said["pods"][0]["containers"]
        assert foretold["refusal"].endswith(refused.explanation())


async def test_the_others_leave_its_new_cpus_before_it_is_told_of_them(tmp_path: Path) -> None:
    """Also where the daemon dies with its reply: the order of all writes is that."""
    async with in_pieces(tmp_path) as one:
        one.compared.clear()
        await one.controller.create_container(PODS["new"], sized("new"))
        assert [sorted(ids) for ids in one.compared if ids is not None] == [["a", "c"]]
        after = placement(one.controller, "b").exclusive_cpus
        expected = {each.container.id: each for each in one.expectations()}
        assert expected["b"].apart
        assert not expected["a"].apart
        assert after.isdisjoint(expected["a"].cpus or CpuSet())


async def test_it_is_told_where_it_goes_and_once_it_is_there(tmp_path: Path) -> None:
    """By its placement file: new CPUs and the node of its promise at once, and the one that it leaves."""
    async with controlled(tmp_path / "state", MOVING) as one:
        state = one.controller.state
        files = PlacementFileWriter(
            PlacementDirectory(tmp_path / "files"),
            here,
            lambda: state.basis,
            lambda _: False,
            lambda: True,
            state.counters,
            lambda: 0.0,
        )

        async def told() -> tuple[str, str, str]:
            await files.update()
            written = json.loads((tmp_path / "files/b" / FILE).read_text())
            (promise,) = written["promises"]
            return written["cpus"]["exclusive"], written["mems"], promise["nodes"]

        one.prepare_file = files.prepare
        await in_order(one.controller, more={"bayplan.dev/placement-file": "true"})
        assert await told() == ("1", "0", "0")
        await begun(one.controller, PODS["new"], sized("new"))
        cpus = str(placement(one.controller, "b").exclusive_cpus)
        assert cpus != "1"
        assert await told() == (cpus, "0-1", "1")
        left, _, _ = after_removal(state.basis, ExactEngine())
        one.accept(ledger=left)
        async with state.transaction():
            pass
        assert await told() == (cpus, "1", "1")


async def test_so_many_in_an_hour(tmp_path: Path) -> None:
    async with in_pieces(tmp_path) as one:
        one.relocations_per_hour = 1
        await begun(one.controller, PODS["new"], sized("new"))
        assert one.controller.state.counters["relocated"] == 1
        await all_gone(one.controller)
        await in_order(one.controller)
        with pytest.raises(PlacementError):
            await one.controller.create_container(PODS["new"], sized("new"))


async def test_an_hour_does_not_end_with_the_daemon(tmp_path: Path) -> None:
    async with in_pieces(tmp_path) as one:
        await begun(one.controller, PODS["new"], sized("new"))
        assert one.controller.state.counters["relocated"] == 1
        await all_gone(one.controller)
    async with controlled(tmp_path, MOVING) as one:
        one.relocations_per_hour = 1
        await in_order(one.controller)
        with pytest.raises(PlacementError):
            await one.controller.create_container(PODS["new"], sized("new"))
        one.relocations_per_hour = 2
        await one.controller.create_container(PODS["new"], sized("new"))


async def test_nobody_moves_with_more_than_may_be_moved_and_the_refusal_says_what_it_would_take(
    tmp_path: Path,
) -> None:
    async with in_pieces(tmp_path, replace(MOVING, return_most_bytes=399 * MIB)) as one:
        with pytest.raises(PlacementError):
            await one.controller.create_container(PODS["new"], sized("new"))
        ((_, refused),) = await one.controller.state.recorder.history(1, "new")
        assert refused.plan is not None
        assert [move.container_id for move in refused.plan.relocations] == ["b"]
        one.accept(policy=replace(MOVING, return_most_bytes=400 * MIB))
        await one.controller.create_container(PODS["new"], sized("new"))


async def test_its_pages_follow_and_then_it_has_its_new_nodes_alone(tmp_path: Path) -> None:
    node = OciNode(tmp_path / "root")
    directory = node.make_cgroup(PATH)
    (directory / "cpuset.mems").write_text("0-1\n")
    async with in_pieces(tmp_path / "state") as one:
        controller = one.controller
        promised = PromisedNodes(controller.state, node.hierarchy, here, one.verify_soon, Bounds(30.0, GIB))
        await begun(controller, PODS["new"], sized("new"))
        (move,) = promised.candidates()
        assert (move.container_id, str(move.before), str(move.after)) == ("b", "0-1", "1")
        # Pages that cannot be moved stay, and so does the container.
        assert not await promised.end(move, 100 * MIB, "200Mi on node 0 could not be moved")
        assert (str(placement(controller, "b").mems), controller.state.counters["returns_failed"]) == (
            "0-1",
            1,
        )
        assert promised.candidates() == ()
        await promised.use_freed_memory()
        assert await promised.end(move, 200 * MIB)
        after = placement(controller, "b")
        assert (str(after.mems), after.leaving) == ("1", None)
        assert node.shown(PATH, "cpuset.mems")[0] == "1"
        # The runtime hears of it with the next reply.
        other = pod("other", QosClass.BEST_EFFORT)
        _, updates = await controller.create_container(other, container("other", other))
        assert [(one.container_id, one.cpuset_mems) for one in updates] == [("b", NodeSet([1]))]


@pytest.mark.parametrize("what", ["exits", "pins itself", "grows", "shrinks", "newcomer exits"])
async def test_who_changes_while_its_pages_are_to_follow_takes_nothing_from_anybody(
    tmp_path: Path, what: str
) -> None:
    async with in_pieces(tmp_path) as one:
        controller = one.controller
        await begun(controller, PODS["new"], sized("new"))
        new, moved = placement(controller, "new"), placement(controller, "b")
        if what == "exits":
            await controller.stop_container(PODS["b"], sized("b"))
        elif what == "newcomer exits":
            await controller.stop_container(PODS["new"], sized("new"))
        elif what == "pins itself":
            pins = Resources(cpuset_cpus=CpuSet([2]), cpuset_mems=NodeSet([0]))
            await controller.update_container(PODS["b"], sized("b"), pins)
        else:
            limit = (500 if what == "grows" else 200) * MIB
            await controller.update_container(PODS["b"], sized("b"), Resources(memory_limit_bytes=limit))
            after = placement(controller, "b")
            assert after.claimed.amounts_bytes[MEMORY] == limit
            assert (after.claimed.nodes, after.exclusive_cpus) == (NodeSet([1]), moved.exclusive_cpus)
        faults = await controller.state.check_ledger()
        # Who pins itself where there is no room is there, and that is said.
        assert [fault.is_ours for fault in faults] == ([False] if what == "pins itself" else [])
        entries = controller.state.ledger.entries
        if what != "newcomer exits":
            assert placement(controller, "new") == new
        assert bool(tuple(overclaims(controller.state.basis))) == (what == "pins itself")
        basis = controller.state.basis
        back = {move.container_id for move in basis.engine.moves_back(basis)}
        # Somebody else's choice is left alone, and who is gone has no pages to follow.
        assert back == (set() if what in ("exits", "pins itself") else {"b"})
        assert ("b" in entries) == (what != "exits")


async def test_a_runtime_that_has_the_nodes_of_before_both_steps_gets_the_new_ones(tmp_path: Path) -> None:
    """A reply of between was lost: neither the nodes of before nor both are somebody else's choice."""
    for mems in ("0", "0-1"):
        async with in_pieces(tmp_path / mems) as one:
            controller = one.controller
            await begun(controller, PODS["new"], sized("new"))
            shared = str(controller.state.basis.shared_cpus)
            moved = placement(controller, "b")
            own = str(placement(controller, "new").exclusive_cpus)
            basis = controller.state.basis
            left = basis.ledger.moved(basis.engine.moves_back(basis))
            one.accept(ledger=left)
            await controller.state_changed(Event.POST_START_CONTAINER, PODS["a"], sized("a"))
            assert str(placement(controller, "b").mems) == "1"
            seen = [
                listed(sized("a"), shared, "0"),
                listed(sized("b"), str(moved.exclusive_cpus), mems),
                listed(sized("c"), shared, "1"),
                listed(sized("new"), own, "0"),
            ]
            updates = await controller.synchronize([pod for pod, _ in seen], [found for _, found in seen])
            assert {one.container_id: one.cpuset_mems for one in updates}.get("b") == NodeSet([1])
            assert controller.state.ledger.entries["b"].decision.request.pinned_mems is None
