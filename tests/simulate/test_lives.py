"""Containers' events in every order, over the wire: those that runtimes were seen to send, and any others.

After each event it is looked at who holds something. What the kernel shows is a directory: a process is there
from a container's start until before its end is reported.
"""

import json
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from heapq import heapify, heappop, heappush
from itertools import count, takewhile
from pathlib import Path
from typing import Any, Final

import pytest

from bayplan._proto.nri import api_pb2 as pb
from bayplan.control.container_files import Starts
from bayplan.control.ended_containers import ASK_AFTER_S, EndedContainers, ListContainers
from bayplan.errors import UnavailableError
from bayplan.host.container_processes import Occupancy
from bayplan.model.policy import PlacementPolicy
from bayplan.nri import Event, UnixSocket
from bayplan.oci.unmanaged_containers import failed_creations
from bayplan.quantity import MIB
from support.controllers import MACHINE, Controlled, controlled, here
from support.flavors import (
    ALL,
    CONTAINERD_1_7,
    CONTAINERD_2_1,
    CONTAINERD_2_3,
    CONTAINERD_2_4,
    CRIO_1_36,
    Flavor,
)
from support.oci_node import OciNode
from support.plugin import serving
from support.runtime import FakeRuntime
from support.workloads import GUARANTEED, make_container, make_pod

RECORDED: Final[list[dict[str, Any]]] = json.loads(
    (Path(__file__).parents[1] / "data" / "nri_orders.json").read_text(encoding="utf-8")
)["recorded"]
FLAVORS: Final = {
    "1.7": CONTAINERD_1_7,
    "2.1": CONTAINERD_2_1,
    "2.3": CONTAINERD_2_3,
    "2.4": CONTAINERD_2_4,
    "cri-o": CRIO_1_36,
}
STATES: Final = {
    "created": pb.CONTAINER_CREATED,
    "running": pb.CONTAINER_RUNNING,
    "stopped": pb.CONTAINER_STOPPED,
    "unknown": pb.CONTAINER_UNKNOWN,
}
OF_CONTAINERS: Final = (
    Event.POST_CREATE_CONTAINER,
    Event.START_CONTAINER,
    Event.POST_START_CONTAINER,
    Event.UPDATE_CONTAINER,
    Event.POST_UPDATE_CONTAINER,
    Event.STOP_CONTAINER,
    Event.REMOVE_CONTAINER,
)
ENDS: Final = (Event.STOP_CONTAINER, Event.REMOVE_CONTAINER, Event.REMOVE_POD_SANDBOX)
PID: Final = 4242


class One:
    """A container: what is sent of it, and whether it has a process."""

    def __init__(self, node: OciNode, name: str, attempt: int = 0) -> None:
        self.pod = make_pod(name, qos=GUARANTEED)
        self.spec = make_container(
            self.pod,
            memory_limit_bytes=10 * MIB,
            cpu_shares=1024,
            cpu_quota_us=100_000,
            oom_score_adj=-997,
        )
        if attempt:
            self.spec.id += f"-{attempt}"
        self.id = self.spec.id
        self.spec.linux.cgroups_path = f"/kubepods/pod{name}/{self.id}"
        self.alive = False
        self._node, self._pid = node, PID + int(name[1:])

    def start(self) -> None:
        """It gets a process."""
        if not self.alive:
            self._node.make_cgroup(self.spec.linux.cgroups_path)
            self._node.make_process(self._pid, self.spec.linux.cgroups_path)
            self.alive = True

    def end(self) -> None:
        """Its process ends."""
        if self.alive:
            self._node.end(self._pid)
            self.alive = False


class Daemon:
    """A daemon that serves a runtime."""

    def __init__(
        self, around: Controlled, node: OciNode, clock_s: Callable[[], float], listed: ListContainers
    ) -> None:
        self.controller = around.controller
        occupancy = Occupancy(node.hierarchy, 16)
        self.look = EndedContainers(
            around.controller,
            occupancy,
            here,
            listed,
            partial(failed_creations, node.root),
            Starts(None).forget,
            clock_s,
        ).release_ended

    @property
    def held(self) -> set[str]:
        """The ids of those who hold something."""
        held = set(self.controller.state.ledger.entries)
        assert held == self.controller.state.lives.held
        return held


