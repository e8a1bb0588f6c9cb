"""Notices that another program pins containers: counts each pin, and has a sentence for the log once.

What a pin is and whose is in `bayplan.placement.foreign_cpusets`; the status derives its own sentence
from the ledger.
"""

from collections import Counter
from collections.abc import Collection, Iterator

from bayplan.model.decision import Request
from bayplan.model.ledger import Ledger
from bayplan.placement.foreign_cpusets import (
    PinningManager,
    how_detected,
    is_pinned,
    kubelet_sentence,
    pinning_managers,
)


class PinWatch:
    """Counts into *counters*. ``configured`` are the managers of kubelet that its configuration switches on;
    the log has that at the start."""

    def __init__(self, counters: Counter[str]) -> None:
        self.configured: Collection[PinningManager] = ()
        self._counters = counters

    def note(self, request: Request) -> Iterator[str]:
        """Count the pins of a container; what to log because it is the first of its kind."""
        if not is_pinned(request):
            return
        self._counters["pinned_by_others"] += 1
        seen, managers = how_detected(request).value, pinning_managers(request)
        for manager in managers:
            first = self._first(f"pinned_by_kubelet_{manager.name.lower()}_manager")
            if first and manager not in self.configured:
                yield kubelet_sentence(manager, seen)
        if not managers and self._first("pinned_by_strangers"):
            yield f"another program pins containers (seen in {seen}); bayplan leaves them as they are"

    def kubelet_pins_cpus(self, ledger: Ledger) -> bool:
        """Whether kubelet's CPU Manager is at work, by its configuration or by what it did."""
        requests = (entry.decision.request for entry in ledger.entries.values())
        return PinningManager.CPU in self.configured or any(
            PinningManager.CPU in pinning_managers(request) for request in requests
        )

    def _first(self, counter: str) -> bool:
        self._counters[counter] += 1
        return self._counters[counter] == 1
