"""The settings held against the machine: which node keeps how much from containers, which eviction thresholds
that comes to, and the policy.

Pure. What each text of a threshold means is in `bayplan.kubelet.eviction_manager`.

The engine `kubelet` demands that reservedMemory sums up to kubeReserved + systemReserved + the eviction
threshold (`bayplan.config.kubelet_managers`); otherwise those three are what is spread over the nodes when
reservedMemory is not given, and what was measured on a node counts if it is more.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from types import MappingProxyType
from typing import Final, TypeVar

from msgspec.structs import replace

from bayplan.config.kubelet_rules import (
    CPU_OPTIONS,
    cpu_alignment,
    cpu_options_of,
    eviction_bytes,
    hard_thresholds,
    manager_options,
    remarks_on_machine,
    wrong_alignment,
)
from bayplan.config.settings import Settings
from bayplan.engines.interface import KUBELET
from bayplan.errors import ConfigError, Problem
from bayplan.host.eviction_signals import FileSystems
from bayplan.kubelet.eviction_manager import (
    Threshold,
    ThresholdValue,
    Values,
    node_of,
    on_each_node,
    starved,
    thresholds_of,
    with_container_fs,
    without_grace_period,
)
from bayplan.kubelet.manager_options import (
    STATIC,
    ManagerOptions,
    MemoryManagerPolicy,
    Reservation,
    check_machine,
    in_words,
)
from bayplan.kubelet.pod import is_memory
from bayplan.model.basis import Allocatable, Basis
from bayplan.model.ledger import Ledger
from bayplan.model.machine import MEMORY, Machine, hugepage_size_bytes, hugepages
from bayplan.model.policy import CpuPool, MemoryQos, PlacementPolicy
from bayplan.model.wishes import closed_pools, wrong_pool, wrong_rule
from bayplan.placement.measured_reservation import Learned, within_promises
from bayplan.quantity import counted, format_bytes
from bayplan.sets import CpuSet

_ENFORCED: Final = ("pods",)
"""kubelet's default of enforceNodeAllocatable."""

T = TypeVar("T")


def thresholds_on(settings: Settings, machine: Machine) -> tuple[Threshold, ...]:
    """All thresholds of *settings*, those for every node as one for each node with ordinary memory."""

    def here(by_signal: Mapping[str, T]) -> dict[str, T]:
        return on_each_node(by_signal, machine.ordinary_nodes)

    soft, grace_ns = here(settings.eviction_soft), here(settings.eviction_grace_ns)
    return thresholds_of(
        here(hard_thresholds(settings)), soft, grace_ns, here(settings.eviction_min_reclaim), _ENFORCED
    )


def observed_thresholds(settings: Settings, machine: Machine, disks: FileSystems) -> tuple[Threshold, ...]:
    """`thresholds_on`, and kubelet's threshold for the disk of containers, which is that of the images where
    these have a disk of their own."""
    found = thresholds_on(settings, machine)
    return with_container_fs(found, image_fs=disks.separate, container_fs=False)[0]


def missing_grace_periods(settings: Settings, unread: Collection[str] = ()) -> Iterator[Problem]:
    """The soft thresholds without a grace period, in kubelet's words; nothing that depends on keys
    *unread*."""
    if not {"evictionSoft", "evictionSoftGracePeriod"}.isdisjoint(unread):
        return
    for signal, sentence in without_grace_period(settings.eviction_soft, settings.eviction_grace_ns):
        found, expected = f"{signal} without a grace period", "one in evictionSoftGracePeriod"
        yield Problem("evictionSoft", found, f"{expected}; kubelet: {sentence}")


def wrong_thresholds(settings: Settings, machine: Machine) -> Iterator[Problem]:
    """Thresholds for nodes that *machine* does not have, or that are met however little is used."""
    tables: Mapping[str, Values] = {
        "evictionHard": settings.eviction_hard,
        "evictionSoft": settings.eviction_soft,
    }
    for key, values in tables.items():
        for signal in values:
            node = node_of(signal)
            if node is not None and node not in machine.memory_nodes:
                yield Problem(key, signal, f"a NUMA node with memory: {machine.memory_nodes}")
        for signal, value in on_each_node(values, machine.ordinary_nodes).items():
            node = node_of(signal)
            if value is not None and node is not None and node in machine.memory_nodes:
                yield from _above_memory(key, signal, value, machine.node_by_id[node].memory_bytes)


