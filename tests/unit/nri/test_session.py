"""A session: taken in, dropped in every phase, back again; never two connections at once."""

import asyncio
import logging

import pytest

from bayplan._proto.nri import api_pb2 as pb
from bayplan.model.workload import Adjustment, Update
from bayplan.nri import Event, Session, Timeouts, UnixSocket
from bayplan.nri.translate import MAX_KEPT_BYTES
from bayplan.nri.versions import SPOKEN
from bayplan.nri.wire import Code, TtrpcResponse
from support.clock import ManualClock
from support.flavors import ALL, CONTAINERD_1_7_20
from support.memory_transport import MemoryEndpoint
from support.plugin import IDENTITY, Gate, RecordingHandler, serving
from support.puppet import Puppet, PuppetEndpoint
from support.runtime import FakeRuntime
from support.workloads import make_container, make_pod

FIRST_DELAY_S = 0.0501
"""The delay before the second attempt; nothing else is that short."""

CREATE_ANYTHING = pb.CreateContainerRequest(container=pb.Container(id="c1", name="main"))


async def test_registers_under_its_name_once():
    endpoint = PuppetEndpoint()
    async with serving(RecordingHandler(), endpoint):
        puppet = await endpoint.puppets.get()
        asked = await puppet.registration()
        await puppet.configure()
        assert (asked.plugin_name, asked.plugin_idx, asked.NRI_version) == ("bayplan", "90", SPOKEN)
        assert puppet.calls.empty()


async def test_configure_may_come_before_the_reply_to_the_registration():
    endpoint, handler, clock = PuppetEndpoint(), RecordingHandler(), ManualClock()
    async with serving(handler, endpoint, clock=clock) as session:
        puppet = await endpoint.puppets.get()
        registration = await puppet.calls.get()
        await puppet.configure()
        await puppet.call("Synchronize", pb.SynchronizeRequest())
        assert session.synchronized
        assert clock.armed == 1, "still waits for the reply"
        puppet.answer(registration)
        await puppet.call("Synchronize", pb.SynchronizeRequest())
        assert clock.armed == 0
    assert handler.heard[:2] == ["connected to containerd", "synchronize 0 0"]


@pytest.mark.parametrize("flavor", ALL, ids=str)
async def test_subscribes_to_what_the_runtime_knows(flavor):
    endpoint, handler = PuppetEndpoint(), RecordingHandler()
    async with serving(handler, endpoint):
        puppet = await endpoint.puppets.get()
        await puppet.registration()
        mask = await puppet.configure(flavor)
    assert mask == flavor.valid_mask & ~Event.VALIDATE_CONTAINER_ADJUSTMENT.bit


async def test_says_once_what_the_runtime_can_do(caplog):
    endpoint = PuppetEndpoint()
    with caplog.at_level(logging.INFO, "bayplan.nri"):
        async with serving(RecordingHandler(), endpoint) as session:
            puppet = await endpoint.puppets.get()
            await puppet.take_in(CONTAINERD_1_7_20)
            assert session.runtime.version == "1.7.20"
            assert not session.runtime.capabilities.oom_score_adj
    (record,) = [one for one in caplog.records if one.message.startswith("connected")]
    assert record.runtime_version == "1.7.20"
    assert record.nri_version == "0.6.1"
    assert record.capabilities["oom_score_adj"] is False
    assert "CREATE_CONTAINER" in record.events


