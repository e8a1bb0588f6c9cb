"""Somebody at the agent's socket who says anything at any time, beside creations, resizes, ends and restarts:
no promise of a running container falls below what its spec proves or exceeds what that allows, and none
loses its own CPUs or nodes."""

import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import partial
from pathlib import Path

import pytest
from msgspec import Struct
from msgspec.structs import replace

from bayplan.agent_protocol import FromAgent, PodGone, PodKnown, decode_from_agent, encode
from bayplan.control.placements import ExactRequests
from bayplan.engines.exact.engine import ExactEngine
from bayplan.engines.interface import Engine
from bayplan.engines.kubelet.engine import KubeletEngine
from bayplan.errors import PlacementError
from bayplan.model.decision import Decision, QosClass
from bayplan.model.kubelet_requests import (
    Amounts,
    ContainerFacts,
    ContainerKind,
    ContainerResources,
    PodFacts,
)
from bayplan.model.ledger import Entry
from bayplan.model.machine import MEMORY
from bayplan.model.policy import PlacementPolicy, TopologyPolicy, TopologyScope
from bayplan.model.qos import oom_score_adj, quota_from_milli, shares_from_milli
from bayplan.model.resources import Resources
from bayplan.model.wishes import PREFIX
from bayplan.model.workload import Adjustment, Container, Pod, Update
from bayplan.quantity import GIB, MIB
from support.controllers import Controlled, begun, controlled
from support.kubelet_pods import facts, kubelet_pod
from support.machines import PERIOD_US, machine, pod

MACHINE = machine(2, cpus_per_node=4, memory_bytes=8 * GIB)
CAPACITY = MACHINE.memory_bytes
GUARANTEED, BURSTABLE, BEST_EFFORT = QosClass.GUARANTEED, QosClass.BURSTABLE, QosClass.BEST_EFFORT
LENGTH = 40
MOST_PODS = 5
SEEDS = 120
BATCH = 30


class Truth(Struct, frozen=True):
    """A container as kubelet asks for it. Its spec proves a memory request of *least_bytes* and allows
    *most_bytes*."""

    pod: Pod
    container: Container
    facts: ContainerFacts
    least_bytes: int
    most_bytes: int
    qos: QosClass

    @property
    def limit_bytes(self) -> int | None:
        return self.container.resources.memory_limit_bytes


