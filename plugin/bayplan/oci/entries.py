"""Entries of containers that came without NRI, compared with what arrives about them. Pure."""

from msgspec.structs import replace

from bayplan.model.ledger import Entry
from bayplan.model.origin import Form, Origin
from bayplan.model.workload import Resources
from bayplan.oci.errors import OciError


def origin_of(entry: Entry) -> Origin:
    """How the container came.

    Raises:
        OciError: over NRI.
    """
    if entry.origin is None:
        raise OciError(f"container {entry.container_id}", "came over NRI")
    return entry.origin


def is_same_start(entry: Entry, present: Entry | None) -> bool:
    """Whether *present* is still about the start of the container that *entry* is about: what it was told of
    the shared CPUs, and where its memory is, change for the sake of others."""
    return present is not None and present.origin is entry.origin


def was_rewritten(entry: Entry, arrived: Origin) -> bool:
    """Whether the spec of this very start of the container was rewritten already."""
    origin = entry.origin
    if origin is None or origin.form is Form.HOOK:
        return False
    return origin.container.pid in (0, arrived.container.pid)


def met(entry: Entry, arrived: Origin) -> Entry:
    """*entry*, with the process and the cgroup that are known by now."""
    origin = origin_of(entry)
    container = replace(origin.container, pid=arrived.container.pid)
    placed = replace(
        origin,
        container=container,
        bundle=arrived.bundle,
        cgroups=arrived.cgroups,
        start_ticks=arrived.start_ticks,
    )
    return replace(entry, origin=placed)


def without_ours(entry: Entry, change: Resources) -> Resources:
    """*change* without cpusets that are ours: a runtime that repeats them to us did not choose them."""
    cpus, mems = change.cpuset_cpus, change.cpuset_mems
    applied = origin_of(entry).applied
    return replace(
        change,
        cpuset_cpus=None if cpus in (entry.notified_cpus, applied.cpuset_cpus) else cpus,
        cpuset_mems=None if mems in (entry.decision.placement.mems, applied.cpuset_mems) else mems,
    )