class TestEndsInEveryPhase:
    """Whoever ends a connection, and whenever: there is a next one, and only one."""

    async def back_again(self, endpoint, clock) -> None:
        await clock.until_armed(FIRST_DELAY_S)
        clock.advance(10.0)
        puppet = await endpoint.puppets.get()
        await puppet.take_in()
        assert (await puppet.call("CreateContainer", CREATE_ANYTHING)).code is Code.OK

    async def test_before_the_registration(self):
        endpoint, handler, clock = PuppetEndpoint(), RecordingHandler(), ManualClock()
        async with serving(handler, endpoint, clock=clock):
            puppet = await endpoint.puppets.get()
            puppet.link.abort("rejected")
            await puppet.ended
            await self.back_again(endpoint, clock)
        assert handler.heard[0] == "connected to containerd", "nothing about the first"

    async def test_as_soon_as_it_is_made(self):
        class Hasty(PuppetEndpoint):
            async def connect(self, protocol) -> None:
                await super().connect(protocol)
                if self.attempts == 1:
                    puppet = await self.puppets.get()
                    puppet.link.abort("")
                    while protocol.open:  # noqa: ASYNC110 - no event reports it
                        await asyncio.sleep(0)

        endpoint, handler, clock = Hasty(), RecordingHandler(), ManualClock()
        async with serving(handler, endpoint, clock=clock):
            await self.back_again(endpoint, clock)

    async def test_after_the_registration(self):
        endpoint, handler, clock = PuppetEndpoint(), RecordingHandler(), ManualClock()
        async with serving(handler, endpoint, clock=clock):
            puppet = await endpoint.puppets.get()
            await puppet.registration()
            puppet.link.abort("")
            await self.back_again(endpoint, clock)

    async def test_after_configure_as_with_a_bad_mask(self):
        endpoint, handler, clock = PuppetEndpoint(), RecordingHandler(), ManualClock()
        async with serving(handler, endpoint, clock=clock):
            puppet = await endpoint.puppets.get()
            await puppet.registration()
            await puppet.configure()
            puppet.link.abort("")
            await self.back_again(endpoint, clock)
        assert handler.heard[:3] == [
            "connected to containerd",
            "disconnected",
            "connected to containerd",
        ]

    async def test_between_the_messages_of_synchronize(self):
        endpoint, handler, clock = PuppetEndpoint(), RecordingHandler(), ManualClock()
        async with serving(handler, endpoint, clock=clock):
            puppet = await endpoint.puppets.get()
            await puppet.registration()
            await puppet.configure()
            await puppet.call("Synchronize", pb.SynchronizeRequest(pods=[pb.PodSandbox(id="old")], more=True))
            puppet.link.abort("")
            await self.back_again(endpoint, clock)
        assert handler.pods == [], "what the first connection listed is forgotten"

    async def test_while_it_synchronizes(self):
        endpoint, handler, clock, gate = PuppetEndpoint(), RecordingHandler(), ManualClock(), Gate()
        handler.on_synchronize = gate.wait
        async with serving(handler, endpoint, clock=clock):
            puppet = await endpoint.puppets.get()
            await puppet.registration()
            await puppet.configure()
            puppet.call("Synchronize", pb.SynchronizeRequest())
            await gate.reached.wait()
            handler.on_synchronize = RecordingHandler().on_synchronize
            puppet.link.abort("")
            await self.back_again(endpoint, clock)
        assert handler.overlaps == 0
        assert [one[:2] for one in handler.misses] == [(Event.SYNCHRONIZE, "")]

    async def test_while_it_decides(self):
        endpoint, handler, clock, gate = PuppetEndpoint(), RecordingHandler(), ManualClock(), Gate()
        handler.on_stop = lambda _: gate.wait()
        async with serving(handler, endpoint, clock=clock):
            puppet = await endpoint.puppets.get()
            await puppet.take_in()
            container = pb.Container(id="c1", name="main")
            puppet.call("StopContainer", pb.StopContainerRequest(container=container))
            puppet.call("CreateContainer", CREATE_ANYTHING)
            await gate.reached.wait()
            puppet.link.abort("")
            await self.back_again(endpoint, clock)
        assert handler.overlaps == 0
        assert handler.heard[2:7] == [
            "stop main",
            "missed CREATE_CONTAINER",
            "missed STOP_CONTAINER",
            "disconnected",
            "connected to containerd",
        ]

    async def test_inside_a_message(self):
        endpoint, handler, clock = PuppetEndpoint(), RecordingHandler(), ManualClock()
        async with serving(handler, endpoint, clock=clock):
            puppet = await endpoint.puppets.get()
            await puppet.take_in()
            puppet.transport.write(bytes.fromhex("00000001 00000020 000000"))
            puppet.link.abort("")
            await self.back_again(endpoint, clock)
        assert "inside a message" in handler.ends[0]

    async def test_with_garbage(self):
        endpoint, handler, clock = PuppetEndpoint(), RecordingHandler(), ManualClock()
        async with serving(handler, endpoint, clock=clock):
            puppet = await endpoint.puppets.get()
            await puppet.take_in()
            puppet.transport.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            await puppet.ended
            await self.back_again(endpoint, clock)

    async def test_with_a_shutdown(self):
        endpoint, handler, clock = PuppetEndpoint(), RecordingHandler(), ManualClock()
        async with serving(handler, endpoint, clock=clock):
            puppet = await endpoint.puppets.get()
            await puppet.take_in()
            assert await puppet.call("Shutdown") == TtrpcResponse(5)
            await puppet.ended
            await self.back_again(endpoint, clock)
        assert handler.ends[0] == "the runtime shuts down"

    async def test_on_request(self):
        endpoint, handler, clock = PuppetEndpoint(), RecordingHandler(), ManualClock()
        async with serving(handler, endpoint, clock=clock) as session:
            puppet = await endpoint.puppets.get()
            await puppet.take_in()
            session.reconnect("the ledger looks wrong")
            await self.back_again(endpoint, clock)
        assert handler.ends[0] == "the ledger looks wrong"


