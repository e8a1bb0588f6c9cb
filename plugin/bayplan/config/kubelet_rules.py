"""The engine that the settings ask for, the options of kubelet's managers, and what nothing goes by.

Pure. What depends on a machine, and only with the engine `kubelet`, is in `bayplan.config.kubelet_managers`.
A problem has kubelet's own sentence about the rule in it, because people search for that.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from bayplan.config.settings import Settings
from bayplan.config.sources import Source
from bayplan.engines.exact.engine import ExactEngine
from bayplan.engines.interface import Engine
from bayplan.errors import Problem
from bayplan.kubelet.eviction_manager import (
    DEFAULT_MEMORY,
    MEMORY_AVAILABLE,
    Values,
    kept_bytes,
    thresholds_of,
)
from bayplan.kubelet.manager_options import (
    NONE,
    PREFER_UNCORE,
    STATIC,
    STRICT_RESERVATION,
    TRUE,
    CpuOptions,
    ManagerConfigError,
    ManagerOptions,
    MemoryManagerPolicy,
    OptionGates,
    TopologyOptions,
    maturity,
)
from bayplan.kubelet.pod import CPU
from bayplan.model.machine import Machine
from bayplan.model.policy import CpuAlignment, KeepWhole, PlacementStrategy, TopologyPolicy

CPU_OPTIONS: Final = "cpuManagerPolicyOptions"
_ALPHA_CPU_OPTIONS: Final = "CPUManagerPolicyAlphaOptions"
_BETA_CPU_OPTIONS: Final = "CPUManagerPolicyBetaOptions"
TOPOLOGY_OPTIONS: Final = "topologyManagerPolicyOptions"
_ENGINE_GATES: Final = {
    "PodLevelResources": False,
    "PodLevelResourceManagers": True,
    "InPlacePodVerticalScalingExclusiveCPUs": True,
    "InPlacePodVerticalScalingExclusiveMemory": True,
}
"""kubelet's feature gates with the values that change answers of its managers and none of the engine's."""

_NOTHING_KEPT: Final = (
    "keepWhole has no effect with the engine kubelet, which prefers nodes and CPUs as kubelet does"
)
_SPREAD_KEEPS_NOTHING: Final = (
    "keepWhole has no effect with placementStrategy spread, but for pods that say pack for themselves"
)
_NO_SPREAD: Final = (
    "placementStrategy spread has no effect with the engine kubelet, which prefers nodes as kubelet does"
)

_NO_MINIMUM: Final = (
    "sharedCPUsMinimum has no effect with the engine kubelet, which gives away all CPUs that are not reserved"
)
_NO_RULES: Final = (
    "cpuRules and cpuPools have no effect with the engine kubelet, which goes by QoS class and request alone"
)

_NO_POOLS: Final = (
    "hugepagePools has no effect with the engine kubelet, whose memory manager has the pools that there were "
    "at its start"
)


def engine_of(settings: Settings) -> Engine:
    """The engine that decides; *settings* are those that `load_settings` let pass."""
    if not settings.engine_kind.is_kubelets:
        return ExactEngine(settings.topology_scope)
    from bayplan.engines.kubelet.engine import KubeletEngine  # noqa: PLC0415 - loaded where it is chosen

    return KubeletEngine(manager_options(settings))


def manager_options(settings: Settings) -> ManagerOptions:
    """Kubelet's managers as *settings* configure them."""
    return ManagerOptions(
        settings.memory_manager,
        settings.cpu_manager == STATIC,
        cpu_options_of(settings),
        settings.topology_scope,
        topology_options_of(settings),
    )


def wrong_options(settings: Settings) -> Iterator[Problem]:
    """The options that kubelet's managers would not take on any machine, by their keys."""
    try:
        cpu_options_of(settings)
    except ManagerConfigError as error:
        yield from in_kubelets_words(CPU_OPTIONS, settings.cpu_options, error.problems)
    if not settings.engine_kind.is_kubelets:
        return
    if settings.cpu_options and settings.cpu_manager == NONE:
        sentence = "None policy: received unsupported options"
        yield from in_kubelets_words(CPU_OPTIONS, settings.cpu_options, [sentence])
    try:
        topology_options_of(settings)
    except ManagerConfigError as error:
        yield from in_kubelets_words(TOPOLOGY_OPTIONS, settings.topology_options, error.problems)


def without_effect(settings: Settings, sources: Sequence[Source]) -> Iterator[str]:
    """What *sources* say that nothing goes by under *settings*, each once, with what to do about it."""
    said_by = {key: source.name for source in sources for key in source.values}
    yield from _switched_off(settings, sources)
    for source in sources:
        yield from (f"{source.name}: {remark}" for remark in source.remarks)
    if not settings.engine_kind.is_kubelets:
        yield from _left_to_kubelet(sources)
        if not settings.reserved_cpus:
            amounts = {"kubeReserved": settings.kube_reserved, "systemReserved": settings.system_reserved}
            keys = [key for key, kept in amounts.items() if CPU in kept]
            advice = "name the CPUs in reservedSystemCPUs"
            yield from _remark(said_by, keys, ".cpu", advice)
            if settings.cpu_options.get(STRICT_RESERVATION) in TRUE:
                yield from _remark(said_by, [CPU_OPTIONS], f".{STRICT_RESERVATION}", advice)
    else:
        yield from _unknown_to_the_engine(sources)
    factor = settings.memory_throttling_factor
    if factor is not None and not settings.memory_qos:
        yield from _remark(
            said_by, ["memoryThrottlingFactor"], "", "it takes featureGates with MemoryQoS true"
        )


