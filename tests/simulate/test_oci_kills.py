"""The real hook, killed at random moments: afterwards ledger and kernel agree, and nobody holds anything
that is not there."""

import asyncio
import random
import signal
import sys
from functools import partial
from pathlib import Path

import pytest

from bayplan.control.ended_containers import EndedContainers
from bayplan.errors import UnavailableError
from bayplan.host.container_processes import Occupancy
from bayplan.oci.unmanaged_containers import failed_creations
from bayplan.quantity import MIB
from bayplan.sets import CpuSet
from support.controllers import here
from support.oci_node import guaranteed, spec
from support.oci_socket import ServedOciSocket, oci_socket

HOOK = Path(__file__).parents[2] / "hooks" / "oci-hook"
STARTS = 30
LATEST_KILL_S = 0.06
"""About what the hook takes on a busy machine: kills come before, while and after the daemon works."""


def nobody(runtime: str) -> dict[str, bool]:
    raise UnavailableError(runtime, "is not here")


class Runtime:
    """What runc does about its hooks: a container whose hook fails does not come to life."""

    def __init__(self, one: ServedOciSocket, choice: random.Random) -> None:
        self._one = one
        self._choice = choice
        self.alive: dict[str, str] = {}
        """Cgroup paths by container id."""
        self.killed = 0

    async def start(self, number: int) -> None:
        """Create a container, killing its hook at some moment or never."""
        container_id, pid = f"{number:064x}", 1000 + number
        path = f"/kubepods/pod{number}/crio-{container_id}"
        # Every third one wants a CPU of its own, so that the shared pool changes all the time.
        resources = guaranteed(1, MIB) if number % 3 == 0 else {}
        announced = self._one.node.begin(container_id, spec(path, resources=resources), pid)
        hook = await asyncio.create_subprocess_exec(
            *(sys.executable, "-IS", str(HOOK), "--socket", str(self._one.path), "--timeout", "60"),
            *("--on-failure", "refuse", "createRuntime"),
            stdin=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        killer = asyncio.create_task(self._kill(hook)) if self._choice.random() < 0.8 else None
        await hook.communicate(announced)
        if killer is not None:
            await killer
        if hook.returncode == 0:
            self.alive[container_id] = path
            return
        self.killed += hook.returncode == -signal.SIGKILL
        # crun does not run poststop then; the end of the process is all there is to see.
        self._one.node.end(pid)

    async def _kill(self, hook: asyncio.subprocess.Process) -> None:
        await asyncio.sleep(self._choice.uniform(0, LATEST_KILL_S))
        if hook.returncode is None:
            hook.kill()


@pytest.mark.parametrize("seed", [1, *(pytest.param(more, marks=pytest.mark.matrix) for more in (2, 3))])
async def test_ledger_and_kernel_agree_after_hooks_were_killed(tmp_path: Path, seed: int) -> None:
    async with oci_socket(tmp_path) as one:
        controller, runtime = one.around.controller, Runtime(one, random.Random(seed))
        forget = one.handler._cpusets.starts.forget
        failed = partial(failed_creations, one.node.root)
        ended = EndedContainers(controller, Occupancy(one.node.hierarchy), here, nobody, failed, forget)
        for number in range(STARTS):
            await runtime.start(number)
        await one.quiet()
        await ended.release_ended()
        await one.around.sync()

        assert set(one.entries) == set(runtime.alive)
        shared = controller.state.ledger.shared_cpus(controller.state.machine)
        for container_id, path in runtime.alive.items():
            expected = one.entries[container_id].decision.placement.exclusive_cpus or shared
            assert one.node.shown(path, "cpuset.cpus") == (str(expected),), container_id
            assert one.node.shown(path, "memory.oom.group") == ("1",)
        held = [one.entries[key].decision.placement.exclusive_cpus for key in runtime.alive]
        assert controller.state.ledger.exclusive_cpus == CpuSet([cpu for cpus in held for cpu in cpus])
        assert 0 < runtime.killed < STARTS
