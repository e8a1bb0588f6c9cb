"""A state directory that is emptied, or goes back to an older copy, while containers run: the record is made
again from what the runtime lists, exactly, and nobody is moved for it."""

import asyncio
import random
import shutil
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest
from msgspec.structs import replace

from bayplan._proto.nri import api_pb2 as pb
from bayplan.control.controller import Controller
from bayplan.engines.exact.witness import shortages
from bayplan.model.basis import Basis
from bayplan.model.decision import Claim
from bayplan.model.policy import PlacementPolicy
from bayplan.model.wishes import DECISION_ANNOTATION
from bayplan.nri import Session
from bayplan.placement.changed_promises import with_completed_claims
from bayplan.quantity import GIB, MIB
from bayplan.sets import CpuSet
from bayplan.state.database import VERSION
from support.controllers import controlled, has_due_updates
from support.flavors import CONTAINERD_1_7_20, CONTAINERD_2_1, CONTAINERD_2_3, Flavor
from support.machines import machine
from support.memory_transport import MemoryEndpoint
from support.plugin import IDENTITY, UNHURRIED
from support.plugin_calls import OperationError
from support.runtime import FakeRuntime
from support.workloads import BEST_EFFORT, BURSTABLE, GUARANTEED, make_container, make_pod

MACHINE = machine(2, cpus_per_node=8, memory_bytes=8 * GIB)
Promises = dict[str, dict[str, object]]
POLICY = PlacementPolicy(reserved_cpus=CpuSet([0]))
OWNER, NEIGHBOUR, OTHERS = (
    make_pod("db", qos=GUARANTEED),
    make_pod("web", qos=BURSTABLE),
    make_pod("batch", qos=BEST_EFFORT),
)
flavors = pytest.mark.parametrize(
    "flavor", [CONTAINERD_1_7_20, CONTAINERD_2_1, CONTAINERD_2_3], ids=lambda flavor: flavor.version
)


def guaranteed(name: str, cpus: float, memory_bytes: int, pod: pb.PodSandbox = OWNER) -> pb.Container:
    return make_container(
        pod,
        name,
        memory_limit_bytes=memory_bytes,
        cpu_shares=int(1024 * cpus),
        cpu_quota_us=int(100_000 * cpus),
        oom_score_adj=-997,
    )


def burstable(name: str) -> pb.Container:
    return make_container(
        NEIGHBOUR, name, memory_limit_bytes=GIB, cpu_shares=256, cpu_quota_us=50_000, oom_score_adj=990
    )


def best_effort(name: str) -> pb.Container:
    return make_container(OTHERS, name, cpu_shares=2, oom_score_adj=1000)


@asynccontextmanager
async def daemon(runtime: FakeRuntime, directory: Path) -> AsyncIterator[Controller]:
    """A controller that restored what *directory* has and knows from *runtime* what runs."""
    async with controlled(directory, POLICY, None, MACHINE) as one:
        session = Session(one.controller, IDENTITY, MemoryEndpoint(runtime.accept), timeouts=UNHURRIED)
        running = asyncio.create_task(session.run())
        try:
            await runtime.synchronized()
            yield one.controller
        finally:
            gone = len(runtime.dropped) + 1
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await runtime.abandoned(gone)


def promised(controller: Controller) -> Promises:
    """What every container was promised, and what is known of it."""
    # What was promised short and was made up for since is made up for again as soon as somebody looks.
    ledger, _ = with_completed_claims(
        Basis(MACHINE, POLICY, controller.state.ledger), controller.state.engine
    )
    return {
        key: {
            "request": entry.decision.request,
            "mems": entry.decision.placement.mems,
            "exclusive": entry.decision.placement.exclusive_cpus,
            "claim": entry.decision.placement.claim,
            "home": entry.decision.placement.original_nodes,
            "overlapping": entry.decision.placement.overlapping,
            "told": entry.notified_cpus,
            "oom group": entry.oom_group,
            "ended": entry.ended,
        }
        for key, entry in ledger.entries.items()
    }


def comparable(promises: Promises, resized: set[str]) -> Promises:
    """Nobody but the record knew the answers to resizes: who was *resized* may be where it is for good, and
    where somebody is short, it is only known how much all were promised together."""
    claims = {key: one["claim"] for key, one in promises.items() if isinstance(one["claim"], Claim)}
    short = any(claim.short_bytes for claim in claims.values())
    compared = {}
    for key, one in promises.items():
        asked = dict(Counter(claims[key].amounts_bytes) + Counter(claims[key].short_bytes))
        claim = replace(claims[key], amounts_bytes=asked, short_bytes={}) if short else claims[key]
        compared[key] = {**one, "claim": claim, "home": None if key in resized else one["home"]}
    return compared


