"""What a container could still have on each node alone: the table beside a refusal, "the largest that fits",
and what `bayplan nodes` and NodeResourceTopology say is left; which cores and L3 caches are whole, and who
has a part of the others.

For both engines by the promises alone: a claim on several nodes counts on a node only as far as it cannot lie
on the others. Pure.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from bayplan.engines.exact.claiming import claimed_amounts
from bayplan.engines.exact.resources import ResourceFlows
from bayplan.model.basis import Basis, kept_by_pin
from bayplan.model.claims import sum_of
from bayplan.model.decision import Decision, Request
from bayplan.model.ledger import holds_alone
from bayplan.model.machine import MEMORY, Cpu, Machine, union
from bayplan.model.pod_as_a_whole import held_cpus
from bayplan.model.sentences import verb_after
from bayplan.quantity import MIB, counted, first_of_many
from bayplan.sets import CpuSet, cpus_text
from bayplan.views.decision_view import View

_PARTS: Final = 64
"""Of what is free on a node alone, that is told of together with others."""


def free_bytes_by_node(basis: Basis) -> dict[int, dict[str, int]]:
    """What each node alone can still be promised: node id -> resource -> bytes."""
    flows = ResourceFlows(basis)
    return {
        node.id: {
            resource: flows.flow(resource).room(1 << node.id, by_node.get(1 << node.id, 0))
            for resource, by_node in flows.capacity.items()
        }
        for node in basis.machine.nodes
    }


def free_cpus_by_node(basis: Basis) -> dict[int, int]:
    """How many CPUs of each node one container could still have to itself."""
    machine = basis.machine
    candidates = basis.exclusive_candidates()
    room = max(0, basis.exclusive_room())
    return {node.id: min(room, len(node.cpus & candidates)) for node in machine.nodes}


def l3_caches(basis: Basis) -> View:
    """The L3 caches of which a container could have all CPUs to itself: which are ``free``, and of the others
    the one that is the ``nearest`` to it: without the fewest containers, and of these with the fewest CPUs of
    theirs. Those with reserved or isolated CPUs, or some that are offline, are none of them. Null where there
    is none.

    By what containers have to themselves alone: what the shared pool is to keep is another question.
    """
    caches: dict[int, CpuSet] = {}
    for cpu in basis.machine.cpus:
        if cpu.l3_cache_id is not None:
            caches[cpu.l3_cache_id] = caches.get(cpu.l3_cache_id, CpuSet()) | CpuSet([cpu.id])
    possible = [cpus for _, cpus in sorted(caches.items()) if cpus <= basis.allocatable.exclusive_cpus]
    holders = dict(_holders(basis))
    free, taken = list[CpuSet](), list[tuple[int, int, CpuSet, list[str]]]()
    for cpus in possible:
        there = {name: len(held & cpus) for name, held in holders.items() if not held.isdisjoint(cpus)}
        if there:
            taken.append((len(there), sum(there.values()), cpus, sorted(there)))
        else:
            free.append(cpus)
    nearest = min(taken, key=lambda one: (one[0], one[1], min(one[2])), default=None)
    return {
        "free": [str(cpus) for cpus in free],
        "nearest": nearest and {"cpus": str(nearest[2]), "containers": nearest[3]},
    }


def _holders(basis: Basis) -> Iterator[tuple[str, CpuSet]]:
    """The names of the containers, pods and resource claims that keep CPUs from others, with these CPUs; pods
    and claims only if they have no container."""
    ledger = basis.ledger
    for entry in (*ledger.entries.values(), *filter(holds_alone, ledger.retained.values())):
        request = entry.decision.request
        pinned = kept_by_pin(request, basis.machine.online_cpus)
        if held := held_cpus(entry.decision.placement) | entry.decision.placement.apart_cpus | pinned:
            yield request.name, held


class CpuOwners:
    """Which containers, named pools, pods and resource claims have which CPUs to themselves, by their names;
    pods and claims only if they have no container."""

    def __init__(self, basis: Basis) -> None:
        self._allocatable, pools = basis.allocatable, basis.ledger.cpus_of_pools
        pooled, names = union(pools.values()), dict[int, set[str]]()
        for name, held in _holders(basis):
            for cpu in held - pooled:
                names.setdefault(cpu, set()).add(name)
        names.update({cpu: {f"the pool {name}"} for name, cpus in pools.items() for cpu in cpus})
        self._of = {cpu: tuple(sorted(of_cpu)) for cpu, of_cpu in names.items()}

    def cache(self, cpus: CpuSet, cores: Iterable[CpuSet]) -> View:
        """An L3 cache with *cpus* of a node: how many of the node's *cores* have some of them, how many of
        these a container can have as a whole, and who has CPUs of the others."""
        there = [core for core in cores if not core.isdisjoint(cpus)]
        owners = {name for cpu in cpus for name in self._of.get(cpu, ())}
        return {
            "cpus": str(cpus),
            "cores": len(there),
            "wholeCores": sum(map(self.is_whole, there)),
            "owners": sorted(owners),
        }

    def uses(self, machine: Machine, cpus: CpuSet, whose: str) -> Iterator[str]:
        """Sentences about *cpus*, which *whose* has to itself: what they are of cores, clusters and L3
        caches, and what stays whole beside them on their nodes. None where cores have one thread, nodes one
        cache each and caches no clusters."""
        nodes = [node.cpus for node in machine.nodes if not node.cpus.isdisjoint(cpus)]
        near = union(nodes)
        cores = _parts_of(machine, near, lambda cpu: cpu.core_id)
        if any(len(core) > 1 for core in cores):
            yield "; ".join(self._of_parts("core", cores, cpus, whose))
        caches = _parts_of(machine, near, lambda cpu: cpu.l3_cache_id)
        clusters = _parts_of(machine, near, lambda cpu: cpu.cluster_id)
        clusters = [one for one in clusters if one not in cores and one not in caches and one & cpus]
        if clusters:
            yield "; ".join(self._of_parts("cluster", clusters, cpus, whose))
        if len(caches) > len(nodes):
            for cache in caches:
                if there := cache & cpus:
                    yield f"L3 cache of {cpus_text(cache)}: {self._share(cache, there, whose)}"
            kept = [cache for cache in caches if self.is_whole(cache)]
            which = f": {first_of_many(kept)}" if kept else ""
            yield f"{len(kept)} of {counted(len(caches), 'L3 cache')} of these nodes stay whole{which}"

    def _of_parts(self, what: str, parts: Iterable[CpuSet], cpus: CpuSet, whose: str) -> Iterator[str]:
        """How many of *parts*, cores or clusters, *whose* has as a whole, and which of them it breaks or
        shares with others."""
        there = [part for part in parts if not part.isdisjoint(cpus)]
        if whole := sum(part <= cpus for part in there):
            yield f"{counted(whole, what)} as a whole"
        for part in there:
            if not part <= cpus:
                rest = part - cpus
                others = sorted({name for cpu in rest for name in self._of.get(cpu, ())} - {whose})
                beside = f"beside {', '.join(others)}" if others else self._nobodys(rest)
                yield f"{cpus_text(part & cpus)} of the {what} of {cpus_text(part)}, {beside}"

    def _nobodys(self, cpus: CpuSet) -> str:
        """Those of *cpus* that no container has to itself, as text."""
        reserved = cpus & self._allocatable.reserved_cpus
        if reserved:
            return f"of which {cpus_text(reserved)} {verb_after(reserved, 'is')} reserved"
        return f"of which nobody has {cpus_text(cpus)}"

    def _share(self, cache: CpuSet, there: CpuSet, whose: str) -> str:
        """How much of *cache* it has with *there*, and beside whom."""
        if there == cache:
            return "all of it"
        others = sorted({name for cpu in cache for name in self._of.get(cpu, ())} - {whose})
        beside = f"beside {', '.join(others)}" if others else "nobody else has any"
        return f"{len(there)} of {counted(len(cache), 'CPU')}, {beside}"

    def is_whole(self, core: CpuSet) -> bool:
        """Whether one container can have all of *core*."""
        return core <= self._allocatable.exclusive_cpus and not any(cpu in self._of for cpu in core)

    def parts(self, core: CpuSet) -> list[View]:
        """The CPUs of *core* by their owners, none where they are shared; reserved ones are apart."""
        found: dict[tuple[bool, tuple[str, ...]], list[int]] = {}
        for cpu in core:
            key = cpu in self._allocatable.reserved_cpus, self._of.get(cpu, ())
            found.setdefault(key, []).append(cpu)
        return [
            {"cpus": str(CpuSet(cpus)), "owners": list(owners), "reserved": reserved}
            for (reserved, owners), cpus in found.items()
        ]


def cpu_uses(basis: Basis, decision: Decision) -> list[str]:
    """The sentences of `CpuOwners.uses` about the CPUs that *decision*, which is in the ledger of *basis*,
    gave."""
    cpus, pool = decision.placement.apart_cpus, decision.request.pool
    if not cpus:
        return []
    whose = f"the pool {pool}" if pool and decision.placement.pool_cpus else decision.request.name
    return list(CpuOwners(basis).uses(basis.machine, cpus, whose))


def _parts_of(machine: Machine, cpus: CpuSet, key: Callable[[Cpu], int | None]) -> list[CpuSet]:
    """*cpus* by *key*, without those for which it is None."""
    found: dict[int, set[int]] = {}
    for cpu in machine.cpus:
        if cpu.id in cpus and (group := key(cpu)) is not None:
            found.setdefault(group, set()).add(cpu.id)
    return [CpuSet(members) for _, members in sorted(found.items())]


def claimable_by_node(basis: Basis, *, jointly: bool = False) -> dict[int, dict[str, int]]:
    """What resource claims have and can still have of each node alone: node id -> resource -> bytes, and
    ``cpu`` -> CPUs. *jointly*: of all of them together, so that less of each where promises on several nodes
    leave room on one of these or on another."""
    free_bytes, free_cpus = free_bytes_by_node(basis), free_cpus_by_node(basis)
    if jointly:
        free_bytes = _together(basis, free_bytes)
        most, alone = max(0, basis.exclusive_room()), sum(free_cpus.values())
        free_cpus = {node: count * min(most, alone) // (alone or 1) for node, count in free_cpus.items()}
    # What another driver's claims hold the scheduler does not subtract from our devices.
    held = [one for one in basis.ledger.resource_claims.values() if one.adopted is None]
    rows = [one.by_node() for one in held]
    own = union(one.cpus_of() for one in held)
    return {
        node.id: sum_of(
            [
                {"cpu": free_cpus[node.id] + len(own & node.cpus)},
                free_bytes[node.id] if node.memory_bytes else {},
                *(row.get(node.id, {}) for row in rows),
            ]
        )
        for node in basis.machine.nodes
    }


def _together(basis: Basis, alone: Mapping[int, Mapping[str, int]]) -> dict[int, dict[str, int]]:
    """What all nodes can give at once: of each the same part of what it has *alone*, as large as possible."""
    flows, room_by_node = ResourceFlows(basis), {node: dict(row) for node, row in alone.items()}
    for resource in flows.capacity:

        def part(parts: int, resource: str = resource) -> dict[int, int]:
            return {node: row.get(resource, 0) * parts // _PARTS for node, row in alone.items()}

        def exceeds(parts: int, resource: str = resource) -> bool:
            claims = [(1 << node, {resource: amount}) for node, amount in part(parts).items() if amount]
            return flows.cut(claims) is not None

        most = bisect_left(range(1, _PARTS + 1), 1, key=exceeds)
        for node, amount in part(most).items():
            if resource in room_by_node[node]:
                room_by_node[node][resource] = amount
    return room_by_node


def node_rooms(basis: Basis, request: Request | None = None) -> list[View]:
    """For each node with memory what it may promise, has promised and has left, and how many CPUs could
    become exclusive there; with a *request* also by how much it is short of that on the node alone."""
    free_by_node, allocatable = free_bytes_by_node(basis), basis.allocatable.bytes_by_node
    cpus_by_node = free_cpus_by_node(basis)
    rows = []
    for node in basis.machine.nodes:
        if not node.memory_bytes:
            continue
        free = free_by_node[node.id]
        capacity = {resource: allocatable[node.id].get(resource, 0) for resource in free}
        free_cpus = cpus_by_node[node.id]
        rows.append(
            {
                "id": node.id,
                "resources": {
                    resource: {
                        "allocatableBytes": most,
                        "promisedBytes": most - free[resource],
                        "freeBytes": free[resource],
                    }
                    for resource, most in capacity.items()
                    if most or resource == MEMORY
                },
                "freeCpus": free_cpus,
                "largest": {"memoryBytes": free.get(MEMORY, 0) // MIB * MIB, "cpus": free_cpus},
                "short": None if request is None else _short(request, free, free_cpus),
            }
        )
    return rows


def _short(request: Request, free_bytes: dict[str, int], free_cpus: int) -> View:
    lacking = {
        resource: amount - free_bytes.get(resource, 0)
        for resource, amount in claimed_amounts(request).items()
    }
    return {
        "bytes": {resource: amount for resource, amount in lacking.items() if amount > 0},
        "cpus": max(0, request.exclusive_cpus - free_cpus),
    }