async def test_a_decision_that_ends_its_own_connection_is_missed():
    endpoint, handler, clock = PuppetEndpoint(), RecordingHandler(), ManualClock()
    async with serving(handler, endpoint, clock=clock) as session:

        async def leave(*_):
            session.reconnect("enough")
            return Adjustment(), ()

        handler.on_create = leave
        puppet = await endpoint.puppets.get()
        await puppet.take_in()
        puppet.call("CreateContainer", CREATE_ANYTHING)
        await puppet.ended
        await clock.until_armed(FIRST_DELAY_S)
    assert [one[:2] for one in handler.misses] == [(Event.CREATE_CONTAINER, "c1")]


class TestRegistrationFails:
    async def test_refused_and_the_runtime_leaves_the_connection_open(self, caplog):
        endpoint, clock = PuppetEndpoint(), ManualClock()
        async with serving(RecordingHandler(), endpoint, clock=clock):
            puppet = await endpoint.puppets.get()
            request = await puppet.calls.get()
            puppet.link.send(TtrpcResponse(request.stream_id, Code.UNKNOWN, "invalid plugin name"))
            await puppet.ended
            await clock.until_armed(FIRST_DELAY_S)
        assert any("UNKNOWN: invalid plugin name" in getattr(record, "why", "") for record in caplog.records)

    async def test_no_reply_is_waited_for_longer_than_other_plugins_may_take(self):
        endpoint, clock = PuppetEndpoint(), ManualClock()
        async with serving(RecordingHandler(), endpoint, clock=clock):
            puppet = await endpoint.puppets.get()
            await puppet.calls.get()
            clock.advance(30.0)
            assert puppet.link.open
            clock.advance(Timeouts().registration_s - 30.0)
            await puppet.ended
            await clock.until_armed(FIRST_DELAY_S)
            clock.advance(10.0)
            await (await endpoint.puppets.get()).take_in()

    async def test_accepted_but_never_configured(self):
        endpoint, clock = PuppetEndpoint(), ManualClock()
        async with serving(RecordingHandler(), endpoint, clock=clock):
            puppet = await endpoint.puppets.get()
            await puppet.registration()
            await puppet.call("Shut", service="something else")
            clock.advance(Timeouts().registration_s)
            await puppet.ended

    async def test_a_synchronize_may_take_its_time(self):
        """The runtime finishes the pods that it is creating first, and that may pull images."""
        endpoint, clock = PuppetEndpoint(), ManualClock()
        async with serving(RecordingHandler(), endpoint, clock=clock) as session:
            puppet = await endpoint.puppets.get()
            await puppet.registration()
            await puppet.configure()
            clock.advance(3600.0)
            await puppet.call("Synchronize", pb.SynchronizeRequest())
            assert session.synchronized


