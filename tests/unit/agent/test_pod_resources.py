"""The PodResources service over its real socket, with and without kubelet, and in trouble."""

# ruff: noqa: ASYNC240 - files are touched between the steps of a scenario, nothing else is running

import asyncio
import contextlib
import logging
import socket
import stat
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import grpc
import pytest

from bayplan._proto.podresources import api_pb2 as pb
from bayplan.agent.pod_resources import MAX_REQUEST_BYTES, KubeletPodResources, PodResourcesService
from bayplan.errors import UnavailableError
from bayplan.views.snapshot import Snapshot
from support.kubelet_pod_resources import KubeletService
from support.snapshots import make_snapshot

GPU = pb.ContainerDevices(resource_name="example.com/gpu", device_ids=["gpu-0"])
NGINX = pb.PodResources(
    namespace="default", name="web-0", containers=[pb.ContainerResources(name="nginx", devices=[GPU])]
)
PODS = pb.ListPodResourcesResponse(pod_resources=[NGINX])
ALLOCATABLE = pb.AllocatableResourcesResponse(devices=[GPU])


class Client:
    """The three calls over the service's socket."""

    def __init__(self, channel) -> None:
        self._channel = channel

    async def _call(self, method: str, request, answer):
        call = self._channel.unary_unary(
            f"/v1.PodResourcesLister/{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=answer.FromString,
        )
        return await call(request)

    async def pods(self) -> pb.ListPodResourcesResponse:
        return await self._call("List", pb.ListPodResourcesRequest(), pb.ListPodResourcesResponse)

    async def pod(self, namespace: str, name: str) -> pb.PodResources:
        request = pb.GetPodResourcesRequest(pod_namespace=namespace, pod_name=name)
        return (await self._call("Get", request, pb.GetPodResourcesResponse)).pod_resources

    async def allocatable(self) -> pb.AllocatableResourcesResponse:
        request = pb.AllocatableResourcesRequest()
        return await self._call("GetAllocatableResources", request, pb.AllocatableResourcesResponse)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ours.sock"


@pytest.fixture
def kubelet_path(tmp_path: Path) -> Path:
    return tmp_path / "kubelet.sock"


@contextlib.asynccontextmanager
async def serving(
    path: Path,
    kubelet: KubeletPodResources,
    snapshot: Callable[[], Snapshot | None] = make_snapshot,
) -> AsyncIterator[Client]:
    service = PodResourcesService(path, snapshot, kubelet)
    await service.start()
    try:
        async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
            yield Client(channel)
    finally:
        await service.close()


@contextlib.asynccontextmanager
async def failing(code: grpc.StatusCode, text: str) -> AsyncIterator[None]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        yield
    assert caught.value.code() is code
    assert text in caught.value.details()


async def test_all_three_calls_are_answered_with_kubelets_devices(path: Path, kubelet_path: Path) -> None:
    async with (
        KubeletService(kubelet_path, PODS, ALLOCATABLE),
        serving(path, KubeletPodResources(kubelet_path)) as client,
    ):
        listed = await client.pods()
        assert [pod.name for pod in listed.pod_resources] == ["job", "web-0", "agent"]
        pod = await client.pod("default", "web-0")
        assert pod == listed.pod_resources[1]
        assert list(pod.containers[0].devices) == [GPU]
        assert list(pod.containers[0].cpu_ids) == [2, 3]
        assert list((await client.allocatable()).devices) == [GPU]
        async with failing(grpc.StatusCode.NOT_FOUND, "pod gone in namespace default not found"):
            await client.pod("default", "gone")


