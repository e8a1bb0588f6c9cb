"""QoS classes and the numbers that kubelet derives from them, in both directions.

Forwards: oom_score_adj, cpu shares, quota. Backwards: class and memory request from what a runtime shows.
The formulas are kubelet's (pkg/kubelet/qos/policy.go, pkg/kubelet/cm/helpers_linux.go); every inverse
returns the whole interval of requests that give the observed value, never a single guess.
"""

import math
import re
from typing import Final

from bayplan.model.decision import Interval, QosClass, QosSource
from bayplan.model.resources import (
    DEFAULT_PERIOD_US,
    MEMORY_HIGH,
    MEMORY_LOW,
    MEMORY_MIN,
    MIN_SHARES,
    RESERVATION,
    Resources,
)
from bayplan.model.sidecar_scores import BY_SCORE
from bayplan.quantity import MILLI_PER_CPU

GUARANTEED_OOM_SCORE_ADJ: Final = -997
BEST_EFFORT_OOM_SCORE_ADJ: Final = 1000
MIN_BURSTABLE_OOM_SCORE_ADJ: Final = 3
MAX_BURSTABLE_OOM_SCORE_ADJ: Final = 999

MAX_SHARES: Final = 262144
MIN_QUOTA_US: Final = 1000

OOM_GROUP: Final = "memory.oom.group"

_NOTHING_RESERVED: Final = Interval(0, 0, RESERVATION)
_POD_COMPONENT: Final = re.compile(r"pod[0-9a-zA-Z_-]+")


def qos_from_cgroup_parent(cgroup_parent: str) -> QosClass | None:
    """The class that kubelet's cgroup tree says, or None outside that tree.

    systemd driver: ``/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod<uid_>.slice``,
    cgroupfs driver: ``/kubepods/burstable/pod<uid>``; Guaranteed pods sit directly below ``kubepods``.
    kubelet's own root (``--cgroup-root``) and kind's ``kubelet.slice`` may come before it.
    """
    last = cgroup_parent.rstrip("/").rpartition("/")[2]
    tokens = (
        last.removesuffix(".slice").split("-", 3) if last.endswith(".slice") else cgroup_parent.split("/")
    )
    if "kubepods" not in tokens:
        return None
    below = tokens[tokens.index("kubepods") + 1 :]
    if below and below[0] == "besteffort":
        return QosClass.BEST_EFFORT
    if below and below[0] == "burstable":
        return QosClass.BURSTABLE
    return QosClass.GUARANTEED if below and _POD_COMPONENT.match(below[0]) else None


def derive_qos(
    by_tree: QosClass | None, resources: Resources, oom_score_adj: int | None
) -> tuple[QosClass, QosSource]:
    """The QoS class of a container's pod, and how it is known.

    Inside kubelet's tree the tree decides (*by_tree*, see `qos_from_cgroup_parent`). Outside of it (plain
    crictl, podman) an oom_score_adj that only kubelet's formula gives decides: -997 Guaranteed, 1000
    BestEffort, 3..999 Burstable. Otherwise the class is inferred, container by container, from what is asked
    for:

    * Guaranteed: a memory limit and a CPU quota, and neither CPU shares that ask for less than the quota nor
      a reservation of less than the limit;
    * BestEffort: no memory limit or reservation, no CPU quota, and no CPU shares above the minimum of 2;
    * Burstable: everything else.
    """
    if by_tree is not None:
        return by_tree, QosSource.CGROUP_PARENT
    if oom_score_adj == GUARANTEED_OOM_SCORE_ADJ:
        return QosClass.GUARANTEED, QosSource.OOM_SCORE_ADJ
    if oom_score_adj == BEST_EFFORT_OOM_SCORE_ADJ:
        return QosClass.BEST_EFFORT, QosSource.OOM_SCORE_ADJ
    if oom_score_adj is not None and is_burstable_score(oom_score_adj):
        return QosClass.BURSTABLE, QosSource.OOM_SCORE_ADJ
    return _infer(resources), QosSource.INFERRED


def has_pod_level_resources(qos: QosClass, source: QosSource, resources: Resources) -> bool:
    """Whether a Guaranteed pod of kubelet's evidently has resources as a whole (``spec.resources``). *qos*
    and *source* are what `derive_qos` returned.

    In every other Guaranteed pod the CPU shares of a container ask for all of its quota, and MemoryQoS
    throttles nothing. Elsewhere it throttles from above the request, and writes memory.min together with
    memory.high; a memory.min alone, or one that does not lie below memory.high, can be anybody's. False says
    nothing: a container that asks for nothing itself gets the pod's limits and the shares that belong to
    them. The shortest quota that the kernel takes stands for several requests, and is no evidence.
    """
    if qos is not QosClass.GUARANTEED or source is not QosSource.CGROUP_PARENT:
        return False
    # Throttled from above the limit where only the pod has one.
    if MEMORY_MIN in resources.unified:
        throttled_from_bytes = resources.amount_bytes(MEMORY_HIGH) or 0
        if resources.protected_bytes(MEMORY_MIN) < throttled_from_bytes:
            return True
    quota_us = resources.cpu_quota_us
    if not resources.cpu_shares or quota_us is None or quota_us <= MIN_QUOTA_US:
        return False
    return resources.cpu_shares < shares_from_milli(resources.quota_milli or 0)


def _infer(resources: Resources) -> QosClass:
    shares, limit_bytes, quota_milli = resources.cpu_shares or 0, resources.limit_bytes, resources.quota_milli
    reserved_bytes = reservation(resources).high_bytes
    if limit_bytes is not None and quota_milli is not None:
        asks_less = 0 < shares < shares_from_milli(quota_milli) or 0 < reserved_bytes < limit_bytes
        return QosClass.BURSTABLE if asks_less else QosClass.GUARANTEED
    if limit_bytes is None and quota_milli is None and shares <= MIN_SHARES and not reserved_bytes:
        return QosClass.BEST_EFFORT
    return QosClass.BURSTABLE