def _silent(runtime: str) -> dict[str, bool]:
    raise UnavailableError(runtime, "does not answer")


@asynccontextmanager
async def running(
    runtime: FakeRuntime,
    node: OciNode,
    directory: Path,
    clock_s: Callable[[], float] = time.monotonic,
    listed: ListContainers = _silent,
) -> AsyncIterator[Daemon]:
    async with controlled(directory / "state", PlacementPolicy(), None, MACHINE) as around:
        around.kernel = node.hierarchy
        async with serving(around.controller, UnixSocket(str(directory / "nri.sock"))):
            await runtime.synchronized()
            yield Daemon(around, node, clock_s, listed)


async def restarted(runtime: FakeRuntime, directory: Path) -> None:
    """The runtime is restarted, and lists what it has."""
    await runtime.stop()
    (directory / "nri.sock").unlink(missing_ok=True)
    await runtime.listen(directory / "nri.sock")
    await runtime.synchronized()


ORDERS: Final = [
    pytest.param(FLAVORS[one["runtime"]], order["events"], id=f"{one['runtime']}-{number}")
    for one in RECORDED
    for number, order in enumerate(one["orders"])
]


@pytest.mark.parametrize(("flavor", "events"), ORDERS)
async def test_the_orders_of_real_runtimes(tmp_path: Path, flavor: Flavor, events: list[str]) -> None:
    """Held from its creation to its end, and again if it is started after a stop."""
    runtime, node = FakeRuntime(flavor), OciNode(tmp_path / "root")
    await runtime.listen(tmp_path / "nri.sock")
    one = One(node, "p1")
    async with running(runtime, node, tmp_path) as daemon:
        held = False
        for text in events:
            name, _, state = text.partition(" ")
            event = Event[name]
            if event is Event.START_CONTAINER:
                one.start()
            elif event in (Event.STOP_CONTAINER, Event.STOP_POD_SANDBOX):
                one.end()
            one.spec.state = STATES.get(state, pb.CONTAINER_UNKNOWN)
            one.spec.pid = PID + 1 if one.alive or state == "running" else 0
            await runtime.say(event, one.pod, one.spec)
            if event is Event.CREATE_CONTAINER or (event is Event.START_CONTAINER and one.alive):
                held = True
            elif event in (*ENDS, Event.STOP_POD_SANDBOX) or state == "stopped":
                held = False
            assert daemon.held == ({one.id} if held else set()), text
        assert not held
    await runtime.stop()


BEGUN: Final = (
    ("CREATE_CONTAINER", True),
    ("POST_CREATE_CONTAINER", True),
    ("START_CONTAINER", True),
)
REPORTED: Final = {
    # Sandboxes that were stopped take containers, and start none.
    "github.com/containerd/containerd/issues/13599": (
        ("STOP_POD_SANDBOX", False),
        ("CREATE_CONTAINER", True),
        ("POST_CREATE_CONTAINER", True),
        ("look", False),
        ("REMOVE_CONTAINER", False),
        ("REMOVE_POD_SANDBOX", False),
    ),
    # After its own restart a runtime did not know which ends it had yet to report.
    "github.com/containerd/containerd/issues/8426": (
        *BEGUN,
        ("POST_START_CONTAINER", True),
        ("connects", True),
        ("its process ends", True),
        ("look", False),
    ),
    # The end of a container that exits by itself need not be reported before its removal.
    "github.com/kubernetes-sigs/cri-tools/pull/2125": (
        *BEGUN,
        ("POST_START_CONTAINER", True),
        ("its process ends", True),
        ("REMOVE_CONTAINER", False),
        ("STOP_CONTAINER", False),
    ),
    # A sandbox goes while a container is created in it; its end is reported without the sandbox.
    "github.com/containerd/containerd/pull/7073": (
        ("CREATE_CONTAINER", True),
        ("STOP_POD_SANDBOX", False),
        ("REMOVE_POD_SANDBOX", False),
        ("POST_CREATE_CONTAINER", False),
        ("look", False),
        ("STOP_CONTAINER of a pod with an id only", False),
        ("REMOVE_CONTAINER of no pod", False),
    ),
    # A plugin connects while a container has its grace period, and ends before that is over.
    "github.com/containerd/containerd/issues/14083": (
        *BEGUN,
        ("POST_START_CONTAINER", True),
        ("connects", True),
        ("its process ends", True),
        ("connects", True),
        ("look", False),
        ("STOP_CONTAINER of a pod with an id only", False),
        ("POST_START_CONTAINER", False),
    ),
    # The exit of a short-lived container overtakes its start.
    "github.com/cri-o/cri-o/pull/9822": (
        *BEGUN,
        ("its process ends", True),
        ("STOP_CONTAINER", False),
        ("POST_START_CONTAINER", False),
        ("UPDATE_CONTAINER", False),
        ("POST_UPDATE_CONTAINER", False),
    ),
}


