"""The controller with the engine `kubelet`: refusals under kubelet's words, withheld CPUs, pins of others."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from bayplan.daemon.controller import Controller
from bayplan.daemon.recorder import Recorder
from bayplan.daemon.snapshot import snapshot_of
from bayplan.domain.decision import QosClass
from bayplan.domain.kubelet_node import KubeletNodeEngine, Managers
from bayplan.domain.policy import Policy, TopologyPolicy
from bayplan.domain.workload import Container, Pod, Resources
from bayplan.errors import PlacementError
from bayplan.quantity import GIB, MIB
from bayplan.sets import CpuSet, NodeSet
from bayplan.state import Store
from bayplan.testing.machines import container, machine, pod

GUARANTEED = pod("g", QosClass.GUARANTEED)
BEST_EFFORT = pod("be", QosClass.BEST_EFFORT)
MACHINE = machine(2, cpus_per_node=2)
RESTRICTED = Policy(topology=TopologyPolicy.RESTRICTED, reserved_cpus=CpuSet([0]))


async def _nothing(_pod: Pod, _container: Container, _value: int) -> None:
    return None


@asynccontextmanager
async def daemon(directory: Path, policy: Policy = RESTRICTED) -> AsyncIterator[Controller]:
    recorder = await Recorder.open(partial(Store.open, directory))
    try:
        engine = KubeletNodeEngine(Managers())
        made = Controller(
            MACHINE,
            policy,
            engine,
            recorder,
            cgroup_v2=True,
            write_oom_score_adj=_nothing,
            verify_soon=lambda: None,
        )
        await made.restore()
        yield made
    finally:
        await recorder.close()


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(scenario())  # type: ignore[arg-type]


def guaranteed(name: str, memory_bytes: int, milli_cpus: int = 500) -> Container:
    return container(name, GUARANTEED, memory_bytes=memory_bytes, milli_cpus=milli_cpus)


def test_a_restart_changes_no_answer_and_a_refusal_has_kubelets_word(tmp_path: Path) -> None:
    async def first() -> None:
        async with daemon(tmp_path) as one:
            await one.create_container(GUARANTEED, guaranteed("wide", GIB + MIB))

    async def second() -> None:
        async with daemon(tmp_path) as one:
            with pytest.raises(PlacementError) as raised:
                await one.create_container(GUARANTEED, guaranteed("small", MIB))
            assert str(raised.value).startswith(
                "TopologyAffinityError: default/g/small-name: Resources cannot"
            )
            with pytest.raises(PlacementError) as raised:
                await one.create_container(GUARANTEED, guaranteed("large", GIB + 2 * MIB))
            assert str(raised.value).startswith(
                "UnexpectedAdmissionError: default/g/large-name: Allocate failed due to [memorymanager]"
            )
            assert set(one.ledger.entries) == {"wide"}
            await one.stop_container(GUARANTEED, guaranteed("wide", GIB + MIB))
            adjustment, _ = await one.create_container(GUARANTEED, guaranteed("small", MIB))
            assert adjustment.cpuset_mems == NodeSet([0])

    run(first)
    run(second)


def test_nobody_runs_on_withheld_cpus(tmp_path: Path) -> None:
    async def scenario() -> None:
        policy = replace(RESTRICTED, withheld_cpus=CpuSet([0]))
        async with daemon(tmp_path, policy) as one:
            shared = container("s", BEST_EFFORT, resources=Resources())
            adjustment, _ = await one.create_container(BEST_EFFORT, shared)
            assert adjustment.cpuset_cpus == CpuSet([1, 2, 3])
            assert one.fallback_adjustment(BEST_EFFORT, shared).cpuset_cpus == CpuSet([1, 2, 3])
            _, updates = await one.create_container(GUARANTEED, guaranteed("x", MIB, 1000))
            assert [update.cpuset_cpus for update in updates] == [CpuSet([2, 3])]
            _, updates = await one.create_container(GUARANTEED, guaranteed("y", MIB, 2000))
            assert [update.cpuset_cpus for update in updates] == [CpuSet([0])]

    run(scenario)


def test_pins_of_others_are_kept_and_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with daemon(tmp_path) as one:
            assert snapshot_of(one, 0, ()).problems == ()
            pinned = Resources(memory_limit_bytes=MIB, cpuset_cpus=CpuSet([1]), cpuset_mems=NodeSet([0]))
            for name in ("p", "q"):
                spec = container(name, GUARANTEED, resources=pinned)
                adjustment, _ = await one.create_container(GUARANTEED, spec)
                assert (adjustment.cpuset_cpus, adjustment.cpuset_mems) == (None, None)
            await asyncio.sleep(0)
            assert one.counters["pinned_by_others"] == 2
            assert snapshot_of(one, 0, (), ("a notice",)).problems == (
                "a notice",
                "2 containers are pinned by somebody else, perhaps by kubelet; that stays as it is",
            )
            await one.stop_container(GUARANTEED, container("p", GUARANTEED))
            await one.stop_container(GUARANTEED, container("q", GUARANTEED))
            assert snapshot_of(one, 0, ()).problems == ()

    run(scenario)
    said = [record for record in caplog.records if "somebody else pins" in record.message]
    assert len(said) == 1
