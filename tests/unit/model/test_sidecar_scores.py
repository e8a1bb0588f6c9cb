"""What a score that several containers of a pod have proves of each."""

import random
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayplan.engines.exact.engine import ExactEngine
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
from bayplan.model.machine import MEMORY, Machine
from bayplan.model.policy import PlacementPolicy
from bayplan.model.qos import BY_SCORE, explained_by_others
from bayplan.model.request import BY_ANNOTATION
from bayplan.model.resources import Resources
from bayplan.quantity import GIB, MIB
from bayplan.sets import NodeSet
from bayplan.simulate.comparison import simulate
from bayplan.simulate.manifest import plan_manifest
from bayplan.simulate.rehearsal import Rehearsal
from support.machines import machine

ALL = NodeSet([0, 1])
SCORED = Interval(0, 999, BY_SCORE, usual_low_bytes=900)


def entry(name: str, memory: Interval = SCORED, score: int | None = 700, pod: str = "p") -> Entry:
    request = Request(name, pod, name, QosClass.BURSTABLE, QosSource.CGROUP_PARENT, memory, score=score)
    claim = Claim(ALL, {MEMORY: memory.high_bytes, "hugepages-2Mi": 2})
    return Entry(Decision(request, Outcome.PLACED, Placement(claim=claim)))


def claimed(ledger: Ledger) -> dict[str, int]:
    claims = {key: one.decision.placement.claim for key, one in ledger.entries.items()}
    found = {key: claim.amounts_bytes.get(MEMORY, 0) for key, claim in claims.items() if claim is not None}
    assert ledger.claimed_bytes.get(ALL, {}).get(MEMORY, 0) == sum(found.values())
    return found


def of(entries: Iterable[Entry]) -> Ledger:
    return Ledger.of(entries)


def test_only_the_newest_of_a_pod_claims_what_their_score_says() -> None:
    ledger = of([entry("sidecar"), entry("app"), entry("apart", score=800), entry("other", pod="q")])
    assert claimed(ledger) == {"sidecar": 0, "app": 999, "apart": 999, "other": 999}
    sidecar = ledger.entries["sidecar"].decision.placement.claim
    assert sidecar is not None
    assert (sidecar.explained_bytes, sidecar.amounts_bytes) == (999, {"hugepages-2Mi": 2})


MEMORY_DRAWN = st.builds(
    lambda low, more, usual, source: Interval(low, low + more, source, usual_low_bytes=usual),
    st.integers(0, 4),
    st.sampled_from([0, 0, 1, 3]),
    st.none() | st.integers(0, 5),
    st.sampled_from([BY_SCORE, BY_ANNOTATION]),
)


@given(st.lists(MEMORY_DRAWN, max_size=6))
def test_a_score_is_explained_by_a_newer_one_or_a_known_one_that_is_as_large(drawn: list[Interval]) -> None:
    requests = [entry(str(number), one).decision.request for number, one in enumerate(drawn)]
    assert explained_by_others(requests) == [
        one.source == BY_SCORE
        and any(
            other.high_bytes >= one.likely_low_bytes and (at > number or other.exact)
            for at, other in enumerate(drawn)
            if at != number
        )
        for number, one in enumerate(drawn)
    ]


def test_what_was_explained_is_short_once_nothing_explains_it() -> None:
    ledger = of([entry("sidecar"), entry("app")]).without("app")
    sidecar = ledger.entries["sidecar"].decision.placement.claim
    assert sidecar is not None
    assert (sidecar.amounts_bytes.get(MEMORY), sidecar.short_bytes) == (None, {MEMORY: 999})
    back = ledger.with_entry(entry("app"))
    assert claimed(back) == {"sidecar": 0, "app": 999}
    promised = ledger.with_claims({"sidecar": entry("sidecar").decision.placement.claim or Claim(ALL)})
    assert claimed(promised) == {"sidecar": 999}
    assert promised.entries["sidecar"].decision.reasons == ()


def test_an_exact_request_explains_a_score_only_if_it_is_large_enough() -> None:
    large, small = Interval(950, 950, BY_ANNOTATION), Interval(10, 10, BY_ANNOTATION)
    assert claimed(of([entry("app", large), entry("sidecar")])) == {"app": 950, "sidecar": 0}
    assert claimed(of([entry("sidecar", small), entry("app")])) == {"sidecar": 10, "app": 999}
    assert claimed(of([entry("app"), entry("sidecar", small)])) == {"app": 999, "sidecar": 10}
    limited = Interval(0, 20, BY_SCORE, usual_low_bytes=20)
    assert claimed(of([entry("app"), entry("restarted", limited)])) == {"app": 999, "restarted": 20}


def test_a_ledger_is_the_same_whatever_the_order_of_its_records() -> None:
    live = of([entry("z-sidecar"), entry("app")])
    assert claimed(of(sorted(live.entries.values(), key=lambda one: one.container_id))) == claimed(live)
    assert claimed(of(reversed(list(live.entries.values())))) == claimed(live)


