"""The page `/`, and the stream `/events` that keeps it up to date.

The parts of the page (figures, what needs attention, refusals, containers) are made here, whole, from the
views, and the browser puts them in place: so the page needs no script to be read, and what others named is
escaped once, by `plain`, here and in the drawing. All who look at the same width share the same parts,
which are made once a second at most.

What the page asks the daemon for while somebody looks (why a container is where it is, what happened lately
on a node, as a line in time, what would become of a pod) is answered with a piece of HTML too. The daemon's
answers are the admin socket's.
"""

import asyncio
import base64
import contextlib
import hashlib
import json
import re
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Iterable, Mapping, Sequence
from datetime import datetime
from importlib.resources import files
from typing import Any, Final, NamedTuple, Protocol

from bayplan.admin_protocol import SIZES
from bayplan.agent.http.server import HttpResponse, PageRequest, plain_text
from bayplan.agent.mirror import Mirror
from bayplan.agent_protocol import Refused
from bayplan.drawing.maps import WIDTH, machine_map
from bayplan.drawing.svg import STYLE, box, element, plain, text
from bayplan.errors import BayplanError
from bayplan.quantity import US_PER_S, amounts, counted, format_bytes, format_column
from bayplan.sets import NodeSet
from bayplan.views import attention as words
from bayplan.views.attention import why
from bayplan.views.decision_view import decision_view
from bayplan.views.snapshot import Snapshot
from bayplan.views.status import nodes_view, spreads_of, status_view, timestamp

View = dict[str, Any]

MOST_ROWS: Final = 2000
_WIDTHS: Final = (342.0, 420.0, 560.0, 740.0, 960.0, WIDTH)
"""The browser's width is rounded down to one of these, so that there are few pictures."""

_US_PER_HOUR: Final = 3600 * US_PER_S
_MEMORY: Final = "memory"


def page_width(request: PageRequest) -> float:
    """How wide what is asked for will be shown."""
    digits = request.query.get("width", "")
    asked = int(digits) if digits.isascii() and digits.isdigit() else WIDTH
    return max((one for one in _WIDTHS if one <= asked), default=_WIDTHS[0])


def node_line(status: View, *, following: bool) -> str:
    """What runs here, in one line."""
    daemon, runtime = status["daemon"], status["runtime"]
    parts = [f"baypland {daemon['version']}", f"engine {daemon['engine']}"]
    parts.append(f"policy {status['policy']['topologyManagerPolicy']}")
    connected = runtime["connected"]
    parts.append(f"{runtime['name']} {runtime['version']}" if connected else "no runtime connected")
    if not following:
        parts.append("baypland does not answer: this is what it said last")
    return plain(", ".join(parts))


def summary(status: View, nodes: Sequence[View], *, following: bool) -> str:
    """The figures that are looked at first."""
    memory = [node["resources"][_MEMORY] for node in nodes]
    promised, allocatable = (sum(one[f"{key}Bytes"] for one in memory) for key in ("booked", "allocatable"))
    outcomes = Counter(one["outcome"] for one in status["containers"])
    refused = status["counters"].get("decisions_refused", 0)
    exclusive = sum(1 for one in status["containers"] if one["cpusExclusive"])
    facts = [
        (f"{format_bytes(promised)} of {format_bytes(allocatable)}", "memory promised", ""),
        (str(len(status["containers"])), "containers" if len(status["containers"]) != 1 else "container", ""),
        (str(exclusive), "with CPUs of their own", ""),
        (str(outcomes["degraded"]), "not as well as asked", "fair" if outcomes["degraded"] else ""),
        (str(refused), "refused since the start", "fair" if refused else ""),
    ]
    if not following:
        facts.insert(0, ("away", "the daemon", "bad"))
    if not status["runtime"]["connected"]:
        facts.insert(0, ("none", "container runtime", "bad"))
    items = (
        f'<li class="{class_}"><b>{plain(value)}</b><span>{plain(what)}</span></li>'
        for value, what, class_ in facts
    )
    return f'<ul class="facts">{"".join(items)}</ul>'


def attention(status: View) -> str:
    """What is not as it should be; nothing where all is."""
    lines = words.attention(status)
    if not lines:
        return ""
    items = "".join(
        f"<li><b>{plain(kind if name == '-' else f'{kind}: {name}')}</b> <span>{plain(what)}</span></li>"
        for kind, name, what in lines
    )
    return f'<h2>Needs attention</h2><ul class="list">{items}</ul>'


