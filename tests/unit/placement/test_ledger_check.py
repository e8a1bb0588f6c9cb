"""The ledger held against itself: whatever is changed behind its back is found, and put right."""

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from bayplan.control.controller import Controller
from bayplan.model.basis import Basis
from bayplan.model.decision import QosClass
from bayplan.model.ledger import Entry, Ledger
from bayplan.model.machine import MEMORY, Machine
from bayplan.model.policy import PlacementPolicy
from bayplan.persistent_map import PersistentMap
from bayplan.placement.ledger_check import (
    LOST_CPUS,
    NOT_RECORDED,
    OVERCLAIMED,
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


def test_a_cpu_has_one_owner(good: Ledger) -> None:
    placement = first(good).decision.placement
    other = good.entries["two"]
    both = replace(other.decision.placement, exclusive_cpus=placement.exclusive_cpus)
    damaged = Ledger.of(
        {**good.entries, "two": replace(other, decision=replace(other.decision, placement=both))}.values()
    )
    assert [fault.code for fault in contradictions(damaged)] == [TWO_OWNERS]


def test_an_id_is_its_entrys(good: Ledger) -> None:
    damaged = replace(good, entries=good.entries.with_item("other", good.entries["four"]))
    assert WRONG_ID in {fault.code for fault in contradictions(damaged)}
    assert mended(damaged) == good
    ended = good.entries.with_item("one", replace(first(good), ended=True))
    assert WRONG_ID in {fault.code for fault in contradictions(replace(good, entries=ended))}


def test_what_a_pod_keeps_is_its_last_containers(good: Ledger) -> None:
    last = replace(first(good), ended=True)
    for kept in ({"g": first(good)}, {"other": last}):
        assert WRONG_ID in {fault.code for fault in contradictions(replace(good, retained=kept))}
    pod_id = last.decision.request.pod_id
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