class TestReconnecting:
    async def test_for_ever_with_growing_delays(self, caplog):
        endpoint, clock = PuppetEndpoint(), ManualClock()
        endpoint.refusing = True
        delays = []
        async with serving(RecordingHandler(), endpoint, clock=clock):
            for _ in range(8):
                delays.append(await clock.until_armed())
                clock.advance(delays[-1])
            assert delays == pytest.approx([0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0])
            endpoint.refusing = False
            clock.advance(1.0)
            await (await endpoint.puppets.get()).take_in()
        assert endpoint.attempts == 9
        warnings = [one for one in caplog.records if one.message.startswith("no connection")]
        assert [one.why for one in warnings] == ["puppet: nobody listens"], "said once, not at each attempt"

    async def connection(self, endpoint, clock, lasting_s: float) -> float:
        """One connection of that length; the delay after it."""
        puppet = await endpoint.puppets.get()
        await puppet.take_in()
        clock.advance(lasting_s)
        puppet.link.abort("")
        await puppet.ended
        return await clock.until_armed()

    async def test_a_connection_that_lasted_begins_the_delays_anew(self):
        endpoint, clock = PuppetEndpoint(), ManualClock()
        async with serving(RecordingHandler(), endpoint, clock=clock):
            delays = []
            for lasting_s in (0.0, 1.0, 3.0, 60.0, 0.0):
                delays.append(await self.connection(endpoint, clock, lasting_s))
                clock.advance(delays[-1])
        assert delays == pytest.approx([0.05, 0.1, 0.2, 0.05, 0.1])

    async def test_an_endpoint_that_is_good_once(self):
        runtime = FakeRuntime()
        handler = RecordingHandler()
        session = Session(handler, IDENTITY, MemoryEndpoint(runtime.accept, again=False))
        running = asyncio.create_task(session.run())
        await runtime.synchronized()
        await runtime.stop()
        await running
        assert handler.heard[-1].startswith("disconnected")

    async def test_an_endpoint_that_is_good_once_and_not_there(self, caplog):
        endpoint = MemoryEndpoint(FakeRuntime().accept, again=False)
        endpoint.refusing = True
        await Session(RecordingHandler(), IDENTITY, endpoint).run()
        assert endpoint.attempts == 1
        [record] = caplog.records
        assert record.message == "the only connection to the container runtime has ended"
        assert record.why


