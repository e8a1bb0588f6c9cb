"""One scenario with everything that changes a promise, left off at each of its steps, and killed there: each
write to the disk, each thing that a thread does to the kernel, each that the runtime does with an answer.

Afterwards disk, ledger, runtimes and kernel agree, no CPU has two owners, and no set of nodes lacks what is
promised on it: `World.rest` checks all of that.
"""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from bayplan.config.settings import KUBELET
from bayplan.model.machine import MEMORY
from bayplan.model.policy import TopologyPolicy
from bayplan.quantity import GIB, MIB
from bayplan.sets import CpuSet, NodeSet
from support.interleaving.life import DEADLINE_S
from support.interleaving.world import MACHINE, PLAIN, World
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

Event = Callable[[World], Awaitable[None] | None]


def id_of(name: str) -> str:
    return f"sandbox-default-{name}-main"


def mems(world: World, name: str) -> NodeSet | None:
    return world.life.controller.ledger.entries[id_of(name)].decision.placement.mems


class LeftOff(Exception):  # noqa: N818 - it is no error
    """The number of steps is reached."""


class Scenario:
    """The events in their order, each carried out to its end before the next; over after *last* steps."""

    def __init__(self, directory: Path, last: int | None = None) -> None:
        self.world = World(directory)
        self.steps = 0
        self._last = last

    async def play(self) -> None:
        await self.world.begin()
        await self._finish()
        await self.creations()
        await self.a_deadline_while_a_commit_is_queued()
        await self.a_move_and_the_way_back()
        await self.resizes()
        await self.hook_and_nri_at_once()
        await self.engine_policy_machine()

    async def creations(self) -> None:
        self.world.create("shared", qos=BEST_EFFORT)
        await self._finish()
        self.world.create("owner", cpus=2)
        await self._finish()
        assert self.world.life.controller.ledger.exclusive_cpus == CpuSet([1, 2])

    async def a_deadline_while_a_commit_is_queued(self) -> None:
        self.world.create("flexible", memory_bytes=600 * MIB)
        await self._finish()
        self.world.stalled = True
        self.world.create("late", memory_bytes=900 * MIB, node="0")
        await self.world.breathe(20)
        await self._step_if(self.world.life.thread.waiting)
        self.world.clock.advance(DEADLINE_S)
        await self.world.breathe(20)
        self.world.stalled = False
        await self._finish()
        self.world.runtime.stop(id_of("late"))
        await self._finish()

    async def a_move_and_the_way_back(self) -> None:
        assert mems(self.world, "flexible") == NodeSet([0])
        self.world.create("mover", memory_bytes=900 * MIB, node="0")
        await self._finish()
        assert mems(self.world, "flexible") == NodeSet([0, 1])
        self.world.runtime.stop(id_of("mover"))
        await self._finish()
        self.world.life.begin(self.world.life.use_freed_memory())
        await self._finish()
        assert mems(self.world, "flexible") == NodeSet([0])

    async def resizes(self) -> None:
        self.world.create("bound", memory_bytes=100 * MIB, node="0")
        await self._finish()
        self.world.resize(id_of("bound"), 800 * MIB)
        await self._finish()
        assert mems(self.world, "flexible") != NodeSet([0])
        self.world.resize(id_of("owner"), 100 * MIB, cpus=3)
        await self._finish()
        self.world.runtime.stop(id_of("bound"))
        await self._finish()

    async def hook_and_nri_at_once(self) -> None:
        self.world.life.begin(self.world.hook(guaranteed(1, 100 * MIB)))
        self.world.create("beside", cpus=1)
        self.world.life.begin(self.world.hook({}))
        await self._finish()
        assert len(self.world.hooked) == 2
        self.world.end_hooked(min(self.world.hooked), told=True)
        self.world.runtime.stop(id_of("owner"))
        await self._finish()

    async def engine_policy_machine(self) -> None:
        for change in (
            lambda: self.world.reload(AS_KUBELET),
            lambda: self.world.replace_machine(LARGER),
            lambda: self.world.reload(STRICT),
            lambda: self.world.replace_machine(MACHINE),
        ):
            self.world.create(self.world.new_id()[-4:], memory_bytes=50 * MIB)
            await self.world.breathe(3)
            change()
            await self._finish()

    async def _finish(self) -> None:
        """Let everything be done that is under way, one step after the other."""
        idle = 0
        while idle < 3:
            possible = self.world.steps()
            if possible:
                await self._step_if(True, possible[0])
            await self.world.breathe(3)
            idle = 0 if possible else idle + 1

    async def _step_if(self, due: bool, name: str = "") -> None:
        if self.steps == self._last:
            raise LeftOff
        self.steps += 1
        if due and name:
            self.world.step(name)


async def all_steps(directory: Path) -> int:
    scenario = Scenario(directory)
    await scenario.play()
    await scenario.world.rest()
    await scenario.world.life.kill()
    return scenario.steps


async def left_off_at(directory: Path, step: int, *, killed: bool) -> None:
    scenario = Scenario(directory, step)
    with pytest.raises(LeftOff):
        await scenario.play()
    if killed:
        await scenario.world.kill()
    try:
        await scenario.world.rest()
    finally:
        await scenario.world.life.kill()
        scenario.world.close()


@pytest.mark.parametrize("killed", [True, False])
@pytest.mark.parametrize("part", range(PARTS))
def test_every_prefix(tmp_path: Path, part: int, killed: bool) -> None:
    steps = asyncio.run(all_steps(tmp_path / "all"))
    assert steps > 100
    for step in range(part, steps, PARTS):
        asyncio.run(left_off_at(tmp_path / str(step), step, killed=killed))
