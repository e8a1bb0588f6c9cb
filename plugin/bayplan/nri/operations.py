"""The requests of a runtime that a handler decides about: decoded, performed, answered by default.

One small class per kind of request. Nothing here knows connections, deadlines or the order of things.
"""

import abc
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeAlias

from google.protobuf.message import DecodeError

from bayplan._proto.nri import api_pb2 as pb
from bayplan.model.workload import Adjustment, Container, Pod, Resources, Update
from bayplan.nri.errors import PayloadError
from bayplan.nri.events import Event
from bayplan.nri.handler import Handler
from bayplan.nri.translate import adjustment_to, container_from, pod_from, resources_from, updates_to

logger = logging.getLogger(__name__)


class Operation(abc.ABC):
    """One request. Only a refusable one may be answered with an error."""

    __slots__ = ("container_id", "event")
    refusable = False

    def __init__(self, event: Event, container_id: str) -> None:
        self.event = event
        self.container_id = container_id

    @property
    def news(self) -> tuple[Pod, Container] | None:
        """The container as the runtime described it, where the request does no more than tell of it."""
        return None

    @abc.abstractmethod
    async def perform(self, handler: Handler) -> bytes:
        """Let the handler decide, and make the payload of the answer."""

    def default(self, handler: Handler) -> bytes:  # noqa: ARG002 - a creation asks it
        """The payload of the safe answer; an empty one leaves everything as it is."""
        return b""


class Synchronize(Operation):
    """Everything that exists."""

    __slots__ = ("_containers", "_pods")

    def __init__(self, pods: Sequence[Pod], containers: Sequence[Container]) -> None:
        super().__init__(Event.SYNCHRONIZE, "")
        self._pods = pods
        self._containers = containers

    async def perform(self, handler: Handler) -> bytes:
        """The answer carries updates."""
        updates = await handler.synchronize(self._pods, self._containers)
        return pb.SynchronizeResponse(update=updates_to(updates)).SerializeToString()


class CreateContainer(Operation):
    """A container is about to be created."""

    __slots__ = ("_container", "_pod")
    refusable = True

    def __init__(self, message: pb.CreateContainerRequest) -> None:
        self._pod = pod_from(message.pod)
        self._container = container_from(message.container)
        super().__init__(Event.CREATE_CONTAINER, self._container.id)

    async def perform(self, handler: Handler) -> bytes:
        """The answer carries an adjustment, and updates of others: one of the container itself would fail
        its creation."""
        adjustment, updates = await handler.create_container(self._pod, self._container)
        others = [update for update in updates if update.container_id != self.container_id]
        if len(others) < len(updates):
            logger.error("update of a container in its own creation", extra={"id": self.container_id})
        return self._answer(adjustment, others)

    def default(self, handler: Handler) -> bytes:
        """The one answer that is not empty by default."""
        return self._answer(handler.fallback_adjustment(self._pod, self._container), ())

    def _answer(self, adjustment: Adjustment, updates: Iterable[Update]) -> bytes:
        adjust = adjustment_to(self.container_id, adjustment)
        return pb.CreateContainerResponse(
            adjust=adjust if adjust.HasField("linux") else None, update=updates_to(updates)
        ).SerializeToString()


class UpdateContainer(Operation):
    """A container's resources are about to change."""

    __slots__ = ("_container", "_pod", "_resources")
    refusable = True

    def __init__(self, message: pb.UpdateContainerRequest) -> None:
        self._pod = pod_from(message.pod)
        self._container = container_from(message.container)
        super().__init__(Event.UPDATE_CONTAINER, self._container.id)
        self._resources: Resources = resources_from(
            message.linux_resources, f"update of container {self.container_id}"
        )

    async def perform(self, handler: Handler) -> bytes:
        """The answer carries updates, also of the container itself."""
        updates = await handler.update_container(self._pod, self._container, self._resources)
        return pb.UpdateContainerResponse(update=updates_to(updates)).SerializeToString()


class StopContainer(Operation):
    """A container has ended."""

    __slots__ = ("_container", "_pod")

    def __init__(self, message: pb.StopContainerRequest) -> None:
        self._pod = pod_from(message.pod)
        self._container = container_from(message.container)
        super().__init__(Event.STOP_CONTAINER, self._container.id)

    async def perform(self, handler: Handler) -> bytes:
        """The answer carries updates of others."""
        updates = await handler.stop_container(self._pod, self._container)
        return pb.StopContainerResponse(update=updates_to(updates)).SerializeToString()


