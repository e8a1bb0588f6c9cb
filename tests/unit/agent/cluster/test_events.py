"""Events on pods and on the Node: what is told, how often, and what an API server can do about it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from bayplan.agent.cluster.events import NOT_PUBLISHED, EventRecorder, on_node, refused
from bayplan.agent.kubelet_pods import pod_of_bytes
from bayplan.agent.mirror import Mirror
from bayplan.agent_protocol import Change, Evicted, Refused
from bayplan.backoff import Backoff
from bayplan.model.decision import MOVED_OVER, Decision, EvictionRecord, Outcome, QosClass, Reason
from bayplan.model.ledger import Entry
from bayplan.model.sentences import summary
from support.conditions import running, until
from support.fake_api_server import NODE, FakeApiServer
from support.fake_kubelet import recorded
from support.mirrors import mirror_of, show
from support.snapshots import BURSTABLE, GUARANTEED, PINNED, make_snapshot

FACTS = pod_of_bytes(recorded("burstable"))
EVENTS = "/apis/events.k8s.io/v1/namespaces/"


def decided(decision: Decision, container_id: str = "new", **changes: Any) -> Decision:
    request = replace(decision.request, container_id=container_id, name="default/burstable/main")
    return replace(decision, request=request, **changes)


REFUSED = decided(GUARANTEED, outcome=Outcome.REFUSED, reasons=(Reason("no-room", "node 0 is full"),))


def refuse(mirror: Mirror, decision: Decision = REFUSED, at_us: int = 1_700_000_000_000_123) -> None:
    position = mirror.position + 1
    mirror.take(Refused(position, at_us + position, decision))


def enter(mirror: Mirror, decision: Decision) -> None:
    mirror.take(Change(mirror.position + 1, (Entry(decision),)))


def told(api: FakeApiServer) -> list[dict[str, Any]]:
    return [one for path, one in api.objects.items() if path.startswith(EVENTS)]


def counts(api: FakeApiServer) -> list[int]:
    return [one.get("series", {}).get("count", 1) for one in told(api)]


@asynccontextmanager
async def recording(
    api: FakeApiServer, mirror: Mirror, interval_s: float = 0.05, timeout_s: float = 10
) -> AsyncIterator[EventRecorder]:
    backoff = Backoff(lambda: 0.0, first_s=0.02, limit_s=0.02)
    recorder = EventRecorder(api.api(timeout_s), mirror, NODE, lambda *_: FACTS, interval_s, backoff)
    async with running(recorder):
        await until(lambda: recorder._ledger is not None)
        yield recorder


async def test_a_refusal_is_an_event_on_its_pod_in_the_words_of_explain() -> None:
    api, mirror = FakeApiServer(), mirror_of(make_snapshot())
    with api.serving():
        async with recording(api, mirror):
            refuse(mirror)
            await until(lambda: bool(told(api)))
    (event,) = told(api)
    assert event.pop("metadata")["namespace"] == "default"
    assert event == {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "eventTime": "2023-11-14T22:13:20.000125Z",
        "reportingController": "bayplan.dev/agent",
        "reportingInstance": NODE,
        "action": "CreateContainer",
        "reason": "PlacementRefused",
        "regarding": {
            "apiVersion": "v1",
            "kind": "Pod",
            "namespace": "default",
            "name": "burstable",
            "uid": "uid-burstable",
            "fieldPath": "spec.containers{main}",
        },
        "note": f"container main: {summary(REFUSED)}",
        "type": "Warning",
    }


async def test_what_concerns_the_node_is_an_event_on_it_as_kubelets_own() -> None:
    api = FakeApiServer()
    with api.serving():
        async with recording(api, mirror_of(make_snapshot())) as recorder:
            recorder.report(on_node(NODE, NOT_PUBLISHED, "there is no such resource"))
            await until(lambda: bool(told(api)))
    (event,) = told(api)
    assert event["metadata"]["namespace"] == "default"
    assert event["regarding"] == {"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": NODE}
    shown = {key: event[key] for key in ("action", "reason", "type", "note")}
    assert shown == {
        "action": "PublishTopology",
        "reason": "TopologyNotPublished",
        "type": "Warning",
        "note": "there is no such resource",
    }


async def test_degraded_and_moved_containers_are_told_and_what_was_so_before_is_not() -> None:
    degraded = decided(BURSTABLE, "d", reasons=(Reason("overcommitted", "1Gi could not be promised"),))
    moved = decided(PINNED, "m", reasons=(Reason(MOVED_OVER, "now on node 1"),))
    api, mirror = FakeApiServer(), mirror_of(make_snapshot())
    with api.serving():
        async with recording(api, mirror):
            enter(mirror, degraded)
            await until(lambda: len(told(api)) == 1)
            enter(mirror, moved)
            await until(lambda: len(told(api)) == 2)
    assert [(one["reason"], one["type"], one["note"]) for one in told(api)] == [
        ("PlacementDegraded", "Warning", f"container main: {summary(degraded)}"),
        ("PlacementMoved", "Normal", "container main: now on node 1"),
    ]


async def test_an_eviction_is_an_event_on_the_pod_as_kubelets_own() -> None:
    api, mirror = FakeApiServer(), mirror_of(make_snapshot())
    amounts = (100, 50, 80, 0, 0)
    record = EvictionRecord(
        1_700_000_000_000_123,
        "x",
        "default/burstable/main",
        "node0.memory.available",
        QosClass.BEST_EFFORT,
        *amounts,
        "Node 0 is full. ",
    )
    with api.serving():
        async with recording(api, mirror):
            evicted = Evicted(mirror.position + 1, record, {"starved_resource": "memory"})
            mirror.take(evicted)
            # Sent again after a lost connection.
            mirror.take(evicted)
            await until(lambda: bool(told(api)))
    (event,) = told(api)
    assert event["metadata"]["annotations"] == {"starved_resource": "memory"}
    assert event["regarding"]["uid"] == "uid-burstable"
    assert "fieldPath" not in event["regarding"]
    shown = {key: event[key] for key in ("action", "reason", "type", "note")}
    assert shown == {
        "action": "EvictPod",
        "reason": "Evicted",
        "type": "Warning",
        "note": "Node 0 is full.",
    }


async def test_a_daemon_that_tells_everything_again_is_no_news() -> None:
    api, mirror = FakeApiServer(), mirror_of(make_snapshot())
    refuse(mirror)
    with api.serving():
        async with recording(api, mirror):
            show(mirror, make_snapshot())
            refuse(mirror, decided(REFUSED, "another"))
            await until(lambda: bool(told(api)))
    assert len(told(api)) == 1


async def test_repetitions_are_counted_in_one_event() -> None:
    api, mirror = FakeApiServer(), mirror_of(make_snapshot())
    with api.serving():
        async with recording(api, mirror):
            refuse(mirror)
            await until(lambda: counts(api) == [1])
            for number in range(99):
                refuse(mirror, decided(REFUSED, f"again-{number}"))
            await until(lambda: counts(api) == [100])
    assert len([one for one in api.requests if one[0] != "GET"]) <= 5


async def test_other_words_wait_and_are_a_new_event() -> None:
    api, mirror = FakeApiServer(), mirror_of(make_snapshot())
    with api.serving():
        async with recording(api, mirror, interval_s=0.3):
            for number in range(20):
                refuse(mirror, decided(REFUSED, reasons=(Reason("no-room", f"{number} Gi are missing"),)))
            await until(lambda: bool(told(api)))
            refuse(mirror)
            await until(lambda: len(told(api)) == 2)
    assert [one["note"].rpartition(": ")[2] for one in told(api)] == ["19 Gi are missing", "node 0 is full"]


async def test_an_event_that_the_server_does_not_keep_any_more_is_made_again() -> None:
    api, mirror = FakeApiServer(), mirror_of(make_snapshot())
    with api.serving():
        async with recording(api, mirror):
            refuse(mirror)
            await until(lambda: counts(api) == [1])
            for path in [path for path in api.objects if path.startswith(EVENTS)]:
                del api.objects[path]
            refuse(mirror)
            await until(lambda: counts(api) == [2])


async def test_what_a_server_that_hangs_could_not_take_comes_later(caplog: pytest.LogCaptureFixture) -> None:
    api, mirror = FakeApiServer(), mirror_of(make_snapshot())
    with api.serving():
        api.hangs = True
        async with recording(api, mirror, timeout_s=0.5):
            refuse(mirror)
            await until(lambda: bool(caplog.records))
            refuse(mirror)
            with api.changed:
                api.hangs = False
                api.changed.notify_all()
            await until(lambda: counts(api) == [2])
    assert {record.problem for record in caplog.records} == {f"{api.server.url}: no answer within 0.5 s"}


async def test_what_is_forbidden_is_not_told_again_and_keeps_nobody_waiting(
    caplog: pytest.LogCaptureFixture,
) -> None:
    api, mirror = FakeApiServer(), mirror_of(make_snapshot())
    api.forbidden.add(("POST", f"{EVENTS}default/"))
    elsewhere = replace(REFUSED, request=replace(REFUSED.request, name="shop/db/main"))
    with api.serving():
        async with recording(api, mirror):
            refuse(mirror)
            await until(lambda: bool(caplog.records))
            refuse(mirror, elsewhere)
            await until(lambda: bool(told(api)))
    assert told(api)[0]["regarding"]["namespace"] == "shop"
    assert "forbidden" in caplog.records[0].problem
    assert [method for method, _ in api.requests].count("POST") == 2


async def test_what_a_server_forbids_that_has_just_started_comes_later(
    caplog: pytest.LogCaptureFixture,
) -> None:
    api, mirror = FakeApiServer(), mirror_of(make_snapshot())
    with api.serving():
        pass  # it has a port, and is away
    async with recording(api, mirror):
        refuse(mirror)
        await until(lambda: bool(caplog.records))
        api.forbidden.add(("POST", f"{EVENTS}default/"))
        with api.serving():
            await until(lambda: len(api.requests) >= 2)
            api.forbidden.clear()
            await until(lambda: counts(api) == [1])


def test_a_note_has_as_many_bytes_as_an_event_may_have() -> None:
    long = decided(REFUSED, reasons=(Reason("no-room", "ü" * 2000),))
    recorder = EventRecorder(FakeApiServer().api(), Mirror(), NODE, lambda *_: None)
    recorder._notice(0, *refused(long))
    (series,) = recorder._series.values()
    note = recorder._event(series)["note"]
    assert len(note.encode()) in (1023, 1024)
    assert note.endswith("ü...")
