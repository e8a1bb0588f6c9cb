"""The `exact` engine against brute force: promised twice never, refused what fits never."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from bayplan.testing.exact_oracle import Trial

STEPS = 40


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(2, 8))
def test_brute_force_agrees_after_every_operation(seed: int, nodes: int) -> None:
    trial = Trial(random.Random(seed), nodes)
    for _ in range(STEPS):
        trial.step()
