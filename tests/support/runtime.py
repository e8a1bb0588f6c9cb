"""A container runtime without containers: it speaks NRI as containerd does, byte for byte.

    runtime = FakeRuntime(CONTAINERD_2_2)
    await runtime.listen(path)                     # or connect a session to MemoryEndpoint(runtime.accept)
    await runtime.synchronized()
    reply = await runtime.create_container(pod, container)

It keeps the specs of what it "runs", applies to them what plugins answer, lists them to plugins that come
later, and treats plugins as a real runtime does: 2 s for an answer, one event at a time, fail-open; updates
of containers that it does not know (yet) are dropped without a word. With a ``kernel`` it writes the cpusets
of specs when and where real ones do. Creation, start and update can be taken apart into the steps between
which those let go of their lock.
"""

from collections.abc import Callable, Iterable
from typing import Final, Protocol

from bayplan._proto.nri import api_pb2 as pb
from bayplan.nri import Clock, Event
from support.flavors import CONTAINERD_2_2, Flavor
from support.plugin_calls import OperationError, PluginCalls, claim, claim_updates
from support.spec import adjust, claims, merge, shown

_UNHURRIED_S: Final = 61.0
"""Longer than a plugin of the tests takes for an answer by its own deadline."""


class Kernel(Protocol):
    """The cgroups of the containers."""

    def write(self, container: pb.Container) -> None:
        """An OCI runtime writes the cpusets of a spec, to a new cgroup if there is none."""


