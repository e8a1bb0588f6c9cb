"""kubelet's managers held against a machine: what they would not start with, and the CPUs that they keep.

Pure, and loaded with the engine `kubelet` only: reservedMemory must add up to what the node keeps, the CPU
Manager needs reserved CPUs, options must fit the machine. A problem has kubelet's own sentence about the rule
in it.
"""

from collections.abc import Collection, Iterator
from typing import Final

from bayplan.config.kubelet_rules import (
    CPU_OPTIONS,
    TOPOLOGY_OPTIONS,
    cpu_options_of,
    eviction_bytes,
    in_kubelets_words,
    topology_options_of,
)
from bayplan.config.settings import Settings
from bayplan.engines.kubelet.cpu_manager import StaticCpuPolicy, cpu_policy
from bayplan.engines.kubelet.cpu_state import CpuManagerError
from bayplan.engines.kubelet.cpu_topology import CpuTopology
from bayplan.engines.kubelet.topology_manager import TopologyManager
from bayplan.errors import Problem
from bayplan.kubelet.eviction_manager import node_allocatable_reservation
from bayplan.kubelet.manager_options import (
    KEY,
    ManagerConfigError,
    MemoryManagerPolicy,
    ReservationProblem,
    check_sums,
    in_words,
    of_nodes,
)
from bayplan.kubelet.pod import CPU, FeatureGates
from bayplan.model.machine import MEMORY, Machine
from bayplan.quantity import MILLI_PER_CPU
from bayplan.sets import CpuSet

_SUM_OF: Final = {
    "engine",
    "memoryManagerPolicy",
    "reservedMemory",
    "kubeReserved",
    "systemReserved",
    "evictionHard",
    "mergeDefaultEvictionSettings",
}
_TOPOLOGY_OF: Final = {
    "engine",
    "topologyManagerPolicy",
    "topologyManagerScope",
    "featureGates",
    TOPOLOGY_OPTIONS,
}
_CPUS_OF: Final = {
    "engine",
    "cpuManagerPolicy",
    "reservedSystemCPUs",
    "kubeReserved",
    "systemReserved",
    "topologyManagerPolicy",
    "featureGates",
    CPU_OPTIONS,
}
"""The keys on which the checks against a machine depend."""
_NO_RESERVED_MEMORY: Final = "[memorymanager] you should specify the system reserved memory"


def wrong_on_machine(settings: Settings, machine: Machine, unread: Collection[str] = ()) -> Iterator[Problem]:
    """What kubelet's managers would not start with on *machine*; nothing that depends on keys *unread*."""
    if settings.memory_manager is not MemoryManagerPolicy.NONE and _SUM_OF.isdisjoint(unread):
        yield from _wrong_sums(settings, machine)
    if _TOPOLOGY_OF.isdisjoint(unread):
        yield from _wrong_topology(settings, machine)
    if _CPUS_OF.isdisjoint(unread):
        yield from _wrong_cpu_policy(settings, machine)


def _wrong_topology(settings: Settings, machine: Machine) -> Iterator[Problem]:
    try:
        TopologyManager.of(machine, settings.topology, settings.topology_scope, topology_options_of(settings))
    except ManagerConfigError as error:
        yield from in_kubelets_words(TOPOLOGY_OPTIONS, settings.topology_options, error.problems)


def _wrong_cpu_policy(settings: Settings, machine: Machine) -> Iterator[Problem]:
    try:
        _cpu_policy(settings, machine)
    except ManagerConfigError as error:
        for sentence in error.problems:
            yield _wrong_cpus(settings, sentence)
    except CpuManagerError as error:
        yield _wrong_cpus(settings, str(error))


def kept_cpus(settings: Settings, machine: Machine) -> tuple[CpuSet, CpuSet]:
    """The CPUs that never become exclusive, and those on which no container runs at all.

    Where only an amount is reserved, it is the CPUs that kubelet would pick. *settings* must be good on
    *machine*.
    """
    policy = _cpu_policy(settings, machine)
    if policy is None:
        return settings.reserved_cpus, CpuSet()
    return policy.reserved, policy.reserved if policy.options.strict_cpu_reservation else CpuSet()


def _cpu_policy(settings: Settings, machine: Machine) -> StaticCpuPolicy | None:
    return cpu_policy(
        settings.cpu_manager,
        CpuTopology.of_machine(machine),
        cpu_options_of(settings),
        reserved_milli_cpus=_reserved_milli_cpus(settings),
        reserved_cpus=settings.reserved_cpus,
        topology_policy=settings.topology,
        gates=FeatureGates(rules=settings.kubelet_rules),
    )


def _reserved_milli_cpus(settings: Settings) -> int | None:
    """A list of reserved CPUs replaces the amounts, as in kubelet."""
    if settings.reserved_cpus:
        return len(settings.reserved_cpus) * MILLI_PER_CPU
    amounts = [kept[CPU] for kept in (settings.kube_reserved, settings.system_reserved) if CPU in kept]
    return settings.kubelet_rules.reserved_milli_cpus(amounts) if amounts else None


def _wrong_sums(settings: Settings, machine: Machine) -> Iterator[Problem]:
    eviction = eviction_bytes(settings, machine.memory_bytes)
    reserved = of_nodes(settings.reserved_memory or {})
    total, words = node_allocatable_reservation(settings.kube_reserved, settings.system_reserved, eviction)
    problems = check_sums(reserved, total, words)
    if not problems and not any(each.sizes.get(MEMORY) for each in reserved):
        expected = "memory on at least one node"
        problems = (ReservationProblem(KEY, "no memory", expected, _NO_RESERVED_MEMORY),)
    yield from map(in_words, problems)


def _wrong_cpus(settings: Settings, sentence: str) -> Problem:
    if _reserved_milli_cpus(settings):
        expected = "what this machine and the reservations allow"
        return Problem("cpuManagerPolicy", repr(settings.cpu_manager), f"{expected}; kubelet: {sentence}")
    expected = "reservedSystemCPUs, or cpu in kubeReserved or systemReserved"
    return Problem("cpuManagerPolicy", "'static', and no CPU is reserved", f"{expected}; kubelet: {sentence}")
