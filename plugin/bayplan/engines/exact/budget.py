"""How much work a search may take, counted in steps and not measured: a question always has the same answer.

A step is about a microsecond. What each part of a search costs was measured once; the constants beside the
code that is charged for (`_STEPS_OF_...`) come from there. Invariant: steps depend on the claims alone, never
on the order in which they came, although which node carries what does.
"""

from typing import Final

from bayplan.engines.exact.crossings import ClaimedSets
from bayplan.engines.exact.flow import Flow, Trial
from bayplan.engines.exact.resources import Parts, ResourceFlows, by_resource
from bayplan.model.machine import MEMORY

MAX_STEPS: Final = 40_000
"""Steps of one decision, so that with everything around it none takes more than 100 ms of CPU
(tests/bench/worst.py): for so long no timer of the event loop runs."""
SHARE_OF_MOVES: Final = 1 / 4
"""What of a decision's steps is kept for moves of others."""
_SHARE_OF_REFUSALS: Final = 7 / 8
_SHARE_OF_PROOFS: Final = 1 / 2
_SHARE_OF_A_WIDTH: Final = 1 / 6

_STEPS_OF_A_FLOW: Final = 20
_SETS_A_STEP_OF_A_FLOW: Final = 2
_SETS_A_STEP: Final = 10


class StepBudget:
    """The steps that are left for one question.

    Of what is left each time the proof that nothing fits at all may take seven eighths, other proofs (that
    nothing fits on so few nodes, or is better) half, and to look at the sets of a width one by one a sixth.
    ``ended``: a proof was given up.
    """

    __slots__ = ("_until", "ended", "most", "spent")

    def __init__(self, most: int = MAX_STEPS) -> None:
        self.most = most
        self.spent = 0
        self.ended = False
        self._until = most

    def begin_proof(self, *, at_all: bool = False) -> None:
        """Start to look for what fits on so many nodes or is better; *at_all*: for anything that fits."""
        left = max(0, self.most - self.spent)
        self._until = self.spent + int(left * (_SHARE_OF_REFUSALS if at_all else _SHARE_OF_PROOFS))

    @property
    def for_one_width(self) -> int:
        """What it may take to look at the sets of a width one by one."""
        return int(max(0, self.most - self.spent) * _SHARE_OF_A_WIDTH)

    @property
    def exhausted(self) -> bool:
        """Whether nothing is left."""
        return self.spent >= self.most

    def rest(self) -> "StepBudget":
        """What is left for another question of the same decision."""
        return StepBudget(max(0, self.most - self.spent))

    def take(self, steps: int) -> bool:
        """Account for *steps*; False once the proof has to be given up."""
        self.spent += steps
        if self.spent > self._until:
            self.ended = True
            return False
        return True


class CountedFlows:
    """The questions that one decision asks of *flows* as they are now; ``steps`` is what the answers cost.

    The one who asks charges the difference of ``steps`` to a `StepBudget`.
    """

    __slots__ = ("_asked", "_crossing_cost", "_trials", "claimed", "flows", "memory", "steps")

    def __init__(self, flows: ResourceFlows) -> None:
        self.flows, self.claimed, self.steps = flows, ClaimedSets(flows.claimed_sets()), 0
        self.memory = flows.flow(MEMORY)
        self._asked: dict[str, tuple[Flow, int]] = {}
        self._crossing_cost = 1 + len(self.claimed.sets) // _SETS_A_STEP
        self._trials: dict[str, Trial] = {}

    def fits(self, parts: Parts) -> bool:
        """Whether all *parts* can be claimed beside everything that is claimed."""
        if len(parts) > 1:
            return self._fit_together(parts)
        ((nodes, amounts),) = parts
        for resource, amount_bytes in amounts.items():
            flow, cost = self._asked.get(resource) or self._flow_and_cost(resource)
            self.steps += cost
            if flow.room(nodes, amount_bytes) < amount_bytes:
                return False
        return True

    def _fit_together(self, parts: Parts) -> bool:
        for resource, claims in by_resource(parts).items():
            flow, cost = self._asked.get(resource) or self._flow_and_cost(resource)
            self.steps += cost * len(claims)
            if not flow.fits(claims):
                return False
        return True

    def crossed(self, nodes: int) -> int:
        """How many claimed sets cross *nodes*."""
        if not nodes & (nodes - 1):
            return 0  # a single node lies within every set that it shares a node with
        self.steps += self._crossing_cost
        return self.claimed.crossed(nodes)

    def trial(self, resource: str) -> Trial:
        """What nodes have room for that are added one by one, from loads that are rebuilt in a fixed order,
        because what a trial costs depends on the loads."""
        found = self._trials.get(resource)
        if found is None:
            flow = self.flows.flow(resource)
            found = self._trials[resource] = flow.rebuilt()
            self.steps += _STEPS_OF_A_FLOW * len(flow.claimed)
        return found.copy()

    def _flow_and_cost(self, resource: str) -> tuple[Flow, int]:
        """The flow of *resource*, and what each answer about it costs. Whether one really takes a flow
        depends on which node carries what, so that all count alike."""
        flow = self.flows.flow(resource)
        cost = 1 + len(flow.claimed) // _SETS_A_STEP
        if flow.crossings or flow.unmet:
            cost += _STEPS_OF_A_FLOW + len(flow.claimed) // _SETS_A_STEP_OF_A_FLOW
        self._asked[resource] = flow, cost
        return flow, cost
