"""What a runtime gets to hear: decisions, refusals, safe answers, whatever the handler does and whenever."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from bayplan._proto.nri import api_pb2 as pb
from bayplan.errors import PlacementError
from bayplan.model.workload import Adjustment, Update
from bayplan.nri import Event, Timeouts
from bayplan.nri.transport import MAX_UNSENT_BYTES
from bayplan.nri.wire import Code, TtrpcResponse
from bayplan.printable import MOST_CHARACTERS
from bayplan.sets import CpuSet, NodeSet
from support.clock import ManualClock
from support.flavors import CONTAINERD_2_2, CONTAINERD_2_3
from support.plugin import Gate, RecordingHandler, serving
from support.puppet import Puppet, PuppetEndpoint
from support.workloads import make_container, make_pod

POD = make_pod("web")
CONTAINER = make_container(POD, "main", memory_limit_bytes=1 << 20)
CREATE = pb.CreateContainerRequest(pod=POD, container=CONTAINER)
STOP = pb.StopContainerRequest(pod=POD, container=CONTAINER)
RESIZE = pb.UpdateContainerRequest(
    pod=POD,
    container=CONTAINER,
    linux_resources=pb.LinuxResources(
        memory=pb.LinuxMemory(limit=pb.OptionalInt64(value=0)),
        cpu=pb.LinuxCPU(shares=pb.OptionalUInt64(value=512)),
    ),
)

POD_EVENTS = {
    "RunPodSandbox": (Event.RUN_POD_SANDBOX, pb.RunPodSandboxRequest),
    "UpdatePodSandbox": (Event.UPDATE_POD_SANDBOX, pb.UpdatePodSandboxRequest),
    "PostUpdatePodSandbox": (Event.POST_UPDATE_POD_SANDBOX, pb.PostUpdatePodSandboxRequest),
    "StopPodSandbox": (Event.STOP_POD_SANDBOX, pb.StopPodSandboxRequest),
    "RemovePodSandbox": (Event.REMOVE_POD_SANDBOX, pb.RemovePodSandboxRequest),
}
CONTAINER_EVENTS = {
    "PostCreateContainer": (Event.POST_CREATE_CONTAINER, pb.PostCreateContainerRequest),
    "StartContainer": (Event.START_CONTAINER, pb.StartContainerRequest),
    "PostStartContainer": (Event.POST_START_CONTAINER, pb.PostStartContainerRequest),
    "PostUpdateContainer": (Event.POST_UPDATE_CONTAINER, pb.PostUpdateContainerRequest),
    "RemoveContainer": (Event.REMOVE_CONTAINER, pb.RemoveContainerRequest),
}


@asynccontextmanager
async def taken_in(
    handler: RecordingHandler,
    clock: ManualClock | None = None,
    timeouts: Timeouts | None = None,
    piece_bytes: int | None = None,
) -> AsyncIterator[Puppet]:
    endpoint = PuppetEndpoint(piece_bytes)
    async with serving(handler, endpoint, clock=clock, timeouts=timeouts):
        puppet = await endpoint.puppets.get()
        await puppet.take_in(CONTAINERD_2_3)
        handler.heard.clear()
        yield puppet


def created(response: TtrpcResponse) -> pb.CreateContainerResponse:
    assert response.code is Code.OK
    return pb.CreateContainerResponse.FromString(response.payload)


def returning(value):
    async def answer(*_):
        return value

    return answer


def raising(error: BaseException):
    async def fail(*_):
        raise error

    return fail


class TestDecisions:
    async def test_create(self):
        handler = RecordingHandler()
        handler.on_create = returning(
            (
                Adjustment(cpuset_mems=NodeSet([1]), oom_score_adj=-997),
                [Update("other", cpuset_cpus=CpuSet([0, 1]))],
            )
        )
        async with taken_in(handler) as puppet:
            answer = created(await puppet.call("CreateContainer", CREATE))
        assert answer.adjust.linux.resources.cpu.mems == "1"
        assert answer.adjust.linux.oom_score_adj.value == -997
        assert [update.container_id for update in answer.update] == ["other"]

    async def test_nothing_to_change_is_an_answer_of_no_bytes(self):
        async with taken_in(RecordingHandler()) as puppet:
            assert (await puppet.call("CreateContainer", CREATE)).payload == b""

    async def test_an_update_of_the_container_itself_would_fail_its_creation(self, caplog):
        handler = RecordingHandler()
        handler.on_create = returning((Adjustment(), [Update(CONTAINER.id, cpuset_cpus=CpuSet([0]))]))
        async with taken_in(handler) as puppet:
            assert not created(await puppet.call("CreateContainer", CREATE)).update
        assert caplog.records[-1].id == CONTAINER.id

    async def test_update(self):
        handler = RecordingHandler()
        handler.on_update = returning([Update(CONTAINER.id, cpuset_cpus=CpuSet([3]))])
        async with taken_in(handler) as puppet:
            response = await puppet.call("UpdateContainer", RESIZE)
        answer = pb.UpdateContainerResponse.FromString(response.payload)
        assert answer.update[0].linux.resources.cpu.cpus == "3"
        assert handler.resources[0].cpu_shares == 512
        assert handler.resources[0].memory_limit_bytes is None

    async def test_stop(self):
        handler = RecordingHandler()
        handler.on_stop = returning([Update("other", cpuset_cpus=CpuSet([3]))])
        async with taken_in(handler) as puppet:
            response = await puppet.call("StopContainer", STOP)
        assert pb.StopContainerResponse.FromString(response.payload).update[0].container_id == "other"

    @pytest.mark.parametrize("method", CONTAINER_EVENTS)
    async def test_events_of_containers_in_both_styles(self, method):
        event, kind = CONTAINER_EVENTS[method]
        handler = RecordingHandler()
        async with taken_in(handler) as puppet:
            assert (await puppet.call(method, kind(pod=POD, container=CONTAINER))).payload == b""
            old_style = pb.StateChangeEvent(event=int(event), pod=POD, container=CONTAINER)
            assert (await puppet.call("StateChange", old_style)).payload == b""
        assert handler.heard[:2] == [f"{event.name} main"] * 2

    @pytest.mark.parametrize("method", POD_EVENTS)
    async def test_events_of_pods_in_both_styles(self, method):
        event, kind = POD_EVENTS[method]
        handler = RecordingHandler()
        async with taken_in(handler) as puppet:
            assert (await puppet.call(method, kind(pod=POD))).payload == b""
            assert (
                await puppet.call("StateChange", pb.StateChangeEvent(event=int(event), pod=POD))
            ).payload == b""
        assert handler.heard[:2] == [f"{event.name} web"] * 2

    async def test_byte_by_byte(self):
        handler = RecordingHandler()
        handler.on_create = returning((Adjustment(cpuset_mems=NodeSet([1])), ()))
        async with taken_in(handler, piece_bytes=1) as puppet:
            large = make_container(POD, "large", ballast_bytes=6_000)
            answer = created(
                await puppet.call("CreateContainer", pb.CreateContainerRequest(pod=POD, container=large))
            )
        assert answer.adjust.linux.resources.cpu.mems == "1"


class TestUnknown:
    async def test_method(self):
        async with taken_in(RecordingHandler()) as puppet:
            response = await puppet.call("FrobnicateContainer")
            assert (response.code, response.message) == (Code.UNIMPLEMENTED, "method FrobnicateContainer")

    async def test_service(self):
        async with taken_in(RecordingHandler()) as puppet:
            response = await puppet.call("CreateContainer", service="nri.pkg.api.v2.Plugin")
            assert (response.code, response.message) == (Code.UNIMPLEMENTED, "service nri.pkg.api.v2.Plugin")

    async def test_event_of_the_future(self):
        handler = RecordingHandler()
        async with taken_in(handler) as puppet:
            assert (await puppet.call("StateChange", bytes.fromhex("0863"))).code is Code.OK
            assert handler.heard == []

    async def test_validation_is_never_subscribed_to_and_never_an_obstacle(self):
        async with taken_in(RecordingHandler()) as puppet:
            response = await puppet.call("ValidateContainerAdjustment", b"")
            assert not pb.ValidateContainerAdjustmentResponse.FromString(response.payload).reject

    @pytest.mark.parametrize("method", ["CreateContainer", "StateChange", "RunPodSandbox", "StartContainer"])
    async def test_an_unreadable_event_stops_nothing(self, method, caplog):
        async with taken_in(RecordingHandler()) as puppet:
            response = await puppet.call(method, b"\xff\xff")
            assert (response.code, response.payload) == (Code.OK, b"")
            assert method in caplog.records[-1].problem
            assert (await puppet.call("CreateContainer", CREATE)).code is Code.OK

    async def test_an_unreadable_configuration(self):
        endpoint = PuppetEndpoint()
        async with serving(RecordingHandler(), endpoint):
            puppet = await endpoint.puppets.get()
            await puppet.registration()
            assert (await puppet.call("Configure", b"\xff")).code is Code.INVALID_ARGUMENT


class TestRefusals:
    REFUSAL = PlacementError("shop/web/main", "4Gi do not fit")

    @pytest.mark.parametrize(
        ("method", "message"), [("CreateContainer", CREATE), ("UpdateContainer", RESIZE)]
    )
    async def test_the_user_reads_the_reason(self, method, message):
        handler = RecordingHandler()
        handler.on_create = handler.on_update = raising(self.REFUSAL)
        async with taken_in(handler) as puppet:
            response = await puppet.call(method, message)
        assert response.code is Code.FAILED_PRECONDITION
        assert response.message == str(self.REFUSAL)
        assert handler.misses == []

    @pytest.mark.parametrize(
        ("method", "message"),
        [
            ("RunPodSandbox", pb.RunPodSandboxRequest(pod=POD)),
            ("StartContainer", pb.StartContainerRequest(pod=POD, container=CONTAINER)),
            ("StopContainer", STOP),
            ("StateChange", pb.StateChangeEvent(event=pb.RUN_POD_SANDBOX, pod=POD)),
        ],
    )
    async def test_nothing_else_can_be_refused(self, method, message):
        handler = RecordingHandler()
        handler.on_stop = handler.on_event = raising(self.REFUSAL)
        async with taken_in(handler) as puppet:
            assert (await puppet.call(method, message)).code is Code.OK
            await puppet.call("CreateContainer", CREATE)
        assert len(handler.misses) == 1
        assert handler.misses[0][2].startswith("failed: PlacementError: TopologyAffinityError")


class TestFailures:
    @pytest.mark.parametrize("error", [ZeroDivisionError("oops"), TimeoutError(), asyncio.CancelledError()])
    async def test_the_safe_default_is_answered_and_the_next_request_served(self, error, caplog):
        handler = RecordingHandler()
        handler.on_create = raising(error)
        handler.fallback = Adjustment(cpuset_cpus=CpuSet([0, 1]))
        async with taken_in(handler) as puppet:
            answer = created(await puppet.call("CreateContainer", CREATE))
            assert answer.adjust.linux.resources.cpu.cpus == "0-1"
            assert not answer.update
            handler.on_create = returning((Adjustment(cpuset_mems=NodeSet([1])), ()))
            answer = created(await puppet.call("CreateContainer", CREATE))
            assert answer.adjust.linux.resources.cpu.mems == "1"
        assert [(event, name) for event, name, _ in handler.misses] == [
            (Event.CREATE_CONTAINER, CONTAINER.id)
        ]

    async def test_the_traceback_is_logged(self, caplog):
        handler = RecordingHandler()
        handler.on_stop = raising(ZeroDivisionError("oops"))
        async with taken_in(handler) as puppet:
            assert (await puppet.call("StopContainer", STOP)).code is Code.OK
        record = next(one for one in caplog.records if one.exc_info)
        assert record.exc_info[2] is not None
        assert record.id == CONTAINER.id
        assert record.event == "STOP_CONTAINER"

    async def test_an_answer_that_cannot_be_said(self):
        handler = RecordingHandler()
        handler.on_create = returning((Adjustment(cpuset_cpus=CpuSet()), ()))
        handler.fallback = Adjustment(cpuset_cpus=CpuSet([0]))
        async with taken_in(handler) as puppet:
            answer = created(await puppet.call("CreateContainer", CREATE))
            assert answer.adjust.linux.resources.cpu.cpus == "0"
        assert "cpuset.cpus: " in handler.misses[0][2]

    async def test_an_answer_of_more_than_4_mib(self):
        handler = RecordingHandler()
        handler.on_create = returning((Adjustment(unified={"memory.low": "1" * (4 << 20)}), ()))
        handler.fallback = Adjustment(cpuset_cpus=CpuSet([0]))
        async with taken_in(handler) as puppet:
            answer = created(await puppet.call("CreateContainer", CREATE))
            assert answer.adjust.linux.resources.cpu.cpus == "0"
            assert (await puppet.call("StopContainer", STOP)).code is Code.OK
        assert "unsendable answer" in handler.misses[0][2]

    @pytest.mark.parametrize("method", ["fallback_adjustment", "missed"])
    async def test_a_safe_default_that_fails_itself(self, method, caplog):
        class Hopeless(RecordingHandler):
            pass

        def fail(*_):
            raise ZeroDivisionError(method)

        setattr(Hopeless, method, fail)
        handler = Hopeless()
        handler.on_create = raising(ValueError("first"))
        async with taken_in(handler) as puppet:
            assert (await puppet.call("CreateContainer", CREATE)).code is Code.OK
            assert (await puppet.call("StopContainer", STOP)).code is Code.OK
        assert [str(one.exc_info[1]) for one in caplog.records if one.exc_info] == ["first", method]


class TestDeadline:
    async def test_the_default_is_answered_at_the_deadline(self):
        handler, clock, gate = RecordingHandler(), ManualClock(), Gate()
        handler.on_create = lambda *_: gate.wait()
        handler.fallback = Adjustment(cpuset_cpus=CpuSet([0, 1]))
        async with taken_in(handler, clock) as puppet:
            answer = puppet.call("CreateContainer", CREATE)
            await gate.reached.wait()
            clock.advance(0.99)
            assert not answer.done()
            clock.advance(0.02)
            assert created(await answer).adjust.linux.resources.cpu.cpus == "0-1"
            await puppet.call("StopContainer", STOP)
        assert [one[:2] for one in handler.misses] == [(Event.CREATE_CONTAINER, CONTAINER.id)]
        assert handler.heard[:3] == ["create main", "missed CREATE_CONTAINER", "stop main"]

    async def test_a_late_result_is_thrown_away(self):
        handler, clock, gate = RecordingHandler(), ManualClock(), Gate()

        async def stubborn(*_):
            try:
                await gate.wait()
            except asyncio.CancelledError:
                return Adjustment(cpuset_mems=NodeSet([7])), ()

        handler.on_create = stubborn
        async with taken_in(handler, clock) as puppet:
            answer = puppet.call("CreateContainer", CREATE)
            await gate.reached.wait()
            clock.advance(1.0)
            assert await answer == TtrpcResponse(answer.result().stream_id)
            await puppet.call("StopContainer", STOP)
        assert len(handler.misses) == 1

    async def test_a_late_refusal_is_thrown_away(self, caplog):
        handler, clock, gate = RecordingHandler(), ManualClock(), Gate()

        async def stubborn(*_):
            try:
                await gate.wait()
            except asyncio.CancelledError:
                raise PlacementError("main", "no") from None

        handler.on_create = stubborn
        async with taken_in(handler, clock) as puppet:
            answer = puppet.call("CreateContainer", CREATE)
            await gate.reached.wait()
            clock.advance(1.0)
            assert (await answer).code is Code.OK
            await puppet.call("StopContainer", STOP)
        assert len(handler.misses) == 1

    async def test_a_late_failure_is_told_once(self, caplog):
        handler, clock, gate = RecordingHandler(), ManualClock(), Gate()

        async def clumsy(*_):
            try:
                await gate.wait()
            finally:
                raise ZeroDivisionError("while cleaning up")

        handler.on_create = clumsy
        async with taken_in(handler, clock) as puppet:
            answer = puppet.call("CreateContainer", CREATE)
            await gate.reached.wait()
            clock.advance(1.0)
            assert (await answer).code is Code.OK
            await puppet.call("StopContainer", STOP)
        assert len(handler.misses) == 1
        assert [str(one.exc_info[1]) for one in caplog.records if one.exc_info] == ["while cleaning up"]

    @pytest.mark.parametrize(
        ("timeout_s", "budget_s"),
        [(2.0, 1.0), (1.0, 0.75), (0.5, 0.25), (0.1, 0.05), (30.0, 1.0), (0.0, 1.0), (-1.0, 0.0)],
    )
    def test_budget(self, timeout_s, budget_s):
        assert Timeouts().budget_s(int(timeout_s * 1e9)) == pytest.approx(budget_s)

    async def test_a_runtime_with_less_patience(self):
        handler, clock, gate = RecordingHandler(), ManualClock(), Gate()
        handler.on_create = lambda *_: gate.wait()
        async with taken_in(handler, clock) as puppet:
            answer = puppet.call("CreateContainer", CREATE, timeout_s=0.4)
            await gate.reached.wait()
            clock.advance(0.2)
            await answer
            await puppet.call("StopContainer", STOP)
        assert "200 ms" in handler.misses[0][2]

    async def test_what_waits_behind_a_handler_that_never_ends_is_answered_in_time(self):
        handler, clock, gate = RecordingHandler(), ManualClock(), Gate()

        async def stuck(*_):
            while True:
                try:
                    await gate.wait()
                except asyncio.CancelledError:
                    if gate.opened.is_set():
                        raise
                else:
                    return ()

        handler.on_stop = stuck
        handler.fallback = Adjustment(cpuset_cpus=CpuSet([0]))
        async with taken_in(handler, clock) as puppet:
            first = puppet.call("StopContainer", STOP)
            await gate.reached.wait()
            clock.advance(1.0)
            await first
            for number in range(3):
                clock_armed = clock.armed
                answer = puppet.call("CreateContainer", CREATE)
                if not clock_armed:
                    await clock.until_armed()
                clock.advance(1.0)
                assert created(await answer).adjust.linux.resources.cpu.cpus == "0"
                assert len(handler.misses) == number + 1
            assert "create main" not in handler.heard
            gate.opened.set()
            assert (await puppet.call("CreateContainer", CREATE)).code is Code.OK
        assert handler.heard[-2:] == ["create main", "disconnected"]
        assert handler.overlaps == 0


class TestReading:
    async def test_goes_on_while_a_handler_is_stuck(self):
        """A request larger than any socket buffer arrives while a handler does not answer."""
        handler, gate = RecordingHandler(), Gate()

        async def wait(*_):
            await gate.wait()
            return ()

        handler.on_stop = wait
        async with taken_in(handler) as puppet:
            stuck = puppet.call("StopContainer", STOP)
            await gate.reached.wait()
            large = make_container(POD, "large")
            large.env.append("X" * (4 << 20 - 1))
            last = puppet.call("CreateContainer", pb.CreateContainerRequest(pod=POD, container=large))
            answered_at_once = await puppet.call("FrobnicateContainer")
            assert answered_at_once.code is Code.UNIMPLEMENTED
            assert puppet.transport.get_write_buffer_size() == 0
            gate.opened.set()
            await asyncio.gather(stuck, last)

    async def test_a_flood_is_served_in_order_and_beyond_the_limit_refused(self, caplog):
        handler, gate = RecordingHandler(), Gate()

        async def wait(*_):
            await gate.wait()
            return Adjustment(), ()

        handler.on_create = wait
        async with taken_in(handler) as puppet:
            for number in range(200):
                container = make_container(POD, f"c{number}")
                puppet.call_and_forget(
                    "CreateContainer", pb.CreateContainerRequest(pod=POD, container=container)
                )
            await gate.reached.wait()
            assert (await puppet.call("StopContainer", STOP)).code is Code.RESOURCE_EXHAUSTED
            gate.opened.set()
            while (await puppet.call("StopContainer", STOP)).code is not Code.OK:
                pass
        assert handler.heard[:65] == [f"create c{number}" for number in range(64)] + ["stop main"]
        assert len([one for one in caplog.records if one.message == "request refused"]) >= 136
        assert handler.overlaps == 0
        assert handler.misses == []

    async def test_a_flood_that_never_reads_its_answers_is_cut_off(self):
        handler, clock = RecordingHandler(), ManualClock()
        endpoint = PuppetEndpoint()
        async with serving(handler, endpoint, clock=clock):
            puppet = await endpoint.puppets.get()
            await puppet.take_in()
            puppet.transport.pause_reading()
            for _ in range(MAX_UNSENT_BYTES // MOST_CHARACTERS + 10):
                puppet.call_and_forget("Frobnicate" + "x" * MOST_CHARACTERS)
                await asyncio.sleep(0)
            await clock.until_armed(0.0501)
            assert puppet.transport.get_write_buffer_size() < 100 * MOST_CHARACTERS
            assert puppet.transport.waiting_bytes < MAX_UNSENT_BYTES + 100_000
            puppet.transport.resume_reading()
            await puppet.ended
        assert handler.heard[-1] == "disconnected"

    async def test_runtimes_of_the_old_style_work_as_well(self):
        endpoint, handler = PuppetEndpoint(), RecordingHandler()
        async with serving(handler, endpoint):
            puppet = await endpoint.puppets.get()
            await puppet.take_in(CONTAINERD_2_2)
            await puppet.call("StateChange", pb.StateChangeEvent(event=pb.RUN_POD_SANDBOX, pod=POD))
        assert handler.heard[2] == "RUN_POD_SANDBOX web"
