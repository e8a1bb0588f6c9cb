"""A session over a real socket with every kind of runtime: what users see happen to their containers."""

import asyncio

import pytest

from bayplan._proto.nri import api_pb2 as pb
from bayplan.errors import PlacementError
from bayplan.model.workload import Adjustment, Update
from bayplan.nri import Event, Identity, Session, UnixSocket
from bayplan.sets import CpuSet, NodeSet
from support.flavors import (
    ALL,
    CONTAINERD_1_7,
    CONTAINERD_1_7_20,
    CONTAINERD_2_2,
    CONTAINERD_2_3,
)
from support.plugin import UNHURRIED, RecordingHandler, serving
from support.plugin_calls import OperationError
from support.runtime import FakeRuntime
from support.workloads import GUARANTEED, make_container, make_pod

POD = make_pod("web", qos=GUARANTEED)


def container(name: str, **fields) -> pb.Container:
    return make_container(POD, name, **fields)


@pytest.mark.parametrize("flavor", ALL, ids=str)
async def test_a_containers_life(flavor, tmp_path):
    path = tmp_path / "nri.sock"
    runtime, handler = FakeRuntime(flavor), RecordingHandler()
    await runtime.listen(path)

    async def pin(pod, container):
        others = [Update("web-default-first", cpuset_cpus=CpuSet([0]))] if container.name == "main" else []
        return Adjustment(cpuset_mems=NodeSet([1]), oom_score_adj=-997), others

    handler.on_create = pin
    async with serving(handler, UnixSocket(str(path))):
        await runtime.synchronized()
        await runtime.run_pod(POD)
        main = container("main", memory_limit_bytes=1 << 30, cpu_quota_us=200_000)
        await runtime.create_container(POD, main)
        await runtime.start_container(main.id)
        await runtime.update_container(main.id, pb.LinuxResources(cpu={"shares": {"value": 512}}))
        spec = runtime.containers[main.id]
        await runtime.stop_pod(POD.id)
        await runtime.remove_pod(POD.id)
    assert spec.linux.resources.cpu.mems == "1"
    assert spec.linux.resources.cpu.shares.value == 512
    assert spec.linux.HasField("oom_score_adj") == flavor.adjusts_oom_score
    assert handler.heard == [
        f"connected to {flavor.name}",
        "synchronize 0 0",
        "RUN_POD_SANDBOX web",
        "create main",
        "POST_CREATE_CONTAINER main",
        "START_CONTAINER main",
        "POST_START_CONTAINER main",
        "update main",
        "POST_UPDATE_CONTAINER main",
        "stop main",
        "STOP_POD_SANDBOX web",
        "REMOVE_CONTAINER main",
        "REMOVE_POD_SANDBOX web",
        "disconnected",
    ]
    assert runtime.logged == []
    await runtime.stop()


async def test_only_what_was_subscribed_to_comes(tmp_path):
    path = tmp_path / "nri.sock"
    runtime, handler = FakeRuntime(CONTAINERD_2_3), RecordingHandler()
    handler.wanted = frozenset({Event.CREATE_CONTAINER, Event.UPDATE_POD_SANDBOX})
    await runtime.listen(path)
    async with serving(handler, UnixSocket(str(path))):
        await runtime.synchronized()
        await runtime.run_pod(POD)
        await runtime.create_container(POD, container("main"))
        await runtime.stop_pod(POD.id)
    assert handler.heard[2:-1] == ["create main"]
    await runtime.stop()


