"""What a runtime does to container specs with the answers of plugins, and what it lets them see.

Part of the fake runtime. Pure functions on NRI messages; the rules are those of containerd.
"""

from collections.abc import Iterator

from google.protobuf.message import Message

from bayplan._proto.nri import api_pb2 as pb
from support.flavors import Flavor


def claims(message: Message, path: str = "") -> Iterator[str]:
    """The fields that a change claims, each as a path; map entries and huge page sizes are one each."""
    for field, value in message.ListFields():
        name = f"{path}.{field.name}"
        kind = field.message_type
        if kind is not None and kind.GetOptions().map_entry:
            yield from (f"{name}[{key}]" for key in value)
        elif name.endswith(".hugepage_limits"):
            yield from (f"{name}[{limit.page_size}]" for limit in value)
        elif kind is not None and isinstance(value, Message) and not kind.name.startswith("Optional"):
            yield from claims(value, name)
        else:
            yield name


def adjust(container: pb.Container, adjustment: pb.ContainerAdjustment, flavor: Flavor) -> None:
    """Rewrite a spec. Fields that containerd accepts and ignores have no effect here either."""
    change = adjustment.linux.resources
    merge(container.linux.resources, change)
    for limit in change.hugepage_limits:
        container.linux.resources.hugepage_limits.append(limit)
    if adjustment.linux.HasField("oom_score_adj") and flavor.adjusts_oom_score:
        container.linux.oom_score_adj.value = adjustment.linux.oom_score_adj.value
    container.annotations.update(adjustment.annotations)
    container.mounts.extend(adjustment.mounts)
    container.env.extend(f"{one.key}={one.value}" for one in adjustment.env)


def merge(resources: pb.LinuxResources, change: pb.LinuxResources) -> None:
    """Apply what survives of an update: zero and empty mean unchanged, a memory limit sets swap to itself."""
    if change.memory.limit.value:
        resources.memory.limit.value = change.memory.limit.value
        resources.memory.swap.value = change.memory.limit.value
    if change.cpu.shares.value:
        resources.cpu.shares.value = change.cpu.shares.value
    if change.cpu.quota.value:
        resources.cpu.quota.value = change.cpu.quota.value
    if change.cpu.period.value:
        resources.cpu.period.value = change.cpu.period.value
    resources.cpu.cpus = change.cpu.cpus or resources.cpu.cpus
    resources.cpu.mems = change.cpu.mems or resources.cpu.mems
    resources.unified.update(change.unified)


def shown(container: pb.Container, flavor: Flavor) -> pb.Container:
    """A container as plugins see it."""
    copy = pb.Container()
    copy.CopyFrom(container)
    if not flavor.shows_unified:
        copy.linux.resources.unified.clear()
    return copy
