"""A container runtime over NRI, one action at a time: what it does about an answer comes later, and
anything can happen in between.

It keeps its containers' specs and forgets nothing. The answers come from the daemon's own session code; an
update of a container that the runtime does not know yet is lost, as in containerd. What becomes of a
container is its `Fate`; the orders of events are those of tests/data/nri_orders.json, and beyond: any event
of a container can come once more, also after its end.
"""

import enum
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from bayplan._proto.nri import api_pb2 as pb
from bayplan.nri import Event
from bayplan.nri.translate import (
    CreateContainer,
    Operation,
    StateChange,
    StopContainer,
    Synchronize,
    UpdateContainer,
    container_from,
    pod_from,
    resources_from,
)
from bayplan.nri.wire import Code, TtrpcResponse
from support.flavors import CONTAINERD_2_3
from support.interleaving.kernel import Kernel
from support.spec import adjust, merge

Action = Callable[[], None]
Ask = Callable[[Operation, Callable[[TtrpcResponse | None], None]], None]
"""Asks the daemon; the answer, None for a lost one, comes to the callback."""


class Fate(enum.Enum):
    """What becomes of a container once its creation was answered. UNDONE: the creation fails, and the runtime
    says so. LOST: the OCI runtime fails to create it, and CRI-O says nothing. NOT_STARTED: it fails to create
    it at the start, and containerd says nothing. START_FAILS: it fails after StartContainer. EXITS: its
    process has ended, and that was said, before its start is. STOPPED_FIRST: it is stopped before it is
    started."""

    LIVES = "lives"
    UNDONE = "undone"
    LOST = "lost"
    NOT_STARTED = "not started"
    START_FAILS = "start fails"
    EXITS = "exits"
    STOPPED_FIRST = "stopped first"


@dataclass
class Running:
    """A container that the runtime makes. ``known``: it knows it. ``has_process``: it has a cgroup with a
    process."""

    pod: pb.PodSandbox
    spec: pb.Container
    fate: Fate = Fate.LIVES
    known: bool = False
    has_process: bool = False