def remarks_here(settings: Settings, machine: Machine) -> tuple[str, ...]:
    """All that an operator should know about *settings* on *machine* that is not wrong."""
    thresholds = remarks_on_thresholds(thresholds_on(settings, machine), machine)
    pools = () if settings.engine_kind.is_kubelets else settings.cpu_pools
    closed = closed_pools(settings.cpu_rules, pools, settings.forbidden_annotations)
    return (*remarks_on_machine(settings, machine), *closed, *thresholds)


def remarks_on_thresholds(thresholds: Collection[Threshold], machine: Machine) -> Iterator[str]:
    """The soft thresholds that never matter, because a hard one of the same signal is met before."""
    for soft in thresholds:
        for hard in thresholds:
            if soft.hard or not hard.hard or soft.signal != hard.signal:
                continue
            alike = (soft.value.amount is None) == (hard.value.amount is None)
            if starved(soft.signal) != MEMORY and not alike:
                continue  # How large a disk is, is not known here.
            node = node_of(soft.signal)
            if node is not None and node not in machine.node_by_id:
                continue  # It went away since the settings were read.
            capacity = machine.memory_bytes if node is None else machine.node_by_id[node].memory_bytes
            if soft.value.of(capacity) <= hard.value.of(capacity):
                yield f"evictionSoft {soft.signal} has no effect: evictionHard is met before it"


def _above_memory(key: str, signal: str, value: ThresholdValue, memory_bytes: int) -> Iterator[Problem]:
    amount_bytes = value.of(memory_bytes)
    if amount_bytes >= memory_bytes:
        found, have = format_bytes(amount_bytes), format_bytes(memory_bytes)
        yield Problem(f"{key}.{signal}", found, f"less than what the node has, {have}")


_PAGE_BYTES: Final = 4096
_NOBODY: Final = Ledger()
_SPREAD_OF: Final = {"reservedMemory", "kubeReserved", "systemReserved", "evictionHard"}

Reserved = Mapping[int, Mapping[str, int]]
"""Node id -> resource -> bytes."""


