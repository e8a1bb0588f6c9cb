"""Claims of another driver: each adopted whole on the CPUs that it has, or left out with the reason."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from bayplan.engines.exact.engine import ExactEngine
from bayplan.engines.kubelet.engine import KubeletEngine
from bayplan.errors import ConfigError
from bayplan.model.basis import Basis
from bayplan.model.ledger import Ledger
from bayplan.model.policy import PlacementPolicy
from bayplan.placement.claim_adoption import Adoption, adopt_claims, read_checkpoint
from bayplan.placement.ledger_check import check
from bayplan.placement.reconcile import reconcile
from bayplan.sets import CpuSet
from support.controllers import MACHINE
from support.former_driver import (
    OTHER,
    SHARED,
    SOLVER_CPUS,
    SOLVER_UID,
    SPECS,
    STATE,
    WEB_CPUS,
    WEB_UID,
    listed,
    running,
    state_with,
)

ENGINE = ExactEngine()
WEB_SPEC = f"dra.k8s.io-cpu_claim-{WEB_UID}.json"
Claims = list[dict[str, Any]]


def found(containers: list[Any] | None = None, policy: PlacementPolicy = PlacementPolicy()) -> Basis:
    """A ledger with what was found running."""
    pods, running_now = listed()
    basis = Basis(MACHINE, policy, Ledger())
    those = running_now if containers is None else containers
    return basis.with_ledger(reconcile(basis, ENGINE, {one.id: one for one in pods}, those).ledger)


def adopted(
    basis: Basis, state: str = STATE, specs: dict[str, str] = SPECS, containers: list[Any] | None = None
) -> Adoption:
    pods, running_now = listed()
    of = {one.id: one for one in pods}
    those = running_now if containers is None else containers
    now = {one.id: (of[one.pod_id], one) for one in those}
    return adopt_claims(basis, ENGINE, read_checkpoint(state), specs, now)


def test_claims_have_the_cpus_that_they_had_and_nobody_else_has_them() -> None:
    result = adopted(found())
    held = {one.claim.uid: one for one in result.adopted}
    assert {uid: one.cpus_of() for uid, one in held.items()} == {WEB_UID: WEB_CPUS, SOLVER_UID: SOLVER_CPUS}
    assert [(one.node, one.cpus) for one in held[SOLVER_UID].claim.devices] == [(0, 1), (1, 2)]
    assert held[WEB_UID].claim.pod_uids == ("web",)
    assert (result.left_out, result.users, result.sharing) == ((), ("solver", "web"), ("other",))
    ledger = result.ledger
    assert check(Basis(MACHINE, PlacementPolicy(), ledger)) == ()
    assert ledger.exclusive_cpus == WEB_CPUS | SOLVER_CPUS
    for key, cpus in (("web", WEB_CPUS), ("solver", SOLVER_CPUS)):
        decision = ledger.entries[key].decision
        assert (decision.placement.own_cpus, decision.request.pinned_cpus) == (cpus, None)
        assert ledger.entries[key].notified_cpus == cpus
    # Not a byte more is promised, or less.
    before = {key: one.decision.placement.promise for key, one in found().ledger.entries.items()}
    assert {key: one.decision.placement.promise for key, one in ledger.entries.items()} == before


def test_what_is_adopted_stays_so_however_often_it_is_asked_for() -> None:
    basis = found()
    first = adopted(basis)
    again = adopted(basis.with_ledger(first.ledger))
    assert again.ledger == first.ledger
    assert again.adopted == first.adopted
    # Also once the specs are gone, which are in the record.
    assert adopted(basis.with_ledger(first.ledger), specs={}).ledger == first.ledger


def test_what_kubelet_has_twice_is_adopted_once() -> None:
    """A kubelet v1.36 that is restarted adds what is answered to what it had."""

    def twice(claims: list[dict[str, Any]]) -> None:
        for one in claims:
            for state in one["DriverState"].values():
                state["Devices"] *= 2

    assert read_checkpoint(state_with(twice)) == read_checkpoint(STATE)


def test_the_answers_and_the_specs_of_the_other_driver_are_kept() -> None:
    (held,) = (one for one in adopted(found()).adopted if one.claim.uid == SOLVER_UID)
    assert held.adopted is not None
    assert [one.device for one in held.adopted.devices] == ["cpudev001", "cpudev004", "cpudev005"]
    assert held.adopted.devices[0].cdi_devices[0] == f"dra.k8s.io/cpu=claim-{SOLVER_UID}"
    assert held.adopted.specs == {name: text for name, text in SPECS.items() if SOLVER_UID in name}


def test_a_claim_whose_pod_has_no_container_yet_is_adopted() -> None:
    _, containers = listed()
    result = adopted(found(containers[1:]), containers=containers[1:])
    assert len(result.adopted) == 2
    assert result.users == ("solver",)


def changed_spec(text: str) -> dict[str, str]:
    return {**SPECS, WEB_SPEC: text}


def spec_of(cpus: str) -> dict[str, str]:
    return changed_spec(SPECS[WEB_SPEC].replace(f"DRA_CPUSET_{WEB_UID}=2-3", f"DRA_CPUSET_{WEB_UID}={cpus}"))


def two_pods(claims: Claims) -> None:
    claims[0]["PodUIDs"] = {"a": {}, "b": {}}


def odd_uid(claims: Claims) -> None:
    claims[0]["ClaimUID"] = "../../etc"


@pytest.mark.parametrize(
    ("state", "specs", "word"),
    [
        (STATE, {name: text for name, text in SPECS.items() if name != WEB_SPEC}, "none with the device"),
        (STATE, changed_spec("{"), WEB_SPEC),
        (STATE, changed_spec('{"kind": "dra.k8s.io/cpu", "devices": 1}'), WEB_SPEC),
        (STATE, spec_of(""), "at least one CPU"),
        (STATE, spec_of("2-x"), "2-x"),
        (STATE, spec_of("2-99"), "CPUs 8-99"),
        (STATE, spec_of("1-2"), "which"),
        (STATE, changed_spec(SPECS[WEB_SPEC].replace("DRA_CPUSET_", "DRA_CPUS_")), "0 variables"),
        (state_with(two_pods), SPECS, "2 pods"),
        (state_with(odd_uid), SPECS, "../../etc"),
    ],
)
def test_what_cannot_be_adopted_is_left_out_with_the_reason_and_the_rest_is_not(
    state: str, specs: dict[str, str], word: str
) -> None:
    basis = found()
    result = adopted(basis, state, specs)
    problems = [one for one in result.left_out if word in one.problem]
    assert len(problems) == len(result.left_out) == 1
    assert len(result.adopted) == 1
    assert check(basis.with_ledger(result.ledger)) == ()


def test_reserved_cpus_are_nobodys_own() -> None:
    policy = PlacementPolicy(reserved_cpus=CpuSet([3]))
    result = adopted(found(policy=policy))
    assert [one.uid for one in result.left_out] == [WEB_UID]
    assert "CPU 3" in result.left_out[0].problem


def test_a_container_that_has_other_cpus_stays_as_it_is() -> None:
    _, (web, solver, other) = listed()
    moved = replace(web, resources=replace(web.resources, cpuset_cpus=CpuSet([0, 2])))
    result = adopted(found([moved, solver, other]), containers=[moved, solver, other])
    assert [one.uid for one in result.left_out] == [WEB_UID]
    assert "web-name" in result.left_out[0].problem
    assert result.ledger.entries["web"].decision.request.pinned_cpus == CpuSet([0, 2])


def test_a_variable_alone_makes_nobody_a_user() -> None:
    """Whoever writes a pod writes its variables."""
    _, (web, solver, other) = listed()
    liar = running(OTHER, "liar", SHARED, WEB_UID)
    result = adopted(found([web, solver, other, liar]), containers=[web, solver, other, liar])
    assert result.users == ("solver", "web")
    assert result.ledger.entries["liar"].decision.request.claimed is None


def test_the_engine_that_keeps_no_promises_to_claims_adopts_none() -> None:
    basis = found()
    result = adopt_claims(basis, KubeletEngine(), read_checkpoint(STATE), SPECS, {})
    assert (result.adopted, len(result.left_out), result.ledger) == ((), 2, basis.ledger)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[]",
        '{"Data": 1, "Checksum": 2}',
        '{"Data": "{}", "Checksum": 1}',
        STATE.replace('"Checksum":', '"Checksum":1'),
        STATE.replace("default", "defaulT"),
        '{"Data": "null", "Checksum": 1996932566}',
        "[" * 100_000,
    ],
)
def test_what_is_no_record_of_kubelet_is_one_error(text: str) -> None:
    with pytest.raises(ConfigError) as error:
        read_checkpoint(text)
    assert "dra_manager_state" in str(error.value)


def test_a_node_without_claims_has_a_record_without_any() -> None:
    def none(claims: Claims) -> None:
        claims.clear()

    assert read_checkpoint(state_with(none)) == ()
    # As a user's report has it (kubernetes#131513).
    reported = (
        r'{"Data":"{\"kind\":\"DRACheckpoint\",\"apiVersion\":\"checkpoint.dra.kubelet.k8s.io/v1\",'
        r'\"ClaimInfoStateList\":[]}","Checksum":2361995144}'
    )
    assert read_checkpoint(reported) == ()


FIELDS: list[Callable[[Claims], None]] = [
    lambda claims: claims[0].pop("PodUIDs"),
    lambda claims: claims[0].pop("DriverState"),
    lambda claims: claims[0]["DriverState"]["dra.cpu"].update(Devices=None),
    lambda claims: claims[0]["DriverState"]["dra.cpu"]["Devices"][0].update(CDIDeviceIDs=None),
    lambda claims: claims[0]["DriverState"]["dra.cpu"]["Devices"][0].update(RequestNames=None),
    lambda claims: claims.append(claims[0]),
]


@given(
    changes=st.lists(st.sampled_from(FIELDS), max_size=3, unique=True),
    gone=st.sets(st.sampled_from(sorted(SPECS))),
)
def test_whatever_lacks_nothing_is_held_twice(
    changes: list[Callable[[Claims], None]], gone: set[str]
) -> None:
    def change(claims: Claims) -> None:
        for one in changes:
            # Of what an earlier change has taken.
            with suppress(KeyError, TypeError):
                one(claims)

    basis = found()
    specs = {name: text for name, text in SPECS.items() if name not in gone}
    result = adopted(basis, state_with(change), specs)
    assert check(basis.with_ledger(result.ledger)) == ()
    claims = result.ledger.resource_claims
    assert {one.claim.key for one in result.adopted} == set(claims)
    assert not WEB_CPUS & SOLVER_CPUS
    assert result.ledger.exclusive_cpus >= CpuSet(cpu for one in claims.values() for cpu in one.cpus_of())