@pytest.mark.parametrize("order", REPORTED.values(), ids=REPORTED)
@pytest.mark.parametrize("flavor", ALL, ids=str)
async def test_orders_that_others_reported(
    tmp_path: Path, flavor: Flavor, order: tuple[tuple[str, bool], ...]
) -> None:
    """On every runtime, whoever it was reported of."""
    runtime, node = FakeRuntime(flavor), OciNode(tmp_path / "root")
    await runtime.listen(tmp_path / "nri.sock")
    one = One(node, "p1")
    described = {
        "": one.pod,
        "a pod with an id only": pb.PodSandbox(id=one.pod.id),
        "no pod": pb.PodSandbox(),
    }
    async with running(runtime, node, tmp_path) as daemon:
        for step, held in order:
            name, _, pod = step.partition(" of ")
            if name == "look":
                await daemon.look()
            elif name == "its process ends":
                one.end()
            elif name == "connects":
                one.spec.state, one.spec.pid = pb.CONTAINER_RUNNING, PID + 1
                runtime.pods[one.pod.id], runtime.containers[one.id] = one.pod, one.spec
                await restarted(runtime, tmp_path)
            else:
                if name == "START_CONTAINER":
                    one.start()
                await runtime.say(Event[name], described[pod], one.spec)
            assert daemon.held == ({one.id} if held else set()), step
    await runtime.stop()


SEEN: Final = (*BEGUN, ("POST_START_CONTAINER", True), ("look", True), ("its process ends", True))
STALE: Final = {
    # The exit was seen, and handling it failed: the container stays as it was.
    "github.com/containerd/containerd/issues/9240": (*SEEN, ("look", False)),
    # The event of the exit is lost; kubelet goes on asking for its stop.
    "github.com/containerd/containerd/issues/3177": (
        *SEEN,
        ("look", False),
        ("UPDATE_CONTAINER", False),
        ("STOP_POD_SANDBOX", False),
    ),
    # The runtime is restarted while it stops the container, and lists it as running.
    "github.com/containerd/containerd/issues/12600": (
        *SEEN,
        ("connects", True),
        ("look", False),
        ("STOP_CONTAINER", False),
    ),
    # The same of an exit while the runtime was away, whose shim stays.
    "github.com/containerd/containerd/issues/6771": (
        *SEEN,
        ("connects", True),
        ("look", False),
        ("REMOVE_CONTAINER", False),
    ),
    # Jobs' containers are not removed, and need not be.
    "github.com/kubernetes/kubernetes/issues/52351": (*SEEN, ("STOP_CONTAINER", False), ("look", False)),
}


