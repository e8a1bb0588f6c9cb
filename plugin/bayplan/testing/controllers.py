"""A controller with a real store on a machine of two nodes, for tests of what is built around it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

from bayplan.daemon.controller import Controller
from bayplan.daemon.recorder import Recorder
from bayplan.daemon.verify import Expectation, expectations
from bayplan.domain.exact.engine import ExactEngine
from bayplan.domain.policy import Policy
from bayplan.domain.topology import Machine
from bayplan.domain.workload import Container, Pod
from bayplan.nri import Capabilities, Event, Runtime, Version
from bayplan.state import Store
from bayplan.testing.machines import machine

Result = TypeVar("Result")
MACHINE = machine(2, cpus_per_node=4)


async def here(work: Callable[[], Result]) -> Result:
    """Do *work* at once, where the daemon has a thread for it."""
    return work()


class Controlled:
    """The controller, and what it asked of the host."""

    def __init__(self, recorder: Recorder, policy: Policy, on: Machine, *, cgroup_v2: bool) -> None:
        self.oom_score_adj: list[tuple[str, int]] = []
        self.verifications = 0
        self.room_due = asyncio.Event()
        self.controller = Controller(
            on,
            policy,
            ExactEngine(),
            recorder,
            cgroup_v2=cgroup_v2,
            write_oom_score_adj=self.write_oom_score_adj,
            verify_soon=self.verify_soon,
            room_soon=self.room_due.set,
        )

    async def write_oom_score_adj(self, _: Pod, one: Container, value: int) -> None:
        """Note it."""
        self.oom_score_adj.append((one.id, value))

    def verify_soon(self) -> None:
        """Count it."""
        self.verifications += 1

    def expectations(self) -> list[Expectation]:
        """What the kernel should have of every container."""
        controller, residents = self.controller, self.controller.residents
        return expectations(
            controller.machine,
            controller.policy.withheld_cpus,
            controller.ledger,
            residents.pods,
            residents.containers.values(),
        )


def runtime(nri: str) -> Runtime:
    """A containerd with the NRI version *nri*."""
    version = Version.parse(nri)
    assert version is not None
    return Runtime("containerd", "any", nri, Capabilities.of(version), frozenset(Event))


@asynccontextmanager
async def controlled(
    directory: Path,
    policy: Policy = Policy(),  # noqa: B008 - immutable
    nri: str | None = "0.12.0",
    on: Machine = MACHINE,
    *,
    cgroup_v2: bool = True,
) -> AsyncIterator[Controlled]:
    """A controller that restored what *directory* has; connected to a runtime, unless *nri* is None."""
    recorder = await Recorder.open(partial(Store.open, directory))
    try:
        made = Controlled(recorder, policy, on, cgroup_v2=cgroup_v2)
        await made.controller.restore()
        if nri is not None:
            made.controller.connected(runtime(nri))
        yield made
    finally:
        await recorder.close()