def refused(refusals: Iterable[Refused], now_us: int) -> str:
    """The containers that were refused in the last hour, and why; the latest first."""
    head = "<h2>Refused in the last hour</h2>"
    latest = [one for one in refusals if one.at_us > now_us - _US_PER_HOUR][::-1]
    if not latest:
        return head + '<p class="none">Nobody.</p>'
    rows = []
    for one in latest[:MOST_ROWS]:
        view = decision_view(one.decision)
        rows.append((("name", view["name"]), ("at", timestamp(one.at_us)), ("why", str(view["refusal"]))))
    return head + table(("container", "at", "why"), rows) + _more(latest)


def containers(status: View, nodes: Sequence[View]) -> str:
    """Every container: what it was promised and really holds, where, and why there."""
    all_of_them = status["containers"]
    head = f"<h2>Containers <small>{len(all_of_them)}</small></h2>"
    if not all_of_them:
        return head + '<p class="none">None.</p>'
    held: Counter[str] = Counter()
    for node in nodes:
        for one in node["containers"]:
            held[one["id"]] += one["heldBytes"] or 0
    shown = all_of_them[:MOST_ROWS]
    promised = format_column(map(_promised_bytes, shown))
    holds = format_column(held[one["id"]] or None for one in shown)
    rows = [_row(*one) for one in zip(shown, promised, holds, strict=True)]
    names = ("container", "class", "outcome", "nodes", "CPUs", "promised", "holds", "why")
    return head + table(names, rows) + _more(all_of_them)


def claims(status: View) -> str:
    """The resource claims that are held; nothing where there are none."""
    held = status["resourceClaims"]
    if not held:
        return ""
    rows = [
        (
            ("name", one["name"]),
            ("number", one["nodes"]),
            ("number", amounts(one["bytes"])),
            ("number", one["cpus"] or "-"),
            ("why", ", ".join(one["containers"]) or "none yet"),
        )
        for one in held[:MOST_ROWS]
    ]
    names = ("claim", "nodes", "held", "CPUs", "containers")
    return f"<h2>Resource claims <small>{len(held)}</small></h2>" + table(names, rows) + _more(held)


def _promised_bytes(one: View) -> int | None:
    return sum(row.get(_MEMORY, 0) for row in one["bookedBytes"].values()) or None


def _row(one: View, promised: str, holds: str) -> tuple[tuple[str, str], ...]:
    return (
        ("name", one["name"]),
        ("", one["qosClass"]),
        (one["outcome"], one["outcome"]),
        ("number", words.nodes_text(one)),
        ("number", words.cpus_text(one)),
        ("number", promised),
        ("number", holds),
        ("why", words.why(one["reasons"])),
    )


def table(names: Sequence[str], rows: Sequence[Sequence[tuple[str, str]]]) -> str:
    """Cells are a class and a text; on narrow screens the names of the columns stand beside them."""
    aligned = ["number" if class_ == "number" else "" for class_, _ in rows[0]]
    head = "".join(f'<th class="{class_}">{name}</th>' for name, class_ in zip(names, aligned, strict=True))
    lines = [
        "".join(
            f'<td class="{class_}" data-label="{name}"><span{_pressed(class_)}>{plain(cell)}</span></td>'
            for name, (class_, cell) in zip(names, row, strict=True)
        )
        for row in rows
    ]
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f'<div class="table"><table><tr class="head">{head}</tr>{body}</table></div>'


def _pressed(class_: str) -> str:
    """Names are pressed for the explanation."""
    return ' role="button" tabindex="0"' if class_ == "name" else ""


def _more(listed: Sequence[object]) -> str:
    left_out = len(listed) - MOST_ROWS
    return f'<p class="none">and {left_out} more</p>' if left_out > 0 else ""


KINDS: Final = (
    ("placed", "c2"),
    ("degraded", "c1"),
    ("refused", "c5"),
    ("moved", "c0"),
    ("not moved", "stray"),
    ("evicted", "c3"),
)
_LABELS: Final = 70.0
_ROW: Final = 22.0
_HOURS: Final = 6
_S_PER_HOUR: Final = 3600


class PageEvent(NamedTuple):
    """What happened *at* a moment (text, and seconds since the epoch), of one of `KINDS`; and in words, to
    which container and why."""

    at: str
    at_s: float
    what: str
    words: str


