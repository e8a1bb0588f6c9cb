"""The strategies `pack` and `spread` differ in the choice alone: the same fits, as narrow and as near."""

import random

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from bayplan.engines.exact.attempts import SEARCH_ENDED
from bayplan.engines.exact.engine import ExactEngine
from bayplan.engines.exact.question import OPENED_CACHES
from bayplan.model.basis import Basis
from bayplan.model.decision import ROOM_TAKEN, SHARE_TAKEN, Decision, Placement, Request
from bayplan.model.policy import PlacementStrategy
from support.exact_oracle import Trial

STEPS = 40
OF_ONE_STRATEGY = {ROOM_TAKEN, SHARE_TAKEN, OPENED_CACHES, "L3 caches", "scarce resources"}


class BothStrategies(ExactEngine):
    """Decides by both on the same ledger, compares, and takes the one or the other. ``differing`` counts the
    decisions that chose other nodes."""

    def __init__(self, draw: random.Random) -> None:
        super().__init__()
        self.draw = draw
        self.engines = {strategy: ExactEngine() for strategy in PlacementStrategy}
        self.differing = 0

    def decide(
        self,
        basis: Basis,
        request: Request,
        current: Placement | None = None,
    ) -> Decision:
        machine, policy, ledger = basis.machine, basis.policy, basis.ledger
        decided = {
            strategy: engine.decide(
                Basis(machine, replace(policy, strategy=strategy), ledger), request, current
            )
            for strategy, engine in self.engines.items()
        }
        pack, spread = decided[PlacementStrategy.PACK], decided[PlacementStrategy.SPREAD]
        if SEARCH_ENDED not in codes(pack) + codes(spread):
            assert seen(pack) == seen(spread)
        self.differing += pack.placement.mems != spread.placement.mems
        return self.draw.choice((pack, spread))


def codes(decision: Decision) -> list[str]:
    return [reason.code for reason in decision.reasons]


def seen(decision: Decision) -> object:
    """All of a decision but which of equally good nodes it chose."""
    placement, criteria = decision.placement, {}
    if decision.candidates:
        won = decision.candidates[0].criteria
        criteria = {name: value for name, value in won.items() if name not in OF_ONE_STRATEGY}
    claim = placement.claim
    return (
        decision.outcome,
        codes(decision),
        None if placement.mems is None else len(placement.mems),
        None if claim is None else (len(claim.nodes), claim.amounts_bytes, claim.short_bytes),
        len(placement.exclusive_cpus),
        len(decision.moves),
        criteria,
    )


@given(st.integers(0, 2**32), st.integers(2, 8))
def test_what_is_placed_under_one_is_placed_under_the_other_and_kept(seed: int, nodes: int) -> None:
    draw = random.Random(seed)
    trial = Trial(draw, nodes, engine=BothStrategies(random.Random(seed)), whole_caches=False)
    for _ in range(STEPS):
        trial.step()


def test_they_do_differ() -> None:
    engine = BothStrategies(random.Random(0))
    trial = Trial(random.Random(0), 6, engine=engine, whole_caches=False)
    for _ in range(10 * STEPS):
        trial.step()
    assert engine.differing
