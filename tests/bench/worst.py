"""What the worst decisions of the engine `exact` cost: ``python tests/bench/worst.py [SEEDS] [STEPS]``.

Machines and promises that leave the search no short way, random ones with SEEDS seeds each (default 3). CPU
time of the calling thread: to follow all promises, which an engine does once after a start, and to decide
then, the worst of the seeds; and what came of them: how many gave up their search after STEPS, how many were
refused, and of those that were placed the crossed sets, the nodes and the distance in all. `BEYOND` are
larger than any machine.
"""

import operator
import random
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial, reduce
from typing import Final

from msgspec import Struct
from msgspec.structs import astuple, replace
from table import Row

from bayplan.control.threads import FEW_NODES
from bayplan.engines.exact.attempts import SEARCH_ENDED
from bayplan.engines.exact.engine import ExactEngine
from bayplan.engines.exact.flow import crosses
from bayplan.engines.exact.question import MAX_STEPS
from bayplan.model.basis import Basis
from bayplan.model.decision import (
    Claim,
    Decision,
    DeviceHint,
    Interval,
    NodeWish,
    Outcome,
    Placement,
    QosClass,
    QosSource,
    Request,
)
from bayplan.model.ledger import Entry, Ledger
from bayplan.model.machine import Machine
from bayplan.model.policy import CpuAlignment, PlacementPolicy, TopologyPolicy
from bayplan.quantity import GIB, MIB
from bayplan.sets import CpuSet, NodeSet
from support.layouts import Layout
from support.machines import machine

MOST_MS: Final = 50.0
DRAWN: Final = 300
NODES: Final = (2, 4, 8, 8, 12, 14, 16, 24, 32, 64)
COUNTS: Final = (4, 8, 16, 30, 100, 200, 400)

Case = tuple[Machine, PlacementPolicy, Ledger, Request, Placement | None]
RESTRICTED: Final = PlacementPolicy(topology=TopologyPolicy.RESTRICTED)
SINGLE: Final = PlacementPolicy(topology=TopologyPolicy.SINGLE_NUMA_NODE)
BEST_EFFORT: Final = PlacementPolicy()


def asking(name: str, memory_bytes: int, cpus: int = 0) -> Request:
    interval = Interval(memory_bytes, memory_bytes, "limit")
    return Request(
        name, name, name, QosClass.GUARANTEED, QosSource.INFERRED, interval, memory_bytes, exclusive_cpus=cpus
    )


def promised(claims: Iterable[tuple[Iterable[int], int]], *, flexible: bool = False) -> Ledger:
    ledger = Ledger()
    for number, (nodes, memory_bytes) in enumerate(claims):
        mems = NodeSet(nodes)
        placement = Placement(mems, claim=Claim(mems, {"memory": memory_bytes}, flexible))
        decision = Decision(asking(f"c{number:04}", memory_bytes), Outcome.PLACED, placement)
        ledger = ledger.with_entry(Entry(decision))
    return ledger


def far_apart(nodes: int, draw: random.Random) -> dict[tuple[int, int], int]:
    """Distances without any order."""
    return {(a, b): draw.randint(11, 60) for a in range(nodes) for b in range(nodes) if a != b}


