"""Which CPUs: kubelet's packed, spread and uncore-aligned choice. Pure; nothing here knows of containers.

Best fit throughout: elements are tried in ascending order of their free CPUs, then of their id, so that the
most used one is filled first. Source: Kubernetes v1.36, takeByTopologyNUMAPacked.

One difference: kubelet calls an element whole when its number of free CPUs equals the machine's average, and
then takes all of its CPUs, free or not. Here all of them must be free as well, so that on hybrid machines no
CPU is given away twice.
"""

from collections.abc import Iterable, Mapping
from typing import final

from bayplan.engines.kubelet.cpu.errors import CpuShortageError
from bayplan.engines.kubelet.cpu.topology import CpuTopology
from bayplan.sets import CpuSet


def take_packed(
    topology: CpuTopology,
    available: CpuSet,
    count: int,
    *,
    spread: bool = False,
    align_uncore: bool = False,
) -> CpuSet:
    """Exactly *count* CPUs of *available*: whole NUMA nodes and sockets, then whole uncore caches if
    *align_uncore*, then whole cores unless *spread*, then single CPUs.

    Raises:
        CpuShortageError: *available* holds fewer.
    """
    free = FreeCpus(topology, available, count)
    if free.satisfied:
        return free.taken
    if free.failed:
        raise CpuShortageError(count, len(available))
    whole_nodes = (free.free_nodes, topology.node_cpus)
    whole_sockets = (free.free_sockets, topology.socket_cpus)
    levels = (whole_nodes, whole_sockets) if topology.nodes_first else (whole_sockets, whole_nodes)
    for listed, cpus in levels:
        free.take_whole(listed(), cpus)
        if free.satisfied:
            return free.taken
    if align_uncore:
        free.take_uncores()
    if not spread and not free.satisfied:
        free.take_whole(free.free_cores(), topology.core_cpus)
    if not free.satisfied:
        free.take_single(free.cpus_spread() if spread else free.cpus_packed())
    assert free.satisfied
    return free.taken


