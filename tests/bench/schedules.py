"""Plays many random schedules (see tests/simulate/test_schedules.py) and names those that break a promise.

python tests/bench/schedules.py [FIRST [COUNT]]
"""

import logging
import os
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor

from support.interleaving.schedule import play

COUNT = 20_000
CHUNK = 50
SHOWN = 10


def outcome(seed: int) -> tuple[Counter[str], str]:
    """What happened in the schedule of *seed*, and what did not hold."""
    logging.disable(logging.CRITICAL)
    try:
        return Counter(name.split()[0] for name in play(seed)), ""
    except AssertionError as error:
        return Counter(), f"schedule {seed}: {error}"


def main(first: int = 0, count: int = COUNT) -> int:
    """Play them in all processors; the exit status."""
    happened: Counter[str] = Counter()
    broken = []
    with ProcessPoolExecutor(os.cpu_count()) as processes:
        for events, problem in processes.map(outcome, range(first, first + count), chunksize=CHUNK):
            happened += events
            broken += [problem] if problem else []
    for problem in broken[:SHOWN]:
        print(problem)
    if len(broken) > SHOWN:
        print(*(problem.partition(":")[0] for problem in broken[SHOWN:]), sep=", ")
    print(f"{count} schedules, {len(broken)} of them broke a promise")
    print(", ".join(f"{name} {number}" for name, number in sorted(happened.items())))
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
