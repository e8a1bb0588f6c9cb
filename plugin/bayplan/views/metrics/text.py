"""Metrics in Prometheus' text format, version 0.0.4."""

from collections.abc import Iterator
from typing import Final

from bayplan.admin_protocol import API_VERSION
from bayplan.printable import printable
from bayplan.views.metrics import METRICS
from bayplan.views.metrics.metric import Facts, Histogram, Metric
from bayplan.views.snapshot import Snapshot
from bayplan.views.status import View

_ESCAPES: Final = str.maketrans({"\\": r"\\", '"': r"\""})


def metrics_view(snapshot: Snapshot) -> View:
    """All metrics as one text, as the admin socket shows them: none of single containers."""
    return {"apiVersion": API_VERSION, "kind": "Metrics", "text": metrics_text(Facts.of(snapshot))}


def metrics_text(facts: Facts) -> str:
    """All metrics."""
    return "".join(f"{line}\n" for metric in METRICS for line in _lines(metric, facts))


def _lines(metric: Metric, facts: Facts) -> Iterator[str]:
    yield f"# HELP {metric.name} {metric.text}"
    yield f"# TYPE {metric.name} {metric.kind.value}"
    for values, number in metric.samples(facts):
        labels = dict(zip(metric.labels, values, strict=True))
        if isinstance(number, Histogram):
            buckets = number.cumulative()
            for bound, count in buckets:
                yield _line(f"{metric.name}_bucket", {**labels, "le": bound}, count)
            yield _line(f"{metric.name}_sum", labels, number.total)
            yield _line(f"{metric.name}_count", labels, buckets[-1][1])
        else:
            yield _line(metric.name, labels, number)


def _line(name: str, labels: dict[str, str], number: float) -> str:
    pairs = ",".join(f'{key}="{printable(value).translate(_ESCAPES)}"' for key, value in labels.items())
    return f"{name}{{{pairs}}} {number}" if pairs else f"{name} {number}"
