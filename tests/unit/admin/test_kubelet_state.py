"""kubelet's own files are taken over from containers as it left them, and come out again as they were."""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from bayplan.admin.kubelet_state import exporting, importing
from bayplan.config.kubelet_rules import engine_of
from bayplan.config.reservations import static_managers
from bayplan.config.settings import Settings
from bayplan.engines.interface import KUBELET
from bayplan.engines.kubelet.cpu_checkpoint import CpuCheckpoint, format_checkpoint
from bayplan.engines.kubelet.cpu_state import CpuState
from bayplan.engines.kubelet.memory_checkpoint import format_checkpoint as format_memory
from bayplan.engines.kubelet.memory_checkpoint import parse_checkpoint as parse_memory
from bayplan.errors import ConfigError
from bayplan.host import shadow_mode
from bayplan.host.shadow_mode import ShadowModeError
from bayplan.model.decision import Outcome, QosClass
from bayplan.model.machine import Machine
from bayplan.model.workload import Container, ContainerState, Pod
from bayplan.placement.foreign_cpusets import PinningManager
from bayplan.quantity import MIB
from bayplan.sets import CpuSet, NodeSet
from support.controllers import Controlled, controlled
from support.machines import container, pod
from support.recorded_kubelet import FILES, MACHINE, PODS, POLICY, SETTINGS
from support.snapshots import make_snapshot

CPU_FILE, MEMORY_FILE = "cpu_manager_state", "memory_manager_state"
TEXTS = {name: (FILES / name).read_text() for name in (CPU_FILE, MEMORY_FILE)}
A, B, C = PODS
DEFAULT_CPUS = "0-1,4-7"
HAD = {A: ("2-3", "1"), B: (DEFAULT_CPUS, "0,2"), C: (DEFAULT_CPUS, "3"), "burstable": (DEFAULT_CPUS, "")}
"""By pod, the CPUs and nodes that kubelet gave to its container."""

ENGINES = ("exact", KUBELET)


def running(uid: str, cpus: str, mems: str) -> tuple[Pod, Container]:
    """A container called main as the runtime lists it."""
    milli, memory_bytes = PODS.get(uid, (None, None))
    owner = pod(uid, QosClass.GUARANTEED if uid in PODS else QosClass.BURSTABLE)
    one = container(f"id-{uid}", owner, memory_bytes=memory_bytes, milli_cpus=milli)
    spec = replace(
        one.resources,
        cpuset_cpus=CpuSet.parse(cpus) if cpus else None,
        cpuset_mems=NodeSet.parse(mems) if mems else None,
    )
    return owner, replace(one, name="main", resources=spec, state=ContainerState.RUNNING)


def listed(had: Mapping[str, tuple[str, str]] = HAD) -> tuple[list[Pod], list[Container]]:
    pairs = [running(uid, *ids) for uid, ids in had.items()]
    return [owner for owner, _ in pairs], [one for _, one in pairs]


@asynccontextmanager
async def beside_kubelet(
    directory: Path, engine: str = "exact", had: Mapping[str, tuple[str, str]] = HAD, on: Machine = MACHINE
) -> AsyncIterator[Controlled]:
    """A daemon that found the containers of a node on which kubelet's managers are static."""
    decides = engine_of(replace(SETTINGS, engine=engine))
    async with controlled(directory / "state", POLICY, on=on, engine=decides) as one:
        one.controller.state.decision_log.pins.configured = tuple(PinningManager)
        await one.controller.synchronize(*listed(had))
        yield one


async def take(one: Controlled, files: object = TEXTS, *, dry_run: bool = False) -> dict[str, Any]:
    question = importing(one.controller, one.verify_soon)
    return await question(make_snapshot(), {"files": files, "dryRun": dry_run})


async def give(one: Controlled, settings: Settings = SETTINGS) -> dict[str, Any]:
    question = exporting(one.controller, lambda: static_managers(settings, one.controller.state.machine))
    return await question(make_snapshot(), {})


