"""A learned reservation rises at once, falls late, and never takes what was promised."""

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from bayplan.config.reservations import resolve_policy
from bayplan.config.settings import Settings
from bayplan.engines.exact.resources import ResourceFlows
from bayplan.model.basis import Allocatable, Basis
from bayplan.model.decision import (
    Claim,
    Decision,
    Interval,
    Outcome,
    Placement,
    QosClass,
    QosSource,
    Request,
)
from bayplan.model.ledger import Entry, Ledger
from bayplan.model.machine import MEMORY
from bayplan.model.policy import PlacementPolicy
from bayplan.placement.measured_reservation import (
    HIGHER_BEFORE_KEPT,
    LOWER_BEFORE_FALL,
    SMALLEST_BAND_BYTES,
    Learned,
    learn,
    step_bytes,
    within_promises,
)
from bayplan.placement.shortfall import overclaims
from bayplan.quantity import GIB, MIB
from bayplan.sets import NodeSet
from support.machines import machine

MACHINE = machine(2, memory_bytes=4 * GIB)
BAND = SMALLEST_BAND_BYTES


def after(*held_bytes, start=None):
    """What is known of node 0 after these measurements, one a second."""
    known = {} if start is None else {0: start}
    for second, amount in enumerate(held_bytes):
        known = learn(known, {0: amount}, MACHINE, second)
    return known[0]


def test_the_first_measurement_counts_with_a_band_above_it():
    assert after(100 * MIB) == Learned(100 * MIB, 0, 100 * MIB + BAND)


def test_within_the_band_nothing_changes():
    known = after(100 * MIB, 100 * MIB + BAND, 70 * MIB, 80 * MIB)
    assert known == Learned(80 * MIB, 3, 100 * MIB + BAND)


def test_above_the_band_it_rises_at_once():
    assert after(100 * MIB, 200 * MIB).reserved_bytes == 200 * MIB + BAND


def test_it_falls_after_patience_to_the_highest_of_the_lower_ones():
    lower = [10 * MIB] * (LOWER_BEFORE_FALL - 2) + [30 * MIB]
    assert after(500 * MIB, *lower).reserved_bytes == 500 * MIB + BAND
    assert after(500 * MIB, *lower, 20 * MIB).reserved_bytes == 30 * MIB + BAND


def test_one_high_measurement_among_the_lower_ones_starts_the_wait_again():
    lower = [10 * MIB] * (LOWER_BEFORE_FALL - 1)
    assert after(500 * MIB, *lower, 490 * MIB, *lower).reserved_bytes == 500 * MIB + BAND


def test_a_rise_of_a_moment_is_taken_back_at_once():
    assert after(100 * MIB, 500 * MIB, 110 * MIB).reserved_bytes == 100 * MIB + BAND
    assert after(100 * MIB, 500 * MIB, 700 * MIB, 110 * MIB).reserved_bytes == 100 * MIB + BAND
    assert after(100 * MIB, 500 * MIB, 100 * MIB + BAND).reserved_bytes == 100 * MIB + BAND


def test_a_rise_that_lasts_falls_with_patience_only():
    lasting = [500 * MIB] * (HIGHER_BEFORE_KEPT - 1)
    assert after(100 * MIB, *lasting, 110 * MIB).reserved_bytes == 100 * MIB + BAND
    assert after(100 * MIB, *lasting, 500 * MIB, 110 * MIB).reserved_bytes == 500 * MIB + BAND


def test_a_rise_that_goes_on_until_it_has_lasted_is_kept_as_a_whole():
    rising = [(2 + number) * 100 * MIB for number in range(HIGHER_BEFORE_KEPT)]
    assert after(100 * MIB, *rising, 110 * MIB).reserved_bytes == rising[-1] + BAND


def test_half_of_a_rise_that_stays_is_no_moment():
    assert after(100 * MIB, 500 * MIB, 300 * MIB).reserved_bytes == 500 * MIB + BAND


def test_on_a_small_node_the_band_is_a_small_part_of_it():
    small = machine(1, memory_bytes=512 * MIB)
    assert learn({}, {0: 100 * MIB}, small, 1)[0].reserved_bytes == 108 * MIB
    assert step_bytes(small, 0) == 16 * MIB


