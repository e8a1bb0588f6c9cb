"""The `narrowest` engine: each Guaranteed container on the fewest and nearest nodes that have room.

Memory, huge pages and exclusive CPUs are placed together; what was booked on a node is never booked again.
Containers of the other classes are not confined to nodes; they run on the shared CPUs.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from bayplan.domain.claims import memory_need, undisputed
from bayplan.domain.cpus import take_cpus
from bayplan.domain.decision import Decision, Outcome, Placement, Reason, Request
from bayplan.domain.engine import allocatable_bytes, exclusive_candidates, free_bytes, reserved_cpus
from bayplan.domain.ledger import Ledger
from bayplan.domain.node_choice import Amounts, book, choose_nodes, covers, narrowest_width
from bayplan.domain.policy import Policy, TopologyPolicy
from bayplan.domain.topology import MEMORY, Machine
from bayplan.quantity import format_bytes
from bayplan.sets import CpuSet, NodeSet

CPU: Final = "cpu"
"""Name of the exclusive CPUs in a vector of needs, beside the memory resources."""

_NOTHING_ASKED: Final = Reason("nothing-asked", "asks for neither memory nor whole CPUs")
_STRICT: Final = frozenset({TopologyPolicy.RESTRICTED, TopologyPolicy.SINGLE_NUMA_NODE})


@dataclass(frozen=True, slots=True)
class NarrowestEngine:
    """See the module. Values of this class carry nothing; the class exists to satisfy `Engine`."""

    name: str = "narrowest"

    def decide(
        self,
        machine: Machine,
        policy: Policy,
        ledger: Ledger,
        request: Request,
        current: Placement | None = None,
    ) -> Decision:
        """See `Engine.decide`."""
        answer = undisputed(machine, policy, ledger, request, current)
        if answer is not None:
            return answer
        return _Choice(machine, policy, ledger, request).decide(current)


class _Choice:
    """One decision about one Guaranteed container, step by step."""

    def __init__(self, machine: Machine, policy: Policy, ledger: Ledger, request: Request) -> None:
        self.machine, self.policy, self.ledger, self.request = machine, policy, ledger, request
        self.strict = policy.topology in _STRICT
        wants_cpus = request.exclusive_cpus > 0
        self.cpus = exclusive_candidates(machine, policy, ledger) if wants_cpus else CpuSet()
        self.memory = memory_need(request)
        self.free = _with_cpus(machine, free_bytes(machine, policy, ledger), self.cpus)
        self.near = {node: self.free[node] for node in machine.cpu_nodes & machine.memory_nodes}

    def decide(self, current: Placement | None) -> Decision:
        aligned = self.policy.topology is not TopologyPolicy.NONE
        count = self.request.exclusive_cpus
        need = {**self.memory, CPU: count} if count and aligned else self.memory
        if not need:
            return Decision(self.request, Outcome.PLACED, Placement(), (_NOTHING_ASKED,))
        nodes = self._keep(current, need) or choose_nodes(self.machine, self.near, need, self._penalty)
        if self.strict:
            refusal = self._refusal(nodes, need)
            if refusal is not None:
                return Decision(self.request, Outcome.REFUSED, reasons=(refusal,))
        reasons: list[Reason] = []
        outcome = Outcome.PLACED
        if nodes is None:
            nodes, reasons = self._as_well_as_possible(need)
            outcome = Outcome.DEGRADED
        else:
            reasons.append(Reason("narrowest", f"node {nodes} is the nearest of the smallest sets with room"))
            reasons += self._overlap_reasons(nodes)
        cpus, shortage = self._take(current, nodes if aligned and nodes is not None else NodeSet())
        if shortage is not None:
            outcome = Outcome.DEGRADED
            reasons.append(shortage)
        booked = book(self.free, nodes if nodes is not None else self.machine.memory_nodes, self.memory)
        return Decision(self.request, outcome, Placement(nodes, cpus, booked), tuple(reasons))

    def _keep(self, current: Placement | None, need: Amounts) -> NodeSet | None:
        """The nodes that a changed container is on, if it still fits there."""
        if current is None or current.mems is None or not covers(self.free, current.mems, need):
            return None
        return current.mems

    def _refusal(self, nodes: NodeSet | None, need: Amounts) -> Reason | None:
        """Why the strict policy at hand does not allow *nodes*, None if it does."""
        single = self.policy.topology is TopologyPolicy.SINGLE_NUMA_NODE
        unreserved = self.machine.online_cpus - reserved_cpus(self.machine, self.policy)
        whole = _with_cpus(self.machine, allocatable_bytes(self.machine, self.policy), unreserved)
        widest = 1 if single else narrowest_width({node: whole[node] for node in self.near}, need)
        if widest is not None and nodes is not None and len(nodes) <= widest:
            return None
        where = "one node" if widest == 1 else "all nodes" if widest is None else f"{widest} nodes"
        return Reason(
            "no-room", f"asks for {self._amounts(need)} on {where} under {self.policy.topology.value}; "
            f"free are {self._free_text(need)}"
        )  # fmt: skip

    def _as_well_as_possible(self, need: Amounts) -> tuple[NodeSet | None, list[Reason]]:
        """A place for what fits nowhere as asked: CPUs elsewhere, on CPU-less nodes, or everywhere."""
        why = f"no set of nodes has {self._amounts(need)} free: {self._free_text(need)}"
        nodes = choose_nodes(self.machine, self.near, self.memory, self._penalty)
        if nodes is not None:
            return nodes, [Reason("cpus-elsewhere", f"{why}; memory alone fits on node {nodes}")]
        everywhere = {node: self.free[node] for node in self.machine.memory_nodes}
        nodes = choose_nodes(self.machine, everywhere, self.memory, self._penalty)
        if nodes is not None:
            return nodes, [Reason("cpu-less-nodes", f"{why}; with CPU-less nodes it fits on node {nodes}")]
        return None, [Reason("overcommitted", f"{why}; it may use every node, without a guarantee")]

    def _take(self, current: Placement | None, nodes: NodeSet) -> tuple[CpuSet, Reason | None]:
        """The exclusive CPUs, or the shared pool and the reason for it."""
        count = self.request.exclusive_cpus
        if count == 0:
            return CpuSet(), None
        if current is not None and len(current.exclusive_cpus) == count:
            return current.exclusive_cpus, None
        if count > len(self.cpus):
            text = f"{count} exclusive CPUs asked for, {len(self.cpus)} left; runs on the shared CPUs"
            return CpuSet(), Reason("no-exclusive-cpus", text)
        return take_cpus(self.machine, self.cpus, count, nodes), None

    def _penalty(self, nodes: NodeSet) -> int:
        """First the devices that are elsewhere, then the overlaps."""
        far = sum(hint.nodes.isdisjoint(nodes) for hint in self.request.hints)
        return far * (1 + len(self.ledger.entries)) + self._overlaps(nodes)

    def _overlaps(self, nodes: NodeSet) -> int:
        """How many containers are on a different set that shares nodes with this one.

        The kernel fills nodes by first touch and knows no limit per node, so two different sets that
        overlap can take each other's part.
        """
        return sum(
            count for mems, count in self.ledger.bound.items() if mems != nodes and not mems.isdisjoint(nodes)
        )

    def _overlap_reasons(self, nodes: NodeSet) -> list[Reason]:
        count = self._overlaps(nodes)
        if not count:
            return []
        return [Reason("overlap", f"{count} containers on other sets of nodes share a node with it")]

    def _amounts(self, need: Amounts) -> str:
        return " and ".join(_amount(resource, amount) for resource, amount in need.items())

    def _free_text(self, need: Amounts) -> str:
        return ", ".join(
            f"node {node} {' and '.join(_amount(resource, have.get(resource, 0)) for resource in need)}"
            for node, have in sorted(self.near.items())
        )


def _with_cpus(machine: Machine, amounts: Mapping[int, Amounts], cpus: CpuSet) -> dict[int, dict[str, int]]:
    """*amounts* with the number of each node's CPUs that are in *cpus* beside them."""
    return {
        node: {**resources, CPU: len(machine.node_by_id[node].cpus & cpus)}
        for node, resources in amounts.items()
    }


def _amount(resource: str, amount: int) -> str:
    if resource == CPU:
        return f"{amount} CPUs"
    return format_bytes(amount) if resource == MEMORY else f"{format_bytes(amount)} of {resource}"
