"""The page as text: its parts, its stream, and what keeps names from being more than names. What a browser
makes of it is shown in tests/interop."""

import asyncio
import contextlib
import html
import json
import re
from collections.abc import AsyncIterator

from bayplan.agent.http.page import MOST_STREAMS, SINCE_S, Page, containers, events_of, happened
from bayplan.agent.http.page import attention as fragment_of_attention
from bayplan.agent.http.server import PageRequest
from bayplan.agent.mirror import Mirror
from bayplan.views.attention import attention, cpus_text
from bayplan.views.status import nodes_view, status_view
from support.crowded import crowded
from support.mirrors import mirror_of, show
from support.snapshots import make_snapshot

HOSTILE = "</script><script>alert(1)</script>\"'&{{map}}"


@contextlib.asynccontextmanager
async def following(page: Page, width: str = "1180") -> AsyncIterator[AsyncIterator[bytes]]:
    response = await page.events(PageRequest("/events", query={"width": width}))
    assert response.chunks is not None, response.body
    async with contextlib.aclosing(response.chunks) as chunks:
        yield chunks


def parts(chunk: bytes) -> dict[str, str]:
    text = chunk.decode()
    assert text.startswith("data: ")
    assert text.endswith("\n\n")
    assert "\n" not in text[:-2]
    return json.loads(text[6:])


async def test_a_page_before_the_daemon_has_said_anything_says_so() -> None:
    response = await Page(Mirror())(PageRequest("/"))
    assert b"baypland has not said anything yet" in response.body
    assert b"{{" not in response.body


async def test_names_stay_names_and_no_other_script_may_run() -> None:
    response = await Page(mirror_of(crowded(2, 4, HOSTILE)))(PageRequest("/"))
    body, headers = response.body.decode(), dict(response.headers)
    assert len(re.findall("<script", body)) == 1
    assert "&lt;script&gt;alert(1)" in body
    assert "{{map}}" in body  # a name, not a place
    policy = headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe-inline" not in policy.split(";")[1]
    assert not re.search(r"(src|href)=\"(?!data:)", body)


async def test_the_stream_has_everything_first_and_then_what_is_new() -> None:
    mirror = mirror_of(crowded(2, 4))
    async with following(Page(mirror, fresh_s=0)) as chunks:
        first = parts(await anext(chunks))
        assert first.keys() == {"node", "summary", "map", "attention", "refused", "claims", "containers"}
        show(mirror, crowded(2, 5))
        news = parts(await anext(chunks))
        assert "containers" in news
        assert not {"node", "attention", "refused"} & news.keys()
        mirror.disconnected()
        assert "does not answer" in parts(await anext(chunks))["node"]


async def test_the_picture_has_the_width_that_is_asked_for_or_one_that_there_is() -> None:
    page = Page(mirror_of(crowded(2, 4)))
    widths = {"366": 342, "740": 740, "1180": 1180, "99999": 1180, "1": 342, "x": 1180, "": 1180}
    for asked, width in widths.items():
        async with following(page, asked) as chunks:
            assert f'viewBox="0 0 {width} ' in parts(await anext(chunks))["map"]


async def test_all_who_look_share_what_is_made() -> None:
    page = Page(mirror_of(crowded(8, 30)))
    async with contextlib.AsyncExitStack() as stack:
        followed = [await stack.enter_async_context(following(page)) for _ in range(20)]
        chunks = await asyncio.gather(*(anext(one) for one in followed))
    assert len(set(chunks)) == 1


async def test_only_so_many_are_followed_and_who_leaves_makes_room() -> None:
    page = Page(mirror_of(crowded(2, 4)))
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(MOST_STREAMS):
            chunks = await stack.enter_async_context(following(page))
            await anext(chunks)
        refused = await page.events(PageRequest("/events"))
        assert (refused.status, refused.chunks) == (503, None)
    async with following(page) as chunks:
        await anext(chunks)


def test_page_and_status_say_the_same_of_every_container() -> None:
    snapshot = make_snapshot()
    view, shown = status_view(snapshot), nodes_view(snapshot)["nodes"]
    page = html.unescape(fragment_of_attention(view))
    for kind, name, what in attention(view):
        assert f"<b>{kind if name == '-' else f'{kind}: {name}'}</b> <span>{what}</span>" in page
    found = html.unescape(containers(view, shown))
    cells = re.findall(r'data-label="CPUs"[^>]*><span>(.*?)</span>', found)
    assert cells == [cpus_text(one) for one in view["containers"]]
    assert "7 (set by others)" in cells


def test_what_happened_on_a_node_is_what_concerns_it() -> None:
    at = "2026-01-01T00:00:00Z"
    one = {"at": at, "name": "a/b/c", "outcome": "placed", "mems": "1", "reasons": []}
    report = {
        "containers": [one, {**one, "mems": None}, {**one, "outcome": "refused", "mems": None}],
        "moves": [{"at": at, "name": "a/b/d", "before": "0", "after": "2-3", "for": "a/b/c", "bytes": 0}],
        "pageMoves": [
            {
                "at": at,
                "name": "x",
                "fromNode": 2,
                "toNode": 0,
                "movedBytes": 0,
                "done": False,
                "obstacle": "full",
            }
        ],
        "evictions": [
            {"at": at, "name": "a/b/e", "text": "evicted", "mems": mems} for mems in ("3", "0-1", None)
        ],
    }
    found = events_of(report)
    on = {node: [event.what for event, nodes in found if node in nodes] for node in (0, 1, 3)}
    anywhere = ["placed", "refused", "evicted"]
    assert on[1] == ["placed", "placed", "refused", "evicted", "evicted"]
    assert sorted(on[0]) == sorted([*anywhere, "evicted", "moved", "not moved"])
    assert sorted(on[3]) == sorted([*anywhere, "evicted", "moved"])
    now_s = found[0][0].at_s + SINCE_S / 2
    drawn = happened([event for event, _ in found], None, now_s, 340.0)
    middle = [float(x) + 3 for x in re.findall(r'<rect x="([\d.]+)" y="[\d.]+" width="6"', drawn)]
    assert len(middle) == 8
    assert all(abs(x - (70 + (340 - 74) / 2)) < 1 for x in middle)
    assert happened([], 1, now_s, 340.0).endswith('<p class="none">Nothing.</p>')