def sockets(nodes: int, each: int = 4) -> dict[tuple[int, int], int]:
    """12 within a socket, 21 between sockets."""
    pairs = ((a, b) for a in range(nodes) for b in range(nodes) if a != b)
    return {(a, b): 12 if a // each == b // each else 21 for a, b in pairs}


def random_sets(
    draw: random.Random, nodes: int, count: int, largest: int, share: float
) -> Iterator[tuple[list[int], int]]:
    """Promises on random sets, *share* of a machine of 1 GiB nodes in all."""
    for _ in range(count):
        chosen = draw.sample(range(nodes), draw.randint(1, largest))
        yield chosen, int(nodes * GIB * share / count * draw.uniform(0.5, 1.5))


def crossing(
    nodes: int, count: int, width: int, policy: PlacementPolicy, *, flexible: bool = False, largest: int = 4
) -> Callable[[random.Random], Case]:
    """Random promises on two thirds of the machine, and a request for *width* nodes."""

    def case(draw: random.Random) -> Case:
        hardware = machine(nodes, memory_bytes=GIB, distances=far_apart(nodes, draw))
        ledger = promised(random_sets(draw, nodes, count, largest, 0.66), flexible=flexible)
        return hardware, policy, ledger, asking("wide", width * GIB * 6 // 10), None

    return case


def cover(elements: int, sets: int, policy: PlacementPolicy = RESTRICTED) -> Callable[[random.Random], Case]:
    """Exact cover by sets of three: a node with 1 GiB left for each element, and a full node for each set,
    from which 1 GiB each could move to the nodes of its elements."""

    def case(draw: random.Random) -> Case:
        hardware = machine(elements + sets, memory_bytes=3 * GIB)
        claims = [([element], 2 * GIB) for element in range(elements)]
        for number in range(sets):
            three = draw.sample(range(elements), 3)
            claims += [([element, elements + number], GIB) for element in three]
        return hardware, policy, promised(claims), asking("wide", elements * GIB), None

    return case


def empty(nodes: int, width: int, policy: PlacementPolicy = BEST_EFFORT) -> Callable[[random.Random], Case]:
    """A machine without promises and without order in its distances."""

    def case(draw: random.Random) -> Case:
        hardware = machine(nodes, memory_bytes=GIB, distances=far_apart(nodes, draw))
        return hardware, policy, Ledger(), asking("wide", width * GIB - MIB), None

    return case


def in_sockets(nodes: int, width: int) -> Callable[[random.Random], Case]:
    """Sockets of four nodes, of each one full but for the last two, and a request for *width* nodes."""

    def case(draw: random.Random) -> Case:
        del draw
        hardware = machine(nodes, memory_bytes=GIB, distances=sockets(nodes))
        ledger = promised(([first], GIB) for first in range(0, nodes - 8, 4))
        return hardware, BEST_EFFORT, ledger, asking("wide", width * GIB), None

    return case


def growing(nodes: int, count: int) -> Callable[[random.Random], Case]:
    """A container on three nodes with CPUs there that has to have five."""

    def case(draw: random.Random) -> Case:
        hardware = machine(nodes, memory_bytes=GIB, distances=far_apart(nodes, draw))
        ledger = promised(random_sets(draw, nodes, count, 4, 0.66), flexible=True)
        own = hardware.cpus_of(NodeSet([1, 2]))
        before = Placement(NodeSet([1, 2, 3]), own, claim=Claim(NodeSet([1, 2, 3]), {"memory": GIB}))
        return hardware, BEST_EFFORT, ledger, asking("grows", 5 * GIB * 6 // 10, len(own)), before

    return case


def wishing(nodes: int, count: int) -> Callable[[random.Random], Case]:
    """A preferred set without room, then all the others."""

    def case(draw: random.Random) -> Case:
        hardware, policy, ledger, request, before = crossing(nodes, count, 5, RESTRICTED, flexible=True)(draw)
        wish = NodeWish(NodeSet(range(4)), required=False)
        return hardware, policy, ledger, replace(request, nodes=wish), before

    return case


def with_devices(nodes: int, count: int) -> Callable[[random.Random], Case]:
    """Nodes of unequal sizes without promises, and a request with devices that are close to a few of them."""

    def case(draw: random.Random) -> Case:
        plain = machine(nodes, memory_bytes=GIB)
        sizes = [replace(one, memory_bytes=draw.choice([GIB // 4, GIB, 3 * GIB])) for one in plain.nodes]
        hints = tuple(
            DeviceHint(f"device{number}", NodeSet(draw.sample(range(nodes), draw.randint(1, 4))))
            for number in range(count)
        )
        request = replace(asking("wide", nodes * GIB // 3, cpus=nodes), hints=hints)
        return Machine(tuple(sizes), plain.cpus), RESTRICTED, Ledger(), request, None

    return case


def in_pieces(nodes: int, each: int, share: float) -> Callable[[random.Random], Case]:
    """Nodes of which *share* is promised to *each* containers of their own, and a request for half of a node:
    three of them may have to go elsewhere for it."""

    def case(draw: random.Random) -> Case:
        hardware = machine(nodes, memory_bytes=GIB, distances=sockets(nodes))
        ledger = promised(
            ([node], int(GIB * share / each * draw.uniform(0.6, 1.3)))
            for node in range(nodes)
            for _ in range(each)
        )
        return hardware, SINGLE, ledger, asking("half", GIB // 2), None

    return case


def beside_cpus(layout: Layout, asked: int, options: CpuAlignment) -> Callable[[random.Random], Case]:
    """Cores with threads and L3 caches, 100 containers with CPUs of their own of the 160 that came, and a
    request for *asked* CPUs."""

    def case(draw: random.Random) -> Case:
        hardware, engine, ledger = layout.machine(), ExactEngine(), Ledger()
        policy = PlacementPolicy(reserved_cpus=CpuSet([0]), shared_cpus_minimum=0, cpu_alignment=options)
        for number in range(160):
            request = asking(f"c{number:04}", MIB, draw.choice([1, 2, 2, 3, 4, 6]))
            ledger = ledger.with_entry(Entry(engine.decide(Basis(hardware, policy, ledger), request)))
        for container_id in draw.sample(sorted(ledger.entries), 60):
            ledger = ledger.without(container_id)
        return hardware, policy, ledger, asking("new", 64 * MIB, asked), None

    return case


SIXTY_FOUR_NODES: Final = Layout(sockets=8, nodes=8, caches=2, cores=2)
"""512 CPUs, four to an L3 cache."""
WITH_CPUS: Final = {
    f"{name}, 100 with CPUs, {asked} more{said}": beside_cpus(layout, asked, options)
    for name, layout in (
        ("64 nodes", SIXTY_FOUR_NODES),
        ("2 nodes of 256 CPUs", Layout(sockets=2, caches=16)),
        ("8 nodes of 64 CPUs", Layout(sockets=2, nodes=4, caches=4)),
        ("16 nodes of 32 CPUs", Layout(sockets=2, nodes=8, caches=2)),
    )
    for asked in (1, 7, 24, 61, 101)
    for said, options in (
        ("", CpuAlignment()),
        (", across cores", CpuAlignment(distribute_cpus_across_cores=True)),
    )
}

CASES: Final[dict[str, Callable[[random.Random], Case]]] = {
    "8 nodes, 100 crossing, best-effort": crossing(8, 100, 3, BEST_EFFORT),
    "8 nodes, 300 flexible, restricted": crossing(8, 300, 4, RESTRICTED, flexible=True),
    "14 nodes, empty, 7": empty(14, 7),
    "14 nodes, 600 crossing, restricted": crossing(14, 600, 7, RESTRICTED, largest=8),
    "16 nodes, empty, 6": empty(16, 6),
    "16 nodes, 100 crossing, best-effort": crossing(16, 100, 6, BEST_EFFORT),
    "16 nodes, 300 flexible, restricted": crossing(16, 300, 6, RESTRICTED, flexible=True),
    "24 nodes, 300 crossing, restricted": crossing(24, 300, 7, RESTRICTED, largest=8),
    "32 nodes, 100 crossing, best-effort": crossing(32, 100, 8, BEST_EFFORT),
    "34 nodes, exact cover": cover(18, 16),
    "64 nodes, exact cover": cover(24, 40),
    "64 nodes, empty, 3": empty(64, 3),
    "64 nodes, empty, 12": empty(64, 12),
    "12 nodes, 12 devices, restricted": with_devices(12, 12),
    "64 nodes, 12 devices, restricted": with_devices(64, 12),
    "64 nodes in sockets, 7": in_sockets(64, 7),
    "64 nodes, 100 crossing, best-effort": crossing(64, 100, 6, BEST_EFFORT),
    "64 nodes, 100 crossing, restricted": crossing(64, 100, 20, RESTRICTED),
    "64 nodes, 100 flexible, restricted": crossing(64, 100, 20, RESTRICTED, flexible=True),
    "64 nodes, 1000 flexible, restricted": crossing(64, 1000, 20, RESTRICTED, flexible=True),
    "64 nodes, 100 flexible, single-numa-node": crossing(64, 100, 1, SINGLE, flexible=True),
    "64 nodes, 100 flexible, a wish": wishing(64, 100),
    "64 nodes, 100 crossing, a resize": growing(64, 100),
    "16 nodes, 100 crossing, a resize": growing(16, 100),
    "8 nodes in pieces, 20 on each": in_pieces(8, 20, 0.75),
    "16 nodes in pieces, 16 on each": in_pieces(16, 16, 0.75),
    "1024 nodes, empty, 24": empty(1024, 24),
}

BEYOND: Final = {"64 nodes, 1000 flexible, restricted", "1024 nodes, empty, 24"}


def drawn(seed: int) -> Case:
    """A machine in use and a request at random: wide pods on few containers and on many, with exclusive CPUs
    and without."""
    draw = random.Random(seed)
    nodes, count = draw.choice(NODES), draw.choice(COUNTS)
    distances = draw.choice([sockets(nodes), far_apart(nodes, draw)])
    hardware = machine(nodes, cpus_per_node=8, memory_bytes=GIB, distances=distances)
    largest, share = min(nodes, draw.choice([2, 3, 4, 6, 8])), draw.choice([0.5, 0.66, 0.8, 0.97])
    ledger = promised(random_sets(draw, nodes, count, largest, share), flexible=draw.random() < 0.5)
    width, cpus = draw.randint(1, nodes // 2), draw.choice([0, 0, 2, 8, 24])
    policy = draw.choice([RESTRICTED, BEST_EFFORT, SINGLE])
    return hardware, policy, ledger, asking("wide", width * GIB * 9 // 10, cpus), None


def rows() -> Iterator[Row]:
    """Decisions of all cases that a machine can have, where the event loop waits for them and where not."""
    taken_ms: dict[bool, list[float]] = {True: [], False: []}
    named = [case(random.Random(0)) for name, case in CASES.items() if name not in BEYOND]
    for case in (*named, *map(drawn, range(DRAWN))):
        taken_ms[len(case[0].nodes) <= FEW_NODES].append(decide(case).decision_ms)
    yield Row(f"a decision on up to {FEW_NODES} nodes", taken_ms[True], most=MOST_MS)
    yield Row("a decision on up to 64 nodes, in its thread", taken_ms[False], most=MOST_MS)
    cpus_ms = [decide(case(random.Random(0))).decision_ms for case in WITH_CPUS.values()]
    yield Row("CPUs of its own on 512, beside 100 containers", cpus_ms, most=MOST_MS)


class Taken(Struct):
    """What it took to follow the promises, once after a start, and to decide; and what was decided."""

    ledger_ms: float = 0.0
    decision_ms: float = 0.0
    given_up: int = 0
    refused: int = 0
    crossed: int = 0
    nodes: int = 0
    distance: int = 0

    def worse(self, other: "Taken") -> "Taken":
        """The longer times, and the sums of the rest."""
        first, second = astuple(self), astuple(other)
        sums = map(operator.add, first[2:], second[2:])
        return Taken(*map(max, first[:2], second[:2]), *sums)


def decide(case: Case, steps: int = MAX_STEPS) -> Taken:
    """Decide a *case* by an engine that knows the ledger from a decision about 1 MiB."""
    hardware, policy, ledger, request, before = case
    engine = ExactEngine(max_steps=steps)
    basis = Basis(hardware, policy, ledger)
    _, ledger_ms = timed(partial(engine.decide, basis, asking("small", MIB)))
    decision, decision_ms = timed(partial(engine.decide, basis, request, before))
    claim = decision.placement.claim
    nodes = claim.nodes if claim is not None else NodeSet()
    return Taken(
        ledger_ms,
        decision_ms,
        any(reason.code == SEARCH_ENDED for reason in decision.reasons),
        decision.outcome is Outcome.REFUSED,
        sum(crosses(nodes.mask, other.mask) for other in ledger.claimed_bytes),
        len(nodes),
        hardware.total_distance(nodes),
    )


def timed(decision: Callable[[], Decision]) -> tuple[Decision, float]:
    """A decision, and the milliseconds of CPU that it took."""
    begun = time.thread_time()
    return decision(), (time.thread_time() - begun) * 1000


def main(seeds: int = 3, steps: int = MAX_STEPS) -> None:
    """Print the table."""
    every = {**CASES, **WITH_CPUS}
    width = max(map(len, every))
    print(
        f"{'':{width}} {'ledger':>9} {'decision':>9} {'gave up':>8} {'refused':>8}"
        f" {'crossed':>8} {'nodes':>6} {'distance':>9}"
    )
    for name, case in every.items():
        taken = reduce(Taken.worse, (decide(case(random.Random(seed)), steps) for seed in range(seeds)))
        print(
            f"{name:{width}} {taken.ledger_ms:6.0f} ms {taken.decision_ms:6.0f} ms"
            f" {taken.given_up:8} {taken.refused:8} {taken.crossed:8} {taken.nodes:6} {taken.distance:9}",
            flush=True,
        )


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))
