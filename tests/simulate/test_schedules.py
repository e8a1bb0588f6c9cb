"""Creations, resizes, stops, hooks, reloads, hot-plug, measurements, deadlines, a disk that stalls or is
full, and kills, in any order and with any steps in between: the promises hold. `make schedules` plays more.
"""

import pytest

from support.interleaving.schedule import MovingSchedule, play

BATCH = 20
LATE_FINDS = (1493, 2687, 8229, 9382)
"""Those that found something when thousands had not: a pod that is stopped while a container of it is
created, a creation that the runtime does not list yet, CPUs that come and go at once, a start after the
end."""


@pytest.mark.parametrize("first", range(0, 120, BATCH))
def test_random_schedules(first: int) -> None:
    for seed in range(first, first + BATCH):
        assert play(seed)


@pytest.mark.parametrize("seed", LATE_FINDS)
def test_a_schedule_that_found_something(seed: int) -> None:
    assert play(seed)


@pytest.mark.parametrize("first", range(0, 60, BATCH))
def test_random_schedules_in_which_containers_go_to_other_nodes_for_others(first: int) -> None:
    for seed in range(first, first + BATCH):
        assert play(seed, kind=MovingSchedule)