async def notify(runtime: FakeRuntime, controller: Controller) -> None:
    """Have the runtime sent all that is due, so that it is not sent anything when it connects again."""
    await runtime.come_and_go(OTHERS, best_effort("passing"), lambda: has_due_updates(controller))


def specs(runtime: FakeRuntime) -> dict[str, bytes]:
    return {key: one.linux.SerializeToString(deterministic=True) for key, one in runtime.containers.items()}


async def populate(runtime: FakeRuntime, draw: random.Random, operations: int, names: str = "n") -> set[str]:
    """Containers of all classes come, grow, shrink and end, on a machine too small for all of them; who was
    resized."""
    resized = set[str]()
    for number in range(operations):
        running = [key for key, one in runtime.containers.items() if one.state != pb.CONTAINER_STOPPED]
        what = draw.random()
        try:
            if what < 0.6 or not running:
                made = draw.choice([best_effort, burstable, None, None])
                cpus, size = draw.choice([0.5, 1, 1, 2, 1.5]), draw.randrange(1, 30) * 100 * MIB
                one = made(f"{names}{number}") if made else guaranteed(f"{names}{number}", cpus, size)
                owner = {OTHERS.id: OTHERS, NEIGHBOUR.id: NEIGHBOUR}.get(one.pod_sandbox_id, OWNER)
                await runtime.create_container(owner, one)
                await runtime.start_container(one.id)
            elif what < 0.8:
                await runtime.remove_container(draw.choice(running))
            else:
                key = draw.choice([one for one in running if OWNER.id in one] or running)
                change = pb.LinuxResources()
                if OWNER.id in key:
                    change.memory.limit.value = draw.randrange(1, 30) * 100 * MIB
                    cpus = draw.choice([1, 2, 1.5])
                    change.cpu.quota.value, change.cpu.shares.value = int(cpus * 100_000), int(cpus * 1024)
                await runtime.update_container(key, change)
                resized.add(key)
        except OperationError:
            continue  # refused: the container keeps what it has
    return resized


@flavors
async def test_an_emptied_state_directory(tmp_path: Path, flavor: Flavor) -> None:
    """Twenty containers: with CPUs of their own, confined, shared, one that had to become wider."""
    runtime = FakeRuntime(flavor)
    pinned_to_0 = make_pod("first", qos=GUARANTEED, annotations={"bayplan.dev/required-nodes": "0"})
    async with daemon(runtime, tmp_path / "state") as controller:
        for number in range(6):
            await runtime.create_container(OTHERS, best_effort(f"o{number}"))
            await runtime.create_container(NEIGHBOUR, burstable(f"b{number}"))
        for number, cpus in enumerate((2, 1, 1.5, 0.5, 3, 1, 0.5)):
            await runtime.create_container(
                OWNER, guaranteed(f"g{number}", cpus, (1 + number % 3) * 700 * MIB)
            )
        await runtime.create_container(pinned_to_0, guaranteed("first", 1, 3 * GIB, pinned_to_0))
        for key in runtime.containers:
            await runtime.start_container(key)
        await notify(runtime, controller)
        before, told = promised(controller), specs(runtime)
        assert len(before) == 20
        assert any(one["home"] is not None for one in before.values())  # moved over, with a home
    shutil.rmtree(tmp_path / "state")
    async with daemon(runtime, tmp_path / "state") as controller:
        assert promised(controller) == before
        assert specs(runtime) == told
        assert controller.state.ledger.adopted == {}
        assert controller.state.counters["recovered_containers"] == 20
        await runtime.create_container(OWNER, guaranteed("later", 2, 100 * MIB))
        taken = [
            entry.decision.placement.exclusive_cpus for entry in controller.state.ledger.entries.values()
        ]
        assert sum(map(len, taken)) == len(controller.state.ledger.exclusive_cpus)
    async with daemon(runtime, tmp_path / "state") as controller:  # And it is recorded now.
        assert controller.state.counters["recovered_containers"] == 0
        assert len(controller.state.ledger.entries) == 21


@pytest.mark.parametrize("seed", range(40))
async def test_anything_that_happened_before_a_loss(tmp_path: Path, seed: int) -> None:
    draw, runtime = random.Random(seed), FakeRuntime(CONTAINERD_2_3)
    async with daemon(runtime, tmp_path / "state") as controller:
        resized = await populate(runtime, draw, 25)
        await notify(runtime, controller)
        before, told = promised(controller), specs(runtime)
    shutil.rmtree(tmp_path / "state")
    async with daemon(runtime, tmp_path / "state") as controller:
        assert comparable(promised(controller), resized) == comparable(before, resized)
        assert shortages(Basis(MACHINE, POLICY, controller.state.ledger)) == ()
        assert specs(runtime) == told


