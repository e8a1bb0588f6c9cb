"""On machines of many nodes the event loop goes on while it is decided; what was given up leaves nothing."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from bayplan.control.threads import WorkThread
from bayplan.engines.exact.engine import ExactEngine
from bayplan.engines.kubelet.engine import KubeletEngine
from bayplan.model.basis import Basis
from bayplan.model.decision import Decision, Placement, QosClass, Request
from bayplan.model.ledger import Ledger
from bayplan.model.policy import PlacementPolicy
from bayplan.model.request import derive_request
from bayplan.model.resources import Resources
from bayplan.quantity import GIB, MIB
from support.controllers import controlled
from support.coroutines import PATIENCE_S
from support.machines import container, machine, pod

GUARANTEED = pod("g", QosClass.GUARANTEED)
MANY = machine(16)


class Waiting(ExactEngine):
    """Decides only once the event loop has done something meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self.goes_on, self.begun = threading.Event(), threading.Event()

    def separate_copy(self) -> "Waiting":
        return self

    def decide(
        self,
        basis: Basis,
        request: Request,
        current: Placement | None = None,
    ) -> Decision:
        self.begun.set()
        assert self.goes_on.wait(PATIENCE_S), "the event loop stood still"
        return super().decide(basis, request, current)


@pytest.fixture
def thread() -> Iterator[WorkThread]:
    made = WorkThread("decisions")
    yield made
    made.end()


async def test_timers_run_while_it_is_decided(tmp_path: Path, thread: WorkThread) -> None:
    engine = Waiting()
    async with controlled(tmp_path, on=MANY, engine=engine, decide_in_thread=thread.do) as one:
        small = container("x", GUARANTEED, memory_bytes=100 * MIB, milli_cpus=500)
        asyncio.get_running_loop().call_later(0, engine.goes_on.set)
        await one.controller.create_container(GUARANTEED, small)
        engine.goes_on.clear()
        asyncio.get_running_loop().call_later(0, engine.goes_on.set)
        await one.controller.update_container(GUARANTEED, small, Resources(memory_limit_bytes=2 * GIB))
        claim = one.controller.state.ledger.entries["x"].decision.placement.claim
        assert claim is not None
        assert claim.amounts_bytes == {"memory": 2 * GIB}


async def test_a_decision_that_was_given_up_leaves_nothing(tmp_path: Path, thread: WorkThread) -> None:
    engine = Waiting()
    async with controlled(tmp_path, on=MANY, engine=engine, decide_in_thread=thread.do) as one:
        first, second = (container(name, GUARANTEED, memory_bytes=700 * MIB, milli_cpus=500) for name in "xy")
        late = asyncio.create_task(one.controller.create_container(GUARANTEED, first))
        await asyncio.to_thread(engine.begun.wait, PATIENCE_S)
        late.cancel()
        with pytest.raises(asyncio.CancelledError):
            await late
        following = asyncio.create_task(one.controller.create_container(GUARANTEED, second))
        engine.goes_on.set()
        adjustment, _ = await following
        assert str(adjustment.cpuset_mems) == "0"
        assert one.controller.state.ledger.entries.keys() == {"y"}


def test_another_engine_answers_the_same() -> None:
    for engine in (ExactEngine(max_steps=100), KubeletEngine()):
        twin = engine.separate_copy()
        assert twin is not engine
        for size in (1, 20, 70):
            one = container("c", GUARANTEED, memory_bytes=size * 200 * MIB, milli_cpus=500)
            request = derive_request(GUARANTEED, one, MANY)
            answers = [
                each.decide(Basis(MANY, PlacementPolicy(), Ledger()), request) for each in (engine, twin)
            ]
            assert answers[0] == answers[1]
