"""All metrics, as rows of definitions (`metric`), and what is made from them: the text of a scrape (`text`),
and the reference page (`reference`)."""

from typing import Final

from bayplan.views.metrics import containers, daemon, kubelet, nodes
from bayplan.views.metrics.metric import Metric

METRICS: Final[tuple[Metric, ...]] = (
    *daemon.METRICS,
    *nodes.METRICS,
    *containers.METRICS,
    *kubelet.METRICS,
)
