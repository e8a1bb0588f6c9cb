"""The controller with a real store: what each event leaves in the ledger, on the disk and in the reply."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace

from bayplan.control.expectations import expectations
from bayplan.control.state import RETRY_S
from bayplan.engines.kubelet.engine import KubeletEngine
from bayplan.errors import PlacementError, StateError
from bayplan.kubelet.manager_options import ManagerOptions
from bayplan.model.basis import Basis
from bayplan.model.decision import MemoryPolicyMode, MemoryPolicySetting, Outcome, QosClass
from bayplan.model.policy import MemoryQos, PlacementPolicy, TopologyPolicy, TopologyScope
from bayplan.model.resources import Resources
from bayplan.model.workload import Adjustment, Container, ContainerState, Pod, Update
from bayplan.nri import Event
from bayplan.quantity import GIB, MIB
from bayplan.sets import CpuSet, NodeSet
from bayplan.state import Store
from support.clock import ManualClock
from support.controllers import MACHINE, begun, by_hook, controlled, full_disk
from support.machines import container, pod

GUARANTEED = pod("g", QosClass.GUARANTEED)
BURSTABLE = pod("b", QosClass.BURSTABLE)
BEST_EFFORT = pod("be", QosClass.BEST_EFFORT)


def recorded(directory: Path) -> set[str]:
    """The ids in the database, read past the store."""
    with closing(sqlite3.connect(directory / "state.db")) as connection, connection:
        return {row[0] for row in connection.execute("SELECT container_id FROM decisions WHERE current")}


async def test_a_decision_is_on_the_disk_before_the_reply(tmp_path: Path) -> None:
    async with controlled(tmp_path) as one:
        shared = container("s", BEST_EFFORT, resources=Resources())
        adjustment, updates = await begun(one.controller, BEST_EFFORT, shared)
        assert adjustment.cpuset_cpus == CpuSet(range(8))
        assert updates == []
        exclusive = container("x", GUARANTEED, memory_bytes=GIB // 2, milli_cpus=2000)
        adjustment, updates = await one.controller.create_container(GUARANTEED, exclusive)
        assert (adjustment.cpuset_cpus, adjustment.cpuset_mems) == (CpuSet([1, 2]), NodeSet([0]))
        assert adjustment.oom_score_adj == -997
        assert updates == []
        assert recorded(tmp_path) == {"s", "x"}

        assert await one.controller.stop_container(GUARANTEED, exclusive) == []
        assert recorded(tmp_path) == {"s"}
        assert await one.controller.stop_container(GUARANTEED, exclusive) == []


async def test_a_restart_remembers(tmp_path: Path) -> None:
    exclusive = container("x", GUARANTEED, memory_bytes=GIB // 2, milli_cpus=2000)

    async with controlled(tmp_path) as one:
        await one.controller.create_container(GUARANTEED, exclusive)
    async with controlled(tmp_path) as one:
        assert one.controller.state.ledger.exclusive_cpus == CpuSet([1, 2])
        spec = replace(exclusive.resources, cpuset_cpus=CpuSet([1, 2]), cpuset_mems=NodeSet([0]))
        listed = replace(exclusive, resources=spec, state=ContainerState.RUNNING)
        assert await one.controller.synchronize([GUARANTEED], [listed]) == []
        assert one.controller.state.ledger.adopted == {}
        assert await one.controller.synchronize([], []) == []
        assert recorded(tmp_path) == set()


@pytest.mark.parametrize("single_process", [False, True])
async def test_what_nri_is_told_of_oom_group_is_remembered_for_verification(
    tmp_path: Path, *, single_process: bool
) -> None:
    policy = PlacementPolicy(single_process_oom_kill=single_process)
    plain = container("c", BEST_EFFORT, resources=Resources())
    async with controlled(tmp_path, policy) as one:
        adjustment, _ = await one.controller.create_container(BEST_EFFORT, plain)
        assert ("memory.oom.group" in adjustment.unified) is not single_process
    async with controlled(tmp_path, policy) as one:
        ledger = one.controller.state.ledger
        (wanted,) = expectations(Basis(MACHINE, policy, ledger), {BEST_EFFORT.id: BEST_EFFORT}, [plain])
        assert wanted.update.unified == ({} if single_process else {"memory.oom.group": "1"})


async def test_a_refusal_says_why_and_leaves_nothing_but_history(tmp_path: Path) -> None:
    async with controlled(tmp_path, PlacementPolicy(topology=TopologyPolicy.SINGLE_NUMA_NODE)) as one:
        big = container("x", GUARANTEED, memory_bytes=2 * GIB, milli_cpus=500)
        with pytest.raises(PlacementError) as caught:
            await one.controller.create_container(GUARANTEED, big)
        assert str(caught.value).startswith(
            "TopologyAffinityError: default/g/x-name: asks for 2Gi on one node"
        )
        assert one.controller.state.ledger.entries == {}
    store = Store.open(tmp_path)
    assert store.entries() == []
    assert [item.decision.outcome for item in store.history()] == [Outcome.REFUSED]
    store.close()


async def test_a_refused_resize_leaves_everything_as_it_was(tmp_path: Path) -> None:
    async with controlled(tmp_path, PlacementPolicy(topology=TopologyPolicy.SINGLE_NUMA_NODE)) as one:
        small = container("x", GUARANTEED, memory_bytes=GIB // 2, milli_cpus=500)
        await one.controller.create_container(GUARANTEED, small)
        before = one.controller.state.ledger
        with pytest.raises(PlacementError):
            await one.controller.update_container(GUARANTEED, small, Resources(memory_limit_bytes=2 * GIB))
        assert one.controller.state.ledger is before
        await one.controller.update_container(GUARANTEED, small, Resources(memory_limit_bytes=GIB))
        assert one.controller.state.ledger.claimed_bytes == {NodeSet([0]): {"memory": GIB}}
        grown = replace(small, resources=replace(small.resources, memory_limit_bytes=GIB))
        assert await one.controller.update_container(GUARANTEED, grown, Resources()) == []


async def test_what_throttles_a_container_follows_its_limit(tmp_path: Path) -> None:
    policy = PlacementPolicy(memory_qos=MemoryQos(0.9), kubelet_minor=37)
    async with controlled(tmp_path, policy) as one:
        small = container("x", BURSTABLE, memory_bytes=200 * MIB, milli_cpus=500, oom_score_adj=950)
        adjustment, _ = await begun(one.controller, BURSTABLE, small)
        high = adjustment.unified["memory.high"]
        assert int(high) < 200 * MIB
        running = replace(small, resources=replace(small.resources, unified=adjustment.unified))
        # kubelet changes something else, and takes memory.high away with it.
        resets = Resources(unified={"memory.high": "max"})
        (own,) = await one.controller.update_container(BURSTABLE, running, resets)
        assert own == Update("x", unified={"memory.high": high})
        grown = Resources(memory_limit_bytes=400 * MIB)
        (own,) = await one.controller.update_container(BURSTABLE, running, grown)
        assert own.unified.keys() == {"memory.high"}
        assert 200 * MIB < int(own.unified["memory.high"]) < 400 * MIB


async def test_a_resize_that_needs_other_nodes_moves_the_container(tmp_path: Path) -> None:
    async with controlled(tmp_path) as one:
        small = container("x", GUARANTEED, memory_bytes=GIB // 2, milli_cpus=500)
        await one.controller.create_container(GUARANTEED, small)
        updates = await one.controller.update_container(
            GUARANTEED, small, Resources(memory_limit_bytes=GIB + MIB)
        )
        assert updates == [Update("x", cpuset_mems=NodeSet([0, 1]))]


async def test_a_resize_takes_cpus_along_with_memory_in_one_answer(tmp_path: Path) -> None:
    async with controlled(tmp_path, PlacementPolicy(topology=TopologyPolicy.SINGLE_NUMA_NODE)) as one:
        small = container("x", GUARANTEED, memory_bytes=100 * MIB, milli_cpus=2000)
        adjustment, _ = await one.controller.create_container(GUARANTEED, small)
        assert (adjustment.cpuset_cpus, adjustment.cpuset_mems) == (CpuSet([1, 2]), NodeSet([0]))
        full = container("full", GUARANTEED, memory_bytes=800 * MIB, milli_cpus=500)
        await begun(one.controller, GUARANTEED, full)
        updates = await one.controller.update_container(
            GUARANTEED, small, Resources(memory_limit_bytes=GIB // 2)
        )
        assert updates == [
            Update("full", cpuset_cpus=CpuSet([0, 1, 2, 3, 6, 7])),
            Update("x", cpuset_cpus=CpuSet([4, 5]), cpuset_mems=NodeSet([1])),
        ]
        wanted = {each.container.id: each.update for each in one.expectations()}
        assert wanted["x"].cpuset_cpus == CpuSet([4, 5])
    async with controlled(tmp_path) as one:
        placement = one.controller.state.ledger.entries["x"].decision.placement
        assert (placement.mems, placement.exclusive_cpus) == (NodeSet([1]), CpuSet([4, 5]))


async def test_an_answer_that_never_arrived_is_undone_and_the_container_found(tmp_path: Path) -> None:
    async with controlled(tmp_path) as one:
        exclusive = container("x", GUARANTEED, memory_bytes=GIB // 2, milli_cpus=2000)
        await one.controller.create_container(GUARANTEED, exclusive)
        one.controller.missed(Event.CREATE_CONTAINER, "x", "too late")
        assert one.controller.state.ledger.entries == {}
        await one.controller.state_changed(Event.START_CONTAINER, GUARANTEED, exclusive)
        assert one.controller.state.ledger.entries["x"].decision.outcome is Outcome.ADOPTED
        assert one.controller.state.ledger.adopted == {"x": "default/g/x-name"}
        assert recorded(tmp_path) == {"x"}
        assert one.controller.state.counters["missed"] == 1
        assert one.verifications == 2


async def test_a_stop_that_was_too_late_still_frees(tmp_path: Path) -> None:
    async with controlled(tmp_path) as one:
        exclusive = container("x", GUARANTEED, memory_bytes=GIB // 2, milli_cpus=2000)
        await one.controller.create_container(GUARANTEED, exclusive)
        one.controller.missed(Event.STOP_CONTAINER, "x", "too late")
        assert not one.controller.state.ledger.exclusive_cpus


async def test_what_cannot_be_recorded_is_not_promised(tmp_path: Path) -> None:
    async with controlled(tmp_path) as one:
        blocker = sqlite3.connect(tmp_path / "state.db")
        blocker.execute("PRAGMA query_only = 0")
        blocker.execute("DROP TABLE decisions")
        blocker.commit()
        blocker.close()
        with pytest.raises(StateError):
            await by_hook(one.controller, BEST_EFFORT, container("s", BEST_EFFORT))
        assert one.controller.state.ledger.entries == {}


async def test_what_started_while_nothing_could_be_recorded_is_not_forgotten(tmp_path: Path) -> None:
    clock = ManualClock()
    async with controlled(tmp_path, clock=clock) as one:
        started = {name: container(name, BEST_EFFORT) for name in ("runs", "ends", "goes")}
        with full_disk(one.controller.state.recorder):
            for each in started.values():
                await one.controller.state_changed(Event.START_CONTAINER, BEST_EFFORT, each)
            assert set(one.controller.state.ledger.entries) == set(started)
            await one.controller.stop_container(BEST_EFFORT, started["ends"])
            await one.controller.state_changed(Event.REMOVE_CONTAINER, BEST_EFFORT, started["goes"])
            await clock.until_armed()
        clock.advance(RETRY_S)
        await one.controller.state.recorder.ledger()
        assert recorded(tmp_path) == {"runs"} == set(one.controller.state.ledger.entries)


async def test_nothing_starts_undecided_where_the_operator_says_so(tmp_path: Path) -> None:
    policy = PlacementPolicy(refuse_undecided=True, undecided_namespaces=frozenset({"kube-system"}))
    async with controlled(tmp_path, policy) as one:
        late, fallback = container("late", BEST_EFFORT), one.controller.fallback_adjustment
        assert one.controller.refuses_undecided()
        with pytest.raises(PlacementError) as refused:
            fallback(BEST_EFFORT, late)
        assert refused.value.kind == "UnexpectedAdmissionError"
        assert fallback(replace(BEST_EFFORT, namespace="kube-system"), late).cpuset_cpus == CpuSet(range(8))
        opted_out = replace(BEST_EFFORT, annotations={"bayplan.dev/opt-out": "true"})
        assert fallback(opted_out, late) == Adjustment()
    policy = replace(policy, forbidden_annotations=frozenset({"opt-out"}))
    async with controlled(tmp_path / "forbidden", policy) as one:
        with pytest.raises(PlacementError):
            one.controller.fallback_adjustment(opted_out, late)


async def test_the_safe_answer_keeps_off_exclusive_cpus(tmp_path: Path) -> None:
    async with controlled(tmp_path) as one:
        exclusive = container("x", GUARANTEED, memory_bytes=GIB // 2, milli_cpus=2000)
        await one.controller.create_container(GUARANTEED, exclusive)
        late = container("late", BEST_EFFORT)
        adjustment = one.controller.fallback_adjustment(BEST_EFFORT, late)
        assert adjustment.cpuset_cpus == CpuSet.parse("0,3-7")
        pinned = replace(late, resources=Resources(cpuset_cpus=CpuSet([1])))
        assert one.controller.fallback_adjustment(BEST_EFFORT, pinned).cpuset_cpus is None


async def test_old_runtimes_get_the_score_written_before_the_start(tmp_path: Path) -> None:
    async with controlled(tmp_path, nri="0.6.1") as one:
        plain = container("c", BEST_EFFORT, oom_score_adj=0)
        adjustment, _ = await one.controller.create_container(BEST_EFFORT, plain)
        assert adjustment.oom_score_adj is None
        await one.controller.state_changed(Event.START_CONTAINER, BEST_EFFORT, plain)
        await one.controller.state_changed(Event.POST_START_CONTAINER, BEST_EFFORT, plain)
        assert one.oom_score_adj == [("c", 1000)]


async def test_removal_without_a_stop_releases_and_has_the_kernel_told(tmp_path: Path) -> None:
    async with controlled(tmp_path) as one:
        for name in ("a", "b"):
            exclusive = container(name, GUARANTEED, memory_bytes=MIB, milli_cpus=1000)
            await one.controller.create_container(GUARANTEED, exclusive)
        assert one.changes_of_all == 2
        await one.controller.state_changed(Event.REMOVE_CONTAINER, GUARANTEED, container("a", GUARANTEED))
        assert set(one.controller.state.ledger.entries) == {"b"}
        assert one.changes_of_all == 3
        await one.controller.state_changed(Event.REMOVE_POD_SANDBOX, Pod(GUARANTEED.id), None)
        assert one.controller.state.ledger.entries == {}
        assert one.changes_of_all == 4


async def test_a_pod_keeps_its_room_between_two_containers_until_it_ends(tmp_path: Path) -> None:
    """Also when the daemon starts again meanwhile, as long as the runtime lists the pod."""
    team = replace(GUARANTEED, resources=Resources(GIB // 2, cpu_quota_us=200_000, cpu_period_us=100_000))
    init, app, late = (container(name, team, memory_bytes=MIB, milli_cpus=1000) for name in ("i", "a", "l"))

    async with controlled(tmp_path) as one:
        one.controller.state.take_engine(KubeletEngine(ManagerOptions(scope=TopologyScope.POD)))
        await one.controller.create_container(team, init)
        await one.controller.stop_container(team, init)
        assert (one.controller.state.ledger.entries, recorded(tmp_path)) == ({}, {"i"})
    async with controlled(tmp_path) as one:
        one.controller.state.take_engine(KubeletEngine(ManagerOptions(scope=TopologyScope.POD)))
        assert list(one.controller.state.ledger.retained) == [team.id]
        await one.controller.synchronize([team], [])
        assert list(one.controller.state.ledger.retained) == [team.id]
        await one.controller.create_container(team, app)
        assert (one.controller.state.ledger.retained, recorded(tmp_path)) == ({}, {"a"})
        await one.controller.synchronize([team], [replace(app, state=ContainerState.STOPPED)])
        assert (one.controller.state.ledger.entries, recorded(tmp_path)) == ({}, {"a"})
        await one.controller.state_changed(Event.STOP_POD_SANDBOX, team, None)
        assert (one.controller.state.ledger.retained, recorded(tmp_path)) == ({}, set())
        await one.controller.create_container(team, late)
        await one.controller.stop_container(team, late)
        assert recorded(tmp_path) == set()
        await one.controller.state_changed(Event.REMOVE_POD_SANDBOX, team, None)
        await one.controller.create_container(team, init)
        await one.controller.stop_container(team, init)
        assert recorded(tmp_path) == {"i"}
        await one.controller.synchronize([], [])
        assert (one.controller.state.ledger.retained, recorded(tmp_path)) == ({}, set())


async def test_a_wrong_annotation_is_ignored_with_a_reason_or_refused(tmp_path: Path) -> None:
    wrong = pod("w", QosClass.BEST_EFFORT, {"bayplan.dev/memory-limit": "lots"})

    async with controlled(tmp_path) as one:
        await one.controller.create_container(wrong, container("c", wrong))
        reasons = one.controller.state.ledger.entries["c"].decision.reasons
        assert [reason.code for reason in reasons] == ["nothing-claimed", "wrong-annotation"]
    async with controlled(tmp_path, PlacementPolicy(refuse_wrong_annotations=True)) as one:
        with pytest.raises(PlacementError, match=r"bayplan.dev/memory-limit: found 'lots'"):
            await one.controller.create_container(wrong, container("d", wrong))


async def test_a_required_node_is_granted_beside_pinned_cpus_and_refused_beside_other_pinned_nodes(
    tmp_path: Path,
) -> None:
    owner = pod("g", QosClass.GUARANTEED, {"bayplan.dev/required-nodes": "1"})
    asked = container("c", owner, memory_bytes=GIB // 2, milli_cpus=2000)

    def pinned(**cpusets: object) -> Container:
        return replace(asked, resources=replace(asked.resources, **cpusets))  # type: ignore[arg-type]  # keywords of several types

    async with controlled(tmp_path) as one:
        adjustment, _ = await one.controller.create_container(owner, pinned(cpuset_cpus=CpuSet([1])))
        assert (adjustment.cpuset_cpus, adjustment.cpuset_mems) == (None, NodeSet([1]))
        assert "apart" in [
            reason.code for reason in one.controller.state.ledger.entries["c"].decision.reasons
        ]
        await one.controller.stop_container(owner, asked)
        with pytest.raises(PlacementError, match=r"cpuset.mems 0"):
            await one.controller.create_container(owner, pinned(cpuset_mems=NodeSet([0])))
        await one.controller.create_container(owner, asked)
        with pytest.raises(PlacementError, match=r"cpuset.mems 0"):
            await one.controller.update_container(owner, asked, Resources(cpuset_mems=NodeSet([0])))
        assert one.controller.state.ledger.entries["c"].decision.placement.mems == NodeSet([1])


async def test_a_refused_annotation_is_in_the_history(tmp_path: Path) -> None:
    wrong = pod("w", QosClass.BEST_EFFORT, {"bayplan.dev/required-nodes": "7"})

    async with controlled(tmp_path, PlacementPolicy(refuse_wrong_annotations=True)) as one:
        with pytest.raises(PlacementError) as raised:
            await one.controller.create_container(wrong, container("d", wrong))
        assert one.controller.state.ledger.entries == {}
    store = Store.open(tmp_path)
    (item,) = store.history(subject="d")
    store.close()
    assert item.decision.outcome is Outcome.REFUSED
    assert str(raised.value).endswith(item.decision.explanation())


async def test_a_container_that_opted_out_is_recorded_and_left_alone(tmp_path: Path) -> None:
    out = pod("o", QosClass.GUARANTEED, {"bayplan.dev/opt-out": "true"})

    async with controlled(tmp_path, nri="0.6.1") as one:
        left = container("c", out, memory_bytes=GIB // 2, milli_cpus=1000)
        assert await one.controller.create_container(out, left) == (Adjustment(), [])
        exclusive = container("x", GUARANTEED, memory_bytes=GIB // 2, milli_cpus=2000)
        _, updates = await one.controller.create_container(GUARANTEED, exclusive)
        assert updates == []
        await one.controller.state_changed(Event.START_CONTAINER, out, left)
        assert one.oom_score_adj == []
        assert one.controller.fallback_adjustment(out, left) == Adjustment()
        decision = one.controller.state.ledger.entries["c"].decision
        assert decision.request.opted_out
        assert [reason.code for reason in decision.reasons] == ["opted-out"]
    assert recorded(tmp_path) == {"c", "x"}


@pytest.mark.parametrize(("nri", "outcome"), [("0.12.0", Outcome.PLACED), ("0.11.0", Outcome.DEGRADED)])
async def test_a_memory_policy_is_set_where_the_runtime_has_it(
    tmp_path: Path, nri: str, outcome: Outcome
) -> None:
    wishing = pod("m", QosClass.GUARANTEED, {"bayplan.dev/memory-policy": "interleave"})

    async with controlled(tmp_path, nri=nri) as one:
        spread = container("c", wishing, memory_bytes=GIB + MIB, milli_cpus=1500)
        adjustment, _ = await one.controller.create_container(wishing, spread)
        wanted = MemoryPolicySetting(MemoryPolicyMode.INTERLEAVE, NodeSet([0, 1]))
        assert adjustment.memory_policy == (wanted if outcome is Outcome.PLACED else None)
        assert one.controller.state.ledger.entries["c"].decision.outcome is outcome


async def test_found_containers_stay_listed_until_they_are_gone(tmp_path: Path) -> None:
    async with controlled(tmp_path) as one:
        stranger = replace(container("n", BEST_EFFORT), state=ContainerState.RUNNING)
        updates = await one.controller.synchronize([BEST_EFFORT], [stranger])
        assert updates == [Update("n", cpuset_cpus=CpuSet(range(8)))]
        assert one.controller.state.ledger.adopted == {"n": "default/be/n-name"}
        told = replace(stranger, resources=Resources(cpuset_cpus=CpuSet(range(8))))
        assert await one.controller.synchronize([BEST_EFFORT], [told]) == []
        assert one.controller.state.ledger.adopted == {"n": "default/be/n-name"}
        await one.controller.stop_container(BEST_EFFORT, told)
        assert one.controller.state.ledger.adopted == {}
        assert one.controller.state.known.pods == {}


async def test_a_daemon_that_starts_again_still_lists_whom_nobody_decided_about(tmp_path: Path) -> None:
    stranger = replace(container("n", BEST_EFFORT), state=ContainerState.RUNNING)
    async with controlled(tmp_path) as one:
        await one.controller.synchronize([BEST_EFFORT], [stranger])
    async with controlled(tmp_path) as one:
        assert one.controller.state.ledger.adopted == {"n": "default/be/n-name"}
        await one.controller.synchronize([BEST_EFFORT], [stranger])
        assert one.controller.state.ledger.adopted == {"n": "default/be/n-name"}


async def test_an_update_of_an_unknown_container_adopts_it(tmp_path: Path) -> None:
    async with controlled(tmp_path) as one:
        stranger = container("n", BEST_EFFORT, resources=Resources())
        updates = await one.controller.update_container(BEST_EFFORT, stranger, Resources(cpu_shares=512))
        assert updates == [Update("n", cpuset_cpus=CpuSet(range(8)))]
        assert one.controller.state.ledger.adopted == {"n": "default/be/n-name"}


async def test_a_lost_connection_is_remembered_until_the_next_one(tmp_path: Path) -> None:
    async with controlled(tmp_path) as one:
        one.controller.disconnected("the runtime stopped")
        assert one.controller.state.runtime is None
        plain = container("c", BEST_EFFORT, oom_score_adj=0)
        adjustment, _ = await one.controller.create_container(BEST_EFFORT, plain)
        assert adjustment.oom_score_adj is None
        await one.controller.state_changed(Event.STOP_POD_SANDBOX, BEST_EFFORT, None)
        assert set(one.controller.state.ledger.entries) == {"c"}
