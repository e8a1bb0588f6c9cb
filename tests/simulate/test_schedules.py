"""Creations, resizes, stops, hooks, reloads, hot-plug, measurements, deadlines, a disk that stalls or is
full, and kills, in any order and with any steps in between: the promises hold. `make schedules` plays more.
"""

import pytest

from support.interleaving.schedule import play

BATCH = 20


@pytest.mark.parametrize("first", range(0, 200, BATCH))
def test_random_schedules(first: int) -> None:
    for seed in range(first, first + BATCH):
        assert play(seed)
