"""One at a time, in order, each answered once and none beyond its deadline, whatever the handler does."""

import asyncio
from functools import partial

from bayplan.nri import Event, Timeouts
from bayplan.nri.request_queue import RequestQueue
from bayplan.nri.translate import Operation
from bayplan.nri.wire import TtrpcResponse
from support.clock import ManualClock
from support.coroutines import PATIENCE_S
from support.plugin import Gate, RecordingHandler

NS = 1_000_000_000


class Asked(Operation):
    """A request whose decision is *work*."""

    event = Event.START_CONTAINER

    def __init__(self, name: str, log: list[str], work=None) -> None:
        self.container_id = name
        self.log = log
        self.work = work

    async def perform(self, handler) -> bytes:
        self.log.append(f"{self.container_id} begins")
        try:
            if self.work is not None:
                await self.work()
        except asyncio.CancelledError:
            self.log.append(f"{self.container_id} is cancelled")
            raise
        return b"decision"


class Node(RecordingHandler):
    """A queue, its handler and a connection; ``log`` has what happens, in order."""

    def __init__(self, clock: ManualClock | None = None) -> None:
        super().__init__()
        self.log: list[str] = []
        self.why: dict[str, str] = {}
        self.synchronized = True
        self.open = True
        self.names: list[str] = []
        timeouts = Timeouts(answer_s=9.0, margin_s=0.0)
        self.queue = RequestQueue(self, clock or ManualClock(), timeouts)

    def put(self, name: str, work=None, budget_s: float = 1.0) -> None:
        self.names.append(name)
        operation = Asked(name, self.log, work)
        self.queue.put(operation, self, len(self.names) - 1, int(budget_s * NS))

    def send(self, response: TtrpcResponse) -> bool:
        what = "is answered" if response.payload else "is answered by default"
        self.log.append(f"{self.names[response.stream_id]} {what}")
        return self.open

    def synchronization_ended(self, *, succeeded: bool) -> None:
        raise AssertionError

    def missed(self, event, container_id, why, _=None) -> None:
        self.why[container_id] = why
        self.log.append(f"{container_id} is missed")


async def ignore_cancellation(gate: Gate) -> None:
    """Goes on after it was cancelled, until the gate opens."""
    try:
        await gate.wait()
    except asyncio.CancelledError:
        await gate.opened.wait()


async def test_in_order_and_one_at_a_time():
    node, gate = Node(), Gate()
    node.put("a", gate.wait)
    node.put("b")
    node.put("c")
    await gate.reached.wait()
    assert node.log == ["a begins"]
    assert node.queue.busy
    gate.opened.set()
    await node.queue.when_idle()
    assert node.log == [f"{name} {what}" for name in "abc" for what in ("begins", "is answered")]
    assert not node.queue.busy


async def test_a_timer_answers_at_the_deadline_and_the_handler_is_cancelled_once():
    clock, gate = ManualClock(), Gate()
    node = Node(clock)
    node.put("late", gate.wait)
    node.put("next", budget_s=5.0)
    await gate.reached.wait()
    clock.advance(0.999)
    assert node.log == ["late begins"]
    clock.advance(0.001)
    assert node.log == ["late begins", "late is answered by default"], "before anything else runs"
    await node.queue.when_idle()
    assert node.why == {"late": "no answer within 1000 ms"}
    assert clock.armed == 0
    assert node.log[2:] == ["late is cancelled", "late is missed", "next begins", "next is answered"]


async def test_the_next_one_does_not_begin_before_a_stubborn_one_has_ended():
    clock, gate = ManualClock(), Gate()
    node = Node(clock)

    node.put("a", partial(ignore_cancellation, gate))
    await gate.reached.wait()
    clock.advance(1.0)
    node.put("b")
    clock.advance(1.0)
    assert node.log == ["a begins", "a is answered by default", "b is answered by default", "b is missed"]
    assert node.why["b"] == "waited 1000 ms behind another request"
    node.put("c")
    await asyncio.sleep(0)
    assert "c begins" not in node.log
    gate.opened.set()
    await node.queue.when_idle()
    assert node.log[4:] == ["a is missed", "c begins", "c is answered"]


async def test_one_that_swallows_its_cancellation_and_succeeds_does_not_harm_the_next():
    clock, gate = ManualClock(), Gate()
    node = Node(clock)

    async def swallow() -> None:
        try:
            await gate.wait()
        except asyncio.CancelledError:
            node.log.append("swallowed")

    async def uses_a_timeout() -> None:
        async with asyncio.timeout(PATIENCE_S):  # would see a cancellation that was left behind
            await asyncio.get_running_loop().run_in_executor(None, node.log.append, "thread")

    node.put("a", swallow)
    node.put("b", uses_a_timeout, budget_s=9.0)
    await gate.reached.wait()
    clock.advance(1.0)
    await node.queue.when_idle()
    assert node.log == [
        "a begins",
        "a is answered by default",
        "swallowed",
        "a is missed",
        "b begins",
        "thread",
        "b is answered",
    ]


async def test_something_that_a_handler_waits_for_is_cancelled_by_others():
    node = Node()
    future = asyncio.get_running_loop().create_future()

    async def wait_for_it() -> None:
        await future

    node.put("a", wait_for_it)
    node.put("b")
    asyncio.get_running_loop().call_soon(future.cancel)
    await node.queue.when_idle()
    assert node.why == {"a": "something that it waited for was cancelled"}
    assert "b is answered" in node.log


async def test_abandon():
    node, gate = Node(), Gate()
    node.put("a", gate.wait)
    node.put("b")
    await gate.reached.wait()
    node.queue.abandon("gone")
    node.put("c")
    await node.queue.when_idle()
    assert node.log == [
        "a begins",
        "b is answered by default",
        "b is missed",
        "a is answered by default",
        "a is cancelled",
        "a is missed",
        "c begins",
        "c is answered",
    ]
    assert node.why == {"a": "gone", "b": "gone"}


async def test_abandoned_before_the_handler_is_asked():
    clock = ManualClock()
    node = Node(clock)
    node.put("a")
    node.queue.abandon("gone")
    await node.queue.when_idle()
    assert node.log == ["a is answered by default", "a is missed"]
    assert clock.armed == 0


async def test_a_deadline_after_abandon_changes_nothing():
    clock, gate = ManualClock(), Gate()
    node = Node(clock)

    node.put("a", partial(ignore_cancellation, gate))
    await gate.reached.wait()
    node.queue.abandon("gone")
    assert clock.armed == 0
    gate.opened.set()
    await node.queue.when_idle()
    assert node.log == ["a begins", "a is answered by default", "a is missed"]


async def test_nothing_is_decided_before_a_synchronize():
    node = Node()
    node.synchronized = False
    node.put("a")
    await node.queue.when_idle()
    assert node.log == ["a is answered by default", "a is missed"]
    assert node.why == {"a": "not synchronized with the runtime"}


async def test_a_decision_that_reaches_nobody_is_missed():
    node = Node()
    node.open = False
    node.put("a")
    await node.queue.when_idle()
    assert node.log == ["a begins", "a is answered", "a is missed"]
    assert node.why == {"a": "the connection ended before the answer"}
