"""Pods with resources as a whole in trials of the `exact` engine: random ones, and what must hold of them.

Written from the rules: whatever containers of such a pod are there, together they are promised what the pod
and no more, on one set of nodes; its CPUs are nobody else's, those of a container with a part are its
own, and the others run on the rest.
"""

import random
from collections.abc import Mapping

from msgspec.structs import replace

from bayplan.model.decision import Decision, Interval, PodTotals, QosClass, QosSource, Request
from bayplan.model.ledger import Ledger
from bayplan.model.machine import MEMORY, Machine
from bayplan.model.pod_as_a_whole import as_member
from bayplan.quantity import MIB
from support.exact_draws import PAGES, draw_amount_bytes
from support.exact_errors import OVERCOMMIT, WRONG_CPUS, WRONG_PLACE, BrokenPromiseError


def draw_whole_pod(draw: random.Random, machine: Machine, number: int) -> list[Request]:
    """The containers of a pod with resources as a whole, in the order of their creation, as their specs show
    them; of some pods it is known from the start."""
    memory_bytes, milli = 64 + draw_amount_bytes(draw, machine), draw.choice([1000, 2000, 3000, 4000, 2500])
    pages = {} if draw.randrange(4) else {PAGES: draw.randint(1, 3) * 2 * MIB}
    totals, containers = PodTotals(memory_bytes, milli, pages), list[Request]()
    left_bytes, left_milli = memory_bytes, milli
    for position in range(draw.randint(1, 4)):
        own_bytes, own_milli = memory_bytes, milli
        if not draw.randrange(3) and left_bytes > 8 and left_milli > 1000:
            own_bytes, own_milli = draw.randint(1, left_bytes // 2), draw.choice([1000, 1000, 500])
            left_bytes, left_milli = left_bytes - own_bytes, left_milli - own_milli
        name = f"p{number:05}-{position}"
        request = Request(
            name,
            f"whole-{number}",
            name,
            QosClass.GUARANTEED,
            QosSource.CGROUP_PARENT,
            Interval(own_bytes, own_bytes, "limit"),
            own_bytes,
            cpu_milli=own_milli,
            exclusive_cpus=0 if own_milli % 1000 else own_milli // 1000,
            hugepages_bytes=pages,
            pod_totals=totals,
        )
        containers.append(request)
    return list(map(as_member, containers)) if draw.randrange(2) else containers


def has_whole(request: Request) -> bool:
    """Whether the container takes all that it has from its pod."""
    return request.pod_level and request.memory.source == "pod"


def holds_whole(decision: Decision) -> bool:
    """Whether the container holds what its pod was promised, or a part of it."""
    affinity = decision.placement.affinity
    return has_whole(decision.request) or (affinity is not None and affinity.whole)


def whole_of(request: Request) -> Request:
    """The pod of *request* as if it were one ordinary container."""
    totals = request.pod_totals
    assert totals is not None
    milli = totals.cpu_milli
    return replace(
        request,
        memory=Interval(totals.memory_bytes, totals.memory_bytes, "limit"),
        memory_limit_bytes=totals.memory_bytes,
        cpu_milli=milli,
        exclusive_cpus=0 if milli % 1000 else milli // 1000,
        hugepages_bytes=totals.hugepages_bytes,
        pod_level=False,
        pod_totals=None,
    )


def members(ledger: Ledger, pod_id: str) -> dict[str, Decision]:
    """The containers of a pod that hold something, by id; the last one, if it has ended and the pod stays."""
    found = {
        key: one.decision
        for key, one in ledger.entries.items()
        if one.decision.request.pod_id == pod_id and one.decision.request.pod_level
    }
    last = ledger.retained.get(pod_id)
    return found if last is None else {last.container_id: last.decision, **found}


def check_pods(ledger: Ledger) -> None:
    """See the module.

    Raises:
        BrokenPromiseError: something of it does not hold.
    """
    pods = {one.decision.request.pod_id for one in ledger.entries.values()} | ledger.retained.keys()
    owner: dict[int, str] = {}
    for pod_id in pods:
        there = members(ledger, pod_id)
        if any(has_whole(one.request) for one in there.values()):
            _check_pod(pod_id, there)
        for one in ledger.entries.values():
            if one.decision.request.pod_id == pod_id:
                for cpu in one.decision.placement.exclusive_cpus:
                    owner.setdefault(cpu, pod_id)
        for cpu in _cpus_of(there):
            if owner.setdefault(cpu, pod_id) != pod_id:
                raise BrokenPromiseError(WRONG_CPUS, f"CPU {cpu} is of {pod_id} and of {owner[cpu]}")


def _cpus_of(there: Mapping[str, Decision]) -> set[int]:
    found = set[int]()
    for one in there.values():
        affinity = one.placement.affinity
        found |= {*one.placement.exclusive_cpus, *(affinity.cpus if affinity is not None else ())}
    return found


def _check_pod(pod_id: str, there: Mapping[str, Decision]) -> None:
    totals = [one.request.pod_totals for one in there.values()]
    asked = totals[0]
    if asked is None or any(one != asked for one in totals):
        raise BrokenPromiseError(WRONG_PLACE, f"{pod_id} asks for {totals}")
    claimed: dict[str, int] = {}
    for one in there.values():
        claim = one.placement.claim
        assert claim is not None
        for row in (claim.amounts_bytes, claim.short_bytes):
            for resource, amount in row.items():
                claimed[resource] = claimed.get(resource, 0) + amount
    wanted = {MEMORY: asked.memory_bytes, **asked.hugepages_bytes}
    if claimed != wanted:
        raise BrokenPromiseError(OVERCOMMIT, f"{pod_id} has {claimed} for {wanted}")
    takers = [one for one in there.values() if has_whole(one.request)]
    nodes = {one.placement.claim.nodes.mask for one in takers if one.placement.claim is not None}
    if len(nodes) != 1:
        raise BrokenPromiseError(WRONG_PLACE, f"{pod_id} is on several sets of nodes")
    parts = [one.placement.exclusive_cpus for one in there.values() if one.request.exclusive_cpus]
    if sum(map(len, parts)) != len({cpu for part in parts for cpu in part}):
        raise BrokenPromiseError(WRONG_CPUS, f"parts of {pod_id} share CPUs: {parts}")
    own = {cpu for part in parts for cpu in part}
    pools = [set(one.placement.exclusive_cpus) for one in takers]
    if any(pool != pools[0] or pool & own for pool in pools):
        raise BrokenPromiseError(WRONG_CPUS, f"{pod_id} runs on {pools} beside {own}")
    most = asked.cpu_milli // 1000 if asked.cpu_milli % 1000 == 0 else len(own)
    if len(pools[0] | own) > most:
        raise BrokenPromiseError(WRONG_CPUS, f"{pod_id} has {pools[0] | own} of {most}")