class StateChange(Operation):
    """Any other event. The answer has no content, in the old style and in the new one."""

    __slots__ = ("_container", "_pod")

    def __init__(self, event: Event, pod: pb.PodSandbox, container: pb.Container | None) -> None:
        self._pod = pod_from(pod)
        self._container = None if container is None else container_from(container)
        super().__init__(event, "" if self._container is None else self._container.id)

    @property
    def news(self) -> tuple[Pod, Container] | None:
        """A container that changed its state."""
        return None if self._container is None else (self._pod, self._container)

    async def perform(self, handler: Handler) -> bytes:
        """Nothing can be said about it."""
        await handler.state_changed(self.event, self._pod, self._container)
        return b""


# ---- From requests -----------------------------------------------------------------------------------

_PodRequest: TypeAlias = type[
    pb.RunPodSandboxRequest
    | pb.StopPodSandboxRequest
    | pb.RemovePodSandboxRequest
    | pb.UpdatePodSandboxRequest
    | pb.PostUpdatePodSandboxRequest
]
_ContainerRequest: TypeAlias = type[
    pb.PostCreateContainerRequest
    | pb.StartContainerRequest
    | pb.PostStartContainerRequest
    | pb.PostUpdateContainerRequest
    | pb.RemoveContainerRequest
]
_Decoder: TypeAlias = Callable[[bytes], Operation | None]


def _of_pod(event: Event, kind: _PodRequest) -> _Decoder:
    return lambda payload: StateChange(event, kind.FromString(payload).pod, None)


def _of_container(event: Event, kind: _ContainerRequest) -> _Decoder:
    def decoded(payload: bytes) -> Operation:
        message = kind.FromString(payload)
        return StateChange(event, message.pod, message.container)

    return decoded


def _state_change(payload: bytes) -> Operation | None:
    message = pb.StateChangeEvent.FromString(payload)
    try:
        event = Event(message.event)
    except ValueError:
        return None
    return StateChange(event, message.pod, message.container if message.HasField("container") else None)


_DECODERS: Final[dict[str, _Decoder]] = {
    "CreateContainer": lambda payload: CreateContainer(pb.CreateContainerRequest.FromString(payload)),
    "UpdateContainer": lambda payload: UpdateContainer(pb.UpdateContainerRequest.FromString(payload)),
    "StopContainer": lambda payload: StopContainer(pb.StopContainerRequest.FromString(payload)),
    "StateChange": _state_change,
    "RunPodSandbox": _of_pod(Event.RUN_POD_SANDBOX, pb.RunPodSandboxRequest),
    "UpdatePodSandbox": _of_pod(Event.UPDATE_POD_SANDBOX, pb.UpdatePodSandboxRequest),
    "PostUpdatePodSandbox": _of_pod(Event.POST_UPDATE_POD_SANDBOX, pb.PostUpdatePodSandboxRequest),
    "StopPodSandbox": _of_pod(Event.STOP_POD_SANDBOX, pb.StopPodSandboxRequest),
    "RemovePodSandbox": _of_pod(Event.REMOVE_POD_SANDBOX, pb.RemovePodSandboxRequest),
    "PostCreateContainer": _of_container(Event.POST_CREATE_CONTAINER, pb.PostCreateContainerRequest),
    "StartContainer": _of_container(Event.START_CONTAINER, pb.StartContainerRequest),
    "PostStartContainer": _of_container(Event.POST_START_CONTAINER, pb.PostStartContainerRequest),
    "PostUpdateContainer": _of_container(Event.POST_UPDATE_CONTAINER, pb.PostUpdateContainerRequest),
    "RemoveContainer": _of_container(Event.REMOVE_CONTAINER, pb.RemoveContainerRequest),
}
METHODS: Final = frozenset(_DECODERS)
"""The methods that `operation` knows: those about pods and containers, in both styles."""


def operation(method: str, payload: bytes) -> Operation | None:
    """What a request asks the handler to decide; None for an event that has no meaning to anybody yet.

    Raises:
        PayloadError: the payload is not what the method says.
    """
    try:
        return _DECODERS[method](payload)
    except DecodeError as error:
        raise PayloadError(method, f"cannot be decoded: {error}") from error
