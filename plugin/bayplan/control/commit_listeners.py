"""What happens at each commit: log lines, counters, and the changes for those who follow the ledger from
outside.

The latest changes are kept, within a bound. A follower that has fallen behind further than that starts again
from what holds now. Invariant: whoever applies all changes after a position to what held there has what holds
now.

Lines about a reply are written after it. A container that another program pins is counted each time; the log
names each kind of pin once. What a pin is and whose it is, is in `bayplan.placement.foreign_cpusets`. Nothing
here decides anything or changes a ledger.
"""

import asyncio
import logging
import os
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import Final, TypeAlias

from bayplan.agent_protocol import Change, Evicted, Refused
from bayplan.model.decision import Decision, EvictionRecord, Move, Outcome, Request
from bayplan.model.ledger import Entry, Ledger
from bayplan.model.life import OF_THE_LIVING, Phase, Report
from bayplan.model.machine import Machine
from bayplan.model.policy import PlacementPolicy
from bayplan.model.sentences import FOUND, FOUND_AFTER_ITS_END, after_its_end, move
from bayplan.placement.decide import FORBIDDEN_ANNOTATION, WRONG_ANNOTATION
from bayplan.placement.foreign_cpusets import (
    PinningManager,
    how_detected,
    is_pinned,
    kubelet_sentence,
    pinning_managers,
)
from bayplan.placement.reconcile import AFTER_ITS_END, Reconciliation

MAX_KEPT: Final = 8192
"""Entries and changes together. An entry is some kilobytes, and most are those of the ledger itself."""

MAX_REFUSALS: Final = 100
"""So many refusals are part of what holds now."""

Item: TypeAlias = Change | Refused | Evicted


