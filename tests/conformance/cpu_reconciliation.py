"""Which running containers need other CPUs: the decision part of kubelet's periodic reconciliation.

Pure: the state that was applied last comes in, the updates that are due go out; others carry them out.
"""

import enum
from collections.abc import Iterable, Iterator

from msgspec import Struct

from bayplan.engines.kubelet.cpu_state import CpuState
from bayplan.sets import CpuSet


class Running(enum.Enum):
    """What is known of a container's process. UNKNOWN also stands for a missing status."""

    UNKNOWN = "unknown"
    WAITING = "waiting"
    RUNNING = "running"
    TERMINATED = "terminated"


class UpdateNeed(enum.Enum):
    """The outcome for one container: CURRENT: it has its CPUs; DUE: it needs an update; FAILED: it
    cannot be updated now, or there are no CPUs for it."""

    CURRENT = "current"
    DUE = "due"
    FAILED = "failed"


class Reconciled(Struct, frozen=True):
    """One container, its outcome, and the CPUs that it should have; None where it is FAILED."""

    pod_uid: str
    container: str
    need: UpdateNeed
    cpus: CpuSet | None = None


def effective(state: CpuState, pod_uid: str, container: str) -> CpuSet:
    """The CPUs that a container may use: its own, or the shared ones."""
    own = state.of(pod_uid, container)
    return state.shared if own is None else own


def reconcile_cpus(
    state: CpuState, applied: CpuState, containers: Iterable[tuple[str, str, Running]]
) -> Iterator[Reconciled]:
    """Compare what each of *containers* (pod uid, name, process) should have with what was *applied* last.

    A terminated container is passed over: it may be about to be restarted, and keeps what it has.
    """
    for pod_uid, container, running in containers:
        if running is Running.TERMINATED:
            continue
        cpus = effective(state, pod_uid, container)
        if running is not Running.RUNNING or not cpus:
            yield Reconciled(pod_uid, container, UpdateNeed.FAILED)
        elif cpus == effective(applied, pod_uid, container):
            yield Reconciled(pod_uid, container, UpdateNeed.CURRENT, cpus)
        else:
            yield Reconciled(pod_uid, container, UpdateNeed.DUE, cpus)
