"""Branch and bound against all sets of a width: what it finds is the best, what it misses is not there."""

import random
from dataclasses import dataclass
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from bayplan.engines.exact.question import CountedFlows, Question, StepBudget
from bayplan.engines.exact.resources import ResourceFlows
from bayplan.engines.exact.search import Branching
from bayplan.engines.exact.topology import NodeTopology
from bayplan.model.basis import Basis
from bayplan.model.decision import Claim
from bayplan.model.ledger import Ledger
from bayplan.model.machine import MEMORY, Cpu, Machine, Node
from bayplan.model.policy import PlacementPolicy
from bayplan.quantity import MIB
from bayplan.sets import CpuSet, NodeSet
from support.subsets import Claims, rooms_by_subset, slack_by_subset

PAGES = "hugepages-2Mi"
FAR = 1 << 62
"""More steps than anything takes, and farther than any set."""


@dataclass
class Puzzle:
    """A machine with promises that cross each other, a question, and how many nodes to take of which."""

    question: Question
    allowed: int
    core: int
    width: int
    ids: tuple[int, ...]
    claims: dict[str, Claims]

    def fitting(self) -> list[tuple[int, int]]:
        """Crossed sets and distance of every set that fits, best first: by brute force."""
        flows, rooms = self.question.counted.flows, {}
        for resource in self.question.amounts:
            capacity = {node.bit_length() - 1: held for node, held in flows.capacity[resource].items()}
            rooms[resource] = rooms_by_subset(
                slack_by_subset(capacity, self.claims[resource], self.ids), self.ids
            )
        return sorted(
            self.rank(mask)
            for members in combinations(NodeSet.of_mask(self.allowed), self.width)
            if not self.core & ~(mask := NodeSet(members).mask)
            and all(rooms[name][mask] >= amount for name, amount in self.question.amounts.items())
            and self.question.cpus_on(mask) >= self.question.cpus
            and all(hint & mask for hint in self.question.required_hints)
        )

    def rank(self, mask: int) -> tuple[int, int]:
        nodes = NodeSet.of_mask(mask)
        return self.question.counted.crossed(mask), self.question.topology.machine.total_distance(nodes)

    def branching(self, steps: int = FAR) -> Branching:
        self.question.budget.most = steps
        return Branching(self.question, self.allowed, self.core, self.width)


def puzzle(draw: random.Random) -> Puzzle:
    ids = tuple(sorted(draw.sample(range(24), draw.randint(3, 9))))
    # Few values, so that nodes that could change places are common.
    spread = draw.choice([(20,), (12, 20), (11, 17, 20, 31)])
    nodes = tuple(
        Node(
            node,
            CpuSet([node]),
            draw.choice([4, 6]) * 4 * MIB,
            hugepages_bytes={2 * MIB: draw.choice([0, 4, 8]) * MIB},
            distances={other: 10 if other == node else draw.choice(spread) for other in ids},
        )
        for node in ids
    )
    machine = Machine(nodes, tuple(Cpu(node, node, node, node, node) for node in ids))
    flows = ResourceFlows(Basis(machine, PlacementPolicy(), Ledger()))
    claims: dict[str, Claims] = {MEMORY: [], PAGES: []}
    for _ in range(draw.randint(0, 8)):
        wanted = NodeSet(draw.sample(ids, draw.choice([1, 2, 2, 3, len(ids)])))
        resource, size = draw.choice([(MEMORY, MIB), (MEMORY, MIB), (PAGES, 2 * MIB)])
        amount = flows.room(wanted.mask, {resource: draw.randint(1, 16) * size}).get(resource, 0)
        if amount:
            flows.change(Claim(wanted, {resource: amount}))
            claims[resource].append((wanted.mask, amount))
    allowed = NodeSet(draw.sample(ids, draw.randint(2, len(ids))))
    width = draw.randint(1, len(allowed))
    core = NodeSet(draw.sample(list(allowed), draw.randint(0, min(1, width))))
    amounts = {MEMORY: draw.randint(1, 14 * width) * MIB}
    if not draw.randrange(3):
        amounts[PAGES] = draw.randint(1, 2 * width) * 2 * MIB
    hints = tuple(NodeSet(draw.sample(ids, 2)).mask for _ in range(draw.choice([0, 0, 1, 2])))
    topology = NodeTopology(machine)
    question = Question(
        topology,
        amounts,
        {resource: flows.rooms_by_node(resource) for resource in amounts},
        draw.choice([0, 0, draw.randint(1, 2 * width)]),
        {1 << node: draw.randint(0, 3) for node in ids},
        hints,
        hints,
        CountedFlows(flows),
        StepBudget(),
    )
    return Puzzle(question, allowed.mask, core.mask, width, ids, claims)


@given(st.integers(0, 2**32))
def test_it_finds_the_best_set_or_proves_that_there_is_none(seed: int) -> None:
    one = puzzle(random.Random(seed))
    fitting = one.fitting()
    found = one.branching().any_set()
    assert bool(found) == bool(fitting)
    assert not found or one.rank(found) in fitting
    better = list(one.branching().better_sets((FAR, FAR)))
    assert [one.rank(nodes) for nodes in better[-1:]] == fitting[:1]
    if fitting:
        assert not list(one.branching().better_sets(fitting[0]))
    assert not one.question.budget.ended


def test_what_is_given_up_is_never_called_a_proof() -> None:
    ended = 0
    for seed in range(200):
        one = puzzle(random.Random(seed))
        found = one.branching(steps=4).any_set()
        if not found and one.fitting():
            assert one.question.budget.ended, seed
            ended += 1
    assert ended
