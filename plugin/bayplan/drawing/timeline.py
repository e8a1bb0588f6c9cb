"""Events as a line in time: one row for each kind, the newest at the right."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from bayplan.drawing.svg import box, element, plain, text

KINDS: Final = (
    ("placed", "c2"),
    ("degraded", "c1"),
    ("refused", "c5"),
    ("moved", "c0"),
    ("not moved", "stray"),
    ("evicted", "c3"),
)
_WIDTH: Final = 720.0
_LABELS: Final = 70.0
_ROW: Final = 22.0
_HOURS: Final = 6
_S_PER_HOUR: Final = 3600


class Event(NamedTuple):
    """What happened *at* a moment (text, and seconds since the epoch), of one of `KINDS`, and in words to
    whom and why."""

    at: str
    at_s: float
    what: str
    words: str


def timeline(events: Sequence[Event], span_s: int) -> str:
    """The *events*, in order, within *span_s* before the latest one, as SVG; without rows that would be
    empty."""
    last_s = events[-1].at_s
    rows = [(what, class_) for what, class_ in KINDS if any(event.what == what for event in events)]
    height = len(rows) * _ROW + 24
    drawn = []
    for hours in range(0, span_s // _S_PER_HOUR + 1, _HOURS):
        x = _x(last_s - hours * _S_PER_HOUR, last_s, span_s)
        anchor = "end" if not hours else "start" if hours * _S_PER_HOUR == span_s else "middle"
        drawn.append(box(x, 0, 1, height - 20, "free"))
        drawn.append(text(x, height - 6, f"-{hours} h" if hours else "latest", "soft small", anchor))
    for number, (what, class_) in enumerate(rows):
        top = number * _ROW
        drawn.append(text(0, top + 14, what, "soft small"))
        for event in events:
            if event.what == what:
                x = _x(event.at_s, last_s, span_s)
                drawn.append(box(x - 3, top + 3, 6, 14, class_, f"{event.at} {event.words}", 2))
    return element(
        "svg",
        element("title", plain("what happened, by time")),
        *drawn,
        xmlns="http://www.w3.org/2000/svg",
        class_="map",
        role="img",
        viewBox=f"0 0 {_WIDTH:g} {height:g}",
    )


def _x(moment_s: float, last_s: float, span_s: int) -> float:
    room = _WIDTH - _LABELS - 4
    return _LABELS + room * (1 - min(1.0, max(0.0, (last_s - moment_s) / span_s)))