@pytest.mark.parametrize("order", STALE.values(), ids=STALE)
@pytest.mark.parametrize("looked", [True, False])
@pytest.mark.parametrize("flavor", ALL, ids=str)
async def test_a_runtime_that_goes_on_listing_the_dead_as_running(
    tmp_path: Path, flavor: Flavor, looked: bool, order: tuple[tuple[str, bool], ...]
) -> None:
    """Whether or not a look was had while it ran. The runtime is asked for the sake of another container,
    which waits for its start: of that one it knows more than the kernel."""
    runtime, node, now_s = FakeRuntime(flavor), OciNode(tmp_path / "root"), 1000.0
    await runtime.listen(tmp_path / "nri.sock")
    one, waiting = One(node, "p1"), One(node, "p2")

    def listed(_: str) -> dict[str, bool]:
        return {one.id: True, waiting.id: True}

    async with running(runtime, node, tmp_path, lambda: now_s, listed) as daemon:
        for event in (Event.CREATE_CONTAINER, Event.POST_CREATE_CONTAINER):
            await runtime.say(event, waiting.pod, waiting.spec)
        waiting.spec.state = pb.CONTAINER_CREATED
        for each in (one, waiting):
            runtime.pods[each.pod.id], runtime.containers[each.id] = each.pod, each.spec
        for name, held in order:
            if name == "look":
                for _ in range(3 if looked or not held else 0):
                    now_s += 2 * ASK_AFTER_S
                    await daemon.look()
            elif name == "its process ends":
                one.end()
            elif name == "connects":
                one.spec.state, one.spec.pid = pb.CONTAINER_RUNNING, PID + 1
                await restarted(runtime, tmp_path)
            else:
                if name == "START_CONTAINER":
                    one.start()
                await runtime.say(Event[name], one.pod, one.spec)
            assert daemon.held == ({one.id, waiting.id} if held else {waiting.id}), name
    await runtime.stop()


@pytest.mark.parametrize("event", OF_CONTAINERS)
@pytest.mark.parametrize("flavor", ALL, ids=str)
async def test_nothing_brings_the_dead_back(tmp_path: Path, flavor: Flavor, event: Event) -> None:
    """Not the events of before its end, on any runtime, after a new connection and a new daemon either."""
    runtime, node = FakeRuntime(flavor), OciNode(tmp_path / "root")
    await runtime.listen(tmp_path / "nri.sock")
    one = One(node, "p1")
    async with running(runtime, node, tmp_path) as daemon:
        await runtime.say(Event.CREATE_CONTAINER, one.pod, one.spec)
        assert daemon.controller.state.ledger.exclusive_cpus
        await runtime.say(Event.STOP_CONTAINER, one.pod, one.spec)
        await runtime.say(event, one.pod, one.spec)
        assert daemon.held == set()
        await restarted(runtime, tmp_path)
        await runtime.say(event, one.pod, one.spec)
        assert daemon.held == set()
    await runtime.abandoned()
    async with running(runtime, node, tmp_path) as daemon:
        await runtime.say(event, one.pod, one.spec)
        assert daemon.held == set()
    await runtime.stop()


async def test_who_is_created_anew_under_its_name_takes_the_place_of_one_that_failed(tmp_path: Path) -> None:
    """What CRI-O's OCI runtime fails to create, of which no event and no list says anything."""
    runtime, node = FakeRuntime(CRIO_1_36), OciNode(tmp_path / "root")
    await runtime.listen(tmp_path / "nri.sock")
    failed, again, sidecar = (One(node, "p1") for _ in range(3))
    again.spec.id, sidecar.spec.id = f"{failed.id}-2", f"{failed.id}-sidecar"
    sidecar.spec.name = "sidecar"
    async with running(runtime, node, tmp_path) as daemon:
        for one in (failed, sidecar, again):
            await runtime.say(Event.CREATE_CONTAINER, one.pod, one.spec)
        assert daemon.held == {again.spec.id, sidecar.spec.id}
    await runtime.stop()


async def test_whose_names_are_not_known_are_not_taken_for_each_others_successors(tmp_path: Path) -> None:
    """CRI-O up to 1.36 describes containers without kubelet's labels without their names."""
    runtime, node = FakeRuntime(CRIO_1_36), OciNode(tmp_path / "root")
    await runtime.listen(tmp_path / "nri.sock")
    one, other = One(node, "p1"), One(node, "p1")
    one.spec.name, other.spec.name, other.spec.id = "", "", f"{one.id}-2"
    async with running(runtime, node, tmp_path) as daemon:
        for each in (one, other):
            await runtime.say(Event.CREATE_CONTAINER, each.pod, each.spec)
        assert daemon.held == {one.id, other.spec.id}
    await runtime.stop()


