"""Any order of requests, slow and failing handlers, passing time and lost connections keeps the promises.

Every request is answered within its deadline, exactly once; handlers never overlap; what did not reach the
runtime is reported as missed, exactly once, and nothing else is.
"""

import asyncio
from collections import Counter
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from bayplan._proto.nri import api_pb2 as pb
from bayplan.errors import PlacementError
from bayplan.model.workload import Adjustment
from bayplan.nri import Event
from bayplan.nri.wire import Code, TtrpcResponse
from support.clock import ManualClock
from support.plugin import RecordingHandler, serving
from support.puppet import Puppet, PuppetEndpoint

BEHAVIOURS = ("quick", "slow", "stubborn", "fails", "refuses", "fails late", "cancelled by others")
DEADLINE_S = 1.0
STEPS = 40
"""More than any request needs from one end of the in-memory connection to the other and back."""

actions = st.one_of(
    st.tuples(st.just("request"), st.sampled_from(BEHAVIOURS), st.sampled_from(["Create", "Stop"])),
    st.tuples(st.just("time"), st.sampled_from([0.0, 0.3, 0.7, 1.0, 3.0])),
    st.tuples(st.just("open gates")),
    st.tuples(st.just("drop")),
    st.tuples(st.just("settle")),
)


@dataclass
class Scenario:
    clock: ManualClock
    endpoint: PuppetEndpoint
    handler: RecordingHandler
    gates: list[asyncio.Event] = field(default_factory=list)
    calls: dict[str, tuple["asyncio.Future[TtrpcResponse]", float, Puppet]] = field(default_factory=dict)
    puppet: Puppet | None = None
    over: bool = False

    def open_gates(self) -> None:
        for gate in self.gates:
            gate.set()

    def end(self) -> None:
        self.over = True
        self.open_gates()

    async def settle(self) -> None:
        for _ in range(STEPS):
            await asyncio.sleep(0)

    async def reconnected(self) -> None:
        """As long as a handler is stuck, the plugin is taken in but does not become synchronized."""
        while self.puppet is None or self.puppet.ended.done():
            while self.endpoint.puppets.empty():
                self.clock.advance(0.1)
                await self.settle()
            self.puppet = self.endpoint.puppets.get_nowait()
            arrival = asyncio.create_task(self.puppet.take_in())
            while not arrival.done() and not self.puppet.ended.done():
                await self.settle()
                self.clock.advance(0.1)
            arrival.cancel()
            await asyncio.gather(arrival, return_exceptions=True)

    def request(self, behaviour: str, kind: str) -> None:
        assert self.puppet is not None
        container = pb.Container(id=f"{len(self.calls)} {behaviour}")
        message = (
            pb.CreateContainerRequest(container=container)
            if kind == "Create"
            else pb.StopContainerRequest(container=container)
        )
        future = self.puppet.call(f"{kind}Container", message)
        self.calls[container.id] = (future, self.clock.time(), self.puppet)

    def check_deadlines(self) -> None:
        for name, (future, sent_at, puppet) in self.calls.items():
            late = self.clock.time() - sent_at >= DEADLINE_S
            assert future.done() or not late or puppet.ended.done(), f"{name} is overdue"

    async def behave(self, name: str) -> None:
        behaviour = name.partition(" ")[2]
        gate = asyncio.Event()
        self.gates.append(gate)
        if self.over:
            gate.set()
        if behaviour == "fails":
            raise ZeroDivisionError
        if behaviour == "refuses":
            raise PlacementError(name, "no")
        if behaviour == "cancelled by others":
            future = asyncio.get_running_loop().create_future()
            future.cancel()
            await future
        if behaviour in {"slow", "fails late"}:
            await gate.wait()
        if behaviour == "fails late":
            raise ZeroDivisionError
        if behaviour == "stubborn":
            while not gate.is_set():
                try:
                    await gate.wait()
                except asyncio.CancelledError:
                    continue


async def play(script: list[tuple[object, ...]]) -> None:
    scenario = Scenario(ManualClock(), PuppetEndpoint(), RecordingHandler())

    async def create(_, container):
        await scenario.behave(container.id)
        return Adjustment(), ()

    async def stop(container):
        await scenario.behave(container.id)
        return ()

    scenario.handler.on_create, scenario.handler.on_stop = create, stop
    async with serving(scenario.handler, scenario.endpoint, clock=scenario.clock):
        try:
            for step in script:
                await scenario.reconnected()
                await take(scenario, *step)
        finally:
            scenario.end()
        for _ in scenario.calls:
            await scenario.settle()
    check(scenario)


async def take(scenario: Scenario, action: str, *details) -> None:
    if action == "request":
        scenario.request(*details)
    elif action == "time":
        await scenario.settle()
        scenario.clock.advance(*details)
        await scenario.settle()
        scenario.check_deadlines()
    elif action == "open gates":
        scenario.open_gates()
    elif action == "drop":
        scenario.puppet.link.abort("")
        scenario.puppet = None
    else:
        await scenario.settle()


def check(scenario: Scenario) -> None:
    assert scenario.handler.overlaps == 0
    assert scenario.handler.begun == scenario.handler.ended
    missed = Counter(name for event, name, _ in scenario.handler.misses if event is not Event.SYNCHRONIZE)
    assert set(missed.values()) <= {1}
    assert set(missed) <= set(scenario.calls)
    for name, (future, _, puppet) in scenario.calls.items():
        behaviour = name.partition(" ")[2]
        if not future.done():
            assert puppet.ended.done(), f"{name} was never answered"
            continue
        code = future.result().code
        if code is Code.FAILED_PRECONDITION:
            assert behaviour == "refuses"
            assert name not in missed
        else:
            assert code is Code.OK
        if behaviour in {"fails", "fails late", "cancelled by others"}:
            assert name in missed


@given(st.lists(actions, max_size=25))
def test_promises(script):
    asyncio.run(play(script))
