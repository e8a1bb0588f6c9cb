"""The report of shadow mode says what the same containers get when decisions are applied: a runtime that
creates, changes and ends the same ones in the same order, with and without it."""

import asyncio
import random
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from bayplan._proto.nri import api_pb2 as pb
from bayplan.admin.questions import reporting
from bayplan.daemon.shadow import Parts
from bayplan.host.shadow_mode import shadow_mode
from bayplan.model.policy import PlacementPolicy, TopologyPolicy
from bayplan.nri import Session, UnixSocket
from bayplan.quantity import MIB
from support.controllers import controlled
from support.flavors import CONTAINERD_2_3
from support.plugin import IDENTITY, UNHURRIED
from support.plugin_calls import OperationError
from support.runtime import FakeRuntime
from support.snapshots import make_snapshot
from support.workloads import BEST_EFFORT, GUARANTEED, make_container, make_pod

STEPS = 60
AN_HOUR = 3600
SETTLED = 40
"""So many pods there are before as many are stopped as are made."""
POLICY = PlacementPolicy(
    topology=TopologyPolicy.SINGLE_NUMA_NODE, default_memory_limit_bytes={"BestEffort": 64 * MIB}
)


class Churn:
    """The same for every run of a seed, whoever is refused."""

    def __init__(self, runtime: FakeRuntime, seed: int, steps: int) -> None:
        self._runtime = runtime
        self._steps = steps
        self._choice = random.Random(seed)
        self._made: list[str] = []
        self._refused: set[str] = set()

    async def run(self) -> None:
        for number in range(self._steps):
            more = ["create"] if len(self._made) < SETTLED else []
            chosen = self._choice.choice(["create", *more, "stop", "resize"])
            amount = self._choice.choice([200, 400, 700, 900]) * MIB
            cpus, qos = self._choice.choice([0, 1, 2, 3]), self._choice.choice([GUARANTEED, BEST_EFFORT])
            position = self._choice.random()
            if chosen == "create" or not self._made:
                await self.create(f"pod-{number}", qos, cpus, amount)
                continue
            key = self._made[int(position * len(self._made))]
            if chosen == "stop":
                self._made.remove(key)
                if key not in self._refused:
                    await self._runtime.stop_pod(self._runtime.containers[key].pod_sandbox_id)
            elif key not in self._refused:
                change = pb.LinuxResources(memory={"limit": {"value": amount}})
                try:
                    await self._runtime.update_container(key, change)
                except OperationError:
                    continue

    async def create(self, name: str, qos: str, cpus: int, amount_bytes: int) -> None:
        pod = make_pod(name, qos=qos)
        if qos == GUARANTEED:
            container = make_container(
                pod,
                memory_limit_bytes=amount_bytes,
                cpu_shares=1024 * cpus or 512,
                cpu_quota_us=100_000 * cpus or 50_000,
                oom_score_adj=-997,
            )
        else:
            container = make_container(pod, cpu_shares=2, oom_score_adj=1000)
        self._made.append(container.id)
        await self._runtime.run_pod(pod)
        try:
            await self._runtime.create_container(pod, container)
        except OperationError:
            self._refused.add(container.id)
            return
        await self._runtime.start_container(container.id)


async def reported(directory: Path, seed: int, steps: int) -> dict[str, Any]:
    runtime = FakeRuntime(CONTAINERD_2_3)
    socket = directory.with_suffix(".sock")
    await runtime.listen(socket)
    async with controlled(directory / "state", POLICY, nri=None) as one:
        endpoint, handler = UnixSocket(str(socket)), Parts.of_process().answering(one.controller)
        session = Session(handler, IDENTITY, endpoint, timeouts=UNHURRIED, jitter=lambda: 0.0)
        running = asyncio.create_task(session.run())
        try:
            await runtime.synchronized()
            await Churn(runtime, seed, steps).run()
        finally:
            await session.close()
            await running
            await runtime.stop()
        return await reporting(one.controller.state.recorder)(make_snapshot(taken_us=0), {})


async def compared(directory: Path, seed: int, steps: int) -> dict[str, Any]:
    """What is reported of the same churn with and without shadow mode, which is to be the same."""
    modes: dict[str, Callable[[], AbstractContextManager[object]]] = {
        "applied": nullcontext,
        "shadow": shadow_mode,
    }
    said = {}
    for name, mode in modes.items():
        with mode():
            said[name] = await reported(directory / name, seed, steps)
    for report in said.values():
        for row in (*report["containers"], *report["moves"]):
            del row["at"]
    assert said["shadow"] == said["applied"]
    return said["applied"]


@pytest.mark.parametrize("seed", range(4))
async def test_the_report_of_shadow_mode_is_what_happens_without_it(tmp_path: Path, seed: int) -> None:
    report = await compared(tmp_path, seed, STEPS)
    assert report["outcomes"]["refused"]
    assert report["outcomes"]["placed"]


@pytest.mark.matrix
def test_so_it_is_for_an_hour_of_changes(tmp_path: Path) -> None:
    """One a second. It takes longer than a test of a coroutine may."""
    report = asyncio.run(compared(tmp_path, 4, AN_HOUR))
    outcomes = report["outcomes"]
    assert sum(outcomes[name] for name in ("placed", "degraded", "refused")) > AN_HOUR // 4, outcomes
    assert outcomes["refused"]
