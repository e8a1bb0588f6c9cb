"""Evictions through the API server: the daemon's question over the agent socket, the API server's answer over
HTTPS; and agents that are gone, slow, or say what nobody asked."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from bayplan.admin.agent_server import AgentServer
from bayplan.agent.cluster.pods import PodEvictions
from bayplan.agent.mirror import DaemonLink, Mirror
from bayplan.agent_protocol import EvictionAnswer, EvictionOutcome, EvictPod, Subscribe, UpToDate
from support.agents import connected, serving
from support.conditions import running, until
from support.controllers import controlled
from support.coroutines import PATIENCE_S
from support.fake_api_server import FakeApiServer

WEB = EvictPod("uid-web", "default", "web", 30)
EVICTION = "/api/v1/namespaces/default/pods/web/eviction"
SHORT_S = 0.1
ACCEPTED = EvictionAnswer(WEB.uid, EvictionOutcome.ACCEPTED)


@asynccontextmanager
async def evicting(tmp_path: Path, api: FakeApiServer, timeout_s: float) -> AsyncIterator[AgentServer]:
    """The daemon's end of the socket, once an agent that can evict is connected."""
    mirror = Mirror()
    link = DaemonLink(tmp_path / "a.sock", mirror)
    evictions = PodEvictions(api.api(timeout_s), link)
    async with (
        controlled(tmp_path / "state") as one,
        serving(one, tmp_path / "a.sock") as server,
        running(link),
        running(evictions),
    ):
        await until(lambda: mirror.connected)
        yield server


async def test_the_pod_that_was_meant_is_evicted_with_its_grace_period(tmp_path: Path) -> None:
    api = FakeApiServer()
    with api.serving():
        async with evicting(tmp_path, api, PATIENCE_S) as server:
            assert await server.evict(WEB, PATIENCE_S) == ACCEPTED
    assert api.objects[f"{EVICTION}/web"] == {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"namespace": "default", "name": "web"},
        "deleteOptions": {"gracePeriodSeconds": 30, "preconditions": {"uid": "uid-web"}},
    }


async def test_a_budget_is_told_from_a_refusal_and_from_silence(tmp_path: Path) -> None:
    api = FakeApiServer()
    with api.serving():
        async with evicting(tmp_path, api, PATIENCE_S) as server:
            api.budgets.add("web")
            answers = [await server.evict(WEB, PATIENCE_S)]
            api.busy = True
            answers.append(await server.evict(WEB, PATIENCE_S))
            api.busy = False
            api.forbidden.add(("POST", EVICTION))
            answers.append(await server.evict(WEB, PATIENCE_S))
        async with evicting(tmp_path, api, timeout_s=0.5) as server:
            api.hangs = True
            answers.append(await server.evict(WEB, PATIENCE_S))
    outcomes = [(one.outcome.value, one.problem) for one in answers if one is not None]
    assert [outcome for outcome, _ in outcomes] == ["later", "refused", "refused", "refused"]
    for (_, problem), said in zip(outcomes, ("429", "429", "403", "https://127.0.0.1"), strict=True):
        assert said in problem


async def test_names_are_no_paths(tmp_path: Path) -> None:
    api = FakeApiServer()
    with api.serving():
        async with evicting(tmp_path, api, PATIENCE_S) as server:
            await server.evict(replace(WEB, name="../../nodes/node-a?x="), PATIENCE_S)
    ((method, path),) = (one for one in api.requests if one[0] == "POST")
    assert (method, path) == (
        "POST",
        "/api/v1/namespaces/default/pods/..%2F..%2Fnodes%2Fnode-a%3Fx%3D/eviction",
    )


async def test_an_agent_that_cannot_is_not_asked(tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    async with controlled(tmp_path / "state") as one, serving(one, path) as server:
        assert await server.evict(WEB, PATIENCE_S) is None
        async with connected(path) as client:
            await client.hear_until(lambda message: isinstance(message, UpToDate))
            assert await server.evict(WEB, PATIENCE_S) is None


@pytest.mark.parametrize("said", [[], [replace(ACCEPTED, uid="other")]], ids=["nothing", "of another pod"])
async def test_an_agent_that_does_not_answer_is_not_waited_for_longer(
    tmp_path: Path, said: list[EvictionAnswer]
) -> None:
    path = tmp_path / "a.sock"
    async with (
        controlled(tmp_path / "state") as one,
        serving(one, path) as server,
        connected(path, Subscribe(evicts=True), ACCEPTED, *said) as client,
    ):
        await client.hear_until(lambda message: isinstance(message, UpToDate))
        # Neither counts what it has said before it was asked.
        assert await server.evict(WEB, SHORT_S) is None
        # An answer that comes too late is passed over, and the next question has its own.
        asking = asyncio.create_task(server.evict(replace(WEB, uid="later"), PATIENCE_S))
        await client.hear_until(lambda message: message == replace(WEB, uid="later"))
        await client.say(ACCEPTED)
        await client.say(replace(ACCEPTED, uid="later"))
        assert await asking == replace(ACCEPTED, uid="later")


async def test_an_agent_that_leaves_is_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    async with controlled(tmp_path / "state") as one, serving(one, path) as server:
        async with connected(path, Subscribe(evicts=True)) as client:
            await client.hear_until(lambda message: isinstance(message, UpToDate))
            asking = asyncio.create_task(server.evict(WEB, 10 * PATIENCE_S))
            await client.hear_until(lambda message: message == WEB)
        async with asyncio.timeout(PATIENCE_S):
            assert await asking is None
