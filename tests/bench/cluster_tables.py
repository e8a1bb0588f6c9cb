"""Schedulers times engines on clusters of two kinds: ``python tests/bench/cluster_tables.py --trace F``.

The clusters have 100, 1,000 and 5,000 servers of two sockets with 64 cores and 768 GiB each, once with one
NUMA node for each socket and once with four (NPS1 and NPS4 of an EPYC). Each is played the same part of the
trace with every scheduler and engine, kubelet's with two policies. Results are kept in a directory: a file
for each run, ``results.csv``, and ``index.html`` with tables and plots. What is there already is not run
again.

libmem, the memory allocator of nri-plugins, runs in a process of its own (libmem/). It knows memory alone:
pods have the CPUs of their nodes, shared, and these are counted by the scheduler only. Its decision is made a
function of the ledger by telling it everything that the node has, each time.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).parents[1] / "e2e"))

from testbed.gobuild import compiled

from bayplan import __version__
from bayplan.engines.exact.claiming import claim_in_full, claimed_amounts
from bayplan.engines.interface import Engine, EngineKind
from bayplan.model.basis import Basis
from bayplan.model.decision import Claim, Decision, Move, Outcome, Placement, QosClass, Reason, Request
from bayplan.model.ledger import Ledger
from bayplan.model.machine import MEMORY, Machine
from bayplan.sets import CpuSet, NodeSet
from bayplan.simulate.cluster_batch import Batch, simulate_cluster

SIZES: Final = (100, 1_000, 5_000)
SCHEDULERS: Final = ("least-allocated", "nrt-least-numa", "dra", "ask")
POLICIES: Final = ("best-effort", "restricted")
LIBMEM: Final = "libmem"
KUBELET: Final = {"cpuManagerPolicy": ["static"], "memoryManagerPolicy": ["Static"]}
CLUSTER: Final = """
[[nodes]]
name = "numa-{numa_nodes}"
count = {count}
resources = {{ gpu = 16, rdma = 400 }}
[nodes.machine]
threadsPerCore = 2
nodesPerSocket = {per_socket}
distances = {{ socket = 12, remote = 32 }}
[[nodes.machine.nodes]]
count = {numa_nodes}
cpus = {cpus}
memory = "{memory_gib}Gi"
"""


class LibmemEngine:
    """nri-plugins' allocator as an engine of the simulator."""

    name = LIBMEM
    kind = EngineKind.of(LIBMEM)

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._process: subprocess.Popen[str] | None = None

    def _nodes(self, basis: Basis) -> list[dict[str, object]]:
        """Without what is reserved, as other engines have them."""
        machine, allocatable = self._machine, basis.allocatable.bytes_by_node
        return [
            {
                "id": node.id,
                "bytes": allocatable[node.id].get(MEMORY, 0),
                "cpus": str(node.cpus),
                "distances": [machine.distance(node.id, other) for other in machine.node_ids],
            }
            for node in machine.nodes
        ]

    def separate_copy(self) -> Engine:
        """See `Engine.separate_copy`."""
        return LibmemEngine(self._machine)

    def decide(self, basis: Basis, request: Request, current: Placement | None = None) -> Decision:
        """See `Engine.decide`."""
        size_bytes = claimed_amounts(request).get(MEMORY, 0)
        if request.qos is not QosClass.GUARANTEED or not size_bytes:
            return Decision(request, Outcome.PLACED)
        held = {
            container_id: entry.decision.placement.claimed
            for container_id, entry in basis.ledger.entries.items()
            if entry.decision.placement.claim is not None
        }
        asked = claim_in_full(request, self._affinity(held, size_bytes))
        steps: list[dict[str, object]] = [{"nodes": self._nodes(basis)}]
        steps += [_allocation(container_id, claim) for container_id, claim in held.items()]
        steps.append(_allocation(request.container_id, asked))
        *before, answer = self._told(steps)
        for (container_id, claim), said in zip(held.items(), before[1:], strict=True):
            assert said.get("zones") == {container_id: str(claim.nodes)}, (said, claim)
        if "error" in answer:
            return Decision(request, Outcome.REFUSED, reasons=(Reason(LIBMEM, str(answer["error"])),))
        zones = {name: NodeSet.parse(zone) for name, zone in answer["zones"].items()}
        nodes = zones.pop(request.container_id)
        moves = tuple(Move(name, name, held[name].nodes, after) for name, after in zones.items())
        return Decision(
            request,
            Outcome.PLACED,
            Placement(
                nodes,
                pool_cpus=self._machine.cpus_of(nodes),
                claim=claim_in_full(request, nodes, flexible=True),
            ),
            moves=moves,
        )

    def _affinity(self, held: Mapping[str, Claim], size_bytes: int) -> NodeSet:
        """Where it is told to begin: the node with the least promised on it, and the nearest others, as many
        as the size takes, as nri-plugins' policies do."""
        machine = self._machine
        load = dict.fromkeys(machine.node_ids, 0.0)
        for claim in held.values():
            for node in claim.nodes:
                load[node] += claim.amounts_bytes.get(MEMORY, 0) / len(claim.nodes)
        home = min(load, key=lambda node: (load[node], node))
        near = sorted(load, key=lambda node: (machine.distance(home, node), load[node], node))
        return NodeSet(near[: -(-size_bytes // machine.nodes[0].memory_bytes)])

    def _told(self, steps: list[dict[str, object]]) -> list[dict[str, Mapping[str, str]]]:
        process = self._process
        if process is None:
            program = compiled(Path(__file__).parent / "libmem", "libmem-replay")
            process = self._process = subprocess.Popen(
                [program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
        process.stdin.write("".join(json.dumps(step) + "\n" for step in steps))
        process.stdin.flush()
        return [json.loads(process.stdout.readline()) for _ in steps]

    def adopt(self, basis: Basis, request: Request, mems: NodeSet | None) -> Placement:
        """See `Engine.adopt`. Nothing is ever found running in a simulation."""
        raise NotImplementedError

    def moves_back(self, basis: Basis, staying: Collection[str] = ()) -> tuple[Move, ...]:
        """See `Engine.moves_back`: libmem leaves who became wider as it is."""
        return ()

    def widened_placements(self, basis: Basis) -> Mapping[str, Placement]:
        """See `Engine.widened_placements`."""
        return {}

    def completed_claims(self, basis: Basis) -> Mapping[str, Claim]:
        """See `Engine.completed_claims`."""
        return {}

    def resized_pools(self, basis: Basis) -> Mapping[str, CpuSet]:
        """See `Engine.resized_pools`."""
        return {}

    def converted(self, basis: Basis) -> Ledger:
        """See `Engine.converted`."""
        return basis.ledger


def _allocation(container_id: str, claim: Claim) -> dict[str, object]:
    return {
        "allocate": container_id, "bytes": claim.amounts_bytes[MEMORY], "affinity": str(claim.nodes)
    }  # fmt: skip


def batches(options: argparse.Namespace) -> Iterator[Batch]:
    """Small clusters first; kubelet's engine last, as its refusals take longest."""
    directory: Path = options.results
    version = f"{__version__}, commit {options.commit or _commit()}"
    for count in options.nodes:
        for numa_nodes in options.numa_nodes:
            cluster = directory / f"cluster-{count}-{numa_nodes}.toml"
            cluster.write_text(
                CLUSTER.format(
                    numa_nodes=numa_nodes, count=count, per_socket=numa_nodes // 2,
                    cpus=256 // numa_nodes, memory_gib=1536 // numa_nodes,
                )
            )  # fmt: skip
            for policy, engines in (
                ("best-effort", ("exact", LIBMEM)), ("restricted", ("exact",)),
                ("best-effort", ("kubelet",)), ("restricted", ("kubelet",)),
            ):  # fmt: skip
                chosen = tuple(one for one in engines if one in options.engines)
                schedulers = [one for one in options.schedulers if one != "dra" or "exact" in chosen]
                if "dra" in schedulers and policy != "best-effort":
                    schedulers.remove("dra")
                if chosen:
                    yield Batch(
                        cluster, options.trace, options.trace_format, tuple(options.column),
                        tuple(schedulers), chosen,
                        keys={"topologyManagerPolicy": [policy]}, keys_of={"kubelet": KUBELET},
                        load=options.load, seed=options.seed, results=directory, processes=options.jobs,
                        makers={LIBMEM: LibmemEngine}, version=version,
                    )  # fmt: skip


def _commit() -> str:
    """That of the working tree, marked if something in it differs from it."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--exclude=*"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--trace", type=Path, required=True, metavar="FILE")
    parser.add_argument("--trace-format", default="", metavar="NAME")
    parser.add_argument("--column", action="append", default=[], metavar="FIELD=COLUMN[:UNIT]")
    parser.add_argument("--results", type=Path, default=Path("build/cluster-tables"), metavar="DIRECTORY")
    parser.add_argument("--nodes", type=int, nargs="+", default=SIZES, metavar="N")
    parser.add_argument("--numa-nodes", type=int, nargs="+", default=(2, 8), choices=(2, 4, 8))
    parser.add_argument("--schedulers", nargs="+", default=SCHEDULERS, choices=SCHEDULERS)
    parser.add_argument("--engines", nargs="+", default=("exact", LIBMEM, "kubelet"))
    parser.add_argument("--load", type=float, default=0.85)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=0)
    parser.add_argument("--commit", default="", help="of a tree that is no repository")
    options = parser.parse_args()
    options.results.mkdir(parents=True, exist_ok=True)
    for batch in batches(options):
        simulate_cluster(batch)
        print(f"{batch.cluster.stem}, {', '.join(batch.engines)}, {batch.keys['topologyManagerPolicy'][0]}")
    print(options.results / "index.html")


if __name__ == "__main__":
    main()
