"""Whose a CPU is and where, counted one by one: the part of the oracle that knows nothing of memory.

Every exclusive CPU has one owner, is not reserved, and lies on its container's nodes unless the decision says
otherwise. A CPU of a node without memory counts for the nearest node that has some.
"""

import math
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Final

from bayplan.model.decision import Decision, Outcome, Placement, QosSource
from bayplan.model.ledger import Ledger
from bayplan.model.machine import Cpu, Machine
from bayplan.sets import NodeSet
from support.exact_errors import WRONG_CPUS, BrokenPromiseError

NONE_LEFT: Final = "no-exclusive-cpus"
KEPT_SHARED: Final = "shared-cpus-minimum"
NO_CPUS: Final = frozenset({NONE_LEFT, KEPT_SHARED})
SAYING: Final = NO_CPUS | {"apart"}
"""Codes of the reasons which say that CPUs are not on the container's nodes, or that it has none."""


def _not_filled(sizes: Collection[int], count: int) -> int:
    """How many of caches of these *sizes* are not filled by *count* CPUs, of which each has some."""
    left = count
    for filled, size in enumerate(sorted(sizes)):
        if size > left:
            return len(sizes) - filled
        left -= size
    return 0


class Cpus:
    """The CPUs of *machine*, the lowest of which is reserved."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._reserved, self._all_nodes = min(machine.online_cpus), machine.memory_nodes.mask
        self._node_of = {cpu.id: self._nearest(cpu) for cpu in machine.cpus}
        self._count = Counter(node for cpu, node in self._node_of.items() if cpu != self._reserved)

    def _nearest(self, cpu: Cpu) -> int:
        nodes, own = self._machine.memory_nodes, cpu.node_id or 0
        if own in nodes:
            return own
        return min(nodes, key=lambda node: (self._machine.distance(own, node), node))

    def away(self, placement: Placement) -> list[int]:
        """The CPUs of its own that are not near the nodes that it claims on, if these are not all ordinary
        ones."""
        nodes = NodeSet() if placement.claim is None else placement.claim.nodes
        if self._machine.ordinary_nodes <= nodes:
            return []
        return [cpu for cpu in placement.exclusive_cpus if self._node_of[cpu] not in nodes]

    def near(self, mask: int, ledger: Ledger) -> list[int]:
        """The CPUs near the nodes of *mask* that a container may have which is not in *ledger*."""
        taken = {self._reserved, *_taken(ledger)}
        return [cpu for cpu, node in self._node_of.items() if mask >> node & 1 and cpu not in taken]

    def fit(self, mask: int, count: int, ledger: Ledger) -> tuple[int, int, int, int]:
        """How many whole cores *count* CPUs near the nodes of *mask* break at least, of these choices how
        many cores they split, and of those at how many caches they are, and how many of these caches were
        all free and are not any more, without being filled; that comes before the number of caches. All 0
        where no core has threads."""
        if max(self._machine.core_sizes.values()) == 1 or not count:
            return 0, 0, 0, 0
        free = set(self.near(self._all_nodes, ledger))
        here = [self._machine.cpu_by_id[cpu] for cpu in self.near(mask, ledger)]
        # By the caches in use and the number of CPUs: broken and split cores.
        best: dict[tuple[frozenset[int | None], int], tuple[int, int]] = {(frozenset(), 0): (0, 0)}
        for core in sorted({cpu.core_id for cpu in here}):
            members = [cpu for cpu in self._machine.cpus if cpu.online and cpu.core_id == core]
            whole = all(cpu.id in free for cpu in members)
            cache = members[0].l3_cache_id
            for (caches, taken), (broken, split) in list(best.items()):
                for more in range(1, sum(cpu.core_id == core for cpu in here) + 1):
                    part = more < len(members)
                    state, cost = (caches | {cache}, taken + more), (broken + (part and whole), split + part)
                    best[state] = min(cost, best.get(state, cost))
        fitting = [(*cost, len(caches), caches) for (caches, taken), cost in best.items() if taken == count]
        least = min([one[:3] for one in fitting], default=(count, count, count))
        in_cache = {
            cache: {cpu.id for cpu in self._machine.cpus if cpu.online and cpu.l3_cache_id == cache}
            for cache in {cpu.l3_cache_id for cpu in here}
        }
        near = {cpu.id for cpu in here}
        idle = {cache for cache, cpus in in_cache.items() if cpus <= near & free}
        opened = min(
            [
                _not_filled([len(in_cache[one]) for one in caches & idle], count)
                for *cost, caches in fitting
                if tuple(cost) == least
            ],
            default=0,
        )
        return *least[:2], opened, least[2]

    def count_on(self, nodes: Collection[int]) -> int:
        """How many CPUs *nodes* can give on an empty machine."""
        return sum(self._count[node] for node in nodes)

    def left_shared(self, minimum: int | None, ledger: Ledger) -> int:
        """How many CPUs more than the shared pool of *ledger* must keep it has: *minimum*, or else what the
        containers of kubelet's request that run there."""
        milli = sum(
            entry.decision.request.cpu_milli
            for entry in ledger.entries.values()
            if entry.decision.request.qos_source is QosSource.CGROUP_PARENT
            and not entry.decision.placement.exclusive_cpus
        )
        least = math.ceil(milli / 1000) if minimum is None else minimum
        return len(self._node_of) - len(_taken(ledger)) - least

    def check_owners(self, ledger: Ledger, aligned: Collection[str]) -> None:
        """Every CPU has one owner and is not reserved, and those who were *aligned* (by their ids) still have
        theirs on their nodes, wherever these are by now.

        Raises:
            BrokenPromiseError: else.
        """
        owner: dict[int, str] = {}
        for container_id, entry in ledger.entries.items():
            placement, request = entry.decision.placement, entry.decision.request
            shares = request.pod_level and not request.exclusive_cpus
            whose = request.pod_id if shares else container_id
            for cpu in placement.exclusive_cpus:
                if cpu == self._reserved:
                    raise BrokenPromiseError(WRONG_CPUS, f"reserved CPU {cpu} is of {container_id}")
                if owner.setdefault(cpu, whose) != whose:
                    raise BrokenPromiseError(WRONG_CPUS, f"CPU {cpu} is of {owner[cpu]} and {container_id}")
            if container_id in aligned and self.away(placement):
                text = f"CPUs {self.away(placement)} of {container_id} were left behind"
                raise BrokenPromiseError(WRONG_CPUS, text)

    def check_shares(self, decision: Decision, near: Mapping[int, int], ledger: Ledger) -> None:
        """On each node with devices of the container (*near*: how many) it has that part of its CPUs in whole
        cores, as far as CPUs there were free; *ledger* is without the container.

        Raises:
            BrokenPromiseError: else.
        """
        own, size = decision.placement.exclusive_cpus, max(self._machine.core_sizes.values())
        for node, count in near.items():
            least = len(own) // size * count // sum(near.values()) * size
            there = [cpu for cpu in own if self._node_of[cpu] == node]
            if len(there) < min(least, len(self.near(1 << node, ledger))) and own:
                raise BrokenPromiseError(WRONG_CPUS, f"CPUs {own} for devices {dict(near)}")

    def check_told(self, decision: Decision) -> None:
        """All CPUs of the pod are on its nodes, or the decision says otherwise.

        Raises:
            BrokenPromiseError: else.
        """
        codes = {reason.code for reason in decision.reasons}
        if self.away(decision.placement) and not (decision.outcome is Outcome.DEGRADED and codes & SAYING):
            raise BrokenPromiseError(WRONG_CPUS, f"CPUs {self.away(decision.placement)}: {codes}")

    def check_decision(self, decision: Decision, current: Placement | None, *, left_shared: int) -> None:
        """As many CPUs as asked for, on the container's nodes, or the decision says otherwise; of those it
        had as many as can stay. More than it had only as far as *left_shared*, with its own, is not what the
        shared pool must keep, and for that reason only then.

        Raises:
            BrokenPromiseError: else.
        """
        placement, wanted = decision.placement, decision.request.exclusive_cpus
        codes = {reason.code for reason in decision.reasons}
        told = codes & SAYING if decision.outcome is Outcome.DEGRADED else frozenset()
        own, away = placement.exclusive_cpus, self.away(placement)
        had = 0 if current is None else len(current.exclusive_cpus)
        if len(own) > max(had, left_shared):
            raise BrokenPromiseError(WRONG_CPUS, f"CPUs {own} of {left_shared} above the minimum: {codes}")
        if KEPT_SHARED in told and wanted <= max(had, left_shared):
            raise BrokenPromiseError(WRONG_CPUS, f"{wanted} of {left_shared} above the minimum: {codes}")
        if len(own) != wanted and (own or not NO_CPUS & told):
            raise BrokenPromiseError(WRONG_CPUS, f"CPUs {own} for {wanted}: {codes}")
        if away and not told:
            raise BrokenPromiseError(WRONG_CPUS, f"CPUs {away} are not on {placement.claim}: {codes}")
        if current is None or placement.claim is None or not own or away:
            return
        nodes = placement.claim.nodes
        kept = current.exclusive_cpus
        stays = [cpu for cpu in kept if self._node_of[cpu] in nodes]
        if len(kept & own) < min(len(stays), len(own)):
            raise BrokenPromiseError(WRONG_CPUS, f"{own} instead of {kept} on {nodes}")


def _taken(ledger: Ledger) -> set[int]:
    """The CPUs that containers of *ledger*, and pods as a whole, have to themselves."""
    taken = set[int]()
    for one in (*ledger.entries.values(), *ledger.retained.values()):
        placement = one.decision.placement
        taken |= set(placement.exclusive_cpus)
        if placement.affinity is not None:
            taken |= set(placement.affinity.cpus)
    return taken
