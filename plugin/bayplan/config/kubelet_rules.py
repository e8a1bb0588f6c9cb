"""The engine that the settings ask for, and the rules that kubelet's managers have beside the common ones.

Pure. Only for the engine `kubelet`: reservedMemory must add up to what the node keeps, the CPU Manager needs
reserved CPUs, options must fit each other and the machine. A problem has kubelet's own
sentence about the rule in it, because people search for that.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

from bayplan.config.settings import KUBELET, Settings
from bayplan.config.sources import Source
from bayplan.engines.exact.engine import ExactEngine
from bayplan.engines.interface import Engine
from bayplan.engines.kubelet.cpu.errors import CpuConfigError, CpuManagerError
from bayplan.engines.kubelet.cpu.manager import NONE, STATIC, StaticCpuPolicy, cpu_policy
from bayplan.engines.kubelet.cpu.options import CpuOptions
from bayplan.engines.kubelet.cpu.topology import CpuTopology
from bayplan.engines.kubelet.engine import KubeletEngine
from bayplan.engines.kubelet.eviction.node_reservation import node_allocatable_reservation
from bayplan.engines.kubelet.eviction.thresholds import (
    DEFAULT_MEMORY,
    MEMORY_AVAILABLE,
    Values,
    kept_bytes,
    thresholds_of,
)
from bayplan.engines.kubelet.managers import ManagerOptions
from bayplan.engines.kubelet.memory.manager import MemoryManagerPolicy
from bayplan.engines.kubelet.memory.reservation import (
    KEY,
    ReservationProblem,
    check_sums,
    in_words,
    of_nodes,
)
from bayplan.engines.kubelet.pod import CPU, FeatureGates
from bayplan.engines.kubelet.topology.manager import TopologyManager
from bayplan.engines.kubelet.topology.options import (
    OptionGates,
    TopologyConfigError,
    TopologyOptions,
    maturity,
)
from bayplan.errors import Problem
from bayplan.model.machine import MEMORY, Machine
from bayplan.model.policy import PlacementStrategy, TopologyPolicy
from bayplan.quantity import MILLI_PER_CPU
from bayplan.sets import CpuSet

_CPU_OPTIONS: Final = "cpuManagerPolicyOptions"
_TOPOLOGY_OPTIONS: Final = "topologyManagerPolicyOptions"
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
    _TOPOLOGY_OPTIONS,
}
_CPUS_OF: Final = {
    "engine",
    "cpuManagerPolicy",
    "reservedSystemCPUs",
    "kubeReserved",
    "systemReserved",
    "topologyManagerPolicy",
    "featureGates",
    _CPU_OPTIONS,
}
"""The keys on which the checks against a machine depend."""

_ENGINE_GATES: Final = {
    "PodLevelResources": False,
    "PodLevelResourceManagers": True,
    "InPlacePodVerticalScalingExclusiveCPUs": True,
    "InPlacePodVerticalScalingExclusiveMemory": True,
}
"""kubelet's feature gates with the values that change answers of its managers and none of the engine's."""

_NO_RESERVED_MEMORY: Final = "[memorymanager] you should specify the system reserved memory"
_NO_SPREAD: Final = (
    "placementStrategy spread has no effect with the engine kubelet, which prefers nodes as kubelet does"
)

_NO_MINIMUM: Final = (
    "sharedCPUsMinimum has no effect with the engine kubelet, which gives away all CPUs that are not reserved"
)


def engine_of(settings: Settings) -> Engine:
    """The engine that decides; *settings* are those that `load_settings` let pass."""
    if settings.engine != KUBELET:
        return ExactEngine(settings.topology_scope)
    return KubeletEngine(manager_options(settings))


def manager_options(settings: Settings) -> ManagerOptions:
    """Kubelet's managers as *settings* configure them."""
    return ManagerOptions(
        settings.memory_manager,
        settings.cpu_manager == STATIC,
        _cpu_options(settings),
        settings.topology_scope,
        _topology_options(settings),
    )


def wrong_options(settings: Settings) -> Iterator[Problem]:
    """The options that kubelet's managers would not take on any machine, by their keys."""
    try:
        _cpu_options(settings)
    except CpuConfigError as error:
        yield from _in_kubelets_words(_CPU_OPTIONS, settings.cpu_options, error.problems)
    if settings.cpu_options and settings.cpu_manager == NONE:
        sentence = "None policy: received unsupported options"
        yield from _in_kubelets_words(_CPU_OPTIONS, settings.cpu_options, [sentence])
    try:
        _topology_options(settings)
    except TopologyConfigError as error:
        yield from _in_kubelets_words(_TOPOLOGY_OPTIONS, settings.topology_options, error.problems)


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
        TopologyManager.of(machine, settings.topology, settings.topology_scope, _topology_options(settings))
    except TopologyConfigError as error:
        yield from _in_kubelets_words(_TOPOLOGY_OPTIONS, settings.topology_options, error.problems)


def _wrong_cpu_policy(settings: Settings, machine: Machine) -> Iterator[Problem]:
    try:
        _cpu_policy(settings, machine)
    except CpuConfigError as error:
        for sentence in error.problems:
            yield _wrong_cpus(settings, sentence)
    except CpuManagerError as error:
        yield _wrong_cpus(settings, str(error))


