"""How thousands of agents come back to an API server that was killed: their own waits, on a clock that jumps
from one moment to the next. What it costs the server is counted by `make bench-cluster`."""

import asyncio
import random
import selectors
from typing import Any, Final

import pytest
from msgspec import Struct

from bayplan.agent.cluster.api import AGAIN_S, READY_TIMEOUT_S, Reachability
from bayplan.agent.http_client import Server
from bayplan.errors import UnavailableError
from support.agent_fleet import most_in_a_second

NODES: Final = 2000
MOST_IN_A_SECOND: Final = 0.075
"""A second's part of `AGAIN_S` is 0.033. Half as much more have asked just before it answers, and are told at
that moment; what is above that is chance, and those who draw again."""
_URL: Final = Server("https://server:6443", b"")


class _NoFiles(selectors.DefaultSelector):
    """Nothing happens but what time brings: instead of waiting the clock is moved."""

    now_s = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        self.now_s += timeout or 0.0
        return []


class _Loop(asyncio.SelectorEventLoop):
    """A loop whose clock jumps to the next moment at which something is to be done."""

    def __init__(self) -> None:
        self._skipping = _NoFiles()
        super().__init__(self._skipping)

    def time(self) -> float:
        return self._skipping.now_s


class Starting(Struct):
    """An API server that takes no connection until ``listens_s``, takes them and says nothing until
    ``answers_s``, and after that answers ``per_s`` in a second, one after the other."""

    listens_s: float
    answers_s: float
    per_s: float
    free_s: float = 0.0

    async def ready(self) -> bool:
        """What one that asks for `/readyz` gets to hear."""
        now_s = asyncio.get_running_loop().time()
        if now_s < self.listens_s:
            raise UnavailableError(_URL.url, "connection refused")
        answered_s = max(now_s, self.answers_s, self.free_s)
        if answered_s - now_s > READY_TIMEOUT_S:
            await asyncio.sleep(READY_TIMEOUT_S)
            raise UnavailableError(_URL.url, "no answer")
        self.free_s = answered_s + 1 / self.per_s
        await asyncio.sleep(self.free_s - now_s)
        return True


async def _moments(server: Starting) -> list[float]:
    """When each agent knows that it is back. All lost it at 0."""
    moments = []

    async def comes_back() -> None:
        one = Reachability(_URL, ready=server.ready)
        one.failed("the connection was closed")
        await one.wait(86_400)
        moments.append(asyncio.get_running_loop().time())

    async with asyncio.TaskGroup() as group:
        for _ in range(NODES):
            group.create_task(comes_back())
    return moments


@pytest.mark.parametrize(
    ("down_s", "silent_s", "per_s"),
    [
        *((down_s, silent_s, 1e5) for down_s in (0.0, 7.0, 600.0) for silent_s in (0.0, 0.9, 4.0)),
        (7.0, 20.0, 200.0),
    ],
)
def test_no_second_has_more_than_a_small_part_of_them(down_s: float, silent_s: float, per_s: float) -> None:
    random.seed(40)
    with asyncio.Runner(loop_factory=_Loop) as runner:
        moments = runner.run(_moments(Starting(down_s, down_s + silent_s, per_s)))
    assert len(moments) == NODES
    print(down_s, silent_s, per_s, most_in_a_second(moments) / NODES, max(moments))
    assert most_in_a_second(moments) <= MOST_IN_A_SECOND * NODES
    assert max(moments) <= down_s + silent_s + 3 * AGAIN_S
