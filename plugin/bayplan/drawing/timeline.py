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


def timeline(events: Sequence[Event], span_s: int, now_s: float, width: float) -> str:
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
