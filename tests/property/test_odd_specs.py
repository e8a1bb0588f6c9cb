"""Whatever a runtime says of pods and containers: an answer that it can read, or a refusal for its user."""

import random
from contextlib import suppress
from pathlib import Path

import pytest

from bayplan._proto.nri import api_pb2 as pb
from bayplan.control.controller import Controller
from bayplan.engines.exact.engine import ExactEngine
from bayplan.engines.interface import Engine
from bayplan.engines.kubelet.engine import KubeletEngine
from bayplan.errors import PlacementError
from bayplan.model.policy import MemoryQos, PlacementPolicy, TopologyPolicy
from bayplan.model.wishes import KEYS
from bayplan.nri import Event
from bayplan.nri.translate import adjustment_to, container_from, encoded_updates, pod_from, resources_from
from bayplan.quantity import GIB, MIB
from support.controllers import controlled
from support.machines import machine

STEPS = 120
MANY_DIGITS = "9" * 5000
MACHINE = machine(3, 4, GIB, cpu_less={9: GIB}, hugepages_bytes={2 * MIB: 64 * MIB}, distances={(0, 1): 50})
POLICIES = [
    PlacementPolicy(
        TopologyPolicy.BEST_EFFORT, memory_qos=MemoryQos(), default_memory_limit_bytes={"Burstable": GIB}
    ),
    PlacementPolicy(TopologyPolicy.RESTRICTED, refuse_wrong_annotations=True),
]

SIGNED = (0, 1, -1, 1024, 100_000, 200_000, MIB, GIB, 3 * GIB, (1 << 63) - 4096, (1 << 63) - 1, -(1 << 63))
UNSIGNED = (0, 1, 2, 1024, 262_144, 100_000, 1 << 63, (1 << 64) - 1)
SCORES = (-(1 << 31), -1001, -998, -997, 0, 2, 500, 999, 1000, 1001, (1 << 31) - 1)
LISTS = (
    "", "0", "0-1", "0-N", "all", "0-11:1/2", " 1 , 2,", "99", "0-", "-1", "a", "5-3", "0-8191", "0-65536",
    "²", "\n", MANY_DIGITS,
)  # fmt: skip
PAGES = ("2MB", "1GB", "3MB", "0KB", "", "x", "999999999999999TB", f"{MANY_DIGITS}MB")
UNIFIED = (
    "memory.min",
    "memory.low",
    "memory.high",
    "memory.max",
    "memory.oom.group",
    "cpuset.mems",
    "cpuset.cpus",
    "cpu.max",
    "cpu.weight",
    "cpu.idle",
    "cpu.weight.nice",
    "cpuset.cpus.exclusive",
    "cpuset.cpus.partition",
    "hugetlb.2MB.rsvd.max",
    "hugetlb.2MB.max",
    "x",
    "",
)
TEXTS = (
    "isolated",
    "",
    "0",
    "max",
    "-1",
    "512M",
    "²",
    str(1 << 63),
    str(1 << 28),
    "1Gi",
    "0-1",
    "true",
    "gpu=0",
    "all",
    MANY_DIGITS,
)
WISHES = (*TEXTS, "9", "1e400", "\0", "bind=static:0", "interleave:", "preferred-many:9")
PARENTS = (
    "",
    "/",
    "/kubepods/podx",
    "/kubepods/burstable/podx",
    "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-podx.slice",
    "kubepods-podx.slice",
    "../../x",
    "/system.slice",
    "/" + "a" * 5000,
)