@pytest.mark.parametrize("seed", range(40))
async def test_an_older_copy_of_the_state_directory(tmp_path: Path, seed: int) -> None:
    draw, runtime = random.Random(seed), FakeRuntime(CONTAINERD_2_3)
    async with daemon(runtime, tmp_path / "state"):
        resized = await populate(runtime, draw, 15)
    shutil.copytree(tmp_path / "state", tmp_path / "older")
    async with daemon(runtime, tmp_path / "state") as controller:
        resized |= await populate(runtime, draw, 10, names="later")
        await runtime.create_container(OTHERS, best_effort("proof"))  # so that the copy is seen to be older
        await runtime.start_container(f"{OTHERS.id}-proof")
        await notify(runtime, controller)
        before, told = promised(controller), specs(runtime)
    async with daemon(runtime, tmp_path / "older") as controller:
        assert comparable(promised(controller), resized) == comparable(before, resized)
        assert shortages(Basis(MACHINE, POLICY, controller.state.ledger)) == ()
        assert specs(runtime) == told


@pytest.mark.parametrize("seed", range(10))
async def test_a_rollback_and_the_upgrade_after_it(tmp_path: Path, seed: int) -> None:
    """A later version's database is set aside whole, and nobody who runs notices, back and forth."""
    draw, runtime, state = random.Random(seed), FakeRuntime(CONTAINERD_2_3), tmp_path / "state"
    resized = set[str]()
    for suffix in ("", "-2"):
        async with daemon(runtime, state) as controller:
            resized |= await populate(runtime, draw, 15, names=f"n{suffix}-")
            await notify(runtime, controller)
            before, told = promised(controller), specs(runtime)
        with closing(sqlite3.connect(state / "state.db")) as database, database:
            database.execute(f"PRAGMA user_version = {VERSION + 1}")
            database.execute("CREATE TABLE of_later (x)")
        async with daemon(runtime, state) as controller:
            assert comparable(promised(controller), resized) == comparable(before, resized)
            assert shortages(Basis(MACHINE, POLICY, controller.state.ledger)) == ()
            assert specs(runtime) == told
            assert controller.state.ledger.adopted == {}
        kept = f"state.db.v{VERSION + 1}{suffix}"
        with closing(sqlite3.connect(state / kept)) as database:
            current = database.execute("SELECT count(*) FROM decisions WHERE current").fetchone()
            assert current == (len(before),)
            assert database.execute("SELECT * FROM of_later").fetchall() == []


async def test_what_a_pod_brings_along_while_nobody_looks_gives_it_nothing(tmp_path: Path) -> None:
    """The annotation of a container with CPUs of its own, on one that was created without us: as it is, and
    made to fit."""
    runtime = FakeRuntime(CONTAINERD_2_3)
    async with daemon(runtime, tmp_path / "state"):
        await runtime.create_container(OWNER, guaranteed("real", 2, GIB))
        await runtime.start_container(f"{OWNER.id}-real")
    text = runtime.containers[f"{OWNER.id}-real"].annotations[DECISION_ANNOTATION]
    for name, written in (
        ("copied", text),
        ("forged", text.replace(f"{OWNER.id}-real", f"{OWNER.id}-forged")),
    ):
        one = guaranteed(name, 2, GIB)
        one.annotations[DECISION_ANNOTATION] = written
        await runtime.create_container(OWNER, one)
        await runtime.start_container(one.id)
    shutil.rmtree(tmp_path / "state")
    async with daemon(runtime, tmp_path / "state") as controller:
        entries = controller.state.ledger.entries
        owners = [key for key, one in entries.items() if one.decision.placement.exclusive_cpus]
        assert owners == [f"{OWNER.id}-real"]
        assert set(controller.state.ledger.adopted) == {f"{OWNER.id}-copied", f"{OWNER.id}-forged"}
        for name in ("copied", "forged"):
            resources = runtime.containers[f"{OWNER.id}-{name}"].linux.resources
            assert resources.cpu.cpus == str(controller.state.ledger.shared_cpus(MACHINE))
            assert resources.cpu.mems == ""


async def test_what_a_pod_brings_along_is_replaced_at_its_creation(tmp_path: Path) -> None:
    runtime = FakeRuntime(CONTAINERD_2_3)
    async with daemon(runtime, tmp_path / "state"):
        one = best_effort("sly")
        one.annotations[DECISION_ANNOTATION] = "mine"
        await runtime.create_container(OTHERS, one)
        assert one.id in runtime.containers[one.id].annotations[DECISION_ANNOTATION]