async def test_without_a_kubelet_everything_else_is_answered(
    path: Path, kubelet_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for kubelet in (KubeletPodResources(None), KubeletPodResources(kubelet_path)):
        caplog.clear()
        async with serving(path, kubelet) as client:
            for _ in range(3):
                assert len((await client.pods()).pod_resources) == 3
            assert not (await client.allocatable()).devices
    assert [record.message for record in caplog.records] == ["kubelet's PodResources are missing"]


async def test_nothing_is_said_before_the_daemon_has_said_anything(path: Path) -> None:
    async with serving(path, KubeletPodResources(None), lambda: None) as client:
        for call in (client.pods(), client.allocatable(), client.pod("default", "web-0")):
            async with failing(grpc.StatusCode.UNAVAILABLE, "baypland has not said yet"):
                await call


async def test_a_failing_kubelet_fails_the_answer_and_is_logged_once(
    path: Path, kubelet_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kubelet = KubeletPodResources(kubelet_path, failure_holds_s=0)
    caplog.set_level(logging.INFO, "bayplan")
    async with KubeletService(kubelet_path, PODS) as theirs, serving(path, kubelet) as client:
        theirs.failure = grpc.StatusCode.INTERNAL
        for _ in range(3):
            async with failing(grpc.StatusCode.UNAVAILABLE, "kubelet does not answer: INTERNAL"):
                await client.pods()
        theirs.failure = None
        assert list((await client.pod("default", "web-0")).containers[0].devices) == [GPU]
    assert [(record.levelname, record.message) for record in caplog.records] == [
        ("WARNING", "kubelet's PodResources are missing"),
        ("INFO", "kubelet's PodResources are there again"),
    ]


async def test_a_failure_holds_for_all_who_ask_meanwhile(path: Path, kubelet_path: Path) -> None:
    kubelet = KubeletPodResources(kubelet_path, failure_holds_s=3600)
    async with KubeletService(kubelet_path) as theirs, serving(path, kubelet) as client:
        theirs.failure = grpc.StatusCode.RESOURCE_EXHAUSTED
        for _ in range(5):
            async with failing(grpc.StatusCode.UNAVAILABLE, "RESOURCE_EXHAUSTED"):
                await client.pods()
    assert theirs.calls == ["List"]


async def test_a_kubelet_that_hangs_costs_its_deadline(path: Path, kubelet_path: Path) -> None:
    kubelet = KubeletPodResources(kubelet_path, deadline_s=0.05)
    async with KubeletService(kubelet_path) as theirs, serving(path, kubelet) as client:
        theirs.hold = asyncio.Event()
        async with failing(grpc.StatusCode.UNAVAILABLE, "DEADLINE_EXCEEDED"):
            await client.pods()
        theirs.hold.set()


async def test_all_who_ask_at_once_share_one_call_that_survives_one_who_leaves(
    path: Path, kubelet_path: Path
) -> None:
    kubelet = KubeletPodResources(kubelet_path)
    async with KubeletService(kubelet_path, PODS) as theirs:
        theirs.hold = asyncio.Event()
        callers = [asyncio.create_task(kubelet.pods()) for _ in range(20)]
        while not theirs.calls:  # noqa: ASYNC110 - the call is on its way through the kernel
            await asyncio.sleep(0)
        callers[0].cancel()
        theirs.hold.set()
        first, *others = await asyncio.gather(*callers, return_exceptions=True)
        await kubelet.close()
    assert isinstance(first, asyncio.CancelledError)
    assert all(answer == PODS for answer in others)
    assert theirs.calls == ["List"]


async def test_a_kubelet_that_starts_again_is_found_again(path: Path, kubelet_path: Path) -> None:
    kubelet = KubeletPodResources(kubelet_path, failure_holds_s=0)
    async with serving(path, kubelet) as client:
        for _ in range(2):
            async with KubeletService(kubelet_path, PODS):
                devices = []
                while not devices:
                    # The channel may still wait before it tries to connect again.
                    with contextlib.suppress(grpc.aio.AioRpcError):
                        devices = list((await client.pod("default", "web-0")).containers[0].devices)
                assert devices == [GPU]


@pytest.mark.parametrize("rubbish", [b"\n", b"GET / HTTP/1.1\r\n\r\n", bytes(range(256)) * 64])
async def test_what_is_not_http_2_is_disconnected(path: Path, rubbish: bytes) -> None:
    async with serving(path, KubeletPodResources(None)) as client:
        reader, writer = await asyncio.open_unix_connection(path)
        with contextlib.suppress(ConnectionError):
            writer.write(rubbish)
            writer.write_eof()
            while await reader.read(1 << 16):
                pass  # SETTINGS and GOAWAY
        writer.transport.abort()
        assert (await client.pods()).pod_resources


async def test_an_oversized_request_is_refused(path: Path) -> None:
    async with serving(path, KubeletPodResources(None)) as client:
        async with failing(grpc.StatusCode.RESOURCE_EXHAUSTED, "larger than max"):
            await client.pod("default", "x" * MAX_REQUEST_BYTES)
        assert (await client.pods()).pod_resources


async def test_clients_that_say_nothing_keep_nobody_from_an_answer(path: Path) -> None:
    async with serving(path, KubeletPodResources(None)) as client:
        with contextlib.ExitStack() as stack:
            for _ in range(200):
                silent = stack.enter_context(socket.socket(socket.AF_UNIX))
                silent.connect(str(path))
            assert (await client.pods()).pod_resources


async def test_the_socket_is_for_its_owner_and_group_and_only_one_serves_it(path: Path) -> None:
    async with serving(path, KubeletPodResources(None)) as client:
        assert stat.S_IMODE(path.stat().st_mode) == 0o660
        second = PodResourcesService(path, make_snapshot, KubeletPodResources(None))
        with pytest.raises(UnavailableError, match="another process serves there"):
            await second.start()
        assert (await client.pods()).pod_resources
    path.unlink(missing_ok=True)
    path.write_text("somebody's notes")
    with pytest.raises(UnavailableError, match="not a socket"):
        await second.start()
    assert path.read_text() == "somebody's notes"


@pytest.mark.parametrize("method", ["List", "Get", "GetAllocatableResources"])
async def test_a_request_that_cannot_be_read_is_answered_and_nothing_logged(
    path: Path, method: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(path, KubeletPodResources(None)) as client:
        for garbage in (b"\xff\xff", b"\x0a"):
            call = client._channel.unary_unary(f"/v1.PodResourcesLister/{method}")
            async with failing(grpc.StatusCode.INVALID_ARGUMENT, "v1."):
                await call(garbage)
    # Beside pollers that earlier tests left to asyncio.
    assert not [one for one in caplog.records if not one.name.startswith(("bayplan", "asyncio"))]


async def test_an_answer_of_kubelets_that_cannot_be_read_is_said_once(
    path: Path, kubelet_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with KubeletService(kubelet_path) as kubelet:
        kubelet.garbage = b"\xff\xff"
        async with serving(path, KubeletPodResources(kubelet_path, failure_holds_s=0)) as client:
            for _ in range(2):
                async with failing(grpc.StatusCode.UNAVAILABLE, "ListPodResourcesResponse"):
                    await client.pods()
            async with failing(grpc.StatusCode.UNAVAILABLE, "AllocatableResourcesResponse"):
                await client.allocatable()
            kubelet.garbage = None
            assert await client.pods()
    # Beside pollers that earlier tests left to asyncio.
    assert not [record for record in caplog.records if record.exc_info and record.name != "asyncio"]
