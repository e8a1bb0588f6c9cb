"""Questions about decisions: why one was made, how one would be made, and what was decided before. Pure,
except for the calls that get the records.

``explain`` puts together what holds now and what the records say; ``what-if`` rehearses on the ledger of this
moment with an engine of its own. ``refused`` has what was refused lately, ``history`` everything about one
pod in order, and ``report`` what decisions did since some time, or in shadow mode would have done. These
three are answered from the store, so that a restart of the daemon loses nothing of them. The report is made
of the records alone, the same for both, so that what shadow mode says can be held against what the same
containers get without it. Nothing is changed.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from msgspec.structs import replace

from bayplan.admin_protocol import API_VERSION, MAX_PODS, REFUSED_SINCE_S, REPORTED_SINCE_S, SIZES
from bayplan.config.kubelet_rules import engine_of
from bayplan.engines.exact.witness import witness
from bayplan.engines.interface import Engine
from bayplan.errors import BayplanError, ConfigError, Problem
from bayplan.kubelet.eviction_manager import node_of
from bayplan.model.decision import Claim, Decision, EvictionRecord, Outcome, PageMoveRecord
from bayplan.model.ledger import Ledger
from bayplan.model.sentences import summary
from bayplan.model.wishes import PREFIX, unjoined_pools, unmatched_rules
from bayplan.model.workload import names_container, similar_pods
from bayplan.placement.ledger_check import Fault
from bayplan.placement.memory_policy import MemoryPolicyAbility
from bayplan.printable import printable
from bayplan.quantity import US_PER_S
from bayplan.simulate.manifest import GeneratedNames, describes_pods, plan_manifest, sizes_manifest
from bayplan.simulate.rehearsal import MovesObstacle, Rehearsal, may_move
from bayplan.state import RefusedItem
from bayplan.views.decision_view import View, decision_view
from bayplan.views.node_room import cpu_uses, l3_caches, node_rooms
from bayplan.views.snapshot import Snapshot
from bayplan.views.status import cpu_holders, timestamp

Recorded = tuple[int, Decision]
"""A decision and when it was recorded, in microseconds since the epoch."""

Question = Callable[[Snapshot, Mapping[str, object]], Awaitable[View]]
"""Answers a request about a snapshot; raises BayplanError with what the asker should read."""

MAX_RECORDED: Final = 500
"""The most recorded decisions about one subject that are read."""

EARLIER: Final = 20
"""So many earlier decisions about a container are listed."""

MAX_NAMES: Final = 2000
"""Among the names of so many decisions one is sought that is meant by a part of it."""

MAX_CHOICES: Final = 20
"""So many pods are listed where a word may mean any of them."""

_MAX_SINCE_S: Final = 366 * 86_400
_WHAT_IF_IDS: Final = "what-if:"


def checking(check_ledger: Callable[[], Awaitable[tuple[Fault, ...]]]) -> Question:
    """The question ``check``: what does not hold of the ledger and its record. ``mended`` says of each
    whether it was put right; what hardware has taken away is not."""

    async def check(_: Snapshot, __: Mapping[str, object]) -> View:
        faults = await check_ledger()
        return {
            "apiVersion": API_VERSION,
            "kind": "LedgerCheck",
            "faults": [{"code": one.code, "text": one.text, "mended": one.is_ours} for one in faults],
        }

    return check


class UnknownSubjectError(BayplanError):
    """No decision about a container of that name is known; ``choices`` are pods that may be meant."""

    def __init__(self, subject: str, choices: Sequence[str] = ()) -> None:
        super().__init__(subject, choices)
        self.subject = subject
        self.choices = choices

    def __str__(self) -> str:
        text = f"no decision about {self.subject!r} is recorded"
        if self.choices:
            rest = len(self.choices) - MAX_CHOICES
            listed = [printable(one) for one in self.choices[:MAX_CHOICES]]
            lines = [*listed, *([f"and {rest} more"] if rest > 0 else [])]
            return "\n  ".join([f"{text}; did you mean one of these?", *lines])
        return (
            f"{text}; expected NAMESPACE/POD/CONTAINER, NAMESPACE/POD, POD/CONTAINER, POD or a container's "
            "id (bayplan status lists those that run)"
        )


class Records(Protocol):
    """The records that answers are made of, as a `Recorder` finds them; always the newest first. *subject*
    None stands for all containers."""

    def history(self, limit: int, subject: str) -> Awaitable[Sequence[Recorded]]:
        """At most *limit* decisions about *subject*."""

    def decided(self, since_us: int) -> Awaitable[Sequence[Recorded]]:
        """The decisions since then."""

    def refusals(self, limit: int, since_us: int) -> Awaitable[Sequence[RefusedItem]]:
        """At most *limit* containers that were refused since then."""

    def page_moves(self, limit: int, subject: str | None) -> Awaitable[Sequence[PageMoveRecord]]:
        """At most *limit* records of moved pages of *subject*."""

    def evictions(self, limit: int, subject: str | None) -> Awaitable[Sequence[EvictionRecord]]:
        """At most *limit* records of evicted containers of *subject*."""

    def names(self, limit: int) -> Awaitable[Sequence[tuple[str, str]]]:
        """Name and id of the containers that the last *limit* decisions are about."""


async def subject_of(
    verb: str, snapshot: Snapshot, request: Mapping[str, object], records: Records
) -> tuple[str, Sequence[Recorded]]:
    """What the *request* of *verb* is about, and the decisions about it: as it was named if that names a
    container, else the one pod that it is a part of the name of.

    Raises:
        ConfigError: the request names nothing.
        UnknownSubjectError: there is no such pod, or several.
    """
    subject = request.get("subject")
    if not isinstance(subject, str) or not subject or not _is_unicode(subject):
        raise ConfigError(verb, (Problem("subject", repr(subject), "a pod, a container or an id"),))
    entries = snapshot.ledger.holders
    known = [(entry.decision.request.name, entry.container_id) for entry in entries]
    recorded = await records.history(MAX_RECORDED, subject)
    if recorded or any(names_container(subject, name, container_id) for name, container_id in known):
        return subject, recorded
    known += await records.names(MAX_NAMES)
    choices = await asyncio.to_thread(similar_pods, subject, known)
    if len(choices) != 1:
        raise UnknownSubjectError(subject, choices)
    return choices[0], await records.history(MAX_RECORDED, choices[0])


def since_in(verb: str, snapshot: Snapshot, request: Mapping[str, object], default_s: int) -> int:
    """How far the *request* of *verb* looks back: microseconds since the epoch.

    Raises:
        ConfigError: not a number of seconds.
    """
    since_s = request.get("sinceSeconds", default_s)
    if not isinstance(since_s, int) or isinstance(since_s, bool) or not 0 < since_s <= _MAX_SINCE_S:
        problem = Problem("sinceSeconds", repr(since_s), f"a number of seconds from 1 to {_MAX_SINCE_S}")
        raise ConfigError(verb, (problem,))
    return max(0, snapshot.taken_us - since_s * US_PER_S)


def explaining(records: Records) -> Question:
    """The question ``explain``."""

    async def explain(snapshot: Snapshot, request: Mapping[str, object]) -> View:
        subject, recorded = await subject_of("explain", snapshot, request, records)
        moved = await records.page_moves(EARLIER, subject)
        evicted = await records.evictions(EARLIER, subject)
        return await asyncio.to_thread(explanation_view, snapshot, subject, recorded, moved, evicted)

    return explain


def rehearsing(
    engine: Callable[[], Engine],
    ability: Callable[[], MemoryPolicyAbility],
    moves_obstacle: MovesObstacle = may_move,
) -> Question:
    """The question ``what-if``; *engine* makes one that remembers nothing, as the daemon's own may, and
    *moves_obstacle* is the daemon's."""

    async def what_if(snapshot: Snapshot, request: Mapping[str, object]) -> View:
        manifests = request.get("pods")
        if manifests is None and isinstance(sizes := request.get("sizes"), dict):
            manifests = [_of_sizes(sizes)]
        if not isinstance(manifests, list) or not manifests:
            raise ConfigError("what-if", (Problem("pods", repr(manifests), "a list of pod manifests"),))
        return await asyncio.to_thread(what_if_view, snapshot, engine(), ability(), manifests, moves_obstacle)

    return what_if


