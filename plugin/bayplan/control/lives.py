"""The containers' lives, and what was sent to the NRI runtime: the one owner of the phase of each container
(`bayplan.model.life`), and of the CPUs and nodes that the runtime can have applied.

Phases are changed where the ledger changes, in a transaction, by `placements` and the controller only.
Invariant: those in a phase of `HELD` are those of the ledger. Of those that have ended the ids are
remembered, the last `REMEMBERED`: what comes late comes within seconds, and across a restart of the daemon
the history has them. And with them the CPUs that we sent for each: one that is started again comes with
these, which are nobody else's choice.

Of what was sent the ledger has the CPUs (`Entry.notified_cpus`); here are the containers that cannot be
updated yet, and the updates that are under way. Changed by `placements` and the controller only. The kernel
never waits for an update: it has its cpusets from us.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from msgspec import Struct

from bayplan.model.basis import Basis
from bayplan.model.ledger import Entry, Ledger
from bayplan.model.life import HELD, NOT_RUNNING_YET, LifeStep, Phase, Report, step_of
from bayplan.model.workload import Container, ContainerState, Update
from bayplan.nri import Event
from bayplan.placement.adjustment import cpus_for, for_one_reply
from bayplan.sets import CpuSet

REMEMBERED: Final = 1024
"""More than a node ends within a minute."""

_LISTED: Final = {ContainerState.CREATED: Report.LISTED_CREATED, ContainerState.STOPPED: Report.STOPPED}


class Life(Struct):
    """One container's, from one creation to its end. ``had_process``: the kernel showed a process of it.
    ``awaited_since_s``: since when it has been looked for without one."""

    phase: Phase
    had_process: bool = False
    awaited_since_s: float | None = None


class End(NamedTuple):
    """How a container ended: what was reported, None where that was not heard, and the CPUs that it may have
    from us."""

    report: Report | None
    sent_cpus: frozenset[CpuSet]


class Lives:
    """By container id. ``starting`` are those of NRI that do not run yet, with their phases."""

    def __init__(self) -> None:
        self.starting: dict[str, Phase] = {}
        self._lives: dict[str, Life] = {}
        self._ended: dict[str, End] = {}

    def phase(self, container_id: str) -> Phase:
        """The phase of a container."""
        life = self._lives.get(container_id)
        if life is not None:
            return life.phase
        return Phase.ENDED if container_id in self._ended else Phase.UNKNOWN

    def is_unheard_of(self, container_id: str) -> bool:
        """Whether nothing was heard of a container, or no more than that it is being created without a
        decision."""
        return self.phase(container_id) in (Phase.UNKNOWN, Phase.UNDECIDED)

    def step(self, report: Report, container_id: str) -> LifeStep:
        """What is to be done about *report*; it may depend on whether the container has a process."""
        return step_of(report, self.phase(container_id))

    def of(self, container_id: str) -> Life | None:
        """The life of a container that is neither unknown nor ended."""
        return self._lives.get(container_id)

    def all(self) -> Iterable[Life]:
        """The lives of all that are neither unknown nor ended."""
        return self._lives.values()

    def ended_by(self, container_id: str) -> Report | None:
        """What was reported when a container ended, None where that was not heard."""
        end = self._ended.get(container_id)
        return None if end is None else end.report

    def has_cpus_from_before(self, container: Container) -> bool:
        """Whether *container* has ended once, and has the CPUs that we had sent for it."""
        end = self._ended.get(container.id)
        return end is not None and container.resources.cpuset_cpus in end.sent_cpus

    def has_certainly_ended(self, container_id: str) -> bool:
        """Whether a container has ended, and more was reported than a list without it: a container that is
        not listed may be about to be created."""
        ended = self.phase(container_id) is Phase.ENDED
        return ended and self.ended_by(container_id) not in (None, Report.NOT_LISTED)

    @property
    def held(self) -> set[str]:
        """The ids of the containers that hold something."""
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

    def end(self, container_id: str, why: Report | None = None, entry: Entry | None = None) -> None:
        """A container, whose entry was *entry*, holds nothing any more: *why* was reported of it. Only its
        first end counts."""
        self._lives.pop(container_id, None)
        self.starting.pop(container_id, None)
        end = self._ended.pop(container_id, None)
        if end is None or end.report is None:
            sent = () if entry is None else (entry.notified_cpus, entry.previous_cpus)
            end = End(why, frozenset(cpus for cpus in sent if cpus is not None))
        self._ended[container_id] = end
        while len(self._ended) > REMEMBERED:
            del self._ended[next(iter(self._ended))]

    def forget(self, container_id: str) -> None:
        """Forget all that is known of a container."""
        self._lives.pop(container_id, None)
        self.starting.pop(container_id, None)

    def go_on(self, container_id: str, phase: Phase) -> None:
        """A container is in another *phase* now, which is not its end."""
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


KNOWN_SINCE: Final = frozenset(
    {Event.POST_CREATE_CONTAINER, Event.START_CONTAINER, Event.POST_START_CONTAINER}
)
"""The events that show that the runtime knows a container which it was to create."""


class KernelCpusets(Protocol):
    """Makes the kernel's cpusets what the ledger has; see `bayplan.control.cpusets`."""

    async def sync(self, container_ids: Collection[str] | None = None, *, mems: bool = False) -> None:
        """Make the CPUs of those containers what the ledger has, those of all if none are named; with *mems*
        their nodes too."""

    def sync_soon(self) -> None:
        """Compare the CPUs of all containers while the caller goes on."""


