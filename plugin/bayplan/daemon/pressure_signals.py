"""Observes kubelet's eviction signals and those of NUMA nodes, and says which thresholds are met since when.

The formulas are in `bayplan.host.eviction_signals`, the rules in `bayplan.kubelet.eviction_manager`. Nothing
is done about it here: nodes are relieved by `memory_pressure`, pods are ended by `eviction`.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from bayplan.config.settings import MemoryPressure
from bayplan.control.state import NodeState
from bayplan.control.threads import InThread
from bayplan.daemon.memory_pressure import PressureWatch
from bayplan.errors import BayplanError
from bayplan.host.eviction_signals import FileSystems, read_signals
from bayplan.host.hierarchy import Hierarchy
from bayplan.kubelet.eviction_manager import (
    NodeCondition,
    Observation,
    Pressure,
    Threshold,
    after_look,
    node_of,
    node_signal,
    shortage,
    wanted,
)
from bayplan.model.kubelet_version import KubeletRules
from bayplan.placement.page_placement import NodeMemory

logger = logging.getLogger(__name__)

NEAR: Final = 1.5
"""A threshold is near where less than so many times what it asks for is available."""


class PressureSignals:
    """See the module. *thresholds* and *transition_ns* are asked at each look. ``pressure`` is what the looks
    have found so far."""

    def __init__(
        self,
        state: NodeState,
        hierarchy: Hierarchy,
        disks: FileSystems,
        in_thread: InThread,
        watch: PressureWatch,
        *,
        thresholds: Callable[[], tuple[Threshold, ...]],
        transition_ns: Callable[[], int],
        clock_ns: Callable[[], int] = time.monotonic_ns,
        read: Callable[[Hierarchy, FileSystems, KubeletRules], dict[str, Observation]] = read_signals,
    ) -> None:
        self.pressure = Pressure()
        self.clock_ns = clock_ns
        self._observations: Mapping[str, Observation] = {}
        self._state = state
        self._hierarchy = hierarchy
        self._disks = disks
        self._in_thread = in_thread
        self._watch = watch
        self._thresholds = thresholds
        self._transition_ns = transition_ns
        self._read = read
        self._unobserved: frozenset[str] = frozenset()
        self._problem = ""

    async def look(self) -> None:
        """Look once, and have relief keep available what thresholds of nodes ask for that are met."""
        if self._watch.mode is MemoryPressure.OFF:
            self.pressure, self._observations, self._problem = Pressure(), {}, ""
            return
        thresholds = self._thresholds()
        found, nodes, self._problem = await self._in_thread(self._read_all)
        self._observations = {**found, **self._of_nodes(nodes)}
        if found:
            self._name_unobserved(thresholds)
        before = self.pressure
        self.pressure = after_look(before, thresholds, self._observations, self.clock_ns())
        self._report(before)
        self._watch.keep_available(self._kept_bytes())

    def is_any_near(self) -> bool:
        """Whether a threshold is met, or half as much again as it asks for is not available."""
        return bool(self.pressure.since_ns) or any(
            seen.available < NEAR * one.value.of(seen.capacity)
            for one in self._thresholds()
            if (seen := self._observations.get(one.signal)) is not None
        )

    def seen(self, threshold: Threshold) -> Observation:
        """What was observed of a threshold that is met."""
        return self._observations[threshold.signal]

    def conditions(self) -> tuple[NodeCondition, ...]:
        """The conditions that kubelet would report of the node."""
        return self.pressure.conditions(self.clock_ns(), self._transition_ns())

    def problems(self) -> tuple[str, ...]:
        """What lasts and an operator should know, each a sentence."""
        problems = [f"eviction signals cannot be read: {self._problem}"] if self._problem else []
        met = (f"eviction threshold met: {self._shortage(one)}" for one in self.pressure.since_ns)
        return (*problems, *met)

    def _read_all(self) -> tuple[dict[str, Observation], dict[int, NodeMemory], str]:
        """The signals, what the nodes have, and the problem with the signals. Blocks. Nothing is done by
        numbers of an earlier look; what is wrong with the nodes the watch says."""
        found, problem = {}, ""
        try:
            found = self._read(self._hierarchy, self._disks, self._state.policy.kubelet_rules)
        except BayplanError as error:
            problem = str(error)
        try:
            return found, self._watch.read_nodes(), problem
        except BayplanError:
            return found, {}, problem

    def _of_nodes(self, nodes: Mapping[int, NodeMemory]) -> dict[str, Observation]:
        """What each node can give: free, or to be reclaimed at once. Unlike kubelet's formula for the machine
        this counts what the kernel itself holds."""
        machine = self._state.machine
        return {
            node_signal(node): Observation(one.room_bytes, machine.node_by_id[node].memory_bytes)
            for node, one in nodes.items()
            if node in machine.node_by_id
        }

    def _kept_bytes(self) -> dict[int, int]:
        kept: dict[int, int] = {}
        for one in self.pressure.since_ns:
            node = node_of(one.signal)
            if node is not None:
                kept[node] = max(kept.get(node, 0), wanted(one, self.seen(one)))
        return kept

    def _shortage(self, threshold: Threshold) -> str:
        return shortage(threshold, self._observations.get(threshold.signal))

    def _report(self, before: Pressure) -> None:
        for one in self.pressure.since_ns.keys() - before.since_ns.keys():
            logger.warning("eviction threshold met", extra={"threshold": self._shortage(one)})
        for one in before.since_ns.keys() - self.pressure.since_ns.keys():
            logger.info("eviction threshold no longer met", extra={"threshold": self._shortage(one)})

    def _name_unobserved(self, thresholds: Iterable[Threshold]) -> None:
        """Say once which thresholds can never be met, because nothing is known of their signals. Nodes are
        looked at by somebody else, perhaps later."""
        missing = {one.signal for one in thresholds} - self._observations.keys()
        unobserved = frozenset(signal for signal in missing if node_of(signal) is None)
        if unobserved - self._unobserved:
            extra = {"signals": sorted(unobserved)}
            logger.warning("eviction signals that cannot be observed here", extra=extra)
        self._unobserved = unobserved