def _of_sizes(sizes: Mapping[str, object]) -> dict[str, Any]:
    """The manifest of a pod from texts: its name and what it asks for; what is empty is not asked for. Huge
    pages and annotations are ``KEY=VALUE``, several of them with blanks between: ``2Mi=64Mi 1Gi=2Gi``."""
    problems = [
        Problem(f"sizes.{key}", repr(value), "a text" if key in SIZES else f"one of {', '.join(SIZES)}")
        for key, value in sizes.items()
        if key not in SIZES or not isinstance(value, str)
    ]
    texts = {key: str(sizes.get(key) or "") for key in SIZES}
    pages, annotations = (
        _pairs(key, texts[key], example, problems)
        for key, example in (("hugepages", "2Mi=64Mi"), ("annotations", "bayplan.dev/required-nodes=0-1"))
    )
    if problems:
        raise ConfigError("what-if", tuple(problems))
    return sizes_manifest(
        texts["name"] or "pod",
        memory=texts["memory"] or None,
        cpus=texts["cpus"] or None,
        hugepages=pages,
        annotations={key if "/" in key else f"{PREFIX}/{key}": text for key, text in annotations.items()},
    )


def _pairs(key: str, text: str, example: str, problems: list[Problem]) -> dict[str, str]:
    pairs = {}
    for part in text.split():
        name, equals, value = part.partition("=")
        if name and equals:
            pairs[name] = value
        else:
            problems.append(Problem(f"sizes.{key}", repr(part), f"KEY=VALUE, such as {example}"))
    return pairs


