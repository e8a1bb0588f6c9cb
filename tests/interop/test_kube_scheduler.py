"""The simulated scheduler beside kube-scheduler itself: same nodes, same pods, same order.

kube-scheduler takes one of the best nodes at random, so that its choice is followed: what is compared is that
the node which it chose is one of the best by our scores, and that none fits where it finds none.
"""

import json
import random
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from testbed.gobuild import compiled

from bayplan.model.decision import QosClass
from bayplan.quantity import GIB, MIB
from bayplan.simulate.cluster_nodes import ClusterNode, NodeKind, software_of
from bayplan.simulate.cluster_schedulers import Scheduler
from bayplan.simulate.machine_file import described_machine
from bayplan.simulate.pod_trace import TimedPod

pytestmark = [pytest.mark.cluster, pytest.mark.matrix]

SOURCE = Path(__file__).parent / "kubescheduler"
STRATEGIES = {"LeastAllocated": "least-allocated", "MostAllocated": "most-allocated"}
EVENTS = 1000


class KubeScheduler:
    """The program in kubescheduler/."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def tell(self, **said: Any) -> None:
        """One line, without an answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(said) + "\n")
        self._process.stdin.flush()

    def choose(self, pod: TimedPod) -> str:
        """The name of the node that *pod* is bound to; empty if there is none."""
        self.tell(name=pod.name, milli=pod.milli_cpus, bytes=pod.memory_bytes)
        assert self._process.stdout is not None
        answer: dict[str, str] = json.loads(self._process.stdout.readline())
        return answer["node"]


@contextmanager
def kube_scheduler(strategy: str, nodes: Sequence[ClusterNode]) -> Iterator[KubeScheduler]:
    program = compiled(SOURCE, "kubescheduler")
    with subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        found = KubeScheduler(process)
        described = [
            {"name": one.name, "milli": one.free_milli, "bytes": one.free_bytes, "pods": one.free_pods}
            for one in nodes
        ]
        found.tell(strategy=strategy, nodes=described)
        try:
            yield found
        finally:
            assert process.stdin is not None
            process.stdin.close()


def kinds() -> list[NodeKind]:
    """200 nodes: small and large ones, and some that are full of pods before anything else."""
    sizes = {"small": (120, 8, "16Gi", 110), "large": (60, 32, "256Gi", 110), "few": (20, 16, "64Gi", 3)}
    return [
        NodeKind(
            name, count, described_machine({"nodes": [{"count": 2, "cpus": cpus, "memory": memory}]}), pods
        )
        for name, (count, cpus, memory, pods) in sizes.items()
    ]


def pods(rng: random.Random) -> Iterator[TimedPod]:
    for number in range(EVENTS):
        milli = rng.choice([0, 100, 500, 1000, 2000, 4000, 7500, 24_000, 62_000])
        size_bytes = rng.choice([0, 100 * MIB, GIB, 3 * GIB, 12 * GIB, 100 * GIB])
        qos = QosClass.BURSTABLE if milli or size_bytes else QosClass.BEST_EFFORT
        yield TimedPod(f"p{number}", 0.0, milli, size_bytes, qos=qos)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_it_chooses_one_of_our_best(strategy: str) -> None:
    rng = random.Random(strategy)
    nodes = [
        ClusterNode(index, kind, software)
        for index, (kind, software) in enumerate(
            (kind, software_of(kind, (), {"engine": ["exact"]}))
            for kind in kinds()
            for _ in range(kind.count)
        )
    ]
    by_name = {node.name: node for node in nodes}
    ours = Scheduler(nodes, 0, STRATEGIES[strategy])
    placed: list[tuple[ClusterNode, TimedPod]] = []
    none_fits = 0
    with kube_scheduler(strategy, nodes) as theirs:
        for pod in pods(rng):
            chosen = theirs.choose(pod)
            feasible = [node for node in nodes if node.fits(pod)]
            if not chosen:
                none_fits += 1
                assert feasible == []
            else:
                node = by_name[chosen]
                scores = {one.name: ours.score(one, pod) for one in feasible}
                assert scores[chosen] == max(scores.values()), (pod, chosen)
                node.bind(pod)
                placed.append((node, pod))
            if placed and rng.random() < 0.3:
                node, gone = placed.pop(rng.randrange(len(placed)))
                node.leave(gone)
                theirs.tell(delete=gone.name)
    assert none_fits > 0
    assert len(placed) > EVENTS / 3