class Source:
    """Odd pods, containers and resources."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)

    def likely(self, chance: float) -> bool:
        return self.dice.random() < chance

    def resources(self, message: pb.LinuxResources) -> pb.LinuxResources:
        one_of = self.dice.choice
        fields = (
            (0.6, lambda: setattr(message.memory.limit, "value", one_of(SIGNED))),
            (0.2, lambda: setattr(message.memory.reservation, "value", one_of(SIGNED))),
            (0.2, lambda: setattr(message.memory.swap, "value", one_of(SIGNED))),
            (0.6, lambda: setattr(message.cpu.shares, "value", one_of(UNSIGNED))),
            (0.6, lambda: setattr(message.cpu.quota, "value", one_of(SIGNED))),
            (0.6, lambda: setattr(message.cpu.period, "value", one_of(UNSIGNED))),
            (0.15, lambda: setattr(message.cpu, "cpus", one_of(LISTS))),
            (0.15, lambda: setattr(message.cpu, "mems", one_of(LISTS))),
            (0.2, lambda: message.hugepage_limits.add(page_size=one_of(PAGES), limit=one_of(UNSIGNED))),
            (0.3, lambda: message.unified.update({one_of(UNIFIED): one_of(TEXTS)})),
        )
        for chance, put in fields:
            if self.likely(chance):
                put()
        return message

    def pod(self, number: int) -> pb.PodSandbox:
        pod = pb.PodSandbox(id=f"p{number % 30}", name="web", namespace="d", uid="u")
        pod.linux.cgroup_parent = self.dice.choice(PARENTS)
        self.resources(pod.linux.pod_resources)
        if self.likely(0.3):
            key = f"{self.dice.choice(('', 'main.'))}bayplan.dev/{self.dice.choice((*KEYS, 'nope'))}"
            pod.annotations[key] = self.dice.choice(WISHES)
        return pod

    def container(self, number: int, pod: pb.PodSandbox) -> pb.Container:
        container = pb.Container(id=f"c{number}", pod_sandbox_id=pod.id, name=self.dice.choice(("main", "")))
        self.resources(container.linux.resources)
        if self.likely(0.5):
            container.linux.oom_score_adj.value = self.dice.choice(SCORES)
        return container


async def live(controller: Controller, source: Source) -> None:
    """Let some containers come, change and go."""
    existing: dict[str, tuple[pb.PodSandbox, pb.Container]] = {}
    for number in range(STEPS):
        pod = source.pod(number)
        container = source.container(number, pod)
        what = source.dice.choice(("create", "create", "create", "update", "start", "stop", "list", "late"))
        if existing and what in ("update", "stop"):
            pod, container = existing[source.dice.choice(sorted(existing))]
        with suppress(PlacementError):
            await step(controller, source, existing, what, pod, container)


async def step(
    controller: Controller,
    source: Source,
    existing: dict[str, tuple[pb.PodSandbox, pb.Container]],
    what: str,
    pod: pb.PodSandbox,
    container: pb.Container,
) -> None:
    seen, spec = pod_from(pod), container_from(container)
    if what == "create":
        adjustment, updates = await controller.create_container(seen, spec)
        assert adjustment_to(spec.id, adjustment).IsInitialized()
        existing[spec.id] = pod, container
    elif what == "update":
        change = resources_from(source.resources(pb.LinuxResources()), "update")
        updates = await controller.update_container(seen, spec, change)
    elif what == "stop":
        updates = await controller.stop_container(seen, spec)
        existing.pop(spec.id, None)
    elif what == "list":
        listed = [*existing.values(), (pod, container)]
        updates = await controller.synchronize(
            [pod_from(one) for one, _ in listed], [container_from(one) for _, one in listed]
        )
    elif what == "late":
        adjustment_to(spec.id, controller.fallback_adjustment(seen, spec))
        updates = ()
    else:
        await controller.state_changed(Event.START_CONTAINER, seen, spec)
        updates = ()
    pb.SynchronizeResponse.FromString(encoded_updates(updates, pb.SynchronizeResponse.UPDATE_FIELD_NUMBER))


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.topology.value)
@pytest.mark.parametrize("engine", [ExactEngine(), KubeletEngine()], ids=lambda engine: engine.name)
@pytest.mark.parametrize("seed", [1, 2])
async def test_no_spec_stops_the_daemon(
    tmp_path: Path, seed: int, engine: Engine, policy: PlacementPolicy
) -> None:
    async with controlled(tmp_path, policy, on=MACHINE) as one:
        one.controller.state.take_engine(engine)
        await live(one.controller, Source(seed))
        assert len(one.controller.state.ledger.entries) > 0
