"""What the runtime can have taken of the CPUs and nodes that it was told over NRI. Changed by the controller.

The ledger has what it took; here is who cannot be told at the moment, and what is still on its way.
"""

import enum
from collections.abc import Collection, Iterable
from typing import Final, Protocol

from bayplan.model.ledger import Ledger
from bayplan.model.workload import Container, ContainerState, Update
from bayplan.nri import Event
from bayplan.sets import CpuSet

KNOWN_SINCE: Final = frozenset(
    {Event.POST_CREATE_CONTAINER, Event.START_CONTAINER, Event.POST_START_CONTAINER}
)
"""The events that show that the runtime knows a container which it was to create."""


class SyncCpusets(Protocol):
    """Makes the kernel's cpusets what the ledger says, at once; see `bayplan.control.cpusets`."""

    async def __call__(self, container_ids: Collection[str] | None = None, *, mems: bool = False) -> None:
        """Those of the named containers, the CPUs of all if none are named."""


class Stage(enum.Enum):
    """How far a container is that came over NRI and does not run yet.

    DECIDED: its creation was answered, and no event has said since that the runtime knows it. Updates of it
    are lost: containerd knows a container once it has stored it, CRI-O once the OCI runtime has made it.
    CREATED: the runtime knows it. CRI-O writes updates to its cgroup; containerd only to its spec, from which
    the OCI runtime may have made the cgroup before.
    """

    DECIDED = "decided"
    CREATED = "created"


class Notifications:
    """``stages`` are the containers that do not run yet. ``nodes_due`` are the ids of those who have other
    nodes than the runtime was told: it is told with the next reply."""

    def __init__(self) -> None:
        self.stages: dict[str, Stage] = {}
        self.nodes_due: set[str] = set()
        self._in_reply: frozenset[str] = frozenset()
        self._updating: dict[str, CpuSet] = {}

    def synchronized(self, containers: Iterable[Container], updates: Iterable[Update]) -> None:
        """The runtime has listed its *containers*, and is answered with *updates*."""
        self.stages = {one.id: Stage.CREATED for one in containers if one.state is ContainerState.CREATED}
        self._in_reply = frozenset(one.container_id for one in updates)
        self.nodes_due.clear()
        self._updating.clear()

    def decided(self, container_id: str) -> None:
        """The creation of a container is answered."""
        self.stages[container_id] = Stage.DECIDED

    def heard(self, event: Event, container_id: str) -> None:
        """The runtime spoke of a container."""
        early = event is Event.UPDATE_CONTAINER and self.stages.get(container_id) is Stage.DECIDED
        if early or event in (Event.POST_CREATE_CONTAINER, Event.START_CONTAINER):
            self.stages[container_id] = Stage.CREATED
        elif event is Event.POST_START_CONTAINER:
            self.stages.pop(container_id, None)

    def gone(self, container_id: str) -> None:
        """A container is no more."""
        self.stages.pop(container_id, None)
        self._updating.pop(container_id, None)

    def unreachable(self, ledger: Ledger, updates: Iterable[Update], *, replied: bool) -> frozenset[str]:
        """Of whom of those the runtime could not take an update: nobody's, if it is not *replied* to. Those
        that did not come over NRI are not told by it."""
        return frozenset(
            one.container_id
            for one in updates
            if ledger.entries[one.container_id].origin is None
            and not (replied and self.stages.get(one.container_id) is not Stage.DECIDED)
        )

    def sent(self, updates: Iterable[Update], nodes_due: set[str], *, replied: bool) -> None:
        """These *updates* are due, and with *replied* told; *nodes_due* still are."""
        self.nodes_due = nodes_due
        if replied:
            self._in_reply = frozenset(one.container_id for one in updates)

    def lost_reply(self) -> frozenset[str]:
        """The last reply did not reach the runtime: of whom it is not known any more what was taken."""
        return self._in_reply

    def answering(self, own: Update) -> None:
        """The answer to an update of the container itself has this for it. The runtime carries that out when
        it may have been told something later already."""
        if own.cpuset_cpus is not None:
            self._updating[own.container_id] = own.cpuset_cpus

    def carried_out(self, container_id: str) -> CpuSet | None:
        """The CPUs that the runtime has for a container after it carried out that answer; None if it had
        none."""
        return self._updating.pop(container_id, None)
