"""What engine `kubelet` books for a container, and what it keeps for the rest of a pod.

*What is booked.* The memory that a request needs, whether nodes have it, and which node gives how much,
as kubelet does it. A need is a vector (resource -> amount), so that memory and huge pages are asked for
together. The managers' own arithmetic, with groups and counts, is in
`bayplan.engines.kubelet.memory_state`.

*What is kept* for the rest of a pod, until its other containers come (scope pod). kubelet promises a pod
everything at once, a runtime names its containers one by one. What is kept is what the pod's sums leave
after the containers that are there, on the nodes and CPUs that the pod was given. It is read off the
ledger, so that it survives a restart. Example: a pod of 3 GiB and 4 CPUs was given node 1 and CPUs 4-7;
its first container has 1 GiB and CPUs 4-5; 2 GiB on node 1 and CPUs 6-7 are kept.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from msgspec import Struct

from bayplan.model.decision import Affinity, PodTotals, Request
from bayplan.model.ledger import Entry
from bayplan.model.machine import MEMORY
from bayplan.quantity import MILLI_PER_CPU, format_bytes
from bayplan.sets import CpuSet, NodeSet, cpus_text, nodes_text

Amounts = Mapping[str, int]


def memory_need(request: Request) -> dict[str, int]:
    """The memory resources that a Guaranteed request claims: its limit and its huge pages.

    A Guaranteed container whose limit is not visible claims no ordinary memory.
    """
    memory_bytes = request.memory.high_bytes if request.memory.exact else 0
    need = {MEMORY: memory_bytes, **request.hugepages_bytes}
    return {resource: amount for resource, amount in need.items() if amount}


def covers(free: Mapping[int, Amounts], nodes: NodeSet, need: Amounts) -> bool:
    """Whether *nodes* together have what is needed of every resource."""
    return all(
        sum(free[node].get(resource, 0) for node in nodes if node in free) >= amount
        for resource, amount in need.items()
    )


def book(free: Mapping[int, Amounts], nodes: NodeSet, need: Amounts) -> dict[int, dict[str, int]]:
    """Which node keeps how much of *need*: each resource is filled up node by node, lowest id first.

    Where *nodes* lack something the booking stays short by as much.
    """
    booked: dict[int, dict[str, int]] = {}
    for resource, amount in need.items():
        left = amount
        for node in nodes:
            part = min(left, free.get(node, {}).get(resource, 0))
            if part:
                booked.setdefault(node, {})[resource] = part
                left -= part
    return booked


REST_OF_POD: Final = "the rest of the pod"
"""The name of the rest among the pod's containers."""


class KeptForPod(Struct, frozen=True):
    """What is kept for a pod: bytes by resource on ``nodes`` together, and ``cpus`` that become exclusive."""

    pod_id: str
    nodes: NodeSet
    need: Mapping[str, int]
    cpus: CpuSet

    def __bool__(self) -> bool:
        return bool(self.need or self.cpus)

    def __str__(self) -> str:
        parts = [f"{format_bytes(amount)} {name}" for name, amount in sorted(self.need.items())]
        memory = [f"{', '.join(parts)} on {nodes_text(self.nodes)}"] if parts else []
        return " and ".join(memory + ([cpus_text(self.cpus)] if self.cpus else []))


def kept_for_pods(entries: Iterable[Entry]) -> Iterator[KeptForPod]:
    """What is kept for the pods of *entries*, in the order of their ids; all of it for those whose last
    container has ended."""
    pods: dict[str, list[Entry]] = {}
    complete = set()
    for entry in entries:
        affinity = entry.decision.placement.affinity
        if affinity is not None and affinity.whole and not entry.decision.request.pod_level:
            request = entry.decision.request
            if not entry.ended and _is_whole(request):
                complete.add(request.pod_id)
            else:
                pods.setdefault(request.pod_id, []).append(entry)
    for pod_id, seen in sorted(pods.items()):
        if pod_id in complete:
            continue
        first, members = seen[0].decision, [one for one in seen if not one.ended]
        affinity, totals = first.placement.affinity, first.request.pod_totals
        if affinity is None or totals is None or _is_complete(totals, members):
            continue
        # A pod with a container that was resized has other sums than those it was admitted with.
        if all(member.decision.request.pod_totals == totals for member in members):
            yield _kept_for_pod(pod_id, totals, affinity, members)


def _is_whole(request: Request) -> bool:
    """Whether a container leaves nothing of its pod's sums to others: it is alone, as in nearly all pods."""
    totals = request.pod_totals
    if totals is None or totals.hugepages_bytes:
        return False
    return request.memory.high_bytes >= totals.memory_bytes and request.cpu_milli >= totals.cpu_milli


def _is_complete(totals: PodTotals, members: Iterable[Entry]) -> bool:
    """Whether nothing is left of the sums, as far as that can be seen at a glance."""
    memory_bytes, milli = totals.memory_bytes, totals.cpu_milli
    for member in members:
        request = member.decision.request
        memory_bytes -= request.memory.high_bytes
        milli -= request.cpu_milli
    return memory_bytes <= 0 and milli <= 0 and not totals.hugepages_bytes


def left_over(totals: PodTotals, members: Iterable[Entry]) -> tuple[dict[str, int], int]:
    """What the containers *members* leave of their pod's sums: bytes by resource, and the number of CPUs that
    the rest of the pod may have for itself. The sums do not say that number: a whole one is taken for it."""
    left = dict(totals.amounts_bytes)
    milli = totals.cpu_milli
    for member in members:
        request = member.decision.request
        milli -= request.cpu_milli
        for name, amount in memory_need(request).items():
            left[name] = left.get(name, 0) - amount
    need = {name: amount for name, amount in left.items() if amount > 0}
    return need, milli // MILLI_PER_CPU if milli > 0 and milli % MILLI_PER_CPU == 0 else 0


def _kept_for_pod(pod_id: str, totals: PodTotals, affinity: Affinity, members: list[Entry]) -> KeptForPod:
    need, count = left_over(totals, members)
    if not members:
        # What an init container had to itself is the next one's, however much of the sums is shared.
        count = totals.cpu_milli // MILLI_PER_CPU
    free = affinity.cpus
    for member in members:
        free -= member.decision.placement.exclusive_cpus
    nodes = affinity.mems or NodeSet()
    return KeptForPod(pod_id, nodes, need if nodes else {}, CpuSet(sorted(free)[:count]))
