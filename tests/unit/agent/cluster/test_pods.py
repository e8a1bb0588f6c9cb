"""The pods of the API server: the same facts as kubelet's, through interruptions of every kind."""

import json
import socket
import ssl
from contextlib import AsyncExitStack
from copy import deepcopy
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from bayplan.agent.cluster.pods import ApiPodWatch, AwaitedPods
from bayplan.agent.kubelet_pods import pods_of_json
from bayplan.backoff import Backoff
from support.conditions import running, until
from support.coroutines import PATIENCE_S
from support.fake_api_server import NODE, PODS, FakeApiServer
from support.fake_kubelet import RECORDED, Keeper

LISTED: dict[str, dict[str, Any]] = {
    item["metadata"]["name"]: item for item in json.loads((RECORDED / "pods.json").read_bytes())["items"]
}


def pod(name: str) -> dict[str, Any]:
    return deepcopy(LISTED[name])


def watching(
    api: FakeApiServer, keeper: Keeper, awaited: AwaitedPods | None = None, **needless
) -> ApiPodWatch:
    backoff = Backoff(lambda: 0.0, first_s=0.01, limit_s=0.01)
    return ApiPodWatch(api.api(), NODE, keeper, awaited or AwaitedPods(), backoff=backoff, **needless)


def lists(api: FakeApiServer) -> int:
    return api.requests.count(("GET", "/api/v1/pods"))


async def test_facts_are_those_that_kubelet_tells() -> None:
    api, keeper = FakeApiServer(), Keeper()
    for name in LISTED:
        api.put_pod(pod(name))
    with api.serving():
        async with running(watching(api, keeper)):
            await keeper.has(*LISTED)
    told, problems = pods_of_json((RECORDED / "pods.json").read_bytes())
    assert not problems
    assert keeper.pods == {one.uid: one for one in told}


async def test_a_pod_is_awaited_while_it_is_pending() -> None:
    api, keeper, awaited = FakeApiServer(), Keeper(), AwaitedPods()
    pending = [pod("burstable"), pod("resizing")]
    for one in pending:
        one["status"]["phase"] = "Pending"
        api.put_pod(one)
    names = [(one["metadata"]["namespace"], one["metadata"]["name"]) for one in pending]
    with api.serving():
        async with running(watching(api, keeper, awaited)):
            await awaited.wait_for_change(frozenset())
            assert awaited.names == set(names)
            api.put_pod(pod("burstable"))
            await awaited.wait_for_change(frozenset(names))
            assert awaited.names == {names[1]}


async def test_a_pod_is_not_awaited_for_ever_nor_again() -> None:
    awaited, first, second = AwaitedPods(0.01), ("default", "first"), ("default", "second")
    awaited.keep({"uid-first": first})
    assert awaited.names == {first}
    await awaited.wait_for_change(frozenset({first}))
    assert awaited.names == frozenset()
    awaited.keep({"uid-first": first, "uid-second": second})
    assert awaited.names == {second}
    awaited.keep({"uid-first": first})
    assert awaited.names == frozenset()


async def test_each_change_comes_and_is_not_listed_again() -> None:
    api, keeper = FakeApiServer(), Keeper()
    api.put_pod(pod("burstable"))
    with api.serving():
        async with running(watching(api, keeper)):
            await keeper.has("burstable")
            api.put_pod(pod("resizing"))
            await keeper.has("burstable", "resizing")
            changed = pod("resizing")
            changed["spec"]["priority"] = 7
            api.put_pod(changed)
            await until(lambda: keeper.pods["uid-resizing"].priority == 7)
            api.delete_pod("uid-burstable")
            await keeper.has("resizing")
    assert lists(api) == 1


async def test_a_watch_goes_on_where_it_was() -> None:
    api, keeper = FakeApiServer(), Keeper()
    api.put_pod(pod("burstable"))
    async with AsyncExitStack() as stack:
        with api.serving():
            await stack.enter_async_context(running(watching(api, keeper)))
            await keeper.has("burstable")
        api.put_pod(pod("resizing"))
        api.delete_pod("uid-burstable")
        assert set(keeper.pods) == {"uid-burstable"}  # what was said stays known
        with api.serving():
            await keeper.has("resizing")
    assert lists(api) == 1