def expected(one: Controlled) -> dict[str, tuple[str, str]]:
    """The CPUs and nodes that containers are to have, by pod."""
    return {
        each.container.id.removeprefix("id-"): (str(each.cpus or ""), str(each.mems or ""))
        for each in one.controller.state.expectations()
    }


async def wrong(
    directory: Path, files: object, *, had: Mapping[str, tuple[str, str]] = HAD, on: Machine = MACHINE
) -> str:
    """What is said of *files*; nothing was taken over."""
    async with beside_kubelet(directory, had=had, on=on) as one:
        before = one.controller.state.ledger
        with pytest.raises(ConfigError) as caught:
            await take(one, files)
        assert one.controller.state.ledger is before
        return str(caught.value)


@pytest.mark.parametrize("engine", ENGINES)
async def test_what_kubelet_had_given_is_promised_and_comes_out_again_as_it_was(
    tmp_path: Path, engine: str
) -> None:
    async with beside_kubelet(tmp_path, engine) as one:
        planned = await take(one, dry_run=True)
        assert planned["dryRun"]
        shares = one.controller.state.ledger.entries["id-burstable"].decision
        assert shares.request.pinned_cpus == CpuSet.parse(DEFAULT_CPUS)
        done = await take(one)
        assert [(each["name"], each["cpus"], each["mems"]) for each in done["containers"]] == [
            (f"default/{uid}/main", "2-3" if uid == A else "", HAD[uid][1]) for uid in sorted(PODS)
        ]
        assert sorted(done["sharing"]) == ["default/burstable/main"]
        ledger = one.controller.state.ledger
        assert ledger.exclusive_cpus == CpuSet([2, 3])
        assert {ledger.entries[f"id-{uid}"].decision.outcome for uid in PODS} == {Outcome.PLACED}
        assert expected(one) == HAD
        assert not one.controller.state.ledger.adopted.keys() & {f"id-{uid}" for uid in PODS}
        assert one.verifications
        before = one.controller.state.ledger
        sharing = {key for key, entry in before.entries.items() if entry.decision.shares_cpus}
        assert sharing >= {f"id-{uid}" for uid in (B, C, "burstable")}
        await take(one)  # a second time, it changes nothing
        assert one.controller.state.ledger == before
        again = await one.controller.synchronize(*listed())
        assert list(again) == []
        assert expected(one) == HAD
        given = await give(one)
        assert given["files"] == {name: json.loads(text) for name, text in TEXTS.items()}


@pytest.mark.parametrize("engine", ENGINES)
async def test_what_was_taken_over_stays_through_a_restart_and_goes_with_its_container(
    tmp_path: Path, engine: str
) -> None:
    async with beside_kubelet(tmp_path, engine) as one:
        await take(one)
    async with beside_kubelet(tmp_path, engine) as one:
        assert expected(one) == HAD
        owner, first = running(A, *HAD[A])
        await one.controller.stop_container(owner, first)
        assert one.controller.state.ledger.exclusive_cpus == CpuSet()
        assert expected(one)["burstable"] == ("0-7", "")


async def test_files_of_a_kubelet_that_knows_pods_as_a_whole_are_read(tmp_path: Path) -> None:
    cpus = CpuState(CpuSet.parse(DEFAULT_CPUS), {A: {"main": CpuSet([2, 3])}})
    memory = format_memory(parse_memory(TEXTS[MEMORY_FILE]), version=2)
    assert memory != TEXTS[MEMORY_FILE]

    async with beside_kubelet(tmp_path) as one:
        text = format_checkpoint(cpus, "static", pod_level_managers=True)
        await take(one, {CPU_FILE: text, MEMORY_FILE: memory})
        assert expected(one) == HAD


