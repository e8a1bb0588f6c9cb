"""Random schedules of all that a claim meets: whoever is restarted when, nothing that kubelet has prepared is
lost, nothing is held for ever, and no CPU is two claims' own."""

import asyncio
import random
import shutil
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from msgspec import Struct
from msgspec.structs import replace

from bayplan._proto.dra import api_pb2 as pb
from bayplan.agent.dra.driver import claim_path
from bayplan.agent.mirror import Mirror
from bayplan.model.claims import claim_key
from bayplan.model.decision import QosClass
from bayplan.model.workload import Container, ContainerState, Pod
from bayplan.quantity import MIB
from bayplan.sets import CpuSet
from support.conditions import until
from support.controllers import Controlled, begun
from support.dra_kubelet import DraKubelet, registered
from support.dra_node import DraNode, resource_claim, result
from support.fake_api_server import FakeApiServer
from support.machines import container, pod
from support.places import IN_MEMORY

STEPS, MORE_STEPS = 60, 400
MOST_PODS = 6
AWAY = "baypland"
"""What kubelet is told before the agent has reached the daemon again."""


class Life(Struct):
    """A pod with a claim: as the API server has it, as kubelet has it, and its containers."""

    number: int
    results: tuple[dict[str, Any], ...]
    prepared: pb.NodePrepareResourceResponse | None = None
    """kubelet's, until it is released."""
    promised: tuple[dict[str, Any], ...] = ()
    """What was allocated when it was prepared last."""
    cpus: CpuSet | None = None
    containers: dict[str, Container] = {}
    made: int = 0

    @property
    def uid(self) -> str:
        return f"0b1c2d3e-0000-4000-8000-{self.number:012}"

    @property
    def name(self) -> str:
        return f"c{self.number}"

    @property
    def claim(self) -> pb.Claim:
        return pb.Claim(namespace="default", uid=self.uid, name=self.name)

    @property
    def pod(self) -> Pod:
        return pod(f"pod-{self.number}", QosClass.BEST_EFFORT)


