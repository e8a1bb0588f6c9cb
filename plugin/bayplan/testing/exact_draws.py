"""Random machines and requests for trials of the `exact` engine: small, odd, the same for the same seed."""

import random
from typing import Final

from bayplan.domain.decision import Interval, NodeWish, QosClass, QosSource, Request, TierWish
from bayplan.domain.topology import Cpu, Machine, Node
from bayplan.quantity import MIB
from bayplan.sets import CpuSet, NodeSet

PAGES: Final = "hugepages-2Mi"


def draw_request(draw: random.Random, machine: Machine, container_id: str) -> Request:
    """What a new container asks for; some have wishes."""
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
    pages = {}
    if qos is not QosClass.BEST_EFFORT and not draw.randrange(7):
        pages = {PAGES: draw.randint(1, 6) * 2 * MIB}
    return Request(
        container_id,
        f"pod-{container_id}",
        container_id,
        qos,
        QosSource.INFERRED,
        Interval(amount, amount, "limit"),
        amount if qos is QosClass.GUARANTEED else None,
        cpu_milli=1000 * cpus,
        exclusive_cpus=cpus,
        hugepages_bytes=pages,
        nodes=nodes,
        tier=tier,
    )


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
        )
        for node in ids
    )
    return Machine(nodes, tuple(cpus))
