"""Random machines and requests for trials of the `exact` engine: small, odd, the same for the same seed."""

import random
from typing import Final

from msgspec.structs import replace

from bayplan.model.decision import (
    DeviceHint,
    EvenHugepagesWish,
    Interval,
    NodeWish,
    PodTotals,
    QosClass,
    QosSource,
    Request,
    TierWish,
)
from bayplan.model.machine import Cpu, Machine, Node
from bayplan.model.qos import BY_SCORE
from bayplan.model.request import BY_ANNOTATION
from bayplan.quantity import MIB
from bayplan.sets import CpuSet, NodeSet

PAGES: Final = "hugepages-2Mi"


USUAL_PAGES: Final = 7


def draw_request(
    draw: random.Random, machine: Machine, container_id: str, pages_one_in: int = USUAL_PAGES
) -> Request:
    """What a new container asks for; some have wishes. One of *pages_one_in* asks for huge pages."""
    qos = draw.choices(list(QosClass), [6, 3, 1])[0]
    amount = 0 if qos is QosClass.BEST_EFFORT else draw_amount_bytes(draw, machine)
    nodes = tier = None
    cpus = draw.choice([0, 0, 1, 2, 4]) if qos is QosClass.GUARANTEED else 0
    wish = draw.choices(["none", "nodes", "tier"], [15, 4, 1])[0]
    if wish == "nodes":
        chosen = NodeSet(
            draw.sample(list(machine.memory_nodes), draw.randint(1, min(2, len(machine.memory_nodes))))
        )
        nodes = NodeWish(chosen, required=draw.choice([True, True, False]))
    elif wish == "tier":
        tier = TierWish(draw.randint(0, 1), required=draw.choice([True, False]))
    pages, even = {}, None
    if qos is not QosClass.BEST_EFFORT and not draw.randrange(pages_one_in):
        pages = {PAGES: draw.randint(1, 6) * 2 * MIB}
        if draw.randrange(2):
            count = draw.randint(1, min(4, len(machine.memory_nodes)))
            pages, even = {PAGES: pages[PAGES] * count}, EvenHugepagesWish(count)
    memory, pod_id, score = Interval(amount, amount, "limit"), f"pod-{container_id}", None
    if qos is QosClass.BURSTABLE and draw.randrange(2):
        # Of a few pods whose containers often have the same score.
        pod_id, score = f"pod-{draw.randrange(3)}", draw.choice([700, 950])
        memory = draw_scored(draw, machine, score)
    return Request(
        container_id,
        pod_id,
        container_id,
        qos,
        QosSource.CGROUP_PARENT if qos is QosClass.BURSTABLE else QosSource.INFERRED,
        memory,
        amount if qos is QosClass.GUARANTEED else None,
        # Of some Burstable ones it is more than the shared CPUs.
        cpu_milli=1000 * cpus or (memory.high_bytes // 4096 % 2500 if qos is QosClass.BURSTABLE else 0),
        exclusive_cpus=cpus,
        hugepages_bytes=pages,
        nodes=nodes,
        tier=tier,
        score=score,
        even_hugepages=even,
        hints=draw_hints(draw, machine) if qos is QosClass.GUARANTEED and not draw.randrange(4) else (),
    )


def draw_hints(draw: random.Random, machine: Machine) -> tuple[DeviceHint, ...]:
    """A few devices, most of them close to one node; of some the driver insists on it."""
    nodes = list(machine.node_ids)
    return tuple(
        DeviceHint(
            f"dev{number}",
            NodeSet(draw.sample(nodes, draw.choice([1, 1, 1, min(2, len(nodes))]))),
            required=not draw.randrange(6),
        )
        for number in range(draw.randint(1, 4))
    )


def draw_pod(draw: random.Random, machine: Machine, number: int) -> list[Request]:
    """The containers of a pod of several, in the order of their creation, with the sums of all of them. How
    many CPUs they have to themselves is known of some pods; some containers ask for no whole CPUs."""
    containers = []
    for position in range(draw.randint(1, 3)):
        request = draw_request(draw, machine, f"c{number:05}-{position}")
        if request.qos is not QosClass.GUARANTEED or request.even_hugepages is not None:
            continue
        milli = 0 if request.exclusive_cpus else draw.choice([0, 500, 1500])
        containers.append(replace(request, pod_id=f"pod-{number}", cpu_milli=request.cpu_milli + milli))
    pages = sum(one.hugepages_bytes.get(PAGES, 0) for one in containers)
    exclusive_cpus = sum(one.exclusive_cpus for one in containers)
    totals = PodTotals(
        sum(one.memory.high_bytes for one in containers),
        sum(one.cpu_milli for one in containers),
        {PAGES: pages} if pages else {},
        draw.choice([None, exclusive_cpus]),
    )
    return [replace(one, pod_totals=totals) for one in containers]


def draw_scored(draw: random.Random, machine: Machine, score: int) -> Interval:
    """The request of a container with that oom_score_adj; of some the exact one is known."""
    whole_bytes = sum(node.memory_bytes for node in machine.nodes)
    low, high = ((1000 - score + more) * whole_bytes // 1000 for more in (0, 1))
    kind = draw.choice(["score", "score", "exact", "limited"])
    if kind == "exact":
        return Interval(low, low, BY_ANNOTATION)
    known = Interval(0, high - 1, BY_SCORE, usual_low_bytes=low)
    return known if kind == "score" else replace(known, high_bytes=low // 2, usual_low_bytes=low // 2)


def draw_amount_bytes(draw: random.Random, machine: Machine) -> int:
    """Mostly small, sometimes more than a node."""
    largest = max(node.memory_bytes for node in machine.nodes)
    return max(1, int(draw.choice([0.15, 0.3, 0.6, 1.5]) * draw.random() * largest))


def draw_machine(draw: random.Random, count: int) -> Machine:
    """Nodes with sparse ids, unequal sizes, asymmetric distances, few CPUs in cores of two; some are CPU-less
    and of a slower tier, one may have CPUs and no memory."""
    ids = sorted(draw.sample(range(count * 3), count))
    cpu_less = set(ids[1:]) & set(draw.sample(ids, draw.randint(0, count // 3)))
    bare = draw.choice(ids[1:]) if not draw.randrange(4) else None
    distances = {(a, b): 10 if a == b else draw.choice([11, 17, 20, 21, 31]) for a in ids for b in ids}
    cpus: list[Cpu] = []
    for node in ids:
        first = len(cpus)
        count_here = 0 if node in cpu_less else draw.randint(1, 5)
        cpus += [Cpu(first + n, first + n // 2 * 2, node, node, node) for n in range(count_here)]
    nodes = tuple(
        Node(
            node,
            CpuSet(cpu.id for cpu in cpus if cpu.node_id == node),
            0 if node == bare else draw.choice([64, 100, 128]) * MIB,
            hugepages_bytes={2 * MIB: 0 if node == bare else draw.choice([0, 4, 10]) * MIB},
            distances={other: distances[node, other] for other in ids},
            tier=1 if node in cpu_less else 0,
            devices=draw.choice([0, 0, 0, 1, 4]),
        )
        for node in ids
    )
    return Machine(nodes, tuple(cpus))
