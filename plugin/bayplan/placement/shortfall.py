"""What was promised and is not there any more: memory and CPUs that left, or that others hold.

Promises are never taken back for it: the engines find no room where more is promised than there is, and the
operator sees which containers are concerned.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from msgspec import Struct

from bayplan.engines.exact.witness import shortages
from bayplan.model.basis import Basis
from bayplan.model.decision import Shortage
from bayplan.model.machine import MEMORY
from bayplan.model.sentences import verb_after
from bayplan.quantity import MILLI_PER_CPU, counted, format_bytes
from bayplan.sets import CpuSet, NodeSet, cpus_text, nodes_text

NOTHING_HELD: Final[Mapping[int, int]] = MappingProxyType({})


class Overclaim(Struct, frozen=True):
    """A set of nodes that was promised more of a resource than containers can have of it now; ``gone`` are
    those of the nodes that are not there at all, ``held_bytes`` what was measured there outside of
    containers."""

    shortage: Shortage
    gone: NodeSet
    held_bytes: int = 0

    def __str__(self) -> str:
        found = self.shortage
        names = ", ".join(holder.name for holder in found.holders)
        more = f" and {found.more_holders} more" if found.more_holders else ""
        promised = f"{format_bytes(found.promised_bytes)} {found.resource}"
        whose, nodes = f"are promised to {names}{more}", nodes_text(found.nodes)
        gone = f"{nodes_text(self.gone)} {verb_after(self.gone, 'is')} gone" if self.gone else ""
        if found.nodes == self.gone:
            return f"{gone}, and {promised} there {whose}"
        where = f"{nodes} ({gone})" if gone else nodes
        has = f"{verb_after(found.nodes, 'has')} {format_bytes(found.capacity_bytes)} for containers"
        held = f", {format_bytes(self.held_bytes)} are held outside of containers" if self.held_bytes else ""
        return f"{where} {has}{held}, and {promised} {whose}; nothing new is placed there"


class LostCpus(Struct, frozen=True):
    """A container, or a resource claim, some of whose exclusive CPUs are offline."""

    container_id: str
    name: str
    lost: CpuSet
    left: CpuSet

    def __str__(self) -> str:
        rest = f"it runs on {self.left}" if self.left else "it runs on the shared CPUs"
        return f"{self.name} lost {cpus_text(self.lost)}, offline now, of its own; {rest}"


def overclaims(basis: Basis, held_bytes: Mapping[int, int] = NOTHING_HELD) -> tuple[Overclaim, ...]:
    """The smallest sets of nodes that were promised more than containers can have there, by resource.
    *held_bytes* of memory were measured outside of containers, by node."""
    machine = basis.machine
    return tuple(
        Overclaim(
            found,
            found.nodes - machine.node_ids,
            sum(held_bytes.get(node, 0) for node in found.nodes) if found.resource == MEMORY else 0,
        )
        for found in shortages(basis)
    )


class CrowdedPool(Struct, frozen=True):
    """The shared pool has fewer CPUs than *count* of its containers request together."""

    cpus: CpuSet
    milli: int
    count: int

    def __str__(self) -> str:
        who = counted(self.count, "container there requests", "containers there request")
        cpus = "CPU" if self.milli == MILLI_PER_CPU else "CPUs"
        asked = f"{self.milli / MILLI_PER_CPU:g} {cpus} in all"
        return f"the shared pool has {cpus_text(self.cpus)} only; {who} {asked}"


def crowded_pool(basis: Basis) -> CrowdedPool | None:
    """The shared pool if it is too small for what its containers request; those that are left as they are run
    elsewhere, and those with CPUs of their own do not count. Nor does a mere weight: nomad writes MHz as CPU
    shares."""
    machine, policy, ledger = basis.machine, basis.policy, basis.ledger
    shared = ledger.shared_cpus(machine, policy.withheld_cpus)
    there = [
        requested
        for entry in ledger.entries.values()
        if not entry.decision.request.cpu_weighed and (requested := entry.decision.pool_milli)
    ]
    milli = sum(there)
    return CrowdedPool(shared, milli, len(there)) if milli > len(shared) * MILLI_PER_CPU else None


def lost_cpus(basis: Basis) -> tuple[LostCpus, ...]:
    """Every container, and every resource claim, with exclusive CPUs that are not online, in the order of the
    names."""
    online = basis.machine.online_cpus
    if basis.ledger.exclusive_cpus <= online:
        return ()
    found = []
    claims = (one for one in basis.ledger.retained.values() if one.resource_claim is not None)
    for entry in (*basis.ledger.entries.values(), *claims):
        own = entry.decision.placement.exclusive_cpus
        lost = own - online
        if lost:
            found.append(LostCpus(entry.container_id, entry.decision.request.name, lost, own - lost))
    return tuple(sorted(found, key=lambda one: (one.name, one.container_id)))
