"""The life of a container, as one state machine for each container id: what is done about each report of it,
in whichever phase it comes.

NRI, hook, wrapper, the runtime's lists and the kernel all report, and each of these reports can be late,
doubled, missing or in another order. containerd sends PostStartContainer after StopContainer when a process
ends at once, and UpdateContainer for containers that have ended; nothing is sent when an OCI runtime fails to
create a container. `TABLE` has what is done, and docs/life.md shows it.

Invariants: a container that holds something is in a phase of `HELD`, and no other one is. A container that
has ended is entered again only by a new creation, or because it has a process, and by no other report. Pure.
"""

import enum
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Final

from msgspec import Struct


class Phase(enum.Enum):
    """How far a container is.

    UNKNOWN: nobody has said anything of it. UNDECIDED: it is created without a decision, because ours was
    late or failed. REFUSED: it is created although it was refused, in shadow mode. DECIDED: its creation was
    answered, and no report since shows that the NRI runtime knows it. CREATED: the runtime knows it.
    STARTING: its process waits for our answer. REWRITTEN: hook or wrapper rewrote its spec, before it had a
    process. RUNNING: it has a process. ENDED: it holds nothing any more, and its id is remembered.

    What a runtime does with updates: one that is DECIDED is not known to it, so that they are lost; of one
    that is CREATED or STARTING, CRI-O writes them to its cgroup, and containerd only to its spec, from which
    the OCI runtime may have made the cgroup before.
    """

    UNKNOWN = "unknown"
    UNDECIDED = "undecided"
    REFUSED = "refused"
    DECIDED = "decided"
    CREATED = "created"
    STARTING = "starting"
    REWRITTEN = "rewritten"
    RUNNING = "running"
    ENDED = "ended"


HELD: Final = frozenset({Phase.DECIDED, Phase.CREATED, Phase.STARTING, Phase.REWRITTEN, Phase.RUNNING})
"""The phases of those that hold what they were promised."""

NOT_RUNNING_YET: Final = frozenset({Phase.DECIDED, Phase.CREATED, Phase.STARTING})
"""The phases in which the NRI runtime still makes the cgroup from what it has, or has just made it."""

AWAITED: Final = NOT_RUNNING_YET | {Phase.REWRITTEN}
"""The phases in which a container need not have a process yet, for a bounded time."""


class Report(enum.Enum):
    """What is reported of a container; the values are what log lines say.

    Of NRI: CreateContainer is answered by a decision and has no report. POST_CREATED to UPDATED are the
    events of these names; STOPPED is StopContainer, and any event that describes the container as one that
    has ended; REMOVED is RemoveContainer, or that of its pod; POD_STOPPED that its pod was stopped.
    LISTED_CREATED, LISTED_RUNNING, NOT_LISTED: in the list that the runtime gives when it connects. REPLACED:
    another container of its name is created in its pod, whose names are unique.

    Of hook and wrapper: RUNTIME_STARTS, the wrapper's ``start``; DELETED, ``poststop`` and ``delete``.

    NOT_APPLIED: what was decided could not be applied.

    Looked for: FOUND, it has a process and its engine says so; NO_PROCESS, it had a process and has none;
    EXITED, its runtime lists it as one that has ended, or does not list it; NOT_CREATED, its runtime gave up
    creating it; OVERDUE, it got no process in time.
    """

    POST_CREATED = "created"
    STARTING = "about to start"
    STARTED = "started"
    UPDATE_ASKED = "to be updated"
    UPDATED = "updated"
    STOPPED = "ended"
    REMOVED = "removed"
    POD_STOPPED = "its pod was stopped"
    LISTED_CREATED = "listed as created"
    LISTED_RUNNING = "listed as running"
    NOT_LISTED = "not listed any more"
    REPLACED = "replaced by another one of its name"
    RUNTIME_STARTS = "about to be started by its OCI runtime"
    DELETED = "deleted by its OCI runtime"
    NOT_APPLIED = "what was decided could not be applied"
    FOUND = "found running"
    NO_PROCESS = "its last process has ended"
    EXITED = "its runtime says that it has ended"
    NOT_CREATED = "its creation failed"
    OVERDUE = "it got no process in time"