def resolve_policy(
    settings: Settings,
    machine: Machine,
    learned: Mapping[int, Learned] = MappingProxyType({}),
    ledger: Ledger = _NOBODY,
) -> PlacementPolicy:
    """The policy that *settings* mean on *machine*, of whose nodes *learned* is known. What was learned and
    is not really held is given up where *ledger* promised it.

    Raises:
        ConfigError: every node, page size, amount and CPU that the machine does not have.
    """
    problems = tuple(wrong_here(settings, machine))
    if problems:
        raise ConfigError("configuration on this machine", problems)
    reserved_cpus, withheld_cpus, isolated_cpus = settings.reserved_cpus, CpuSet(), CpuSet()
    if settings.engine_kind.is_kubelets:
        from bayplan.config.kubelet_managers import kept_cpus  # noqa: PLC0415 - loaded with that engine

        reserved_cpus, withheld_cpus = kept_cpus(settings, machine)
    else:
        # kubelet knows nothing of isolated CPUs; what the operator reserves is for the system all the same.
        isolated_cpus = machine.isolated - reserved_cpus
        withheld_cpus = isolated_cpus
        if cpu_options_of(settings).strict_cpu_reservation:
            withheld_cpus |= reserved_cpus
    configured = PlacementPolicy(
        topology=settings.topology,
        reserved_bytes=reserved_bytes(settings, machine),
        reserved_cpus=reserved_cpus,
        withheld_cpus=withheld_cpus,
        isolated_cpus=isolated_cpus,
        memory_qos=MemoryQos(settings.memory_throttling_factor, settings.memory_reservation)
        if settings.memory_qos
        else None,
        single_process_oom_kill=settings.single_process_oom_kill,
        default_memory_limit_bytes=settings.default_memory_limit_bytes,
        set_oom_score_adj=settings.set_oom_score_adj,
        refuse_wrong_annotations=settings.refuse_wrong_annotations,
        forbidden_annotations=settings.forbidden_annotations,
        refuse_undecided=settings.refuse_undecided,
        undecided_namespaces=settings.undecided_namespaces,
        outside_requests=settings.outside_requests,
        placement_files=settings.placement_files,
        defragment=settings.defragment,
        page_move_rate_bytes=settings.page_move_rate_bytes,
        return_most_bytes=settings.return_most_bytes,
        strategy=settings.placement_strategy,
        keep_whole=settings.keep_whole,
        kubelet_minor=settings.kubelet_minor,
    )
    if settings.engine_kind.is_kubelets:
        # What is reserved stays shared, and nothing else.
        configured = replace(configured, shared_cpus_minimum=0)
    else:
        configured = replace(
            configured,
            cpu_rules=settings.cpu_rules,
            cpu_pools=_pools_on(settings, machine),
            hugepage_pools=settings.hugepage_pools,
            cpu_alignment=cpu_alignment(settings),
            shared_cpus_minimum=settings.shared_cpus_minimum,
        )
    wanted = wanted_memory_bytes(settings, machine, learned)
    if not wanted:
        return configured
    # What is held there cannot be given to anybody, whatever was promised; the rest of a reservation can.
    least = _with_at_least(configured, {node: learned[node].held_bytes for node in wanted})
    full = _with_at_least(configured, wanted)
    wanted = {node: full.reserved_bytes[node][MEMORY] for node in wanted}
    return _with_at_least(least, within_promises(Basis(machine, least, ledger), wanted))


def static_managers(settings: Settings, machine: Machine) -> tuple[PlacementPolicy, ManagerOptions]:
    """Policy and options of the kubelet with static managers that *settings* configure, whichever engine they
    ask for.

    Raises:
        ConfigError: everything that such a kubelet would not start with.
    """
    theirs = replace(settings, engine=KUBELET, memory_manager=MemoryManagerPolicy.STATIC, cpu_manager=STATIC)
    return resolve_policy(theirs, machine), manager_options(theirs)


def wrong_here(settings: Settings, machine: Machine, unread: Collection[str] = ()) -> Iterator[Problem]:
    """What *machine* does not have of what *settings* name, and what kubelet's engine does not start with.

    Problems that depend on the keys *unread*, for which the settings hold defaults, are left out.
    """
    if settings.reserved_memory is not None:
        reserved = (Reservation(node, sizes) for node, sizes in sorted(settings.reserved_memory.items()))
        yield from map(in_words, check_machine(reserved, machine))
    elif _SPREAD_OF.isdisjoint(unread):
        yield from _too_much(settings, machine)
    yield from _wrong_uses_of_cpus(settings, machine, unread)
    yield from _wrong_hugepage_pools(settings, machine)
    yield from wrong_thresholds(settings, machine)
    if settings.engine_kind.is_kubelets:
        from bayplan.config.kubelet_managers import wrong_on_machine  # noqa: PLC0415 - loaded with that engine

        yield from wrong_on_machine(settings, machine, unread)
    elif CPU_OPTIONS not in unread:
        yield from wrong_alignment(settings, machine)