async def test_shadow_mode_takes_nothing_over_and_hands_nothing_back(tmp_path: Path) -> None:
    async with beside_kubelet(tmp_path) as one:
        before = one.controller.state.ledger
        with shadow_mode.shadow_mode():
            for question in (take(one), give(one)):
                with pytest.raises(ShadowModeError):
                    await question
        assert one.controller.state.ledger is before


async def test_cpus_under_strict_reservation_are_not_in_the_file(tmp_path: Path) -> None:
    state = CpuState(CpuSet.parse("1,4-7"), {A: {"main": CpuSet([2, 3])}})

    async with beside_kubelet(tmp_path, had={A: HAD[A]}) as one:
        await take(one, {CPU_FILE: format_checkpoint(state, "static")})
        assert one.controller.state.ledger.exclusive_cpus == CpuSet([2, 3])


async def test_one_file_alone(tmp_path: Path) -> None:
    async with beside_kubelet(tmp_path) as one:
        await take(one, {CPU_FILE: TEXTS[CPU_FILE]})
        assert one.controller.state.ledger.exclusive_cpus == CpuSet([2, 3])
        assert one.controller.state.ledger.entries[f"id-{B}"].decision.request.pinned_mems == NodeSet([0, 2])
        await take(one, {MEMORY_FILE: TEXTS[MEMORY_FILE]})
        assert expected(one) == HAD


async def test_containers_of_the_files_that_do_not_run_are_named_and_left_out(tmp_path: Path) -> None:
    async with beside_kubelet(tmp_path, had={uid: HAD[uid] for uid in (A, C)}) as one:
        done = await take(one)
        assert done["notRunning"] == [f"{B}/main"]
        assert {each["name"] for each in done["containers"]} == {f"default/{A}/main", f"default/{C}/main"}


async def test_version_1_is_read_by_container_ids(tmp_path: Path) -> None:
    checkpoint = CpuCheckpoint(1, "static", DEFAULT_CPUS, {f"id-{A}": "2-3"})
    text = json.dumps(
        {
            "policyName": "static",
            "defaultCpuSet": DEFAULT_CPUS,
            "entries": {f"id-{A}": "2-3"},
            "checksum": checkpoint.computed_checksum(),
        }
    )

    async with beside_kubelet(tmp_path) as one:
        await take(one, {CPU_FILE: text})
        assert one.controller.state.ledger.exclusive_cpus == CpuSet([2, 3])
    found = {B: HAD[B]}
    assert "containerID '" in await wrong(tmp_path / "other", {CPU_FILE: text}, had=found)


def edited(name: str, **changes: object) -> dict[str, str]:
    """The files, one of them with other values and the checksum of before."""
    return {**TEXTS, name: json.dumps({**json.loads(TEXTS[name]), **changes})}


@pytest.mark.parametrize(
    ("files", "problems"),
    [
        (edited(CPU_FILE, defaultCpuSet="0"), ["cpu_manager_state, checksum: found 863691028"]),
        (edited(MEMORY_FILE, entries={}), ["memory_manager_state, checksum: found 3503875419"]),
        (
            edited(CPU_FILE, policyName="none", checksum=0),
            ["cpu_manager_state, policyName: found 'none', expected 'static'"],
        ),
        (
            edited(MEMORY_FILE, policyName="None", checksum=0),
            ["memory_manager_state, policyName: found 'None', expected 'Static'"],
        ),
        (
            edited(CPU_FILE, defaultCpuSet="0-1,4-9", checksum=0),
            ["cpu_manager_state, machine: found CPUs 8-9"],
        ),
        (
            edited(CPU_FILE, defaultCpuSet="0-3", checksum=0),
            [f"cpu_manager_state, {A}/main: found CPUs 2-3, expected none of the defaultCpuSet 0-3"],
        ),
        (
            edited(CPU_FILE, defaultCpuSet="0-1,4-6", checksum=0),
            ["cpu_manager_state, machine: found CPUs 0-6 only, expected all of this machine: 0-7"],
        ),
        ({CPU_FILE: "{"}, ["cpu_manager_state, content: found unexpected end"]),
        ({MEMORY_FILE: "[]"}, ["memory_manager_state, content: found []"]),
        (
            {CPU_FILE: "{", MEMORY_FILE: "{"},
            ["2 problems:", "cpu_manager_state, content", "memory_manager_state, content"],
        ),
        (
            edited(MEMORY_FILE, entries={}, checksum=0),
            ["memory_manager_state, machineState: found other sums"],
        ),
        ({}, ["request: files: found dict, expected the texts of"]),
        ({"other": ""}, ["request: files: found dict"]),
        ("text", ["request: files: found str"]),
    ],
)
async def test_damage_another_policy_and_another_machine_are_told_apart(
    tmp_path: Path, files: object, problems: list[str]
) -> None:
    said = await wrong(tmp_path, files)
    for problem in problems:
        assert problem in said


