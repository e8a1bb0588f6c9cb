"""Durations are counted in the bucket whose bound they do not exceed."""

import asyncio

import pytest

from bayplan.control.threads import DurationCounter, EngineThread
from bayplan.engines.exact.engine import ExactEngine
from bayplan.engines.interface import Engine
from bayplan.model.decision import Decision
from bayplan.views.snapshot import BOUNDS_MS, KUBELET_BOUNDS_MS
from support.controllers import MACHINE


@pytest.mark.parametrize(
    ("duration_ms", "bound_ms"),
    [(0, 0.05), (0.05, 0.05), (0.051, 0.1), (819.2, 819.2), (999, 1000.0), (2000.0, 2000.0), (2001, None)],
)
def test_each_duration_has_its_bucket(duration_ms: float, bound_ms: float | None) -> None:
    counter = DurationCounter()
    counter.observe(duration_ms / 1000)
    found = counter.durations()
    (place,) = (number for number, count in enumerate(found.counts) if count)
    assert (*BOUNDS_MS, None)[place] == bound_ms
    assert found.total_ms == pytest.approx(duration_ms)


def test_a_decision_that_fails_took_its_time_too() -> None:
    counter = DurationCounter()

    def failing(_: Engine) -> Decision:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        asyncio.run(EngineThread(None, counter).run(ExactEngine(), MACHINE, failing))
    assert sum(counter.durations().counts) == 1


def test_the_bounds_are_kubelets_and_reach_as_far_as_a_runtime_waits() -> None:
    assert (KUBELET_BOUNDS_MS[0], KUBELET_BOUNDS_MS[-1]) == pytest.approx((0.05, 819.2))
    assert BOUNDS_MS[-1] == 2000
    assert sorted(BOUNDS_MS) == list(BOUNDS_MS)
