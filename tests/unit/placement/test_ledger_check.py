"""The ledger held against itself: whatever is changed behind its back is found, and put right."""

import asyncio
import itertools
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from bayplan.control.controller import Controller
from bayplan.model.basis import Basis
from bayplan.model.claims import HeldClaim, ResourceClaim
from bayplan.model.decision import (
    Affinity,
    Claim,
    CpuUse,
    CpuWish,
    Decision,
    Interval,
    Outcome,
    Placement,
    PodTotals,
    QosClass,
)
from bayplan.model.ledger import Entry, Ledger
from bayplan.model.machine import MEMORY, Machine
from bayplan.model.pod_as_a_whole import BY_POD
from bayplan.model.policy import PlacementPolicy
from bayplan.persistent_map import PersistentMap
from bayplan.placement.ledger_check import (
    DIVIDED_POOL,
    LOST_CPUS,
    NOT_RECORDED,
    OVERCLAIMED,
    POD_EXCEEDED,
    TWO_OWNERS,
    WRONG_ID,
    WRONG_TOTAL,
    check,
    contradictions,
    mended,
    unlike_record,
)
from bayplan.quantity import MIB
from bayplan.sets import CpuSet, NodeSet
from bayplan.state import Step
from support.controllers import MACHINE, begun, controlled
from support.machines import container, machine, pod
from support.requests import guaranteed_request

GUARANTEED = pod("g", QosClass.GUARANTEED)
BURSTABLE = pod("b", QosClass.BURSTABLE)


async def filled(controller: Controller) -> None:
    """Two containers with CPUs and memory of their own, and two that share CPUs."""
    for name in ("one", "two"):
        await begun(
            controller, GUARANTEED, container(name, GUARANTEED, memory_bytes=90 * MIB, milli_cpus=1000)
        )
    for name in ("three", "four"):
        await begun(controller, BURSTABLE, container(name, BURSTABLE, memory_bytes=80 * MIB, milli_cpus=500))


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    async def build() -> Ledger:
        async with controlled(tmp_path_factory.mktemp("state")) as one:
            await filled(one.controller)
            return one.controller.state.ledger

    return asyncio.run(build())


def first(ledger: Ledger) -> Entry:
    return ledger.entries["one"]


def renamed(entry: Entry, container_id: str, pod_id: str) -> Entry:
    request = replace(entry.decision.request, container_id=container_id, pod_id=pod_id)
    return replace(entry, decision=replace(entry.decision, request=request))


DAMAGES: dict[str, Callable[[Ledger], Ledger]] = {
    "booked_bytes": lambda ledger: replace(ledger, booked_bytes={0: {MEMORY: 1}}),
    "claimed_bytes": lambda ledger: replace(ledger, claimed_bytes={NodeSet([0]): {MEMORY: 1}}),
    "bound": lambda ledger: replace(ledger, bound={}),
    "exclusive_cpus": lambda ledger: replace(ledger, exclusive_cpus=CpuSet()),
    "ids_by_notice": lambda ledger: replace(ledger, ids_by_notice={1: PersistentMap({"one": None})}),
    "ids_by_score": lambda ledger: replace(ledger, ids_by_score=PersistentMap({("nowhere", 1): ("nobody",)})),
    "ids_by_pod": lambda ledger: replace(ledger, ids_by_pod=ledger.ids_by_pod.with_item("nowhere", ("one",))),
    "short_ids": lambda ledger: replace(ledger, short_ids=frozenset({"one"})),
    "pinned_ids": lambda ledger: replace(ledger, pinned_ids=frozenset({"one"})),
    "beside_ids": lambda ledger: replace(ledger, beside_ids=frozenset({"one"})),
    "followed_ids": lambda ledger: replace(ledger, followed_ids=frozenset({"one"})),
    "shared_milli": lambda ledger: replace(ledger, shared_milli={}),
    "pool_ids": lambda ledger: replace(ledger, pool_ids={"db": frozenset({"one"})}),
}


def test_a_ledger_that_came_about_by_decisions_is_good(good: Ledger) -> None:
    assert check(Basis(MACHINE, PlacementPolicy(), good)) == ()
    assert mended(good) == good


