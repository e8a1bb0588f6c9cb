"""What a metric is: its name, its meaning, and how its samples are had from what the daemon shows.

A row like this is all that there is of a metric; text, scrapes and the reference page are made from it. A
name, once published, keeps its meaning.
"""

import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from msgspec import Struct

from bayplan.views.durations import Durations
from bayplan.views.snapshot import Snapshot
from bayplan.views.status import Spreads, nodes_view, spreads_of, status_view


class Kind(enum.Enum):
    """Prometheus' types."""

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


class Histogram(Struct, frozen=True):
    """``counts`` has a number for each of ``bounds`` and one for what is above all of them; not cumulative.
    ``total`` is the sum of all that was observed."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float

    @classmethod
    def of(cls, durations: Durations, bounds_ms: Sequence[float], scale: float) -> "Histogram":
        """*durations* with as many bounds as *bounds_ms* has, which are their lowest, times *scale*."""
        kept = len(bounds_ms)
        return cls(
            tuple(bound * scale for bound in bounds_ms),
            (*durations.counts[:kept], sum(durations.counts[kept:])),
            durations.total_ms * scale,
        )

    def cumulative(self) -> list[tuple[str, int]]:
        """The buckets as Prometheus has them: a bound, and how many were no more."""
        found, count = [], 0
        for bound, number in zip((*map(_plain, self.bounds), "+Inf"), self.counts, strict=True):
            count += number
            found.append((bound, count))
        return found


Sample: TypeAlias = tuple[tuple[str, ...], float | Histogram]
"""The values of the labels, in their order, and the number."""


class Facts(Struct, frozen=True):
    """What samples are made from. ``following``: this is the daemon's state of now, not what it was when it
    could be asked last. Of the containers with the most memory elsewhere, ``most_containers`` are named."""

    snapshot: Snapshot
    spreads: Spreads
    status: Mapping[str, Any]
    nodes: Sequence[Mapping[str, Any]]
    following: bool = True
    most_containers: int = 0

    @classmethod
    def of(cls, snapshot: Snapshot, *, following: bool = True, most_containers: int = 0) -> "Facts":
        """With the views of *snapshot*. Takes milliseconds where there are many containers."""
        spreads = spreads_of(snapshot)
        status, nodes = status_view(snapshot, spreads), nodes_view(snapshot, spreads)["nodes"]
        return cls(snapshot, spreads, status, nodes, following, most_containers)


class Metric(Struct, frozen=True):
    """One metric. ``text`` is what it counts or measures, for the scrape and the reference page."""

    name: str
    kind: Kind
    text: str
    samples: Callable[[Facts], Iterable[Sample]]
    labels: tuple[str, ...] = ()


def single(value: Callable[[Facts], float | Histogram]) -> Callable[[Facts], Iterable[Sample]]:
    """The samples of a metric without labels."""
    return lambda facts: [((), value(facts))]


def _plain(number: float) -> str:
    """Without the digits that binary fractions add.

    >>> _plain(0.00005 * 2**3)
    '0.0004'
    """
    return f"{number:.6g}"
