"""The same pods on three allocators: ``python tests/bench/replay.py [--seeds N] [--events N] [--trace F]``.

Random traces of Guaranteed pods that come and go on machines of 2 to 8 nodes of 64 GiB, never more than 95 %
of the machine at once: all of it would fit somehow. Played on the `exact` engine, on kubelet's rules (the
engine `kubelet`), both with two policies, and on libmem, the memory allocator of nri-plugins, through the Go
program in libmem/. Prints per machine and allocator: pods and memory accepted, nodes per pod, the sum of
distances, other containers moved, and hidden overcommit: moments (after an event) at which some set of nodes
is promised more than it has, by brute force over all sets, and the worst excess.

``exact, restricted + plan`` has every plan of moves carried out by an operator, ``+ move`` by the engine
itself, which relocates each container once only; ``moved`` is the memory that this moves.
``keep node`` leaves room for requests like those of late, ``unlearned`` knows nothing of these.

F is a trace of a cluster as Alibaba publishes them (clusterdata, GPU traces of 2023 and 2025): its pods
come and go in their order on one machine of 8 nodes of 128 GiB and 24 CPUs, of which one is reserved. Who
does not fit by the sums of CPUs and memory is passed over, as if another machine of the cluster took it.

libmem must be told where to begin: at the least promised node and as many of its neighbours as the size
takes, as nri-plugins' policies do. It moves containers for others; so may `exact`.
"""

import argparse
import csv
import json
import random
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

sys.path.insert(0, str(Path(__file__).parents[1] / "e2e"))

from testbed.errors import TestBedError
from testbed.gobuild import compiled

from bayplan.engines.exact.engine import ExactEngine
from bayplan.engines.interface import Engine
from bayplan.engines.kubelet.engine import KubeletEngine
from bayplan.model.basis import SeenRequests
from bayplan.model.decision import Outcome
from bayplan.model.ledger import Ledger
from bayplan.model.machine import Cpu, Machine, Node
from bayplan.model.policy import Defragment, KeepWhole, PlacementPolicy, TopologyPolicy
from bayplan.quantity import GIB, MIB
from bayplan.sets import CpuSet, NodeSet
from bayplan.simulate.cluster_run import worst_excess_bytes
from bayplan.simulate.manifest import plan_manifest, sizes_manifest
from bayplan.simulate.rehearsal import Rehearsal
from support.relocations import carried_out