def test_every_total_of_the_ledger_is_held() -> None:
    assert {*DAMAGES, "entries", "retained"} == set(Ledger.__struct_fields__)


@pytest.mark.parametrize("name", DAMAGES)
def test_a_total_that_does_not_follow_from_the_entries_is_found_and_put_right(
    name: str, good: Ledger
) -> None:
    damaged = DAMAGES[name](good)
    (fault,) = contradictions(damaged)
    assert (fault.code, fault.is_ours) == (WRONG_TOTAL, True)
    assert fault.text.startswith(f"{name} ")
    assert mended(damaged) == good


AMOUNTS: dict[str, int] = {MEMORY: 8 * MIB, "hugepages-2Mi": 4 * MIB}
TOTALS = PodTotals(AMOUNTS[MEMORY], 4000, {"hugepages-2Mi": AMOUNTS["hugepages-2Mi"]})


def alone(name: str, cpus: CpuSet) -> Entry:
    """A container with CPUs of its own."""
    return Entry(Decision(guaranteed_request(name), Outcome.PLACED, Placement(exclusive_cpus=cpus)))


def pooled(name: str, cpus: CpuSet, pool: str = "") -> Entry:
    """A member of a named pool, which is called like it unless another one is meant."""
    request = replace(guaranteed_request(name), cpus=CpuWish(CpuUse.POOL, pool=pool or name))
    return Entry(Decision(request, Outcome.PLACED, Placement(pool_cpus=cpus)))


def with_pod(name: str, cpus: CpuSet, pod_id: str = "") -> Entry:
    """A container that shares CPUs, of a pod that room was found for as a whole."""
    request = replace(guaranteed_request(name), pod_totals=TOTALS)
    request = replace(request, pod_id=pod_id or request.pod_id)
    claim, affinity = Claim(NodeSet([0])), Affinity(NodeSet([0]), preferred=True, whole=True, cpus=cpus)
    return Entry(Decision(request, Outcome.PLACED, Placement(affinity=affinity, claim=claim)))


def of_whole_pod(name: str, cpus: CpuSet, pod_id: str = "") -> Entry:
    """A container without a part, of a pod with resources as a whole."""
    entry = with_pod(name, cpus, pod_id)
    request = replace(entry.decision.request, pod_level=True, memory=Interval(0, 0, BY_POD))
    placement = replace(entry.decision.placement, exclusive_cpus=cpus)
    return Entry(Decision(request, Outcome.PLACED, placement))


def kept(name: str, cpus: CpuSet) -> Entry:
    """What such a pod keeps between two containers."""
    return replace(of_whole_pod(name, cpus), ended=True)


def of_claim(name: str, cpus: CpuSet) -> Entry:
    """What a resource claim holds."""
    return replace(alone(name, cpus), resource_claim=HeldClaim(ResourceClaim(name, "shop", name)), ended=True)


OWNERS: tuple[Callable[[str, CpuSet], Entry], ...] = (alone, pooled, with_pod, of_whole_pod, kept, of_claim)


def codes(ledger: Ledger) -> set[str]:
    """The codes of what contradicts itself in *ledger*, whose totals need not follow."""
    return {fault.code for fault in contradictions(ledger)} - {WRONG_TOTAL}


def behind(ledger: Ledger, *entries: Entry) -> Ledger:
    """*ledger* with *entries*, which nobody settled with the others."""
    for entry in entries:
        ledger = replace(ledger, entries=ledger.entries.with_item(entry.container_id, entry))
    return ledger


def of_every_kind() -> Ledger:
    """Containers that come to something in every total."""
    short = Claim(NodeSet([0]), {MEMORY: MIB}, short_bytes={MEMORY: MIB})
    beside = Placement(NodeSet([0]), CpuSet([0]), beside_cpus=CpuSet([4, 5]))
    kinds: dict[str, tuple[Placement, dict[str, object]]] = {
        "booked": (Placement(booked_bytes={0: {MEMORY: MIB}}), {}),
        "short": (Placement(claim=short), {"score": 900}),
        "pinned": (Placement(), {"pinned_cpus": CpuSet([6])}),
        "beside": (beside, {"cpu_milli": 1500, "exclusive_cpus": 1, "cpus": CpuWish(CpuUse.ISOLATED, 1)}),
        "followed": (Placement(), {"placement_file": True, "cpu_milli": 300}),
    }
    return Ledger.of(
        [
            pooled("pooled", CpuSet([1])),
            *(
                Entry(Decision(replace(guaranteed_request(name), **wishes), Outcome.PLACED, placement))
                for name, (placement, wishes) in kinds.items()
            ),
        ]
    )