def _is_unicode(text: str) -> bool:
    """JSON can also express halves of characters, which no name of a container has and no database finds."""
    return text.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in text)


def explanation_view(
    snapshot: Snapshot,
    subject: str,
    recorded: Sequence[Recorded],
    moved: Sequence[PageMoveRecord] = (),
    evicted: Sequence[EvictionRecord] = (),
) -> View:
    """Every container that *subject* means: its decision in force, or the last one, those before it, when
    pages of it were *moved*, and when it was *evicted*.

    Raises:
        UnknownSubjectError: there is none.
    """
    by_name: dict[str, list[Recorded]] = {}
    for at_us, decision in recorded:
        by_name.setdefault(decision.request.name, []).append((at_us, decision))
    entries = {
        entry.decision.request.name: entry
        for entry in snapshot.ledger.holders
        if names_container(subject, entry.decision.request.name, entry.container_id)
    }
    current, holders = {name: entry.decision for name, entry in entries.items()}, cpu_holders(snapshot)
    also_of = {
        # The containers of a claim run on its CPUs.
        name: holders.others(entry)
        for name, entry in entries.items()
        if not entry.is_of_claim
    }
    if any(isinstance(decision.placement.promise, Claim) for decision in current.values()):
        current = _with_witness(snapshot, current)
    names = sorted(by_name.keys() | current.keys())
    if not names:
        raise UnknownSubjectError(subject)
    return {
        "apiVersion": API_VERSION,
        "kind": "Explanation",
        "subject": subject,
        "containers": [
            _explained(current.get(name), by_name.get(name, []), also_of.get(name, ()))
            | {
                "pageMoves": [_page_move(one) for one in moved if one.name == name],
                "evictions": [eviction_view(one) for one in evicted if one.name == name],
                "cpuUse": cpu_uses(snapshot.basis, current[name]) if name in current else [],
                "nodes": _rooms_beside_refusal(snapshot, current.get(name) or by_name[name][0][1]),
            }
            for name in names
        ],
    }


