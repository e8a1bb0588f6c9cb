"""The settings held against the machine: which node keeps how much from containers, and the Policy.

Pure. The engine `kubelet` demands that reservedMemory sums up to kubeReserved + systemReserved + the eviction
threshold (`bayplan.daemon.managers`); otherwise those three are what is spread over the nodes when
reservedMemory is not given.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

from bayplan.daemon.managers import kept_cpus, wrong_on_machine
from bayplan.daemon.settings import KUBELET, Settings
from bayplan.domain.kubelet.resources import is_memory
from bayplan.domain.policy import MemoryQos, Policy
from bayplan.domain.topology import MEMORY, Machine
from bayplan.errors import ConfigError, Problem
from bayplan.quantity import format_bytes, parse_page_size
from bayplan.sets import CpuSet

_PAGE_BYTES: Final = 4096

Reserved = Mapping[int, Mapping[str, int]]
"""Node id -> resource -> bytes."""


def resolve_policy(settings: Settings, machine: Machine) -> Policy:
    """The policy that *settings* mean on *machine*.

    Raises:
        ConfigError: every node, page size, amount and CPU that the machine does not have.
    """
    problems = [*_wrong_memory(settings, machine), *_wrong_cpus(settings.reserved_cpus, machine)]
    if settings.engine == KUBELET:
        problems += wrong_on_machine(settings, machine)
    if problems:
        raise ConfigError("configuration on this machine", tuple(problems))
    reserved_cpus, withheld_cpus = settings.reserved_cpus, CpuSet()
    if settings.engine == KUBELET:
        reserved_cpus, withheld_cpus = kept_cpus(settings, machine)
    return Policy(
        topology=settings.topology,
        reserved_bytes=reserved_bytes(settings, machine),
        reserved_cpus=reserved_cpus,
        withheld_cpus=withheld_cpus,
        memory_qos=MemoryQos(settings.memory_throttling_factor, settings.memory_reservation)
        if settings.memory_qos
        else None,
        single_process_oom_kill=settings.single_process_oom_kill,
        default_memory_limit_bytes=settings.default_memory_limit_bytes,
        set_oom_score_adj=settings.set_oom_score_adj,
        refuse_wrong_annotations=settings.refuse_wrong_annotations,
    )


def reserved_bytes(settings: Settings, machine: Machine) -> Reserved:
    """What each node keeps: as reservedMemory says, else the node-wide reservations spread evenly.

    A node smaller than its share keeps all that it has, and the others share the rest.
    """
    if settings.reserved_memory is not None:
        return settings.reserved_memory
    spread: dict[int, dict[str, int]] = {}
    for resource, amount_bytes in sorted(node_wide_bytes(settings, machine).items()):
        for node, share_bytes in _spread(amount_bytes, resource, machine).items():
            spread.setdefault(node, {})[resource] = share_bytes
    return spread


def node_wide_bytes(settings: Settings, machine: Machine) -> Mapping[str, int]:
    """The Node Allocatable reservation: kubeReserved + systemReserved + evictionHard, by resource."""
    total = Counter(settings.kube_reserved) + Counter(settings.system_reserved)
    total[MEMORY] += settings.eviction.of(machine.memory_bytes)
    return {resource: amount for resource, amount in total.items() if amount > 0 and is_memory(resource)}


def _spread(amount_bytes: int, resource: str, machine: Machine) -> dict[int, int]:
    """Even shares in whole pages; what does not divide goes to the nodes with the lowest ids."""
    unit = _PAGE_BYTES if resource == MEMORY else parse_page_size(resource.partition("-")[2])
    rooms = {node.id: node.capacity_bytes().get(resource, 0) for node in machine.nodes}
    rooms = {node: room_bytes for node, room_bytes in rooms.items() if room_bytes > 0}
    shares: dict[int, int] = {}
    # The smallest rooms first: what they can't take is left for those after them.
    for position, node in enumerate(sorted(rooms, key=lambda one: (rooms[one], one))):
        even_bytes = -(-amount_bytes // (unit * (len(rooms) - position))) * unit
        shares[node] = min(rooms[node], even_bytes, amount_bytes)
        amount_bytes -= shares[node]
    return {node: shares[node] for node in sorted(shares) if shares[node] > 0}


def _wrong_memory(settings: Settings, machine: Machine) -> Iterator[Problem]:
    if settings.reserved_memory is None:
        yield from _too_much(settings, machine)
        return
    for node_id, resources in sorted(settings.reserved_memory.items()):
        node = machine.node_by_id.get(node_id)
        if node is None:
            found = f"node {node_id}"
            yield Problem("reservedMemory", found, f"NUMA nodes of this machine: {machine.node_ids}")
            continue
        capacity = node.capacity_bytes()
        for resource, amount_bytes in sorted(resources.items()):
            path = f"reservedMemory, node {node_id}, {resource}"
            if resource not in capacity:
                sizes = ", ".join(name for name in capacity if name != MEMORY) or "none"
                yield Problem(path, "a size the node lacks", f"one of the node's: {sizes}")
            elif amount_bytes > capacity[resource]:
                most = f"at most {format_bytes(capacity[resource])} ({capacity[resource]} bytes)"
                yield Problem(path, f"{format_bytes(amount_bytes)} ({amount_bytes} bytes)", most)


def _too_much(settings: Settings, machine: Machine) -> Iterator[Problem]:
    for resource, amount_bytes in sorted(node_wide_bytes(settings, machine).items()):
        have_bytes = sum(node.capacity_bytes().get(resource, 0) for node in machine.nodes)
        if amount_bytes > have_bytes:
            yield Problem(
                f"kubeReserved + systemReserved + evictionHard, {resource}",
                f"{format_bytes(amount_bytes)} ({amount_bytes} bytes)",
                f"at most what all nodes have, {format_bytes(have_bytes)} ({have_bytes} bytes)",
            )


def _wrong_cpus(reserved: CpuSet, machine: Machine) -> Iterator[Problem]:
    missing = reserved - CpuSet(machine.cpu_by_id)
    if missing:
        have = CpuSet(machine.cpu_by_id)
        yield Problem("reservedSystemCPUs", f"{reserved} (no CPU {missing})", f"CPUs of this machine: {have}")
