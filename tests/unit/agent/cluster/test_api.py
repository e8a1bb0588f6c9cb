"""How the parts of an agent ask the API server while it is away, and what it says of being asked again."""

import asyncio
import random

from bayplan.agent.cluster.api import AGAIN_S, ApiError, Object, pause_s
from bayplan.agent.cluster.pods import WATCH_S
from bayplan.agent.http_client import MAX_RETRY_AFTER_S
from bayplan.backoff import Backoff
from bayplan.errors import UnavailableError
from support.conditions import until
from support.fake_api_server import NODE, FakeApiServer

NODE_PATH = f"/api/v1/nodes/{NODE}"
PARTS = 5


async def test_while_it_is_away_all_parts_together_ask_whether_it_is_ready_and_nothing_else() -> None:
    fake = FakeApiServer()
    with fake.serving():
        pass
    api = fake.api()
    assert await _outcome(api.get(NODE_PATH, Object)) is UnavailableError
    fake.starts = True
    with fake.serving():
        parts = [asyncio.create_task(_outcome(api.get(NODE_PATH, Object))) for _ in range(PARTS)]
        await until(lambda: len(fake.requests) >= 3)
        assert set(fake.requests) == {("GET", "/readyz")}
        assert not any(part.done() for part in parts)
        fake.starts = False
        assert await asyncio.gather(*parts) == [None] * PARTS
        assert fake.requests.count(("GET", NODE_PATH)) == PARTS


async def test_who_waits_too_long_hears_what_was_wrong_at_first() -> None:
    fake = FakeApiServer()
    with fake.serving():
        pass
    api = fake.api(0.05)
    problems = []
    for _ in range(2):
        try:
            await api.get(NODE_PATH, Object)
        except UnavailableError as error:
            problems.append(str(error))
    assert len(problems) == 2
    assert len(set(problems)) == 1


async def test_one_that_refuses_has_answered() -> None:
    fake = FakeApiServer()
    with fake.serving():
        api = fake.api()
        assert await _outcome(api.get("/api/v1/nodes/other", Object)) is ApiError
        assert await _outcome(api.get(NODE_PATH, Object)) is None
    assert ("GET", "/readyz") not in fake.requests


def test_nobody_waits_for_less_than_the_api_server_asks_for() -> None:
    backoff = Backoff(random.random, first_s=0.1, limit_s=0.1)
    busy = ApiError("/api", 429, "too many requests", retry_after_s=7)
    assert 7 <= pause_s(backoff, busy) <= 7.1
    assert pause_s(backoff, UnavailableError("server", "away")) <= 0.1
    assert MAX_RETRY_AFTER_S < WATCH_S
    assert AGAIN_S <= WATCH_S


async def _outcome(asking: object) -> type[Exception] | None:
    """The error that a request ends with, if it does."""
    assert asyncio.iscoroutine(asking)
    try:
        await asking
    except (ApiError, UnavailableError) as error:
        return type(error)
    return None
