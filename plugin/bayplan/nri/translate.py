"""NRI messages to the values that decisions are made of, and answers back. Pure but for a log line about
text that cannot be read.

In: what runtimes write for "unset" (an absent wrapper, 0, an empty text) is None. Out: what is set is
written, also when it is zero; what is None is left out, because NRI would take it for a claim.

*Operations* are the requests of a runtime that a handler decides about: decoded, performed, answered by
default; one small class per kind of request. Nothing here knows connections, deadlines or the order of
requests.

*What a Synchronize lists* is gathered over all of its messages. Each pod and container is decoded alone
and its message dropped at once: a message of 4 MiB decoded whole takes three times its size, and the
daemon has to fit in 60 MiB. What is kept is bounded, however many messages say that more will follow.
"""

import abc
import logging
from collections.abc import Callable, Iterable, Sequence
from sys import intern
from typing import Final, TypeAlias

from google.protobuf.message import DecodeError

from bayplan._proto.nri import api_pb2 as pb
from bayplan.errors import LocalProtocolError
from bayplan.model.claims import claims_in
from bayplan.model.decision import MemoryPolicySetting
from bayplan.model.resources import NO_RESOURCES, Resources, WrittenResources, read
from bayplan.model.workload import (
    DEVICE_TREES,
    DEVICE_TYPES,
    MOUNT_OPTIONS,
    NETWORK,
    PLACEMENT_MOUNT,
    Adjustment,
    Container,
    ContainerState,
    DeviceNode,
    Mount,
    Pod,
    Update,
    cdi_names,
    given_variables,
    opens_everything,
)
from bayplan.nri.handler import EndlessListError, Handler, PayloadError
from bayplan.nri.versions import Capabilities, Event, Runtime, infer_nri_version, known_events
from bayplan.quantity import hugetlb_size

logger = logging.getLogger(__name__)

_STATES: Final = {
    pb.CONTAINER_CREATED: ContainerState.CREATED,
    pb.CONTAINER_PAUSED: ContainerState.PAUSED,
    pb.CONTAINER_RUNNING: ContainerState.RUNNING,
    pb.CONTAINER_STOPPED: ContainerState.STOPPED,
}
_SEVEN_BITS: Final = 0x7F


# ---- In ----------------------------------------------------------------------------------------------


def runtime_from(message: pb.ConfigureRequest) -> Runtime:
    """The runtime that configures us, and what it can do."""
    nri = infer_nri_version(
        message.runtime_name,
        message.runtime_version,
        tells_timeouts=message.registration_timeout > 0,
        told_version=message.NRI_version,
    )
    return Runtime(
        name=message.runtime_name,
        version=message.runtime_version,
        nri_version=str(nri),
        capabilities=Capabilities.of(nri),
        known_events=known_events(nri),
        config=message.config,
        registration_timeout_ms=message.registration_timeout,
        request_timeout_ms=message.request_timeout,
    )


def pod_from(message: pb.PodSandbox) -> Pod:
    """A pod sandbox; its resources are kubelet's sums over the containers.

    A pod without a path for its network namespace got a new one, that of its first process; one that does not
    list it at all shares the host's.
    """
    linux = message.linux
    network = next((one for one in linux.namespaces if one.type == NETWORK), None)
    its_process = f"/proc/{message.pid}/ns/net" if message.pid else ""
    return Pod(
        id=message.id,
        name=message.name,
        namespace=message.namespace,
        uid=message.uid,
        annotations={intern(key): text for key, text in message.annotations.items()},
        labels={intern(key): text for key, text in message.labels.items()},
        cgroup_parent=linux.cgroup_parent,
        resources=resources_from(linux.pod_resources, f"pod {message.id}")
        if linux.HasField("pod_resources")
        else NO_RESOURCES,
        network_namespace="" if network is None else network.path or its_process,
    )


