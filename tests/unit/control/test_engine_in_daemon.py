"""The controller with the engine `kubelet`: refusals under kubelet's words, withheld CPUs, pins of others."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from bayplan.admin.snapshot_source import snapshot_of
from bayplan.control.controller import Controller
from bayplan.engines.kubelet.engine import KubeletEngine
from bayplan.errors import PlacementError
from bayplan.kubelet.manager_options import ManagerOptions
from bayplan.model.decision import QosClass
from bayplan.model.policy import PlacementPolicy, TopologyPolicy
from bayplan.model.resources import Resources
from bayplan.model.workload import Container, ContainerState
from bayplan.placement.foreign_cpusets import PinningManager, kubelet_sentence
from bayplan.quantity import GIB, MIB
from bayplan.sets import CpuSet, NodeSet
from support.controllers import begun, controlled
from support.machines import container, machine, pod

GUARANTEED = pod("g", QosClass.GUARANTEED)
BEST_EFFORT = pod("be", QosClass.BEST_EFFORT)
MACHINE = machine(2, cpus_per_node=2)
RESTRICTED = PlacementPolicy(topology=TopologyPolicy.RESTRICTED, reserved_cpus=CpuSet([0]))


@asynccontextmanager
async def daemon(directory: Path, policy: PlacementPolicy = RESTRICTED) -> AsyncIterator[Controller]:
    """A controller with the engine kubelet that no runtime is connected to."""
    engine = KubeletEngine(ManagerOptions())
    async with controlled(directory, policy, None, MACHINE, engine=engine) as one:
        yield one.controller


def guaranteed(name: str, memory_bytes: int, milli_cpus: int = 500) -> Container:
    return container(name, GUARANTEED, memory_bytes=memory_bytes, milli_cpus=milli_cpus)


async def test_a_restart_changes_no_answer_and_a_refusal_has_kubelets_word(tmp_path: Path) -> None:
    async with daemon(tmp_path) as one:
        await one.create_container(GUARANTEED, guaranteed("wide", GIB + MIB))
    async with daemon(tmp_path) as one:
        with pytest.raises(PlacementError) as raised:
            await one.create_container(GUARANTEED, guaranteed("small", MIB))
        assert (raised.value.kind, raised.value.container) == (
            "TopologyAffinityError",
            "default/g/small-name",
        )
        with pytest.raises(PlacementError) as raised:
            await one.create_container(GUARANTEED, guaranteed("large", GIB + 2 * MIB))
        assert (raised.value.kind, raised.value.container) == (
            "UnexpectedAdmissionError",
            "default/g/large-name",
        )
        assert "[memorymanager]" in raised.value.reason
        assert set(one.state.ledger.entries) == {"wide"}
        await one.stop_container(GUARANTEED, guaranteed("wide", GIB + MIB))
        adjustment, _ = await one.create_container(GUARANTEED, guaranteed("small", MIB))
        assert adjustment.cpuset_mems == NodeSet([0])


async def test_nobody_runs_on_withheld_cpus(tmp_path: Path) -> None:
    policy = replace(RESTRICTED, withheld_cpus=CpuSet([0]))
    async with daemon(tmp_path, policy) as one:
        shared = container("s", BEST_EFFORT, resources=Resources())
        adjustment, _ = await begun(one, BEST_EFFORT, shared)
        assert adjustment.cpuset_cpus == CpuSet([1, 2, 3])
        assert one.fallback_adjustment(BEST_EFFORT, shared).cpuset_cpus == CpuSet([1, 2, 3])
        await one.create_container(GUARANTEED, guaranteed("x", MIB, 1000))
        assert [each.cpus for each in one.state.expectations(["s"])] == [CpuSet([2, 3])]
        await one.create_container(GUARANTEED, guaranteed("y", MIB, 2000))
        assert [each.cpus for each in one.state.expectations(["s"])] == [CpuSet([0])]


async def test_pins_of_others_are_kept_and_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    plain = pod("plain")

    async with daemon(tmp_path) as one:
        assert snapshot_of(one.state, 0, ()).problems == ()
        pinned = Resources(memory_limit_bytes=MIB, cpuset_cpus=CpuSet([1]), cpuset_mems=NodeSet([0]))
        for name in ("p", "q"):
            spec = container(name, plain, resources=pinned)
            adjustment, _ = await one.create_container(plain, spec)
            assert (adjustment.cpuset_cpus, adjustment.cpuset_mems) == (None, None)
        await asyncio.sleep(0)
        assert one.state.counters["pinned_by_others"] == one.state.counters["pinned_by_strangers"] == 2
        notice, pinned = snapshot_of(one.state, 0, (), ("a notice",)).problems
        assert notice == "a notice"
        assert pinned.startswith("2 containers ")
        await one.stop_container(plain, container("p", plain))
        await one.stop_container(plain, container("q", plain))
        assert snapshot_of(one.state, 0, ()).problems == ()
    sentence = (
        "another program pins containers (seen in a spec that already carried a cpuset); bayplan leaves"
    )
    assert _said(caplog) == [f"{sentence} them as they are"]


async def test_kubelets_cpu_manager_is_known_by_its_updates_and_never_fought(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """kubelet was restarted with the static policy: its first reconcile reaches every container."""
    own, shared = guaranteed("own", MIB, 1000), container("shared", BEST_EFFORT, resources=Resources())
    pool = Resources(cpuset_cpus=CpuSet([0, 2, 3]))

    async with daemon(tmp_path) as one:
        await one.create_container(GUARANTEED, own)
        await one.create_container(BEST_EFFORT, shared)
        assert await one.update_container(BEST_EFFORT, shared, pool) == []
        kubelets = Resources(cpuset_cpus=CpuSet([3]))
        assert await one.update_container(GUARANTEED, own, kubelets) == []
        await asyncio.sleep(0)
        assert one.state.counters["pinned_by_kubelet_cpu_manager"] == 2
        held = one.state.ledger.entries["own"].decision
        assert (held.placement.mems, held.placement.exclusive_cpus) == (NodeSet([0]), CpuSet())
        assert one.state.ledger.booked_bytes == {0: {"memory": MIB}}
        assert (held.reasons[0].code, held.request.pinned_cpus) == ("pinned", CpuSet([3]))
        # Exclusive CPUs of ours come and go; nobody of kubelet's is moved for them.
        plain = pod("plain")
        asks = Resources(MIB, 1024, 100_000, 100_000)
        _, updates = await one.create_container(plain, container("new", plain, resources=asks))
        assert updates == []
    async with daemon(tmp_path) as one:
        # While we were away kubelet gave a third container another pool.
        late = container("late", BEST_EFFORT, resources=Resources())
        await one.create_container(BEST_EFFORT, late)
        listed = [
            _running(own, cpus=[3], mems=[0]),
            _running(shared, cpus=[0, 1, 2]),
            _running(late, cpus=[0, 1, 2]),
        ]
        assert await one.synchronize([GUARANTEED, BEST_EFFORT], listed) == []
        requests = {key: entry.decision.request for key, entry in one.state.ledger.entries.items()}
        assert {str(request.pinned_cpus) for request in requests.values()} == {"3", "0-2"}
        (said,) = snapshot_of(one.state, 0, ()).problems
        assert said == _kubelet("CPU", "UpdateContainer; containers: 3")
    assert _said(caplog) == [_kubelet("CPU", "UpdateContainer")]


async def test_kubelets_managers_are_named_once_with_every_way_they_were_seen(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with daemon(tmp_path) as one:
        one.state.decision_log.pins.configured = (PinningManager.CPU,)
        spec = Resources(MIB, 1024, 100_000, 100_000, cpuset_cpus=CpuSet([1]), cpuset_mems=NodeSet([0]))
        for name in ("p", "q"):
            await one.create_container(GUARANTEED, container(name, GUARANTEED, resources=spec))
        await asyncio.sleep(0)
        spec_seen = "a spec that already carried a cpuset"
        assert snapshot_of(one.state, 0, ()).problems == (
            _kubelet("CPU", f"kubelet's configuration and {spec_seen}; containers: 2"),
            _kubelet("Memory", f"{spec_seen}; containers: 2"),
        )
        counters = {name: value for name, value in one.state.counters.items() if name.startswith("pinned")}
        assert counters == {
            "pinned_by_others": 2,
            "pinned_by_kubelet_cpu_manager": 2,
            "pinned_by_kubelet_memory_manager": 2,
        }
    assert _said(caplog) == [_kubelet("Memory", "a spec that already carried a cpuset")]


def _running(spec: Container, *, cpus: Sequence[int], mems: Sequence[int] = ()) -> Container:
    sets = replace(spec.resources, cpuset_cpus=CpuSet(cpus), cpuset_mems=NodeSet(mems) if mems else None)
    return replace(spec, resources=sets, state=ContainerState.RUNNING)


def _kubelet(manager: str, seen: str) -> str:
    return kubelet_sentence(PinningManager[manager.upper()], seen)


def _said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if "pins containers" in record.message]
