"""The requests of a runtime that a handler decides about: decoded, performed, answered by default.

One small class per kind of request. Nothing here knows connections, deadlines or the order of requests.
"""

import abc
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeAlias

from google.protobuf.message import DecodeError

from bayplan._proto.nri import api_pb2 as pb
from bayplan.model.resources import Resources
from bayplan.model.workload import Adjustment, Container, Pod, Update
from bayplan.nri.errors import PayloadError
from bayplan.nri.events import Event
from bayplan.nri.handler import Handler
from bayplan.nri.translate import adjustment_to, container_from, encoded_updates, pod_from, resources_from

logger = logging.getLogger(__name__)


class Operation(abc.ABC):
    """One request. Only a refusable one may be answered with an error; ``container_id`` is empty if it is
    about no container; ``described`` is the container as the runtime described it, where the request
    only reports its state."""

    __slots__ = ()
    refusable = False
    event: Event
    container_id: str = ""
    described: tuple[Pod, Container] | None = None

    @abc.abstractmethod
    async def perform(self, handler: Handler) -> bytes:
        """Let the handler decide, and make the payload of the answer."""

    def default(self, handler: Handler) -> bytes:  # noqa: ARG002 - a creation asks it
        """The payload of the safe answer; an empty one leaves everything as it is."""
        return b""


class Synchronize(Operation):
    """Everything that exists."""

    __slots__ = ("containers", "pods")
    event = Event.SYNCHRONIZE

    def __init__(self, pods: Sequence[Pod], containers: Sequence[Container]) -> None:
        self.pods = pods
        self.containers = containers

    async def perform(self, handler: Handler) -> bytes:
        """The answer carries updates."""
        updates = await handler.synchronize(self.pods, self.containers)
        return encoded_updates(updates, pb.SynchronizeResponse.UPDATE_FIELD_NUMBER)


class _OfContainer(Operation):
    """A request about a container of a pod."""

    __slots__ = ("container", "container_id", "pod")

    def __init__(self, pod: Pod, container: Container) -> None:
        self.pod = pod
        self.container = container
        self.container_id = container.id


class CreateContainer(_OfContainer):
    """A container is about to be created."""

    __slots__ = ()
    refusable = True
    event = Event.CREATE_CONTAINER

    async def perform(self, handler: Handler) -> bytes:
        """The answer carries an adjustment, and updates of others: one of the container itself would fail
        its creation."""
        adjustment, updates = await handler.create_container(self.pod, self.container)
        others = [update for update in updates if update.container_id != self.container_id]
        if len(others) < len(updates):
            logger.error("update of a container in its own creation", extra={"id": self.container_id})
        return self._answer(adjustment, others)

    def default(self, handler: Handler) -> bytes:
        """The one answer that is not empty by default."""
        return self._answer(handler.fallback_adjustment(self.pod, self.container), ())

    def _answer(self, adjustment: Adjustment, updates: Iterable[Update]) -> bytes:
        adjust = adjustment_to(self.container_id, adjustment)
        response = pb.CreateContainerResponse(adjust=adjust if adjust.HasField("linux") else None)
        others = encoded_updates(updates, pb.CreateContainerResponse.UPDATE_FIELD_NUMBER)
        return response.SerializeToString() + others


class UpdateContainer(_OfContainer):
    """A container's resources are about to change."""

    __slots__ = ("resources",)
    refusable = True
    event = Event.UPDATE_CONTAINER

    def __init__(self, pod: Pod, container: Container, resources: Resources) -> None:
        super().__init__(pod, container)
        self.resources = resources

    async def perform(self, handler: Handler) -> bytes:
        """The answer carries updates, also of the container itself."""
        updates = await handler.update_container(self.pod, self.container, self.resources)
        return encoded_updates(updates, pb.UpdateContainerResponse.UPDATE_FIELD_NUMBER)


class StopContainer(_OfContainer):
    """A container has ended."""

    __slots__ = ()
    event = Event.STOP_CONTAINER

    async def perform(self, handler: Handler) -> bytes:
        """The answer carries updates of others."""
        updates = await handler.stop_container(self.pod, self.container)
        return encoded_updates(updates, pb.StopContainerResponse.UPDATE_FIELD_NUMBER)


class StateChange(Operation):
    """Any other event. The answer has no content, in the old style and in the new one."""

    __slots__ = ("container", "container_id", "described", "event", "pod")

    def __init__(self, event: Event, pod: Pod, container: Container | None) -> None:
        self.event = event
        self.pod = pod
        self.container = container
        self.container_id = "" if container is None else container.id
        self.described = None if container is None else (pod, container)

    async def perform(self, handler: Handler) -> bytes:
        """The runtime expects nothing but that it was received."""
        await handler.state_changed(self.event, self.pod, self.container)
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


def _create(payload: bytes) -> Operation:
    message = pb.CreateContainerRequest.FromString(payload)
    return CreateContainer(pod_from(message.pod), container_from(message.container))


def _update(payload: bytes) -> Operation:
    message = pb.UpdateContainerRequest.FromString(payload)
    pod, container = pod_from(message.pod), container_from(message.container)
    changed = resources_from(message.linux_resources, f"update of container {container.id}")
    return UpdateContainer(pod, container, changed)


def _stop(payload: bytes) -> Operation:
    message = pb.StopContainerRequest.FromString(payload)
    return StopContainer(pod_from(message.pod), container_from(message.container))


def _of_pod(event: Event, kind: _PodRequest) -> _Decoder:
    return lambda payload: StateChange(event, pod_from(kind.FromString(payload).pod), None)


def _of_container(event: Event, kind: _ContainerRequest) -> _Decoder:
    def decoded(payload: bytes) -> Operation:
        message = kind.FromString(payload)
        return StateChange(event, pod_from(message.pod), container_from(message.container))

    return decoded


def _state_change(payload: bytes) -> Operation | None:
    message = pb.StateChangeEvent.FromString(payload)
    try:
        event = Event(message.event)
    except ValueError:
        return None
    container = container_from(message.container) if message.HasField("container") else None
    return StateChange(event, pod_from(message.pod), container)


_DECODERS: Final[dict[str, _Decoder]] = {
    "CreateContainer": _create,
    "UpdateContainer": _update,
    "StopContainer": _stop,
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
"""The methods that `decode` knows: those about pods and containers, in both styles."""


def decode(method: str, payload: bytes) -> Operation | None:
    """What a request asks the handler to decide; None for an event that this version of NRI does not know.

    Raises:
        PayloadError: the payload is not what the method says.
    """
    try:
        return _DECODERS[method](payload)
    except DecodeError as error:
        raise PayloadError(method, f"cannot be decoded: {error}") from error
