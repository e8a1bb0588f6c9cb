"""Which CPUs and nodes were sent to the NRI runtime, and what it can have applied of them.

The ledger has the CPUs (`Entry.notified_cpus`); here are the containers that cannot be updated yet, and the
updates that are under way. Changed by `placements` and the controller only. The kernel never waits for an
update: it has its cpusets from us.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import Final, Protocol

from bayplan.control.lives import Lives
from bayplan.model.basis import Basis
from bayplan.model.ledger import Ledger
from bayplan.model.life import Phase
from bayplan.model.workload import Update
from bayplan.nri import Event
from bayplan.placement.adjustment import cpus_for, for_one_reply
from bayplan.sets import CpuSet

KNOWN_SINCE: Final = frozenset(
    {Event.POST_CREATE_CONTAINER, Event.START_CONTAINER, Event.POST_START_CONTAINER}
)
"""The events that show that the runtime knows a container which it was to create."""


class KernelCpusets(Protocol):
    """Makes the kernel's cpusets what the ledger has; see `bayplan.control.cpusets`."""

    async def sync(self, container_ids: Collection[str] | None = None, *, mems: bool = False) -> None:
        """At once those of the named containers, the CPUs of all if none are named."""

    def sync_soon(self) -> None:
        """The CPUs of all, while the caller goes on."""


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
        """A container has ended."""
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
        """Whose updates go out with every reply, that to a request about *asked* included."""
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
