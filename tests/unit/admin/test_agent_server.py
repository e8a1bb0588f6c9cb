"""The agent socket over a real unix socket: who may use it, what it refuses, and what nobody can do to the
daemon."""

import asyncio
import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from bayplan.admin.agent_server import MAX_AGENTS
from bayplan.agent_protocol import (
    MAX_AGENT_MESSAGE_BYTES,
    QUESTIONS,
    Change,
    Failed,
    FromDaemon,
    PodGone,
    PodKnown,
    Refused,
    Subscribe,
    UpToDate,
    Welcome,
    encode,
)
from bayplan.backoff import Allowance
from bayplan.control.commit_listeners import MAX_KEPT, ChangeLog
from bayplan.errors import PlacementError
from bayplan.model.decision import QosClass
from bayplan.model.kubelet_requests import MAX_CONTAINERS, ContainerFacts, ContainerKind, PodFacts
from bayplan.model.policy import PlacementPolicy, TopologyPolicy
from bayplan.quantity import GIB, MIB
from support.agents import AgentClient, connected, serving
from support.controllers import Controlled, controlled
from support.coroutines import PATIENCE_S
from support.machines import container, pod

GUARANTEED = pod("g", QosClass.GUARANTEED)
STRICT = PlacementPolicy(topology=TopologyPolicy.SINGLE_NUMA_NODE)

GIVES_UP_S = 1.0
"""So long a client waits that finds the kernel's queue full; it may also be served."""


def known(uid: str, containers: int = 1) -> PodKnown:
    made = tuple(ContainerFacts(f"c{number}", ContainerKind.MAIN) for number in range(containers))
    return PodKnown(PodFacts(uid, "default", uid, QosClass.BURSTABLE, made))


def is_up_to_date(message: FromDaemon) -> bool:
    return isinstance(message, UpToDate)


async def create(one: Controlled, name: str, memory_bytes: int = 10 * MIB) -> None:
    spec = container(name, GUARANTEED, memory_bytes=memory_bytes, milli_cpus=100)
    await one.controller.create_container(GUARANTEED, spec)


async def last_words(client: AgentClient) -> str:
    """Why the daemon ended the connection."""
    heard = await client.hear_until(lambda message: isinstance(message, Failed))
    assert isinstance(heard[-1], Failed)
    assert await client.reader.read() == b""
    return heard[-1].message


async def test_everything_comes_first_and_then_each_change_with_the_next_position(tmp_path: Path) -> None:
    async with controlled(tmp_path / "state", STRICT) as one, serving(one, tmp_path / "a.sock"):
        for number in range(60):
            await create(one, f"a{number}")
        async with connected(tmp_path / "a.sock") as client:
            welcome, *first, up_to_date = await client.hear_until(is_up_to_date)
            assert isinstance(welcome, Welcome)
            assert not welcome.resumed
            entries = [entry for each in first if isinstance(each, Change) for entry in each.entries]
            assert {entry.container_id for entry in entries} == set(one.controller.state.ledger.entries)
            position = one.controller.state.changes.position
            assert up_to_date == UpToDate(position)
            await create(one, "b")
            with pytest.raises(PlacementError):
                await create(one, "c", 3 * GIB)
            later = await client.hear_until(lambda message: isinstance(message, Refused))
            ordered = [each for each in later if isinstance(each, Change | Refused)]
            assert [each.position for each in ordered] == [position + 1, position + 2]


async def test_who_comes_back_gets_what_it_missed_and_no_more(tmp_path: Path) -> None:
    async with controlled(tmp_path / "state") as one, serving(one, tmp_path / "a.sock"):
        await create(one, "a")
        epoch, position = one.controller.state.changes.epoch, one.controller.state.changes.position
        await create(one, "b")
        async with connected(tmp_path / "a.sock", Subscribe(epoch=epoch, position=position)) as client:
            heard = await client.hear_until(is_up_to_date)
            assert heard[0] == Welcome(epoch, resumed=True, answers=QUESTIONS)
            assert [each.entries[0].container_id for each in heard if isinstance(each, Change)] == ["b"]
        for wrong in (Subscribe(epoch="other", position=position), Subscribe(epoch=epoch, position=1 << 40)):
            async with connected(tmp_path / "a.sock", wrong) as client:
                assert await client.hear() == Welcome(epoch, resumed=False, answers=QUESTIONS)


