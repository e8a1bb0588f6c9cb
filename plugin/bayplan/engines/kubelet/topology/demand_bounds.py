"""Bounds on demands over the nodes of a base: what some of them hold, could hold, or can spare.

Works on bare masks for speed. Every bound is exact for one demand without shared amounts.
"""

from collections.abc import Sequence
from itertools import accumulate
from math import prod

from bayplan.engines.kubelet.topology.hints import Demand, bits
from bayplan.sets import NodeSet


class DemandBounds:
    """One demand over the nodes of ``base``, once what lies outside of it (``rest``) has been counted.

    ``weights`` maps the base's nodes to their amounts, ``shared`` lists (nodes, amount) that count once, and
    ``slack`` is what may be missing from the base.
    """

    __slots__ = ("_best", "needed", "shared", "slack", "weights")

    def __init__(self, demand: Demand, base: int, rest: int = 0) -> None:
        self.needed = demand.needed - sum(demand.amounts.get(node, 0) for node in bits(rest))
        self.weights = {node: demand.amounts.get(node, 0) for node in bits(base)}
        self.shared: list[tuple[int, int]] = []
        for where, amount in demand.shared:
            inside = where.mask & base
            if where.mask & rest:
                self.needed -= amount
            elif inside.bit_count() == 1:
                self.weights[inside.bit_length() - 1] += amount
            elif inside:
                self.shared.append((inside, amount))
        held = sum(self.weights.values()) + sum(amount for _, amount in self.shared)
        self.slack = held - self.needed
        self._best: dict[int, list[int]] = {}

    def reaches(self, chosen: int, below: int, picks: int) -> bool:
        """Whether *chosen* and the best *picks* nodes of *below* could hold enough: a bound, and exact
        without shared amounts or without picks."""
        total = 0
        for node in bits(chosen):
            total += self.weights[node]
        if self.shared:
            within = chosen | below if picks else chosen
            total += sum(amount for where, amount in self.shared if where & within)
        if total >= self.needed or not picks:
            return total >= self.needed
        best = self._best.get(below)
        if best is None:
            ranked = sorted((self.weights[node] for node in bits(below)), reverse=True)
            best = self._best[below] = list(accumulate(ranked, initial=0))
        return total + best[min(picks, len(best) - 1)] >= self.needed

    def fewest(self, must: int) -> int:
        """How many nodes are needed at least, those of *must* included; exact without shared amounts, if the
        base holds enough at all."""
        missing = self.needed - sum(self.weights[node] for node in bits(must))
        missing -= sum(amount for _, amount in self.shared)
        count = must.bit_count()
        for weight in sorted(
            (each for node, each in self.weights.items() if not must >> node & 1), reverse=True
        ):
            if missing <= 0:
                break
            missing -= weight
            count += 1
        return count

    def can_spare(self, out: int) -> bool:
        """Whether the demand is still met without the nodes *out*."""
        left = self.slack
        for node in bits(out):
            left -= self.weights[node]
        if self.shared:
            left -= sum(amount for where, amount in self.shared if not where & ~out)
        return left >= 0

    def costs_nothing(self, node: int) -> bool:
        """Whether leaving that node out loses nothing, whatever else is left out."""
        return not self.weights[node] and not any(where >> node & 1 for where, _ in self.shared)

    def most(self, nodes: Sequence[int]) -> int:
        """How many of *nodes* can be spared at once, at most."""
        left = self.slack
        for count, weight in enumerate(sorted(self.weights[node] for node in nodes)):
            left -= weight
            if left < 0:
                return count
        return len(nodes)


def together(demands: Sequence[Demand]) -> Demand:
    """One demand that follows from all of *demands*: their weighted sum, each weighed by 1/needed.

    Where every demand by itself could be met by some nodes, but not by the same ones, their sum often shows
    it. The weights are brought to whole numbers, so that nothing is rounded.
    """
    real = [demand for demand in demands if demand.needed > 0]
    factors = [prod(other.needed for other in real if other is not demand) for demand in real]
    amounts: dict[int, int] = {}
    shared: list[tuple[NodeSet, int]] = []
    for demand, factor in zip(real, factors, strict=True):
        for node, amount in demand.amounts.items():
            amounts[node] = amounts.get(node, 0) + factor * amount
        shared.extend((where, factor * amount) for where, amount in demand.shared)
    needed = sum(demand.needed * factor for demand, factor in zip(real, factors, strict=True))
    return Demand(amounts, needed, tuple(shared))