@dataclass
class NriRuntime:
    """Its containers by id, and what it has yet to do: for each answer the actions in their order. ``over``
    are those that have ended, or that failed. Of ``stopped_pods`` nothing starts any more.
    ``makes_cgroup_at_creation`` as in `support.flavors`."""

    kernel: Kernel
    ask: Ask
    makes_cgroup_at_creation: bool = True
    containers: dict[str, Running] = field(default_factory=dict)
    over: dict[str, Running] = field(default_factory=dict)
    busy: list[deque[Action]] = field(default_factory=list)
    stopped_pods: set[str] = field(default_factory=set)
    refused: int = 0

    def synchronize(self) -> None:
        """List what exists."""
        pods = {one.pod.id: pod_from(one.pod) for one in self.containers.values()}
        listed = [container_from(one.spec) for one in self.containers.values()]
        self.ask(Synchronize(list(pods.values()), listed), self._synchronized)

    def create(self, pod: pb.PodSandbox, spec: pb.Container, fate: Fate = Fate.LIVES) -> None:
        """Begin to create a container."""
        request = CreateContainer(pod_from(pod), container_from(spec))
        self.ask(request, partial(self._created, Running(pod, spec, fate)))

    def update(self, container_id: str, change: pb.LinuxResources) -> None:
        """Begin to change a container's resources."""
        one = self.containers[container_id]
        resources = resources_from(change, container_id)
        request = UpdateContainer(pod_from(one.pod), container_from(one.spec), resources)
        self.ask(request, partial(self._updated, container_id, change))

    def stop(self, container_id: str, *, said: bool = True) -> None:
        """A container has ended; unless it is *said*, nobody hears of it."""
        one = self._end(container_id)
        if said:
            self._say_stopped(one)

    def repeat(self, container_id: str, event: Event) -> None:
        """Send an event of a container once more, or late."""
        one = self.containers.get(container_id) or self.over[container_id]
        if event is Event.STOP_CONTAINER:
            self._say_stopped(one)
        elif event is Event.UPDATE_CONTAINER:
            resources = resources_from(pb.LinuxResources(), container_id)
            self.ask(UpdateContainer(pod_from(one.pod), container_from(one.spec), resources), _ignore)
        else:
            self.ask(_state_change(event, one), _ignore)

    def listed(self) -> dict[str, bool]:
        """What it lists over CRI: who is over is there until it is removed."""
        return {
            **{key: False for key, one in self.over.items() if one.known},
            **dict.fromkeys(self.containers, True),
        }

    def stop_pod(self, container_id: str, *, remove: bool) -> None:
        """The pod of a container that is over is stopped, or removed."""
        event = Event.REMOVE_POD_SANDBOX if remove else Event.STOP_POD_SANDBOX
        pod = self.over[container_id].pod
        self.stopped_pods.add(pod.id)
        self.ask(StateChange(event, pod_from(pod), None), _ignore)

    def _end(self, container_id: str) -> Running:
        one = self.over[container_id] = self.containers.pop(container_id)
        if one.has_process:
            self.kernel.stop(one.spec.linux.cgroups_path)
            one.has_process = False
        return one

    def _say_stopped(self, one: Running) -> None:
        self.ask(StopContainer(pod_from(one.pod), container_from(one.spec)), self._stopped)

    def step(self, number: int) -> None:
        """Do the next thing about one of the answers."""
        actions = self.busy[number]
        actions.popleft()()
        self.busy = [one for one in self.busy if one]

    def _synchronized(self, response: TtrpcResponse | None) -> None:
        if response is not None:
            self._carry_out(pb.SynchronizeResponse.FromString(response.payload).update)

    def _created(self, one: Running, response: TtrpcResponse | None) -> None:
        if response is not None and response.code is not Code.OK:
            self.refused += 1
            return
        answer = pb.CreateContainerResponse.FromString(b"" if response is None else response.payload)
        adjust(one.spec, answer.adjust, CONTAINERD_2_3)
        if one.fate in (Fate.UNDONE, Fate.LOST):
            self._carry_out(answer.update, partial(self._fail_to_create, one))
            return
        first = [partial(self._stop_first, one)] if one.fate is Fate.STOPPED_FIRST else []
        self._carry_out(answer.update, partial(self._make, one), *first, partial(self._start, one))

    def _fail_to_create(self, one: Running) -> None:
        self.over[one.spec.id] = one
        if one.fate is not Fate.LOST:
            self._say_stopped(one)
            self.ask(_state_change(Event.REMOVE_CONTAINER, one), _ignore)

    def _make(self, one: Running) -> None:
        if self.makes_cgroup_at_creation and one.pod.id in self.stopped_pods:
            self._fail_to_create(one)
            return
        self.containers[one.spec.id] = one
        one.known = True
        one.spec.state = pb.CONTAINER_CREATED
        if self.makes_cgroup_at_creation and one.fate is not Fate.NOT_STARTED:
            self._make_cgroup(one)
        self.ask(_state_change(Event.POST_CREATE_CONTAINER, one), _ignore)

    def _make_cgroup(self, one: Running) -> None:
        for mount in one.spec.mounts:
            if not Path(mount.source).is_dir():
                raise AssertionError(f"{one.spec.id} cannot start: {mount.source} is not there")
        path, cpu = one.spec.linux.cgroups_path, one.spec.linux.resources.cpu
        self.kernel.start(path)
        self.kernel.set(path, cpu.cpus, cpu.mems)
        one.has_process = True

    def _stop_first(self, one: Running) -> None:
        if one.spec.id in self.containers:
            self._say_stopped(one)

    def _start(self, one: Running) -> None:
        if one.spec.id not in self.containers:
            return
        if one.fate is Fate.NOT_STARTED or one.pod.id in self.stopped_pods:
            self._end(one.spec.id)
            return
        if not one.has_process:
            self._make_cgroup(one)
        request = _state_change(Event.START_CONTAINER, one)
        self.ask(request, lambda _: self.busy.append(deque([partial(self._started, one)])))

    def _started(self, one: Running) -> None:
        if one.spec.id not in self.containers:
            return
        if one.fate in (Fate.START_FAILS, Fate.EXITS):
            self._say_stopped(self._end(one.spec.id))
        else:
            one.spec.state = pb.CONTAINER_RUNNING
        if one.fate is not Fate.START_FAILS:
            self.ask(_state_change(Event.POST_START_CONTAINER, one), _ignore)

    def _updated(self, container_id: str, change: pb.LinuxResources, response: TtrpcResponse | None) -> None:
        if response is not None and response.code is not Code.OK:
            self.refused += 1
            return
        answer = pb.UpdateContainerResponse.FromString(b"" if response is None else response.payload)
        own = pb.ContainerUpdate(container_id=container_id)
        own.linux.resources.CopyFrom(change)
        self._carry_out([own, *answer.update], partial(self._post_update, container_id))

    def _post_update(self, container_id: str) -> None:
        one = self.containers.get(container_id)
        if one is not None:
            self.ask(_state_change(Event.POST_UPDATE_CONTAINER, one), _ignore)

    def _stopped(self, response: TtrpcResponse | None) -> None:
        if response is not None:
            self._carry_out(pb.StopContainerResponse.FromString(response.payload).update)

    def _carry_out(self, updates: Iterable[pb.ContainerUpdate], *more: Action) -> None:
        actions = deque[Action]([*(partial(self._apply, one) for one in updates), *more])
        if actions:
            self.busy.append(actions)

    def _apply(self, update: pb.ContainerUpdate) -> None:
        one = self.containers.get(update.container_id)
        if one is not None:
            merge(one.spec.linux.resources, update.linux.resources)
            # All that its record has, as containerd does.
            cpu = one.spec.linux.resources.cpu
            if one.has_process:
                self.kernel.set(one.spec.linux.cgroups_path, cpu.cpus, cpu.mems)


def _state_change(event: Event, one: Running) -> StateChange:
    return StateChange(event, pod_from(one.pod), container_from(one.spec))


def _ignore(_: TtrpcResponse | None) -> None:
    """Nothing follows from the answer."""
