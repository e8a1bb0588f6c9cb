"""The agent's link and mirror against the daemon's agent socket: in order, resumed, whole after every kind of
end."""

import asyncio
import contextlib
import html
import random
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from bayplan.agent.http.page import Answers
from bayplan.agent.http.server import PageRequest
from bayplan.agent.mirror import DaemonLink, Mirror
from bayplan.agent_protocol import (
    MAX_DAEMON_MESSAGE_BYTES,
    Change,
    PodWanted,
    Subscribe,
    UpToDate,
    Welcome,
    encode,
)
from bayplan.backoff import Backoff
from bayplan.errors import PlacementError, UnavailableError
from bayplan.model.decision import QosClass
from bayplan.model.kubelet_requests import (
    Amounts,
    ContainerFacts,
    ContainerKind,
    ContainerResources,
    PodFacts,
)
from bayplan.model.policy import PlacementPolicy, TopologyPolicy
from bayplan.quantity import MIB
from bayplan.views.status import nodes_view, status_view
from support.agents import serving
from support.controllers import Controlled, controlled
from support.machines import container, pod

STRICT = PlacementPolicy(topology=TopologyPolicy.SINGLE_NUMA_NODE)
GUARANTEED = pod("g", QosClass.GUARANTEED)


def facts(uid: str) -> PodFacts:
    return PodFacts(uid, "default", uid, QosClass.BURSTABLE, ())


async def create(one: Controlled, *names: str) -> None:
    for name in names:
        spec = container(name, GUARANTEED, memory_bytes=100 * MIB, milli_cpus=1000)
        await one.controller.create_container(GUARANTEED, spec)


@asynccontextmanager
async def following(path: Path, mirror: Mirror | None = None) -> AsyncIterator[tuple[DaemonLink, Mirror]]:
    """A link to *path* that tries again at once."""
    mirror = mirror or Mirror()
    link = DaemonLink(path, mirror, backoff=Backoff(random.random, first_s=0, limit_s=0))
    running = asyncio.create_task(link.run())
    try:
        yield link, mirror
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def knows(mirror: Mirror, *names: str) -> None:
    """Wait until the mirror has these containers and is connected."""
    seen = -1
    while True:
        seen = await mirror.wait_for_change(seen)
        snapshot = mirror.snapshot
        if mirror.connected and snapshot is not None and set(snapshot.ledger.entries) == set(names):
            return


async def test_the_mirror_shows_what_the_daemon_shows(tmp_path: Path) -> None:
    async with controlled(tmp_path / "state") as one, serving(one, tmp_path / "a.sock"):
        await create(one, "a", "b")
        async with following(tmp_path / "a.sock") as (_, mirror):
            await knows(mirror, "a", "b")
            await create(one, "c")
            await one.controller.stop_container(GUARANTEED, container("a", GUARANTEED))
            await knows(mirror, "b", "c")
            snapshot = mirror.snapshot
            assert snapshot is not None
            assert snapshot.ledger.entries == dict(one.controller.state.ledger.entries)
            assert [each["id"] for each in status_view(snapshot)["containers"]] == ["b", "c"]
            assert sum(len(node["containers"]) for node in nodes_view(snapshot)["nodes"]) == 2


