"""What a set of nodes must have, and how much a growing set has of it: flows for memory and huge pages, sums
for CPUs.

What a set has room for is the value of a maximum flow, capped by what is asked for. Such values are
submodular: a node never adds more to a set than it added to a part of that set.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from bayplan.domain.exact.criteria import Question
from bayplan.domain.exact.flow import Flow, Trial

Gains = Mapping[int, int]
"""For each node a bound of what it adds."""


@dataclass(frozen=True, slots=True)
class Demand:
    """So much of something that a set must have. ``gains`` bounds what each node adds to any set; without a
    *flow* it is what each node adds."""

    target: int
    gains: Gains
    flow: Flow | None = None

    def own(self) -> Gains:
        """What each node has for itself once the claims within it are kept."""
        return self.gains if self.flow is None else self.flow.slack


@dataclass(frozen=True, slots=True)
class Holding:
    """What a set of nodes has of a demand: ``held``, at most the target."""

    demand: Demand
    held: int
    trial: Trial | None

    @classmethod
    def none(cls, demand: Demand) -> "Holding":
        """What no nodes have."""
        return cls(demand, 0, None if demand.flow is None else demand.flow.trial())

    @property
    def lacking(self) -> int:
        """What is missing to the target."""
        return self.demand.target - self.held

    def with_node(self, node: int) -> "Holding":
        """What the set has with *node*."""
        lacking = self.lacking
        if lacking <= 0:
            return self
        if self.trial is None:
            return Holding(self.demand, self.held + min(lacking, self.demand.gains.get(node, 0)), None)
        trial = self.trial.copy()
        return Holding(self.demand, self.held + trial.push(node, lacking), trial)

    def gains_of(self, nodes: Iterable[int], changed: int, known: Gains) -> Gains:
        """What each of *nodes* adds: worked out for those among *changed*, and as *known* for the others."""
        if self.trial is None:
            return known
        return {
            node: self.with_node(node).held - self.held if node & changed else known.get(node, 0)
            for node in nodes
        }

    def useful(self, nodes: Sequence[int], missing: int, gains: Gains) -> Sequence[int]:
        """Those of *nodes* that a set of *missing* of them may contain that reaches the target, if each adds
        what it adds at best. None of them if no set does."""
        lacking = self.lacking
        if lacking <= 0:
            return nodes
        adds = [gains.get(node, 0) for node in nodes]
        most = sorted(adds, reverse=True)
        least = lacking - sum(most[: missing - 1])
        if most[missing - 1] < least:
            return ()
        return (
            nodes
            if adds[-1] >= least and min(adds) >= least
            else [node for node, add in zip(nodes, adds, strict=True) if add >= least]
        )


def demands_of(question: Question) -> list[Demand]:
    """Everything that *question* asks of a set, apart from devices."""
    demands = [
        Demand(amount_bytes, question.rooms[resource], question.books.flow(resource))
        for resource, amount_bytes in question.amounts.items()
    ]
    if question.cpus:
        demands.append(Demand(question.cpus, question.free_cpus))
    return demands
