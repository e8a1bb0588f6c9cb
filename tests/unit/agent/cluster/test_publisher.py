"""The node's room at an API server that follows its rules: published, changed, refused, away and back."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from socket import gethostname
from typing import Any

import pytest

from bayplan.agent.cluster.api import ApiError
from bayplan.agent.cluster.events import Happening
from bayplan.agent.cluster.node_objects import topology_object
from bayplan.agent.cluster.pods import AwaitedPods
from bayplan.agent.cluster.publisher import TopologyPublisher, remove_topology
from bayplan.agent.mirror import Mirror
from bayplan.backoff import Backoff
from bayplan.model.ledger import Entry, Ledger
from support.conditions import running, until
from support.fake_api_server import NODE, TOPOLOGY, FakeApiServer
from support.mirrors import mirror_of, show
from support.snapshots import GUARANTEED, make_snapshot

PATH = f"{TOPOLOGY}/v1alpha2/noderesourcetopologies/{NODE}"
EVERYTHING = make_snapshot()
NOTHING = make_snapshot(ledger=Ledger())
ONE_POD = make_snapshot(ledger=Ledger.of([Entry(GUARANTEED)]))
BOOT_ID = Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def publisher(
    api: FakeApiServer,
    mirror: Mirror,
    interval_s: float = 0.01,
    again_s: float = 3600,
    timeout_s: float = 5,
    reported: list[Happening] | None = None,
    awaited: AwaitedPods | None = None,
) -> TopologyPublisher:
    backoff = Backoff(lambda: 0.0, first_s=0.02, limit_s=0.02)
    report = None if reported is None else reported.append
    asked, awaited = api.api(timeout_s), awaited or AwaitedPods()
    return TopologyPublisher(asked, mirror, awaited, NODE, report, interval_s, again_s, backoff)


def shows(api: FakeApiServer, snapshot) -> bool:
    return api.objects.get(PATH) == topology_object(NODE, "node-uid", snapshot)


def applied(api: FakeApiServer) -> int:
    return api.requests.count(("PATCH", PATH))


def on_machine(boot_id: str) -> dict[str, object]:
    """The node, of whose machine kubelet has said the boot id."""
    return {"metadata": {"name": NODE, "uid": "node-uid"}, "status": {"nodeInfo": {"bootID": boot_id}}}


@asynccontextmanager
async def publishing(api: FakeApiServer, mirror: Mirror, **more: Any) -> AsyncIterator[None]:
    with api.serving():
        async with running(publisher(api, mirror, **more)):
            yield


async def test_the_object_follows_the_ledger() -> None:
    api, mirror = FakeApiServer(), Mirror()
    async with publishing(api, mirror):
        for snapshot in (EVERYTHING, NOTHING, ONE_POD):
            show(mirror, snapshot)
            await until(lambda snapshot=snapshot: shows(api, snapshot))


async def test_a_pod_that_is_bound_and_not_yet_created_is_in_the_fingerprint() -> None:
    api, awaited = FakeApiServer(), AwaitedPods()
    async with publishing(api, mirror_of(EVERYTHING), awaited=awaited):
        await until(lambda: shows(api, EVERYTHING))
        awaited.keep({"uid": ("default", "web")})
        wanted = topology_object(NODE, "node-uid", EVERYTHING, frozenset({("default", "web")}))
        assert wanted != topology_object(NODE, "node-uid", EVERYTHING)
        await until(lambda: api.objects.get(PATH) == wanted)
        awaited.keep({})
        await until(lambda: shows(api, EVERYTHING))


async def test_what_changes_nothing_is_not_published() -> None:
    api, mirror = FakeApiServer(), mirror_of(EVERYTHING)
    async with publishing(api, mirror):
        await until(lambda: shows(api, EVERYTHING))
        for _ in range(3):
            show(mirror, EVERYTHING)  # as after a new connection: equal, and all of it new values
            await asyncio.sleep(0.02)
        show(mirror, NOTHING)
        await until(lambda: shows(api, NOTHING))
    assert applied(api) == 2


async def test_many_changes_are_one_publication_a_second() -> None:
    api, mirror = FakeApiServer(), mirror_of(NOTHING)
    async with publishing(api, mirror, interval_s=0.5):
        await until(lambda: shows(api, NOTHING))
        began_s = asyncio.get_running_loop().time()
        for number in range(100):
            show(mirror, EVERYTHING if number % 2 else NOTHING)
        await until(lambda: shows(api, EVERYTHING))
        assert asyncio.get_running_loop().time() - began_s >= 0.25
    assert applied(api) == 2


async def test_what_others_deleted_comes_back() -> None:
    api = FakeApiServer()
    async with publishing(api, mirror_of(EVERYTHING), again_s=0.05):
        for _ in range(2):
            await until(lambda: shows(api, EVERYTHING))
            del api.objects[PATH]


async def test_the_node_of_this_machine_is_published() -> None:
    api = FakeApiServer()
    api.objects[f"/api/v1/nodes/{NODE}"] = on_machine(BOOT_ID)
    async with publishing(api, mirror_of(EVERYTHING)):
        await until(lambda: shows(api, EVERYTHING))


async def test_a_node_of_the_same_name_is_the_owner_from_then_on() -> None:
    api = FakeApiServer()
    async with publishing(api, mirror_of(EVERYTHING), again_s=0.05):
        await until(lambda: shows(api, EVERYTHING))
        api.objects[f"/api/v1/nodes/{NODE}"]["metadata"]["uid"] = "another"
        await until(lambda: api.objects[PATH] == topology_object(NODE, "another", EVERYTHING))


@pytest.mark.parametrize(
    ("trouble", "problem", "events"),
    [
        ({"crd_versions": ()}, "install its CustomResourceDefinition", 1),
        ({"crd_versions": ("v1alpha1",)}, "as v1alpha1, not as v1alpha2", 1),
        ({"forbidden": {("PATCH", TOPOLOGY)}}, 'answers 403: "/apis/topology', 1),
        ({"forbidden": {("GET", "/api/v1/nodes")}}, 'answers 403: "/api/v1/nodes/node-a" is forbidden', 1),
        ({"objects": {}}, "answers 404: /api/v1/nodes/node-a not found", 1),
        ({"objects": {f"/api/v1/nodes/{NODE}": {"metadata": []}}}, "not what an API server answers", 0),
        ({"objects": {f"/api/v1/nodes/{NODE}": on_machine("another")}}, BOOT_ID, 1),
        # There would be nobody to tell.
        ({"hangs": True}, "no answer within 0.3 s", 0),
    ],
)
async def test_what_is_in_the_way_is_one_line_and_one_event_and_then_it_goes_on(
    trouble: dict, problem: str, events: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "bayplan")
    api, usual = FakeApiServer(), FakeApiServer()
    for name, value in trouble.items():
        setattr(api, name, value)
    reported: list[Happening] = []
    # Each request that nobody answers takes seconds.
    timeout_s, repeated = (0.3, 3) if api.hangs else (5, 10)
    async with publishing(api, mirror_of(EVERYTHING), timeout_s=timeout_s, reported=reported):
        await until(lambda: len(api.requests) >= repeated and bool(caplog.records))
        (record,) = caplog.records
        assert record.levelname == "WARNING"
        assert problem in record.problem
        with api.changed:
            for name in trouble:
                setattr(api, name, getattr(usual, name))
            api.changed.notify_all()
        await until(lambda: shows(api, EVERYTHING))
        await until(lambda: len(caplog.records) > 1)
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    assert [(one.namespace, one.name, one.reason) for one in reported] == [
        ("", NODE, "TopologyNotPublished")
    ] * events
    assert all(one.note == f"bayplan-agent on {gethostname()}: {record.problem}" for one in reported)


async def test_a_denial_that_passes_is_no_event(caplog: pytest.LogCaptureFixture) -> None:
    """As of an API server that has not read its roles yet."""
    api, reported = FakeApiServer(), list[Happening]()
    api.forbidden = {("GET", "/api/v1/nodes")}
    async with publishing(api, mirror_of(EVERYTHING), reported=reported):
        await until(lambda: bool(caplog.records))
        api.forbidden = set()
        await until(lambda: shows(api, EVERYTHING))
    assert reported == []


async def test_another_agent_of_the_same_name_is_one_line_and_one_event_until_it_is_gone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "bayplan")
    api, mirror, reported = FakeApiServer(), mirror_of(EVERYTHING), list[Happening]()
    theirs = topology_object(NODE, "node-uid", ONE_POD)

    def other_agent_writes() -> None:
        with api.changed:
            api.answer("PATCH", PATH, {"fieldManager": ["bayplan-agent"]}, theirs)

    async with publishing(api, mirror, again_s=0.05, reported=reported):
        for snapshot in (NOTHING, EVERYTHING, NOTHING):
            show(mirror, snapshot)
            await until(lambda snapshot=snapshot: shows(api, snapshot))
        assert caplog.records == []
        for _ in range(3):
            other_agent_writes()
            await until(lambda: shows(api, NOTHING))
        await until(lambda: len(caplog.records) == 2)
    problem = f"{PATH}: changed in between; has another agent this --node-name?"
    warning, over = caplog.records
    assert (warning.levelname, warning.problem, over.levelname) == ("WARNING", problem, "INFO")
    (event,) = reported
    assert (event.name, event.reason) == (NODE, "TopologyOverwritten")
    assert event.note.endswith(problem)


async def test_a_write_whose_answer_was_lost_is_nobody_elses(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "bayplan")
    api, mirror = FakeApiServer(), mirror_of(NOTHING)
    async with publishing(api, mirror):
        await until(lambda: shows(api, NOTHING))
        api.loses_answers = True
        show(mirror, EVERYTHING)
        await until(lambda: shows(api, EVERYTHING) and bool(caplog.records))
        show(mirror, ONE_POD)
        api.loses_answers = False
        await until(lambda: shows(api, ONE_POD))
        await until(lambda: len(caplog.records) > 1)
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]


async def test_an_api_server_that_is_killed_is_told_when_it_is_back() -> None:
    api, mirror = FakeApiServer(), mirror_of(EVERYTHING)
    async with AsyncExitStack() as stack:
        with api.serving():
            await stack.enter_async_context(running(publisher(api, mirror)))
            await until(lambda: shows(api, EVERYTHING))
        show(mirror, NOTHING)
        await asyncio.sleep(0.1)  # it tries meanwhile
        with api.serving():
            await until(lambda: shows(api, NOTHING))


async def test_an_object_of_another_publisher_is_left_to_it(caplog: pytest.LogCaptureFixture) -> None:
    api = FakeApiServer()
    api.objects[PATH] = {"zones": []}
    api.taken_by(PATH, "nfd-topology-updater")
    async with publishing(api, mirror_of(EVERYTHING)):
        await until(lambda: bool(caplog.records))
    assert 'conflict with "nfd-topology-updater"' in caplog.records[0].problem
    assert "is another publisher" in caplog.records[0].problem
    assert api.objects[PATH] == {"zones": []}


async def test_the_object_is_removed_once() -> None:
    api = FakeApiServer()
    with api.serving():
        api.objects[PATH] = {"zones": []}
        assert await remove_topology(api.api(), NODE)
        assert PATH not in api.objects
        assert not await remove_topology(api.api(), NODE)
        api.forbidden.add(("DELETE", TOPOLOGY))
        with pytest.raises(ApiError) as refused:
            await remove_topology(api.api(), NODE)
        assert refused.value.status == HTTPStatus.FORBIDDEN