def timeline(events: Sequence[PageEvent], span_s: int, now_s: float, width: float) -> str:
    """The *events*, in order, within *span_s* before *now_s*, as SVG of that *width*; without rows that would
    be empty."""

    def x_of(moment_s: float) -> float:
        room = width - _LABELS - 4
        return _LABELS + room * (1 - min(1.0, max(0.0, (now_s - moment_s) / span_s)))

    rows = [(what, class_) for what, class_ in KINDS if any(event.what == what for event in events)]
    height = len(rows) * _ROW + 24
    drawn = []
    for hours in range(0, span_s // _S_PER_HOUR + 1, _HOURS):
        x = x_of(now_s - hours * _S_PER_HOUR)
        anchor = "end" if not hours else "start" if hours * _S_PER_HOUR == span_s else "middle"
        drawn.append(box(x, 0, 1, height - 20, "free"))
        drawn.append(text(x, height - 6, f"-{hours} h" if hours else "now", "soft small", anchor))
    for number, (what, class_) in enumerate(rows):
        top = number * _ROW
        drawn.append(text(0, top + 14, what, "soft small"))
        for event in events:
            if event.what == what:
                x = x_of(event.at_s)
                drawn.append(box(x - 3, top + 3, 6, 14, class_, f"{event.at} {event.words}", 2))
    return element(
        "svg",
        element("title", plain("what happened, by time")),
        *drawn,
        xmlns="http://www.w3.org/2000/svg",
        class_="map",
        role="img",
        viewBox=f"0 0 {width:g} {height:g}",
    )


SINCE_S: Final = 86_400
MOST_EVENTS: Final = 50
"""So many are listed below the line in time, the latest first; the line has all."""

_MOST_CHARACTERS: Final = 300


class DaemonQuestions(Protocol):
    """Asks the daemon."""

    def __call__(self, verb: str, /, **request: Any) -> Awaitable[dict[str, Any]]:
        """The answer; raises BayplanError."""


class Answers:
    """Answers for ``/explain?subject=``, ``/timeline?node=`` and ``/what-if?name=&memory=&cpus=...``."""

    def __init__(self, ask: DaemonQuestions) -> None:
        self._ask = ask

    async def explain(self, request: PageRequest) -> HttpResponse:
        """Why the containers of a pod, or one of them, are where they are."""
        try:
            view = await self._ask("explain", subject=_field(request, "subject"))
        except BayplanError as error:
            return _problem(error)
        return _html("".join(map(explained, view["containers"])))

    async def timeline(self, request: PageRequest) -> HttpResponse:
        """What happened in the last day on a node, or on all."""
        node = _field(request, "node")
        try:
            view = await self._ask("report", sinceSeconds=SINCE_S)
        except BayplanError as error:
            return _problem(error)
        only = int(node) if node.isascii() and node.isdigit() else None
        events = [event for event, nodes in events_of(view) if only is None or only in nodes]
        return _html(happened(events, only, time.time(), page_width(request)))

    async def what_if(self, request: PageRequest) -> HttpResponse:
        """What would become of a pod of these sizes now."""
        sizes = {key: _field(request, key) for key in SIZES}
        try:
            view = await self._ask("what-if", sizes=sizes)
        except BayplanError as error:
            return _problem(error)
        pieces = [explained(one) for pod in view["pods"] for one in pod["containers"]]
        nodes = view["nodesBefore"]
        memory = format_column(node["largest"]["memoryBytes"] for node in nodes)
        largest = [
            (("number", str(node["id"])), ("number", size), ("number", str(node["largest"]["cpus"])))
            for node, size in zip(nodes, memory, strict=True)
        ]
        if largest:
            pieces.append("<h3>The largest that fits on one node now</h3>")
            pieces.append(table(("node", "memory", "CPUs"), largest))
        return _html("".join(pieces))


def explained(view: View) -> str:
    """A decision: what it is, the reasons, what was compared, and what was before."""
    lines = [f"<h3>{plain(view['name'])}</h3>", f"<p>{plain(view['refusal'] or view['summary'])}</p>"]
    if view["reasons"]:
        lines.append(f'<ul class="list">{_items(reason["text"] for reason in view["reasons"])}</ul>')
    if view["candidates"]:
        rows = [
            (
                ("number", one["nodes"]),
                ("", one["obstacle"] or ", ".join(f"{name} {text}" for name, text in one["texts"].items())),
            )
            for one in view["candidates"]
        ]
        lines.append(table(("nodes", "compared by"), rows))
    moves = [move["text"] for move in view["moves"]]
    happened_to_it = [
        f"{one['at']} {one['text']}" for key in ("pageMoves", "evictions") for one in view.get(key, ())
    ]
    earlier = [f"{one['at']} {one['summary']}" for one in view.get("earlier", ())]
    for title, found in (("Moved for it", moves), ("Moved or evicted", happened_to_it), ("Before", earlier)):
        if found:
            lines.append(f'<h3>{title}</h3><ul class="list">{_items(found)}</ul>')
    return "".join(lines)


def events_of(report: View) -> list[tuple[PageEvent, NodeSet]]:
    """What the answer to ``report`` says happened, in order, each with the nodes that it concerns. A refusal
    concerns all: none of them had room; so does what is bound to none."""
    everywhere = NodeSet(range(NodeSet.max_id + 1))
    events: list[tuple[PageEvent, NodeSet]] = []
    for one in report["containers"]:
        nodes = _nodes(one["mems"]) or everywhere
        events.append((_event(one, one["outcome"], f"{one['name']}: {why(one['reasons'])}"), nodes))
    for one in report["moves"]:
        words = f"{one['name']} from {one['before']} to {one['after']} for {one['for']}"
        events.append((_event(one, "moved", words), _nodes(one["before"], one["after"])))
    for one in report["pageMoves"]:
        words = f"{format_bytes(one['movedBytes'])} of {one['name']}"
        words += f" from node {one['fromNode']} to {one['toNode']}"
        what = "moved" if one["done"] else "not moved"
        words += f"; {one['obstacle']}" if one["obstacle"] else ""
        events.append((_event(one, what, words), NodeSet([one["fromNode"], one["toNode"]])))
    for one in report["evictions"]:
        words = f"{one['name']}: {one['text']}"
        events.append((_event(one, "evicted", words), _nodes(one["mems"]) or everywhere))
    return sorted(events, key=lambda pair: pair[0].at)


def happened(events: Sequence[PageEvent], node: int | None, now_s: float, width: float) -> str:
    """The events as a line in time, and the latest as a list."""
    where = "on all nodes; press one in the picture for its own" if node is None else f"on node {node}"
    head = f"<h2>The last day <small>{counted(len(events), 'event')} {where}</small></h2>"
    if not events:
        return head + '<p class="none">Nothing.</p>'
    rows = [
        (("at", one.at), (one.what, one.what), ("why", one.words)) for one in events[: -MOST_EVENTS - 1 : -1]
    ]
    return head + timeline(events, SINCE_S, now_s, width) + table(("at", "what", "who"), rows)


def _event(one: View, what: str, words: str) -> PageEvent:
    return PageEvent(one["at"], datetime.fromisoformat(one["at"]).timestamp(), what, words)


def _nodes(*texts: str | None) -> NodeSet:
    return NodeSet(number for text in texts if text for number in NodeSet.parse(text))


def _items(texts: Any) -> str:
    return "".join(f"<li>{plain(text)}</li>" for text in texts)


def _field(request: PageRequest, name: str) -> str:
    return request.query.get(name, "").strip()[:_MOST_CHARACTERS]


def _html(text: str) -> HttpResponse:
    return HttpResponse(text.encode(), "text/html; charset=utf-8")


def _problem(error: BayplanError) -> HttpResponse:
    return _html(f'<p class="refused">{plain(str(error))}</p>')


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

_SECTIONS: Final = ("node", "summary", "map", "attention", "refused", "claims", "containers")


class Page:
    """Answers for `/` (call it) and `/events`, by what *mirror* knows. What was made is used
    again for *fresh_s*."""

    def __init__(self, mirror: Mirror, fresh_s: float = FRESH_S) -> None:
        self._mirror = mirror
        self._fresh_s = fresh_s
        self._lock = asyncio.Lock()
        self._made: dict[float, tuple[float, int, Parts]] = {}
        self._streams = 0

    async def __call__(self, _: PageRequest) -> HttpResponse:
        """The page as it is now."""
        parts = {"map style": STYLE, **(await self._parts(WIDTH))[1]}
        page = re.sub(r"\{\{([a-z ]+)\}\}", lambda found: parts[found[1]], _TEMPLATE)
        return HttpResponse(
            page.encode(), "text/html; charset=utf-8", headers=(("Content-Security-Policy", _POLICY),)
        )

    async def events(self, request: PageRequest) -> HttpResponse:
        """Server-sent events: each has the parts that are new, for a page of the ``width`` that is asked
        for."""
        if self._streams >= MOST_STREAMS:
            return plain_text(503, f"{MOST_STREAMS} pages are followed already")
        width = page_width(request)
        return HttpResponse(content_type="text/event-stream", chunks=self._follow(width))

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
        "node": node_line(status, following=following),
        "summary": summary(status, nodes, following=following),
        "map": machine_map(nodes, width, embedded=True),
        "attention": attention(status),
        "refused": refused(refusals, int(time.time() * US_PER_S)),
        "claims": claims(status),
        "containers": containers(status, nodes),
    }
