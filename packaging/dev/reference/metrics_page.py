"""The reference page of all metrics, docs/metrics.md, from their definitions."""

from collections.abc import Iterable, Iterator
from typing import Final

from bayplan.views.metrics import EVENTS, METRIC_GROUPS, Metric

_OPENING: Final = """\
# Metrics

This page is generated from the definitions in `plugin/bayplan/views/metrics.py`; `make reference` writes it.

`bayplan-agent` serves them at `/metrics`, and `bayplan metrics` prints the same, without single containers,
for the textfile collector of node_exporter. A name, once published, keeps its meaning. Counters begin with
the daemon's start. Of what is seen of memory (`live`, `used`, `misplaced`, single containers) there are no
samples where the daemon does not look at it (`memoryPressure`).
"""

_CLOSING: Final = """
Beside these, `degraded_CODE` and `refused_CODE` count decisions by the codes of their reasons, as
`bayplan_decision_reasons_total` does, from the first one on.
"""


def page() -> str:
    """The page, in Markdown."""
    parts = [
        _OPENING,
        *(f"\n## {title}\n\n" + _table(_rows(group)) for title, group in METRIC_GROUPS.items()),
    ]
    events = ((f"`{name}`", text) for name, text in EVENTS.items())
    parts.append("\n## Events\n\nThe values of the label `event` of `bayplan_events_total`:\n\n")
    parts.append(_table((("event", "counts one for each time that"), *events)))
    parts.append(_CLOSING)
    return "".join(parts)


def _rows(metrics: Iterable[Metric]) -> Iterator[tuple[str, ...]]:
    yield "metric", "type", "labels", "meaning"
    for one in metrics:
        yield f"`{one.name}`", one.kind.value, ", ".join(f"`{label}`" for label in one.labels), one.text


def _table(rows: Iterable[tuple[str, ...]]) -> str:
    head, *body = rows
    lines = [head, ("---",) * len(head), *body]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
