"""`/metrics`: the daemon's metrics by their definitions, and this process's own.

Whoever asks within the same second gets the same text: thousands of scrapes cost no more than one.
"""

import asyncio
import gzip
import time
from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.metrics_core import (
    Metric as Family,
)
from prometheus_client.registry import Collector

from bayplan.agent.http.server import PageRequest, Response
from bayplan.agent.mirror import Mirror
from bayplan.printable import printable
from bayplan.views.metrics import METRICS, Facts, Histogram, Kind, Metric
from bayplan.views.snapshot import Snapshot

FRESH_S: Final = 1.0
_GZIP_LEVEL: Final = 1


class MetricsPage:
    """Answers for `/metrics`, by what *mirror* knows; before it knows anything, with this process's own
    metrics only. So many containers at most are named."""

    def __init__(
        self, mirror: Mirror, most_containers: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._mirror = mirror
        self._most_containers = most_containers
        self._clock = clock
        self._lock = asyncio.Lock()
        self._pages: dict[tuple[str, bool], tuple[float, Response]] = {}

    async def __call__(self, request: PageRequest) -> Response:
        """The page, not older than a second."""
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        compressed = "gzip" in request.headers.get("accept-encoding", "")
        async with self._lock:
            made_s, page = self._pages.get((content_type, compressed), (0.0, None))
            if page is None or self._clock() >= made_s + FRESH_S:
                # The mirror is read here, in the loop that changes it; the rest takes milliseconds.
                snapshot, following = self._mirror.snapshot, self._mirror.connected
                body = await asyncio.to_thread(self._body, encode, snapshot, following=following)
                body = gzip.compress(body, _GZIP_LEVEL) if compressed else body
                headers = (("Content-Encoding", "gzip"),) if compressed else ()
                page = Response(body, content_type, headers=(("Vary", "Accept, Accept-Encoding"), *headers))
                self._pages[content_type, compressed] = self._clock(), page
        return page

    def _body(
        self, encode: Callable[[CollectorRegistry], bytes], snapshot: Snapshot | None, *, following: bool
    ) -> bytes:
        registry = CollectorRegistry(auto_describe=False)
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        if snapshot is not None:
            facts = Facts.of(snapshot, following=following, most_containers=self._most_containers)
            registry.register(_Daemon(facts))
        return encode(registry)


class _Daemon(Collector):
    """The defined metrics, by *facts*."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts

    def collect(self) -> Iterator[Family]:
        """Each of them with its samples."""
        return (_family(metric, self._facts) for metric in METRICS)


def _family(metric: Metric, facts: Facts) -> Family:
    samples = [([printable(one) for one in values], number) for values, number in metric.samples(facts)]
    if metric.kind is Kind.HISTOGRAM:
        histogram = HistogramMetricFamily(metric.name, metric.text, labels=metric.labels)
        for values, number in samples:
            assert isinstance(number, Histogram)
            histogram.add_metric(values, number.cumulative(), number.total)
        return histogram
    of_kind = CounterMetricFamily if metric.kind is Kind.COUNTER else GaugeMetricFamily
    family = of_kind(metric.name, metric.text, labels=metric.labels)
    for values, number in samples:
        assert not isinstance(number, Histogram)
        family.add_metric(values, number)
    return family