def what_if_described(topology: Path, configs: Sequence[Path], manifests: Sequence[object]) -> View:
    """The answer to ``what-if`` of a daemon with the files *configs* on the empty machine of *topology*, with
    the remarks about that machine.

    Raises:
        ConfigError, HostError: a file is wrong, or a manifest is.
    """
    from bayplan.config.reservations import remarks_here  # noqa: PLC0415 - only here
    from bayplan.simulate.comparison import empty_machine  # noqa: PLC0415 - the daemon reads no such files

    machine, policy, settings = empty_machine(topology, configs)
    snapshot = Snapshot(
        taken_us=0,
        started_us=0,
        machine=machine,
        policy=policy,
        ledger=Ledger(),
        engine=settings.engine,
        unmatched_cpu_rules=unmatched_rules(policy.cpu_rules, ()),
    )
    view = what_if_view(snapshot, engine_of(settings), MemoryPolicyAbility(), manifests)
    return {**view, "remarks": [*machine.remarks, *remarks_here(settings, machine)]}


def what_if_view(
    snapshot: Snapshot,
    engine: Engine,
    ability: MemoryPolicyAbility,
    manifests: Sequence[object],
    moves_obstacle: MovesObstacle = may_move,
) -> View:
    """What would become of the pods in *manifests*, created one after the other. What has no pods, such as
    the Service in the same file, is left out.

    Raises:
        ConfigError: a manifest is wrong, or none has pods.
    """
    rehearsal = Rehearsal(
        snapshot.machine,
        snapshot.policy,
        engine,
        snapshot.ledger,
        ability,
        seen=snapshot.seen,
        moves_obstacle=moves_obstacle,
    )
    names = GeneratedNames()
    planned = [
        pod
        for number, manifest in enumerate([one for one in manifests if describes_pods(one)] or manifests)
        for pod in plan_manifest(
            manifest,
            snapshot.machine,
            f"{_WHAT_IF_IDS}{number}:",
            most_replicas=MAX_PODS,
            names=names,
            kubelet=snapshot.policy.kubelet_rules,
        )
    ]
    if manifests and not planned:
        raise ConfigError("what-if", (Problem("pods", "none", "a Pod, or a kind with a pod template"),))
    if len(planned) > MAX_PODS:
        raise ConfigError("what-if", (Problem("pods", str(len(planned)), f"at most {MAX_PODS}"),))
    unmatched = unmatched_rules(
        snapshot.policy.cpu_rules,
        ((pod.pod, one.container.name) for pod in planned for one in pod.containers),
    )
    pools = set(snapshot.ledger.pool_ids)
    pods: list[dict[str, Any]] = []
    for pod in planned:
        decisions = rehearsal.admit(pod)
        pools |= {one.request.pool for one in decisions}
        pods.append(
            {
                "name": pod.name,
                "admitted": all(one.outcome is not Outcome.REFUSED for one in decisions),
                "containers": [
                    {
                        **decision_view(one),
                        "state": "would be",
                        "cpuUse": cpu_uses(snapshot.basis.with_ledger(rehearsal.ledger), one),
                    }
                    for one in decisions
                ],
            }
        )
    return {
        "apiVersion": API_VERSION,
        "kind": "WhatIf",
        "engine": engine.name,
        "pods": pods,
        "nodesBefore": node_rooms(snapshot.basis),
        "nodes": node_rooms(snapshot.basis.with_ledger(rehearsal.ledger)),
        "l3Caches": l3_caches(snapshot.basis.with_ledger(rehearsal.ledger)),
        "unmatchedCpuRules": [one for one in snapshot.unmatched_cpu_rules if one in unmatched],
        "unmatchedCpuPools": list(
            unjoined_pools(() if engine.kind.is_kubelets else snapshot.policy.cpu_pools, pools)
        ),
    }