def test_the_fake_serves_and_ends_whoever_connects_and_says_nothing() -> None:
    """As the watch of a test does that ends at that very moment."""
    api = FakeApiServer()
    with api.serving(), socket.create_connection(("127.0.0.1", api.port)):
        other = ssl.create_default_context(cafile=RECORDED / "kubelet.pem")
        other.check_hostname = False
        with pytest.raises(HTTPError, match="Unauthorized"):
            urlopen(f"https://127.0.0.1:{api.port}{PODS}", timeout=PATIENCE_S, context=other)


@pytest.mark.parametrize("bookmarked", [False, True])
async def test_changes_that_are_not_kept_any_more_are_listed_unless_a_bookmark_says_there_are_none(
    bookmarked: bool,
) -> None:
    api, keeper = FakeApiServer(), Keeper()
    async with AsyncExitStack() as stack:
        with api.serving():
            await stack.enter_async_context(running(watching(api, keeper)))
            await until(lambda: ("WATCH", "100") in api.requests)
            kept = keeper.kept
            api.bookmark()
            if bookmarked:
                await until(lambda: keeper.kept > kept)
            else:
                api.put_pod(pod("burstable"))
                await keeper.has("burstable")
                api.delete_pod("uid-burstable")
                await keeper.has()
        if not bookmarked:
            api.put_pod(pod("resizing"))
        api.forget_changes()
        with api.serving():
            if not bookmarked:
                await keeper.has("resizing")
            api.put_pod(pod("guaranteed"))
            await until(lambda: "uid-guaranteed" in keeper.pods)
    assert lists(api) == (1 if bookmarked else 2)


async def test_a_static_pod_has_the_uid_that_the_runtime_knows() -> None:
    api, keeper = FakeApiServer(), Keeper()
    static = pod("critical")
    static["metadata"]["annotations"] = {"kubernetes.io/config.mirror": "uid-of-its-file"}
    api.put_pod(static)
    with api.serving():
        async with running(watching(api, keeper)):
            await keeper.has("of-its-file")


async def test_nothing_is_said_while_kubelet_says_more_and_all_of_it_afterwards() -> None:
    api, keeper, needless = FakeApiServer(), Keeper(), [True]
    api.put_pod(pod("burstable"))
    with api.serving():
        async with running(watching(api, keeper, needless=lambda: needless[0])):
            await until(lambda: any(method == "WATCH" for method, _ in api.requests))
            assert not keeper.kept
            needless[0] = False
            api.put_pod(pod("resizing"))
            await keeper.has("burstable", "resizing")


async def test_what_is_no_pod_hides_no_other_one(caplog: pytest.LogCaptureFixture) -> None:
    api, keeper = FakeApiServer(), Keeper()
    odd = pod("resizing")
    odd["spec"]["containers"] = "none"
    with api.serving():
        async with running(watching(api, keeper)):
            api.put_pod(odd)
            api.put_pod(pod("burstable"))
            await keeper.has("burstable")
    assert [record.message for record in caplog.records] == ["a pod cannot be read"]


@pytest.mark.parametrize(
    "answer", [{"items": 3}, {"items": ["pod"]}, {"metadata": []}, {"metadata": {}, "items": [{}]}]
)
async def test_an_answer_of_another_form_is_logged_once(answer, caplog: pytest.LogCaptureFixture) -> None:
    class Odd(FakeApiServer):
        def answer(self, *_: Any) -> dict[str, Any]:
            self.requests.append(("GET", "/api/v1/pods"))
            return answer

    api, keeper = Odd(), Keeper()
    with api.serving():
        async with running(watching(api, keeper)):
            await until(lambda: lists(api) > 3)
    (record,) = caplog.records
    assert "API server" in record.problem
    assert not keeper.kept
