"""Machines, pods and containers for tests and benchmarks, from a few numbers."""

from collections.abc import Mapping

from bayplan.model.decision import QosClass
from bayplan.model.machine import LOCAL_DISTANCE, REMOTE_DISTANCE, Cpu, Machine, Node
from bayplan.model.resources import Resources
from bayplan.model.workload import Container, Pod
from bayplan.quantity import GIB
from bayplan.sets import CpuSet

PERIOD_US = 100_000


def machine(
    nodes: int = 4,
    cpus_per_node: int = 4,
    memory_bytes: int = GIB,
    *,
    threads_per_core: int = 1,
    cpu_less: Mapping[int, int] | None = None,
    distances: Mapping[tuple[int, int], int] | None = None,
    hugepages_bytes: Mapping[int, int] | None = None,
) -> Machine:
    """A machine with *nodes* equal nodes of *cpus_per_node* CPUs, one socket each.

    *cpu_less* adds nodes without CPUs (id -> memory_bytes); *distances* overrides single pairs.
    """
    cpus, plain = [], []
    for node_id in range(nodes):
        first = node_id * cpus_per_node
        members = range(first, first + cpus_per_node)
        for cpu in members:
            core = first + (cpu - first) // threads_per_core * threads_per_core
            cpus.append(Cpu(cpu, core, node_id, node_id, first))
        plain.append((node_id, CpuSet(members), memory_bytes))
    plain += [(node_id, CpuSet(), size) for node_id, size in (cpu_less or {}).items()]
    ids = [node_id for node_id, _, _ in plain]
    return Machine(
        tuple(
            Node(
                node_id,
                members,
                size,
                hugepages_bytes=hugepages_bytes or {},
                distances={
                    other: (distances or {}).get(
                        (node_id, other), LOCAL_DISTANCE if other == node_id else REMOTE_DISTANCE
                    )
                    for other in ids
                },
            )
            for node_id, members, size in plain
        ),
        tuple(cpus),
    )


def pod(name: str = "web", qos: QosClass | None = None, annotations: Mapping[str, str] | None = None) -> Pod:
    """A pod, in kubelet's cgroup tree (cgroupfs driver) if a *qos* class is given, else outside of it."""
    below = {
        None: "",
        QosClass.GUARANTEED: f"/kubepods/pod{name}",
        QosClass.BURSTABLE: f"/kubepods/burstable/pod{name}",
        QosClass.BEST_EFFORT: f"/kubepods/besteffort/pod{name}",
    }
    return Pod(f"{name}-sandbox", name, "default", name, dict(annotations or {}), {}, below[qos])


def container(
    container_id: str,
    owner: Pod,
    *,
    memory_bytes: int | None = None,
    milli_cpus: int | None = None,
    oom_score_adj: int | None = None,
    resources: Resources | None = None,
) -> Container:
    """A container about to be created; *milli_cpus* sets quota and shares alike, as a Guaranteed pod has."""
    spec = resources or Resources(
        memory_limit_bytes=memory_bytes,
        cpu_shares=None if milli_cpus is None else max(2, milli_cpus * 1024 // 1000),
        cpu_quota_us=None if milli_cpus is None else milli_cpus * PERIOD_US // 1000,
        cpu_period_us=None if milli_cpus is None else PERIOD_US,
    )
    return Container(
        container_id, owner.id, f"{container_id}-name", resources=spec, oom_score_adj=oom_score_adj
    )
