"""Our codec against the runtime side of NRI, as containerd and CRI-O link it, in several versions."""

import select
from dataclasses import dataclass, field

import pytest

from bayplan._proto.nri import api_pb2
from bayplan.nri.wire import (
    MAX_MESSAGE_BYTES,
    Code,
    ConnectionClosed,
    MessageTooLargeError,
    TtrpcRequest,
    TtrpcResponse,
)

pytestmark = pytest.mark.interop

ALL_EVENTS = 0x7FF  # what every version knows
STATE_EVENTS = {
    "RunPodSandbox": api_pb2.RUN_POD_SANDBOX,
    "PostCreateContainer": api_pb2.POST_CREATE_CONTAINER,
    "StartContainer": api_pb2.START_CONTAINER,
    "PostStartContainer": api_pb2.POST_START_CONTAINER,
    "PostUpdateContainer": api_pb2.POST_UPDATE_CONTAINER,
    "RemoveContainer": api_pb2.REMOVE_CONTAINER,
    "StopPodSandbox": api_pb2.STOP_POD_SANDBOX,
    "RemovePodSandbox": api_pb2.REMOVE_POD_SANDBOX,
}


@dataclass
class Script:
    """The answers of a plugin: by method, UNIMPLEMENTED for what is not in here."""

    answers: dict = field(default_factory=dict)
    synchronized: list = field(default_factory=list)

    def __call__(self, request: TtrpcRequest) -> TtrpcResponse | None:
        if request.method in self.answers:
            answer = self.answers[request.method]
            return answer(request) if callable(answer) else TtrpcResponse(request.stream_id, payload=answer)
        if request.method == "Configure":
            return TtrpcResponse(
                request.stream_id, payload=api_pb2.ConfigureResponse(events=ALL_EVENTS).SerializeToString()
            )
        if request.method == "Synchronize":
            sync = api_pb2.SynchronizeRequest.FromString(request.payload)
            self.synchronized.append(sync)
            return TtrpcResponse(
                request.stream_id, payload=api_pb2.SynchronizeResponse(more=sync.more).SerializeToString()
            )
        return TtrpcResponse(request.stream_id, Code.UNIMPLEMENTED, f"method {request.method}")


@pytest.fixture
def script():
    return Script()


@pytest.fixture
def session(go_side, connect, script):
    """A runtime and a plugin that it has accepted."""

    def start(*flags):
        runtime = go_side(*flags)
        plugin = connect(runtime, script)
        plugin.register()
        assert runtime.notice()["error"] == ""
        # Synchronized is not yet listed: events pass the plugin by until one arrives.
        answers, script.answers = script.answers, {"StopContainer": b""}
        while not requests_of(plugin, "StopContainer"):
            assert runtime.do("StopContainer", pod="first", id="first")["error"] == ""
        del plugin.requests[-1]
        script.answers = answers
        return runtime, plugin

    return start


def adjustment(padding: int) -> bytes:
    adjust = api_pb2.ContainerAdjustment(annotations={"padding": "y" * padding})
    adjust.linux.resources.cpu.mems = "0-1"
    adjust.linux.resources.cpu.cpus = "2,4-7"
    return api_pb2.CreateContainerResponse(adjust=adjust).SerializeToString()


def padding_of(result: dict) -> int:
    assert result["error"] == ""
    return len(result["response"]["adjust"]["annotations"]["padding"])


def requests_of(plugin, method: str) -> list[TtrpcRequest]:
    return [request for request in plugin.requests if request.method == method]


def test_registration(session, script, nri_version):
    _, plugin = session("-pods", "3", "-containers", "6", "-request-timeout", "2s")
    configure, synchronize = plugin.requests[:2]
    assert (configure.service, configure.method) == ("nri.pkg.api.v1alpha1.Plugin", "Configure")
    assert 0 < configure.timeout_ns <= 2_000_000_000
    asked = api_pb2.ConfigureRequest.FromString(configure.payload)
    assert (asked.runtime_name, asked.runtime_version) == ("interop", "v0.0.1")
    assert (asked.request_timeout == 2000) == (nri_version != "0.6.1")
    assert asked.NRI_version == (f"v{nri_version}" if nri_version.startswith("0.12") else "")
    assert synchronize.method == "Synchronize"
    [sync] = script.synchronized
    assert [pod.id for pod in sync.pods] == ["pod0", "pod1", "pod2"]
    assert [container.pod_sandbox_id for container in sync.containers] == ["pod0", "pod1", "pod2"] * 2


