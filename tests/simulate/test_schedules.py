"""Creations, resizes, stops, hooks, reloads, hot-plug, measurements, deadlines, a disk that stalls or is
full, and kills, in any order and with any steps in between: the promises hold. `make schedules` plays more.
"""

import pytest

from support.interleaving.schedule import MovingSchedule, play

BATCH = 20


@pytest.mark.parametrize("first", range(0, 120, BATCH))
def test_random_schedules(first: int) -> None:
    for seed in range(first, first + BATCH):
        assert play(seed)


@pytest.mark.parametrize("first", range(0, 60, BATCH))
def test_random_schedules_in_which_containers_go_to_other_nodes_for_others(first: int) -> None:
    for seed in range(first, first + BATCH):
        assert play(seed, kind=MovingSchedule)