class AnyOrder:
    """Events of three containers at random, and what must hold. ``over``: those whose end was reported, and
    of which nothing was reported since with a process of theirs. ``lives``: those that were reported with a
    process, and have not ended since."""

    def __init__(self, seed: int, runtime: FakeRuntime, node: OciNode) -> None:
        self._choice, self._runtime = random.Random(seed), runtime
        self.containers = [One(node, f"p{number}") for number in range(3)]
        self.over, self.lives = set[str](), set[str]()
        self._held, self._holding = set[str](), set[str]()

    def restarted(self) -> None:
        """Another daemon: the runtime lists nothing to it, and it knows the ends of those that were ever
        held."""
        self.lives.clear()
        self._holding = set()
        self.over &= self._held

    async def step(self, daemon: Daemon) -> None:
        """Something happens."""
        one = self._choice.choice(self.containers)
        match self._choice.randrange(9):
            case 0:
                one.start()
            case 1:
                one.end()
                self.lives.discard(one.id)
            case 2:
                await daemon.look()
            case _:
                events = (Event.CREATE_CONTAINER, *OF_CONTAINERS, Event.REMOVE_POD_SANDBOX)
                event = self._choice.choice(events)
                await self._runtime.say(event, one.pod, one.spec)
                self._said(one, event)
        self.check(daemon)

    def _said(self, one: One, event: Event) -> None:
        if event in ENDS:
            # The end of a pod says nothing of containers that nobody has heard of.
            self.over |= {one.id} & (self._holding if event is Event.REMOVE_POD_SANDBOX else {one.id})
            self.lives.discard(one.id)
        elif event is Event.CREATE_CONTAINER:
            self.over.discard(one.id)
        elif one.alive and event is not Event.POST_UPDATE_CONTAINER:
            self.over.discard(one.id)
            self.lives.add(one.id)

    def check(self, daemon: Daemon) -> None:
        """Who has ended holds nothing, and who lives does."""
        self._holding = daemon.held
        self._held |= self._holding
        assert not daemon.held & self.over
        assert self.lives <= daemon.held


LONG = (pytest.param(seed, marks=pytest.mark.matrix) for seed in range(12, 200))


@pytest.mark.parametrize("seed", [*range(12), *LONG])
async def test_any_order(tmp_path: Path, seed: int) -> None:
    """Late, doubled and missing; processes that come and go without a word; new daemons."""
    runtime, node = FakeRuntime(ALL[seed % len(ALL)]), OciNode(tmp_path / "root")
    await runtime.listen(tmp_path / "nri.sock")
    order = AnyOrder(seed, runtime, node)
    for _ in range(4):
        async with running(runtime, node, tmp_path) as daemon:
            order.restarted()
            for _ in range(25):
                await order.step(daemon)
            await daemon.look()
            order.check(daemon)
        await runtime.abandoned()
    await runtime.stop()


