"""A million operations of the `exact` engine against brute force: hidden overcommit, wrong refusals.

Run by hand: ``.venv/bin/python tests/bench/oracle.py [OPERATIONS] [FIRST_SEED] [SECONDS]``. Every machine is
random (2 to 10 nodes), and every disagreement is printed with the seed that shows it again. Two of three
trials leave the engine as good as no sets to enumerate, one of them always under `restricted`. In one of five
every container asks for huge pages.
"""

import random
import sys
import time
from collections import Counter

from bayplan.engines.exact.engine import ExactEngine
from bayplan.model.policy import TopologyPolicy, TopologyScope
from support.exact_draws import USUAL_PAGES
from support.exact_errors import KINDS, BrokenPromiseError
from support.exact_oracle import Trial

OPERATIONS = 1_000_000
STEPS = 100
WITNESS_EVERY = 5
PROGRESS_S = 60


def main(operations: int = OPERATIONS, seed: int = 0, seconds: int = 24 * 3600) -> int:
    """Until so many operations are done, or so many seconds are over."""
    counts: Counter[str] = Counter()
    broken: Counter[str] = Counter()
    started = told = time.monotonic()
    while counts["operations"] < operations and time.monotonic() - started < seconds:
        scope = TopologyScope.POD if seed % 2 else TopologyScope.CONTAINER
        trial = Trial(
            random.Random(seed),
            witness_every=WITNESS_EVERY,
            engine=ExactEngine(scope) if seed % 3 == 0 else ExactEngine(scope, max_combinations=1),
            topology=TopologyPolicy.RESTRICTED if seed % 3 == 1 else None,
            pages_one_in=1 if seed % 5 == 0 else USUAL_PAGES,
            every_criterion=seed % 3 == 0,
        )
        try:
            for _ in range(STEPS):
                trial.step()
        except BrokenPromiseError as error:
            broken[error.kind] += 1
            print(f"seed {seed}: {error.kind}: {error}", flush=True)
        counts += trial.counts
        seed += 1
        if time.monotonic() - told > PROGRESS_S:
            told = time.monotonic()
            print(f"{counts['operations']} operations, {sum(broken.values())} disagreements", flush=True)
    for name, count in sorted(counts.items()):
        print(f"{name:20} {count:>9}")
    for kind in KINDS:
        print(f"{kind:20} {broken[kind]:>9}")
    print(f"{'seconds':20} {time.monotonic() - started:>9.0f}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main(*(int(argument) for argument in sys.argv[1:])))