def test_a_change_that_is_none_changes_nothing() -> None:
    draw, ledger, expected = random.Random(1), Ledger(), dict[str, Entry]()
    for number in range(300):
        name = f"c{draw.randrange(6)}"
        if draw.randrange(3):
            one = expected[name] = entry(name, score=draw.choice([None, 700, 800]), pod=draw.choice("pq"))
            ledger = ledger.with_entry(one)
        else:
            ledger = ledger.without(name)
            expected.pop(name, None)
        assert ledger.entries.keys() == expected.keys(), number
        assert sum(claimed(ledger).values()) == 999 * len(
            {
                (one.decision.request.pod_id, one.decision.request.score or key)
                for key, one in expected.items()
            }
        ) - sum(_short(one) for one in ledger.entries.values())
        assert ledger.short_ids == {key for key, one in ledger.entries.items() if _short(one)}, number
        for one in tuple(ledger.entries.values()):
            assert ledger.with_entry(one).entries == ledger.entries


def _short(one: Entry) -> int:
    claim = one.decision.placement.claim
    return 0 if claim is None else claim.short_bytes.get(MEMORY, 0)


def _pod(name: str, annotations: dict[str, str], *, sidecar: bool = True) -> dict[str, object]:
    proxy = {"name": "proxy", "restartPolicy": "Always", "resources": {"requests": {"memory": "128Mi"}}}
    return {
        "kind": "Pod",
        "metadata": {"name": name, "annotations": annotations},
        "spec": {
            "initContainers": [proxy] if sidecar else [],
            "containers": [{"name": "app", "resources": {"requests": {"memory": "20Gi"}}}],
        },
    }


def _claims(stage: Rehearsal) -> dict[str, float]:
    return {
        one.decision.request.name.removeprefix("default/"): round(claim.amounts_bytes.get(MEMORY, 0) / GIB, 1)
        for one in stage.ledger.entries.values()
        if (claim := one.decision.placement.claim) is not None
    }


@pytest.fixture
def hardware() -> Machine:
    return machine(2, cpus_per_node=32, memory_bytes=125 * GIB)


def test_a_sidecar_claims_nothing_once_its_pods_container_is_there(hardware: Machine) -> None:
    stage = Rehearsal(hardware, PlacementPolicy(), ExactEngine())
    for number in range(5):
        for planned in plan_manifest(_pod(f"m{number}", {}), hardware):
            stage.admit(planned)
    assert _claims(stage) == {
        f"m{n}/{one}": size for n in range(5) for one, size in (("proxy", 0), ("app", 20.2))
    }
    for number in range(5):
        stage.release(f"default/m{number}/app")
    assert set(_claims(stage).values()) == {20.2}


def test_an_annotation_gives_a_request_where_nothing_else_does(hardware: Machine) -> None:
    stage = Rehearsal(hardware, PlacementPolicy(), ExactEngine())
    for planned in plan_manifest(_pod("m", {"proxy.bayplan.dev/memory-request": "128Mi"}), hardware):
        proxy, app = stage.admit(planned)
    assert proxy.request.memory == Interval(128 * MIB, 128 * MIB, "annotation")
    assert app.request.memory.source == BY_SCORE
    assert _claims(stage) == {"m/proxy": 0.1, "m/app": 20.2}
    for planned in plan_manifest(_pod("both", {"bayplan.dev/memory-request": "20Gi"}), hardware):
        decisions = stage.admit(planned)
    assert [one.request.memory.high_bytes for one in decisions] == [20 * GIB, 20 * GIB]


def test_an_annotated_request_that_cannot_be_is_told_of(hardware: Machine) -> None:
    stage = Rehearsal(hardware, PlacementPolicy(), ExactEngine())
    pod = _pod("m", {"bayplan.dev/memory-request": "30Gi"}, sidecar=False)
    for planned in plan_manifest(pod, hardware):
        (app,) = stage.admit(planned)
    assert app.request.memory.high_bytes < 21 * GIB
    assert "memory-request-not-used" in [reason.code for reason in app.reasons]


def test_a_resize_of_an_annotated_request_stays_within_its_limit(hardware: Machine) -> None:
    stage = Rehearsal(hardware, PlacementPolicy(), ExactEngine())
    pod = _pod("m", {"app.bayplan.dev/memory-request": "20Gi"}, sidecar=False)
    for planned in plan_manifest(pod, hardware):
        stage.admit(planned)
    decision = stage.resize("default/m/app", Resources(memory_limit_bytes=10 * GIB))
    assert decision is not None
    assert decision.request.memory.high_bytes == 10 * GIB


def test_five_pods_with_sidecars_leave_room_for_a_large_one(tmp_path: Path) -> None:
    """A pod of 60Gi on what five times 20Gi leave of two nodes of 125Gi."""
    topology, trace = tmp_path / "machine.toml", tmp_path / "trace.yaml"
    topology.write_text('[[nodes]]\ncount = 2\ncpus = 32\nmemory = "125Gi"\n')
    arrivals = [f"- arrive: {_pod(f'm{number}', {})!r}" for number in range(5)]
    trace.write_text("\n".join([*arrivals, "- {arrive: db, memory: 60Gi, cpus: 4}"]) + "\n")
    said = simulate(topology, trace, keys={"topologyManagerPolicy": ["single-numa-node"]})
    assert [step["outcome"] for step in said["runs"][0]["steps"]] == ["placed"] * 6
