"""What the page asks the daemon for while somebody looks: why a container is where it is, what happened
lately on a node, what would become of a pod.

Each answers with a piece of HTML that the page puts in place. The daemon's answers are the admin socket's;
every text of others is escaped by `plain`.
"""

import time
from collections.abc import Awaitable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Protocol

from bayplan.admin_protocol import SIZES
from bayplan.agent.http.exchange import PageRequest, Response
from bayplan.agent.http.fragments import page_width, table
from bayplan.drawing.svg import plain
from bayplan.drawing.timeline import Event, timeline
from bayplan.errors import BayplanError
from bayplan.quantity import counted, format_bytes, format_column
from bayplan.sets import NodeSet
from bayplan.views.attention import why

SINCE_S: Final = 86_400
MOST_EVENTS: Final = 50
"""So many are listed below the line in time, the latest first; the line has all."""

_MOST_CHARACTERS: Final = 300
View = Mapping[str, Any]


class Asking(Protocol):
    """Asks the daemon."""

    def __call__(self, verb: str, /, **request: Any) -> Awaitable[dict[str, Any]]:
        """The answer; raises BayplanError."""


class Answers:
    """Answers for ``/explain?subject=``, ``/timeline?node=`` and ``/what-if?name=&memory=&cpus=...``."""

    def __init__(self, ask: Asking) -> None:
        self._ask = ask

    async def explain(self, request: PageRequest) -> Response:
        """Why the containers of a pod, or one of them, are where they are."""
        try:
            view = await self._ask("explain", subject=_field(request, "subject"))
        except BayplanError as error:
            return _problem(error)
        return _html("".join(map(explained, view["containers"])))

    async def timeline(self, request: PageRequest) -> Response:
        """What happened in the last day on a node, or on all."""
        node = _field(request, "node")
        try:
            view = await self._ask("report", sinceSeconds=SINCE_S)
        except BayplanError as error:
            return _problem(error)
        only = int(node) if node.isascii() and node.isdigit() else None
        events = [event for event, nodes in events_of(view) if only is None or only in nodes]
        return _html(happened(events, only, time.time(), page_width(request)))

    async def what_if(self, request: PageRequest) -> Response:
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


def events_of(report: View) -> list[tuple[Event, NodeSet]]:
    """What the answer to ``report`` says happened, in order, each with the nodes that it concerns. A refusal
    concerns all: none of them had room; so does what is bound to none."""
    everywhere = NodeSet(range(NodeSet.max_id + 1))
    found: list[tuple[Event, NodeSet]] = []
    for one in report["containers"]:
        nodes = _nodes(one["mems"]) or everywhere
        found.append((_event(one, one["outcome"], f"{one['name']}: {why(one['reasons'])}"), nodes))
    for one in report["moves"]:
        words = f"{one['name']} from {one['before']} to {one['after']} for {one['for']}"
        found.append((_event(one, "moved", words), _nodes(one["before"], one["after"])))
    for one in report["pageMoves"]:
        words = f"{format_bytes(one['movedBytes'])} of {one['name']}"
        words += f" from node {one['fromNode']} to {one['toNode']}"
        what = "moved" if one["done"] else "not moved"
        words += f"; {one['obstacle']}" if one["obstacle"] else ""
        found.append((_event(one, what, words), NodeSet([one["fromNode"], one["toNode"]])))
    for one in report["evictions"]:
        words = f"{one['name']}: {one['text']}"
        found.append((_event(one, "evicted", words), _nodes(one["mems"]) or everywhere))
    return sorted(found, key=lambda pair: pair[0].at)


def happened(events: Sequence[Event], node: int | None, now_s: float, width: float) -> str:
    """The events as a line in time, and the latest as a list."""
    where = "on all nodes; press one in the picture for its own" if node is None else f"on node {node}"
    head = f"<h2>The last day <small>{counted(len(events), 'event')} {where}</small></h2>"
    if not events:
        return head + '<p class="none">Nothing.</p>'
    rows = [
        (("at", one.at), (one.what, one.what), ("why", one.words)) for one in events[: -MOST_EVENTS - 1 : -1]
    ]
    return head + timeline(events, SINCE_S, now_s, width) + table(("at", "what", "who"), rows)


def _event(one: View, what: str, words: str) -> Event:
    return Event(one["at"], datetime.fromisoformat(one["at"]).timestamp(), what, words)


def _nodes(*texts: str | None) -> NodeSet:
    return NodeSet(number for text in texts if text for number in NodeSet.parse(text))


def _items(texts: Any) -> str:
    return "".join(f"<li>{plain(text)}</li>" for text in texts)


def _field(request: PageRequest, name: str) -> str:
    return request.query.get(name, "").strip()[:_MOST_CHARACTERS]


def _html(text: str) -> Response:
    return Response(text.encode(), "text/html; charset=utf-8")


def _problem(error: BayplanError) -> Response:
    return _html(f'<p class="refused">{plain(str(error))}</p>')
