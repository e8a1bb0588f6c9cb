"""QoS classes and the numbers that kubelet derives from them, in both directions.

Forwards: oom_score_adj, cpu shares, quota. Backwards: the class from the cgroup, the request from the score.
The formulas are kubelet's (pkg/kubelet/qos/policy.go, pkg/kubelet/cm/helpers_linux.go); every inverse
returns the whole interval of requests that give the observed value, never a single guess.

kubelet scores a sidecar (a restartable init container) by the smallest request of the pod's other containers
if that is more than its own, and no runtime knows which container is a sidecar. So of several containers
with one score only one is known to request what the score says: the newest, as sidecars come before the
others. Of the rest the score proves nothing, unless something else says what they request. What kubelet is
said to know is no evidence about the others, only about the container itself.
Source: GetContainerOOMScoreAdjust, pkg/kubelet/qos/policy.go, since Kubernetes 1.32.
"""

from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from bayplan.model.decision import Claim, Interval, QosClass, Request
from bayplan.model.machine import MEMORY
from bayplan.model.resources import (
    DEFAULT_PERIOD_US,
    MIN_SHARES,
)
from bayplan.printable import pattern
from bayplan.quantity import MILLI_PER_CPU

BY_SCORE: Final = "oom_score_adj"
"""The source of a memory request that is known from the score."""

_NONE: Final = -1
"""The largest of no requests; 0 is one."""


def explained_by_others(requests: Sequence[Request]) -> list[bool]:
    """For each of *requests*, which have the same score in the same pod, the oldest first, whether kubelet's
    rule for sidecars can be why: another one that is newer, or known exactly, is as large."""
    shown = [request.shown_memory for request in requests]
    explained, largest_bytes = list[bool](), _NONE
    for memory in shown:
        explained.append(largest_bytes >= memory.likely_low_bytes)
        if memory.exact:
            largest_bytes = max(largest_bytes, memory.high_bytes)
    largest_bytes = _NONE
    for number in reversed(range(len(shown))):
        memory = shown[number]
        explained[number] |= largest_bytes >= memory.likely_low_bytes
        explained[number] &= memory.source == BY_SCORE
        largest_bytes = max(largest_bytes, memory.high_bytes)
    return explained


def corrected_claim(claim: Claim, request: Request, *, explained: bool) -> Claim:
    """*claim* of *request* without the memory that is *explained* by another container: of its own there is
    what kubelet says of it. Once it is not explained any more, the memory is a promise to be made up for,
    because others may have got the room."""
    memory_bytes = claim.amounts_bytes.get(MEMORY, 0)
    short_bytes = claim.short_bytes.get(MEMORY, 0) + claim.explained_bytes
    explained_bytes = 0
    if explained:
        own_bytes = 0 if request.spec_memory is None else request.memory.high_bytes
        explained_bytes = max(0, memory_bytes + short_bytes - own_bytes)
        memory_bytes = min(memory_bytes, own_bytes)
        short_bytes = own_bytes - memory_bytes
    if (memory_bytes, explained_bytes) == (claim.amounts_bytes.get(MEMORY, 0), claim.explained_bytes):
        return claim
    return replace(
        claim,
        amounts_bytes=_nonzero({**claim.amounts_bytes, MEMORY: memory_bytes}),
        short_bytes=_nonzero({**claim.short_bytes, MEMORY: short_bytes}),
        explained_bytes=explained_bytes,
    )


def _nonzero(row: dict[str, int]) -> dict[str, int]:
    return {resource: amount for resource, amount in row.items() if amount}


GUARANTEED_OOM_SCORE_ADJ: Final = -997
BEST_EFFORT_OOM_SCORE_ADJ: Final = 1000
MIN_BURSTABLE_OOM_SCORE_ADJ: Final = 3
MAX_BURSTABLE_OOM_SCORE_ADJ: Final = 999

MAX_SHARES: Final = 262144
MIN_QUOTA_US: Final = 1000

OOM_GROUP: Final = "memory.oom.group"

_POD_COMPONENT: Final = pattern(r"pod[0-9a-zA-Z_-]+")


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
    if not MIN_BURSTABLE_OOM_SCORE_ADJ <= adjustment <= MAX_BURSTABLE_OOM_SCORE_ADJ:
        return None
    thousandths = 1000 - adjustment
    # Rounded up.
    low = 0 if adjustment == MAX_BURSTABLE_OOM_SCORE_ADJ else -(-thousandths * capacity_bytes // 1000)
    high = -(-(thousandths + 1) * capacity_bytes // 1000) - 1
    if adjustment == MIN_BURSTABLE_OOM_SCORE_ADJ:
        high = max(high, capacity_bytes)
    return Interval(0, high, BY_SCORE, usual_low_bytes=low)


def exclusive_cpu_count(qos: QosClass, cpu_milli: int, *, pod_level: bool) -> int:
    """How many CPUs a container gets for itself: kubelet's static policy gives them to Guaranteed containers
    that ask for a whole number, but not where the pod has resources as a whole (*pod_level*)."""
    if qos is not QosClass.GUARANTEED or pod_level or cpu_milli % MILLI_PER_CPU:
        return 0
    return cpu_milli // MILLI_PER_CPU


def shares_from_milli(milli: int) -> int:
    """CPU shares for *milli* thousandths of a CPU: kubelet's MilliCPUToShares."""
    return MIN_SHARES if milli == 0 else min(max(milli * 1024 // 1000, MIN_SHARES), MAX_SHARES)


def quota_from_milli(milli: int, period_us: int = DEFAULT_PERIOD_US) -> int:
    """Kubelet's MilliCPUToQuota, in microseconds per period; 0 means no limit. The kernel takes no less
    than a millisecond."""
    return 0 if milli == 0 else max(milli * period_us // 1000, MIN_QUOTA_US)
