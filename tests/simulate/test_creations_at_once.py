"""Containers that are created, started, changed and stopped at the same moment: whatever comes between the
steps of one of them, nobody runs on the CPUs of an owner that has started."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from itertools import combinations
from pathlib import Path

import pytest

from bayplan._proto.nri import api_pb2 as pb
from bayplan.control.verify import Verifier, grounds_of
from bayplan.nri import Identity, Session
from bayplan.placement.adjustment import cpus_for
from bayplan.quantity import MIB
from bayplan.sets import CpuSet
from support.controllers import MACHINE, Controlled, controlled, has_due_updates, here
from support.cpuset_tree import CpusetTree
from support.flavors import CONTAINERD_1_7, CONTAINERD_2_3, CRIO_1_36, Flavor
from support.memory_transport import MemoryEndpoint
from support.plugin import UNHURRIED
from support.runtime import FakeRuntime
from support.workloads import BEST_EFFORT, GUARANTEED, make_container, make_pod

OWNERS, OTHERS = make_pod("db", qos=GUARANTEED), make_pod("batch", qos=BEST_EFFORT)
EVERY_CPU = MACHINE.online_cpus
STEPS = 5
PARTS = 7
SCHEDULES = 10

flavors = pytest.mark.parametrize(
    "flavor", [CONTAINERD_1_7, CONTAINERD_2_3, CRIO_1_36], ids=lambda one: f"{one.name} {one.version}"
)


def owner(name: str, cpus: int = 2) -> pb.Container:
    return make_container(
        OWNERS,
        name,
        memory_limit_bytes=10 * MIB,
        cpu_shares=1024 * cpus,
        cpu_quota_us=100_000 * cpus,
        oom_score_adj=-997,
    )


def sharer(name: str) -> pb.Container:
    return make_container(OTHERS, name, cpu_shares=2, oom_score_adj=1000)


class NriNode:
    """One node. ``running`` are the containers whose process has begun."""

    def __init__(self, flavor: Flavor, directory: Path) -> None:
        self.tree = CpusetTree(directory / "root", EVERY_CPU)
        self.runtime = FakeRuntime(flavor, kernel=self.tree)
        self.running: set[str] = set()
        self.said: list[str] = []

    @asynccontextmanager
    async def daemon(self, directory: Path) -> AsyncIterator[Controlled]:
        async with controlled(directory / "state", nri=None) as around:
            self.around = around
            kernel = self.tree.node.hierarchy
            self.cpusets = around.on(kernel)
            self.verifier = Verifier(
                kernel,
                self.cpusets,
                around.expectations,
                here,
                grounds=lambda: grounds_of(around.controller.state),
                most_files=1024,
            )
            endpoint = MemoryEndpoint(self.runtime.accept)
            session = Session(around.controller, Identity("bayplan", "90"), endpoint, timeouts=UNHURRIED)
            running = asyncio.create_task(session.run())
            try:
                await self.runtime.synchronized()
                yield around
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
                await self.runtime.stop()

    def creation_steps(self, container: pb.Container) -> list[tuple[str, Callable]]:
        """The steps of a container up to the moment when it runs, with what is said of each."""
        runtime, key = self.runtime, container.id
        pod = OWNERS if container.pod_sandbox_id == OWNERS.id else OTHERS

        async def makes_cgroup():
            runtime.make_cgroup(key)

        async def begins():
            await runtime.begin_start(key)
            self.running.add(key)

        steps = [
            ("asks", lambda: runtime.ask_for_creation(pod, container)),
            ("is known", lambda: runtime.finish_creation(key)),
            ("has a cgroup", makes_cgroup),
            ("begins", begins),
            ("has begun", lambda: runtime.finish_start(key)),
        ]
        if runtime.flavor.makes_cgroup_at_creation:
            steps[1:3] = steps[2:0:-1]
        return [(f"{container.name} {said}", step) for said, step in steps]

    async def stop(self, container: pb.Container) -> None:
        self.running.discard(container.id)
        if container.id in self.runtime.containers:
            await self.runtime.stop_container(container.id)
        else:
            await self.runtime.undo_create_container(container)

    async def take(self, said: str, step: Callable) -> None:
        self.said.append(said)
        await step()
        self.check()

    def check(self) -> None:
        entries = self.around.controller.state.ledger.entries
        for key in self.running:
            own = entries[key].decision.placement.exclusive_cpus
            if not own:
                continue
            assert self.tree.cpus(key) == own, self.said
            for other in self.running - {key}:
                assert self.tree.cpus(other).isdisjoint(own), (other, key, self.said)

    async def agree(self) -> None:
        """After some more replies the runtime has been told everything, and the kernel does what was
        decided."""
        controller = self.around.controller
        last = sharer(f"last{len(self.said)}")
        await self.runtime.come_and_go(OTHERS, last, lambda: has_due_updates(controller))
        ledger = controller.state.ledger
        for key, entry in ledger.entries.items():
            wanted = cpus_for(entry.decision, ledger.shared_cpus(MACHINE))
            assert CpuSet.parse(self.runtime.containers[key].linux.resources.cpu.cpus) == wanted, self.said
            assert entry.notified_cpus == wanted, self.said
            if key in self.running:
                assert self.tree.cpus(key) == wanted, (key, "; ".join(self.said))
        for _ in range(2):
            assert await self.verifier.verify(at_once=False) == (), self.said


def orders(steps: int) -> Iterator[list[int]]:
    """Every order in which two with so many steps each can take them: whose turn it is, 0 or 1."""
    for places in combinations(range(2 * steps), steps):
        yield [int(place in places) for place in range(2 * steps)]


@flavors
@pytest.mark.parametrize("part", range(PARTS))
async def test_every_order_of_two_creations(tmp_path: Path, flavor: Flavor, part: int) -> None:
    node = NriNode(flavor, tmp_path)
    async with node.daemon(tmp_path):
        for number, order in list(enumerate(orders(STEPS)))[part::PARTS]:
            shared, exclusive = sharer(f"s{number}"), owner(f"o{number}")
            creations = iter(node.creation_steps(shared)), iter(node.creation_steps(exclusive))
            node.said.clear()
            for whose in order:
                await node.take(*next(creations[whose]))
            await node.agree()
            for one in (shared, exclusive):
                await node.stop(one)
                await node.runtime.remove_container(one.id)
        assert number > 251 - PARTS


@flavors
async def test_a_container_that_waits_to_be_started_has_what_the_ledger_says(
    tmp_path: Path, flavor: Flavor
) -> None:
    """It may wait for long: what the OCI runtime left of it there is a process, which CRI-O has then."""
    node = NriNode(flavor, tmp_path)
    async with node.daemon(tmp_path):
        steps = node.creation_steps(sharer("s"))
        for said, step in steps[:3]:
            await node.take(said, step)
            if said == "s asks":
                await node.runtime.create_container(OWNERS, owner("o"))
                await node.runtime.start_container(owner("o").id)
        if flavor.makes_cgroup_at_creation:
            own = node.around.controller.state.ledger.exclusive_cpus
            assert node.tree.cpus(sharer("s").id).isdisjoint(own)


@flavors
@pytest.mark.parametrize("event", ["is known", "begins", "has begun"])
async def test_an_event_that_is_missed_is_made_up_for(tmp_path: Path, flavor: Flavor, event: str) -> None:
    """By the next event or, after the last one, by the verification that is asked for."""
    node, shared = NriNode(flavor, tmp_path), sharer("s")

    class Failing:
        async def sync(self, *_, **__):
            raise OSError

    async with node.daemon(tmp_path) as around:
        for said, step in node.creation_steps(shared):
            before = around.verifications
            around.cpusets = Failing() if said == f"s {event}" else node.cpusets
            await step()
            if said == "s asks":
                await node.runtime.create_container(OWNERS, owner("o"))
                await node.runtime.start_container(owner("o").id)
                node.running.add(owner("o").id)
            if said == f"s {event}":
                assert around.verifications > before
        around.cpusets = node.cpusets
        if event == "has begun":
            await node.verifier.verify(at_once=True)
        node.check()
        await node.agree()


async def changes(node: NriNode, container: pb.Container) -> list[tuple[str, Callable]]:
    """kubelet changes the container, which gets its due CPUs with the answer."""
    key, shares = container.id, pb.LinuxResources(cpu={"shares": {"value": 512}})
    return [
        (f"{container.name} is to change", lambda: node.runtime.ask_for_update(key, shares)),
        (f"{container.name} changes", lambda: node.runtime.carry_out_update(key)),
    ]


@flavors
@pytest.mark.parametrize(
    "seed", [*range(3), *(pytest.param(more, marks=pytest.mark.matrix) for more in range(3, PARTS))]
)
async def test_random_orders_of_many(tmp_path: Path, flavor: Flavor, seed: int) -> None:
    """Creations that fail half-way, updates that the runtime carries out later than others, and ends."""
    node = NriNode(flavor, tmp_path)
    draw = random.Random(seed)
    async with node.daemon(tmp_path):
        for number in range(SCHEDULES):
            node.said.clear()
            mine = [owner(f"o{number}a", 2), owner(f"o{number}b", 1)]
            mine += [sharer(f"s{number}{letter}") for letter in "abc"]
            creations = []
            for container in mine:
                steps = node.creation_steps(container)
                if draw.random() < 0.5:
                    steps += await changes(node, container)
                if draw.random() < 0.4:
                    del steps[draw.randint(1, len(steps)) :]
                    steps.append((f"{container.name} ends", lambda one=container: node.stop(one)))
                creations.append(steps)
            while creations:
                steps = draw.choice(creations)
                await node.take(*steps.pop(0))
                creations = [left for left in creations if left]
            await node.agree()
            for one in mine:
                if one.id in node.runtime.containers:
                    await node.stop(one)
                    await node.runtime.remove_container(one.id)