def container_from(message: pb.Container) -> Container:
    """A container with the resources of its OCI spec.

    containerd describes one that has exited as unknown, with the time of that. Of its devices, nothing is
    kept or even looked at that most containers do not have. The keys of annotations and labels are the same
    few in all containers, and kept once.
    """
    linux = message.linux
    every_device = any(map(_opens_everything, linux.resources.devices))
    return Container(
        id=message.id,
        pod_id=message.pod_sandbox_id,
        name=message.name,
        state=ContainerState.STOPPED
        if message.finished_at > 0
        else _STATES.get(message.state, ContainerState.UNKNOWN),
        annotations={intern(key): text for key, text in message.annotations.items()},
        labels={intern(key): text for key, text in message.labels.items()},
        resources=resources_from(linux.resources, f"container {message.id}"),
        oom_score_adj=linux.oom_score_adj.value if linux.HasField("oom_score_adj") else None,
        cgroups_path=linux.cgroups_path,
        pid=message.pid,
        devices=()
        if every_device
        else tuple(
            DeviceNode(device.path, DEVICE_TYPES[device.type], device.major, device.minor)
            for device in linux.devices
            if device.type in DEVICE_TYPES
        ),
        device_mounts=tuple(
            Mount(mount.source, mount.type)
            for mount in message.mounts
            if mount.source.startswith(DEVICE_TREES)
        ),
        placement_source=next(
            (mount.source for mount in message.mounts if mount.destination == PLACEMENT_MOUNT), ""
        ),
        given_environment=given_variables(message.env) if message.env else (),
        resource_claims=claims_in(message.env) if message.env else (),
        cdi_devices=cdi_names((device.name for device in message.CDI_devices), message.annotations)
        if message.CDI_devices or message.annotations
        else (),
    )


def resources_from(message: pb.LinuxResources, owner: str) -> Resources:
    """Resources of a spec, a pod or an update; *owner* is named when a text in them cannot be read."""
    memory, cpu = message.memory, message.cpu
    written = WrittenResources(
        memory_limit_bytes=memory.limit.value,
        memory_reservation_bytes=memory.reservation.value,
        memory_swap_bytes=memory.swap.value,
        cpu_shares=cpu.shares.value,
        cpu_quota_us=cpu.quota.value,
        cpu_period_us=cpu.period.value,
        cpus=cpu.cpus,
        mems=cpu.mems,
        hugepage_limits=tuple((limit.page_size, limit.limit) for limit in message.hugepage_limits),
        unified={intern(key): text for key, text in message.unified.items()},
    )
    resources = read(written)
    for path, problem in resources.unreadable.items():
        logger.warning("unreadable resources", extra={"owner": owner, "field": path, "problem": problem})
    return resources


def _opens_everything(rule: pb.LinuxDeviceCgroup) -> bool:
    major, minor = (
        getattr(rule, field).value if rule.HasField(field) else None for field in ("major", "minor")
    )
    return opens_everything(allow=rule.allow, kind=rule.type, major=major, minor=minor)


# ---- Out ---------------------------------------------------------------------------------------------


def adjustment_to(container_id: str, adjustment: Adjustment) -> pb.ContainerAdjustment:
    """What to change in the spec of a container that is being created.

    Raises:
        LocalProtocolError: a cpuset is empty, which NRI cannot say.
    """
    message = pb.ContainerAdjustment()
    _write(message.linux.resources, container_id, adjustment)
    if adjustment.oom_score_adj is not None:
        message.linux.oom_score_adj.value = adjustment.oom_score_adj
    if adjustment.memory_policy is not None:
        _write_memory_policy(message.linux.memory_policy, adjustment.memory_policy)
    for size_bytes, limit_bytes in adjustment.hugepage_limits_bytes.items():
        message.linux.resources.hugepage_limits.add(page_size=hugetlb_size(size_bytes), limit=limit_bytes)
    message.annotations.update(adjustment.annotations)
    if adjustment.placement_source:
        source = adjustment.placement_source
        message.mounts.add(destination=PLACEMENT_MOUNT, type="bind", source=source, options=MOUNT_OPTIONS)
    for name, value in adjustment.environment.items():
        message.env.add(key=name, value=value)
    return message


