"""Counts how long decisions, commits and replies take: a bisection each, as the runtime waits for it."""

from bisect import bisect_left
from collections.abc import Mapping

from bayplan.views.snapshot import BOUNDS_MS, Durations


class DurationCounter:
    """What was observed so far."""

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS_MS) + 1)
        self._total_ms = 0.0

    def observe(self, seconds: float) -> None:
        """Something took so long."""
        duration_ms = seconds * 1000
        self._counts[bisect_left(BOUNDS_MS, duration_ms)] += 1
        self._total_ms += duration_ms

    def durations(self) -> Durations:
        """The counts at this moment."""
        return Durations(tuple(self._counts), self._total_ms)


class Latency:
    """The three of them: ``decision`` is an engine's, ``commit`` from the decision until it is on the disk,
    ``reply`` from the arrival of the runtime's request until it is answered, whatever it was waiting for."""

    def __init__(self) -> None:
        self.decision = DurationCounter()
        self.commit = DurationCounter()
        self.reply = DurationCounter()

    def durations(self) -> Mapping[str, Durations]:
        """All three, by name."""
        return {
            "decision": self.decision.durations(),
            "commit": self.commit.durations(),
            "reply": self.reply.durations(),
        }