class TestSynchronize:
    @pytest.mark.parametrize("objects_per_message", [None, 1, 4, 7])
    async def test_lists_everything_in_any_number_of_messages(self, objects_per_message, tmp_path):
        """Containers come before their pods when there are fewer of them per message."""
        path = tmp_path / "nri.sock"
        runtime = FakeRuntime(CONTAINERD_2_2, objects_per_message=objects_per_message)
        await runtime.listen(path)
        pods = [make_pod(f"pod{number}") for number in range(20)]
        for pod in reversed(pods):
            await runtime.run_pod(pod)
        for pod in pods:
            for name in ("a", "b"):
                await runtime.create_container(pod, make_container(pod, name))
        handler = RecordingHandler()
        target = make_container(pods[0], "a").id

        async def updates():
            return [Update(target, cpuset_cpus=CpuSet([5]))]

        handler.on_synchronize = updates
        async with serving(handler, UnixSocket(str(path))):
            plugin = await runtime.synchronized()
        assert {pod.id for pod in handler.pods} == {pod.id for pod in pods}
        assert len(handler.containers) == 40
        assert {one.pod_id for one in handler.containers} == {pod.id for pod in pods}
        assert runtime.containers[target].linux.resources.cpu.cpus == "5"
        assert plugin.requests.count("Synchronize") == (
            1 if objects_per_message is None else -(-40 // objects_per_message)
        )
        await runtime.stop()

    async def test_more_than_fits_into_a_message(self, tmp_path):
        path = tmp_path / "nri.sock"
        runtime, handler = FakeRuntime(CONTAINERD_2_2), RecordingHandler()
        await runtime.listen(path)
        await runtime.run_pod(POD)
        for number in range(600):
            await runtime.create_container(POD, container(f"c{number}", ballast_bytes=10_000))
        async with serving(handler, UnixSocket(str(path))):
            plugin = await runtime.synchronized()
        assert plugin.requests.count("Synchronize") >= 2
        assert [one.name for one in handler.containers] == [f"c{number}" for number in range(600)]
        await runtime.stop()

    async def test_stopped_containers_are_not_listed(self, tmp_path):
        path = tmp_path / "nri.sock"
        runtime, handler = FakeRuntime(), RecordingHandler()
        await runtime.listen(path)
        await runtime.create_container(POD, container("old"))
        await runtime.create_container(POD, container("new"))
        await runtime.stop_container(container("old").id)
        async with serving(handler, UnixSocket(str(path))):
            await runtime.synchronized()
        assert [one.name for one in handler.containers] == ["new"]
        await runtime.stop()


class TestFailOpen:
    async def test_containers_created_while_we_were_away_are_listed_later(self, tmp_path):
        path = tmp_path / "nri.sock"
        runtime, handler = FakeRuntime(), RecordingHandler()
        await runtime.listen(path)
        async with serving(handler, UnixSocket(str(path))):
            await runtime.synchronized()
            await runtime.create_container(POD, container("seen"))
        await runtime.abandoned()
        await runtime.create_container(POD, container("unseen"))
        async with serving(handler, UnixSocket(str(path))):
            await runtime.synchronized()
        assert [one.name for one in handler.containers] == ["seen", "unseen"]
        assert "create unseen" not in handler.heard
        await runtime.stop()

    async def test_the_runtime_restarts_under_us(self, tmp_path):
        path = tmp_path / "nri.sock"
        runtime, handler = FakeRuntime(), RecordingHandler()
        await runtime.listen(path)
        async with serving(handler, UnixSocket(str(path))):
            await runtime.synchronized()
            await runtime.create_container(POD, container("first"))
            for _ in range(3):
                await runtime.stop()
                path.unlink(missing_ok=True)
                await runtime.listen(path)
                await runtime.synchronized()
            await runtime.create_container(POD, container("second"))
        assert handler.heard[-3:-1] == ["create second", "POST_CREATE_CONTAINER second"]
        assert handler.heard.count("synchronize 1 1") == 3
        assert runtime.most_connections == 1
        assert handler.overlaps == 0
        await runtime.stop()

    async def test_a_refused_container_does_not_exist(self, tmp_path):
        path = tmp_path / "nri.sock"
        runtime, handler = FakeRuntime(), RecordingHandler()
        await runtime.listen(path)

        async def refuse(pod, container):
            raise PlacementError(f"{pod.namespace}/{pod.name}/{container.name}", "node 1 is full")

        handler.on_create = refuse
        async with serving(handler, UnixSocket(str(path))):
            await runtime.synchronized()
            with pytest.raises(OperationError, match="TopologyAffinityError: default/web/main: "):
                await runtime.create_container(POD, container("main"))
            assert runtime.containers == {}
            await runtime.run_pod(make_pod("next"))
        assert handler.heard[-2] == "RUN_POD_SANDBOX next"
        await runtime.stop()

    async def test_a_creation_that_fails_later_is_undone(self, tmp_path):
        path = tmp_path / "nri.sock"
        runtime, handler = FakeRuntime(), RecordingHandler()
        await runtime.listen(path)
        async with serving(handler, UnixSocket(str(path))):
            await runtime.synchronized()
            await runtime.create_container(POD, container("main"))
            await runtime.undo_create_container(container("main"))
        assert handler.heard[-3:-1] == ["stop main", "REMOVE_CONTAINER main"]
        await runtime.stop()


class TestOthers:
    async def test_a_plugin_that_sets_the_same_fields_is_a_conflict(self, tmp_path):
        """Why there must never be two of us."""
        path = tmp_path / "nri.sock"
        runtime = FakeRuntime()
        await runtime.listen(path)

        async def pin(*_):
            return Adjustment(cpuset_mems=NodeSet([1])), ()

        one, two = RecordingHandler(), RecordingHandler()
        one.on_create = two.on_create = pin
        async with serving(one, UnixSocket(str(path))):
            async with serving(two, UnixSocket(str(path))):
                await runtime.synchronized(2)
                with pytest.raises(OperationError, match=r"both tried to set .*mems"):
                    await runtime.create_container(POD, container("main"))
            await runtime.abandoned()
            await runtime.create_container(POD, container("main"))
        await runtime.stop()

    async def test_later_plugins_see_what_earlier_ones_set(self, tmp_path):
        path = tmp_path / "nri.sock"
        runtime, early, late = FakeRuntime(), RecordingHandler(), RecordingHandler()
        await runtime.listen(path)
        seen = []

        async def pin(*_):
            return Adjustment(cpuset_cpus=CpuSet([3])), ()

        async def look(_, container):
            seen.append(container.resources.cpuset_cpus)
            return Adjustment(), ()

        early.on_create, late.on_create = pin, look
        session = Session(early, Identity("early", "10"), UnixSocket(str(path)), timeouts=UNHURRIED)
        running = asyncio.create_task(session.run())
        async with serving(late, UnixSocket(str(path))):
            await runtime.synchronized(2)
            await runtime.create_container(POD, container("main"))
            await session.close()
            await running
        assert seen == [CpuSet([3])]
        await runtime.stop()

    async def test_unified_values_of_a_spec_are_seen_from_0_10_on(self, tmp_path):
        for flavor, visible in ((CONTAINERD_1_7, False), (CONTAINERD_2_2, True)):
            path = tmp_path / f"{flavor.version}.sock"
            runtime, handler = FakeRuntime(flavor), RecordingHandler()
            await runtime.listen(path)
            given = container("main")
            given.linux.resources.unified["memory.low"] = "4096"
            await runtime.create_container(POD, given)
            async with serving(handler, UnixSocket(str(path))) as session:
                await runtime.synchronized()
                assert session.runtime.capabilities.unified_input is visible
            assert ("memory.low" in handler.containers[0].resources.unified) is visible
            await runtime.stop()


async def test_a_very_old_runtime_cannot_list_more_than_a_message(tmp_path):
    """NRI before 0.7 does not cut its list; its plugin is dropped, and comes back for as long as it takes."""
    path = tmp_path / "nri.sock"
    runtime, handler = FakeRuntime(CONTAINERD_1_7_20), RecordingHandler()
    await runtime.listen(path)
    for number in range(450):
        await runtime.create_container(POD, container(f"c{number}", ballast_bytes=10_000))
    async with serving(handler, UnixSocket(str(path))):
        await runtime.abandoned()
        for number in range(100):
            await runtime.remove_container(container(f"c{number}").id)
        await runtime.synchronized()
    assert len(handler.containers) == 350
    await runtime.stop()
