"""The page `/` and the stream `/events` that keeps it up to date.

The parts of the page are made here, whole, and the browser puts them in place: so the page needs no script to
be read, and what others named is escaped once. All who look at the same width share the same parts, which are
made once a second at most.
"""

import asyncio
import base64
import contextlib
import hashlib
import json
import re
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from importlib.resources import files
from typing import Final

from bayplan.agent.http import fragments
from bayplan.agent.http.exchange import PageRequest, Response, text
from bayplan.agent.mirror import Mirror
from bayplan.agent_protocol import Refused
from bayplan.drawing.machine_map import WIDTH, machine_map
from bayplan.drawing.svg import STYLE
from bayplan.quantity import US_PER_S
from bayplan.views.snapshot import Snapshot
from bayplan.views.status import nodes_view, spreads_of, status_view

MOST_STREAMS: Final = 32
FRESH_S: Final = 1.0
_HEARTBEAT_S: Final = 15.0

_TEMPLATE: Final = files("bayplan.agent.http").joinpath("page.html").read_text(encoding="utf-8")
_SCRIPTS: Final = re.findall(r"<script>(.*?)</script>", _TEMPLATE, flags=re.DOTALL)
_HASHES: Final = " ".join(
    f"'sha256-{base64.b64encode(hashlib.sha256(one.encode()).digest()).decode()}'" for one in _SCRIPTS
)
_POLICY: Final = (
    f"default-src 'none'; script-src {_HASHES}; style-src 'unsafe-inline'; img-src data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""No other script runs, whatever a name says."""

Parts = Mapping[str, str]
"""What stands in each section of the page, by its id."""

_SECTIONS: Final = ("node", "summary", "map", "attention", "refused", "containers")


class Page:
    """Answers for `/` (call it) and `/events`, by what *mirror* knows. What was made is used
    again for *fresh_s*."""

    def __init__(self, mirror: Mirror, fresh_s: float = FRESH_S) -> None:
        self._mirror = mirror
        self._fresh_s = fresh_s
        self._lock = asyncio.Lock()
        self._made: dict[float, tuple[float, int, Parts]] = {}
        self._streams = 0

    async def __call__(self, _: PageRequest) -> Response:
        """The page as it is now."""
        parts = {"map style": STYLE, **(await self._parts(WIDTH))[1]}
        page = re.sub(r"\{\{([a-z ]+)\}\}", lambda found: parts[found[1]], _TEMPLATE)
        return Response(
            page.encode(), "text/html; charset=utf-8", headers=(("Content-Security-Policy", _POLICY),)
        )

    async def events(self, request: PageRequest) -> Response:
        """Server-sent events: each has the parts that are new, for a page of the ``width`` that is asked
        for."""
        if self._streams >= MOST_STREAMS:
            return text(503, f"{MOST_STREAMS} pages are followed already")
        width = fragments.page_width(request)
        return Response(content_type="text/event-stream", chunks=self._follow(width))

    async def _follow(self, width: float) -> AsyncGenerator[bytes, None]:
        self._streams += 1
        try:
            sent: Parts = {}
            while True:
                seen, parts = await self._parts(width)
                news = {key: part for key, part in parts.items() if sent.get(key) != part}
                # A comment finds out whether the client is still there.
                yield f"data: {json.dumps(news)}\n\n".encode() if news else b":\n\n"
                sent = parts
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_HEARTBEAT_S):
                        await self._mirror.wait_for_change(seen)
                await asyncio.sleep(self._fresh_s)
        finally:
            self._streams -= 1

    async def _parts(self, width: float) -> tuple[int, Parts]:
        """The parts for a page of this width, not older than a second, and the mirror's revision that they
        show."""
        async with self._lock:
            made_s, revision, parts = self._made.get(width, (0.0, 0, None))
            if parts is None or time.monotonic() >= made_s + self._fresh_s:
                # The mirror is read here, in the loop that changes it; the rest takes milliseconds.
                mirror = self._mirror
                revision, snapshot, refusals = mirror.revision, mirror.snapshot, tuple(mirror.refusals)
                parts = await asyncio.to_thread(_parts, snapshot, refusals, width, following=mirror.connected)
                self._made[width] = time.monotonic(), revision, parts
            return revision, parts


def _parts(snapshot: Snapshot | None, refusals: Sequence[Refused], width: float, *, following: bool) -> Parts:
    if snapshot is None:
        return dict.fromkeys(_SECTIONS, "") | {"node": "baypland has not said anything yet"}
    spreads = spreads_of(snapshot)
    status, nodes = status_view(snapshot, spreads), nodes_view(snapshot, spreads)["nodes"]
    return {
        "node": fragments.node_line(status, following=following),
        "summary": fragments.summary(status, nodes, following=following),
        "map": machine_map(nodes, width, embedded=True),
        "attention": fragments.attention(status),
        "refused": fragments.refused(refusals, int(time.time() * US_PER_S)),
        "containers": fragments.containers(status, nodes),
    }