class TestSynchronizeFails:
    async def test_everything_is_answered_by_default_until_the_next_one_succeeds(self, caplog):
        endpoint, handler, clock = PuppetEndpoint(), RecordingHandler(), ManualClock()

        async def fail() -> tuple[Update, ...]:
            raise ZeroDivisionError

        handler.on_synchronize = fail
        async with serving(handler, endpoint, clock=clock) as session:
            puppet = await endpoint.puppets.get()
            await puppet.registration()
            await puppet.configure()
            assert await puppet.call("Synchronize", pb.SynchronizeRequest()) == TtrpcResponse(3)
            assert await puppet.call("CreateContainer", CREATE_ANYTHING) == TtrpcResponse(5)
            assert not session.synchronized
            assert "create main" not in handler.heard
            handler.on_synchronize = RecordingHandler().on_synchronize
            assert await clock.until_armed() == 0.5
            clock.advance(0.5)
            await puppet.ended
            await clock.until_armed(FIRST_DELAY_S)
            clock.advance(1.0)
            puppet = await endpoint.puppets.get()
            await puppet.take_in()
            await puppet.call("CreateContainer", CREATE_ANYTHING)
        assert [one[:2] for one in handler.misses] == [
            (Event.SYNCHRONIZE, ""),
            (Event.CREATE_CONTAINER, "c1"),
        ]
        assert handler.heard[-2] == "create main"

    async def test_too_slow(self):
        endpoint, handler, clock, gate = PuppetEndpoint(), RecordingHandler(), ManualClock(), Gate()
        handler.on_synchronize = gate.wait
        async with serving(handler, endpoint, clock=clock) as session:
            puppet = await endpoint.puppets.get()
            await puppet.registration()
            await puppet.configure()
            answer = puppet.call("Synchronize", pb.SynchronizeRequest())
            await gate.reached.wait()
            clock.advance(1.0)
            assert await answer == TtrpcResponse(3)
            assert not session.synchronized

    async def failed_at_first(self, endpoint, handler) -> Puppet:
        async def fail() -> tuple[Update, ...]:
            raise ZeroDivisionError

        handler.on_synchronize = fail
        puppet = await endpoint.puppets.get()
        await puppet.take_in()
        handler.on_synchronize = RecordingHandler().on_synchronize
        return puppet

    async def test_the_next_one_comes_on_the_same_connection(self):
        endpoint, handler, clock = PuppetEndpoint(), RecordingHandler(), ManualClock()
        async with serving(handler, endpoint, clock=clock) as session:
            puppet = await self.failed_at_first(endpoint, handler)
            await puppet.call("Synchronize", pb.SynchronizeRequest())
            assert session.synchronized
            clock.advance(100.0)
            assert (await puppet.call("CreateContainer", CREATE_ANYTHING)).code is Code.OK
        assert handler.heard[-2] == "create main"

    async def test_the_next_connection_is_not_given_up_for_the_failure_of_the_last(self):
        endpoint, handler, clock = PuppetEndpoint(), RecordingHandler(), ManualClock()
        async with serving(handler, endpoint, clock=clock):
            puppet = await self.failed_at_first(endpoint, handler)
            puppet.link.abort("")
            await clock.until_armed(FIRST_DELAY_S)
            clock.advance(0.1)
            puppet = await endpoint.puppets.get()
            await puppet.registration()
            await puppet.configure()
            clock.advance(10.0)
            await puppet.call("Synchronize", pb.SynchronizeRequest())
            assert (await puppet.call("CreateContainer", CREATE_ANYTHING)).code is Code.OK
        assert endpoint.attempts == 2

    async def test_unreadable(self):
        endpoint, clock = PuppetEndpoint(), ManualClock()
        async with serving(RecordingHandler(), endpoint, clock=clock):
            puppet = await endpoint.puppets.get()
            await puppet.registration()
            await puppet.configure()
            answer = await puppet.call("Synchronize", b"\xff")
            assert answer.code is Code.INVALID_ARGUMENT

    async def test_an_unreadable_message_ends_what_was_begun(self):
        endpoint, handler = PuppetEndpoint(), RecordingHandler()
        async with serving(handler, endpoint, clock=ManualClock()):
            puppet = await endpoint.puppets.get()
            await puppet.registration()
            await puppet.configure()
            begun = pb.SynchronizeRequest(pods=[pb.PodSandbox(id="old")], more=True)
            assert (await puppet.call("Synchronize", begun)).code is Code.OK
            broken = pb.SynchronizeRequest(pods=[pb.PodSandbox(id="older")]).SerializeToString() + b"\xff"
            assert (await puppet.call("Synchronize", broken)).code is Code.INVALID_ARGUMENT
            again = pb.SynchronizeRequest(pods=[pb.PodSandbox(id="new")])
            assert (await puppet.call("Synchronize", again)).code is Code.OK
        assert [pod.id for pod in handler.pods] == ["new"]

    async def test_a_list_without_end_ends_the_connection(self):
        endpoint, handler, clock = PuppetEndpoint(), RecordingHandler(), ManualClock()
        async with serving(handler, endpoint, clock=clock):
            puppet = await endpoint.puppets.get()
            await puppet.registration()
            await puppet.configure()
            large = pb.PodSandbox(id="p", annotations={"a": "x" * (2 << 20)})
            chunk = pb.SynchronizeRequest(pods=[large], more=True)
            taken = 0
            while (answer := await puppet.call("Synchronize", chunk)).code is Code.OK:
                taken += 1
            assert answer.code is Code.INVALID_ARGUMENT
            assert taken * (2 << 20) < MAX_KEPT_BYTES
            await clock.until_armed(FIRST_DELAY_S)
            assert not puppet.link.open
        assert "synchronize" not in handler.heard


