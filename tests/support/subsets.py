"""Hall's condition by brute force: what is left of every subset of the nodes, and so what still fits.

Counts all 2^n subsets, from claims and capacities alone. Exact by construction, and for few nodes only.
"""

from collections import Counter
from collections.abc import Mapping
from functools import lru_cache

Claims = list[tuple[int, int]]
"""Sets of nodes as bitmasks, with what is claimed on them."""


def slack_by_subset(capacity: Mapping[int, int], claims: Claims, nodes: tuple[int, ...]) -> dict[int, int]:
    """For every subset of *nodes*: its capacity less the claims that lie within it."""
    slack = dict(_capacity_by_subset(nodes, tuple(capacity.get(node, 0) for node in nodes)))
    by_set: Counter[int] = Counter()
    for claimant, amount in claims:
        by_set[claimant] += amount
    for claimant, amount in by_set.items():
        for mask in _sets_around(nodes, claimant):
            slack[mask] -= amount
    return slack


@lru_cache(maxsize=64)
def _capacity_by_subset(nodes: tuple[int, ...], capacity: tuple[int, ...]) -> dict[int, int]:
    sums = {0: 0}
    for node, amount in zip(nodes, capacity, strict=True):
        for mask, held in list(sums.items()):
            sums[mask | 1 << node] = held + amount
    return sums


@lru_cache(maxsize=4096)
def _sets_around(nodes: tuple[int, ...], claimant: int) -> list[int]:
    """Every subset of *nodes* that contains *claimant*; none if that has other nodes as well."""
    everything = sum(1 << node for node in nodes)
    if claimant & ~everything:
        return []
    sets = [claimant]
    for node in nodes:
        if not claimant >> node & 1:
            sets += [mask | 1 << node for mask in sets]
    return sets


def rooms_by_subset(slack: Mapping[int, int], nodes: tuple[int, ...]) -> dict[int, int]:
    """What can still be claimed on every subset of *nodes*: `room` of all of them at once."""
    least = dict(slack)
    for node in nodes:
        for mask, left in least.items():
            least[mask] = min(left, least[mask | 1 << node])
    unmet = min(slack.values())
    return {mask: left - unmet for mask, left in least.items()}


def room(slack: Mapping[int, int], nodes: int) -> int:
    """What can still be claimed on *nodes*: the least slack of all sets around them.

    Where more is claimed than there is (some slack is negative) a claim fits if what is unmet does not become
    more by it: by min-cut max-flow all that can be met is the sum of the claims plus the least slack of all.
    """
    return min(left for mask, left in slack.items() if not nodes & ~mask) - min(slack.values())


def fit_together(slack: Mapping[int, int], claims: Claims) -> bool:
    """Whether all *claims* can be made: what is unmet does not become more by them."""
    least = min(slack.values())
    return all(
        left - sum(amount for claimant, amount in claims if not claimant & ~mask) >= least
        for mask, left in slack.items()
    )
