"""The parts of the page beside the picture, as HTML: figures, what needs attention, refusals, containers.

Pure functions of the views. Every text of others is escaped by `plain`, here and in the drawing.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final

from bayplan.agent.http.exchange import PageRequest
from bayplan.agent_protocol import Refused
from bayplan.drawing.machine_map import WIDTH
from bayplan.drawing.svg import plain
from bayplan.quantity import US_PER_S, format_bytes, format_column
from bayplan.views import attention as words
from bayplan.views.decision_view import decision_view
from bayplan.views.status import timestamp

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
    """Who was refused in the last hour and why, the latest first."""
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
