"""Which CPUs: whole cores first, close together, the same answer for the same input."""

from collections.abc import Iterable, Sequence

from bayplan.model.machine import Cpu, Machine
from bayplan.sets import CpuSet, NodeSet


def take_cpus(machine: Machine, available: CpuSet, count: int, preferred: NodeSet) -> CpuSet:
    """*count* CPUs of *available*: from the *preferred* nodes first, then from the nodes nearest to them.

    Within a node: whole free cores, cache by cache; what is left comes from cores that are already broken,
    and only then is another core broken, so that hyperthread siblings stay with one container.

    Returns:
        The CPUs; fewer than *count* only if *available* has fewer.
    """
    taken: list[int] = []
    for node in _by_distance(machine, preferred):
        taken += _take_from_node(machine, available & machine.cpus_of(NodeSet([node])), count - len(taken))
    nodeless = available - machine.cpus_of(machine.node_ids)
    taken += list(nodeless)[: count - len(taken)]
    return CpuSet(taken)


def _by_distance(machine: Machine, preferred: NodeSet) -> list[int]:
    """All nodes: the preferred ones by id, then the others by their distance from the preferred ones."""

    def distance(node: int) -> int:
        if node in preferred:
            return -1
        return sum(machine.distance(source, node) for source in preferred)

    return sorted(machine.node_ids, key=lambda node: (distance(node), node))


def _take_from_node(machine: Machine, free: CpuSet, count: int) -> list[int]:
    if count <= 0 or not free:
        return []
    cores = _cores(machine.cpu_by_id[cpu] for cpu in free)
    size_of = {core.core_id: 0 for core in machine.cpus}
    for cpu in machine.cpus:
        size_of[cpu.core_id] += cpu.online
    whole = [core for core in cores if len(core) == size_of[core[0].core_id]]
    broken = [core for core in cores if len(core) < size_of[core[0].core_id]]
    taken: list[int] = []
    left: list[Sequence[Cpu]] = []
    for core in whole:
        if len(core) <= count - len(taken):
            taken += [cpu.id for cpu in core]
        else:
            left.append(core)
    for core in (*broken, *left):
        taken += [cpu.id for cpu in core][: count - len(taken)]
    return taken


def _cores(cpus: Iterable[Cpu]) -> list[Sequence[Cpu]]:
    """The CPUs by core; cores that share an L3 cache stand beside each other."""
    cores: dict[int, list[Cpu]] = {}
    for cpu in cpus:
        cores.setdefault(cpu.core_id, []).append(cpu)
    return sorted(
        cores.values(), key=lambda core: (core[0].socket_id, core[0].l3_cache_id or 0, core[0].core_id)
    )
