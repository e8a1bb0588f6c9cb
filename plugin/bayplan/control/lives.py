"""The containers' lives: the one owner of the phase of each (`bayplan.model.life`).

Changed where the ledger changes, in a transaction, by `placements` and the controller only. Invariant: those
in a phase of `HELD` are those of the ledger. Of those that have ended the ids are remembered, the last
`REMEMBERED`: what comes late comes within seconds, and across a restart of the daemon the history has them.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from msgspec import Struct

from bayplan.model.ledger import Entry
from bayplan.model.life import HELD, NOT_RUNNING_YET, Phase, Report, Step, step_of
from bayplan.model.workload import Container, ContainerState

REMEMBERED: Final = 1024
"""More than a node ends within a minute."""

_LISTED: Final = {ContainerState.CREATED: Report.LISTED_CREATED, ContainerState.STOPPED: Report.STOPPED}


class Life(Struct):
    """One container's, from one creation to its end. ``had_process``: the kernel showed a process of it.
    ``awaited_since_s``: since when it has been looked for without one."""

    phase: Phase
    had_process: bool = False
    awaited_since_s: float | None = None


class Lives:
    """By container id. ``starting`` are those of NRI that do not run yet, with their phases."""

    def __init__(self) -> None:
        self.starting: dict[str, Phase] = {}
        self._lives: dict[str, Life] = {}
        self._ended: dict[str, Report | None] = {}

    def phase(self, container_id: str) -> Phase:
        """The phase of a container."""
        life = self._lives.get(container_id)
        if life is not None:
            return life.phase
        return Phase.ENDED if container_id in self._ended else Phase.UNKNOWN

    def is_unheard_of(self, container_id: str) -> bool:
        """Whether nothing was heard of a container but, at most, that it is created without a decision."""
        return self.phase(container_id) in (Phase.UNKNOWN, Phase.UNDECIDED)

    def step(self, report: Report, container_id: str) -> Step:
        """What is to be done about *report*; it may depend on whether the container has a process."""
        return step_of(report, self.phase(container_id))

    def of(self, container_id: str) -> Life | None:
        """The life of a container that is neither unknown nor ended."""
        return self._lives.get(container_id)

    def ended_by(self, container_id: str) -> Report | None:
        """What was reported when a container ended, None where that was not heard."""
        return self._ended.get(container_id)

    @property
    def held(self) -> set[str]:
        """The ids of those who hold something."""
        return {key for key, life in self._lives.items() if life.phase in HELD}

    @property
    def refused(self) -> set[str]:
        """The ids of those that run only because a refusal was not applied: nothing is promised to them."""
        return {key for key, life in self._lives.items() if life.phase is Phase.REFUSED}

    def begin(self, container_id: str, phase: Phase, *, had_process: bool = False) -> None:
        """A container was created or found: whatever was before is another life."""
        self._ended.pop(container_id, None)
        self._lives[container_id] = Life(phase, had_process)
        self._note_start(container_id, phase)

    def end(self, container_id: str, why: Report | None = None) -> None:
        """A container holds nothing any more, because of what was reported. Its first end counts."""
        self._lives.pop(container_id, None)
        self.starting.pop(container_id, None)
        self._ended[container_id] = self._ended.pop(container_id, None) or why
        while len(self._ended) > REMEMBERED:
            del self._ended[next(iter(self._ended))]

    def forget(self, container_id: str) -> None:
        """Nothing is known of a container any more."""
        self._lives.pop(container_id, None)
        self.starting.pop(container_id, None)

    def go_on(self, container_id: str, phase: Phase) -> None:
        """A container has come to *phase*, which is not its end."""
        life = self._lives.get(container_id)
        if life is None:
            self.begin(container_id, phase)
        else:
            life.phase = phase
            life.awaited_since_s = None
            self._note_start(container_id, phase)

    def restore(
        self, entries: Mapping[str, Entry], decided: Iterable[str], under_way: Collection[str]
    ) -> None:
        """Begin with what is recorded: the *entries* of the ledger, and the ids that the history has
        decisions about, the latest first. Those without an entry have ended. Of the entries those may be
        *under_way* to their creation that were decided just now."""
        for container_id in reversed(list(decided)):
            if container_id not in entries:
                self.end(container_id)
        for container_id, entry in entries.items():
            origin = entry.origin
            phase = origin.phase if container_id in under_way else origin.phase_when_recorded
            self.begin(container_id, phase, had_process=origin.had_process)

    def synchronized(self, entries: Mapping[str, Entry], containers: Iterable[Container]) -> None:
        """The runtime has listed its *containers*, and the ledger has these *entries* since."""
        listed = {one.id: listed_as(one) for one in containers}
        for container_id in self._lives.keys() - entries.keys():
            ended = listed.get(container_id) is Report.STOPPED
            report = Report.STOPPED if ended else Report.NOT_LISTED
            after = self.step(report, container_id).phase
            if after is Phase.ENDED:
                self.end(container_id, report)
            elif after is Phase.UNKNOWN:
                self.forget(container_id)
        for container_id in entries.keys() & listed.keys():
            self.go_on(container_id, self.step(listed[container_id], container_id).phase)

    def _note_start(self, container_id: str, phase: Phase) -> None:
        if phase in NOT_RUNNING_YET:
            self.starting[container_id] = phase
        else:
            self.starting.pop(container_id, None)


def listed_as(container: Container) -> Report:
    """What the runtime reports by listing *container* when it connects."""
    return _LISTED.get(container.state, Report.LISTED_RUNNING)