def encoded_updates(updates: Iterable[Update], field: int) -> bytes:
    """What to change in other containers, as the repeated *field* of a response: one message per container,
    in the order of their first mention. Appended to an encoded response they are part of it.

    Runtimes are told to go on if one fails: it may be stopping, and the request it is attached to is about
    another container. NRI fails a whole request in which a field is claimed twice, so that updates of the
    same container are merged here; the later one wins. When the shared CPUs change, the updates of hundreds
    of containers say the same: that is encoded once, because each message costs five times what its bytes do.

    Raises:
        LocalProtocolError: a cpuset is empty, which NRI cannot say.
    """
    by_id = dict[str, bytes]()
    content, encoded = None, b""
    for update in updates:
        before = content
        content = (update.cpuset_cpus, update.cpuset_mems, update.memory_limit_bytes, update.unified)
        if content != before:
            encoded = _encoded_content(update)
        container_id = update.container_id
        by_id[container_id] = _merged(by_id[container_id], encoded) if container_id in by_id else encoded
    heads = dict[tuple[int, int], bytes]()
    parts = list[bytes]()
    for container_id, encoded in by_id.items():
        if encoded:
            key = container_id.encode()
            lengths = len(key), len(encoded)
            head = heads.get(lengths)
            if head is None:
                head = heads[lengths] = _head(field, *lengths)
            parts += (head, key, encoded)
    return b"".join(parts)


def _head(field: int, id_bytes: int, content_bytes: int) -> bytes:
    """What comes before the id in an update that is repeated as *field*."""
    before_id = _length(pb.ContainerUpdate.CONTAINER_ID_FIELD_NUMBER, id_bytes)
    return _length(field, len(before_id) + id_bytes + content_bytes) + before_id


def _encoded_content(update: Update) -> bytes:
    """All of an update but the container's id; nothing if it changes nothing."""
    message = pb.ContainerUpdate(ignore_failure=True)
    _write(message.linux.resources, update.container_id, update)
    return message.SerializeToString() if message.HasField("linux") else b""


def _merged(first: bytes, second: bytes) -> bytes:
    message = pb.ContainerUpdate.FromString(first)
    message.MergeFromString(second)
    return message.SerializeToString()


def _length(field: int, length: int) -> bytes:
    """What comes before a protobuf field of that *length*."""
    return _written_varint(field << 3 | 2) + _written_varint(length)


