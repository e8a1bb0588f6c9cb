"""NRI messages to the values that decisions are made of, and answers back. Pure but for a log line about
text that cannot be read.

In: what runtimes write for "unset" (an absent wrapper, 0, an empty text) is None. Out: what is set is
written, also when it is zero; what is None is left out, because NRI would take it for a claim.
"""

import logging
from collections.abc import Iterable, Mapping
from sys import intern
from typing import Final

from bayplan._proto.nri import api_pb2 as pb
from bayplan.model.decision import MemoryPolicySetting
from bayplan.model.device_spec import DEVICE_TREES, DEVICE_TYPES, NETWORK, cdi_names, opens_everything
from bayplan.model.resource_claim import claims_in
from bayplan.model.resources import Resources, WrittenResources, read
from bayplan.model.workload import (
    MOUNT_OPTIONS,
    PLACEMENT_MOUNT,
    Adjustment,
    Container,
    ContainerState,
    DeviceNode,
    Mount,
    Pod,
    Update,
    given_variables,
)
from bayplan.nri.errors import EmptySetError
from bayplan.nri.versions import Capabilities, Runtime, infer_nri_version, known_events
from bayplan.quantity import hugetlb_size
from bayplan.sets import IdSet

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
    """A pod sandbox; its resources are kubelet's sums over the containers."""
    linux = message.linux
    return Pod(
        id=message.id,
        name=message.name,
        namespace=message.namespace,
        uid=message.uid,
        annotations=_mapping(message.annotations),
        labels=_mapping(message.labels),
        cgroup_parent=linux.cgroup_parent,
        resources=resources_from(linux.pod_resources, f"pod {message.id}"),
        network_namespace=_network_namespace(linux.namespaces, message.pid),
    )


def container_from(message: pb.Container) -> Container:
    """A container with the resources of its OCI spec.

    Of its devices, nothing is kept or even looked at that most containers do not have.
    """
    linux = message.linux
    every_device = any(map(_opens_everything, linux.resources.devices))
    return Container(
        id=message.id,
        pod_id=message.pod_sandbox_id,
        name=message.name,
        state=_state(message),
        annotations=_mapping(message.annotations),
        labels=_mapping(message.labels),
        resources=resources_from(linux.resources, f"container {message.id}"),
        oom_score_adj=linux.oom_score_adj.value if linux.HasField("oom_score_adj") else None,
        cgroups_path=linux.cgroups_path,
        pid=message.pid,
        devices=() if every_device else _device_nodes(linux.devices),
        device_mounts=tuple(
            Mount(mount.source, mount.type)
            for mount in message.mounts
            if mount.source.startswith(DEVICE_TREES)
        ),
        placement_source=next(
            (mount.source for mount in message.mounts if mount.destination == PLACEMENT_MOUNT), ""
        ),
        given_environment=given_variables(message.env),
        resource_claims=claims_in(message.env),
        cdi_devices=cdi_names((device.name for device in message.CDI_devices), message.annotations),
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
        unified=_mapping(message.unified),
    )
    resources = read(written)
    for path, problem in resources.unreadable.items():
        logger.warning("unreadable resources", extra={"owner": owner, "field": path, "problem": problem})
    return resources


def _state(message: pb.Container) -> ContainerState:
    """The state of a container. containerd describes one that has exited as unknown, with the time of
    that."""
    if message.finished_at > 0:
        return ContainerState.STOPPED
    return _STATES.get(message.state, ContainerState.UNKNOWN)


def _network_namespace(namespaces: Iterable[pb.LinuxNamespace], pid: int) -> str:
    """The path of a pod's own network namespace. A pod without a path for it got a new one, that of its first
    process; one that does not list it at all shares the host's."""
    for namespace in namespaces:
        if namespace.type == NETWORK:
            return namespace.path or (f"/proc/{pid}/ns/net" if pid else "")
    return ""


def _opens_everything(rule: pb.LinuxDeviceCgroup) -> bool:
    major, minor = (
        getattr(rule, field).value if rule.HasField(field) else None for field in ("major", "minor")
    )
    return opens_everything(allow=rule.allow, kind=rule.type, major=major, minor=minor)


def _device_nodes(devices: Iterable[pb.LinuxDevice]) -> tuple[DeviceNode, ...]:
    return tuple(
        DeviceNode(device.path, DEVICE_TYPES[device.type], device.major, device.minor)
        for device in devices
        if device.type in DEVICE_TYPES
    )


def _mapping(message: Mapping[str, str]) -> dict[str, str]:
    """A plain dictionary. The keys are the same few in all containers, and kept once."""
    return {intern(key): message[key] for key in message} if message else {}


# ---- Out ---------------------------------------------------------------------------------------------


def adjustment_to(container_id: str, adjustment: Adjustment) -> pb.ContainerAdjustment:
    """What to change in the spec of a container that is being created.

    Raises:
        EmptySetError: a cpuset is empty.
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
        EmptySetError: a cpuset is empty.
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
    return _varint(field << 3 | 2) + _varint(length)


def _varint(number: int) -> bytes:
    """As protobuf writes numbers: seven bits in each byte, the lowest first."""
    encoded = bytearray()
    while number > _SEVEN_BITS:
        encoded.append(number & _SEVEN_BITS | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def _write(message: pb.LinuxResources, container_id: str, change: Adjustment | Update) -> None:
    if change.cpuset_cpus is not None:
        message.cpu.cpus = _text(change.cpuset_cpus, container_id, "cpuset.cpus")
    if change.cpuset_mems is not None:
        message.cpu.mems = _text(change.cpuset_mems, container_id, "cpuset.mems")
    if change.memory_limit_bytes is not None:
        message.memory.limit.value = change.memory_limit_bytes
    for key, value in change.unified.items():
        message.unified[key] = value


def _write_memory_policy(message: pb.LinuxMemoryPolicy, setting: MemoryPolicySetting) -> None:
    message.mode = pb.MpolMode.Value(setting.mode.kernel_name)
    message.nodes = str(setting.nodes)
    message.flags.extend(map(pb.MpolFlag.Value, setting.kernel_flags))


def _text(ids: IdSet, container_id: str, field: str) -> str:
    if not ids:
        raise EmptySetError(container_id, field)
    return str(ids)