class Notifications:
    """What was sent. *lives* say which containers do not run yet. ``nodes_due`` are the ids of those whose
    nodes changed since the last update: the next reply has them. ``last_reply`` are the updates in the last
    reply; if that is lost, it is not known which of them the runtime applied."""

    def __init__(self, lives: Lives) -> None:
        self._lives = lives
        self.nodes_due: set[str] = set()
        self.last_reply: Sequence[Update] = ()
        self._updating: dict[str, CpuSet | None] = {}

    def synchronized(self, updates: Sequence[Update]) -> None:
        """The runtime has listed its containers, and is answered with *updates*."""
        self.last_reply = updates
        self.nodes_due.clear()
        self._updating.clear()

    def may_differ(self, event: Event, basis: Basis, container_id: str) -> bool:
        """Whether the kernel can have another cpuset for a container than it should when the runtime sends
        *event*. After its creation only if an update is due: all else the runtime has from our answer."""
        if event is not Event.POST_CREATE_CONTAINER:
            return event in KNOWN_SINCE or event is Event.POST_UPDATE_CONTAINER
        entry = basis.ledger.entries.get(container_id)
        if entry is None:
            return False
        cpus = cpus_for(entry.decision, basis.shared_cpus)
        return container_id in self.nodes_due or cpus not in (None, entry.notified_cpus)

    def forget(self, container_id: str) -> None:
        """Forget what was sent for a container that has ended."""
        self._updating.pop(container_id, None)

    def for_reply(self, updates: Sequence[Update], asked: str | None, most_running: int) -> Sequence[Update]:
        """Those of *updates* that go out with the reply to a request about the container *asked*: none of
        containers that the runtime does not know yet, all of those that do not run yet, of which it writes
        the cpusets itself, and *most_running* of the others."""
        starting = self._lives.starting
        if starting:
            unknown = {key for key, phase in starting.items() if phase is Phase.DECIDED}
            updates = [one for one in updates if one.container_id not in unknown]
        return for_one_reply(updates, self.first_updated(asked), most_running)

    def first_updated(self, asked: str | None) -> set[str]:
        """The ids of the containers whose updates go out with every reply, and with that to a request about
        *asked*."""
        return {*self._lives.starting, *(() if asked is None else (asked,))}

    def sent(self, updates: Sequence[Update] | None, nodes_due: set[str]) -> None:
        """These *updates* go out with the reply to the runtime, None without one; *nodes_due* remain."""
        self.nodes_due = nodes_due
        if updates is not None:
            self.last_reply = updates

    def update_answered(self, container_id: str, updates: Iterable[Update]) -> Update:
        """An update of a container is answered with *updates*; that of the container itself, perhaps empty.
        The runtime carries it out after the reply, perhaps after a later update of the same container."""
        own = next((one for one in updates if one.container_id == container_id), Update(container_id))
        self._updating[container_id] = own.cpuset_cpus
        return own

    def is_updating(self, container_id: str) -> bool:
        """Whether the runtime is carrying out an update of a container."""
        return container_id in self._updating

    def update_completed(self, container_id: str) -> tuple[bool, CpuSet | None]:
        """Whether it is known which answer the runtime carried out, and the CPUs in it, None if it had none.
        It is not known if an earlier daemon gave the answer, or none was given in time."""
        return container_id in self._updating, self._updating.pop(container_id, None)


def updates_over_nri(
    updates: Sequence[Update], ledger: Ledger, listed: Collection[str] = ()
) -> Sequence[Update]:
    """The *updates* of containers that came over NRI, and of those that the runtime *listed*. A runtime knows
    nothing of others, which came by hook or wrapper."""
    entries = ledger.entries
    return [
        one
        for one in updates
        if one.container_id in listed
        or (entry := entries.get(one.container_id)) is None
        or entry.origin.runtime_applies
    ]