async def test_a_link_that_was_cut_goes_on_where_it_was(tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    async with controlled(tmp_path / "state") as one:
        mirror = Mirror()
        async with serving(one, path), following(path, mirror):
            await create(one, "a")
            await knows(mirror, "a")
        before = mirror.epoch, mirror.position
        assert not mirror.connected
        assert mirror.snapshot is not None
        await create(one, "b")
        async with serving(one, path), following(path, mirror):
            await knows(mirror, "a", "b")
        assert mirror.epoch == before[0]
        assert mirror.position > before[1]


async def test_another_daemon_replaces_all_that_was_known_at_once(tmp_path: Path) -> None:
    path, mirror = tmp_path / "a.sock", Mirror()
    async with controlled(tmp_path / "1") as one, serving(one, path), following(path, mirror):
        await create(one, "a", "b")
        await knows(mirror, "a", "b")
    epoch = mirror.epoch
    async with controlled(tmp_path / "2") as other, serving(other, path), following(path, mirror):
        await create(other, "c")
        await knows(mirror, "c")
    assert mirror.epoch != epoch


async def test_what_is_known_of_pods_is_said_again_after_each_new_connection(tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    async with following(path) as (link, mirror):
        link.keep({"u": facts("u"), "v": facts("v")})
        link.keep({"v": facts("v")})
        for number in range(2):
            async with controlled(tmp_path / str(number)) as one, serving(one, path):
                await knows(mirror)
                kept = one.controller.state.kubelet_pods
                while kept.get("v") is None:  # noqa: ASYNC110 - no event reports it
                    await asyncio.sleep(0)
                assert kept.get("u") is None


async def test_the_daemon_asks_about_pods(tmp_path: Path) -> None:
    path, asked = tmp_path / "a.sock", asyncio.Queue[PodWanted]()
    async with controlled(tmp_path / "state") as one, serving(one, path) as server:
        mirror = Mirror()
        link = DaemonLink(path, mirror, asked.put_nowait)
        running = asyncio.create_task(link.run())
        await knows(mirror)
        server.say(PodWanted("u", "default", "web"))
        assert await asked.get() == PodWanted("u", "default", "web")
        running.cancel()


async def test_each_new_connection_is_an_occasion_to_ask_kubelet(tmp_path: Path) -> None:
    """A pod that started before it is one that the daemon could not ask about."""
    path, connected = tmp_path / "a.sock", asyncio.Queue[None]()
    async with following(path) as (link, _):
        link.connected.add(lambda: connected.put_nowait(None))
        for number in range(2):
            async with controlled(tmp_path / str(number)) as one, serving(one, path):
                await connected.get()


async def test_another_kubelet_is_said_once_over_a_new_connection(tmp_path: Path) -> None:
    path, said = tmp_path / "a.sock", asyncio.Queue[str]()
    async with controlled(tmp_path / "state") as one, serving(one, path) as server:
        server.kubelet_said = said.put_nowait
        async with following(path) as (link, mirror):
            await knows(mirror)
            epoch, position = mirror.epoch, mirror.position
            for version in ("v1.36.3", "v1.37.2"):
                link.know_kubelet(version)
                link.know_kubelet(version)
                assert await said.get() == version
            await create(one, "a")
            await knows(mirror, "a")
            # It went on where it was.
            assert (mirror.epoch, mirror.position) == (epoch, position + 1)
        # Another agent that says the same says nothing new.
        async with following(path) as (link, mirror):
            link.know_kubelet("v1.37.2")
            await knows(mirror, "a")
        assert said.empty()


@pytest.mark.parametrize(
    "said", [b"x" * (MAX_DAEMON_MESSAGE_BYTES + 1), b"no message\n"], ids=["long", "odd"]
)
async def test_after_what_cannot_be_read_all_is_asked_for_again(tmp_path: Path, said: bytes) -> None:
    asked: list[Subscribe] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(msgspec.json.decode(await reader.readline(), type=Subscribe))
        for message in (Welcome("epoch", resumed=False), Change(5), UpToDate(5)):
            writer.write(encode(message))
        if len(asked) <= 2:
            writer.write(said)
        with contextlib.suppress(OSError):
            await writer.drain()
            await reader.read()
        writer.transport.abort()

    path = tmp_path / "a.sock"
    server = await asyncio.start_unix_server(answer, path)
    async with following(path) as (_, mirror):
        while len(asked) < 3 or not mirror.connected:  # noqa: ASYNC110 - no event reports both
            await asyncio.sleep(0.001)
    server.close()
    assert [(one.epoch, one.position) for one in asked] == [("", 0), ("", 5), ("", 5)]


async def test_a_pod_too_large_for_a_message_keeps_no_other_one_from_the_daemon(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    amounts = ContainerResources(Amounts(100, MIB, {f"hugepages-{number}Mi": 0 for number in range(16)}))
    containers = [ContainerFacts(f"c{number}", ContainerKind.MAIN, amounts, amounts) for number in range(512)]
    path = tmp_path / "a.sock"
    async with (
        controlled(tmp_path / "state") as one,
        serving(one, path),
        following(path) as (link, mirror),
    ):
        link.know(replace(facts("large"), containers=tuple(containers)))
        link.know(facts("small"))
        await knows(mirror)
        kept = one.controller.state.kubelet_pods
        while kept.get("small") is None:  # noqa: ASYNC110 - no event reports it
            await asyncio.sleep(0)
        assert kept.get("large") is None
    assert [record.uid for record in caplog.records if hasattr(record, "uid")] == ["large"]


async def test_the_page_has_answers_of_the_daemon(tmp_path: Path) -> None:
    """Explanations, a line in time, and what-if, over the agent socket."""
    async with controlled(tmp_path / "state", STRICT) as one, serving(one, tmp_path / "a.sock"):
        await create(one, "a", "b")
        with pytest.raises(PlacementError):
            await one.controller.create_container(
                GUARANTEED, container("large", GUARANTEED, memory_bytes=900 << 30, milli_cpus=1000)
            )
        async with following(tmp_path / "a.sock") as (link, mirror):
            await knows(mirror, "a", "b")
            pages = Answers(link.ask)
            (entry,) = (
                each for each in one.controller.state.ledger.entries.values() if each.container_id == "a"
            )
            name = entry.decision.request.name
            found = await pages.explain(PageRequest("/explain", query={"subject": name}))
            assert f"<h3>{name}</h3>" in found.body.decode()
            assert entry.decision.reasons[0].text in html.unescape(found.body.decode())
            unknown = await pages.explain(PageRequest("/explain", query={"subject": "<nobody>"}))
            assert "&lt;nobody&gt;" in unknown.body.decode()
            line = (await pages.timeline(PageRequest("/timeline"))).body.decode()
            assert "3 events" in line
            assert {"placed", "refused"} <= set(re.findall(r'data-label="what"><span>([^<]*)', line))
            wanted = {"name": "shop/web", "memory": "10Mi", "cpus": "1"}
            trial = (await pages.what_if(PageRequest("/what-if", query=wanted))).body.decode()
            assert "<h3>shop/web/main</h3>" in trial
            wrong = (await pages.what_if(PageRequest("/what-if", query={"memory": "lots"}))).body.decode()
            assert "lots" in wrong
            assert set(one.controller.state.ledger.entries) == {"a", "b"}
            with pytest.raises(UnavailableError):
                await link.ask("release")
    with pytest.raises(UnavailableError):
        await link.ask("explain", subject="a")
