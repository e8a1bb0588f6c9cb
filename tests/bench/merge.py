"""How long one merge takes: ``python tests/bench/merge.py [--repeat N]``.

Machines of 2 to 64 nodes, 2 to 5 providers, described as the managers describe them (regions, and for memory
also single nodes in use). Three states of each machine: idle, where a preferred answer exists; mixed, half of
it used at random; and torn, where no set of nodes is preferred by all, which is the harder search. Prints the
median and the worst of the states' machines, in microseconds, with and without prefer-closest-numa-nodes.
"""

import argparse
import random
import statistics
import time
from collections.abc import Iterator, Sequence

from table import Row

from bayplan.engines.kubelet.hint_merge import merge, narrowest_size
from bayplan.engines.kubelet.topology_hints import (
    Distances,
    Hint,
    HintSet,
    NodeAmounts,
    OfSize,
    ProviderHints,
    Region,
    flatten,
)
from bayplan.sets import NodeSet

SIZES = (2, 4, 8, 16, 32, 64)
PROVIDERS = (2, 3, 4, 5)
STATES = ("idle", "mixed", "torn")
MACHINES = 12
CPUS, GIB, DEVICES = 16, 64, 4


def distances(nodes: int) -> Distances:
    """Sockets of four nodes: 10 at home, 12 in the socket, 20 to the other sockets of a half, 32 beyond."""

    def between(a: int, b: int) -> int:
        if a == b:
            return 10
        if a // 4 == b // 4:
            return 12
        return 20 if (a < nodes // 2) == (b < nodes // 2) else 32

    return Distances({a: {b: between(a, b) for b in range(nodes)} for a in range(nodes)})


def provider(name: str, free: dict[int, int], whole: dict[int, int], needed: int) -> ProviderHints:
    """What a manager with additive capacity answers: preferred is the size that the empty machine allows."""
    ground = NodeSet(whole)
    best = narrowest_size(Region(ground, (NodeAmounts(whole, needed),), OfSize(0))) or len(whole)
    region = Region(ground, (NodeAmounts(free, needed),), OfSize(best))
    return {name: HintSet(regions=(region,))}


def memory(free: dict[int, int], whole: dict[int, int], needed: int) -> ProviderHints:
    """Single nodes that are in use stand alone, unused ones may be combined."""
    unused = NodeSet(node for node in whole if free[node] == whole[node])
    used = [node for node in whole if node not in unused and free[node] >= needed]
    best = narrowest_size(Region(NodeSet(whole), (NodeAmounts(whole, needed),), OfSize(0))) or len(whole)
    region = Region(unused, (NodeAmounts(free, needed),), OfSize(best))
    hints = tuple(Hint(NodeSet([node]), preferred=best == 1) for node in used)
    return {"memory": HintSet(hints, (region,))}


def machine(nodes: int, providers: int, state: str, rng: random.Random) -> list[ProviderHints]:
    """The answers of all providers on one machine."""
    wanted = rng.choice((1, 1, 2, 3)) if nodes > 2 else 1
    answers = []
    for number in range(providers):
        unit = GIB if number == 1 else CPUS if number == 0 else DEVICES
        whole = dict.fromkeys(range(nodes), unit)
        needed = unit * (wanted - 1) + unit // 2
        free = dict(whole)
        for node in whole:
            if state == "mixed" and rng.random() < 0.5:
                free[node] = rng.randint(0, unit)
            if state == "torn" and node % providers != number:
                free[node] = rng.randint(0, max(unit // 2 - 1, 0))
        answers.append(
            memory(free, whole, needed) if number == 1 else provider(f"resource{number}", free, whole, needed)
        )
    return answers


def measure(
    answers: Sequence[ProviderHints], everything: NodeSet, order: Distances | None, repeat: int
) -> float:
    """The fastest of some merges, in microseconds."""
    best = float("inf")
    for _ in range(repeat):
        start = time.perf_counter()
        merge(flatten(answers), everything, order)
        best = min(best, time.perf_counter() - start)
    return best * 1e6


def rows() -> Iterator[Row]:
    """The merges that most machines with several nodes have."""
    nodes, providers = 4, 3
    everything, times_us = NodeSet(range(nodes)), []
    for state in STATES:
        rng = random.Random(f"{nodes} {providers} {state}")
        machines = [machine(nodes, providers, state, rng) for _ in range(MACHINES)]
        times_us += [measure(answers, everything, None, 3) for answers in machines]
    yield Row(f"kubelet's merge, {nodes} nodes, {providers} providers", times_us, most=60.0, unit="us")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeat", type=int, default=3, help="merges per machine; the fastest counts")
    repeat = parser.parse_args().repeat
    print(
        f"{'nodes':>5} {'providers':>9} {'state':>6} {'narrowest: median':>18} {'worst':>9}"
        f" {'closest: median':>16} {'worst':>9}  [us]"
    )
    for nodes in SIZES:
        near = distances(nodes)
        for providers in PROVIDERS:
            for state in STATES:
                rng = random.Random(f"{nodes} {providers} {state}")
                machines = [machine(nodes, providers, state, rng) for _ in range(MACHINES)]
                everything = NodeSet(range(nodes))
                columns = []
                for order in (None, near):
                    times = [measure(answers, everything, order, repeat) for answers in machines]
                    columns.append(f"{statistics.median(times):18.0f} {max(times):9.0f}")
                print(f"{nodes:5} {providers:9} {state:>6} {' '.join(columns)}")


if __name__ == "__main__":
    main()