SIZES = (2, 4, 8)
NODE_BYTES, CPUS = 64 * GIB, 8
OF_A_TRACE = (8, 24, 128 * GIB)
MOST = 0.95
LIBMEM = Path(__file__).parent / "libmem"


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod of a trace."""

    name: str
    size_bytes: int
    milli_cpus: int = 500


Event = tuple[str, Pod]
"""``come`` or ``go``, and who."""


def machine(nodes: int, cpus: int = CPUS, node_bytes: int = NODE_BYTES) -> Machine:
    """Two nodes to a socket: 10 at home, 12 in the socket, 21 in the neighbouring one, 31 beyond."""

    def distance(a: int, b: int) -> int:
        if a == b:
            return 10
        return 12 if a // 2 == b // 2 else 21 if a // 4 == b // 4 else 31

    return Machine(
        tuple(
            Node(
                node,
                CpuSet(range(node * cpus, (node + 1) * cpus)),
                node_bytes,
                distances={other: distance(node, other) for other in range(nodes)},
            )
            for node in range(nodes)
        ),
        tuple(
            Cpu(cpu, cpu, cpu // cpus // 2, cpu // cpus, cpu // cpus * cpus) for cpu in range(nodes * cpus)
        ),
    )


def trace(nodes: int, events: int, seed: int) -> list[Event]:
    """Pods of 1 to 48 GiB, every sixth of up to 2.3 nodes; one leaves when the next does not fit in all."""
    rng = random.Random(f"{nodes} {seed}")
    found: list[Event] = []
    alive: list[Pod] = []
    while len(found) < events:
        large = rng.random() < 1 / 6
        size_bytes = rng.randint(1, min(147, 64 * nodes * 3 // 4) if large else 48) * GIB
        while alive and sum(pod.size_bytes for pod in alive) + size_bytes > MOST * nodes * NODE_BYTES:
            found.append(("go", alive.pop(rng.randrange(len(alive)))))
        pod = Pod(f"p{len(found)}", size_bytes)
        alive.append(pod)
        found.append(("come", pod))
        if rng.random() < 0.3:
            found.append(("go", alive.pop(rng.randrange(len(alive)))))
    return found


def public_trace(path: Path, hardware: Machine, events: int) -> list[Event]:
    """The first *events* of a trace of a cluster, on *hardware*, by the pods that came and went within it."""
    moments: list[tuple[float, bool, Pod]] = []
    with path.open(newline="") as file:
        for number, row in enumerate(csv.DictReader(file)):
            if "memory_mib" in row:
                size_bytes, milli = int(row["memory_mib"]) * MIB, int(row["cpu_milli"])
            else:
                size_bytes, milli = int(float(row["memory_limit"]) * GIB), int(float(row["cpu_limit"]) * 1000)
            if not (size_bytes and milli and row["creation_time"] and row["deletion_time"]):
                continue
            pod = Pod(f"p{number}", size_bytes, milli)
            moments.append((float(row["creation_time"]), True, pod))
            moments.append((float(row["deletion_time"]), False, pod))
    most_bytes = sum(node.memory_bytes for node in hardware.nodes) * MOST
    most_milli = (len(hardware.cpus) - 1) * 1000
    found, alive = list[Event](), dict[str, Pod]()
    for _, comes, pod in sorted(moments, key=lambda one: one[:2]):
        if comes:
            size_bytes = pod.size_bytes + sum(one.size_bytes for one in alive.values())
            milli = pod.milli_cpus + sum(one.milli_cpus for one in alive.values())
            if size_bytes <= most_bytes and milli <= most_milli:
                alive[pod.name] = pod
                found.append(("come", pod))
        elif alive.pop(pod.name, None) is not None:
            found.append(("go", pod))
        if len(found) >= events:
            break
    return found


class Allocator(Protocol):
    """What is compared. ``sets`` has the nodes and bytes of everybody who is in."""

    name: str
    sets: Mapping[str, tuple[NodeSet, int]]
    moves: int
    moved_bytes: int
    degraded: int

    def come(self, pod: Pod) -> bool:
        """Let a pod in; whether it was."""

    def go(self, pod: Pod) -> None:
        """A pod that is in leaves."""


class Ours:
    """An engine of ours, decided and booked as the daemon does it; plans are carried out for `PLAN` too."""

    def __init__(
        self,
        name: str,
        hardware: Machine,
        engine: Engine,
        policy: TopologyPolicy,
        *,
        defragment: Defragment = Defragment.OFF,
        keep_whole: KeepWhole = KeepWhole.CACHE,
        learning: bool = True,
    ) -> None:
        nodes = ", keep node" if keep_whole is KeepWhole.NODE else ""
        nodes += "" if learning else ", unlearned"
        moving = "" if defragment is Defragment.OFF else f" + {defragment.value}"
        self.name = f"{name}, {policy.value}{nodes}{moving}"
        placing = PlacementPolicy(topology=policy, defragment=defragment, keep_whole=keep_whole)
        self.rehearsal = Rehearsal(hardware, placing, engine, requests=SeenRequests() if learning else None)
        self.moves = self.moved_bytes = self.degraded = 0
        self._by_hand = defragment is Defragment.PLAN

    @property
    def sets(self) -> Mapping[str, tuple[NodeSet, int]]:
        return dict(promises(self.rehearsal.ledger, self.rehearsal.machine))

    def come(self, pod: Pod) -> bool:
        manifest = sizes_manifest(pod.name, memory=str(pod.size_bytes), cpus=f"{pod.milli_cpus}m")
        (planned,) = plan_manifest(manifest, self.rehearsal.machine)
        (decision,) = self.rehearsal.admit(planned)
        plan = decision.plan
        if plan is not None and self._by_hand:
            self.go(pod)
            self.rehearsal.ledger = carried_out(self.rehearsal.ledger, plan)
            self.moves += len(plan.relocations)
            self.moved_bytes += plan.moved_bytes
            (decision,) = self.rehearsal.admit(planned)
        self.moves += len(decision.moves)
        self.moved_bytes += sum(move.moved_bytes for move in decision.moves if move.relocates)
        self.degraded += decision.outcome is Outcome.DEGRADED
        return decision.outcome is not Outcome.REFUSED

    def go(self, pod: Pod) -> None:
        self.rehearsal.release(f"default/{pod.name}/main")


class Libmem:
    """nri-plugins' allocator in its own process."""

    def __init__(self, hardware: Machine, program: Path) -> None:
        self.name = "libmem"
        self.machine = hardware
        self.moves = self.moved_bytes = self.degraded = 0
        self.sets: dict[str, tuple[NodeSet, int]] = {}
        self._process = subprocess.Popen(
            [program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        nodes = [
            {
                "id": node.id,
                "bytes": node.memory_bytes,
                "cpus": str(node.cpus),
                "distances": [hardware.distance(node.id, other) for other in hardware.node_ids],
            }
            for node in hardware.nodes
        ]
        assert "error" not in self._do(nodes=nodes)

    def _do(self, **step: object) -> dict:
        self._process.stdin.write(json.dumps(step) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def come(self, pod: Pod) -> bool:
        said = self._do(allocate=pod.name, bytes=pod.size_bytes, affinity=str(self._affinity(pod)))
        if "error" in said:
            return False
        for name, zone in said["zones"].items():
            size_bytes = pod.size_bytes if name == pod.name else self.sets[name][1]
            self.moves += name != pod.name
            self.sets[name] = (NodeSet.parse(zone), size_bytes)
        return True

    def go(self, pod: Pod) -> None:
        assert "error" not in self._do(release=pod.name)
        del self.sets[pod.name]

    def _affinity(self, pod: Pod) -> NodeSet:
        """The node with the least promised on it, and the nearest others, as many as the size takes."""
        load = dict.fromkeys(self.machine.node_ids, 0.0)
        for nodes, size_bytes in self.sets.values():
            for node in nodes:
                load[node] += size_bytes / len(nodes)
        home = min(load, key=lambda node: (load[node], node))
        near = sorted(load, key=lambda node: (self.machine.distance(home, node), load[node], node))
        return NodeSet(near[: -(-pod.size_bytes // self.machine.nodes[0].memory_bytes)])


def promises(ledger: Ledger, hardware: Machine) -> Iterator[tuple[str, tuple[NodeSet, int]]]:
    """Who was promised how much, on which nodes."""
    for entry in ledger.entries.values():
        placement, size_bytes = entry.decision.placement, entry.decision.request.memory.high_bytes
        nodes = placement.claim.nodes if placement.claim is not None else placement.mems
        yield entry.decision.request.name.split("/")[1], (nodes or hardware.memory_nodes, size_bytes)


@dataclass(slots=True)
class Score:
    """What one allocator did on all traces of a machine."""

    pods: int = 0
    accepted: int = 0
    offered_bytes: int = 0
    accepted_bytes: int = 0
    nodes: int = 0
    distance: int = 0
    moves: int = 0
    moved_bytes: int = 0
    degraded: int = 0
    moments: int = 0
    hidden_moments: int = 0
    worst_bytes: int = 0
    names: list[str] = field(default_factory=list)

    def play(self, hardware: Machine, allocator: Allocator, events: list[Event]) -> None:
        has_bytes = {node.id: node.memory_bytes for node in hardware.nodes}
        for kind, pod in events:
            if kind == "go":
                if pod.name in allocator.sets:
                    allocator.go(pod)
            else:
                self.pods += 1
                self.offered_bytes += pod.size_bytes
                if allocator.come(pod):
                    where, _ = allocator.sets[pod.name]
                    self.accepted += 1
                    self.accepted_bytes += pod.size_bytes
                    self.nodes += len(where)
                    self.distance += hardware.total_distance(where)
            excess = worst_excess_bytes(has_bytes, allocator.sets.values())
            self.moments += 1
            self.hidden_moments += excess > 0
            self.worst_bytes = max(self.worst_bytes, excess)
        self.moves += allocator.moves
        self.moved_bytes += allocator.moved_bytes
        self.degraded += allocator.degraded

    def row(self, nodes: int, name: str) -> str:
        pods, work = self.accepted / self.pods, self.accepted_bytes / self.offered_bytes
        return (
            f"{nodes:5} {name:36} {pods:8.1%} {work:8.1%} {self.degraded:8}"
            f" {self.nodes / max(1, self.accepted):6.2f} {self.distance:9} {self.moves:6}"
            f" {self.moved_bytes / GIB:6.0f} GiB {self.hidden_moments:7} of {self.moments}"
            f" {self.worst_bytes / GIB:6.0f} GiB"
        )


def allocators(hardware: Machine, program: Path | None) -> Iterator[Allocator]:
    for policy in (TopologyPolicy.BEST_EFFORT, TopologyPolicy.RESTRICTED):
        yield Ours("exact", hardware, ExactEngine(), policy)
    off, plan, move = Defragment.OFF, Defragment.PLAN, Defragment.MOVE
    for defragment, learning in ((off, False), (off, True), (plan, True), (move, True)):
        yield Ours(
            "exact",
            hardware,
            ExactEngine(),
            TopologyPolicy.RESTRICTED,
            defragment=defragment,
            keep_whole=KeepWhole.NODE,
            learning=learning,
        )
    for defragment in (plan, move):
        yield Ours("exact", hardware, ExactEngine(), TopologyPolicy.RESTRICTED, defragment=defragment)
    for policy in (TopologyPolicy.BEST_EFFORT, TopologyPolicy.RESTRICTED):
        yield Ours("kubelet", hardware, KubeletEngine(), policy)
    if program is not None:
        libmem = Libmem(hardware, program)
        try:
            yield libmem
        finally:
            libmem.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=10, help="traces per machine")
    parser.add_argument("--events", type=int, default=150, help="arrivals and departures per trace")
    parser.add_argument("--trace", type=Path, action="append", default=[], help="a public trace instead")
    options = parser.parse_args()
    try:
        program = compiled(LIBMEM, "libmem-replay")
    except TestBedError as error:
        program = None
        print(f"Without libmem: {error}")
    print(
        f"{'nodes':>5} {'allocator':36} {'pods':>8} {'memory':>8} {'degraded':>8} {'width':>6}"
        f" {'distance':>9} {'moves':>6} {'moved':>10} {'hidden overcommit':>17} {'worst':>10}"
    )
    for path in options.trace:
        hardware = machine(*OF_A_TRACE)
        print(path.name)
        compare(hardware, program, [public_trace(path, hardware, options.events)])
    for nodes in () if options.trace else SIZES:
        traces = [trace(nodes, options.events, seed) for seed in range(options.seeds)]
        compare(machine(nodes), program, traces)


def compare(hardware: Machine, program: Path | None, traces: Iterable[list[Event]]) -> None:
    """Play *traces* on all allocators, and print a row for each."""
    scores = dict[str, Score]()
    for events in traces:
        for allocator in allocators(hardware, program):
            scores.setdefault(allocator.name, Score()).play(hardware, allocator, events)
    for name, score in scores.items():
        print(score.row(len(hardware.nodes), name), flush=True)


if __name__ == "__main__":
    main()