def test_a_container_from_creation_to_removal(session, script, nri_version):
    script.answers["CreateContainer"] = adjustment(0)
    update = api_pb2.ContainerUpdate(container_id="other")
    update.linux.resources.cpu.cpus = "0-1"
    script.answers["UpdateContainer"] = api_pb2.UpdateContainerResponse(update=[update]).SerializeToString()
    script.answers["StopContainer"] = api_pb2.StopContainerResponse(update=[update]).SerializeToString()
    script.answers["StateChange"] = b""
    runtime, plugin = session()
    where = {"pod": "pod", "id": "ctr"}

    created = runtime.do("CreateContainer", **where)
    assert created["response"]["adjust"]["linux"]["resources"]["cpu"] == {"mems": "0-1", "cpus": "2,4-7"}
    for method in ("UpdateContainer", "StopContainer"):
        result = runtime.do(method, **where)
        updates = {each.get("containerId"): each for each in result["response"]["update"]}
        assert updates["other"]["linux"]["resources"]["cpu"] == {"cpus": "0-1"}

    for method, event in STATE_EVENTS.items():
        result = runtime.do(method, pod="pod", id="" if "Pod" in method else "ctr")
        assert result["error"] == ""
        change = api_pb2.StateChangeEvent.FromString(plugin.requests[-1].payload)
        assert plugin.requests[-1].method == "StateChange"
        assert (change.event, change.pod.id) == (event, "pod")
        assert change.container.id == ("" if "Pod" in method else "ctr")

    # From 0.12 on the method of the first event is tried; its UNIMPLEMENTED answers for all of them.
    tried = [request.method for request in plugin.requests if request.method in STATE_EVENTS]
    assert tried == (["RunPodSandbox"] if nri_version.startswith("0.12") else [])


def test_one_method_for_each_event(session, script, nri_version):
    if not nri_version.startswith("0.12"):
        script.answers["StateChange"] = b""
    script.answers |= dict.fromkeys(STATE_EVENTS, b"")
    runtime, plugin = session()
    for method in STATE_EVENTS:
        assert runtime.do(method, pod="pod", id="ctr")["error"] == ""
    assert bool(requests_of(plugin, "StateChange")) != nri_version.startswith("0.12")


def test_our_error_reaches_the_runtime_and_the_connection_stays(session, script):
    script.answers["CreateContainer"] = lambda request: TtrpcResponse(
        request.stream_id, Code.FAILED_PRECONDITION, "TopologyAffinityError: näh"
    )
    runtime, _ = session()
    for _ in range(2):
        assert "TopologyAffinityError: näh" in runtime.do("CreateContainer", pod="p", id="c")["error"]


def test_every_size_around_the_first_frame_in_both_directions(session, script):
    sizes = iter(range(4000, 4180))
    script.answers["CreateContainer"] = lambda request: TtrpcResponse(
        request.stream_id, payload=adjustment(next(sizes))
    )
    runtime, plugin = session()
    seen = set()
    for padding in range(3900, 4080):
        result = runtime.do("CreateContainer", pod="p", id="c", padding=padding)
        request = api_pb2.CreateContainerRequest.FromString(plugin.requests[-1].payload)
        assert len(request.container.env[0]) == padding
        assert padding_of(result) == padding + 100
        seen.add(len(plugin.requests[-1].payload))
    # With the envelope (some 80 bytes) the requests, too, grew out of one frame into two.
    assert min(seen) < 4096 - 100 < 4096 < max(seen)


@pytest.mark.parametrize("size", [5000, 8192, 65_536, 1_000_000, 4_090_000])
def test_large_messages_in_both_directions(session, script, size):
    script.answers["CreateContainer"] = adjustment(size)
    runtime, plugin = session()
    for _ in range(3):
        assert padding_of(runtime.do("CreateContainer", pod="p", id="c", padding=size)) == size
        request = api_pb2.CreateContainerRequest.FromString(plugin.requests[-1].payload)
        assert request.container.env == ["x" * size]


