"""Changes to OCI documents that leave everything else as it is, byte for byte.

Only the objects on the path to a changed field are decoded; the rest stays the same text, so that
unknown fields, numbers beyond 64 bits and Go's spelling of floats survive.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from bayplan.model.decision import MemoryPolicySetting
from bayplan.model.workload import MOUNT_OPTIONS, PLACEMENT_MOUNT, Adjustment
from bayplan.oci.documents import Linux, LinuxResources, Spec
from bayplan.oci.errors import OciError
from bayplan.quantity import hugetlb_size
from bayplan.sets import CpuSet

Patch = Mapping[str, Any]
"""Values by key; a mapping stands for changes inside of that object."""

_OBJECT: Final = msgspec.json.Decoder(dict[str, msgspec.Raw] | None)
_LIST: Final = msgspec.json.Decoder(list[msgspec.Raw] | None)


class Appended(NamedTuple):
    """Stands for *items* after what a list has; an item with the same value of *key* goes."""

    items: Sequence[Any]
    key: str = ""


def merged(document: bytes, patch: Patch, source: str) -> bytes:
    """*document* with the values of *patch*; objects that it lacks are made. *source* is named in messages.

    Raises:
        OciError: not JSON, or something else than an object where *patch* has one.
    """
    try:
        fields = _OBJECT.decode(document) or {}
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise OciError(source, f"cannot be read: {error}") from error
    for key, value in patch.items():
        if isinstance(value, Mapping):
            inner = bytes(fields.get(key, b"null"))
            fields[key] = msgspec.Raw(merged(inner, value, f"{source}: {key}"))
        elif isinstance(value, Appended):
            fields[key] = msgspec.Raw(_appended(bytes(fields.get(key, b"null")), value, f"{source}: {key}"))
        else:
            fields[key] = msgspec.Raw(msgspec.json.encode(value))
    return msgspec.json.encode(fields)


def _appended(document: bytes, added: Appended, source: str) -> bytes:
    try:
        present = _LIST.decode(document) or []
        if added.key:
            replaced = [msgspec.json.encode(one[added.key]) for one in added.items]
            present = [one for one in present if _value(one, added.key) not in replaced]
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise OciError(source, f"cannot be read: {error}") from error
    return msgspec.json.encode([*present, *added.items])


def _value(item: msgspec.Raw, key: str) -> bytes | None:
    value = (_OBJECT.decode(item) or {}).get(key)
    return None if value is None else msgspec.json.encode(msgspec.json.decode(value))


def spec_patch(adjustment: Adjustment, spec: Spec) -> Patch:
    """What *adjustment* changes in *spec*; empty for nothing. A spec without a process gets none; a memory
    policy that somebody else chose stays."""
    present = spec.linux if spec.linux is not None else Linux()
    patch: dict[str, Any] = {}
    linux: dict[str, Any] = {}
    inner = resources_patch(adjustment, present.resources or LinuxResources())
    if inner:
        linux["resources"] = inner
    if adjustment.memory_policy is not None and present.memory_policy is None:
        linux["memoryPolicy"] = _memory_policy(adjustment.memory_policy)
    if linux:
        patch["linux"] = linux
    process: dict[str, Any] = {}
    if adjustment.oom_score_adj is not None:
        process["oomScoreAdj"] = adjustment.oom_score_adj
    if adjustment.environment:
        process["env"] = Appended([f"{name}={value}" for name, value in adjustment.environment.items()])
    process |= exec_patch(adjustment.exec_cpus, spec)
    if process and spec.process is not None:
        patch["process"] = process
    if adjustment.placement_source:
        # A bundle that is used again has the mount of the time before.
        mount = {
            "destination": PLACEMENT_MOUNT,
            "type": "bind",
            "source": adjustment.placement_source,
            "options": MOUNT_OPTIONS,
        }
        patch["mounts"] = Appended([mount], "destination")
    return patch


def exec_patch(cpus: CpuSet | None, spec: Spec) -> Patch:
    """What is to be changed in ``process`` so that processes which enter the container later begin on *cpus*;
    what somebody else chose stays."""
    if not cpus or spec.process is None or spec.process.exec_affinity is not None:
        return {}
    return {"execCPUAffinity": {"initial": str(cpus)}}


def _memory_policy(setting: MemoryPolicySetting) -> Patch:
    """linux.memoryPolicy of the runtime specification 1.3, whose names are the kernel's."""
    patch: dict[str, Any] = {"mode": setting.mode.kernel_name}
    if setting.nodes:
        patch["nodes"] = str(setting.nodes)
    if setting.flags:
        patch["flags"] = setting.kernel_flags
    return patch


def resources_patch(adjustment: Adjustment, present: LinuxResources) -> Patch:
    """What *adjustment* changes in the resources *present*; keys that ``unified`` has already stay."""
    cpu = {
        key: str(ids)
        for key, ids in (("cpus", adjustment.cpuset_cpus), ("mems", adjustment.cpuset_mems))
        if ids
    }
    unified = {key: value for key, value in adjustment.unified.items() if key not in (present.unified or {})}
    limit_bytes = adjustment.memory_limit_bytes
    memory = {} if limit_bytes is None else {"limit": limit_bytes}
    parts: dict[str, Patch] = {"cpu": cpu, "memory": memory, "unified": unified}
    limits = [
        {"pageSize": hugetlb_size(size_bytes), "limit": amount}
        for size_bytes, amount in adjustment.hugepage_limits_bytes.items()
    ]
    changed: Patch = {key: part for key, part in parts.items() if part}
    return {**changed, "hugepageLimits": Appended(limits, "pageSize")} if limits else changed