def without_effect(settings: Settings, sources: Sequence[Source]) -> Iterator[str]:
    """What *sources* say that nothing goes by under *settings*, each once, with what to do about it."""
    said_by = {key: source.name for source in sources for key in source.values}
    yield from _switched_off(settings, sources)
    if settings.engine != KUBELET:
        yield from _left_to_kubelet(sources)
        if not settings.reserved_cpus:
            amounts = {"kubeReserved": settings.kube_reserved, "systemReserved": settings.system_reserved}
            keys = [key for key, kept in amounts.items() if CPU in kept]
            yield from _remark(said_by, keys, ".cpu", "name the CPUs in reservedSystemCPUs")
    else:
        yield from _unknown_to_the_engine(sources)
    factor = settings.memory_throttling_factor
    if factor is not None and not settings.memory_qos:
        yield from _remark(
            said_by, ["memoryThrottlingFactor"], "", "it takes featureGates with MemoryQoS true"
        )


def _switched_off(settings: Settings, sources: Sequence[Source]) -> Iterator[str]:
    """What kubelet's files have off, by their words or by kubelet's default, and nobody else switches on."""
    theirs = [source.name for source in sources if source.of_kubelet]
    others = {key for source in sources if not source.of_kubelet for key in source.values}
    if not theirs:
        return
    where = "to have it otherwise set it in bayplan's own configuration"
    if settings.engine != KUBELET:
        if settings.topology is TopologyPolicy.NONE and "topologyManagerPolicy" not in others:
            what = "topologyManagerPolicy none: what cannot be aligned is neither refused nor reported"
            yield f"{theirs[-1]}: {what}; {where}"
    elif settings.cpu_manager == NONE and settings.memory_manager is MemoryManagerPolicy.NONE:
        what = "cpuManagerPolicy none and memoryManagerPolicy None: nothing is placed"
        yield f"{theirs[-1]}: {what}; {where}"


def _unknown_to_the_engine(sources: Sequence[Source]) -> Iterator[str]:
    """The feature gates of kubelet's managers that the engine `kubelet` does not have."""
    for source in sources:
        gates = [gate for gate, on in _ENGINE_GATES.items() if source.other_gates.get(gate) is on]
        if gates:
            advice = "the engine kubelet answers as by default"
            yield f"{source.name}: featureGates {', '.join(gates)}: without effect; {advice}"


def _left_to_kubelet(sources: Sequence[Source]) -> Iterator[str]:
    """The options of kubelet's managers in kubelet's files, which only the engine `kubelet` has."""
    for source in sources:
        tables = [
            value
            for key, (_, value) in source.of_managers.items()
            if key in (_CPU_OPTIONS, _TOPOLOGY_OPTIONS)
        ]
        options = [option for table in tables if isinstance(table, Mapping) for option in table]
        if options:
            what = ", ".join(map(str, options))
            advice = "options of kubelet's managers take the engine kubelet"
            yield f"{source.name}: {what}: without effect; {advice}"


def _remark(said_by: Mapping[str, str], keys: Iterable[str], part: str, advice: str) -> Iterator[str]:
    said = [key for key in keys if key in said_by]
    if said:
        what = " and ".join(f"{key}{part}" for key in said)
        yield f"{said_by[said[0]]}: {what}: without effect; {advice}"


def remarks_on_machine(settings: Settings, machine: Machine) -> tuple[str, ...]:
    """What kubelet would not do on *machine* and this engine does, and what this engine does not do."""
    without_effect = {
        _NO_SPREAD: settings.placement_strategy is PlacementStrategy.SPREAD,
        _NO_MINIMUM: bool(settings.shared_cpus_minimum),
    }
    remarks = tuple(text for text, given in without_effect.items() if given and settings.engine == KUBELET)
    beyond = _topology_options(settings).beyond_kubelet(len(machine.nodes))
    if settings.engine != KUBELET or settings.topology is TopologyPolicy.NONE or beyond is None:
        return remarks
    policy, nodes = settings.topology.value, len(machine.nodes)
    where = f"this machine's {nodes} NUMA nodes ({beyond}, see max-allowable-numa-nodes)"
    kubelet = f"kubelet would not start with topologyManagerPolicy {policy} on {where}"
    return (*remarks, f"{kubelet}; bayplan decides here all the same")


def eviction_bytes(settings: Settings, capacity_bytes: int) -> int:
    """The memory that hard eviction keeps free on a machine with *capacity_bytes*.

    kubelet's default of 100Mi ends with any evictionHard, unless defaults are merged. The other engines keep
    it where evictionHard says nothing of memory.
    """
    return kept_bytes(thresholds_of(hard_thresholds(settings), {}, {}, {}), capacity_bytes)


def hard_thresholds(settings: Settings) -> Values:
    """The hard thresholds, with the default that counts beside evictionHard: see `eviction_bytes`."""
    if settings.merge_default_eviction or settings.engine != KUBELET:
        return {MEMORY_AVAILABLE: DEFAULT_MEMORY, **settings.eviction_hard}
    return settings.eviction_hard


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
        _cpu_options(settings),
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
    return sum(amounts) if amounts else None


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


def _in_kubelets_words(key: str, options: Iterable[str], sentences: Iterable[str]) -> Iterator[Problem]:
    found = ",".join(sorted(options))
    for sentence in sentences:
        yield Problem(key, found, f"options that can be used; kubelet: {sentence}")


def _cpu_options(settings: Settings) -> CpuOptions:
    gates = settings.feature_gates
    return CpuOptions.parse(
        settings.cpu_options,
        alpha=gates.get("CPUManagerPolicyAlphaOptions", False),
        beta=gates.get("CPUManagerPolicyBetaOptions", True),
        rules=settings.kubelet_rules,
    )


def _topology_options(settings: Settings) -> TopologyOptions:
    gates = settings.feature_gates
    return TopologyOptions.parse(
        settings.topology_options,
        OptionGates(
            alpha=gates.get("TopologyManagerPolicyAlphaOptions", False),
            beta=gates.get("TopologyManagerPolicyBetaOptions", True),
            options=maturity(settings.kubelet_rules),
        ),
    )