def test_the_log_keeps_no_more_than_its_bound() -> None:
    log = ChangeLog(most_kept=20)
    for number in range(100):
        log.note({f"gone-{number}": None})
    assert log.position == 100
    later = log.since(90)
    assert later is not None
    assert [each.position for each in later] == list(range(91, 101))
    assert log.since(100) == []
    assert log.since(89) is None
    log.note({str(number): None for number in range(MAX_KEPT)})
    assert log.since(100) is None  # more at once than is kept: everybody starts again
    assert log.since(101) == []


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"\n", "message"),
        (b"\x00\xff\xfe\n", "message"),
        (b"[" * 50_000 + b"\n", "message"),
        (b"[]\n", "object"),
        (b"{}\n", "kind"),
        (b'{"kind":"Reboot"}\n', "Reboot"),
        (b'{"kind":"Subscribe","position":"1"}\n', "position"),
        (b'{"kind":"Subscribe","api_version":"bayplan/v9"}\n', "bayplan/v9"),
        (b'{"kind":"PodGone","uid":"u"}\n', "Subscribe"),
        (b"x" * (MAX_AGENT_MESSAGE_BYTES + 1) + b"\n", str(MAX_AGENT_MESSAGE_BYTES)),
    ],
)
async def test_a_first_message_that_is_none_ends_the_connection_with_what_is_wrong(
    tmp_path: Path, line: bytes, words: str
) -> None:
    async with (
        controlled(tmp_path / "state") as one,
        serving(one, tmp_path / "a.sock"),
        connected(tmp_path / "a.sock", line) as client,
    ):
        assert words in await last_words(client)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b'{"kind":"Subscribe"}\n', "only once"),
        (b'{"kind":"PodKnown","pod":{}}\n', "uid"),
        (b'{"kind":"PodKnown","pod":{"uid":"' + b"u" * 254 + b'"}}\n', "253"),
        (
            encode(known("u", MAX_CONTAINERS + 1)),
            str(MAX_CONTAINERS),
        ),
        (
            encode(known("u")).replace(b'"requests":{', b'"requests":{"memory_bytes":-1,', 1),
            "memory_bytes",
        ),
    ],
)
async def test_a_pod_that_cannot_be_ends_the_connection_and_is_not_kept(
    tmp_path: Path, line: bytes, words: str
) -> None:
    async with (
        controlled(tmp_path / "state") as one,
        serving(one, tmp_path / "a.sock"),
        connected(tmp_path / "a.sock", Subscribe(), line) as client,
    ):
        assert words in await last_words(client)
        assert one.controller.state.kubelet_pods.get("u") is None


