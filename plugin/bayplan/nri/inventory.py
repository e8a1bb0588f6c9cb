"""What a Synchronize lists, gathered over all of its messages.

Each pod and container is decoded alone and its message dropped at once: a message of 4 MiB decoded whole
takes three times its size, and the daemon has to fit in 60 MiB. What is kept is bounded, however many
messages say that more will follow.
"""

from typing import Final

from google.protobuf.message import DecodeError

from bayplan._proto.nri import api_pb2 as pb
from bayplan.model.workload import Container, Pod
from bayplan.nri.errors import EndlessListError, PayloadError
from bayplan.nri.translate import container_from, pod_from

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
                tag, at = _varint(view, at)
                number, at = _varint(view, at)
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


def _varint(view: memoryview, at: int) -> tuple[int, int]:
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