async def test_every_change_of_the_machine_is_named(tmp_path: Path) -> None:
    nodes = list(MACHINE.nodes)
    nodes[1] = replace(nodes[1], memory_bytes=nodes[1].memory_bytes - MIB)
    said = await wrong(tmp_path, TEXTS, on=Machine(tuple(nodes[:3]), MACHINE.cpus[:6]))
    assert "cpu_manager_state, machine: found CPUs 6-7," in said
    assert "memory_manager_state, machine: found node 3," in said
    assert "(988942336 bytes) of memory on node 1, expected" in said


async def test_containers_that_are_not_as_the_files_say_are_all_named(tmp_path: Path) -> None:
    said = await wrong(tmp_path, TEXTS, had={**HAD, A: ("2,4", "1"), C: (DEFAULT_CPUS, "1")})
    assert f"default/{A}/main, in a file: found CPUs 2-3, expected the CPUs it has: 2,4" in said
    assert f"default/{C}/main, in a file: found node 3, expected the nodes it has: 1" in said
    assert "2 problems:" in said


async def test_pods_with_cpus_as_a_whole_cannot_be_taken_over(tmp_path: Path) -> None:
    state = CpuState(CpuSet.parse(DEFAULT_CPUS), {A: {"main": CpuSet([2, 3])}}, {A: CpuSet([2, 3])})
    text = format_checkpoint(state, "static", pod_level_managers=True)
    assert f"cpu_manager_state, podEntries, {A}: found CPUs 2-3, expected none" in await wrong(
        tmp_path, {CPU_FILE: text}
    )


async def test_cpus_that_are_reserved_here_cannot_be_taken_over(tmp_path: Path) -> None:
    state = CpuState(CpuSet.parse("2-7"), {A: {"main": CpuSet([0, 1])}})
    text = format_checkpoint(state, "static")
    said = await wrong(tmp_path, {CPU_FILE: text}, had={A: ("0-1", "1")})
    assert "found CPU 0, expected none that is reserved here" in said


async def refused(directory: Path, settings: Settings = SETTINGS) -> str:
    """Why what is placed after half of a take-over cannot be handed back."""
    async with beside_kubelet(directory) as one:
        await take(one, {CPU_FILE: TEXTS[CPU_FILE]})
        with pytest.raises(ConfigError) as caught:
            await give(one, settings)
        return str(caught.value)


async def test_what_kubelet_would_place_anew_keeps_anything_from_being_handed_back(tmp_path: Path) -> None:
    said = await refused(tmp_path)
    assert f"default/{B}/main: found CPUs or nodes that bayplan leaves alone" in said
    assert f"default/{C}/main: found CPUs or nodes that bayplan leaves alone" in said


async def test_a_configuration_that_kubelet_does_not_start_with_is_named_whole(tmp_path: Path) -> None:
    said = await refused(tmp_path, replace(SETTINGS, reserved_cpus=CpuSet(), reserved_memory=None))
    assert "cpuManagerPolicy" in said
    assert "reservedMemory" in said