async def test_no_more_agents_than_there_may_be(tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    async with controlled(tmp_path / "state") as one, serving(one, path):
        clients = [connected(path) for _ in range(MAX_AGENTS)]
        for client in clients:
            await (await client.__aenter__()).hear_until(is_up_to_date)
        async with connected(path) as late:
            assert str(MAX_AGENTS) in await last_words(late)
        for client in clients:
            await client.__aexit__(None, None, None)


async def test_thousands_of_clients_leave_the_daemon_and_the_agent_as_they_are(tmp_path: Path) -> None:
    """Most never get beyond the kernel's queue; none of those that do keeps the others from being served."""
    path = tmp_path / "a.sock"
    async with controlled(tmp_path / "state") as one, serving(one, path) as server:
        async with connected(path) as agent:
            await agent.hear_until(is_up_to_date)
            for number in range(2000):
                try:
                    async with asyncio.timeout(GIVES_UP_S):
                        _, writer = await asyncio.open_unix_connection(path)
                except (OSError, TimeoutError):
                    await asyncio.sleep(0)  # the queue is full
                    continue
                writer.write(b"x" * (number % 3))
                writer.transport.abort()
            await create(one, "a")
            await agent.hear_until(lambda message: isinstance(message, Change))
        while server.clients:  # noqa: ASYNC110 - no event reports it
            await asyncio.sleep(0)
        async with connected(path) as again:
            await again.hear_until(is_up_to_date)


async def test_a_reader_that_takes_nothing_costs_no_memory_and_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    async with controlled(tmp_path / "state") as one, serving(one, path) as server:
        async with connected(path) as client:
            await client.hear_until(is_up_to_date)
            server._client_timeout_s = 0.2
            client.reader._transport.pause_reading()  # type: ignore[attr-defined]  # it stops to read
            while server.clients:
                await create(one, "a")
                await one.controller.stop_container(GUARANTEED, container("a", GUARANTEED))
        # The next one is not hurried: a busy machine may be late.
        server._client_timeout_s = PATIENCE_S
        async with connected(path) as again:
            await again.hear_until(is_up_to_date)


async def test_a_flood_is_read_slowly_and_kept_within_bounds(tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    async with controlled(tmp_path / "state") as one, serving(one, path):
        kept = one.controller.state.kubelet_pods
        async with connected(path) as client:
            await client.hear_until(is_up_to_date)
            for number in range(100):
                await client.say(known(f"u{number}", MAX_CONTAINERS))
            while kept.get("u99") is None:  # noqa: ASYNC110 - no event reports it
                await asyncio.sleep(0)
            assert kept.get("u0") is None
            assert one.controller.state.counters["agent_pods_dropped"] == 100 - MAX_KEPT // (
                MAX_CONTAINERS + 1
            )
            await client.say(PodGone("u99"))
            while kept.get("u99") is not None:  # noqa: ASYNC110 - no event reports it
                await asyncio.sleep(0)


def test_who_says_more_than_it_may_waits_in_proportion() -> None:
    allowance = Allowance(per_s=10, burst=5)
    assert [allowance.wait_s(1, 100.0) for _ in range(7)] == [0, 0, 0, 0, 0, 0.1, 0.2]
    assert allowance.wait_s(1, 100.2) == pytest.approx(0.1)
    assert allowance.wait_s(5, 1000.0) == 0


async def test_the_socket_is_its_groups(tmp_path: Path) -> None:
    path, group = tmp_path / "a.sock", os.getgid()
    async with controlled(tmp_path / "state") as one, serving(one, path, group=group):
        found = path.stat()
        assert (stat.S_IMODE(found.st_mode), found.st_gid) == (0o660, group)
    async with controlled(tmp_path / "state") as one, serving(one, path):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.root
@pytest.mark.parametrize(
    ("groups", "served"), [([4242], True), ([], False), (list(range(5000, 5300)), False)]
)
async def test_members_of_the_group_are_served_and_others_are_not(
    tmp_path: Path, groups: list[int], served: bool
) -> None:
    path = tmp_path / "a.sock"
    program = (
        f"import os,socket,sys; os.setgroups({groups}); os.setgid(65534); os.setuid(65534);"
        "s=socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]);"
        """s.sendall(b'{"kind":"Subscribe"}\\n'); print(s.recv(100).decode())"""
    )
    for parent in (tmp_path, *tmp_path.parents):
        if parent.owner() == "root" and parent != Path("/tmp"):
            parent.chmod(0o755)
    async with controlled(tmp_path / "state") as one, serving(one, path, group=4242):
        path.chmod(0o666)  # so that the daemon itself has to refuse
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-c", program, str(path), stdout=subprocess.PIPE
        )
        said, _ = await child.communicate()
        assert (b"Welcome" in said, b"Failed" in said) == (served, not served)


async def test_closing_ends_every_connection(tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    async with controlled(tmp_path / "state") as one, serving(one, path) as server, connected(path) as client:
        await client.hear_until(is_up_to_date)
        await server.close()
        await client.reader.read()
        assert client.reader.at_eof()
    assert not path.exists()


@pytest.mark.parametrize("turns", range(6))
async def test_closing_leaves_no_connection_open_in_whichever_turn_of_the_loop(
    tmp_path: Path, turns: int
) -> None:
    """What serves a client may be cancelled before its first step; a socket that is left is a warning."""
    path = tmp_path / "a.sock"
    async with controlled(tmp_path / "state") as one, serving(one, path) as server:
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
            for _ in range(turns):
                await asyncio.sleep(0)
            await server.close()
    assert not path.exists()
