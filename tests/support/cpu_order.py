"""The order of choices of CPUs, as docs/exact-engine.md states it, counted on finished choices."""

from collections import Counter
from collections.abc import Callable, Collection, Mapping

from bayplan.engines.exact.cpu_choice import Occupation, WantedCpus
from bayplan.model.machine import Cpu, Machine
from bayplan.sets import CpuSet


def key(machine: Machine, wanted: WantedCpus, chosen: frozenset[int]) -> tuple[object, ...]:
    """What *chosen* is compared by."""
    cpus = [machine.cpu_by_id[cpu] for cpu in sorted(chosen)]
    free = set(CpuSet.of_mask(wanted.free))
    cores = _groups(machine, lambda cpu: cpu.core_id)
    whole = {core for core, members in cores.items() if members <= free}
    counts = Counter(cpu.core_id for cpu in cpus)
    split = {core for core, count in counts.items() if count < len(cores[core])}
    spread, caches = wanted.rules.spread, wanted.rules.caches
    doubled = sum(count - 1 for count in counts.values())
    of_cores = (doubled,) if spread else (len(split & whole), len(split))
    clusters = _groups(machine, cluster_of)
    cells = _groups(machine, cell_of)
    if any(
        sorted(map(sorted, clusters.values())) == sorted(map(sorted, one.values())) for one in (cells, cores)
    ):
        clusters = {}
    by_node = _groups(machine, lambda cpu: cpu.node_id)
    return (
        *of_cores,
        len({cache_of(cpu) for cpu in cpus}) if caches else 0,
        len({cluster_of(cpu) for cpu in cpus}) if clusters else 0,
        len({die_of(cpu) for cpu in cpus}),
        len({cpu.node_id for cpu in cpus}),
        len({cpu.socket_id for cpu in cpus}),
        sum(wanted.distances.get(cpu.node_id or 0, 0) for cpu in cpus),
        0 if wanted.occupation is None else _lost(machine, wanted, wanted.occupation, chosen),
        _left(machine, cells, cell_of, whole - set(counts)),
        _left(machine, clusters, cluster_of, whole - set(counts)),
        sorted(-len(members & free - chosen) for members in by_node.values()),
        sorted(chosen),
    )


def _lost(machine: Machine, wanted: WantedCpus, occupation: Occupation, chosen: frozenset[int]) -> int:
    """What caches lose of becoming whole again."""
    free, kept, lost = set(CpuSet.of_mask(wanted.free)), set(CpuSet.of_mask(wanted.kept)), 0
    for members in _groups(machine, cache_of).values():
        if members & chosen and members <= set(CpuSet.of_mask(occupation.possible)):
            others = occupation.holders[CpuSet(members).mask]
            begun = 4200 // (1 + others) + 500 + (1000 if members <= free else 0)
            lost += (0 if members & kept else begun) + (600 if members & free - chosen else 0)
    return lost


def _groups(machine: Machine, key: Callable[[Cpu], object]) -> dict[object, set[int]]:
    found: dict[object, set[int]] = {}
    for cpu in machine.cpus:
        found.setdefault(key(cpu), set()).add(cpu.id)
    return found


def _left(
    machine: Machine,
    groups: Mapping[object, set[int]],
    key: Callable[[Cpu], object],
    cores: Collection[object],
) -> list[int]:
    """How many of *cores* are in each group, with a minus, the most first."""
    counts = Counter(key(cpu) for cpu in machine.cpus if cpu.id == cpu.core_id and cpu.id in cores)
    return sorted(-counts[group] for group in groups)


def cache_of(cpu: Cpu) -> object:
    return ("socket", cpu.socket_id) if cpu.l3_cache_id is None else cpu.l3_cache_id


def die_of(cpu: Cpu) -> object:
    return ("socket", cpu.socket_id) if cpu.die_id is None else cpu.die_id


def cell_of(cpu: Cpu) -> object:
    return cpu.socket_id, cpu.node_id, die_of(cpu), cache_of(cpu)


def cluster_of(cpu: Cpu) -> object:
    return ("core", cpu.core_id) if cpu.cluster_id is None else cpu.cluster_id
