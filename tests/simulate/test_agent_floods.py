"""The agent's own process under floods: rubbish, silence and a thousand clients on all of its ports at once.

Whoever behaves is still answered, and the process does not grow with the number of those who do not.
"""

# ruff: noqa: ASYNC240 - files are touched between the steps of a scenario, nothing else is running

import asyncio
import contextlib
import json
import os
import resource
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest

from bayplan._proto.podresources import api_pb2 as pb
from bayplan.quantity import MIB
from support.agents import serving
from support.controllers import controlled
from support.coroutines import PATIENCE_S
from support.http import get

CLIENTS = 1000
ROUNDS = 3
MAY_GROW_BYTES = 96 * MIB
"""Some 10 kB for each connection of gRPC, buffers, and what Python keeps of it."""


class Agent:
    """A `bayplan-agent` that runs; ``http`` is where its port is, ``pod_resources`` its socket."""

    def __init__(
        self, process: asyncio.subprocess.Process, http: tuple[str, int], pod_resources: Path
    ) -> None:
        self.process = process
        self.http = http
        self.pod_resources = pod_resources

    def resident_bytes(self) -> int:
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    async def answers(self) -> bool:
        """Whether it knows the daemon's state, shows it, and tells what is allocatable."""
        with contextlib.suppress(OSError, grpc.aio.AioRpcError):
            ready = (await get(self.http, "/readyz")).status == 200
            shown = "bayplan_info{" in (await get(self.http, "/metrics")).text
            async with grpc.aio.insecure_channel(f"unix:{self.pod_resources}") as channel:
                call = channel.unary_unary(
                    "/v1.PodResourcesLister/GetAllocatableResources",
                    request_serializer=pb.AllocatableResourcesRequest.SerializeToString,
                    response_deserializer=pb.AllocatableResourcesResponse.FromString,
                )
                told = await call(pb.AllocatableResourcesRequest())
            return ready and shown and len(told.memory) > 0
        return False

    async def wait_for_answers(self) -> None:
        while not await self.answers():
            assert self.process.returncode is None
            await asyncio.sleep(0.05)


async def address_in(log: Path) -> tuple[str, int]:
    """Where the agent says that it listens."""
    while True:
        whole_lines = log.read_text().split("\n")[:-1]
        for line in map(json.loads, whole_lines):
            if line["msg"] == "listening for HTTP":
                return line["host"], line["port"]
        await asyncio.sleep(0.05)


@asynccontextmanager
async def running_agent(directory: Path) -> AsyncIterator[Agent]:
    argv = [
        *("--daemon-socket", str(directory / "agent.sock"), "--kubelet-pods-socket", "none"),
        *("--pod-resources-socket", str(directory / "resources.sock"), "--kubelet-pod-resources", "none"),
        *("--listen", "127.0.0.1:0", "--log-format", "json"),
    ]
    log_path = directory / "agent.log"
    with log_path.open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "bayplan.agent.bayplan_agent", *argv, stderr=log
        )
    try:
        yield Agent(process, await address_in(log_path), directory / "resources.sock")
    finally:
        process.terminate()
        assert await process.wait() == 0


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 4 * CLIENTS
    if hard != resource.RLIM_INFINITY and hard < wanted:
        pytest.fail(f"this takes {wanted} descriptors, and {hard} are the limit")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def crowd(stack: contextlib.ExitStack, agent: Agent, said: bytes) -> None:
    """So many clients of each port that say this and wait."""
    for number in range(CLIENTS):
        family, address = (
            (socket.AF_INET, agent.http) if number % 2 else (socket.AF_UNIX, str(agent.pod_resources))
        )
        one = stack.enter_context(socket.socket(family))
        one.settimeout(PATIENCE_S)
        with contextlib.suppress(OSError):
            one.connect(address)
            one.setblocking(False)
            one.send(said)


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"\x00\xff rubbish\r\n\r\n" * 100,
        b"GET / HTTP/1.1\r\nHost: a\r\nX: ",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ],
    ids=["silence", "rubbish", "half a request", "half a connection"],
)
async def test_who_behaves_is_answered_and_memory_stays_bounded(
    tmp_path: Path, many_descriptors: None, said: bytes
) -> None:
    async with (
        controlled(tmp_path) as one,
        serving(one, tmp_path / "agent.sock"),
        running_agent(tmp_path) as agent,
    ):
        await agent.wait_for_answers()
        before_bytes = agent.resident_bytes()
        for _ in range(ROUNDS):
            with contextlib.ExitStack() as stack:
                await asyncio.to_thread(crowd, stack, agent, said)
                await agent.wait_for_answers()
        assert agent.resident_bytes() - before_bytes < MAY_GROW_BYTES


async def test_thousands_of_scrapes_at_once_are_answered_or_turned_away(
    tmp_path: Path, many_descriptors: None
) -> None:
    async with (
        controlled(tmp_path) as one,
        serving(one, tmp_path / "agent.sock"),
        running_agent(tmp_path) as agent,
    ):
        await agent.wait_for_answers()
        before_bytes = agent.resident_bytes()
        scrapes = (get(agent.http, "/metrics") for _ in range(CLIENTS))
        found = await asyncio.gather(*scrapes, return_exceptions=True)
        answered = [answer for answer in found if not isinstance(answer, BaseException)]
        assert answered
        assert all(answer.status == 200 for answer in answered)
        await agent.wait_for_answers()
        assert agent.resident_bytes() - before_bytes < MAY_GROW_BYTES