def _rooms_beside_refusal(snapshot: Snapshot, decision: Decision) -> list[View] | None:
    """What each node has by now beside what was refused; null for what was placed."""
    if decision.outcome is not Outcome.REFUSED:
        return None
    return node_rooms(snapshot.basis, decision.request)


def _with_witness(snapshot: Snapshot, current: Mapping[str, Decision]) -> dict[str, Decision]:
    """*current* with what each has on which node now; later decisions may have routed it otherwise."""
    claims = snapshot.ledger.resource_claims
    spreads = {**witness(snapshot.basis), **{key: held.by_node() for key, held in claims.items()}}
    return {
        name: replace(one, placement=replace(one.placement, booked_bytes=spreads[one.request.container_id]))
        for name, one in current.items()
    }


def eviction_view(record: EvictionRecord) -> View:
    """Why a container was evicted, with all numbers."""
    return {
        "at": timestamp(record.at_us),
        "id": record.container_id,
        "name": record.name,
        "signal": record.signal,
        "qosClass": record.qos.value,
        "thresholdQuantity": record.threshold,
        "availableQuantity": record.available,
        "podUsage": record.used,
        "podRequest": record.request,
        "priority": record.priority,
        "message": record.message,
        "obstacle": record.obstacle,
        "text": str(record),
    }


def _page_move(one: PageMoveRecord) -> View:
    return {
        "at": timestamp(one.at_us),
        "id": one.container_id,
        "fromNode": one.source,
        "toNode": one.target,
        "wantedBytes": one.wanted_bytes,
        "movedBytes": one.moved_bytes,
        "durationMs": one.duration_ms,
        "nodesAtRisk": str(one.at_risk),
        "obstacle": one.obstacle,
        "text": str(one),
    }


def _explained(current: Decision | None, recorded: Sequence[Recorded], also_of: Sequence[str]) -> View:
    """*recorded* are the decisions about one name, the newest first; *current* is the one in force, *also_of*
    as for `decision_view`."""
    if current is None:
        at_us, shown = recorded[0]
        state = "refused" if shown.outcome is Outcome.REFUSED else "departed"
        earlier = recorded[1:]
    else:
        shown, state = current, "current"
        own = [
            one
            for one in recorded
            if one[1].request.container_id == current.request.container_id
            and one[1].outcome is not Outcome.REFUSED
        ]
        at_us = own[0][0] if own else 0
        earlier = [one for one in recorded if not own or one is not own[0]]
    return {
        **decision_view(shown, also_of),
        "state": state,
        "decidedAt": timestamp(at_us) if at_us else None,
        "earlier": [
            {
                "at": timestamp(at_us),
                "id": one.request.container_id,
                "outcome": one.outcome.value,
                "summary": summary(one),
            }
            for at_us, one in earlier[:EARLIER]
        ],
    }


_DECIDED: Final = (Outcome.PLACED, Outcome.DEGRADED, Outcome.REFUSED)
"""What was found running stays as it was."""


def reporting(records: Records) -> Question:
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
            "pageMoves": [_reported_page_move(one) for one in reversed(moved)],
            "evictions": [
                eviction_view(one) | {"mems": await _mems_of(one, records)} for one in reversed(evicted)
            ],
        }

    return answer


async def _mems_of(evicted: EvictionRecord, records: Records) -> str | None:
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


def _reported_page_move(record: PageMoveRecord) -> View:
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


def recorded_questions(records: Records) -> dict[str, Question]:
    """All questions that are answered from *records*."""
    return {
        "explain": explaining(records),
        "history": telling_history(records),
        "refused": listing_refused(records),
        "report": reporting(records),
    }


def listing_refused(records: Records) -> Question:
    """The question ``refused``."""

    async def answer(snapshot: Snapshot, request: Mapping[str, object]) -> View:
        since_us = since_in("refused", snapshot, request, REFUSED_SINCE_S)
        return {
            "apiVersion": API_VERSION,
            "kind": "Refusals",
            "since": timestamp(since_us),
            "refusals": [_refused(one, snapshot) for one in await records.refusals(MAX_REFUSED, since_us)],
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