OF_THE_LIVING: Final = frozenset(
    {
        Report.POST_CREATED,
        Report.STARTING,
        Report.STARTED,
        Report.UPDATE_ASKED,
        Report.LISTED_CREATED,
        Report.LISTED_RUNNING,
    }
)
"""The reports about a container that has not ended."""


class Action(enum.Enum):
    """What is done. KEEP: what it holds stays. CHANGE: it is decided about again. ENTER: it is entered as it
    is. RELEASE: it holds nothing any more. IGNORE: it holds nothing, and gets nothing. ENTER_IF_ALIVE: ENTER
    if the kernel shows a process of it, else IGNORE. RELEASE_IF_DEAD: KEEP if the kernel shows one, else
    RELEASE."""

    KEEP = "keep"
    CHANGE = "change"
    ENTER = "enter"
    RELEASE = "release"
    IGNORE = "ignore"
    ENTER_IF_ALIVE = "enter if it has a process"
    RELEASE_IF_DEAD = "release unless it has a process"


class LifeStep(Struct, frozen=True):
    """What is done about a report, and the phase after it."""

    action: Action
    phase: Phase

    @property
    def depends_on_process(self) -> bool:
        """Whether it depends on what the kernel shows."""
        return self.action in _DEPENDENT

    def settled(self, before: Phase, *, has_process: bool) -> "LifeStep":
        """The step once it is known whether the container has a process; *before* is the phase so far."""
        match self.action, has_process:
            case Action.ENTER_IF_ALIVE, True:
                return LifeStep(Action.ENTER, self.phase)
            case Action.ENTER_IF_ALIVE, False:
                return LifeStep(Action.IGNORE, before)
            case Action.RELEASE_IF_DEAD, True:
                return LifeStep(Action.KEEP, before)
            case Action.RELEASE_IF_DEAD, False:
                return LifeStep(Action.RELEASE, self.phase)
        return self


_DEPENDENT: Final = frozenset({Action.ENTER_IF_ALIVE, Action.RELEASE_IF_DEAD})


def _row(
    action: Action,
    after: Mapping[Phase, Phase] = MappingProxyType({}),
    *,
    unknown: LifeStep,
    undecided: LifeStep,
    ended: LifeStep,
) -> Mapping[Phase, LifeStep]:
    """A row of the table: *action* for all that hold something, with the phase *after* it if that is another
    one; and what is done about containers that are unknown, undecided, or have ended."""
    return {
        **{before: LifeStep(action, after.get(before, before)) for before in HELD},
        Phase.UNKNOWN: unknown,
        Phase.UNDECIDED: undecided,
        Phase.ENDED: ended,
        Phase.REFUSED: LifeStep(Action.IGNORE, Phase.REFUSED),
    }


def _end(action: Action) -> Mapping[Phase, LifeStep]:
    """The row of a report that every container has ended, unless *action* depends on more."""
    ends = LifeStep(Action.IGNORE, Phase.ENDED)
    return {**dict.fromkeys(Phase, ends), **dict.fromkeys(HELD, LifeStep(action, Phase.ENDED))}


def _end_of(phases: Collection[Phase], action: Action) -> Mapping[Phase, LifeStep]:
    """The row of a report that containers in *phases* have ended; it says nothing of others."""
    others = {phase: LifeStep(Action.KEEP if phase in HELD else Action.IGNORE, phase) for phase in Phase}
    return {**others, **dict.fromkeys(phases, LifeStep(action, Phase.ENDED))}


def _enter(phase: Phase) -> LifeStep:
    return LifeStep(Action.ENTER, phase)


def _if_alive(phase: Phase) -> LifeStep:
    return LifeStep(Action.ENTER_IF_ALIVE, phase)


def _stays(phase: Phase) -> LifeStep:
    return LifeStep(Action.IGNORE, phase)


