"""A container runtime over NRI, one action at a time: what it does about an answer comes later, and
anything can happen in between.

It keeps its containers' specs and forgets nothing. The answers come from the daemon's own session code; an
update of a container that the runtime does not know yet is lost, as in containerd.
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

from bayplan._proto.nri import api_pb2 as pb
from bayplan.nri import Event
from bayplan.nri.operations import (
    CreateContainer,
    Operation,
    StateChange,
    StopContainer,
    Synchronize,
    UpdateContainer,
)
from bayplan.nri.translate import container_from, pod_from, resources_from
from bayplan.nri.wire import Code, Response
from support.flavors import CONTAINERD_2_3
from support.interleaving.kernel import Kernel
from support.spec import adjust, merge

Action = Callable[[], None]
Ask = Callable[[Operation, Callable[[Response | None], None]], None]
"""Asks the daemon; the answer, None for a lost one, comes to the callback."""


@dataclass
class Running:
    """A container that the runtime knows."""

    pod: pb.PodSandbox
    spec: pb.Container


@dataclass
class NriRuntime:
    """Its containers by id, and what it has yet to do: for each answer the actions in their order."""

    kernel: Kernel
    ask: Ask
    containers: dict[str, Running] = field(default_factory=dict)
    busy: list[deque[Action]] = field(default_factory=list)
    refused: int = 0

    def synchronize(self) -> None:
        """List what exists."""
        pods = {one.pod.id: pod_from(one.pod) for one in self.containers.values()}
        listed = [container_from(one.spec) for one in self.containers.values()]
        self.ask(Synchronize(list(pods.values()), listed), self._synchronized)

    def create(self, pod: pb.PodSandbox, spec: pb.Container) -> None:
        """Begin to create a container."""
        request = CreateContainer(pod_from(pod), container_from(spec))
        self.ask(request, partial(self._created, Running(pod, spec)))

    def update(self, container_id: str, change: pb.LinuxResources) -> None:
        """Begin to change a container's resources."""
        one = self.containers[container_id]
        resources = resources_from(change, container_id)
        request = UpdateContainer(pod_from(one.pod), container_from(one.spec), resources)
        self.ask(request, partial(self._updated, container_id, change))

    def stop(self, container_id: str) -> None:
        """A container has ended."""
        one = self.containers.pop(container_id)
        self.kernel.stop(one.spec.linux.cgroups_path)
        self.ask(StopContainer(pod_from(one.pod), container_from(one.spec)), self._stopped)

    def step(self, number: int) -> None:
        """Do the next thing about one of the answers."""
        actions = self.busy[number]
        actions.popleft()()
        self.busy = [one for one in self.busy if one]

    def _synchronized(self, response: Response | None) -> None:
        if response is not None:
            self._carry_out(pb.SynchronizeResponse.FromString(response.payload).update)

    def _created(self, one: Running, response: Response | None) -> None:
        if response is not None and response.code is not Code.OK:
            self.refused += 1
            return
        answer = pb.CreateContainerResponse.FromString(b"" if response is None else response.payload)
        adjust(one.spec, answer.adjust, CONTAINERD_2_3)
        self._carry_out(answer.update, partial(self._make, one), partial(self._start, one))

    def _make(self, one: Running) -> None:
        path, cpu = one.spec.linux.cgroups_path, one.spec.linux.resources.cpu
        self.containers[one.spec.id] = one
        self.kernel.start(path)
        self.kernel.set(path, cpu.cpus, cpu.mems)
        self.ask(_state_change(Event.POST_CREATE_CONTAINER, one), _ignore)

    def _start(self, one: Running) -> None:
        if one.spec.id in self.containers:
            request = _state_change(Event.START_CONTAINER, one)
            self.ask(request, lambda _: self.busy.append(deque([partial(self._started, one)])))

    def _started(self, one: Running) -> None:
        if one.spec.id in self.containers:
            self.ask(_state_change(Event.POST_START_CONTAINER, one), _ignore)

    def _updated(self, container_id: str, change: pb.LinuxResources, response: Response | None) -> None:
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

    def _stopped(self, response: Response | None) -> None:
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
            self.kernel.set(one.spec.linux.cgroups_path, cpu.cpus, cpu.mems)


def _state_change(event: Event, one: Running) -> StateChange:
    return StateChange(event, pod_from(one.pod), container_from(one.spec))


def _ignore(_: Response | None) -> None:
    """Nothing follows from the answer."""
