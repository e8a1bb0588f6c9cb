"""What was promised and is not there any more: memory and CPUs that left, or that others hold.

Promises are never taken back for it: the engines find no room where more is promised than there is, and the
operator is told which containers are concerned.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from bayplan.domain.engine import allocatable_bytes
from bayplan.domain.ledger import Ledger
from bayplan.domain.policy import Policy
from bayplan.domain.topology import Machine
from bayplan.quantity import format_bytes
from bayplan.sets import CpuSet

_SHOWN_CONTAINERS: Final = 5


@dataclass(frozen=True, slots=True)
class Overclaim:
    """A node that was promised more of a resource than containers can have of it; ``present`` is whether the
    node is there at all. ``containers`` are the names of those concerned, in order."""

    node: int
    resource: str
    allocatable_bytes: int
    booked_bytes: int
    containers: tuple[str, ...]
    present: bool = True

    def __str__(self) -> str:
        booked = f"{format_bytes(self.booked_bytes)} {self.resource}"
        whose = f"are promised to {listed(self.containers)}"
        if not self.present:
            return f"node {self.node} is gone, and {booked} there {whose}"
        left = f"{format_bytes(self.allocatable_bytes)} for containers"
        return f"node {self.node} has {left}, and {booked} {whose}; nothing new is placed there"


@dataclass(frozen=True, slots=True)
class LostCpus:
    """A container some of whose exclusive CPUs are offline."""

    container_id: str
    name: str
    lost: CpuSet
    left: CpuSet

    def __str__(self) -> str:
        rest = f"it runs on {self.left}" if self.left else "the kernel lets it run on others"
        return f"{self.name} lost its exclusive CPUs {self.lost}, which are offline; {rest}"


def overclaims(machine: Machine, policy: Policy, ledger: Ledger) -> tuple[Overclaim, ...]:
    """Every node and resource of which more is booked than containers can have, in order."""
    allocatable = allocatable_bytes(machine, policy)
    found = []
    for node, row in sorted(ledger.booked_bytes.items()):
        for resource, booked_bytes in sorted(row.items()):
            have_bytes = allocatable.get(node, {}).get(resource, 0)
            if booked_bytes > have_bytes:
                names = booked_on(ledger, node, resource)
                present = node in machine.node_by_id
                found.append(Overclaim(node, resource, have_bytes, booked_bytes, names, present))
    return tuple(found)


def lost_cpus(machine: Machine, ledger: Ledger) -> tuple[LostCpus, ...]:
    """Every container with exclusive CPUs that are not online, in the order of the names."""
    if ledger.exclusive_cpus <= machine.online_cpus:
        return ()
    found = []
    for entry in ledger.entries.values():
        own = entry.decision.placement.exclusive_cpus
        lost = own - machine.online_cpus
        if lost:
            found.append(LostCpus(entry.container_id, entry.decision.request.name, lost, own - lost))
    return tuple(sorted(found, key=lambda one: (one.name, one.container_id)))


def booked_on(ledger: Ledger, node: int, resource: str) -> tuple[str, ...]:
    """The names of the containers that were promised something of *resource* on *node*, in order."""
    return tuple(
        sorted(
            entry.decision.request.name
            for entry in ledger.entries.values()
            if entry.decision.placement.booked_bytes.get(node, {}).get(resource, 0)
        )
    )


def listed(names: Iterable[str]) -> str:
    """*names* for people: the first few, and how many more there are."""
    shown = list(names)
    more = len(shown) - _SHOWN_CONTAINERS
    return ", ".join(shown[:_SHOWN_CONTAINERS]) + (f" and {more} more" if more > 0 else "")
