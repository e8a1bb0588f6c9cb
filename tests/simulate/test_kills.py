"""One scenario with everything that changes a promise, left off at each of its steps, and killed there: each
write to the disk, each thing that a thread does to the kernel, each that the runtime does with an answer.

Afterwards disk, ledger, runtimes and kernel agree, no CPU has two owners, and no set of nodes lacks what is
promised on it: `SimulatedHost.settle` checks all of that.
"""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from bayplan.engines.interface import KUBELET
from bayplan.model.machine import MEMORY
from bayplan.model.policy import TopologyPolicy
from bayplan.quantity import GIB, MIB
from bayplan.sets import CpuSet, NodeSet
from support.interleaving.daemon_run import DEADLINE_S
from support.interleaving.simulated_host import MACHINE, PLAIN, SimulatedHost
from support.machines import machine
from support.oci_node import guaranteed
from support.workloads import BEST_EFFORT

STRICT = replace(PLAIN, topology=TopologyPolicy.SINGLE_NUMA_NODE)
AS_KUBELET = replace(
    PLAIN,
    engine=KUBELET,
    reserved_cpus=CpuSet([0]),
    reserved_memory={0: {MEMORY: 64 * MIB}},
    kube_reserved={MEMORY: 64 * MIB},
)
LARGER = machine(2, cpus_per_node=4, memory_bytes=2 * GIB)
PARTS = 8
"""Of the steps, so that they can be played side by side."""

Event = Callable[[SimulatedHost], Awaitable[None] | None]


def id_of(name: str) -> str:
    return f"sandbox-default-{name}-main"


def mems(host: SimulatedHost, name: str) -> NodeSet | None:
    return host.daemon.controller.state.ledger.entries[id_of(name)].decision.placement.mems


class LeftOff(Exception):  # noqa: N818 - it is no error
    """The number of steps is reached."""


class Scenario:
    """The events in their order, each carried out to its end before the next; over after *last* steps."""

    def __init__(self, directory: Path, last: int | None = None) -> None:
        self.host = SimulatedHost(directory)
        self.steps = 0
        self._last = last

    async def play(self) -> None:
        await self.host.begin()
        await self._finish()
        await self.creations()
        await self.a_deadline_while_a_commit_is_queued()
        await self.a_move_and_the_way_back()
        await self.resizes()
        await self.hook_and_nri_at_once()
        await self.engine_policy_machine()

    async def creations(self) -> None:
        self.host.create("shared", qos=BEST_EFFORT)
        await self._finish()
        self.host.create("owner", cpus=2)
        await self._finish()
        assert self.host.daemon.controller.state.ledger.exclusive_cpus == CpuSet([1, 2])

    async def a_deadline_while_a_commit_is_queued(self) -> None:
        self.host.create("flexible", memory_bytes=600 * MIB)
        await self._finish()
        self.host.stalled = True
        self.host.create("late", memory_bytes=900 * MIB, wishes={"required-nodes": "0"})
        await self.host.run_loop(20)
        await self._step_if(self.host.daemon.thread.waiting)
        self.host.clock.advance(DEADLINE_S)
        await self.host.run_loop(20)
        self.host.stalled = False
        await self._finish()
        self.host.runtime.stop(id_of("late"))
        await self._finish()

    async def a_move_and_the_way_back(self) -> None:
        assert mems(self.host, "flexible") == NodeSet([0])
        self.host.create("mover", memory_bytes=900 * MIB, wishes={"required-nodes": "0"})
        await self._finish()
        assert mems(self.host, "flexible") == NodeSet([0, 1])
        self.host.runtime.stop(id_of("mover"))
        await self._finish()
        self.host.daemon.begin(self.host.daemon.use_freed_memory())
        await self._finish()
        assert mems(self.host, "flexible") == NodeSet([0])

    async def resizes(self) -> None:
        self.host.create("bound", memory_bytes=100 * MIB, wishes={"required-nodes": "0"})
        await self._finish()
        self.host.resize(id_of("bound"), 800 * MIB)
        await self._finish()
        assert mems(self.host, "flexible") != NodeSet([0])
        self.host.resize(id_of("owner"), 100 * MIB, cpus=3)
        await self._finish()
        self.host.runtime.stop(id_of("bound"))
        await self._finish()

    async def hook_and_nri_at_once(self) -> None:
        self.host.daemon.begin(self.host.hook(guaranteed(1, 100 * MIB)))
        self.host.create("beside", cpus=1)
        self.host.daemon.begin(self.host.hook({}))
        await self._finish()
        assert len(self.host.hooked) == 2
        self.host.end_hooked(min(self.host.hooked), poststop=True)
        self.host.runtime.stop(id_of("owner"))
        await self._finish()

    async def engine_policy_machine(self) -> None:
        for change in (
            lambda: self.host.reload(AS_KUBELET),
            lambda: self.host.replace_machine(LARGER),
            lambda: self.host.reload(STRICT),
            lambda: self.host.replace_machine(MACHINE),
        ):
            self.host.create(self.host.new_id()[-4:], memory_bytes=50 * MIB)
            await self.host.run_loop(3)
            change()
            await self._finish()

    async def _finish(self) -> None:
        """Let everything be done that is under way, one step after the other."""
        idle = 0
        while idle < 3:
            possible = self.host.steps()
            if possible:
                await self._step_if(True, possible[0])
            await self.host.run_loop(3)
            idle = 0 if possible else idle + 1

    async def _step_if(self, due: bool, name: str = "") -> None:
        if self.steps == self._last:
            raise LeftOff
        self.steps += 1
        if due and name:
            self.host.step(name)


async def all_steps(directory: Path) -> int:
    scenario = Scenario(directory)
    await scenario.play()
    await scenario.host.settle()
    await scenario.host.daemon.kill()
    return scenario.steps


async def left_off_at(directory: Path, step: int, *, killed: bool) -> None:
    scenario = Scenario(directory, step)
    with pytest.raises(LeftOff):
        await scenario.play()
    if killed:
        await scenario.host.kill()
    try:
        await scenario.host.settle()
    finally:
        await scenario.host.daemon.kill()
        scenario.host.close()


@pytest.mark.parametrize("killed", [True, False])
@pytest.mark.parametrize(
    "part", [*range(3), *(pytest.param(more, marks=pytest.mark.matrix) for more in range(3, PARTS))]
)
def test_every_prefix(tmp_path: Path, part: int, killed: bool) -> None:
    steps = asyncio.run(all_steps(tmp_path / "all"))
    assert steps > 100
    for step in range(part, steps, PARTS):
        asyncio.run(left_off_at(tmp_path / str(step), step, killed=killed))
