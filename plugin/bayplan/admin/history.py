"""Questions about what was decided before: what was refused lately, everything about one pod in order, and
what decisions did since some time, or in shadow mode would have done (``report``).

Answered from the store, so that a restart of the daemon loses nothing of it. What holds now is in the
views. The report is made of the records alone, the same for both, so that what shadow mode says can be
held against what the same containers get without it.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from bayplan.admin.questions import (
    MAX_RECORDED,
    Question,
    Recorded,
    Records,
    UnknownSubjectError,
    eviction_view,
    explaining,
    since_in,
    subject_of,
)
from bayplan.admin_protocol import API_VERSION, REFUSED_SINCE_S, REPORTED_SINCE_S
from bayplan.control.recorder import Recorder
from bayplan.kubelet.eviction_manager import node_of
from bayplan.model.decision import Decision, Outcome
from bayplan.model.records import EvictionRecord, PageMoveRecord
from bayplan.model.sentences import summary
from bayplan.quantity import US_PER_S
from bayplan.state import RefusedItem
from bayplan.views.decision_view import View
from bayplan.views.snapshot import Snapshot
from bayplan.views.status import timestamp

_DECIDED: Final = (Outcome.PLACED, Outcome.DEGRADED, Outcome.REFUSED)
"""What was found running stays as it was."""


class ReportRecords(Protocol):
    """The records that a report is made of, as a `Recorder` finds them; always the newest first."""

    def decided(self, since_us: int) -> Awaitable[Sequence[Recorded]]:
        """The decisions since then."""

    def page_moves(self, limit: int, subject: str | None) -> Awaitable[Sequence[PageMoveRecord]]:
        """At most *limit* records of pages that were moved; of all containers if *subject* is None."""

    def evictions(self, limit: int, subject: str | None) -> Awaitable[Sequence[EvictionRecord]]:
        """At most *limit* records of evicted containers; of all if *subject* is None."""

    def history(self, limit: int, subject: str) -> Awaitable[Sequence[Recorded]]:
        """At most *limit* decisions; about all containers if *subject* is None."""


def reporting(records: ReportRecords) -> Question:
    """The question ``report``."""

    async def answer(snapshot: Snapshot, request: Mapping[str, object]) -> View:
        since_us = since_in("report", snapshot, request, REPORTED_SINCE_S)
        decided = [one for one in await records.decided(since_us) if one[1].outcome in _DECIDED]
        evicted = [one for one in await records.evictions(MAX_RECORDED, None) if one.at_us >= since_us]
        moved = [one for one in await records.page_moves(MAX_RECORDED, None) if one.at_us >= since_us]
        return {
            "apiVersion": API_VERSION,
            "kind": "Report",
            "since": timestamp(since_us),
            "outcomes": _counted(decided),
            "containers": [_container(at_us, one) for at_us, one in reversed(decided)],
            "moves": [move for at_us, one in reversed(decided) for move in _moves(at_us, one)],
            "pageMoves": [_page_move(one) for one in reversed(moved)],
            "evictions": [
                eviction_view(one) | {"mems": await _mems_of(one, records)} for one in reversed(evicted)
            ],
        }

    return answer


async def _mems_of(evicted: EvictionRecord, records: ReportRecords) -> str | None:
    """The node that ran short; else those that the container was bound to, None if to none."""
    node = node_of(evicted.signal)
    if node is not None:
        return str(node)
    bound = (
        decision.placement.mems
        for at_us, decision in await records.history(MAX_RECORDED, evicted.container_id)
        if at_us <= evicted.at_us and decision.outcome is not Outcome.REFUSED
    )
    mems = next(bound, None)
    return None if mems is None else str(mems)


def _counted(decided: Sequence[Recorded]) -> dict[str, int]:
    counted = Counter(one.outcome for _, one in decided)
    return {outcome.value: counted[outcome] for outcome in _DECIDED}


def _container(at_us: int, decision: Decision) -> View:
    request, placement = decision.request, decision.placement
    given = decision.outcome is not Outcome.REFUSED
    return {
        "at": timestamp(at_us),
        "id": request.container_id,
        "name": request.name,
        "outcome": decision.outcome.value,
        "mems": str(placement.mems) if given and placement.mems is not None else None,
        "exclusiveCpus": str(placement.own_cpus),
        "sharesCpus": given and decision.shares_cpus,
        "memoryLimitBytes": request.memory_limit_bytes if given else None,
        "reasons": [{"code": reason.code, "text": reason.text} for reason in decision.reasons],
    }


def _moves(at_us: int, decision: Decision) -> list[View]:
    return [
        {
            "at": timestamp(at_us),
            "id": move.container_id,
            "name": move.name,
            "before": str(move.before),
            "after": str(move.after),
            "bytes": move.moved_bytes,
            "for": decision.request.name,
        }
        for move in decision.moves
    ]


def _page_move(record: PageMoveRecord) -> View:
    return {
        "at": timestamp(record.at_us),
        "id": record.container_id,
        "name": record.name,
        "fromNode": record.source,
        "toNode": record.target,
        "wantedBytes": record.wanted_bytes,
        "movedBytes": record.moved_bytes,
        "done": record.is_done,
        "obstacle": record.obstacle or None,
    }


MAX_REFUSED: Final = 200
"""So many containers are listed, the latest first; all of them are counted."""


def recorded_questions(recorder: Recorder) -> dict[str, Question]:
    """All questions that are answered from the records of *recorder*."""
    return {
        "explain": explaining(recorder),
        "history": telling_history(recorder),
        "refused": listing_refused(recorder.refusals),
        "report": reporting(recorder),
    }


def listing_refused(
    refused: Callable[[int, int], Awaitable[Sequence[RefusedItem]]],
) -> Question:
    """The question ``refused``; *refused* finds so many containers that were refused since then (microseconds
    since the epoch), the latest first."""

    async def answer(snapshot: Snapshot, request: Mapping[str, object]) -> View:
        since_us = since_in("refused", snapshot, request, REFUSED_SINCE_S)
        found = await refused(MAX_REFUSED, since_us)
        return {
            "apiVersion": API_VERSION,
            "kind": "Refusals",
            "since": timestamp(since_us),
            "refusals": [_refused(one, snapshot) for one in found],
        }

    return answer


def telling_history(records: Records) -> Question:
    """The question ``history``."""

    async def answer(snapshot: Snapshot, request: Mapping[str, object]) -> View:
        subject, recorded = await subject_of("history", snapshot, request, records)
        moved = await records.page_moves(MAX_RECORDED, subject)
        evicted = await records.evictions(MAX_RECORDED, subject)
        if not recorded and not moved and not evicted:
            raise UnknownSubjectError(subject)
        events = [(at_us, _decided(at_us, one)) for at_us, one in reversed(recorded)]
        events += [(one.at_us, _moved(one)) for one in reversed(moved)]
        events += [(one.at_us, _evicted(one)) for one in reversed(evicted)]
        events.sort(key=lambda event: event[0])
        return {
            "apiVersion": API_VERSION,
            "kind": "History",
            "subject": subject,
            "complete": len(recorded) < MAX_RECORDED and len(moved) < MAX_RECORDED,
            "events": [view for _, view in events],
        }

    return answer


def _refused(one: RefusedItem, snapshot: Snapshot) -> View:
    request = one.decision.request
    return {
        "id": request.container_id,
        "name": request.name,
        "times": one.times,
        "firstAt": timestamp(one.first_us),
        "lastAt": timestamp(one.last_us),
        "secondsAgo": max(0, (snapshot.taken_us - one.last_us) // US_PER_S),
        "reasons": [{"code": reason.code, "text": reason.text} for reason in one.decision.reasons],
        "placedSince": any(entry.decision.request.name == request.name for entry in snapshot.ledger.holders),
    }


def _decided(at_us: int, decision: Decision) -> dict[str, Any]:
    return {
        "at": timestamp(at_us),
        "event": decision.outcome.value,
        "id": decision.request.container_id,
        "name": decision.request.name,
        "text": summary(decision).removeprefix(decision.outcome.value).lstrip(": "),
    }


def _evicted(record: EvictionRecord) -> dict[str, Any]:
    return {
        "at": timestamp(record.at_us),
        "event": "not evicted" if record.obstacle else "evicted",
        "id": record.container_id,
        "name": record.name,
        "text": str(record),
    }


def _moved(record: PageMoveRecord) -> dict[str, Any]:
    return {
        "at": timestamp(record.at_us),
        "event": "pages moved" if record.is_done else "pages not moved",
        "id": record.container_id,
        "name": record.name,
        "text": str(record),
    }
