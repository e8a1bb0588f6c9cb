"""Machines by the numbers that their makers and the kernel's documents give.

| machine | from |
|---|---|
| Rome, Milan, Genoa, Bergamo | AMD: 4, 8, 8, 8 cores for each L3 cache; threads come after all cores |
| EPYC 9375F | a listing of `numactl --hardware`: two nodes of 32 cores; four cores for each L3 cache |
| Kunpeng 920 | the kernel's commit of clusters: 6 or 8 clusters of 4 CPUs in a node with one L3 cache |
| Jacobsville | the kernel's commit for x86: 24 cores in 6 clusters, which share L2 caches |
| Grace | one L3 cache and 72 cores for each node |
| Altra | no L3 cache in sysfs, no threads; clusters of two cores |
| POWER9 in an LPAR | util-linux' issue 698: 10 cores of 8 threads, each a socket of its own, one node |
| POWER8 | a numactl listing with threads off: CPUs 0, 8, 16, ..., and a node without memory |
| Alder Lake | 8 cores of two threads, and two clusters of 4 cores without threads, at one L3 cache |
"""

from collections.abc import Iterable

from msgspec import Struct

from bayplan.model.machine import Cpu, Machine, Node
from bayplan.quantity import GIB
from bayplan.sets import CpuSet


class Layout(Struct, frozen=True):
    """So many sockets, nodes in each, L3 caches in each node, and cores at each cache."""

    sockets: int = 1
    nodes: int = 1
    caches: int = 1
    cores: int = 8
    threads: int = 2
    cluster: int = 0
    has_caches: bool = True
    neighbours: bool = False

    def machine(self) -> Machine:
        """The machine, each node with 64 GiB; *neighbours*: the threads of a core have adjacent ids."""
        count = self.sockets * self.nodes * self.caches * self.cores

        def cpu_id(core: int, thread: int) -> int:
            return core * self.threads + thread if self.neighbours else core + thread * count

        cpus = []
        for core in range(count):
            cache = core // self.cores
            node = cache // self.caches
            cluster = core // self.cluster * self.cluster if self.cluster else None
            cpus += [
                Cpu(
                    cpu_id(core, thread),
                    cpu_id(core, 0),
                    node // self.nodes,
                    node,
                    cpu_id(cache * self.cores, 0) if self.has_caches else None,
                    cluster_id=None if cluster is None else cpu_id(cluster, 0),
                )
                for thread in range(self.threads)
            ]
        return machine_of(cpus)


def machine_of(cpus: Iterable[Cpu], without_memory: Iterable[int] = ()) -> Machine:
    """The machine that has *cpus*; every node has 64 GiB, but those *without_memory*."""
    every, bare = list(cpus), set(without_memory)
    ids = sorted({cpu.node_id or 0 for cpu in every})
    return Machine(
        tuple(
            Node(
                node,
                CpuSet(cpu.id for cpu in every if cpu.node_id == node),
                0 if node in bare else 64 * GIB,
                distances={other: 10 if other == node else 20 for other in ids},
            )
            for node in ids
        ),
        tuple(every),
    )


def alder_lake() -> Machine:
    cpus = [Cpu(cpu, cpu & ~1, 0, 0, 0, cluster_id=cpu & ~1) for cpu in range(16)]
    return machine_of(cpus + [Cpu(cpu, cpu, 0, 0, 0, cluster_id=cpu & ~3) for cpu in range(16, 24)])


def power8_threads_off() -> Machine:
    cpus = [Cpu(8 * core, 8 * core, core // 5, core // 5, None) for core in range(10)]
    return machine_of(cpus, without_memory=[1])


def power9_lpar() -> Machine:
    return machine_of(Cpu(cpu, cpu & ~7, cpu // 8, 0, None) for cpu in range(80))


LAYOUTS = {
    "Rome 7742": Layout(sockets=2, caches=16, cores=4),
    "Milan 7763": Layout(sockets=2, caches=8),
    "Milan 7763, NPS4": Layout(sockets=2, nodes=4, caches=2),
    "Genoa 9654": Layout(sockets=2, caches=12),
    "Genoa 9654, NPS4": Layout(sockets=2, nodes=4, caches=3),
    "Bergamo 9754": Layout(sockets=2, caches=16),
    "EPYC 9375F, SMT off": Layout(sockets=2, caches=8, cores=4, threads=1),
    "Xeon, SNC off": Layout(sockets=2, cores=32),
    "Kunpeng 920": Layout(sockets=2, nodes=2, cores=24, threads=1, cluster=4),
    "Jacobsville": Layout(cores=24, threads=1, cluster=4),
    "Altra": Layout(cores=80, threads=1, cluster=2, has_caches=False),
    "Grace": Layout(sockets=2, cores=72, threads=1),
    "POWER10, SMT8": Layout(sockets=2, caches=15, cores=1, threads=8, neighbours=True),
}
