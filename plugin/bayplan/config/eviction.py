"""The eviction thresholds that settings come to on a machine, and what is wrong with them there.

Pure. What each text of a threshold means is in `bayplan.kubelet.eviction_manager`.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Final, TypeVar

from bayplan.config.kubelet_rules import hard_thresholds, remarks_on_machine
from bayplan.config.settings import Settings
from bayplan.errors import Problem
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
from bayplan.model.machine import MEMORY, Machine
from bayplan.quantity import format_bytes

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
    """Those, and kubelet's for the disk of containers, which is that of the images where they have one."""
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
                yield from _too_much(key, signal, value, machine.node_by_id[node].memory_bytes)


def remarks_here(settings: Settings, machine: Machine) -> tuple[str, ...]:
    """All that an operator should know about *settings* on *machine* that is not wrong."""
    thresholds = remarks_on_thresholds(thresholds_on(settings, machine), machine)
    return (*remarks_on_machine(settings, machine), *thresholds)


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


def _too_much(key: str, signal: str, value: ThresholdValue, memory_bytes: int) -> Iterator[Problem]:
    amount_bytes = value.of(memory_bytes)
    if amount_bytes >= memory_bytes:
        found, have = format_bytes(amount_bytes), format_bytes(memory_bytes)
        yield Problem(f"{key}.{signal}", found, f"less than what the node has, {have}")