TABLE: Final[Mapping[Report, Mapping[Phase, LifeStep]]] = {
    # It is about to start, which is bounded; one that has ended is believed by its process only.
    Report.POST_CREATED: _row(
        Action.KEEP,
        {Phase.DECIDED: Phase.CREATED},
        unknown=_enter(Phase.CREATED),
        undecided=_enter(Phase.CREATED),
        ended=_if_alive(Phase.CREATED),
    ),
    # A container that was stopped before its start may be started all the same (`crictl stop` and `start`).
    Report.STARTING: _row(
        Action.KEEP,
        {
            Phase.DECIDED: Phase.STARTING,
            Phase.CREATED: Phase.STARTING,
            Phase.REWRITTEN: Phase.RUNNING,
        },
        unknown=_enter(Phase.STARTING),
        undecided=_enter(Phase.STARTING),
        ended=_if_alive(Phase.STARTING),
    ),
    # containerd and CRI-O send it also after StopContainer, of a process that ended at once.
    Report.STARTED: _row(
        Action.KEEP,
        dict.fromkeys(HELD, Phase.RUNNING),
        unknown=_if_alive(Phase.RUNNING),
        undecided=_enter(Phase.RUNNING),
        ended=_if_alive(Phase.RUNNING),
    ),
    # containerd asks also about containers that have ended. It knows a container that it updates.
    Report.UPDATE_ASKED: _row(
        Action.CHANGE,
        {Phase.DECIDED: Phase.CREATED},
        unknown=_if_alive(Phase.RUNNING),
        undecided=_enter(Phase.CREATED),
        ended=_if_alive(Phase.RUNNING),
    ),
    Report.UPDATED: _end_of((), Action.KEEP),
    Report.STOPPED: _end(Action.RELEASE),
    Report.REMOVED: _end(Action.RELEASE),
    # Also of those that were created and never started: in a stopped pod nothing starts.
    Report.POD_STOPPED: _end_of(HELD, Action.RELEASE_IF_DEAD),
    # The list is made at the connection, and is newer than all that was said before.
    Report.LISTED_CREATED: _row(
        Action.KEEP,
        {Phase.DECIDED: Phase.CREATED, Phase.STARTING: Phase.CREATED, Phase.RUNNING: Phase.CREATED},
        unknown=_enter(Phase.CREATED),
        undecided=_enter(Phase.CREATED),
        ended=_if_alive(Phase.CREATED),
    ),
    # But a process that has ended is listed as running until the runtime has dealt with that.
    Report.LISTED_RUNNING: _row(
        Action.KEEP,
        dict.fromkeys(HELD, Phase.RUNNING),
        unknown=_enter(Phase.RUNNING),
        undecided=_enter(Phase.RUNNING),
        ended=_if_alive(Phase.RUNNING),
    ),
    # But one whose creation was just answered, or went on without us, may still be under way.
    Report.NOT_LISTED: {
        **_end(Action.RELEASE),
        Phase.DECIDED: LifeStep(Action.RELEASE, Phase.UNKNOWN),
        Phase.UNDECIDED: _stays(Phase.UNKNOWN),
        Phase.REFUSED: _stays(Phase.REFUSED),
    },
    # What failed to be created or started, which no event reports: the names in a pod are unique.
    Report.REPLACED: _end_of((Phase.DECIDED, Phase.CREATED), Action.RELEASE_IF_DEAD),
    Report.RUNTIME_STARTS: _row(
        Action.KEEP,
        {Phase.REWRITTEN: Phase.RUNNING},
        unknown=_stays(Phase.UNKNOWN),
        undecided=_stays(Phase.UNDECIDED),
        ended=_stays(Phase.ENDED),
    ),
    # A deletion may fail, and the wrapper asks before it.
    Report.DELETED: _end(Action.RELEASE_IF_DEAD),
    Report.NOT_APPLIED: _end(Action.RELEASE),
    # Engines start a container again under its id (`podman restart`).
    Report.FOUND: _row(
        Action.KEEP,
        {Phase.REWRITTEN: Phase.RUNNING},
        unknown=_enter(Phase.RUNNING),
        undecided=_enter(Phase.RUNNING),
        ended=_enter(Phase.RUNNING),
    ),
    Report.NO_PROCESS: _end_of(HELD, Action.RELEASE),
    Report.EXITED: _end_of(HELD, Action.RELEASE),
    Report.NOT_CREATED: _end_of((Phase.DECIDED,), Action.RELEASE),
    Report.OVERDUE: _end_of(HELD, Action.RELEASE),
}
"""What is done about each report in each phase. A creation needs no row: it begins another life."""


def step_of(report: Report, phase: Phase) -> LifeStep:
    """What is done about *report* of a container that is in *phase*."""
    return TABLE[report][phase]
