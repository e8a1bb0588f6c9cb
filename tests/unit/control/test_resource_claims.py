"""Claims that are held: recorded before the answer, told by CDI specs, and nothing lost whoever is killed
when."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path

import pytest
from msgspec.structs import replace

from bayplan.control.resource_claims import ResourceClaims
from bayplan.daemon.shadow import ShadowResourceClaims
from bayplan.errors import HostError, PlacementError, StateError, UnavailableError
from bayplan.host.devices import CdiSpecs, ClaimSpecs
from bayplan.host.shadow_mode import ShadowModeError, shadow_mode
from bayplan.model.claims import HeldClaim, cdi_name, claims_in
from bayplan.model.decision import QosClass
from bayplan.nri import Event
from bayplan.quantity import MIB
from bayplan.sets import CpuSet
from support.controllers import MACHINE, Controlled, begun, controlled, full_disk, here
from support.machines import container, machine, pod
from support.resource_claims import UID, WIDE, claim, device, having

POD = pod("web", QosClass.BEST_EFFORT)
PROJECT = Path(__file__).parents[3]


def served(
    node: Controlled,
    specs: Path,
    raise_limits: Callable[[str, Mapping[int, int]], None] = lambda _, __: None,
) -> ResourceClaims:
    """The owner of claims as a daemon has it, whose CDI specs are in a directory."""
    state, placements = node.controller.state, node.controller.placements
    claims = ResourceClaims(state, placements, ClaimSpecs(specs), here, raise_limits)
    node.before_start.append(claims.before_start)
    return claims


def told(specs: Path) -> list[str]:
    """What the environment says of a container with all devices of all specs."""
    found = []
    for path in sorted(specs.glob("*.json")):
        spec = json.loads(path.read_bytes())
        assert spec["kind"] == "bayplan.dev/claim"
        for one in spec["devices"]:
            found += claims_in(one["containerEdits"]["env"])
    return found


async def test_a_claim_is_recorded_and_told_and_released(tmp_path: Path) -> None:
    specs = tmp_path / "cdi"
    async with controlled(tmp_path / "state") as node:
        claims = served(node, specs)
        held = await claims.prepare(WIDE)
        assert told(specs) == [f"{UID}/near", f"{UID}/far"]
        assert await claims.prepare(WIDE) == held
        assert (
            await node.controller.state.recorder.ledger()
        ).retained == node.controller.state.ledger.retained
        # Every client of CDI reads it, ours too; it is no device.
        assert CdiSpecs(str(tmp_path)).device_nodes
        (path,) = specs.iterdir()
        assert path.stat().st_mode & 0o777 == 0o644
        assert await claims.release(UID)
        assert not await claims.release(UID)
        assert not await claims.release("never-heard-of")
        assert told(specs) == []
        assert node.controller.state.ledger.retained == {}
    async with controlled(tmp_path / "state") as node:
        assert node.controller.state.ledger.retained == {}


async def test_what_a_claim_had_before_is_not_held_where_it_cannot_be_held_anew(tmp_path: Path) -> None:
    specs = tmp_path / "cdi"
    first, anew = claim(device(0, 128, 1)), claim(device(1, 4096))
    async with controlled(tmp_path / "state") as node:
        state = node.controller.state
        claims = served(node, specs)
        await claims.prepare(first)
        one = having(container("c", POD), first)
        await begun(node.controller, POD, one)
        with pytest.raises(PlacementError, match="containers run on what it had"):
            await claims.prepare(anew)
        assert state.ledger.resource_claims[first.key].claim == first
        await node.controller.stop_container(POD, one)
        with pytest.raises(PlacementError):
            await claims.prepare(anew)
        assert state.ledger.resource_claims == {}
        assert told(specs) == []
        assert await state.check_ledger() == ()
        await claims.prepare(first)


async def test_containers_of_the_pod_get_what_is_held(tmp_path: Path) -> None:
    async with controlled(tmp_path / "state") as node:
        claims = served(node, tmp_path / "cdi")
        one = having(container("c", POD), WIDE)
        with pytest.raises(PlacementError) as refused:
            await node.controller.create_container(POD, one)
        assert UID in str(refused.value)
        held = await claims.prepare(WIDE)
        adjustment, _ = await begun(node.controller, POD, one)
        assert str(adjustment.cpuset_mems) == "0-1"
        assert adjustment.cpuset_cpus == held.cpus_of()
        # Others run beside them.
        other = pod("other", QosClass.BEST_EFFORT)
        beside, _ = await begun(node.controller, other, container("d", other))
        assert beside.cpuset_cpus is not None
        assert beside.cpuset_cpus.isdisjoint(held.cpus_of())
        with pytest.raises(UnavailableError) as busy:
            await claims.release(UID)
        assert "c-name" in str(busy.value)
        await node.controller.stop_container(POD, one)
        assert await claims.release(UID)


async def test_the_pods_limit_of_huge_pages_lets_its_containers_use_them(tmp_path: Path) -> None:
    raised: list[tuple[str, dict[int, int]]] = []

    def raise_limits(path: str, limits: Mapping[int, int]) -> None:
        raised.append((path, dict(limits)))
        if len(raised) > 1:
            raise HostError(path, "refused")

    pages = claim(device(0, hugepages_2Mi=64), device(1, hugepages_2Mi=32, request="far"))
    on = machine(2, hugepages_bytes={2 * MIB: 128 * MIB})
    async with controlled(tmp_path / "state", on=on) as node:
        claims = served(node, tmp_path / "cdi", raise_limits)
        await claims.prepare(pages)
        one = having(container("c", POD), pages, requests=("near",))
        adjustment, _ = await begun(node.controller, POD, one)
        assert adjustment.hugepage_limits_bytes == {2 * MIB: 64 * MIB}
        for _ in range(2):
            await node.controller.state_changed(Event.START_CONTAINER, POD, one)
        of_all, of_pod = ("/kubepods", {2 * MIB: 96 * MIB}), (POD.cgroup_parent, {2 * MIB: 96 * MIB})
        assert raised == [of_all, of_pod] * 2
        assert node.controller.state.counters["hugepage_limits_failed"] == 3


async def test_kubelets_limit_of_all_pods_lets_them_use_pools_that_grew_since_its_start(
    tmp_path: Path,
) -> None:
    """Claims and containers together, of which none is in its limits without the others."""
    raised: list[tuple[str, dict[int, int]]] = []
    on = machine(2, hugepages_bytes={2 * MIB: 128 * MIB})
    async with controlled(tmp_path / "state", on=on) as node:
        claims = served(node, tmp_path / "cdi", lambda path, limits: raised.append((path, dict(limits))))
        await claims.prepare(claim(device(0, hugepages_2Mi=64)))
        for name, pages_mib, parent in (
            ("none", 0, "/kubepods/podnone"),
            ("some", 32, "/kubepods.slice/kubepods-podsome.slice"),
            ("elsewhere", 16, "/system.slice/elsewhere"),
        ):
            owner = replace(pod(name, QosClass.GUARANTEED), cgroup_parent=parent)
            one = container(name, owner, memory_bytes=64 * MIB, milli_cpus=500)
            limits = {2 * MIB: pages_mib * MIB} if pages_mib else {}
            one = replace(one, resources=replace(one.resources, hugepage_limits_bytes=limits))
            await begun(node.controller, owner, one)
            await node.controller.state_changed(Event.START_CONTAINER, owner, one)
        assert raised == [("/kubepods.slice", {2 * MIB: 96 * MIB})]


async def test_a_runtime_that_lists_what_runs_ends_no_claim(tmp_path: Path) -> None:
    async with controlled(tmp_path / "state") as node:
        claims = served(node, tmp_path / "cdi")
        await claims.prepare(WIDE)
        await node.controller.synchronize([POD], [])
        await node.controller.synchronize([], [])
        assert list(node.controller.state.ledger.resource_claims) == [WIDE.key]
        await node.controller.state_changed(Event.REMOVE_POD_SANDBOX, POD, container("", POD))
        assert list(node.controller.state.ledger.resource_claims) == [WIDE.key]


async def test_specs_that_a_reboot_took_are_made_again_and_those_of_nobody_go(tmp_path: Path) -> None:
    specs = tmp_path / "cdi"
    async with controlled(tmp_path / "state") as node:
        claims = served(node, specs)
        await claims.prepare(WIDE)
        before = told(specs)
    for path in specs.iterdir():
        path.unlink()
    specs.rmdir()
    ClaimSpecs(specs).write(HeldClaim(claim(device(0, request="x"), uid="of-nobody")))
    (specs / "vendor.json").write_text("{}")
    async with controlled(tmp_path / "state") as node:
        claims = served(node, specs)
        await claims.sweep()
        (specs / "vendor.json").unlink()
        assert told(specs) == before
        for path in specs.iterdir():
            path.write_text("{")  # somebody's mistake, or half of a file
        await claims.sweep()
        assert told(specs) == before


async def test_a_lost_record_is_made_again_from_specs_and_a_kept_one_is_not(tmp_path: Path) -> None:
    specs = ClaimSpecs(tmp_path / "cdi")
    other = claim(device(1, cpus=1), uid="uid-other", name="other")
    async with controlled(tmp_path / "state") as node:
        claims = ResourceClaims(node.controller.state, node.controller.placements, specs, here)
        await claims.prepare(other)
        held = await claims.prepare(WIDE)
        await claims.release(other.uid)
    # Not to be had again: more than there is, CPUs of somebody else, and what no daemon wrote.
    specs.write(HeldClaim(claim(device(0, memory_mib=1 << 20), uid="uid-large"), (CpuSet(),)))
    specs.write(HeldClaim(other, (CpuSet([min(MACHINE.node_by_id[0].cpus)]),)))
    (tmp_path / "cdi" / "bayplan.dev-claim-uid-x.json").write_text(
        '{"annotations": {"bayplan.dev/held": "{"}}'
    )
    async with controlled(tmp_path / "state") as node:
        claims = ResourceClaims(node.controller.state, node.controller.placements, specs, here)
        await claims.restore()
        assert list(node.controller.state.ledger.resource_claims) == [WIDE.key]
    async with controlled(tmp_path / "another") as node:
        claims = ResourceClaims(node.controller.state, node.controller.placements, specs, here)
        await claims.restore()
        again = node.controller.state.ledger.resource_claims
        assert set(again) == {WIDE.key, other.key}
        assert again[WIDE.key] == held
        # As many, and nobody else's.
        assert len(again[other.key].cpus_of()) == 1
        assert again[other.key].cpus_of().isdisjoint(held.cpus_of())
        await claims.sweep()
        assert sorted(specs.uids()) == sorted([UID, other.uid])
        assert await node.controller.state.check_ledger() == ()


async def test_what_is_not_recorded_is_not_promised(tmp_path: Path) -> None:
    specs = tmp_path / "cdi"
    async with controlled(tmp_path / "state") as node:
        claims = served(node, specs)
        with full_disk(node.controller.state.recorder), pytest.raises(StateError):
            await claims.prepare(WIDE)
        assert (node.controller.state.ledger.retained, told(specs)) == ({}, [])
        await claims.prepare(WIDE)
        with full_disk(node.controller.state.recorder), pytest.raises(StateError):
            await claims.release(UID)
        assert list(node.controller.state.ledger.resource_claims) == [WIDE.key]


async def test_a_directory_that_cannot_be_written_is_said_and_tried_again(tmp_path: Path) -> None:
    specs = tmp_path / "cdi"
    specs.write_text("a file")
    async with controlled(tmp_path / "state") as node:
        claims = served(node, specs)
        with pytest.raises(HostError) as error:
            await claims.prepare(WIDE)
        assert str(specs) in str(error.value)
        await claims.sweep()
        assert str(specs) in claims.problem
        specs.unlink()
        await claims.sweep()
        assert (claims.problem, len(told(specs))) == ("", 2)


async def test_shadow_mode_holds_nothing(tmp_path: Path) -> None:
    async with controlled(tmp_path / "state") as node:
        claims = ShadowResourceClaims(
            node.controller.state, node.controller.placements, ClaimSpecs(tmp_path / "cdi"), here
        )
        with shadow_mode():
            with pytest.raises(ShadowModeError):
                await claims.prepare(WIDE)
            await claims.sweep()
        assert not (tmp_path / "cdi").exists()


async def prepares(state: Path, specs: Path) -> None:
    """A daemon that holds the claim."""
    async with controlled(state) as node:
        await ResourceClaims(
            node.controller.state, node.controller.placements, ClaimSpecs(specs), here
        ).prepare(WIDE)


@pytest.mark.parametrize("verb", ["prepare", "release"])
def test_whoever_is_killed_leaves_what_the_next_one_finishes(tmp_path: Path, verb: str) -> None:
    """Before each thing that is done to a file of the specs, after the record, and after the last of them."""
    environment, codes = os.environ | {"PYTHONPATH": str(PROJECT / "tests")}, list[int]()
    for step in count(1):
        state, specs = tmp_path / f"state-{step}", tmp_path / f"cdi-{step}"
        if verb == "release":
            asyncio.run(prepares(state, specs))
        command = [sys.executable, "-m", "support.resource_claims", str(state), str(specs), verb, str(step)]
        killed = subprocess.run(command, env=environment, check=False, capture_output=True)
        codes.append(killed.returncode)
        asyncio.run(finishes(state, specs, verb))
        if killed.returncode != -signal.SIGKILL:
            break
    assert codes.pop() == 0, killed.stderr.decode()
    # Is it there; the directory, a file beside, its mode, its name. Or: the file is removed.
    assert len(codes) >= (5 if verb == "prepare" else 1)


async def finishes(state: Path, specs: Path, verb: str) -> None:
    """The next daemon has all that was recorded, and says so."""
    async with controlled(state) as node:
        claims = served(node, specs)
        await claims.sweep()
        held = dict(node.controller.state.ledger.resource_claims)
        # Both were recorded before they died, and the specs say the same now.
        assert list(held) == ([WIDE.key] if verb == "prepare" else [])
        assert told(specs) == ([f"{UID}/near", f"{UID}/far"] if verb == "prepare" else [])
        if verb == "prepare":
            assert await claims.prepare(WIDE) == held[WIDE.key]
        assert await claims.release(UID) is (verb == "prepare")


@pytest.mark.parametrize("uid", ["", "../../etc/x", "a/b", "A", "a" * 64])
def test_what_is_no_uid_is_no_file(tmp_path: Path, uid: str) -> None:
    specs = ClaimSpecs(tmp_path / "cdi")
    with pytest.raises(HostError):
        specs.write(HeldClaim(claim(device(0), uid=uid)))
    assert not (tmp_path / "cdi").exists()


def test_what_only_looks_like_a_claim_is_none() -> None:
    good = "BAYPLAN_CLAIM_a_b=a/b"
    assert claims_in([good, good, "PATH=/bin"]) == ("a/b",)
    for bad in (
        "BAYPLAN_CLAIM_x=a/b",
        "BAYPLAN_CLAIM_a_b=a",
        "BAYPLAN_CLAIM_a_b=",
        "BAYPLAN_CLAIM_a_b=a/b/c",
    ):
        assert claims_in([bad]) == ()
    assert cdi_name("a", "b") == "bayplan.dev/claim=claim-a-b"
