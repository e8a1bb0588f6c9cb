"""How a pod with resources as a whole is known, and who holds what it was promised."""

import pytest
from msgspec.structs import replace

from bayplan.model.decision import Claim, Decision, Outcome, Placement, PodTotals, QosClass, Request
from bayplan.model.ledger import Entry, Ledger
from bayplan.model.pod_as_a_whole import as_member, is_member, takes_from_pod, with_pod_known
from bayplan.model.request import changed_request, derive_request
from bayplan.model.workload import Resources
from bayplan.quantity import GIB, MIB
from bayplan.sets import CpuSet, NodeSet
from support.machines import container, machine, pod

MACHINE = machine(memory_bytes=16 * GIB)


def spec(memory_bytes: int, milli: int, shares_milli: int | None = None) -> Resources:
    return Resources(memory_bytes, (shares_milli or milli) * 1024 // 1000, milli * 100, 100_000)


def asking(
    name: str,
    resources: Resources,
    sums: Resources,
    qos: QosClass = QosClass.GUARANTEED,
) -> Request:
    owner = replace(pod("p", qos), resources=sums)
    return derive_request(owner, container(name, owner, resources=resources), MACHINE)


SUMS = spec(8 * GIB, 4000)


def test_a_second_container_with_all_of_the_pods_sums_shows_what_the_pod_is() -> None:
    first, second = asking("a", SUMS, SUMS), asking("b", SUMS, SUMS)
    assert with_pod_known(first, []) == first
    known = with_pod_known(second, [first])
    assert is_member(known)
    assert (takes_from_pod(known), known.memory.high_bytes, known.exclusive_cpus) == (True, 0, 0)


@pytest.mark.parametrize(
    "others",
    [
        pytest.param([spec(6 * GIB, 3000)], id="the sums are those of both"),
        pytest.param([], id="alone"),
    ],
)
def test_containers_within_the_sums_are_ordinary_ones(others: list[Resources]) -> None:
    sums = spec(8 * GIB, 4000)
    request = asking("c", spec(2 * GIB, 1000), sums)
    assert with_pod_known(request, [asking(str(n), one, sums) for n, one in enumerate(others)]) == request


def test_two_of_other_sums_together_show_nothing_unless_one_has_all_of_them() -> None:
    # The sums of a pod whose containers were resized since the runtime was told them.
    grown = [asking(name, spec(3 * GIB, 3000), spec(4 * GIB, 4000)) for name in "ab"]
    assert not is_member(with_pod_known(grown[1], grown[:1]))


def test_a_container_that_was_resized_shows_nothing_of_its_pod() -> None:
    sums = spec(4 * GIB, 4000)
    first = asking("a", spec(2 * GIB, 2000), sums)
    grown = changed_request(first, spec(2 * GIB, 2000), spec(4 * GIB, 4000), MACHINE)
    assert grown.pod_totals is None
    assert not is_member(with_pod_known(asking("b", spec(4 * GIB, 4000), sums), [grown]))


def test_of_another_class_nothing_is_shared() -> None:
    first, second = (asking(name, SUMS, SUMS, QosClass.BURSTABLE) for name in "ab")
    assert with_pod_known(second, [first]) == second


def test_a_part_is_what_is_limited_below_the_pod_in_everything() -> None:
    part = as_member(asking("a", spec(2 * GIB, 1000), SUMS))
    assert (takes_from_pod(part), part.exclusive_cpus, part.memory.high_bytes) == (False, 1, 2 * GIB)
    for resources in (spec(2 * GIB, 4000), spec(8 * GIB, 1000), spec(2 * GIB, 2000, shares_milli=1000)):
        assert takes_from_pod(as_member(asking("b", resources, SUMS))), resources


def test_a_part_keeps_its_cpus_when_it_is_resized_and_the_pod_is_what_its_others_are_limited_to() -> None:
    part = as_member(asking("a", spec(2 * GIB, 1000), SUMS))
    grown = changed_request(part, spec(2 * GIB, 1000), spec(2 * GIB, 2000), MACHINE)
    assert (grown.exclusive_cpus, grown.pod_totals) == (2, part.pod_totals)
    other = as_member(asking("b", SUMS, SUMS))
    wider = changed_request(other, SUMS, spec(9 * GIB, 5000), MACHINE)
    assert wider.pod_totals == PodTotals(9 * GIB, 5000)


def entry(request: Request, amounts: dict[str, int], cpus: str, nodes: str = "0") -> Entry:
    claim = Claim(NodeSet.parse(nodes), amounts, flexible=True)
    placement = Placement(NodeSet.parse(nodes), CpuSet.parse(cpus), claim=claim)
    return Entry(Decision(request, Outcome.PLACED, placement))


def held(ledger: Ledger) -> dict[str, tuple[int, str]]:
    found = {}
    for key, one in sorted(ledger.entries.items()):
        placement = one.decision.placement
        assert placement.claim is not None
        found[key] = placement.claim.amounts_bytes.get("memory", 0), str(placement.exclusive_cpus)
    return found


def test_a_pod_keeps_its_promise_whoever_of_it_comes_and_goes() -> None:
    first, second = asking("a", SUMS, SUMS), as_member(asking("b", SUMS, SUMS))
    part = as_member(asking("c", spec(2 * GIB, 1000), SUMS))
    ledger = Ledger().with_entry(entry(first, {"memory": 8 * GIB}, "1-4"))
    ledger = ledger.with_entry(entry(second, {}, ""))
    assert held(ledger) == {"a": (8 * GIB, "1-4"), "b": (0, "1-4")}
    assert not any(one.decision.placement.claim.flexible for one in ledger.entries.values())  # type: ignore[union-attr]  # all have one
    ledger = ledger.with_entry(entry(part, {}, "4"))
    assert held(ledger) == {"a": (6 * GIB, "1-3"), "b": (0, "1-3"), "c": (2 * GIB, "4")}
    ledger = ledger.without("a")
    assert held(ledger) == {"b": (6 * GIB, "1-3"), "c": (2 * GIB, "4")}
    assert held(ledger.without("b")) == {"c": (8 * GIB, "4")}
    assert ledger.without("b").exclusive_cpus == CpuSet.parse("1-4")
    ledger = ledger.without("c")
    assert held(ledger) == {"b": (8 * GIB, "1-4")}
    empty = ledger.after_end_of("b")
    assert (held(empty), empty.exclusive_cpus) == ({}, CpuSet.parse("1-4"))
    assert empty.claimed_bytes == {NodeSet([0]): {"memory": 8 * GIB}}
    again = empty.with_entry(entry(replace(second, container_id="d"), {}, ""))
    assert held(again) == {"d": (8 * GIB, "1-4")}
    gone = empty.without_retained(second.pod_id)
    assert (gone.claimed_bytes, gone.exclusive_cpus) == ({}, CpuSet())
    assert ledger.after_end_of("b", pod_stays=False).claimed_bytes == {}


def test_what_is_read_from_the_disk_is_what_was_written() -> None:
    first, second = asking("a", SUMS, SUMS), as_member(asking("b", SUMS, SUMS))
    part = as_member(asking("c", spec(2 * GIB, 1000), SUMS))
    ledger = Ledger().with_entry(entry(first, {"memory": 8 * GIB}, "1-4"))
    ledger = ledger.with_entry(entry(second, {}, "")).with_entry(entry(part, {}, "4"))
    for order in (sorted(ledger.entries), sorted(ledger.entries, reverse=True)):
        again = Ledger.of(ledger.entries[key] for key in order)
        assert dict(again.entries) == dict(ledger.entries)
        assert (again.claimed_bytes, again.exclusive_cpus) == (ledger.claimed_bytes, ledger.exclusive_cpus)


def test_what_a_part_elsewhere_leaves_is_made_up_for() -> None:
    """It had its own nodes, and on those of the pod somebody else may be by now."""
    part = as_member(asking("a", spec(2 * GIB, 1000), SUMS))
    other = as_member(asking("b", SUMS, SUMS))
    ledger = Ledger().with_entry(entry(part, {"memory": 2 * GIB}, "9", nodes="1"))
    ledger = ledger.with_entry(entry(other, {"memory": 6 * GIB}, "1-3"))
    assert held(ledger) == {"a": (2 * GIB, "9"), "b": (6 * GIB, "1-3")}
    left = ledger.without("a")
    assert held(left) == {"b": (6 * GIB, "1-3")}
    claim = left.entries["b"].decision.placement.claim
    assert claim is not None
    assert (claim.short_bytes, left.short_ids) == ({"memory": 2 * GIB}, {"b"})


def test_limits_in_bytes_that_no_pod_has_are_no_part() -> None:
    assert takes_from_pod(as_member(asking("a", Resources(MIB), SUMS)))
