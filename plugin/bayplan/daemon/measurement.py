"""What is read of the machine: its hardware from sysfs, and by node what the memory is used for.

Blocking calls and their results only; `hardware` says when they run and what follows.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

from msgspec import Struct

from bayplan.host.cpu_partitions import CpuPartitions
from bayplan.host.hierarchy import Hierarchy
from bayplan.host.kernelfs import AbsentError
from bayplan.host.live_memory import ContainerMemory, read_held_memory, read_memory_totals
from bayplan.host.memory_statistics import HeldPages
from bayplan.host.sysfs import read_hugepages, read_isolated, read_machine
from bayplan.model.machine import Machine
from bayplan.model.workload import Container, Pod
from bayplan.sets import CpuSet


class Measurement(NamedTuple):
    """What was found by node: bytes held outside of containers, the huge page pools by page size, and
    MemTotal; and the CPUs that the kernel gives to no cgroup."""

    held_bytes: dict[int, int]
    hugepages_bytes: dict[int, dict[int, int]]
    memory_bytes: dict[int, int]
    lost_cpus: CpuSet = CpuSet()


class Host(Struct, frozen=True):
    """The blocking calls; tests have others."""

    machine: Callable[[], Machine]
    measure: Callable[[Iterable[tuple[Pod, Container]], Iterable[int]], Measurement]

    @classmethod
    def of(cls, hierarchy: Hierarchy, partitions: CpuPartitions) -> "Host":
        """Those of the machine that this runs on."""
        memory = ContainerMemory(hierarchy)
        return cls(partial(machine_with, partitions), partial(measure, hierarchy, memory, partitions))


def machine_with(partitions: CpuPartitions) -> Machine:
    """What sysfs says, with the CPUs that the kernel gives to no cgroup as if they were offline. Blocks.

    Raises:
        HostError: a file that decides is missing or garbled.
    """
    found = read_machine()
    lost = partitions.lost_cpus(read_isolated())
    return found.without_cpus(lost) if lost else found


def measure(
    hierarchy: Hierarchy,
    memory: ContainerMemory,
    partitions: CpuPartitions,
    containers: Iterable[tuple[Pod, Container]],
    nodes: Iterable[int],
) -> Measurement:
    """Measure once. Blocks; containers that are gone are passed over.

    Raises:
        BayplanError: a container's cgroup is not to be found out, or a file is missing or garbled.
    """
    wanted = list(nodes)
    pools = {node: dict(sizes) for node, sizes in read_hugepages(wanted, hierarchy.root).items()}
    sums = {node: sum(sizes.values()) for node, sizes in pools.items()}
    everybody = list(containers)
    memory.keep(container.id for _, container in everybody)
    inside = (_held(memory, pod, container) for pod, container in everybody)
    held_bytes = read_held_memory(inside, sums, hierarchy.root)
    lost = partitions.lost_cpus(read_isolated(hierarchy.root))
    return Measurement(held_bytes, pools, read_memory_totals(wanted, hierarchy.root), lost)


def _held(memory: ContainerMemory, pod: Pod, container: Container) -> HeldPages:
    try:
        return memory.read(container.id, container.cgroups_path, pod.cgroup_parent, {})
    except AbsentError:
        return HeldPages()