class ChangeLog:
    """The latest changes. ``epoch`` is drawn for each log: positions of another one mean nothing.
    ``position`` is the last change's, 0 before the first. ``listeners`` are called after each change; they
    must not block.
    """

    def __init__(self, most_kept: int = MAX_KEPT) -> None:
        self.epoch = os.urandom(8).hex()
        self.position = 0
        self.refusals: deque[Refused] = deque(maxlen=MAX_REFUSALS)
        self.listeners: set[Callable[[], None]] = set()
        self._most_kept = most_kept
        self._kept: deque[Item] = deque()
        self._weights: deque[int] = deque()
        """How many entries and changes each of them is."""
        self._weight = 0

    def note(
        self,
        changed: Mapping[str, Entry | None],
        *,
        machine: Machine | None = None,
        policy: PlacementPolicy | None = None,
        engine: str | None = None,
    ) -> None:
        """From now on the ledger says something else about the containers *changed* (by id; see
        `changed_entries`), and the rest is as given."""
        if not changed and (machine, policy, engine) == (None, None, None):
            return
        entries = tuple([entry for entry in changed.values() if entry is not None])
        gone = tuple([key for key, entry in changed.items() if entry is None])
        self.position += 1
        self._keep(Change(self.position, entries, gone, machine, policy, engine), 1 + len(changed))

    def refused(self, decision: Decision) -> None:
        """Add a refusal."""
        self.position += 1
        refusal = Refused(self.position, time.time_ns() // 1000, decision)
        self.refusals.append(refusal)
        self._keep(refusal)

    def evicted(self, record: EvictionRecord, annotations: Mapping[str, str]) -> None:
        """Add the eviction of a pod; see `Evicted`."""
        self.position += 1
        self._keep(Evicted(self.position, record, annotations))

    def since(self, position: int) -> list[Item] | None:
        """The changes after *position*; None if some of them are not kept any more, or the position is of
        another log."""
        behind = self.position - position
        if not 0 <= behind <= len(self._kept):
            return None
        return list(islice(reversed(self._kept), behind))[::-1]

    def _keep(self, item: Item, weight: int = 1) -> None:
        self._kept.append(item)
        self._weights.append(weight)
        self._weight += weight
        while self._weight > self._most_kept:
            self._kept.popleft()
            self._weight -= self._weights.popleft()
        for listener in self.listeners:
            listener()


logger = logging.getLogger(__name__)


class PinWatch:
    """Counts into *counters*. ``configured`` are the managers of kubelet that its configuration switches on;
    the log has that at the start."""

    def __init__(self, counters: Counter[str]) -> None:
        self.configured: Collection[PinningManager] = ()
        self._counters = counters

    def note(self, request: Request) -> Iterator[str]:
        """Count the pins of the container of *request*; the lines to log because a pin is the first of its
        kind."""
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


class DecisionLog:
    """Counts into *counters*; ``pins`` notices what others pin."""

    def __init__(self, counters: Counter[str]) -> None:
        self.pins = PinWatch(counters)
        self._counters = counters

    def decided(self, message: str, decision: Decision) -> None:
        """Log and count a decision that was made and recorded."""
        asyncio.get_running_loop().call_soon(self._decided, message, decision)

    def _decided(self, message: str, decision: Decision) -> None:
        self._counters[f"decisions_{decision.outcome.value}"] += 1
        if decision.outcome is not Outcome.PLACED:
            for code in {reason.code for reason in decision.reasons}:
                self._counters[f"{decision.outcome.value}_{code.replace('-', '_')}"] += 1
        self._count_pinning(decision)
        wrong = any(one.code in (WRONG_ANNOTATION, FORBIDDEN_ANNOTATION) for one in decision.reasons)
        level = logging.WARNING if wrong or decision.outcome is not Outcome.PLACED else logging.INFO
        logger.log(level, message, extra=_fields(decision))
        for sentence in self.pins.note(decision.request):
            logger.warning(sentence, extra=_fields(decision))

    def _count_pinning(self, decision: Decision) -> None:
        """Count as kubelet's Memory Manager and CPU Manager do: which containers ask for a pin, and which do
        not get it."""
        refused, placement = decision.outcome is Outcome.REFUSED, decision.placement
        if refused or placement.mems is not None:
            self._counters["memory_pinning_requests"] += 1
        if refused:
            self._counters["memory_pinning_errors"] += 1
        if decision.request.exclusive_cpus:
            self._counters["cpu_pinning_requests"] += 1
            if not placement.own_cpus:
                self._counters["cpu_pinning_errors"] += 1

    def moved(self, one: Move) -> None:
        """Log and count that another container gets other nodes."""
        self._counters["moves"] += 1
        fields = {"container": one.name, "container_id": one.container_id, "move": move(one)}
        _after_the_reply(partial(logger.info, "moved", extra=fields))

    def released(self, name: str, container_id: str, why: Report) -> None:
        """Log and count that a container holds nothing any more: *why* was reported of it."""
        self._counters["released"] += 1
        fields = {"container": name, "container_id": container_id, "why": why.value}
        _after_the_reply(partial(logger.info, "released", extra=fields))

    def synchronized(self, result: Reconciliation) -> None:
        """Log and count what it took to make ledger and runtime agree on what exists."""
        for entry in result.found:
            self.found(entry.decision)
        if result.recovered:
            self._counters["recovered_containers"] += len(result.recovered)
            logger.warning(
                "the state database was lost or is an older one; recorded again from the containers",
                extra={"containers": len(result.recovered)},
            )
        for container_id in result.gone:
            logger.info("recorded container is gone", extra={"container_id": container_id})
        logger.info(
            "synchronized",
            extra={
                "containers": len(result.ledger.entries),
                "found": len(result.found),
                "gone": len(result.gone),
                "updates": len(result.updates),
            },
        )

    def ignored(self, report: Report, before: Phase, container_id: str) -> None:
        """Log and count a *report* by which a container that holds nothing gets nothing; *before* is how it
        ended."""
        if before is Phase.ENDED and report in OF_THE_LIVING:
            self._counters["reported_after_end"] += 1
            extra = {"container_id": container_id}
            _after_the_reply(partial(logger.info, after_its_end(report), extra=extra))

    def found(self, decision: Decision) -> None:
        """Log and count a container that exists without a decision of ours."""
        self._counters["found_containers"] += 1
        known = any(reason.code == AFTER_ITS_END for reason in decision.reasons)
        message = FOUND_AFTER_ITS_END if known else FOUND
        logger.warning(message, extra=_fields(decision))


def _after_the_reply(write: Callable[[], None]) -> None:
    """Log in the loop's next round: a line would cost the waiting runtime a quarter of a millisecond, most of
    it for the interpreter's lock, which the log's own thread takes."""
    asyncio.get_running_loop().call_soon(write)


def _fields(decision: Decision) -> dict[str, object]:
    """The fields of a log line about a decision."""
    request, placement = decision.request, decision.placement
    return {
        "container": request.name,
        "container_id": request.container_id,
        "outcome": decision.outcome.value,
        "qos": request.qos.value,
        "mems": None if placement.mems is None else str(placement.mems),
        "exclusive_cpus": str(placement.own_cpus),
        "reasons": decision.explanation(),
        "codes": [reason.code for reason in decision.reasons],
        **({"moves": [move(one) for one in decision.moves]} if decision.moves else {}),
    }
