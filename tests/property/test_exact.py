"""The `exact` engine against brute force: promised twice never, refused what fits never."""

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from bayplan.engines.exact.engine import ExactEngine
from bayplan.model.basis import Basis
from bayplan.model.decision import Decision, Outcome, Placement, Request
from bayplan.model.ledger import Ledger
from bayplan.model.policy import TopologyPolicy, TopologyScope
from support.exact_draws import USUAL_PAGES
from support.exact_errors import OVERCOMMIT, WRONG_CPUS, WRONG_REFUSAL, BrokenPromiseError
from support.exact_oracle import Trial

STEPS = 40


@given(
    st.integers(0, 2**32),
    st.integers(2, 8),
    st.sampled_from([1, USUAL_PAGES]),
    st.sampled_from(TopologyScope),
)
def test_brute_force_agrees_after_every_operation(
    seed: int, nodes: int, pages_one_in: int, scope: TopologyScope
) -> None:
    trial = Trial(random.Random(seed), nodes, engine=ExactEngine(scope), pages_one_in=pages_one_in)
    for _ in range(STEPS):
        trial.step()


@given(
    st.integers(0, 2**32),
    st.integers(2, 8),
    st.sampled_from([TopologyPolicy.RESTRICTED, TopologyPolicy.BEST_EFFORT]),
    st.sampled_from([1, USUAL_PAGES]),
)
def test_brute_force_agrees_where_almost_no_sets_are_enumerated(
    seed: int, nodes: int, topology: TopologyPolicy, pages_one_in: int
) -> None:
    engine = ExactEngine(max_combinations=1)
    trial = Trial(
        random.Random(seed),
        nodes,
        engine=engine,
        topology=topology,
        pages_one_in=pages_one_in,
        every_criterion=False,
    )
    for _ in range(STEPS):
        trial.step()
    assert trial.counts["given up"] == 0


def test_a_search_that_is_given_up_says_so_in_its_decision() -> None:
    given_up = 0
    for seed in range(30):
        engine = ExactEngine(max_combinations=1, max_steps=2)
        trial = Trial(
            random.Random(seed), engine=engine, topology=TopologyPolicy.RESTRICTED, every_criterion=False
        )
        for _ in range(STEPS):
            trial.step()
        given_up += trial.counts["given up"]
    assert given_up


Answer = Callable[[Decision, Placement | None], Decision]


class Wrong(ExactEngine):
    """Knows only what *known* leaves of the ledger, and says what *answer* makes of a decision."""

    def __init__(
        self,
        known: Callable[[Ledger], Ledger] = lambda ledger: ledger,
        answer: Answer = lambda decision, _: decision,
    ) -> None:
        super().__init__()
        self._known, self._answer = known, answer

    def decide(
        self,
        basis: Basis,
        request: Request,
        current: Placement | None = None,
    ) -> Decision:
        ledger = basis.ledger
        decision = super().decide(basis.with_ledger(self._known(ledger)), request, current)
        return self._answer(decision, current)


def careless(ledger: Ledger) -> Ledger:
    """Forgets every third container that is there, as one does who looks only at sets in use."""
    return Ledger.of(entry for number, entry in enumerate(ledger.entries.values()) if number % 3)


def timid(decision: Decision, _: Placement | None) -> Decision:
    """Refuses whatever it would place on sets that cross others."""
    return Decision(decision.request, Outcome.REFUSED) if decision.placement.overlapping else decision


def leaves_cpus_behind(decision: Decision, current: Placement | None) -> Decision:
    """Keeps the CPUs of a running container wherever its memory goes."""
    if current is None or len(current.exclusive_cpus) != len(decision.placement.exclusive_cpus):
        return decision
    placement = replace(decision.placement, exclusive_cpus=current.exclusive_cpus)
    return replace(decision, placement=placement)


@pytest.mark.parametrize(
    ("engine", "kind", "first"),
    [
        (Wrong(known=careless), OVERCOMMIT, 0),
        (Wrong(answer=timid), WRONG_REFUSAL, 0),
        # One life in a hundred shows it: it takes 20 seconds to come to that from 0.
        (Wrong(answer=leaves_cpus_behind), WRONG_CPUS, 115),
    ],
    ids=["careless", "timid", "leaves CPUs behind"],
)
def test_brute_force_notices_a_wrong_engine(engine: ExactEngine, kind: str, first: int) -> None:
    kinds = set()
    for seed in range(first, first + 200):
        trial = Trial(random.Random(seed), whole_pods=False)
        trial.engine = engine
        try:
            for _ in range(STEPS):
                trial.step()
        except BrokenPromiseError as error:
            kinds.add(error.kind)
        if kind in kinds:
            break
    assert kind in kinds
