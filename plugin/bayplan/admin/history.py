"""Questions about what was decided before: what was refused lately, and everything about one pod in order.

Answered from the store, so that a restart of the daemon loses nothing of it. What holds now is in the views.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from bayplan.admin.questions import (
    MAX_RECORDED,
    Question,
    Records,
    UnknownSubjectError,
    explaining,
    since_in,
    subject_of,
)
from bayplan.admin.report import reporting
from bayplan.admin_protocol import API_VERSION, REFUSED_SINCE_S
from bayplan.control.recorder import Recorder
from bayplan.model.decision import Decision
from bayplan.model.eviction_records import EvictionRecord
from bayplan.model.page_records import PageMoveRecord
from bayplan.model.sentences import summary
from bayplan.quantity import US_PER_S
from bayplan.state import RefusedItem
from bayplan.views.decision_view import View
from bayplan.views.snapshot import Snapshot
from bayplan.views.status import timestamp

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
