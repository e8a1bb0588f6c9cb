"""What a set of nodes must have, and how much a growing set has of it: flows for memory and huge pages, sums
for CPUs.

What a set has room for is the value of a maximum flow, capped by what is asked for. Such values are
submodular: a node never adds more to a set than it added to a part of that set.
"""

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct, field

from bayplan.engines.exact.criteria import Question
from bayplan.engines.exact.lookup import AnyTrial


class Gains(Struct, frozen=True):
    """For each node a bound of what it ``adds`` to a set. Where that was worked out, it is what it adds, and
    ``seen`` has the nodes whose loads it depends on. ``steps`` is what it cost."""

    adds: Mapping[int, int]
    seen: Mapping[int, int] = field(default_factory=dict)
    steps: int = 0


class Demand(Struct, frozen=True):
    """So much of something that a set must have. ``most`` bounds what each node adds to any set; without a
    *trial* it is what each node adds. ``own`` is what each has for itself once the claims within it are
    kept."""

    target: int
    most: Mapping[int, int]
    own: Mapping[int, int]
    trial: AnyTrial | None = None


class Holding(Struct, frozen=True):
    """What a set of nodes has of a demand: ``held``, at most the target."""

    demand: Demand
    held: int
    trial: AnyTrial | None

    @classmethod
    def none(cls, demand: Demand) -> "Holding":
        """What no nodes have."""
        return cls(demand, 0, None if demand.trial is None else demand.trial.copy())

    @property
    def steps(self) -> int:
        """What the last node cost."""
        return 0 if self.trial is None else self.trial.steps

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
            return Holding(self.demand, self.held + min(lacking, self.demand.most.get(node, 0)), None)
        trial = self.trial.copy()
        return Holding(self.demand, self.held + trial.push(node, lacking), trial)

    def gains_of(self, nodes: Iterable[int], before: Gains) -> Gains:
        """What each of *nodes* adds, worked out anew for those to which the last node made a difference.
        *before* is what they added until then."""
        trial, lacking = self.trial, self.lacking
        if trial is None or lacking <= 0:
            return Gains(before.adds, before.seen)
        adds, seen, steps = {}, {}, 0
        for node in nodes:
            # No node adds more than before: once that much has gone through, nothing else need be tried.
            most, depends_on = min(lacking, before.adds.get(node, 0)), before.seen.get(node)
            if depends_on is None or depends_on & trial.touched:
                tried = trial.copy()
                most, depends_on = tried.push(node, most), tried.seen
                steps += tried.steps
            adds[node], seen[node] = most, depends_on
        return Gains(adds, seen, steps)

    def useful(self, nodes: Sequence[int], missing: int, gains: Gains) -> Sequence[int]:
        """Those of *nodes* that a set of *missing* of them may contain that reaches the target, if each adds
        what it adds at best. None of them if no set does."""
        lacking = self.lacking
        if lacking <= 0:
            return nodes
        adds = [gains.adds.get(node, 0) for node in nodes]
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
        Demand(
            amount_bytes,
            question.rooms[resource],
            question.books.flow(resource).slack,
            question.lookup.trial(resource),
        )
        for resource, amount_bytes in question.amounts.items()
    ]
    if question.cpus:
        demands.append(Demand(question.cpus, question.free_cpus, question.free_cpus))
    return demands
