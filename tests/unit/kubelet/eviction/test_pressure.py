"""What lasts from one look at the signals to the next: grace periods, minimum reclaim, conditions; nodes."""

from bayplan.kubelet.eviction_manager import (
    NodeCondition,
    Pressure,
    SignalObservation,
    Threshold,
    ThresholdValue,
    after_look,
    node_of,
    on_each_node,
    reclaimed_first,
    shortage,
)
from bayplan.quantity import GIB, MIB

S = 1_000_000_000
HARD = Threshold("memory.available", ThresholdValue(500 * MIB), min_reclaim=ThresholdValue(200 * MIB))
SOFT = Threshold("memory.available", ThresholdValue(GIB), 90 * S)
NODE = Threshold("node1.memory.available", ThresholdValue(500 * MIB))
PIDS = Threshold("pid.available", ThresholdValue(share=0.5))


def memory(available: int) -> dict[str, SignalObservation]:
    return {"memory.available": SignalObservation(available * MIB, 8 * GIB)}


def test_a_soft_threshold_is_due_after_its_grace_period_and_begins_anew_once_it_was_not_met() -> None:
    found = after_look(Pressure(), (SOFT,), memory(900), 0)
    assert (found.due, dict(found.since_ns)) == ((), {SOFT: 0})
    assert after_look(found, (SOFT,), memory(900), 89 * S).due == ()
    assert after_look(found, (SOFT,), memory(900), 90 * S).due == (SOFT,)
    calm = after_look(found, (SOFT,), memory(1100), 60 * S)
    assert after_look(calm, (SOFT,), memory(900), 90 * S).due == ()


def test_what_was_due_stays_so_until_its_minimum_was_reclaimed() -> None:
    found = after_look(Pressure(), (HARD,), memory(499), 0)
    assert found.due == (HARD,)
    assert after_look(found, (HARD,), memory(600), S).due == (HARD,)
    assert after_look(found, (HARD,), memory(700), S).due == ()
    # It is not begun for it.
    assert after_look(Pressure(), (HARD,), memory(600), 0).due == ()


def test_a_threshold_that_is_not_configured_any_more_is_forgotten() -> None:
    found = after_look(Pressure(), (HARD,), memory(400), 0)
    assert after_look(found, (), memory(400), S).due == ()


def test_a_signal_that_is_not_observed_meets_nothing() -> None:
    found = after_look(Pressure(), (HARD,), memory(400), 0)
    assert after_look(found, (HARD,), {}, S).due == ()


def test_conditions_last_for_the_transition_period() -> None:
    found = after_look(
        Pressure(), (HARD, PIDS), {**memory(400), "pid.available": SignalObservation(40, 100)}, 0
    )
    assert set(found.conditions(0, 300 * S)) == {NodeCondition.MEMORY_PRESSURE, NodeCondition.PID_PRESSURE}
    calm = after_look(found, (HARD, PIDS), memory(4000), 10 * S)
    assert NodeCondition.MEMORY_PRESSURE in calm.conditions(299 * S, 300 * S)
    assert calm.conditions(300 * S, 300 * S) == ()


def test_memory_of_a_node_is_memory_and_comes_after_the_machines() -> None:
    seen = {**memory(400), "node1.memory.available": SignalObservation(100 * MIB, 2 * GIB)}
    found = after_look(Pressure(), (PIDS, NODE, HARD), seen, 0)
    assert found.conditions(0, S) == (NodeCondition.MEMORY_PRESSURE,)
    assert reclaimed_first((PIDS, NODE, HARD)) == (HARD, "memory")
    assert reclaimed_first((PIDS, NODE)) == (NODE, "memory")


def test_every_node_stands_for_those_without_a_threshold_of_their_own() -> None:
    said = {"node.memory.available": 1, "node2.memory.available": 2, "memory.available": 3}
    assert on_each_node(said, (0, 2)) == {
        "node0.memory.available": 1,
        "node2.memory.available": 2,
        "memory.available": 3,
    }
    assert [node_of(signal) for signal in ("node07.memory.available", "node1.memory.free", "node1")] == [
        None
    ] * 3


def test_a_shortage_is_said_in_the_signals_unit() -> None:
    assert shortage(HARD, SignalObservation(80 * MIB, GIB)) == (
        "memory.available is 80Mi, the hard threshold 500Mi"
    )
    assert shortage(PIDS, SignalObservation(40, 100)) == "pid.available is 40, the hard threshold 50"