class Game:
    """What happens, by one seed. ``lied_of_resize`` are the pods of which it was said that they were resized:
    their containers may be promised up to their limits."""

    def __init__(self, seed: int, directory: Path) -> None:
        self.choice = random.Random(seed)
        self.directory = directory
        self.trace: list[str] = []
        self.running: dict[str, Truth] = {}
        self.pods: dict[str, PodFacts] = {}
        self.lied_of_resize: set[str] = set()
        self.annotations: dict[str, dict[str, str]] = {}
        self.numbers = 0
        self.stores = 0
        self.policy = PlacementPolicy(topology=self.choice.choice(list(TopologyPolicy)))
        engines: list[Engine] = [ExactEngine(), ExactEngine(TopologyScope.POD), KubeletEngine()]
        self.engine = self.choice.choice(engines)
        if isinstance(self.engine, KubeletEngine):
            self.policy = PlacementPolicy(topology=TopologyPolicy.BEST_EFFORT)
        self.one: Controlled
        self.before: dict[str, Entry] = {}

    # ---- What happens ----------------------------------------------------------------------------------

    async def play(self) -> None:
        async with AsyncExitStack() as stack:
            self.one = await stack.enter_async_context(self._daemon())
            for _ in range(LENGTH):
                event = self.choice.choices(
                    [self.create, self.lie, self.correct, self.resize, self.end, self.restart, self.tell],
                    [5, 12, 6, 2, 2, 1, 2],
                )[0]
                self.trace.append(event.__name__)
                self.before = dict(self.one.controller.state.ledger.entries)
                changed = await event(stack)
                self.check(changed)

    def _daemon(self) -> AbstractAsyncContextManager[Controlled]:
        directory = self.directory / str(self.stores)
        return controlled(directory, self.policy, on=MACHINE, engine=self.engine)

    async def create(self, _: AsyncExitStack) -> str | None:
        """The next container of a pod, or a pod; what is said of it was perhaps said before."""
        if len(self.pods) >= MOST_PODS and self.choice.random() < 0.7:
            name = self.choice.choice(sorted(self.pods))
        else:
            self.numbers += 1
            name = f"p{self.numbers}"
        qos = self.pods[name].qos if name in self.pods else self.choice.choice([*QosClass, BURSTABLE])
        self.numbers += 1
        truth = self._truth(name, f"c{self.numbers}", qos)
        known = self.pods.get(name) or kubelet_pod(name=name, qos=qos)
        self.pods[name] = replace(known, containers=(*known.containers, truth.facts))
        if self.choice.random() < 0.4:
            self._say(PodKnown(self._lie(name)))
        try:
            adjustment, updates = await begun(self.one.controller, truth.pod, truth.container)
        except PlacementError:
            return None
        container = replace(truth.container, annotations=adjustment.annotations)
        self.running[container.id] = replace(truth, container=_with_cpusets(container, adjustment))
        self._apply(updates)
        return container.id

    async def lie(self, _: AsyncExitStack) -> str | None:
        """Any message about any pod."""
        if not self.pods:
            return None
        name = self.choice.choice(sorted(self.pods))
        self._say(PodGone(name) if self.choice.random() < 0.1 else PodKnown(self._lie(name)))
        return None

    async def tell(self, _: AsyncExitStack) -> str | None:
        """The truth."""
        if self.pods:
            self._say(PodKnown(self.pods[self.choice.choice(sorted(self.pods))]))
        return None

    async def correct(self, _: AsyncExitStack) -> str | None:
        """What was said is compared with what is promised."""
        await ExactRequests(self.one.controller.state).correct()
        return None

    async def resize(self, _: AsyncExitStack) -> str | None:
        """The runtime is to give a container another limit."""
        with_limits = sorted(key for key, one in self.running.items() if one.limit_bytes is not None)
        if not with_limits:
            return None
        key = self.choice.choice(with_limits)
        truth = self.running[key]
        limit_bytes = self.choice.choice([300, 700, 1500, 2500]) * MIB
        change = Resources(memory_limit_bytes=limit_bytes)
        try:
            updates = await self.one.controller.update_container(truth.pod, truth.container, change)
        except PlacementError:
            return None
        spec = replace(truth.container.resources, memory_limit_bytes=limit_bytes)
        least_bytes = limit_bytes if truth.qos is GUARANTEED else min(truth.least_bytes, limit_bytes)
        container = replace(truth.container, resources=spec)
        self.running[key] = replace(truth, container=container, least_bytes=least_bytes)
        self._apply(updates)
        return key

    async def end(self, _: AsyncExitStack) -> str | None:
        """A container ends."""
        if self.running:
            key = self.choice.choice(sorted(self.running))
            gone = self.running.pop(key)
            self._apply(await self.one.controller.stop_container(gone.pod, gone.container))
        return None

    async def restart(self, stack: AsyncExitStack) -> str | None:
        """The daemon starts again, now and then without its state; the agent says everything again."""
        await stack.aclose()
        self.stores += self.choice.random() < 0.5
        self.one = await stack.enter_async_context(self._daemon())
        pods = {one.pod.id: one.pod for one in self.running.values()}
        containers = [one.container for one in self.running.values()]
        self._apply(await self.one.controller.synchronize(list(pods.values()), containers))
        return None

    def _apply(self, updates: Sequence[Update]) -> None:
        for one in updates:
            truth = self.running[one.container_id]
            self.running[one.container_id] = replace(truth, container=_with_cpusets(truth.container, one))

    # ---- What must hold --------------------------------------------------------------------------------

    def check(self, changed: str | None) -> None:
        """Whatever was said, all that runs has what its spec proves; only *changed* was decided anew."""
        entries = self.one.controller.state.ledger.entries
        assert entries.keys() == self.running.keys(), self.trace
        for key, truth in self.running.items():
            decision, before = entries[key].decision, self.before.get(key)
            after = f"{key} after {' '.join(self.trace)}"
            assert decision.request.qos is truth.qos, after
            if truth.qos is GUARANTEED:
                assert decision.request.memory.high_bytes == truth.limit_bytes, after
                milli = truth.facts.allocated.limits.cpu_milli or 0
                assert decision.request.exclusive_cpus == (0 if milli % 1000 else milli // 1000), after
            if before is not None and key != changed:
                assert decision.placement.exclusive_cpus == before.decision.placement.exclusive_cpus, after
                assert _nodes(decision) == _nodes(before.decision), after
            self._check_promise(truth, decision, after)
            if before is not None and key != changed and decision.request.score is None:
                kept_bytes = min(_kept_bytes(before.decision), truth.least_bytes)
                assert _kept_bytes(decision) >= kept_bytes, after

    def _check_promise(self, truth: Truth, decision: Decision, after: str) -> None:
        promised_bytes = _promised_bytes(decision)
        if promised_bytes is None:
            return
        resized = truth.qos is GUARANTEED or truth.pod.uid in self.lied_of_resize
        ceiling_bytes = min(truth.limit_bytes or CAPACITY, CAPACITY if resized else truth.most_bytes)
        assert promised_bytes <= ceiling_bytes, after
        score = decision.request.score
        of_score = [
            _promised_bytes(self.one.controller.state.ledger.entries[key].decision) or 0
            for key, other in self.running.items()
            if other.pod.id == truth.pod.id and other.container.oom_score_adj == score
        ]
        # Of several containers with one score at least one requests that much.
        largest_bytes = max([promised_bytes, *of_score]) if score is not None else promised_bytes
        assert largest_bytes >= truth.least_bytes, f"{promised_bytes} of {truth.least_bytes}, {after}"

    # ---- Choices ---------------------------------------------------------------------------------------

    def _say(self, message: FromAgent) -> None:
        pods = self.one.controller.state.kubelet_pods
        match decode_from_agent(encode(message)):
            case PodKnown(said):
                self.lied_of_resize |= {said.uid} if said.resized else set()
                pods.update(said)
            case PodGone(uid):
                pods.forget(uid)

    def _truth(self, name: str, key: str, qos: QosClass) -> Truth:
        request = self.choice.choice([200, 200, 700, 1200]) * MIB
        milli = self.choice.choice([500, 1000, 2000])
        limit = request if qos is GUARANTEED else self.choice.choice([None, 2 * request])
        owner, unified, source = pod(name, qos), {}, self.choice.randrange(4)
        if qos is BEST_EFFORT:
            request, milli, limit = 0, 0, None
        score = oom_score_adj(qos, request, CAPACITY)
        least, most = request, request
        if qos is BURSTABLE:
            step = CAPACITY // 1000
            least, most = request - step - 1, min(request + step + 1, limit or CAPACITY)
            if source == 0:
                unified, least, most = {"memory.low": str(request)}, request, request
            if source == 1:
                self.annotations.setdefault(name, {})[f"{key}.{PREFIX}/memory-request"] = str(request)
                least = request - 1
            if source == 2:  # critical for the node: nothing is said of its request
                score, least, most = -997, 0, limit or CAPACITY
        owner = replace(owner, annotations=dict(self.annotations.get(name, {})))
        resources = Resources(
            memory_limit_bytes=limit,
            cpu_shares=shares_from_milli(milli),
            cpu_quota_us=quota_from_milli(milli) if qos is GUARANTEED else None,
            cpu_period_us=PERIOD_US,
            unified=unified,
        )
        container = Container(key, owner.id, key, resources=resources, oom_score_adj=score)
        said = facts(key, request or None, limit, milli=milli or None)
        limits = replace(said.allocated.limits, cpu_milli=milli if qos is GUARANTEED else None)
        said = replace(said, name=key, allocated=replace(said.allocated, limits=limits))
        return Truth(owner, container, said, least, most, qos)

    def _lie(self, name: str) -> PodFacts:
        """Anything about the pod *name*; most of it often the truth, so that the rest gets further."""
        true, pick = self.pods[name], self.choice
        containers = [self._lie_about(one) for one in true.containers if pick.random() < 0.95]
        containers += [
            ContainerFacts(f"made-up-{number}", pick.choice(list(ContainerKind)), self._amounts())
            for number in range(pick.choice([0, 0, 1, 2]))
        ]
        pick.shuffle(containers)
        return replace(
            true,
            qos=true.qos if pick.random() < 0.9 else pick.choice(list(QosClass)),
            containers=tuple(containers),
            pod_level=pick.choice([None, None, ContainerResources(), self._amounts()]),
            resized=pick.random() < 0.3,
            priority=pick.choice([None, 0, 2_000_000_000]),
        )

    def _lie_about(self, one: ContainerFacts) -> ContainerFacts:
        pick, allocated = self.choice, one.allocated
        requests = replace(allocated.requests, memory_bytes=self._bytes(allocated.requests.memory_bytes or 0))
        allocated = replace(allocated, requests=requests)
        return replace(
            one,
            kind=pick.choice(list(ContainerKind)),
            allocated=allocated if pick.random() < 0.9 else self._amounts(),
            desired=pick.choice([None, one.allocated, self._amounts()]),
        )

    def _amounts(self) -> ContainerResources:
        pick = self.choice
        return ContainerResources(
            Amounts(pick.choice([None, 0, 500, 1000, 1999]), self._bytes(GIB)),
            Amounts(pick.choice([None, None, 1000]), pick.choice([None, None, 400 * MIB])),
        )

    def _bytes(self, true_bytes: int) -> int | None:
        near = self.choice.randint(-20, 20) * MIB
        return self.choice.choice(
            [None, 0, 1, true_bytes, true_bytes // 2, 2 * true_bytes, max(0, true_bytes + near), 1 << 62]
        )


def _with_cpusets(container: Container, answer: Adjustment | Update) -> Container:
    """*container* as the runtime has it after *answer*."""
    resources = replace(
        container.resources,
        cpuset_cpus=answer.cpuset_cpus or container.resources.cpuset_cpus,
        cpuset_mems=answer.cpuset_mems or container.resources.cpuset_mems,
    )
    return replace(container, resources=resources)


def _promised_bytes(decision: Decision) -> int | None:
    """The memory that is promised, or to be made up for."""
    claim = decision.placement.claim
    if claim is None:
        return None
    return claim.amounts_bytes.get(MEMORY, 0) + claim.short_bytes.get(MEMORY, 0)


def _kept_bytes(decision: Decision) -> int:
    """The memory that is promised."""
    claim = decision.placement.claim
    return 0 if claim is None else claim.amounts_bytes.get(MEMORY, 0)


def _nodes(decision: Decision) -> object:
    """The nodes that it was placed on; others can have made it wider since."""
    placement = decision.placement
    return placement.original_nodes or placement.mems


@pytest.mark.parametrize("first", range(0, SEEDS, BATCH))
async def test_whatever_is_said_what_runs_keeps_what_its_spec_proves(tmp_path: Path, first: int) -> None:
    for seed in range(first, first + BATCH):
        await Game(seed, tmp_path / str(seed)).play()


@pytest.mark.parametrize("scope", list(TopologyScope))
async def test_what_a_pod_with_resources_as_a_whole_has_its_spec_says(
    tmp_path: Path, scope: TopologyScope
) -> None:
    def spec(memory_bytes: int, milli: int) -> Resources:
        return Resources(memory_bytes, shares_from_milli(milli), quota_from_milli(milli), PERIOD_US)

    whole = replace(pod("whole", GUARANTEED), resources=spec(4 * GIB, 4000))
    amounts = {"a": (4 * GIB, 4000), "b": (4 * GIB, 4000), "part": (GIB, 1000)}
    asked = {name: Container(name, whole.id, name, resources=spec(*one)) for name, one in amounts.items()}
    known = kubelet_pod(*(facts(name, *one[:1], one[0]) for name, one in amounts.items()), name="whole")
    known = replace(
        known, qos=GUARANTEED, containers=tuple(replace(c, name=c.name[:-5]) for c in known.containers)
    )

    async def played(seed: int, *, lying: bool) -> list[object]:
        game = Game(seed, tmp_path / f"{seed} {lying}")
        game.pods["whole"], seen = known, list[object]()
        async with controlled(game.directory, game.policy, on=MACHINE, engine=ExactEngine(scope)) as game.one:
            controller = game.one.controller
            steps: list[Callable[[], Awaitable[object]]] = [
                *(partial(begun, controller, whole, one) for one in asked.values()),
                partial(controller.update_container, whole, asked["a"], spec(5 * GIB, 4000)),
                partial(controller.stop_container, whole, asked["part"]),
            ]
            for step in steps:
                await step()
                for _ in range(10 if lying else 0):
                    game._say(PodKnown(game._lie("whole")))
                    await game.correct(AsyncExitStack())
                seen.append(
                    [(key, one.decision.placement) for key, one in controller.state.ledger.entries.items()]
                )
        return seen

    for seed in range(5):
        assert await played(seed, lying=True) == await played(seed, lying=False)