class Schedule:
    """A node, and what happens to it by *draw*."""

    def __init__(self, directory: Path, api: FakeApiServer, draw: random.Random) -> None:
        self.node = DraNode(directory, api)
        self.api = api
        self.draw = draw
        self.lives: dict[int, Life] = {}
        self.count = 0
        self.said: list[str] = []
        self._daemon, self._agent = AsyncExitStack(), AsyncExitStack()
        self.one: Controlled | None = None
        self.mirror: Mirror | None = None
        self.kubelet: DraKubelet | None = None

    async def start(self) -> None:
        """Daemon, agent and kubelet, in an order that is drawn."""
        parts = [self._start_daemon, self._start_agent]
        self.draw.shuffle(parts)
        for part in parts:
            await part()

    async def close(self) -> None:
        await self._agent.aclose()
        await self._daemon.aclose()

    async def _start_daemon(self) -> None:
        self.one = await self._daemon.enter_async_context(self.node.daemon())
        listed = [one for life in self.lives.values() for one in life.containers.values()]
        await self.one.controller.synchronize([life.pod for life in self.lives.values()], listed)

    async def _start_agent(self) -> None:
        self.mirror = await self._agent.enter_async_context(self.node.agent())
        self.kubelet = await self._agent.enter_async_context(registered(self.node.registry))

    async def restart_daemon(self) -> None:
        await self._daemon.aclose()
        self.one = None
        await self._some(self.allocate, self.prepare, self.unprepare, self.create_without_us)
        await self._start_daemon()

    async def lose_record(self) -> None:
        """Somebody removes the daemon's files, or they are damaged."""
        await self._daemon.aclose()
        self.one = None
        shutil.rmtree(self.node.directory / "state")
        await self._start_daemon()

    async def restart_agent(self) -> None:
        await self._agent.aclose()
        self.kubelet = None
        await self._some(self.allocate, self.create, self.stop)
        await self._start_agent()

    async def restart_kubelet(self) -> None:
        """It asks for every claim of a pod whose sandbox it makes anew; here for all that it has."""
        for life in self.lives.values():
            if life.prepared is not None:
                await self._ask(life)

    async def restart_runtime(self) -> None:
        """It lists what runs, or, once, nothing."""
        assert self.one is not None
        listed = [one for life in self.lives.values() for one in life.containers.values()]
        await self.one.controller.synchronize([life.pod for life in self.lives.values()], listed)

    async def reboot(self) -> None:
        """All containers are gone and the directory of the specs is empty; record and kubelet's file stay."""
        await self.close()
        self.one = self.kubelet = None
        for life in self.lives.values():
            life.containers.clear()
        for path in self.node.specs.glob("*"):
            path.unlink()
        await self.start()
        await self.restart_kubelet()

    async def _some(self, *steps: Callable[[], Awaitable[None]]) -> None:
        for _ in range(self.draw.randrange(3)):
            await self.draw.choice(steps)()

    async def allocate(self) -> None:
        """A pod comes to the node."""
        if len(self.lives) >= MOST_PODS:
            return
        self.count += 1
        nodes = self.draw.sample([0, 1], self.draw.choice([1, 1, 2]))
        results = tuple(self._result(node, f"r{node}") for node in nodes)
        life = self.lives[self.count] = Life(self.count, results)
        self._put(life)

    def _result(self, node: int, request: str) -> dict[str, Any]:
        amounts = {"memory": f"{self.draw.choice([0, 1, 64, 400])}Mi", "cpu": self.draw.choice("0012")}
        return result(node, request, **amounts)

    def _put(self, life: Life) -> None:
        made = resource_claim(*life.results, uid=life.uid, pods=(life.pod.uid,))
        self.api.objects[claim_path("default", life.name)] = made

    def _any(self, wanted: Callable[[Life], bool]) -> Life | None:
        found = [life for life in self.lives.values() if wanted(life)]
        return self.draw.choice(found) if found else None

    async def prepare(self) -> None:
        if (life := self._any(lambda _: True)) is not None and self.kubelet is not None:
            await self._ask(life)

    async def _ask(self, life: Life) -> None:
        assert self.kubelet is not None
        answer = (await self.kubelet.prepare(life.claim))[life.uid]
        while self.one is not None and AWAY in answer.error:
            answer = (await self.kubelet.prepare(life.claim))[life.uid]
        if self.one is None:
            assert AWAY in answer.error
        if answer.error:
            assert "Traceback" not in answer.error
            return
        assert self.one is not None
        cpus = self.one.controller.state.ledger.resource_claims[claim_key(life.uid)].cpus_of()
        if life.prepared is not None and life.promised == life.results:
            assert (answer, cpus) == (life.prepared, life.cpus)
        # What its containers run on is not changed by another allocation.
        assert cpus == life.cpus or not life.containers
        life.prepared, life.promised, life.cpus = answer, life.results, cpus

    async def at_once(self) -> None:
        """Several pods come, some of which go before their claim is prepared, and the daemon is started again
        meanwhile."""
        if self.kubelet is None:
            return
        lives = list(self.lives.values())
        some = self.draw.sample(lives, min(3, len(lives)))
        goes = [not life.containers and bool(self.draw.randrange(2)) for life in some]
        patience_s = [self.draw.choice([0, 0.001, 0.004, 30]) for _ in some]
        calls = [asyncio.create_task(self._brief(*row)) for row in zip(some, patience_s, goes, strict=True)]
        await asyncio.sleep(self.draw.choice([0, 0.002, 0.01]))
        if not self.draw.randrange(3):
            await self._daemon.aclose()
            await self._start_daemon()
        await asyncio.gather(*calls)
        assert self.one is not None
        for life in (life for life, one_goes in zip(some, goes, strict=True) if one_goes):
            assert await self._unprepare(life) == ""
            self._forget(life)
        for life in self.lives.values():
            if life.prepared is not None:
                await self._ask(life)

    async def _brief(self, life: Life, patience_s: float, goes: bool) -> None:
        """kubelet gives a preparation up, as its pod is gone, and has the claim released."""
        assert self.kubelet is not None
        with suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                await self.kubelet.prepare(life.claim)
        if goes and not (await self.kubelet.unprepare(life.claim))[life.uid] and self.one is not None:
            assert claim_key(life.uid) not in self.one.controller.state.ledger.resource_claims

    async def create(self) -> None:
        life = self._any(lambda one: one.prepared is not None)
        if life is None or self.one is None:
            return
        one = self._container(life)
        adjustment, _ = await begun(self.one.controller, life.pod, one)
        if life.cpus:
            assert adjustment.cpuset_cpus == life.cpus
        # As its runtime lists it from now on.
        set_ = replace(one.resources, cpuset_cpus=adjustment.cpuset_cpus, cpuset_mems=adjustment.cpuset_mems)
        life.containers[one.id] = replace(
            one, annotations={**one.annotations, **adjustment.annotations}, resources=set_
        )

    def _container(self, life: Life) -> Container:
        assert life.prepared is not None
        life.made += 1
        return self.node.create(f"{life.name}-{life.made}", life.prepared, owner=life.pod)

    async def create_without_us(self) -> None:
        """The runtime creates it while the daemon is away."""
        life = self._any(lambda one: one.prepared is not None)
        if life is not None and self.one is None:
            one = replace(self._container(life), state=ContainerState.RUNNING)
            life.containers[one.id] = one

    async def stop(self) -> None:
        life = self._any(lambda one: bool(one.containers))
        if life is None or self.one is None:
            return
        key = self.draw.choice(sorted(life.containers))
        await self._stop(life, key)

    async def _stop(self, life: Life, key: str) -> None:
        assert self.one is not None
        await self.one.controller.stop_container(life.pod, container(key, life.pod))
        del life.containers[key]

    async def unprepare(self) -> None:
        """kubelet has a claim released once the containers of its pod are gone, or asks too early."""
        life = self._any(lambda _: True)
        if life is None or self.kubelet is None:
            return
        problem = await self._unprepare(life)
        assert bool(problem) == (self.one is None or bool(life.containers))
        if not problem:
            self._forget(life)

    async def _unprepare(self, life: Life) -> str:
        """Ask until the agent has found a daemon that is there, as kubelet does."""
        assert self.kubelet is not None
        problem = (await self.kubelet.unprepare(life.claim))[life.uid]
        while self.one is not None and AWAY in problem:
            problem = (await self.kubelet.unprepare(life.claim))[life.uid]
        return problem

    def _forget(self, life: Life) -> None:
        del self.lives[life.number]
        self.api.objects.pop(claim_path("default", life.name), None)

    async def change(self) -> None:
        """A claim is allocated anew under us: its pod was deleted and came again."""
        life = self._any(lambda one: not one.containers)
        if life is not None:
            life.results = tuple(
                self._result(1 - int(one["device"][-1]), one["request"]) for one in life.results
            )
            self._put(life)

    async def lose(self) -> None:
        """kubelet forgets a claim whose pod is gone: nobody asks for its release."""
        life = self._any(lambda one: not one.containers)
        if life is not None:
            self._forget(life)

    async def remove_specs(self) -> None:
        for path in self.node.specs.glob("*"):
            if self.draw.randrange(2):
                path.unlink()
        if self.one is not None:
            await self.node.claims.sweep()

    async def step(self) -> None:
        step = self.draw.choice(
            [self.allocate] * 3
            + [self.prepare] * 4
            + [self.create] * 4
            + [self.stop] * 3
            + [self.unprepare, self.at_once] * 2
            + [self.change, self.lose, self.remove_specs, self.restart_daemon, self.restart_agent]
            + [self.restart_kubelet, self.restart_runtime]
            + [self.lose_record] * (not self.draw.randrange(2))
            + [self.reboot] * (not self.draw.randrange(4))
        )
        self.said.append(step.__name__)
        await step()
        await self.holds()

    async def holds(self) -> None:
        """Nothing that kubelet has prepared is lost, and nobody else has it."""
        assert self.one is not None
        state = self.one.controller.state
        assert await state.check_ledger() == ()
        held = state.ledger.resource_claims
        for life in self.lives.values():
            if life.prepared is None or life.promised != life.results:
                continue
            one = held[claim_key(life.uid)]
            assert [(device.request, device.node) for device in one.claim.devices] == [
                (each["request"], int(each["device"][-1])) for each in life.promised
            ]
            wanted = sum(int(each["consumedCapacity"]["bayplan.dev/memory"][:-2]) for each in life.promised)
            assert one.claim.amounts_bytes.get("memory", 0) == wanted * MIB
            assert one.cpus_of() == life.cpus
            for key in life.containers:
                own = state.ledger.entries[key].decision.placement.claimed_cpus
                assert (own or CpuSet()) == life.cpus
        own_cpus = [cpu for one in held.values() for cpu in one.cpus_of()]
        assert len(own_cpus) == len(set(own_cpus))

    async def end(self) -> None:
        """All pods go, in whatever way: nothing is left."""
        assert self.one is not None
        for life in list(self.lives.values()):
            for key in list(life.containers):
                await self._stop(life, key)
            if self.draw.randrange(2):
                assert await self._unprepare(life) == ""
            self._forget(life)
        state = self.one.controller.state
        await until(lambda: not state.ledger.resource_claims)
        await self.node.claims.sweep()
        assert list(self.node.specs.glob("*")) == []
        assert state.ledger.exclusive_cpus == CpuSet()
        assert state.ledger.retained == {}


@pytest.fixture
def place() -> Iterator[tuple[Path, FakeApiServer]]:
    api = FakeApiServer()
    # A socket's path has 107 bytes.
    with api.serving(), TemporaryDirectory(prefix="dra", dir=IN_MEMORY) as directory:
        yield Path(directory), api


async def played(place: tuple[Path, FakeApiServer], seed: int, steps: int) -> None:
    schedule = Schedule(*place, random.Random(seed))
    schedule.node.look_s = 0.05
    await schedule.start()
    try:
        for _ in range(steps):
            await schedule.step()
        await schedule.end()
    except BaseException:
        print(" ".join(schedule.said))
        raise
    finally:
        await schedule.close()
    await asyncio.sleep(0)


@pytest.mark.parametrize("seed", range(3))
async def test_nothing_is_lost_and_nothing_is_held_for_ever(
    place: tuple[Path, FakeApiServer], seed: int
) -> None:
    await played(place, seed, STEPS)


@pytest.mark.matrix
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(100, 120))
async def test_so_it_is_in_longer_schedules(place: tuple[Path, FakeApiServer], seed: int) -> None:
    await played(place, seed, MORE_STEPS)