@final
class FreeCpus:
    """The CPUs still free while one request is being served, in the orders in which they are tried.

    A working object, never kept: what it started with is ``taken`` and what is left of it, without overlap.
    """

    __slots__ = ("_free", "_taken", "_topology", "needed")

    def __init__(self, topology: CpuTopology, available: CpuSet, count: int) -> None:
        self._topology = topology
        self._free = available.mask & topology.all_cpus.mask
        self._taken = 0
        self.needed = count

    @property
    def taken(self) -> CpuSet:
        """What was taken so far."""
        return CpuSet.of_mask(self._taken)

    @property
    def satisfied(self) -> bool:
        """Whether nothing more is needed."""
        return self.needed < 1

    @property
    def failed(self) -> bool:
        """Whether more is needed than is left."""
        return self.needed > self._free.bit_count()

    def take(self, cpus: CpuSet) -> None:
        """Take *cpus*, all of which must still be free."""
        assert cpus.mask & ~self._free == 0
        self._take(cpus.mask)

    def nodes(self) -> list[int]:
        """NUMA nodes with free CPUs in the order in which they are tried."""
        topology = self._topology
        if topology.nodes_first:
            return self._by_use(topology.node_cpus, topology.node_cpus, self._free)
        return [
            node
            for socket in self.sockets()
            for node in self._by_use(
                topology.nodes_of_socket[socket], topology.node_cpus, topology.socket_cpus[socket]
            )
        ]

    def sockets(self) -> list[int]:
        """Sockets with free CPUs in the order in which they are tried."""
        topology = self._topology
        if not topology.nodes_first:
            return self._by_use(topology.socket_cpus, topology.socket_cpus, self._free)
        return [
            socket
            for node in self.nodes()
            for socket in self._by_use(
                topology.sockets_of_node[node], topology.socket_cpus, topology.node_cpus[node]
            )
        ]

    def uncores(self) -> list[int]:
        """Uncore caches with free CPUs in the order in which they are tried."""
        topology = self._topology
        return [
            uncore
            for node in self.nodes()
            for uncore in self._by_use(
                topology.uncores_of_node[node], topology.uncore_cpus, topology.node_cpus[node]
            )
        ]

    def cores(self) -> list[int]:
        """Cores with free CPUs in the order in which they are tried."""
        topology = self._topology
        if topology.nodes_first:
            outer, cpus, inner = self.sockets(), topology.socket_cpus, topology.cores_of_socket
        else:
            outer, cpus, inner = self.nodes(), topology.node_cpus, topology.cores_of_node
        return [
            core
            for element in outer
            for core in self._by_use(inner[element], topology.core_cpus, cpus[element])
        ]

    def cpus_packed(self) -> list[int]:
        """Free CPUs core by core."""
        core_cpus = self._topology.core_cpus
        return [cpu for core in self.cores() for cpu in CpuSet.of_mask(core_cpus[core] & self._free)]

    def cpus_spread(self) -> list[int]:
        """Free CPUs socket by socket, ascending ids, so that neighbouring ones are on different cores."""
        socket_cpus = self._topology.socket_cpus
        return [cpu for socket in self.sockets() for cpu in CpuSet.of_mask(socket_cpus[socket] & self._free)]

    def free_nodes(self) -> list[int]:
        """NUMA nodes all of whose CPUs are free."""
        cpus = self._topology.node_cpus
        return [node for node in self.nodes() if cpus[node] & ~self._free == 0]

    def free_sockets(self) -> list[int]:
        """Sockets all of whose CPUs are free, as many as the average socket has."""
        return self._whole(self.sockets(), self._topology.socket_cpus, self._topology.cpus_per_socket)

    def free_uncores(self) -> list[int]:
        """Uncore caches all of whose CPUs are free."""
        cpus = self._topology.uncore_cpus
        return [uncore for uncore in self.uncores() if cpus[uncore] & ~self._free == 0]

    def free_cores(self) -> list[int]:
        """Cores all of whose CPUs are free, as many as the average core has."""
        return self._whole(self.cores(), self._topology.core_cpus, self._topology.cpus_per_core)

    def take_whole(self, elements: Iterable[int], cpus: Mapping[int, int]) -> None:
        """Take each of *elements* that is still free and not larger than what is needed."""
        for element in elements:
            mask = cpus[element]
            if mask & ~self._free == 0 and self.needed >= mask.bit_count():
                self._take(mask)

    def take_uncores(self) -> None:
        """Whole uncore caches first; what remains comes from one further cache, or not at all.

        One pass over the whole caches does what kubelet's repeated passes do: between them nothing changes.
        """
        ordered = self.uncores()
        if self.needed >= self._topology.cpus_per_uncore:
            self.take_whole(self.free_uncores(), self._topology.uncore_cpus)
        for uncore in ordered:
            if self.satisfied:
                return
            self._take_part_of_uncore(uncore)

    def take_single(self, cpus: Iterable[int]) -> None:
        """Take CPUs in the given order until satisfied."""
        for cpu in cpus:
            if self.satisfied:
                return
            if self._free >> cpu & 1:
                self._take(1 << cpu)

    def _take_part_of_uncore(self, uncore: int) -> None:
        """Take all that is needed from one cache, but only if its lowest cores give exactly that number.

        With SMT an odd request may leave the last sibling of the last core behind.
        """
        topology = self._topology
        cpus_per_core = topology.cpus_per_core
        cores_needed = -(-self.needed // max(1, cpus_per_core))
        mask = 0
        inside = topology.uncore_cpus[uncore] & self._free
        for core in topology.cores_of_uncore[uncore]:
            if cores_needed == 0:
                break
            if topology.core_cpus[core] & inside:
                mask |= topology.core_cpus[core] & self._free
                cores_needed -= 1
        if self.needed % 2 and cpus_per_core > 1 and mask.bit_count() > self.needed:
            mask ^= 1 << mask.bit_length() - 1
        if mask.bit_count() == self.needed:
            self._take(mask)

    def _whole(self, elements: list[int], cpus: Mapping[int, int], size: int) -> list[int]:
        return [
            element
            for element in elements
            if cpus[element] & ~self._free == 0 and cpus[element].bit_count() == size
        ]

    def _by_use(self, elements: Iterable[int], cpus: Mapping[int, int], within: int) -> list[int]:
        """Those of *elements* with a free CPU inside *within*, the ones with the fewest free CPUs first."""
        free, inside = self._free, self._free & within
        counted = [
            ((cpus[element] & free).bit_count(), element) for element in elements if cpus[element] & inside
        ]
        counted.sort()
        return [element for _, element in counted]

    def _take(self, mask: int) -> None:
        self._taken |= mask
        self._free &= ~mask
        self.needed -= mask.bit_count()