def _written_varint(number: int) -> bytes:
    """As protobuf writes numbers: seven bits in each byte, the lowest first."""
    encoded = bytearray()
    while number > _SEVEN_BITS:
        encoded.append(number & _SEVEN_BITS | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


_NO_ID: Final = "found an empty set, expected None or some ids"
"""NRI cannot say it: there, an empty text means unchanged."""


def _write(message: pb.LinuxResources, container_id: str, change: Adjustment | Update) -> None:
    cpus, mems = change.cpuset_cpus, change.cpuset_mems
    if cpus is not None:
        if not cpus.mask:
            raise LocalProtocolError(f"container {container_id}: cpuset.cpus", _NO_ID)
        message.cpu.cpus = cpus.text
    if mems is not None:
        if not mems.mask:
            raise LocalProtocolError(f"container {container_id}: cpuset.mems", _NO_ID)
        message.cpu.mems = mems.text
    if change.memory_limit_bytes is not None:
        message.memory.limit.value = change.memory_limit_bytes
    for key, value in change.unified.items():
        message.unified[key] = value


def _write_memory_policy(message: pb.LinuxMemoryPolicy, setting: MemoryPolicySetting) -> None:
    message.mode = pb.MpolMode.Value(setting.mode.kernel_name)
    message.nodes = str(setting.nodes)
    message.flags.extend(map(pb.MpolFlag.Value, setting.kernel_flags))


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
    """A Synchronize: everything that exists."""

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
    """A CreateContainer: a container is about to be created."""

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

    def _answer(self, adjustment: Adjustment, updates: Sequence[Update]) -> bytes:
        adjust = adjustment_to(self.container_id, adjustment)
        response = pb.CreateContainerResponse(adjust=adjust if adjust.HasField("linux") else None)
        others = encoded_updates(updates, pb.CreateContainerResponse.UPDATE_FIELD_NUMBER) if updates else b""
        return response.SerializeToString() + others


class UpdateContainer(_OfContainer):
    """An UpdateContainer: a container's resources are about to change."""

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
    """A StopContainer: a container has ended."""

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


MAX_OBJECTS: Final = 1 << 14
"""Pods and containers in one Synchronize. Nodes run hundreds; kubelet allows 110 pods by default."""

MAX_MESSAGES: Final = MAX_OBJECTS
"""Of one Synchronize; a runtime lists at least one object in each."""

MAX_BYTES: Final = 1 << 29
"""All messages of one Synchronize: 32 kB for each of so many objects, most of it environments, which are not
kept. A runtime has 2 s for the exchange."""

MAX_KEPT_BYTES: Final = 1 << 25
"""Of the texts that are kept: names, labels and annotations; 2 kB for each of so many objects."""

# Tags: field number and wire type.
_PODS: Final = 0x0A
_CONTAINERS: Final = 0x12
_MORE: Final = 0x18

_VARINT: Final = 0
_LENGTH: Final = 2
_MAX_SHIFT: Final = 63
_METHOD: Final = "Synchronize"


class Inventory:
    """The pods and containers listed so far."""

    def __init__(self) -> None:
        self.pods: list[Pod] = []
        self.containers: list[Container] = []
        self._messages = 0
        self._size_bytes = 0
        self._kept_bytes = 0

    def add(self, payload: bytes) -> bool:
        """Take in one message, and say whether more will follow.

        Pods and containers are cut independently: a container can come before its pod.

        Raises:
            EndlessListError: it goes beyond one of the limits of this module.
            PayloadError: it is not a Synchronize request.
        """
        self._messages += 1
        self._size_bytes += len(payload)
        if self._messages > MAX_MESSAGES:
            raise EndlessListError(_METHOD, f"has more than {MAX_MESSAGES} messages")
        if self._size_bytes > MAX_BYTES:
            raise EndlessListError(_METHOD, f"lists more than {MAX_BYTES} bytes")
        view, at, more = memoryview(payload), 0, False
        try:
            while at < len(view):
                tag, at = _read_varint(view, at)
                number, at = _read_varint(view, at)
                if tag == _MORE:
                    more = number != 0
                elif tag & 7 == _LENGTH:
                    if number > len(view) - at:
                        raise PayloadError(_METHOD, "an object is longer than the message")
                    self._take(tag, bytes(view[at : at + number]))
                    at += number
                elif tag & 7 != _VARINT:
                    raise PayloadError(_METHOD, f"found wire type {tag & 7}, expected 0 or 2")
        except (DecodeError, IndexError) as error:
            raise PayloadError(_METHOD, f"cannot be decoded: {error}") from error
        return more

    def _take(self, tag: int, content: bytes) -> None:
        if tag == _PODS:
            pod = pod_from(pb.PodSandbox.FromString(content))
            self._count(pod, pod.cgroup_parent)
            self.pods.append(pod)
        elif tag == _CONTAINERS:
            container = container_from(pb.Container.FromString(content))
            devices = (*(node.path for node in container.devices), *container.cdi_devices)
            mounts = (mount.source for mount in container.device_mounts)
            self._count(container, container.cgroups_path, *devices, *mounts)
            self.containers.append(container)

    def _count(self, one: Pod | Container, *texts: str) -> None:
        tables = (one.annotations, one.labels, one.resources.unified)
        self._kept_bytes += sum(len(key) + len(text) for table in tables for key, text in table.items())
        self._kept_bytes += sum(map(len, (one.id, one.name, *texts)))
        if self._kept_bytes > MAX_KEPT_BYTES:
            raise EndlessListError(
                _METHOD, f"lists more than {MAX_KEPT_BYTES} bytes of names, labels and annotations"
            )
        if len(self.pods) + len(self.containers) >= MAX_OBJECTS:
            raise EndlessListError(_METHOD, f"lists more than {MAX_OBJECTS} pods and containers")


def _read_varint(view: memoryview, at: int) -> tuple[int, int]:
    """The number at *at* and where it ends; IndexError past the end."""
    number = shift = 0
    while True:
        byte = view[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:  # noqa: PLR2004 - the continuation bit of protobuf's varints
            return number, at
        shift += 7
        if shift > _MAX_SHIFT:
            raise PayloadError(_METHOD, "a number of more than 10 bytes")