@pytest.mark.parametrize("name", DAMAGES)
def test_a_total_that_was_lost_is_found(name: str) -> None:
    whole = of_every_kind()
    assert contradictions(whole) == ()
    total = getattr(whole, name)
    assert total
    (fault,) = contradictions(replace(whole, **{name: type(total)()}))
    assert (fault.code, fault.text.split()[0]) == (WRONG_TOTAL, name)


@pytest.mark.parametrize(
    ("one", "other"),
    [*itertools.combinations_with_replacement(OWNERS, 2)],
    ids=lambda owner: owner.__name__,
)
def test_a_cpu_has_one_owner_whoever_that_is(
    one: Callable[[str, CpuSet], Entry], other: Callable[[str, CpuSet], Entry]
) -> None:
    """Every kind of owner beside every kind."""
    apart = Ledger.of([one("a", CpuSet([0, 1])), other("b", CpuSet([2, 3]))])
    assert contradictions(apart) == ()
    overlapping = Ledger.of([one("a", CpuSet([0, 1, 2])), other("b", CpuSet([2, 3]))])
    assert codes(overlapping) == {TWO_OWNERS}


@pytest.mark.parametrize("kind", [pooled, with_pod, of_whole_pod])
def test_who_shares_a_pool_or_a_pod_is_one_owner(kind: Callable[[str, CpuSet, str], Entry]) -> None:
    ledger = Ledger.of([kind("a", CpuSet([0, 1]), "same"), kind("b", CpuSet([0, 1]), "same")])
    assert contradictions(ledger) == ()


def test_a_part_of_a_pod_is_nobody_elses() -> None:
    rest, own = of_whole_pod("a", CpuSet([0, 1]), "same"), alone("b", CpuSet([1]))
    request = replace(own.decision.request, pod_id="same", pod_level=True, exclusive_cpus=1)
    part = replace(own, decision=replace(own.decision, request=request))
    assert codes(behind(Ledger(), rest, part)) == {TWO_OWNERS}


def test_the_members_of_a_pool_have_the_same_cpus() -> None:
    ledger = Ledger.of([pooled("a", CpuSet([0, 1]), "db"), pooled("b", CpuSet([0, 1]), "db")])
    divided = behind(ledger, pooled("b", CpuSet([0]), "db"))
    assert codes(divided) == {DIVIDED_POOL}
    assert contradictions(mended(divided)) == ()


@pytest.mark.parametrize("resource", AMOUNTS)
def test_a_pod_as_a_whole_is_promised_what_it_asks_for(resource: str) -> None:
    """Its containers together, whether one or the other has too much."""

    def promised(name: str, amounts_bytes: dict[str, int]) -> Entry:
        entry = of_whole_pod(name, CpuSet([0]), "same")
        placement = replace(entry.decision.placement, claim=Claim(NodeSet([0]), amounts_bytes))
        return replace(entry, decision=replace(entry.decision, placement=placement))

    all_of_it = behind(Ledger(), promised("a", AMOUNTS), promised("b", {}))
    assert codes(all_of_it) == set()
    for more in (promised("a", {**AMOUNTS, resource: AMOUNTS[resource] + 1}), promised("b", {resource: 1})):
        assert codes(behind(all_of_it, more)) == {POD_EXCEEDED}


def test_an_id_is_its_entrys(good: Ledger) -> None:
    damaged = replace(good, entries=good.entries.with_item("other", good.entries["four"]))
    assert WRONG_ID in {fault.code for fault in contradictions(damaged)}
    assert mended(damaged) == good
    ended = good.entries.with_item("one", replace(first(good), ended=True))
    assert WRONG_ID in {fault.code for fault in contradictions(replace(good, entries=ended))}


