"""The ledger keeps its totals equal to the sum of its entries."""

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from bayplan.model.decision import Decision, Interval, Outcome, Placement, QosClass, QosSource, Request
from bayplan.model.ledger import Entry, Ledger
from bayplan.sets import CpuSet, NodeSet
from support.machines import machine


def entry(number: int, node: int, amount: int) -> Entry:
    request = Request(
        f"c{number}",
        "p",
        "n",
        QosClass.GUARANTEED,
        QosSource.CGROUP_PARENT,
        Interval(amount, amount, "limit"),
    )
    placement = Placement(NodeSet([node]), CpuSet([number]), {node: {"memory": amount}})
    return Entry(Decision(request, Outcome.PLACED, placement))


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5), st.integers(0, 2), st.integers(1, 9))))
def test_totals_equal_the_entries(steps: list[tuple[bool, int, int, int]]) -> None:
    ledger, expected = Ledger(), {}
    for add, number, node, amount in steps:
        one = entry(number, node, amount)
        if add:
            ledger = ledger.with_entry(one)
            expected[one.container_id] = one
        else:
            ledger = ledger.without(one.container_id)
            expected.pop(one.container_id, None)
    assert dict(ledger.entries) == expected
    for node in range(3):
        total = sum(
            e.decision.placement.booked_bytes.get(node, {}).get("memory", 0) for e in expected.values()
        )
        assert ledger.booked_bytes.get(node, {}).get("memory", 0) == total
    nodes = [e.decision.placement.mems for e in expected.values()]
    assert ledger.bound == {mems: nodes.count(mems) for mems in nodes}
    assert ledger.exclusive_cpus == CpuSet(int(key[1:]) for key in expected)
    assert Ledger.of(expected.values()) == ledger or sorted(expected) == sorted(ledger.entries)


ADD, REMOVE, TELL = "add", "remove", "tell"
TOLD = st.sampled_from([None, CpuSet([0]), CpuSet([0, 1])])


@given(
    st.lists(
        st.tuples(st.sampled_from([ADD, REMOVE, TELL]), st.integers(0, 4), st.booleans(), TOLD), max_size=20
    )
)
def test_who_may_be_due_an_update_is_known_without_a_look_at_all(
    steps: list[tuple[str, int, bool, CpuSet | None]],
) -> None:
    ledger = Ledger()
    for step, number, exclusive, told in steps:
        one = entry(number, 0, 1)
        if not exclusive:
            placement = replace(one.decision.placement, exclusive_cpus=CpuSet())
            one = replace(one, decision=replace(one.decision, placement=placement))
        if step == ADD:
            ledger = ledger.with_entry(replace(one, notified_cpus=told))
        elif step == REMOVE:
            ledger = ledger.without(one.container_id)
        elif told is not None and one.container_id in ledger.entries:
            ledger = ledger.with_notified_cpus({one.container_id: told})
    for shared in (CpuSet([0]), CpuSet([0, 1])):
        right = {
            key
            for key, one in ledger.entries.items()
            if one.notified_cpus == shared and not one.decision.placement.exclusive_cpus
        }
        due = set(ledger.update_candidates(shared))
        assert set(ledger.entries) - right <= due
        assert due.isdisjoint(right) or due == set(ledger.entries)


def test_a_change_leaves_the_old_ledger_alone() -> None:
    before = Ledger.of([entry(0, 0, 5)])
    after = before.with_entry(entry(1, 0, 2)).without("c0")
    assert list(before.entries) == ["c0"]
    assert before.booked_bytes == {0: {"memory": 5}}
    assert after.booked_bytes == {0: {"memory": 2}}
    assert after.without("unknown") is after


def test_the_shared_pool_is_what_is_left_of_the_online_cpus() -> None:
    assert str(Ledger.of([entry(1, 0, 1)]).shared_cpus(machine(1))) == "0,2-3"