def test_the_band_grows_with_the_node():
    large = machine(1, memory_bytes=1024 * GIB)
    assert learn({}, {0: GIB}, large, 7)[0].reserved_bytes == 5 * GIB


def test_nodes_that_are_gone_are_forgotten_and_new_ones_learned():
    before = {5: Learned(GIB, 0, GIB)}
    assert set(learn(before, {0: 0, 5: GIB}, MACHINE, 1)) == {0}


@given(st.lists(st.integers(0, 4 * GIB), min_size=1, max_size=60))
def test_the_reservation_always_covers_what_is_held(amounts):
    known = {}
    for second, amount in enumerate(amounts):
        known = learn(known, {0: amount}, MACHINE, second)
        assert known[0].reserved_bytes >= amount


@given(st.integers(0, 4 * GIB), st.lists(st.integers(-BAND, BAND), max_size=60))
def test_noise_within_the_band_changes_a_capacity_once_at_most(level, noise):
    known, seen = {}, set()
    for second, shift in enumerate(noise):
        known = learn(known, {0: max(0, level + shift // 2)}, MACHINE, second)
        seen.add(known[0].reserved_bytes)
    assert len(seen) <= 2


def claiming(*claims):
    """A ledger of containers that claim so many bytes on sets of nodes."""
    entries = []
    for number, (nodes, amount_bytes) in enumerate(claims):
        request = Request(
            f"c{number}", "p", "c", QosClass.GUARANTEED, QosSource.INFERRED, Interval(0, 0, "limit")
        )
        claim = Claim(NodeSet.parse(nodes), {MEMORY: amount_bytes})
        entries.append(Entry(Decision(request, Outcome.PLACED, Placement(claim=claim))))
    return Ledger.of(entries)


def least(**reserved):
    """The policy that keeps so much of nodes n0, n1 and so on."""
    return PlacementPolicy(
        reserved_bytes={int(name[1:]): {MEMORY: amount} for name, amount in reserved.items()}
    )


def test_a_reservation_leaves_what_was_promised():
    kept = within_promises(Basis(MACHINE, least(n0=GIB), claiming(("0", 3 * GIB))), {0: 2 * GIB, 1: 2 * GIB})
    assert kept == {0: GIB, 1: 2 * GIB}


def test_a_set_that_lacks_a_little_gives_up_no_more_than_that():
    large = machine(2, memory_bytes=8 * GIB)
    wanted = {0: 512 * MIB, 1: 512 * MIB}
    ledger = claiming(("0-1", 15 * GIB - 60 * MIB), ("0-1", 64 * MIB))
    assert within_promises(Basis(large, least(), ledger), wanted) == {0: 508 * MIB, 1: 512 * MIB}
    floor = least(n0=510 * MIB, n1=510 * MIB)
    assert within_promises(Basis(large, floor, ledger), wanted) == {0: 510 * MIB, 1: 510 * MIB}
    held = least(n0=512 * MIB, n1=512 * MIB)
    assert within_promises(Basis(large, held, ledger), wanted) == wanted


def test_what_is_configured_stays_even_so():
    kept = within_promises(Basis(MACHINE, least(n0=2 * GIB), claiming(("0", 3 * GIB))), {0: 2 * GIB})
    assert kept == {0: 2 * GIB}


def test_a_claim_that_can_go_elsewhere_goes_there_first():
    kept = within_promises(Basis(MACHINE, least(), claiming(("0-1", 4 * GIB))), {0: 3 * GIB, 1: GIB})
    assert kept == {0: 3 * GIB, 1: GIB}


def test_what_was_booked_without_a_claim_counts_too():
    request = Request("c", "p", "c", QosClass.GUARANTEED, QosSource.INFERRED, Interval(0, 0, "limit"))
    placement = Placement(booked_bytes={0: {MEMORY: 3 * GIB}})
    ledger = Ledger.of([Entry(Decision(request, Outcome.PLACED, placement))])
    assert within_promises(Basis(MACHINE, least(), ledger), {0: 2 * GIB}) == {0: GIB}


def test_of_a_node_that_is_gone_nothing_can_be_reserved():
    kept = within_promises(Basis(MACHINE, least(), claiming(("9", GIB))), {0: GIB, 9: GIB})
    assert kept == {0: GIB, 9: 0}


FOUR = machine(4, memory_bytes=4 * GIB)
claims = st.lists(
    st.tuples(
        st.sets(st.integers(0, 3), min_size=1).map(lambda nodes: str(NodeSet(nodes))),
        st.integers(1, 3 * GIB),
    ),
    max_size=8,
)
amounts = st.dictionaries(st.integers(0, 3), st.integers(0, 5 * GIB))


@given(claims, amounts, amounts)
def test_no_measurement_makes_promises_infeasible(claimed, configured, wanted):
    ledger = claiming(*claimed)
    policy = PlacementPolicy(reserved_bytes={node: {MEMORY: amount} for node, amount in configured.items()})
    wanted = {node: max(amount, configured.get(node, 0)) for node, amount in wanted.items()}
    kept = within_promises(Basis(FOUR, policy, ledger), wanted)
    assert kept.keys() == wanted.keys()
    assert all(configured.get(node, 0) <= kept[node] <= wanted[node] for node in kept)
    after = replace(
        policy,
        reserved_bytes={**policy.reserved_bytes, **{node: {MEMORY: kept[node]} for node in kept}},
    )
    if not overclaims(Basis(FOUR, policy, ledger)):
        assert not overclaims(Basis(FOUR, after, ledger))


@given(claims, amounts)
def test_what_is_held_is_never_promised_whatever_was_promised_before(claimed, held):
    ledger = claiming(*claimed)
    policy = resolve_policy(Settings(), FOUR, learn({}, held, FOUR, 1), ledger)
    holding = keeping(PlacementPolicy(), held)
    flow = ResourceFlows(Basis(FOUR, policy, ledger)).flow(MEMORY)
    for nodes in range(1, 16):
        room = flow.room(nodes, 99 * GIB)
        with_new = claiming(*claimed, (str(NodeSet.of_mask(nodes)), room))
        assert lacking(holding, with_new) == lacking(holding, ledger)


@given(claims, amounts, amounts)
def test_what_is_given_up_is_what_promises_lack_and_leaves_room_for_nothing_new(claimed, configured, wanted):
    ledger = claiming(*claimed)
    configured = {node: min(amount, 4 * GIB) for node, amount in configured.items()}
    least_policy = keeping(PlacementPolicy(), configured)
    wanted = {node: max(min(amount, 4 * GIB), configured.get(node, 0)) for node, amount in wanted.items()}
    kept = within_promises(Basis(FOUR, least_policy, ledger), wanted)
    full, after = keeping(least_policy, wanted), keeping(least_policy, kept)
    given_up = {node: wanted[node] - kept[node] for node in wanted}
    assert sum(given_up.values()) == lacking(full, ledger) - lacking(after, ledger)
    assert lacking(after, ledger) == lacking(least_policy, ledger)
    before, now = (ResourceFlows(Basis(FOUR, policy, ledger)) for policy in (full, after))
    for nodes in range(1, 16):
        assert now.flow(MEMORY).room(nodes, 99 * GIB) <= before.flow(MEMORY).room(nodes, 99 * GIB)


def keeping(policy, memory_bytes):
    """*policy* with these reservations."""
    rows = {node: {MEMORY: amount} for node, amount in memory_bytes.items()}
    return replace(policy, reserved_bytes={**policy.reserved_bytes, **rows})


def lacking(policy, ledger):
    """How much of what *ledger* promises has no place, by brute force: the most by which the claims within a
    set of nodes exceed what it can allocate (Hall's theorem with a deficiency)."""
    loads = [(claim.nodes.mask, claim.amounts_bytes[MEMORY]) for claim in claims_of(ledger)]
    capacity = {node: row[MEMORY] for node, row in Allocatable(FOUR, policy).bytes_by_node.items()}
    return max(
        sum(amount for nodes, amount in loads if not nodes & ~within)
        - sum(capacity[node] for node in range(4) if within >> node & 1)
        for within in range(16)
    )


def claims_of(ledger):
    return [entry.decision.placement.claim for entry in ledger.entries.values()]