def test_our_largest_answer_and_one_byte_more(session, script):
    def answer(request):
        fixed = len(adjustment(1 << 21)) - (1 << 21)
        largest = TtrpcResponse(request.stream_id, payload=adjustment(MAX_MESSAGE_BYTES - fixed - 5))
        with pytest.raises(MessageTooLargeError) as caught:
            plugin.connection.send(
                TtrpcResponse(request.stream_id, payload=adjustment(MAX_MESSAGE_BYTES - fixed - 4))
            )
        if request.stream_id in refused:
            return TtrpcResponse(request.stream_id, Code.RESOURCE_EXHAUSTED, str(caught.value))
        return largest

    refused = set()
    script.answers["CreateContainer"] = answer
    runtime, plugin = session()
    assert padding_of(runtime.do("CreateContainer", pod="p", id="c")) > MAX_MESSAGE_BYTES - 100
    refused.add(plugin.requests[-1].stream_id + 2)
    assert "expected at most 4194304" in runtime.do("CreateContainer", pod="p", id="c")["error"]
    assert padding_of(runtime.do("CreateContainer", pod="p", id="c")) > MAX_MESSAGE_BYTES - 100


def test_synchronization_in_chunks(go_side, connect, script, nri_version):
    runtime = go_side("-pods", "1000", "-containers", "1000", "-padding", "10000")
    plugin = connect(runtime, script)
    plugin.register()
    if nri_version == "0.6.1":
        # It can't cut, sends 10 MB in one message, and takes our refusal for a failure of the plugin.
        plugin.wait_until(lambda: plugin.refused)
        assert plugin.refused[0].code is Code.RESOURCE_EXHAUSTED
        assert "expected at most 4194304" in runtime.notice()["error"]
        return
    assert runtime.notice()["error"] == ""
    assert len(script.synchronized) > 2
    assert [sync.more for sync in script.synchronized] == [True] * (len(script.synchronized) - 1) + [False]
    containers = [container for sync in script.synchronized for container in sync.containers]
    assert [container.id for container in containers] == [f"ctr{number}" for number in range(1000)]
    assert {len(container.env[0]) for container in containers} == {10_000}
    assert len([pod for sync in script.synchronized for pod in sync.pods]) == 1000


def test_updates_in_the_last_answer_to_synchronize(go_side, connect, script):
    updates = [api_pb2.ContainerUpdate(container_id=f"ctr{number}") for number in range(5)]
    for update in updates:
        update.linux.resources.cpu.mems = "0"
    script.answers["Synchronize"] = api_pb2.SynchronizeResponse(update=updates).SerializeToString()
    runtime = go_side("-containers", "5")
    connect(runtime, script).register()
    assert [each["containerId"] for each in runtime.notice()["synchronized"]] == [f"ctr{n}" for n in range(5)]


def test_our_calls(session):
    runtime, plugin = session()
    assert plugin.call("Nope").code is Code.UNIMPLEMENTED
    assert plugin.call("UpdateContainers", service="nope.Nope").code is Code.UNIMPLEMENTED
    assert plugin.call("UpdateContainers", b"\xff").code is not Code.OK
    for size in (0, 3900, 4000, 4010, 4020, 4030, 4040, 4050, 5000, 100_000, 4_100_000):
        update = api_pb2.ContainerUpdate(container_id="c")
        update.linux.resources.unified["memory.high"] = "1" * size
        request = api_pb2.UpdateContainersRequest(update=[update])
        assert plugin.call("UpdateContainers", request.SerializeToString()).code is Code.OK
        [updated] = runtime.notice()["updated"]
        assert len(updated["linux"]["resources"]["unified"]["memory.high"]) == size


def test_a_plugin_that_does_not_answer_is_hung_up_on(session, script):
    script.answers["CreateContainer"] = lambda _: None
    runtime, plugin = session("-request-timeout", "300ms")
    result = runtime.do("CreateContainer", pod="p", id="c")
    assert result["error"] == ""  # the container is created unadjusted
    assert "annotations" not in result["response"].get("adjust", {})
    assert plugin.end.get(timeout=60) == ConnectionClosed()
    # The late answer goes nowhere and harms nobody.
    assert plugin.connection.send(TtrpcResponse(plugin.requests[-1].stream_id, payload=adjustment(0)))


def test_a_plugin_that_stops_reading_gets_everything_when_it_goes_on(session, script):
    script.answers["CreateContainer"] = adjustment(10)
    runtime, plugin = session()
    plugin.pause()
    number = runtime.start("CreateContainer", pod="p", id="c", padding=4_000_000)
    # It is many times what a socket holds: the runtime is inside its write now, whatever its timeout.
    assert select.select([plugin.socket], [], [], 60)[0]
    assert runtime.waits(number)
    plugin.resume()
    assert padding_of(runtime.finish(number)) == 10
    request = api_pb2.CreateContainerRequest.FromString(plugin.requests[-1].payload)
    assert request.container.env == ["x" * 4_000_000]
