"""kubelet as the agent asks it: watched, polled, away, refusing, lying, and back again."""

import asyncio
import logging
from pathlib import Path

import pytest

from bayplan._proto.pods import api_pb2 as pb
from bayplan._proto.pods import core_pb2
from bayplan.agent.http_client import Server
from bayplan.agent.kubelet_pods import PodEndpoint, PodWatch, pod_of_bytes
from bayplan.backoff import Backoff
from support.conditions import running, until
from support.fake_kubelet import RECORDED, TOKEN, FakeEndpoint, FakePodsService, Keeper, recorded

BURSTABLE, RESIZING = recorded("burstable"), recorded("resizing")


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
        server = Server(kubelet.url, RECORDED / "kubelet.pem", "node", token)
        async with running(PodEndpoint(server, keeper, least_interval_s=0.01)):
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
async def test_an_endpoint_that_is_not_kubelets_or_refuses_is_logged_once(
    tmp_path: Path, token: str | None, ca: str, name: str, word: str, caplog: pytest.LogCaptureFixture
) -> None:
    kubelet, keeper, file = FakeEndpoint(), Keeper(), tmp_path / "token"
    if token is not None:
        file.write_text(token)
    with kubelet.serving(tls=True):
        source = PodEndpoint(Server(kubelet.url, RECORDED / ca, name, file), keeper, least_interval_s=0.01)
        async with running(source):
            await until(lambda: bool(caplog.records))
    assert [word in record.problem for record in caplog.records] == [True]
    assert not keeper.kept
    assert not source.in_sync


async def test_a_failing_kubelet_changes_nothing_and_is_asked_again() -> None:
    keeper, kubelet = Keeper(), FakeEndpoint()
    with kubelet.serving():
        source = PodEndpoint(Server(kubelet.url), keeper, least_interval_s=0.01)
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


async def test_a_kubelet_that_hung_up_once_is_asked_again_soon() -> None:
    keeper, kubelet = Keeper(), FakeEndpoint()
    kubelet.status = 500
    with kubelet.serving():
        source = PodEndpoint(Server(kubelet.url), keeper, least_interval_s=0.01, most_interval_s=3600)
        async with running(source):
            await until(lambda: len(kubelet.asked) == 3)
            kubelet.status = 200
            await until(lambda: source.in_sync)
            asked = len(kubelet.asked)
            await asyncio.sleep(0.1)  # ten times the least interval: it has answered
            assert len(kubelet.asked) == asked


async def test_an_event_that_cannot_be_read_ends_the_stream_and_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keeper, service = Keeper(), FakePodsService(tmp_path / "pods.sock", BURSTABLE)
    await service.start()
    async with running(watching(tmp_path / "pods.sock", keeper)):
        await keeper.has("burstable")
        with caplog.at_level(logging.INFO):
            service.tell_bytes(b"\xff\xff")
            await until(lambda: keeper.kept == 2)
    await service.stop()
    # Beside pollers that earlier tests left to asyncio.
    assert not [record for record in caplog.records if record.exc_info and record.name != "asyncio"]
    assert "WatchPodsEvent" in " ".join(getattr(record, "problem", "") for record in caplog.records)


async def test_kubelet_is_asked_no_faster_than_it_may_be_and_not_while_it_is_followed() -> None:
    keeper, kubelet, followed = Keeper(), FakeEndpoint(), [False]
    with kubelet.serving():
        source = PodEndpoint(
            Server(kubelet.url), keeper, lambda: followed[0], least_interval_s=0.3, most_interval_s=60
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
