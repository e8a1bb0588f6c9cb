"""The ledger keeps its totals equal to the sum of its entries."""

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from bayplan.model.decision import Claim, Decision, Interval, Outcome, Placement, QosClass, QosSource, Request
from bayplan.model.ledger import Entry, Ledger
from bayplan.model.qos import BY_SCORE
from bayplan.placement.adjustment import cpus_for, cpus_updates
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


SHORT, PINNED = 2, 3


def pod_entry(number: int, pod: int, score: int | None, amount: int, shares: bool, ended: bool) -> Entry:
    """An entry of one of a few pods, some with the same score; with a CPU of its own, unless it *shares*."""
    interval = Interval(0, amount, BY_SCORE, usual_low_bytes=amount)
    request = Request(
        f"{pod}-{number}",
        f"p{pod}",
        "n",
        QosClass.BURSTABLE,
        QosSource.CGROUP_PARENT,
        interval,
        pinned_cpus=CpuSet([number]) if number == PINNED else None,
        score=score,
    )
    nodes = NodeSet([number % 2, 2])
    short = {"memory": 1} if number == SHORT else {}
    claim = Claim(nodes, {"memory": amount}, short_bytes=short) if number else None
    booked = {} if number else {pod: {"memory": amount}}
    own = CpuSet() if shares else CpuSet([10 * pod + number])
    decision = Decision(request, Outcome.PLACED, Placement(nodes, own, booked, claim=claim))
    return Entry(decision, notified_cpus=CpuSet([number]) if shares else own, ended=ended)


POD_ENTRIES = st.lists(
    st.builds(
        pod_entry,
        st.integers(0, 4),
        st.integers(0, 2),
        st.sampled_from([None, 100, 900]),
        st.integers(1, 9),
        st.booleans(),
        st.booleans(),
    ),
    max_size=12,
)


@given(POD_ENTRIES)
def test_a_ledger_of_entries_is_what_one_after_the_other_makes_of_it(entries: list[Entry]) -> None:
    ledger = Ledger()
    for one in entries:
        ledger = ledger.with_entry(one)
    made = Ledger.of(entries)
    assert made == ledger
    assert list(made.entries) == list(ledger.entries)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3), st.booleans(), st.booleans())))
def test_short_and_pinned_containers_are_known_by_id(steps: list[tuple[bool, int, bool, bool]]) -> None:
    ledger = Ledger()
    for add, number, short, pinned in steps:
        one = entry(number, 0, 1)
        claim = Claim(NodeSet([0]), {"memory": 1}, short_bytes={"memory": 1} if short else {})
        request = replace(one.decision.request, pinned_cpus=CpuSet([number]) if pinned else None)
        decision = replace(one.decision, request=request, placement=Placement(claim=claim))
        if add:
            ledger = ledger.with_entry(replace(one, decision=decision))
        elif one.container_id in ledger.entries and short:
            ledger = ledger.with_claims({one.container_id: replace(claim, short_bytes={})})
        else:
            ledger = ledger.without(one.container_id)
        decisions = {key: one.decision for key, one in ledger.entries.items()}
        claims = {key: one.placement.claim for key, one in decisions.items()}
        assert ledger.short_ids == {key for key, one in claims.items() if one is not None and one.short_bytes}
        assert ledger.pinned_ids == {
            key for key, one in decisions.items() if one.request.pinned_cpus is not None
        }


ADD, REMOVE, OWN, SEND = "add", "remove", "own", "send"
SHARED = CpuSet([0]), CpuSet([0, 1])
STEPS = st.tuples(
    st.sampled_from([ADD, REMOVE, OWN, SEND]), st.integers(0, 4), st.sampled_from([None, *SHARED])
)


@given(st.lists(STEPS, max_size=20))
def test_updates_are_due_where_the_runtime_was_sent_other_cpus(
    steps: list[tuple[str, int, CpuSet | None]],
) -> None:
    ledger, sent = Ledger(), dict[str, CpuSet | None]()
    for step, number, cpus in steps:
        one = entry(number, 0, 1)
        before = ledger.entries.get(one.container_id)
        if step == ADD:
            placement = replace(one.decision.placement, exclusive_cpus=CpuSet())
            fresh = Entry(replace(one.decision, placement=placement), notified_cpus=cpus)
            ledger, sent[one.container_id] = ledger.with_entry(fresh), cpus
        elif step == REMOVE:
            ledger = ledger.without(one.container_id)
            sent.pop(one.container_id, None)
        elif step == OWN and before is not None:
            ledger = ledger.with_entry(replace(before, decision=one.decision))
        elif step == SEND and cpus is not None:
            updates = {update.container_id: update.cpuset_cpus for update in cpus_updates(ledger, cpus)}
            if one.container_id in updates:
                updates[one.container_id] = None
            ledger = ledger.with_notified_cpus(updates)
            sent |= updates
        assert {key: one.notified_cpus for key, one in ledger.entries.items()} == sent
        assert ledger.ids_by_notice == Ledger.of(ledger.entries.values()).ids_by_notice
        for shared in SHARED:
            wanted = {key: cpus_for(one.decision, shared) for key, one in ledger.entries.items()}
            due = {key for key, cpus in wanted.items() if cpus != sent[key]}
            assert {update.container_id for update in cpus_updates(ledger, shared)} == due
            assert ledger.has_due_updates(shared) == bool(due)
            few = cpus_updates(ledger, shared, {one.container_id}, 1)
            assert {update.container_id for update in few} <= due
            assert len(few) == min(len(due - {one.container_id}), 1) + (one.container_id in due)


def test_a_change_leaves_the_old_ledger_alone() -> None:
    before = Ledger.of([entry(0, 0, 5)])
    after = before.with_entry(entry(1, 0, 2)).without("c0")
    assert list(before.entries) == ["c0"]
    assert before.booked_bytes == {0: {"memory": 5}}
    assert after.booked_bytes == {0: {"memory": 2}}
    assert after.without("unknown") is after


def test_the_shared_pool_is_what_is_left_of_the_online_cpus() -> None:
    assert str(Ledger.of([entry(1, 0, 1)]).shared_cpus(machine(1))) == "0,2-3"
