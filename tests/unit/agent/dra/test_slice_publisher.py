"""ResourceSlices at an API server that follows its rules: published, changed, deleted by kubelet, back."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from msgspec.structs import replace

from bayplan.agent.dra.slices import SlicePublisher, devices_of
from bayplan.agent.mirror import Mirror
from bayplan.backoff import Backoff
from bayplan.model.ledger import Entry, Ledger
from bayplan.model.machine import Machine
from bayplan.views.snapshot import Snapshot
from support.conditions import running, until
from support.fake_api_server import NODE, SLICES, FakeApiServer
from support.layouts import Layout
from support.mirrors import mirror_of, show
from support.slice_rules import pool_devices
from support.snapshots import GUARANTEED, MACHINE, make_snapshot

NAME = f"{SLICES}/{NODE}-bayplan.dev-0"
EVERYTHING = make_snapshot()
NOTHING = make_snapshot(ledger=Ledger())
ONE_POD = make_snapshot(ledger=Ledger.of([Entry(GUARANTEED)]))


@asynccontextmanager
async def publishing(
    api: FakeApiServer, mirror: Mirror, interval_s: float = 0.01, again_s: float = 3600, timeout_s: float = 5
) -> AsyncIterator[None]:
    backoff = Backoff(lambda: 0.0, first_s=0.02, limit_s=0.02)
    with api.serving():
        part = SlicePublisher(api.api(timeout_s), mirror, NODE, interval_s, again_s, backoff)
        async with running(part):
            yield


def shows(api: FakeApiServer, snapshot: Snapshot) -> bool:
    found = pool_devices(api.slices())
    return found == {device["name"]: device for device in devices_of(snapshot)}


def writes(api: FakeApiServer) -> int:
    return sum(method in {"PATCH", "DELETE"} for method, _ in api.requests)


async def test_the_devices_follow_the_ledger_with_a_higher_generation_each() -> None:
    api, mirror, generations = FakeApiServer(), Mirror(), []
    async with publishing(api, mirror):
        for snapshot in (EVERYTHING, NOTHING, ONE_POD):
            show(mirror, snapshot)
            await until(lambda snapshot=snapshot: shows(api, snapshot))
            (one,) = api.slices()
            generations.append(one["spec"]["pool"]["generation"])
            assert one["spec"]["nodeName"] == one["spec"]["pool"]["name"] == NODE
            assert one["metadata"]["ownerReferences"][0]["uid"] == "node-uid"
    assert generations == sorted(set(generations))
    assert writes(api) == 3


@pytest.mark.parametrize(
    ("declared", "mapped"),
    [(["DRANodeAllocatableResources", "Other"], True), (["Other"], False), ([], False)],
)
async def test_what_devices_are_made_of_is_said_where_kubelet_declares_to_know_it(
    declared: list[str], mapped: bool
) -> None:
    api, mirror = FakeApiServer(), mirror_of(EVERYTHING)
    api.objects[f"/api/v1/nodes/{NODE}"]["status"] = {"declaredFeatures": declared}
    async with publishing(api, mirror, again_s=0.05):
        await until(lambda: bool(api.slices()))
        (one,) = api.slices()
        for device in one["spec"]["devices"]:
            found = device.get("nodeAllocatableResources", {})
            assert bool(found) is (mapped and bool(device["capacity"]))
            assert {row["mapping"]["capacityKey"] for row in found.values()} <= device["capacity"].keys()
        listings = api.requests.count(("GET", SLICES))
        await until(lambda: api.requests.count(("GET", SLICES)) > listings + 1)
    assert writes(api) == 1


async def test_without_a_change_nothing_is_written() -> None:
    api, mirror = FakeApiServer(), mirror_of(EVERYTHING)
    async with publishing(api, mirror, again_s=0.05):
        await until(lambda: shows(api, EVERYTHING))
        for _ in range(3):
            show(mirror, EVERYTHING)  # as after a new connection: equal, and all of it new values
            await asyncio.sleep(0.02)
        listings = api.requests.count(("GET", SLICES))
        await until(lambda: api.requests.count(("GET", SLICES)) > listings + 2)
    assert writes(api) == 1
    # Nor is anything by an agent that was started again.
    async with publishing(api, mirror):
        listings = api.requests.count(("GET", SLICES))
        await until(lambda: api.requests.count(("GET", SLICES)) > listings)
        await asyncio.sleep(0.05)
    assert writes(api) == 1


async def test_many_changes_are_one_publication_a_second() -> None:
    api, mirror = FakeApiServer(), mirror_of(NOTHING)
    async with publishing(api, mirror, interval_s=0.5):
        await until(lambda: shows(api, NOTHING))
        for number in range(100):
            show(mirror, EVERYTHING if number % 2 else NOTHING)
        await until(lambda: shows(api, EVERYTHING))
    assert writes(api) == 2


async def test_what_kubelet_deletes_at_its_start_comes_back_at_once() -> None:
    api = FakeApiServer()
    async with publishing(api, mirror_of(EVERYTHING)):
        for _ in range(3):
            await until(lambda: shows(api, EVERYTHING))
            await until(lambda: any(method == "WATCH" for method, _ in api.requests))
            api.delete(NAME)


async def test_the_generation_is_above_all_that_are_there() -> None:
    api, mirror = FakeApiServer(), mirror_of(EVERYTHING)
    async with publishing(api, mirror):
        await until(lambda: shows(api, EVERYTHING))
        await until(lambda: any(method == "WATCH" for method, _ in api.requests))
        with api.changed:
            (theirs,) = api.slices()
            spec = theirs["spec"]
            other = {**spec, "devices": [], "pool": {**spec["pool"], "generation": 40}}
            api.answer("PATCH", NAME, {"fieldManager": ["bayplan-agent"]}, {**theirs, "spec": other})
        await until(lambda: shows(api, EVERYTHING))
    (one,) = api.slices()
    assert one["spec"]["pool"]["generation"] > 40


async def test_slices_that_are_not_needed_any_more_go() -> None:
    api, mirror = FakeApiServer(), Mirror()
    many = Layout(sockets=70, cores=1, threads=1).machine()
    async with publishing(api, mirror):
        large = replace(NOTHING, machine=Machine(many.nodes, many.cpus))
        show(mirror, large)
        await until(lambda: shows(api, large))
        assert len(api.slices()) == 2
        show(mirror, replace(NOTHING, machine=MACHINE))
        await until(lambda: shows(api, NOTHING) and len(api.slices()) == 1)


async def test_only_the_engine_exact_has_devices(caplog: pytest.LogCaptureFixture) -> None:
    api, mirror = FakeApiServer(), mirror_of(EVERYTHING)
    async with publishing(api, mirror):
        await until(lambda: shows(api, EVERYTHING))
        show(mirror, replace(EVERYTHING, engine="kubelet"))
        await until(lambda: not api.slices() and bool(caplog.records))
        assert "engine: found kubelet" in caplog.records[0].problem
        show(mirror, EVERYTHING)
        await until(lambda: shows(api, EVERYTHING))


@pytest.mark.parametrize("verb", ["GET", "PATCH"])
async def test_what_may_not_be_done_is_one_line_and_then_it_goes_on(
    verb: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "bayplan")
    api = FakeApiServer()
    api.forbidden = {(verb, SLICES)}
    async with publishing(api, mirror_of(EVERYTHING)):
        await until(lambda: len(api.requests) >= 10 and bool(caplog.records))
        assert "answers 403" in caplog.records[0].problem
        api.forbidden = set()
        await until(lambda: shows(api, EVERYTHING))
        await until(lambda: len(caplog.records) > 1)
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]


async def test_an_api_server_that_is_killed_is_told_when_it_is_back() -> None:
    api, mirror = FakeApiServer(), mirror_of(EVERYTHING)
    async with publishing(api, mirror):
        await until(lambda: shows(api, EVERYTHING))
    show(mirror, NOTHING)
    async with publishing(api, mirror):
        await until(lambda: shows(api, NOTHING))


@pytest.mark.parametrize("takes_lists", [True, False])
async def test_lists_are_published_where_the_api_server_takes_them(takes_lists: bool) -> None:
    """It refuses a slice with one as a whole where it does not, which is learned once."""
    api, mirror, key = FakeApiServer(), Mirror(), "resource.kubernetes.io/pcieRoot"
    api.takes_lists = takes_lists
    nodes = tuple(replace(node, pcie_roots=(f"pci0000:0{node.id}",)) for node in MACHINE.nodes)
    machine = Machine(nodes, MACHINE.cpus)
    async with publishing(api, mirror):
        for number, ledger in enumerate((Ledger(), Ledger.of([Entry(GUARANTEED)]))):
            show(mirror, make_snapshot(machine=machine, ledger=ledger))
            await until(
                lambda number=number: len(api.slices()) == 1 and writes(api) > number + (not takes_lists)
            )
            (one,) = api.slices()
            found = [device["attributes"].get(key) for device in one["spec"]["devices"]]
            assert found == (
                [{"strings": [f"pci0000:0{each}"]} for each in (0, 1)] if takes_lists else [None] * 2
            )
        assert writes(api) == 2 + (not takes_lists)