def _switched_off(settings: Settings, sources: Sequence[Source]) -> Iterator[str]:
    """What kubelet's files have off, by their words or by kubelet's default, and no other source switches
    on."""
    theirs = [source.name for source in sources if source.of_kubelet]
    others = {key for source in sources if not source.of_kubelet for key in source.values}
    if not theirs:
        return
    where = "to have it otherwise set it in bayplan's own configuration"
    if not settings.engine_kind.is_kubelets:
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
    """The options of the Topology Manager in kubelet's files, which only the engine `kubelet` has."""
    for source in sources:
        _, table = source.of_managers.get(TOPOLOGY_OPTIONS, ("", None))
        if isinstance(table, Mapping) and table:
            what = ", ".join(map(str, table))
            advice = "options of kubelet's Topology Manager take the engine kubelet"
            yield f"{source.name}: {what}: without effect; {advice}"


def _remark(said_by: Mapping[str, str], keys: Iterable[str], part: str, advice: str) -> Iterator[str]:
    said = [key for key in keys if key in said_by]
    if said:
        what = " and ".join(f"{key}{part}" for key in said)
        yield f"{said_by[said[0]]}: {what}: without effect; {advice}"


def _keeps(settings: Settings) -> bool:
    """Whether the settings ask to keep something whole beyond L3 caches, which are kept anyhow."""
    return settings.keep_whole is KeepWhole.NODE


def remarks_on_machine(settings: Settings, machine: Machine) -> tuple[str, ...]:
    """What kubelet would not do on *machine* and this engine does, and what this engine does not do."""
    without_effect = {
        _NO_SPREAD: settings.placement_strategy is PlacementStrategy.SPREAD,
        _NOTHING_KEPT: _keeps(settings),
        _NO_MINIMUM: bool(settings.shared_cpus_minimum),
        _NO_RULES: bool(settings.cpu_rules or settings.cpu_pools),
        _NO_POOLS: bool(settings.hugepage_pools),
    }
    remarks = tuple(
        text for text, given in without_effect.items() if given and settings.engine_kind.is_kubelets
    )
    if (
        not settings.engine_kind.is_kubelets
        and _keeps(settings)
        and settings.placement_strategy is PlacementStrategy.SPREAD
    ):
        remarks = (*remarks, _SPREAD_KEEPS_NOTHING)
    beyond = topology_options_of(settings).beyond_kubelet(len(machine.nodes))
    if not settings.engine_kind.is_kubelets or settings.topology is TopologyPolicy.NONE or beyond is None:
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
    if settings.merge_default_eviction or not settings.engine_kind.is_kubelets:
        return {MEMORY_AVAILABLE: DEFAULT_MEMORY, **settings.eviction_hard}
    return settings.eviction_hard


def in_kubelets_words(key: str, options: Iterable[str], sentences: Iterable[str]) -> Iterator[Problem]:
    """One problem for each of kubelet's *sentences* about the *options* of *key*."""
    found = ",".join(sorted(options))
    for sentence in sentences:
        yield Problem(key, found, f"options that can be used; kubelet: {sentence}")


def cpu_alignment(settings: Settings) -> CpuAlignment:
    """Which CPUs of its own a container gets with the engine `exact`."""
    options = cpu_options_of(settings)
    return CpuAlignment(
        options.full_pcpus_only,
        options.distribute_cpus_across_numa,
        options.align_by_socket,
        options.distribute_cpus_across_cores,
        options.prefer_align_cpus_by_uncorecache or PREFER_UNCORE not in settings.cpu_options,
    )


def wrong_alignment(settings: Settings, machine: Machine) -> Iterator[Problem]:
    """The CPU Manager's options that do not go with *machine*."""
    sockets, nodes = len({cpu.socket_id for cpu in machine.cpus if cpu.online}), len(machine.cpu_nodes)
    try:
        cpu_options_of(settings).check(sockets, nodes, settings.topology)
    except ManagerConfigError as error:
        yield from in_kubelets_words(CPU_OPTIONS, settings.cpu_options, error.problems)


def cpu_options_of(settings: Settings) -> CpuOptions:
    """The CPU Manager's options, with the engine `exact` without the gates that kubelet has before them.

    Raises:
        ManagerConfigError: they cannot be used.
    """
    gates = settings.feature_gates
    if not settings.engine_kind.is_kubelets:
        gates = dict.fromkeys((_ALPHA_CPU_OPTIONS, _BETA_CPU_OPTIONS), True)
    return CpuOptions.parse(
        settings.cpu_options,
        alpha=gates.get(_ALPHA_CPU_OPTIONS, False),
        beta=gates.get(_BETA_CPU_OPTIONS, True),
        rules=settings.kubelet_rules,
    )


def topology_options_of(settings: Settings) -> TopologyOptions:
    """The Topology Manager's options.

    Raises:
        ManagerConfigError: they cannot be used.
    """
    gates = settings.feature_gates
    return TopologyOptions.parse(
        settings.topology_options,
        OptionGates(
            alpha=gates.get("TopologyManagerPolicyAlphaOptions", False),
            beta=gates.get("TopologyManagerPolicyBetaOptions", True),
            options=maturity(settings.kubelet_rules),
        ),
    )
