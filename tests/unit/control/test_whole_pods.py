"""Pods with resources as a whole through the daemon: what their containers get, and what is left of a pod."""

from pathlib import Path

from msgspec.structs import replace

from bayplan.control.controller import Controller
from bayplan.engines.kubelet.engine import KubeletEngine
from bayplan.kubelet.manager_options import ManagerOptions
from bayplan.model.decision import QosClass
from bayplan.model.policy import PlacementPolicy, TopologyPolicy
from bayplan.model.workload import Container, ContainerState, Pod, Resources
from bayplan.nri import Event
from bayplan.quantity import GIB
from bayplan.sets import CpuSet, NodeSet
from support.controllers import begun, controlled, has_due_updates
from support.machines import container, machine, pod

HARDWARE = machine(2, cpus_per_node=8, memory_bytes=16 * GIB)
RESTRICTED = PlacementPolicy(topology=TopologyPolicy.RESTRICTED)
OTHER = pod("other", QosClass.GUARANTEED)


def spec(memory_bytes: int, milli: int) -> Resources:
    return Resources(memory_bytes, milli * 1024 // 1000, milli * 100, 100_000)


WHOLE = replace(pod("whole", QosClass.GUARANTEED), resources=spec(8 * GIB, 4000))


def of_whole(name: str, memory_bytes: int = 8 * GIB, milli: int = 4000) -> Container:
    return container(name, WHOLE, resources=spec(memory_bytes, milli))


def claimed_bytes(controller: Controller) -> int:
    return sum(row.get("memory", 0) for row in controller.state.ledger.claimed_bytes.values())


def cpus(controller: Controller, container_id: str) -> str:
    return str(controller.state.ledger.entries[container_id].decision.placement.exclusive_cpus)


async def test_five_containers_have_what_the_pod_asks_for_once(tmp_path: Path) -> None:
    async with controlled(tmp_path, RESTRICTED, on=HARDWARE) as one:
        answers = [(await begun(one.controller, WHOLE, of_whole(name)))[0] for name in "abcde"]
        assert {(str(each.cpuset_cpus), str(each.cpuset_mems)) for each in answers} == {("1-4", "0")}
        assert claimed_bytes(one.controller) == 8 * GIB
        assert one.controller.state.ledger.exclusive_cpus == CpuSet(range(1, 5))
        neighbour = container("n", OTHER, memory_bytes=4 * GIB, milli_cpus=2000)
        adjustment, _ = await begun(one.controller, OTHER, neighbour)
        assert str(adjustment.cpuset_cpus) == "5-6"


async def test_a_container_with_a_part_has_cpus_of_its_own_which_the_others_leave(tmp_path: Path) -> None:
    async with controlled(tmp_path, on=HARDWARE) as one:
        await begun(one.controller, WHOLE, of_whole("a"))
        await begun(one.controller, WHOLE, of_whole("b"))
        part = of_whole("part", 2 * GIB, 1000)
        adjustment, _ = await begun(one.controller, WHOLE, part)
        own = adjustment.cpuset_cpus
        assert own is not None
        assert (len(own), claimed_bytes(one.controller)) == (1, 8 * GIB)
        assert CpuSet.parse(cpus(one.controller, "a")) == CpuSet(range(1, 5)) - own
        assert has_due_updates(one.controller)
        updates = await one.controller.stop_container(OTHER, container("nobody", OTHER))
        assert {each.container_id: each.cpuset_cpus for each in updates} == {}
        expected = {each.container.id: each.cpus for each in one.expectations()}
        assert expected == {"a": CpuSet(range(1, 5)) - own, "b": CpuSet(range(1, 5)) - own, "part": own}
        await one.controller.stop_container(WHOLE, part)
        assert (cpus(one.controller, "a"), cpus(one.controller, "b")) == ("1-4", "1-4")


async def test_the_pod_keeps_it_until_its_last_container_or_the_pod_is_gone(tmp_path: Path) -> None:
    containers = [of_whole(name) for name in "ab"]
    async with controlled(tmp_path, on=HARDWARE) as one:
        for each in containers:
            await begun(one.controller, WHOLE, each)
        for each in containers:
            await one.controller.stop_container(WHOLE, each)
            assert claimed_bytes(one.controller) == 8 * GIB
    async with controlled(tmp_path, on=HARDWARE) as one:
        await one.controller.synchronize([WHOLE], [])
        assert (claimed_bytes(one.controller), str(one.controller.state.ledger.exclusive_cpus)) == (
            8 * GIB,
            "1-4",
        )
        neighbour = container("n", OTHER, memory_bytes=GIB, milli_cpus=3000)
        adjustment, _ = await begun(one.controller, OTHER, neighbour)
        assert str(adjustment.cpuset_cpus) == "5-7"
        adjustment, _ = await begun(one.controller, WHOLE, of_whole("again"))
        assert (str(adjustment.cpuset_cpus), str(adjustment.cpuset_mems)) == ("1-4", "0")
        await one.controller.stop_container(WHOLE, of_whole("again"))
        await one.controller.state_changed(Event.STOP_POD_SANDBOX, WHOLE, None)
        assert claimed_bytes(one.controller) == GIB


async def test_a_resize_of_the_pod_is_one_of_its_promise(tmp_path: Path) -> None:
    async with controlled(tmp_path, RESTRICTED, on=HARDWARE) as one:
        for name in "ab":
            await begun(one.controller, WHOLE, of_whole(name))
        for name in "ab":
            await one.controller.update_container(WHOLE, of_whole(name), spec(10 * GIB, 6000))
        assert claimed_bytes(one.controller) == 10 * GIB
        assert (cpus(one.controller, "a"), cpus(one.controller, "b")) == ("1-6", "1-6")
        for name in "ab":
            grown = container(name, WHOLE, resources=spec(10 * GIB, 6000))
            await one.controller.update_container(WHOLE, grown, spec(4 * GIB, 2000))
        assert claimed_bytes(one.controller) == 4 * GIB
        assert (len(one.controller.state.ledger.exclusive_cpus), cpus(one.controller, "a")) == (
            2,
            cpus(one.controller, "b"),
        )


async def test_a_lost_database_is_made_again_from_any_of_them(tmp_path: Path) -> None:
    first, lost = tmp_path / "first", tmp_path / "lost"
    first.mkdir()
    lost.mkdir()
    listed = []
    async with controlled(first, on=HARDWARE) as one:
        for name in "ab":
            adjustment, _ = await begun(one.controller, WHOLE, of_whole(name))
            resources = replace(
                of_whole(name).resources,
                cpuset_cpus=adjustment.cpuset_cpus,
                cpuset_mems=adjustment.cpuset_mems,
            )
            listed.append(
                replace(
                    of_whole(name),
                    resources=resources,
                    annotations=adjustment.annotations,
                    state=ContainerState.RUNNING,
                )
            )
    for directory, there in ((lost, listed), (tmp_path / "alone", listed[1:])):
        directory.mkdir(exist_ok=True)
        async with controlled(directory, on=HARDWARE) as one:
            assert await one.controller.synchronize([WHOLE], there) == []
            assert (claimed_bytes(one.controller), str(one.controller.state.ledger.exclusive_cpus)) == (
                8 * GIB,
                "1-4",
            )
            assert {cpus(one.controller, each.id) for each in there} == {"1-4"}
            assert {
                each.decision.placement.mems for each in one.controller.state.ledger.entries.values()
            } == {NodeSet([0])}


async def test_a_restart_of_the_daemon_forgets_nothing(tmp_path: Path) -> None:
    async with controlled(tmp_path, on=HARDWARE) as one:
        for name in "abc":
            await begun(one.controller, WHOLE, of_whole(name))
        before = one.controller.state.ledger
    async with controlled(tmp_path, on=HARDWARE) as one:
        after = one.controller.state.ledger
        assert dict(after.entries) == dict(before.entries)
        assert (after.claimed_bytes, after.exclusive_cpus) == (before.claimed_bytes, before.exclusive_cpus)


async def test_kubelets_managers_leave_such_a_pod_alone_as_soon_as_it_is_known(tmp_path: Path) -> None:
    policy = replace(RESTRICTED, reserved_cpus=CpuSet([0]), reserved_bytes={0: {"memory": GIB}})
    engine = KubeletEngine(ManagerOptions())
    async with controlled(tmp_path, policy, on=HARDWARE, engine=engine) as one:
        answers = [(await begun(one.controller, WHOLE, of_whole(name)))[0] for name in "abcde"]
        assert [str(each.cpuset_cpus) for each in answers[1:]] == ["0,5-15"] * 4
        assert sum(row["memory"] for row in one.controller.state.ledger.booked_bytes.values()) == 8 * GIB


def ordinary(name: str, owner: Pod) -> Container:
    return container(name, owner, memory_bytes=2 * GIB, milli_cpus=2000)


async def test_an_ordinary_pod_with_the_same_sums_is_two_promises(tmp_path: Path) -> None:
    plain = replace(pod("plain", QosClass.GUARANTEED), resources=spec(4 * GIB, 4000))
    async with controlled(tmp_path, on=HARDWARE) as one:
        for name in "ab":
            await begun(one.controller, plain, ordinary(name, plain))
        assert (cpus(one.controller, "a"), cpus(one.controller, "b")) == ("1-2", "3-4")
        assert claimed_bytes(one.controller) == 4 * GIB