def _wrong_uses_of_cpus(settings: Settings, machine: Machine, unread: Collection[str]) -> Iterator[Problem]:
    """What *machine* does not have of the CPUs that *settings* reserve, and give by rules and to pools."""
    if "reservedSystemCPUs" not in unread:
        yield from _wrong_cpus(settings.reserved_cpus, machine)
    if (settings.shared_cpus_minimum or 0) > len(machine.cpus):
        has = f"at most the {counted(len(machine.cpus), 'CPU')} of this machine"
        yield Problem("sharedCPUsMinimum", str(settings.shared_cpus_minimum), has)
    for place, rule in enumerate(settings.cpu_rules):
        problem = wrong_rule(rule, machine)
        pool = rule.cpus.removeprefix("pool=") if rule.cpus.startswith("pool=") else ""
        if problem is not None:
            yield Problem(f"cpuRules[{place}].{problem.path}", problem.found, problem.expected)
        elif pool and "cpuPools" not in unread and (expected := wrong_pool(pool, settings.cpu_pools)):
            yield Problem(f"cpuRules[{place}].cpus", repr(rule.cpus), expected)
    if not settings.engine_kind.is_kubelets and "reservedSystemCPUs" not in unread:
        yield from _wrong_pools(settings, machine)


def _wrong_hugepage_pools(settings: Settings, machine: Machine) -> Iterator[Problem]:
    """Pools of huge pages on nodes or of sizes that *machine* does not have, or larger than a node."""
    for node_id, pools in sorted(settings.hugepage_pools.items()):
        path, node = f"hugepagePools.{node_id}", machine.node_by_id.get(node_id)
        if node is None or not node.memory_bytes:
            yield Problem(path, f"node {node_id}", f"a node with memory: {machine.memory_nodes}")
            continue
        has = f"at most what the node has, {format_bytes(node.memory_bytes)}"
        for size, bounds in sorted(pools.items()):
            here = f"{path}.{hugepages(size)}"
            if size not in node.hugepages_bytes:
                known = ", ".join(map(hugepages, sorted(node.hugepages_bytes))) or "none"
                yield Problem(here, format_bytes(size), f"a size of huge pages that its kernel has: {known}")
            elif bounds.maximum_bytes > node.memory_bytes:
                yield Problem(f"{here}.maximum", format_bytes(bounds.maximum_bytes), has)
        least = sum(bounds.minimum_bytes for bounds in pools.values())
        if len(pools) > 1 and least > node.memory_bytes:
            yield Problem(path, f"{format_bytes(least)} as minimum of all sizes together", has)