def test_what_a_pod_keeps_is_its_last_containers(good: Ledger) -> None:
    last = replace(first(good), ended=True)
    pod_id = last.decision.request.pod_id
    for wrong in ({pod_id: first(good)}, {"other": last}):
        assert WRONG_ID in {fault.code for fault in contradictions(replace(good, retained=wrong))}
    assert WRONG_ID not in {fault.code for fault in contradictions(replace(good, retained={pod_id: last}))}


def test_each_way_in_which_the_record_is_another_is_said_otherwise(good: Ledger) -> None:
    other = replace(first(good), oom_group=not first(good).oom_group)
    records = (good.without("one"), Ledger.of([*good.entries.values(), other]))
    faults = [*(one for record in records for one in unlike_record(good, record))]
    faults += unlike_record(good.without("one"), good)
    assert len({str(fault) for fault in faults}) == len(faults) == 3
    assert all("one" in str(fault) for fault in faults)
    assert [*unlike_record(good, records[0], ["one"])] == []


@pytest.mark.parametrize(
    ("smaller", "code"),
    [
        (machine(2, memory_bytes=50 * MIB, cpus_per_node=4), OVERCLAIMED),
        (machine(2, cpus_per_node=1), LOST_CPUS),
    ],
    ids=["memory", "CPUs"],
)
def test_what_hardware_took_away_is_no_mistake_of_ours(smaller: Machine, code: str, good: Ledger) -> None:
    faults = check(Basis(smaller, PlacementPolicy(), good))
    assert {fault.code for fault in faults} == {code}
    assert not any(fault.is_ours for fault in faults)


@pytest.mark.parametrize("name", DAMAGES)
async def test_the_daemon_puts_it_right_when_the_runtime_lists_what_runs(name: str, tmp_path: Path) -> None:
    async with controlled(tmp_path) as one:
        controller = one.controller
        await filled(controller)
        good = controller.state.ledger
        damage(controller, DAMAGES[name](good))
        assert [(fault.code, fault.is_ours) for fault in await controller.state.check_ledger()] == [
            (WRONG_TOTAL, True)
        ]
        assert controller.state.ledger == good
        assert controller.state.counters["ledger_faults"] == 1
        assert await controller.state.check_ledger() == ()
        damage(controller, DAMAGES[name](good))
        known = controller.state.known
        await controller.synchronize([*known.pods.values()], [*known.containers.values()])
        assert contradictions(controller.state.ledger) == ()


def damage(controller: Controller, ledger: Ledger) -> None:
    """Have the controller hold *ledger*, which nobody decided."""
    transactions = controller.state
    transactions.basis = transactions.basis.with_ledger(ledger)


async def test_what_is_recorded_is_what_is_held(tmp_path: Path) -> None:
    """Somebody else has written to the database: the disk gets back what is promised, and loses the rest."""
    async with controlled(tmp_path) as one:
        controller = one.controller
        await filled(controller)
        foreign = renamed(first(controller.state.ledger), "foreign", "elsewhere")
        await controller.state.recorder.submit(Step.of([foreign], ["two"])).finished()
        faults = await controller.state.check_ledger()
        assert {fault.code for fault in faults} == {NOT_RECORDED}
        assert len(faults) == 2
        assert await controller.state.check_ledger() == ()
        assert (
            await controller.state.recorder.ledger()
        ).entries.keys() == controller.state.ledger.entries.keys()


async def test_the_record_is_held_against_itself_at_the_start(tmp_path: Path) -> None:
    async with controlled(tmp_path) as one:
        twice = [alone(name, CpuSet([0])) for name in ("a", "b")]
        await one.controller.state.recorder.submit(Step.of(twice, [])).finished()
    async with controlled(tmp_path, became=None) as one:
        assert one.controller.state.counters["ledger_faults"] == 1


def test_it_is_cheap_enough_to_be_left_on(good: Ledger) -> None:
    """By the functions that are entered for each container, whatever the machine."""
    many = Ledger.of(
        renamed(good.entries[name], f"{name}{number}", f"p{number}")
        for name in ("three", "four")
        for number in range(100)
    )
    calls = 0

    def count(*event: object) -> None:
        nonlocal calls
        calls += event[1] in ("call", "c_call")

    sys.setprofile(count)
    try:
        contradictions(many)
    finally:
        sys.setprofile(None)
    assert calls < 70 * len(many.entries)
