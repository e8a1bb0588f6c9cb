"""A daemon's snapshot to show in tests: two NUMA nodes and three containers of every kind there is.

One with a cgroup parent, exclusive CPUs and huge pages; one with an inferred class and an inexact request;
one that was created without us and is pinned by somebody else.
"""

from typing import Any, Final

from msgspec.structs import replace

from bayplan.model.decision import (
    Decision,
    DeviceHint,
    Interval,
    Outcome,
    Placement,
    QosClass,
    QosSource,
    Reason,
    Request,
)
from bayplan.model.ledger import Entry, Ledger
from bayplan.model.machine import Cpu, Machine, Node
from bayplan.model.policy import MemoryQos, PlacementPolicy
from bayplan.quantity import GIB, MIB
from bayplan.sets import CpuSet, NodeSet
from bayplan.views.snapshot import Drifted, RuntimeState, Snapshot, Unmanaged

MACHINE: Final = Machine(
    nodes=(
        Node(0, CpuSet([0, 1, 2, 3]), 4 * GIB, {2 * MIB: 64 * MIB}, {0: 10, 1: 21}),
        Node(1, CpuSet([4, 5, 6, 7]), 4 * GIB, {2 * MIB: 0}, {0: 31, 1: 10}),
    ),
    cpus=tuple(Cpu(number, number, number // 4, number // 4, number // 4 * 4) for number in range(8)),
)

GUARANTEED: Final = Decision(
    Request(
        container_id="aaa",
        pod_id="pod-a",
        name="default/web-0/nginx",
        qos=QosClass.GUARANTEED,
        qos_source=QosSource.CGROUP_PARENT,
        memory=Interval(GIB, GIB, "limit"),
        memory_limit_bytes=GIB,
        cpu_milli=2000,
        exclusive_cpus=2,
        hugepages_bytes={"hugepages-2Mi": 4 * MIB},
        hints=(DeviceHint("/dev/vdb", NodeSet([0])),),
    ),
    Outcome.PLACED,
    Placement(NodeSet([0]), CpuSet([2, 3]), {0: {"memory": GIB, "hugepages-2Mi": 4 * MIB}}),
    (Reason("best-set", "one node has room for all of it"),),
)
BURSTABLE: Final = Decision(
    Request(
        container_id="bbb",
        pod_id="pod-b",
        name="default/job/worker",
        qos=QosClass.BURSTABLE,
        qos_source=QosSource.INFERRED,
        memory=Interval(100 * MIB, 108 * MIB, "oom_score_adj"),
    ),
    Outcome.DEGRADED,
    reasons=(Reason("shared", "runs on the shared CPUs"),),
)
PINNED: Final = Decision(
    Request(
        container_id="ccc",
        pod_id="pod-c",
        name="kube-system/agent/agent",
        qos=QosClass.BEST_EFFORT,
        qos_source=QosSource.OOM_SCORE_ADJ,
        memory=Interval(0, 0, "QoS class"),
        pinned_cpus=CpuSet([7]),
        pinned_mems=NodeSet([1]),
    ),
    Outcome.ADOPTED,
)


def make_snapshot(**changes: Any) -> Snapshot:
    """The snapshot, with some of its fields replaced by *changes*."""
    snapshot = Snapshot(
        taken_us=1_700_000_100_000_000,
        started_us=1_700_000_000_000_000,
        machine=MACHINE,
        policy=PlacementPolicy(
            reserved_bytes={0: {"memory": GIB}}, reserved_cpus=CpuSet([0]), memory_qos=MemoryQos()
        ),
        ledger=Ledger.of([Entry(GUARANTEED, CpuSet([2, 3])), Entry(BURSTABLE), Entry(PINNED)]),
        engine="exact",
        runtime=RuntimeState(
            "containerd", "v2.1.0", "0.8.0", {"oom_score_adj": True, "memory_policy": False}
        ),
        counters={"decisions_placed": 3, "connections": 1},
        unmanaged=(Unmanaged("ccc", "kube-system/agent/agent"),),
        drift=(Drifted("aaa", "default/web-0/nginx", "mems is 0-1, decided was 0"),),
        oom_score_adj={"aaa": -997},
        problems=("the state store cannot record",),
    )
    return replace(snapshot, **changes)