class TestClose:
    async def test_what_was_asked_is_answered_first(self):
        endpoint, handler, gate = PuppetEndpoint(), RecordingHandler(), Gate()

        async def slow(*_):
            await gate.wait()
            return Adjustment(), ()

        handler.on_create = slow
        async with serving(handler, endpoint) as session:
            puppet = await endpoint.puppets.get()
            await puppet.take_in()
            answer = puppet.call("CreateContainer", CREATE_ANYTHING)
            await gate.reached.wait()
            closing = asyncio.create_task(session.close())
            gate.opened.set()
            assert (await answer).code is Code.OK
            await closing
            await puppet.ended
        assert handler.misses == []
        assert handler.heard[-1] == "disconnected"

    async def test_between_two_attempts(self):
        endpoint, clock = PuppetEndpoint(), ManualClock()
        endpoint.refusing = True
        session = Session(RecordingHandler(), IDENTITY, endpoint, clock=clock)
        running = asyncio.create_task(session.run())
        await clock.until_armed()
        await session.close()
        await running
        assert clock.armed == 0

    async def test_before_it_runs(self):
        endpoint = PuppetEndpoint()
        session = Session(RecordingHandler(), IDENTITY, endpoint)
        await session.close()
        await session.run()
        assert endpoint.attempts == 0

    async def test_cancelled_while_it_decides_it_answers_all_and_begins_nothing(self):
        endpoint, handler, gate = PuppetEndpoint(), RecordingHandler(), Gate()
        handler.on_event = lambda _: gate.wait()
        async with serving(handler, endpoint):  # which cancels at its end
            puppet = await endpoint.puppets.get()
            await puppet.take_in()
            puppet.call("StartContainer", pb.StartContainerRequest())
            puppet.call("CreateContainer", CREATE_ANYTHING)
            await gate.reached.wait()
        assert [event for event, _, _ in handler.misses] == [Event.CREATE_CONTAINER, Event.START_CONTAINER]
        assert "create main" not in handler.heard
        assert handler.begun == handler.ended

    async def test_a_handler_that_never_ends_holds_it_up_no_longer_than_a_deadline(self):
        endpoint, handler, clock, gate = PuppetEndpoint(), RecordingHandler(), ManualClock(), Gate()
        handler.on_event = lambda _: gate.wait()
        async with serving(handler, endpoint, clock=clock) as session:
            puppet = await endpoint.puppets.get()
            await puppet.take_in()
            puppet.call("StartContainer", pb.StartContainerRequest(), timeout_s=0)
            await gate.reached.wait()
            closing = asyncio.create_task(session.close())
            await asyncio.sleep(0)
            clock.advance(1.0)
            await closing
            await puppet.ended

    async def test_a_runtime_that_does_not_read_holds_it_up_no_longer_than_a_deadline(self, tmp_path):
        """On a real socket, with more unsent than it takes."""
        clock, handler = ManualClock(), RecordingHandler()
        runtime = FakeRuntime()
        await runtime.listen(tmp_path / "nri.sock")
        answered = asyncio.Event()

        async def large_answer(*_):
            answered.set()
            updates = [Update(f"c{number}", unified={"memory.low": "1" * 1000}) for number in range(2000)]
            return Adjustment(), updates

        handler.on_create = large_answer
        async with serving(handler, UnixSocket(str(tmp_path / "nri.sock")), clock=clock) as session:
            plugin = await runtime.synchronized()
            plugin.link._transport.pause_reading()
            creation = asyncio.create_task(runtime.create_container(make_pod(), make_container(make_pod())))
            await answered.wait()
            await session._queue.when_idle()
            closing = asyncio.create_task(session.close())
            await clock.until_armed()
            clock.advance(1.0)
            await closing
            plugin.drop("killed")
            await creation
        await runtime.stop()


async def test_a_crash_of_connected_or_disconnected_is_logged_and_survived(caplog):
    class Crashing(RecordingHandler):
        def connected(self, runtime) -> None:
            super().connected(runtime)
            if len(self.runtimes) == 1:
                raise ZeroDivisionError("connected")

        def disconnected(self, why) -> None:
            super().disconnected(why)
            raise ZeroDivisionError("disconnected")

    endpoint, handler, clock = PuppetEndpoint(), Crashing(), ManualClock()
    async with serving(handler, endpoint, clock=clock):
        puppet = await endpoint.puppets.get()
        await puppet.registration()
        await puppet.configure()
        await puppet.ended
        await clock.until_armed()
        clock.advance(1.0)
        await (await endpoint.puppets.get()).take_in()
    assert [str(one.exc_info[1]) for one in caplog.records if one.exc_info] == [
        "connected",
        "disconnected",
        "disconnected",
    ]