class FakeRuntime(PluginCalls):
    """One runtime, with any number of plugins. Restart it with `stop` and `listen`; it remembers what runs.

    *clock* measures its timeouts, NRI's own unless others are given. On the real clock they are so long that
    a busy machine keeps to them. *objects_per_message* cuts a Synchronize smaller than its size asks for;
    with *reply_late* the reply to a registration comes after Configure.
    """

    def __init__(
        self,
        flavor: Flavor = CONTAINERD_2_2,
        *,
        clock: Clock | None = None,
        request_timeout_s: float | None = None,
        registration_timeout_s: float | None = None,
        objects_per_message: int | None = None,
        reply_late: bool = False,
        kernel: Kernel | None = None,
    ) -> None:
        super().__init__(
            flavor,
            clock,
            request_timeout_s or (2.0 if clock is not None else _UNHURRIED_S),
            registration_timeout_s or (5.0 if clock is not None else _UNHURRIED_S),
            objects_per_message,
            reply_late=reply_late,
        )
        self.pods: dict[str, pb.PodSandbox] = {}
        self.containers: dict[str, pb.Container] = {}
        self._kernel = kernel
        self._unknown: dict[str, pb.Container] = {}
        self._with_cgroup: set[str] = set()
        self._own_updates: dict[str, list[pb.LinuxResources]] = {}

    # ---- Pods ----------------------------------------------------------------------------------------

    async def run_pod(self, pod: pb.PodSandbox) -> None:
        """Create a pod sandbox.

        Raises:
            OperationError: a plugin answered with an error.
        """
        await self._notify_of_pod(Event.RUN_POD_SANDBOX, pod)
        self.pods[pod.id] = pod

    async def stop_pod(self, pod_id: str) -> None:
        """Stop a pod and its containers."""
        for container in self._containers_of(pod_id):
            await self.stop_container(container.id)
        await self._notify_of_pod(Event.STOP_POD_SANDBOX, self.pods[pod_id])

    async def remove_pod(self, pod_id: str) -> None:
        """Remove a pod and its containers."""
        for container in self._containers_of(pod_id):
            await self.remove_container(container.id)
        await self._notify_of_pod(Event.REMOVE_POD_SANDBOX, self.pods[pod_id])
        del self.pods[pod_id]

    # ---- Containers ----------------------------------------------------------------------------------

    async def create_container(
        self, pod: pb.PodSandbox, container: pb.Container
    ) -> pb.CreateContainerResponse:
        """Create a container; what the plugins answered, together. ``containers`` has the resulting spec.

        Raises:
            OperationError: a plugin refused it, or two of them want to set the same field.
        """
        answered = await self.ask_for_creation(pod, container)
        if self.flavor.makes_cgroup_at_creation:
            self.make_cgroup(container.id)
        await self.finish_creation(container.id)
        return answered

    async def ask_for_creation(
        self, pod: pb.PodSandbox, container: pb.Container
    ) -> pb.CreateContainerResponse:
        """The first step of `create_container`: the spec is made, and the container is not known yet."""
        self.pods.setdefault(pod.id, pod)
        asked = pb.CreateContainerRequest(pod=pod, container=shown(container, self.flavor))
        answered = pb.CreateContainerResponse()
        created = pb.Container()
        created.CopyFrom(container)
        owners: dict[str, str] = {}
        async with self._lock:
            for plugin in self._subscribers(Event.CREATE_CONTAINER):
                reply = await self._ask(plugin, "CreateContainer", asked, pb.CreateContainerResponse)
                if any(update.container_id == container.id for update in reply.update):
                    raise OperationError(
                        f'plugin "{plugin}" asked update of "{container.id}" during creation'
                    )
                claim(owners, plugin, claims(reply.adjust, container.id))
                claim_updates(owners, plugin, reply.update)
                adjust(asked.container, reply.adjust, self.flavor)
                answered.MergeFrom(reply)
            adjust(created, answered.adjust, self.flavor)
            self._unknown[created.id] = created
            self._apply(answered.update)
        return answered

    def make_cgroup(self, container_id: str) -> None:
        """The OCI runtime makes the container from its spec: CRI-O's between the steps of `create_container`,
        containerd's before those of `start_container`."""
        self._with_cgroup.add(container_id)
        self._write(self._unknown.get(container_id) or self.containers[container_id])

    async def finish_creation(self, container_id: str) -> None:
        """The last step of `create_container`: it is known, and the plugins hear of that."""
        created = self.containers[container_id] = self._unknown.pop(container_id)
        created.state = pb.CONTAINER_CREATED
        await self._notify_of_container(Event.POST_CREATE_CONTAINER, self._pod_of(created), created)

    async def undo_create_container(self, container: pb.Container) -> None:
        """A creation has failed after the plugins were asked: they hear of a stop and a removal."""
        self.containers.setdefault(container.id, self._unknown.pop(container.id, container))
        await self.remove_container(container.id)

    async def start_container(self, container_id: str, pid: int = 4242) -> None:
        """Start a created container.

        Raises:
            OperationError: a plugin answered with an error.
        """
        if not self.flavor.makes_cgroup_at_creation:
            self.make_cgroup(container_id)
        await self.begin_start(container_id, pid)
        await self.finish_start(container_id)

    async def begin_start(self, container_id: str, pid: int = 4242) -> None:
        """The step of `start_container` after which its process runs.

        Raises:
            OperationError: a plugin answered with an error.
        """
        container = self.containers[container_id]
        container.pid = pid
        await self._notify_of_container(Event.START_CONTAINER, self._pod_of(container), container)

    async def finish_start(self, container_id: str) -> None:
        """The last step of `start_container`: the runtime takes note that it runs, and says so."""
        container = self.containers[container_id]
        container.state = pb.CONTAINER_RUNNING
        await self._notify_of_container(Event.POST_START_CONTAINER, self._pod_of(container), container)

    async def update_container(
        self, container_id: str, resources: pb.LinuxResources
    ) -> pb.UpdateContainerResponse:
        """Change a container's resources, as kubelet does; what the plugins answered.

        Raises:
            OperationError: a plugin refused it.
        """
        answered = await self.ask_for_update(container_id, resources)
        await self.carry_out_update(container_id)
        return answered

    async def ask_for_update(
        self, container_id: str, resources: pb.LinuxResources
    ) -> pb.UpdateContainerResponse:
        """The first step of `update_container`: others have what the plugins answered, itself not yet."""
        container = self.containers[container_id]
        asked = pb.UpdateContainerRequest(
            pod=self._pod_of(container),
            container=shown(container, self.flavor),
            linux_resources=resources,
        )
        answered = pb.UpdateContainerResponse()
        owners: dict[str, str] = {}
        async with self._lock:
            for plugin in self._subscribers(Event.UPDATE_CONTAINER):
                reply = await self._ask(plugin, "UpdateContainer", asked, pb.UpdateContainerResponse)
                claim_updates(owners, plugin, reply.update)
                answered.MergeFrom(reply)
            own = [one for one in answered.update if one.container_id == container_id]
            self._apply(one for one in answered.update if one.container_id != container_id)
            self._own_updates[container_id] = [resources, *(one.linux.resources for one in own)]
        return answered

    async def carry_out_update(self, container_id: str) -> None:
        """The last step of `update_container`: without the lock, and after that the plugins hear of it."""
        container = self.containers[container_id]
        for resources in self._own_updates.pop(container_id):
            merge(container.linux.resources, resources)
        self._write_if_due(container)
        await self._notify_of_container(Event.POST_UPDATE_CONTAINER, self._pod_of(container), container)

    async def stop_container(self, container_id: str) -> pb.StopContainerResponse:
        """A container's process has ended; the plugins hear of it once."""
        container = self.containers[container_id]
        answered = pb.StopContainerResponse()
        if container.state == pb.CONTAINER_STOPPED:
            return answered
        container.state = pb.CONTAINER_STOPPED
        asked = pb.StopContainerRequest(pod=self._pod_of(container), container=container)
        async with self._lock:
            for plugin in self._subscribers(Event.STOP_CONTAINER):
                try:
                    reply = await self._ask(plugin, "StopContainer", asked, pb.StopContainerResponse)
                except OperationError as error:
                    self.logged.append(str(error))
                else:
                    answered.MergeFrom(reply)
            self._apply(answered.update)
        return answered

    async def remove_container(self, container_id: str) -> None:
        """Forget a container, stopping it first."""
        await self.stop_container(container_id)
        self._with_cgroup.discard(container_id)
        container = self.containers.pop(container_id)
        await self._notify_of_container(Event.REMOVE_CONTAINER, self._pod_of(container), container)

    async def say(self, event: Event, pod: pb.PodSandbox, container: pb.Container) -> None:
        """Send an event of a container in whatever order, and note nothing of it.

        Raises:
            OperationError: a plugin answered a creation or an update with an error.
        """
        if event is Event.CREATE_CONTAINER:
            await self.ask_for_creation(pod, container)
        elif event is Event.UPDATE_CONTAINER:
            asked = pb.UpdateContainerRequest(pod=pod, container=shown(container, self.flavor))
            async with self._lock:
                for plugin in self._subscribers(event):
                    await self._ask(plugin, "UpdateContainer", asked, pb.UpdateContainerResponse)
        elif event is Event.STOP_CONTAINER:
            stopped = pb.StopContainerRequest(pod=pod, container=container)
            async with self._lock:
                for plugin in self._subscribers(event):
                    await self._ask(plugin, "StopContainer", stopped, pb.StopContainerResponse)
        elif event in (Event.STOP_POD_SANDBOX, Event.REMOVE_POD_SANDBOX):
            await self._notify_of_pod(event, pod)
        else:
            await self._notify_of_container(event, pod, container)

    async def come_and_go(self, pod: pb.PodSandbox, container: pb.Container, due: Callable[[], bool]) -> None:
        """Create and remove a container, at least once, until no updates of others are *due* any more: each
        answer has a few, and at least one."""
        for _ in range(len(self.containers) + 1):
            await self.create_container(pod, container)
            await self.remove_container(container.id)
            if not due():
                return
        raise AssertionError(f"updates stay due; plugins {self.plugins}, dropped {self.dropped}")

    # ---- What there is -------------------------------------------------------------------------------

    def _listed(self) -> tuple[list[pb.PodSandbox], list[pb.Container]]:
        unlisted = {pb.CONTAINER_STOPPED, pb.CONTAINER_UNKNOWN}
        containers = [one for one in self.containers.values() if one.state not in unlisted]
        return list(self.pods.values()), [shown(one, self.flavor) for one in containers]

    def _apply(self, updates: Iterable[pb.ContainerUpdate]) -> None:
        for update in updates:
            if update.container_id in self.containers:
                container = self.containers[update.container_id]
                merge(container.linux.resources, update.linux.resources)
                self._write_if_due(container)

    def _write_if_due(self, container: pb.Container) -> None:
        """Updates of a container that does not run reach containerd's spec of it, and CRI-O's cgroup."""
        runs = container.state == pb.CONTAINER_RUNNING
        created = container.state == pb.CONTAINER_CREATED and self.flavor.makes_cgroup_at_creation
        if container.id in self._with_cgroup and (runs or created):
            self._write(container)

    def _write(self, container: pb.Container) -> None:
        if self._kernel is not None:
            self._kernel.write(container)

    def _containers_of(self, pod_id: str) -> list[pb.Container]:
        return [one for one in self.containers.values() if one.pod_sandbox_id == pod_id]

    def _pod_of(self, container: pb.Container) -> pb.PodSandbox:
        return self.pods.get(container.pod_sandbox_id, pb.PodSandbox(id=container.pod_sandbox_id))