def reservation(resources: Resources) -> Interval:
    """What *resources* reserve, as a request with its source: what is protected most, 0 for nothing."""
    if not resources.unified and not resources.memory_reservation_bytes:
        return _NOTHING_RESERVED
    low_bytes, min_bytes = (resources.protected_bytes(file) for file in (MEMORY_LOW, MEMORY_MIN))
    source = MEMORY_LOW if resources.line(MEMORY_LOW) else RESERVATION
    return (
        Interval(min_bytes, min_bytes, MEMORY_MIN)
        if min_bytes > low_bytes
        else Interval(low_bytes, low_bytes, source)
    )


def oom_score_adj(qos: QosClass, request_bytes: int, capacity_bytes: int) -> int:
    """Kubelet's GetContainerOOMScoreAdjust for an ordinary container.

    *capacity_bytes* is the machine's MemTotal, not its allocatable part. A negative request, which kubelet
    computes for pods whose containers request more than the pod (the API server refuses them), gives more
    than 1000, as in kubelet.
    """
    if qos is QosClass.GUARANTEED:
        return GUARANTEED_OOM_SCORE_ADJ
    if qos is QosClass.BEST_EFFORT:
        return BEST_EFFORT_OOM_SCORE_ADJ
    thousandths = 1000 * abs(request_bytes) // capacity_bytes
    adjustment = 1000 - thousandths if request_bytes >= 0 else 1000 + thousandths
    if adjustment == BEST_EFFORT_OOM_SCORE_ADJ:
        return MAX_BURSTABLE_OOM_SCORE_ADJ
    return max(adjustment, MIN_BURSTABLE_OOM_SCORE_ADJ)


def is_burstable_score(adjustment: int) -> bool:
    """Whether kubelet gives *adjustment* to Burstable containers, and to no others."""
    return MIN_BURSTABLE_OOM_SCORE_ADJ <= adjustment <= MAX_BURSTABLE_OOM_SCORE_ADJ


def request_from_oom_score_adj(adjustment: int, capacity_bytes: int) -> Interval | None:
    """All memory requests with which kubelet gives *adjustment* to a Burstable container.

    The resolution is a thousandth of the machine: 262 MiB on 256 GiB. The clamps of the formula widen both
    ends: 999 stands for 999 and 1000, 3 for everything from 99.7 % of the machine upwards. None when
    kubelet never gives that value to a Burstable container.

    kubelet scores two kinds of containers by more than they request themselves: a sidecar by the smallest
    request of the pod's containers if that is more than its own, and containers in a pod with pod-level
    requests by a share of what is left of those. A runtime does not know which these are, and each can
    look exactly like an ordinary container. So the interval begins at 0; the low end of what the container
    counts for is ``usual_low_bytes``.
    """
    if not is_burstable_score(adjustment):
        return None
    thousandths = 1000 - adjustment
    low = 0 if adjustment == MAX_BURSTABLE_OOM_SCORE_ADJ else _ceil_div(thousandths * capacity_bytes, 1000)
    high = _ceil_div((thousandths + 1) * capacity_bytes, 1000) - 1
    if adjustment == MIN_BURSTABLE_OOM_SCORE_ADJ:
        high = max(high, capacity_bytes)
    return Interval(0, high, BY_SCORE, usual_low_bytes=low)


def milli_from_shares(shares: int) -> int:
    """Thousandths of a CPU that kubelet asked for when it wrote *shares*; the minimum of 2 means none."""
    return 0 if shares <= MIN_SHARES else math.ceil(shares * 1000 / 1024)


def cpu_request_milli(resources: Resources, qos: QosClass) -> int:
    """Thousandths of a CPU requested: by shares or by the quota, see `is_by_shares`."""
    if is_by_shares(resources, qos):
        return milli_from_shares(resources.cpu_shares or 0)
    return resources.quota_milli or 0


def is_by_shares(resources: Resources, qos: QosClass) -> bool:
    """Whether its CPU shares say what a container requests. Guaranteed means request = limit, and the quota
    is the exact one of the two; a spec without shares asks for its limit, as the API server defaults a
    missing request."""
    if resources.cpu_shares is None:
        return False
    return qos is not QosClass.GUARANTEED or (resources.cpu_quota_us or 0) <= 0


def exclusive_cpu_count(qos: QosClass, cpu_milli: int, *, pod_level: bool) -> int:
    """How many CPUs a container gets for itself: kubelet's static policy gives them to Guaranteed containers
    that ask for a whole number, but not where the pod has resources as a whole (*pod_level*)."""
    if qos is not QosClass.GUARANTEED or pod_level or cpu_milli % MILLI_PER_CPU:
        return 0
    return cpu_milli // MILLI_PER_CPU


def shares_from_milli(milli: int) -> int:
    """Kubelet's MilliCPUToShares."""
    return MIN_SHARES if milli == 0 else min(max(milli * 1024 // 1000, MIN_SHARES), MAX_SHARES)


def quota_from_milli(milli: int, period_us: int = DEFAULT_PERIOD_US) -> int:
    """Kubelet's MilliCPUToQuota, in microseconds per period; 0 means no limit. The kernel takes no less
    than a millisecond."""
    return 0 if milli == 0 else max(milli * period_us // 1000, MIN_QUOTA_US)


def _ceil_div(numerator: int, denominator: int) -> int:
    return -(-numerator // denominator)