class CrashLoops:
    """Pods whose containers end soon and are created again, at kubelet's pace: 10 s later, then twice as
    long up to 5 min. Each attempt is reported in an order that the runtime was seen to use; some ends are
    not reported at all. Of each pod the last container that has ended stays until the next one has."""

    def __init__(self, seed: str, runtime: FakeRuntime, node: OciNode, orders: list[list[str]]) -> None:
        self._choice, self._runtime, self._node, self._orders = random.Random(seed), runtime, node, orders
        self.ended_s = dict[str, float]()
        self.placed = 0
        self.daemon: Daemon | None = None
        self.now_s = self._looked_s = 0.0

    async def pod(self, name: str) -> AsyncIterator[float]:
        """Go on with one of them; after how many seconds the next step is due."""
        ended = list[One]()
        for attempt in count(1):
            one = One(self._node, name, attempt)
            unreported = self._choice.random() < 0.1
            for text in self._choice.choice(self._orders):
                event = self._happen(one, text)
                if not (unreported and event in ENDS):
                    await self._runtime.say(event, one.pod, one.spec)
                if event is Event.CREATE_CONTAINER and self.daemon is not None:
                    entry = self.daemon.controller.state.ledger.entries[one.id]
                    assert len(entry.decision.placement.exclusive_cpus) == 1
                    self.placed += 1
                yield self._choice.expovariate(2)
            self._end(one)
            ended.append(one)
            if len(ended) > 1:
                oldest = ended.pop(0)
                await self._runtime.say(Event.REMOVE_CONTAINER, oldest.pod, oldest.spec)
            yield min(10 * 2 ** (attempt - 1), 300)

    async def look_until(self, due_s: float) -> None:
        """What the daemon does every 10 s. Who holds something has not ended, or just now."""
        while self._looked_s + ASK_AFTER_S <= due_s:
            self._looked_s += ASK_AFTER_S
            self.now_s = self._looked_s
            if self.daemon is not None:
                await self.daemon.look()
                for container_id in self.daemon.held & self.ended_s.keys():
                    assert self.now_s - self.ended_s[container_id] <= 2 * ASK_AFTER_S
        self.now_s = due_s

    def listed(self, _: str) -> dict[str, bool]:
        """What the runtime lists over CRI."""
        return dict.fromkeys(self.ended_s, False) | dict.fromkeys(self._runtime.containers, True)

    async def end_all(self) -> None:
        """Nothing is created any more; what still runs ends, and that is reported."""
        for one in list(self._runtime.containers.values()):
            await self._runtime.stop_container(one.id)

    def _happen(self, one: One, text: str) -> Event:
        name, _, state = text.partition(" ")
        event = Event[name]
        if event is Event.START_CONTAINER:
            one.start()
            self._runtime.pods[one.pod.id], self._runtime.containers[one.id] = one.pod, one.spec
        elif event is Event.STOP_CONTAINER:
            self._end(one)
        one.spec.state = STATES.get(state, pb.CONTAINER_UNKNOWN)
        one.spec.pid = PID + 1 if one.alive or state == "running" else 0
        return event

    def _end(self, one: One) -> None:
        one.end()
        self.ended_s.setdefault(one.id, self.now_s)
        self._runtime.containers.pop(one.id, None)


@pytest.mark.parametrize("hours", [2, pytest.param(48, marks=pytest.mark.matrix)])
@pytest.mark.parametrize("name", FLAVORS)
async def test_hours_of_crash_loops(tmp_path: Path, name: str, hours: int) -> None:
    """Each container is given a CPU of its own: those before it hold none. The daemon is killed every hour,
    and is away for up to two minutes."""
    runtime, node, draw = FakeRuntime(FLAVORS[name]), OciNode(tmp_path / "root"), random.Random(name)
    await runtime.listen(tmp_path / "nri.sock")
    orders = [
        list(takewhile(lambda text: "POD_SANDBOX" not in text and "REMOVE" not in text, order["events"]))
        for recorded in RECORDED
        if recorded["runtime"] == name
        for order in recorded["orders"]
    ]
    loops = CrashLoops(name, runtime, node, orders)
    due = [(draw.uniform(0, 30), number) for number in range(4)]
    pods = [loops.pod(f"p{number}") for number in range(len(due))]
    heapify(due)
    for hour in range(hours):
        async with AsyncExitStack() as stack:
            loops.daemon = await stack.enter_async_context(
                running(runtime, node, tmp_path, lambda: loops.now_s, loops.listed)
            )
            away_s = hour * 3600 + 3600 - draw.uniform(0, 120)
            while due[0][0] < (hour + 1) * 3600:
                due_s, number = heappop(due)
                if due_s >= away_s and loops.daemon is not None:
                    await stack.aclose()
                    await runtime.abandoned()
                    loops.daemon = None
                await loops.look_until(due_s)
                heappush(due, (due_s + await anext(pods[number]), number))
    async with running(runtime, node, tmp_path, lambda: loops.now_s, loops.listed) as daemon:
        for pod in pods:
            await pod.aclose()
        await loops.end_all()
        loops.now_s += ASK_AFTER_S
        await daemon.look()
        assert not daemon.held
        assert not daemon.controller.state.ledger.exclusive_cpus
    assert loops.placed > 40 * hours
    await runtime.stop()
