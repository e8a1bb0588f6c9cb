"""kubelet as the agent asks it: watched, polled, away, refusing, lying, and back again."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from bayplan._proto.pods import api_pb2 as pb
from bayplan._proto.pods import core_pb2
from bayplan.agent.kubelet_pods.endpoint import Endpoint, PodEndpoint
from bayplan.agent.kubelet_pods.pod_spec import pod_of_bytes
from bayplan.agent.kubelet_pods.watch import PodWatch
from bayplan.backoff import Backoff
from bayplan.errors import UnavailableError
from bayplan.model.pod_facts import PodFacts
from support.fake_kubelet import RECORDED, TOKEN, FakeEndpoint, FakePodsService, recorded

BURSTABLE, RESIZING = recorded("burstable"), recorded("resizing")


async def until(condition: Callable[[], bool]) -> None:
    """Let the others go on until *condition* holds."""
    while not condition():  # noqa: ASYNC110 - nothing tells of it
        await asyncio.sleep(0.001)


class Keeper:
    """Remembers what it was told, as the link to the daemon does."""

    def __init__(self) -> None:
        self.pods: dict[str, PodFacts] = {}
        self.kept = 0

    def know(self, pod: PodFacts) -> None:
        self.pods[pod.uid] = pod

    def forget(self, uid: str) -> None:
        self.pods.pop(uid, None)

    def keep(self, pods: dict[str, PodFacts]) -> None:
        self.pods = dict(pods)
        self.kept += 1

    async def has(self, *names: str) -> None:
        await until(lambda: set(self.pods) == {f"uid-{name}" for name in names})


@asynccontextmanager
async def running(source: Any) -> AsyncIterator[None]:
    task = asyncio.create_task(source.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def watching(socket: Path, keeper: Keeper) -> PodWatch:
    return PodWatch(socket, keeper, Backoff(lambda: 0.0, first_s=0.01, limit_s=0.01))


async def test_all_pods_come_first_and_then_each_change(tmp_path: Path) -> None:
    keeper, service = Keeper(), FakePodsService(tmp_path / "pods.sock", BURSTABLE)
    keeper.pods["uid-gone"] = pod_of_bytes(RESIZING)  # of before; kubelet does not have it any more
    await service.start()
    watch = watching(tmp_path / "pods.sock", keeper)
    async with running(watch):
        await keeper.has("burstable")
        assert watch.in_sync
        service.tell(pb.ADDED, RESIZING)
        await keeper.has("burstable", "resizing")
        service.tell(pb.MODIFIED, b"\xff\xff garbage")
        changed = core_pb2.Pod.FromString(BURSTABLE)
        changed.spec.priority = 7
        service.tell(pb.MODIFIED, changed.SerializeToString())
        await until(lambda: keeper.pods["uid-burstable"].priority == 7)
        gone = core_pb2.Pod(metadata=core_pb2.Pod.FromString(RESIZING).metadata)
        service.tell(pb.DELETED, gone.SerializeToString())
        await keeper.has("burstable")
    await service.stop()


async def test_a_kubelet_that_stops_changes_nothing_and_is_followed_again(tmp_path: Path) -> None:
    keeper, service = Keeper(), FakePodsService(tmp_path / "pods.sock", BURSTABLE)
    await service.start()
    watch = watching(tmp_path / "pods.sock", keeper)
    async with running(watch):
        await keeper.has("burstable")
        await service.stop()
        await until(lambda: not watch.in_sync)
        assert set(keeper.pods) == {"uid-burstable"}
        again = FakePodsService(tmp_path / "pods.sock", BURSTABLE, RESIZING)
        await again.start()
        await keeper.has("burstable", "resizing")
        again.end_streams()
        await until(lambda: keeper.kept == 3)
        await again.stop()


async def test_the_endpoint_is_asked_over_https_with_token_and_ca(tmp_path: Path) -> None:
    keeper, kubelet, token = Keeper(), FakeEndpoint(), tmp_path / "token"
    token.write_text(f"{TOKEN}\n")
    with kubelet.serving(tls=True):
        endpoint = Endpoint(kubelet.url, token, RECORDED / "kubelet.pem", "node")
        async with running(PodEndpoint(endpoint, keeper, least_interval_s=0.01)):
            await keeper.has("burstable", "as-a-whole", "resizing", "guaranteed", "best-effort", "critical")


@pytest.mark.parametrize(
    ("token", "ca", "name", "word"),
    [
        ("wrong", "kubelet.pem", "node", "401"),
        (TOKEN, "other.pem", "node", "certificate verify failed"),
        (TOKEN, "kubelet.pem", "", "certificate verify failed"),
        (None, "kubelet.pem", "node", "No such file"),
    ],
)
def test_an_endpoint_that_is_not_kubelets_or_refuses_is_one_error(
    tmp_path: Path, token: str | None, ca: str, name: str, word: str
) -> None:
    kubelet, file = FakeEndpoint(), tmp_path / "token"
    if token is not None:
        file.write_text(token)
    with kubelet.serving(tls=True), pytest.raises(UnavailableError, match=word):
        Endpoint(kubelet.url, file, RECORDED / ca, name).fetch()


async def test_a_failing_kubelet_changes_nothing_and_is_asked_again() -> None:
    keeper, kubelet = Keeper(), FakeEndpoint()
    with kubelet.serving():
        source = PodEndpoint(Endpoint(kubelet.url), keeper, least_interval_s=0.01)
        async with running(source):
            await until(lambda: bool(keeper.pods))
            before, kept = keeper.pods, keeper.kept
            for kubelet.status, kubelet.body in ((500, b""), (200, b"garbage"), (200, b'{"items":{}}')):
                asked = len(kubelet.asked)
                while len(kubelet.asked) < asked + 2:
                    source.ask_soon()
                    await asyncio.sleep(0.001)
            assert keeper.pods is before
            assert keeper.kept == kept
            kubelet.status, kubelet.body = 200, b'{"items":[]}'
            source.ask_soon()
            await keeper.has()
            assert keeper.kept > kept


async def test_kubelet_is_asked_no_faster_than_it_may_be_and_not_while_it_is_followed() -> None:
    keeper, kubelet, followed = Keeper(), FakeEndpoint(), [False]
    with kubelet.serving():
        source = PodEndpoint(
            Endpoint(kubelet.url), keeper, lambda: followed[0], least_interval_s=0.3, most_interval_s=60
        )
        async with running(source):
            loop = asyncio.get_running_loop()
            began_s = loop.time()
            while len(kubelet.asked) < 3:
                source.ask_soon()
                await asyncio.sleep(0.001)
            assert loop.time() - began_s >= 0.6
            followed[0] = True
            source.ask_soon()
            await asyncio.sleep(0.7)  # twice the interval: nothing is to happen
            assert len(kubelet.asked) == 3