def _pools_on(settings: Settings, machine: Machine) -> dict[str, CpuPool]:
    """The named pools as *machine* has them: with full-pcpus-only the most is a whole number of cores."""
    size = 1
    if cpu_options_of(settings).full_pcpus_only:
        size = max(machine.core_sizes.values(), default=1)
    return {
        name: replace(pool, maximum=-(-pool.maximum // size) * size)
        for name, pool in settings.cpu_pools.items()
    }


def _wrong_pools(settings: Settings, machine: Machine) -> Iterator[Problem]:
    """Named pools that *machine* has no room for: one alone by its kind of cores, or all of them together."""
    reserved, fitting = settings.reserved_cpus, 0
    kept = PlacementPolicy(reserved_cpus=reserved, isolated_cpus=machine.isolated - reserved)
    # A CPU that is offline comes back: no pool is wrong for that.
    has = Allocatable(machine, kept).exclusive_cpus | (CpuSet(machine.cpu_by_id) - machine.online_cpus)
    for name, pool in sorted(settings.cpu_pools.items()):
        if pool.cpu_kind and pool.cpu_kind not in machine.cpus_by_kind:
            known = " or ".join(machine.cpus_by_kind) or "none, as all cores of this machine are alike"
            yield Problem(f"cpuPools.{name}.cpuKind", repr(pool.cpu_kind), known)
            continue
        most = len(has & machine.cpus_by_kind[pool.cpu_kind] if pool.cpu_kind else has)
        if pool.maximum > most:
            kind = f" of the kind {pool.cpu_kind}" if pool.cpu_kind else ""
            expected = f"at most {most}: so many CPUs{kind} of this machine are neither reserved nor isolated"
            yield Problem(f"cpuPools.{name}.maximum", str(pool.maximum), expected)
        else:
            fitting += pool.maximum
    if fitting > len(has):
        expected = f"at most {len(has)}: so many CPUs of this machine are neither reserved nor isolated"
        yield Problem("cpuPools", f"{counted(fitting, 'CPU')} together", expected)


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


def wanted_memory_bytes(
    settings: Settings, machine: Machine, learned: Mapping[int, Learned]
) -> dict[int, int]:
    """The memory that nodes should keep because of what was measured there, by node: what is held, and the
    node's share of the eviction threshold. kubeReserved and systemReserved are budgets for the same memory,
    so they are not added. Empty where measurements do not count: they are switched off, or the engine is
    `kubelet`, which has to add up as kubelet does. Nodes for which reservedMemory has an amount are left
    out."""
    if not settings.measured_reservation or settings.engine_kind.is_kubelets:
        return {}
    explicit = settings.reserved_memory or {}
    headroom = _spread(eviction_bytes(settings, machine.memory_bytes), MEMORY, machine)
    return {
        node: one.reserved_bytes + headroom.get(node, 0)
        for node, one in learned.items()
        if node in machine.memory_nodes and MEMORY not in explicit.get(node, {})
    }


def node_wide_bytes(settings: Settings, machine: Machine) -> Mapping[str, int]:
    """The Node Allocatable reservation: kubeReserved + systemReserved + evictionHard, by resource."""
    total = Counter(settings.kube_reserved) + Counter(settings.system_reserved)
    total[MEMORY] += eviction_bytes(settings, machine.memory_bytes)
    return {resource: amount for resource, amount in total.items() if amount > 0 and is_memory(resource)}


def _with_at_least(policy: PlacementPolicy, memory_bytes: Mapping[int, int]) -> PlacementPolicy:
    """*policy* with at least so much memory reserved on these nodes."""
    reserved = dict(policy.reserved_bytes)
    for node, amount_bytes in memory_bytes.items():
        row = reserved.get(node, {})
        reserved[node] = {**row, MEMORY: max(amount_bytes, row.get(MEMORY, 0))}
    return replace(policy, reserved_bytes=reserved)


def _spread(amount_bytes: int, resource: str, machine: Machine) -> dict[int, int]:
    """Even shares in whole pages; what does not divide goes to the nodes with the lowest ids."""
    unit = _PAGE_BYTES if resource == MEMORY else hugepage_size_bytes(resource)
    rooms = _rooms(machine, resource)
    shares: dict[int, int] = {}
    # The smallest rooms first: what they can't take is left for those after them.
    for position, node in enumerate(sorted(rooms, key=lambda one: (rooms[one], one))):
        even_bytes = -(-amount_bytes // (unit * (len(rooms) - position))) * unit
        shares[node] = min(rooms[node], even_bytes, amount_bytes)
        amount_bytes -= shares[node]
    return {node: shares[node] for node in sorted(shares) if shares[node] > 0}


def _rooms(machine: Machine, resource: str) -> dict[int, int]:
    """What the nodes have of *resource* for the system: memory only where it is ordinary."""
    rooms = {node.id: node.capacity_bytes().get(resource, 0) for node in machine.nodes}
    return {
        node: room_bytes
        for node, room_bytes in rooms.items()
        if room_bytes > 0 and (resource != MEMORY or node in machine.ordinary_nodes)
    }


def _too_much(settings: Settings, machine: Machine) -> Iterator[Problem]:
    for resource, amount_bytes in sorted(node_wide_bytes(settings, machine).items()):
        have_bytes = sum(_rooms(machine, resource).values())
        if amount_bytes > have_bytes:
            yield Problem(
                f"kubeReserved + systemReserved + evictionHard, {resource}",
                f"{format_bytes(amount_bytes)} ({counted(amount_bytes, 'byte')})",
                f"at most what all nodes have, {format_bytes(have_bytes)} ({counted(have_bytes, 'byte')})",
            )


def _wrong_cpus(reserved: CpuSet, machine: Machine) -> Iterator[Problem]:
    missing = reserved - CpuSet(machine.cpu_by_id)
    if missing:
        have = CpuSet(machine.cpu_by_id)
        yield Problem("reservedSystemCPUs", f"{reserved} (no CPU {missing})", f"CPUs of this machine: {have}")
