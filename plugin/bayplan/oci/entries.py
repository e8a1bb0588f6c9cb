"""Entries of containers that came without NRI, compared with what is announced of them later. Pure."""

from msgspec.structs import replace

from bayplan.model.ledger import Entry
from bayplan.model.origin import Nri, WithoutNri
from bayplan.model.resources import Resources
from bayplan.model.workload import Adjustment
from bayplan.oci.errors import OciError


def origin_of(entry: Entry) -> WithoutNri:
    """How the container came.

    Raises:
        OciError: over NRI.
    """
    if isinstance(entry.origin, Nri):
        raise OciError(f"container {entry.container_id}", "came over NRI")
    return entry.origin


def is_same_start(entry: Entry, present: Entry | None) -> bool:
    """Whether *present* is of the same start of the container as *entry*. The shared CPUs that it was
    notified of and the nodes of its memory can differ: decisions about others change them."""
    return present is not None and present.origin is entry.origin


def was_rewritten(entry: Entry, announced: WithoutNri) -> bool:
    """Whether the spec of this very start of the container was rewritten already."""
    origin = entry.origin
    if isinstance(origin, Nri) or not origin.changes_spec:
        return False
    return origin.container.pid in (0, announced.container.pid)


def with_process(entry: Entry, announced: WithoutNri) -> Entry:
    """*entry* with the process and the cgroup that were *announced*."""
    origin = origin_of(entry)
    container = replace(origin.container, pid=announced.container.pid)
    placed = replace(
        origin,
        container=container,
        bundle=announced.bundle,
        cgroups=announced.cgroups,
        start_ticks=announced.start_ticks,
    )
    return replace(entry, recorded_origin=placed)


def without_ours(entry: Entry, wanted: Adjustment, change: Resources) -> Resources:
    """*change* without cpusets that we have set, or that are *wanted* now: a runtime that repeats them did
    not choose them."""
    cpus, mems = change.cpuset_cpus, change.cpuset_mems
    applied = origin_of(entry).applied
    return replace(
        change,
        cpuset_cpus=None if cpus in (entry.notified_cpus, applied.cpuset_cpus, wanted.cpuset_cpus) else cpus,
        cpuset_mems=None if mems in (entry.decision.placement.mems, applied.cpuset_mems) else mems,
    )
