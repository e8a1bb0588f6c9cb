"""What is rewritten in a spec, and what the other containers are told."""

from typing import Any

import pytest
from msgspec.structs import replace

from bayplan.model.basis import Basis
from bayplan.model.decision import (
    Decision,
    ExecCpus,
    Interval,
    Outcome,
    Placement,
    PodTotals,
    QosClass,
    QosSource,
    Request,
)
from bayplan.model.ledger import Entry, Ledger
from bayplan.model.origin import Hook, Wrapper
from bayplan.model.policy import MemoryQos, MemoryReservationPolicy, PlacementPolicy
from bayplan.model.resources import Resources
from bayplan.model.workload import Adjustment, Update
from bayplan.placement.adjustment import (
    NOT_ISOLATED,
    Ability,
    adjustment_for,
    changed_memory_qos,
    cpus_updates,
    exec_cpus_of,
    exec_notes,
    isolated_cpus,
    isolation_notes,
    memory_qos_values,
    own_cpu_notes,
)
from bayplan.quantity import GIB, MIB
from bayplan.sets import CpuSet, NodeSet
from support.machines import container, machine, pod

MACHINE = machine(4)
SHARED = CpuSet(range(4))
TIERED = MemoryQos(0.9, MemoryReservationPolicy.TIERED)


def request(qos: QosClass, low: int, high: int, limit: int | None = None) -> Request:
    return Request("c", "p", "ns/p/c", qos, QosSource.CGROUP_PARENT, Interval(low, high, "test"), limit)


def rewritten(
    asked: Request, spec: Resources, placement: Placement = Placement(), *,
    policy: PlacementPolicy = PlacementPolicy(),
    ability: Ability = Ability(), oom_score_adj: int | None = None,
) -> Adjustment:  # fmt: skip
    one = container("c", pod(), resources=spec, oom_score_adj=oom_score_adj)
    decision = Decision(asked, Outcome.PLACED, placement)
    return adjustment_for(Basis(MACHINE, policy, Ledger()), ability, SHARED, decision, one)


def test_a_guaranteed_container_gets_its_nodes_cpus_and_score() -> None:
    asked = request(QosClass.GUARANTEED, GIB, GIB, GIB)
    placement = Placement(NodeSet([1]), CpuSet([6, 7]))
    assert rewritten(asked, Resources(memory_limit_bytes=GIB), placement) == Adjustment(
        CpuSet([6, 7]), NodeSet([1]), None, -997, {"memory.oom.group": "1"}
    )


def test_the_others_get_the_shared_cpus_and_every_node() -> None:
    adjustment = rewritten(request(QosClass.BEST_EFFORT, 0, 0), Resources())
    assert adjustment == Adjustment(SHARED, None, None, 1000, {"memory.oom.group": "1"})


def test_what_the_spec_carries_is_left_alone() -> None:
    spec = Resources(memory_limit_bytes=GIB, unified={"memory.oom.group": "0"})
    asked = replace(
        request(QosClass.BURSTABLE, 0, GIB, GIB), pinned_cpus=CpuSet([1]), pinned_mems=NodeSet([0])
    )
    assert rewritten(asked, spec, oom_score_adj=500) == Adjustment()


def test_a_missing_limit_is_added() -> None:
    adjustment = rewritten(request(QosClass.BURSTABLE, 0, 0, GIB), Resources())
    assert adjustment.memory_limit_bytes == GIB


def test_zero_counts_as_no_score() -> None:
    assert rewritten(request(QosClass.BURSTABLE, GIB, GIB), Resources(), oom_score_adj=0).oom_score_adj == 750


@pytest.mark.parametrize(
    ("ability", "policy"),
    [
        (Ability(oom_score_adj=False), PlacementPolicy()),
        (Ability(), PlacementPolicy(set_oom_score_adj=False)),
    ],
)
def test_no_score_where_it_cannot_or_shall_not_be_set(ability: Ability, policy: PlacementPolicy) -> None:
    adjustment = rewritten(request(QosClass.BEST_EFFORT, 0, 0), Resources(), ability=ability, policy=policy)
    assert adjustment.oom_score_adj is None


def test_unified_only_on_cgroup_v2_and_single_kill_only_when_asked_for() -> None:
    asked = request(QosClass.BEST_EFFORT, 0, 0)
    assert rewritten(asked, Resources(), ability=Ability(cgroup_v2=False)).unified == {}
    assert rewritten(asked, Resources(), policy=PlacementPolicy(single_process_oom_kill=True)).unified == {}


@pytest.mark.parametrize(
    ("asked", "limit", "expected"),
    [
        (request(QosClass.GUARANTEED, GIB, GIB), GIB, {"memory.min": GIB}),
        (
            request(QosClass.BURSTABLE, 100 * MIB, 100 * MIB),
            200 * MIB,
            {"memory.low": 100 * MIB, "memory.high": 190 * MIB},
        ),
        (
            request(QosClass.BURSTABLE, 100 * MIB, 120 * MIB),
            200 * MIB,
            {"memory.low": 100 * MIB, "memory.high": 192 * MIB},
        ),
        (request(QosClass.BURSTABLE, 0, 0), None, {"memory.high": 3865468928}),
        (request(QosClass.BURSTABLE, 0, MIB), None, {"memory.high": 3865575424}),
        (request(QosClass.BURSTABLE, 0, GIB), GIB, {}),
    ],
)
def test_memory_qos(asked: Request, limit: int | None, expected: dict[str, int]) -> None:
    assert memory_qos_values(TIERED, asked, limit, 4 * GIB) == expected


def test_memory_qos_switched_on_is_in_the_adjustment() -> None:
    policy = PlacementPolicy(memory_qos=MemoryQos(0.5), reserved_bytes={0: {"memory": 2 * GIB}})
    adjustment = rewritten(request(QosClass.BURSTABLE, 0, 2 * MIB), Resources(), policy=policy)
    assert adjustment.unified == {"memory.high": str(GIB + MIB), "memory.oom.group": "1"}
    assert memory_qos_values(MemoryQos(None), request(QosClass.BURSTABLE, 0, 0), None, GIB) == {}


KUBELETS_RESETS = {"memory.min": "0", "memory.low": "0"}


@pytest.mark.parametrize(
    ("minor", "source", "unified", "expected"),
    [
        # With the gate on, and no policy: zeros, to clear what an earlier kubelet wrote.
        (37, QosSource.CGROUP_PARENT, KUBELETS_RESETS, {"memory.low", "memory.high"}),
        # With the gate off.
        (37, QosSource.CGROUP_PARENT, {"memory.high": "max"}, {"memory.low", "memory.high"}),
        # What protects or throttles is a choice.
        (37, QosSource.CGROUP_PARENT, {"memory.low": str(MIB), "memory.high": str(GIB)}, set()),
        # So is a zero of which kubelet knows nothing: of another version, or outside of its tree.
        (36, QosSource.CGROUP_PARENT, KUBELETS_RESETS, {"memory.high"}),
        (37, QosSource.INFERRED, KUBELETS_RESETS, {"memory.high"}),
    ],
)
def test_zeros_of_kubelet_are_nobodys_choice(
    minor: int, source: QosSource, unified: dict[str, str], expected: set[str]
) -> None:
    policy = PlacementPolicy(memory_qos=TIERED, kubelet_minor=minor)
    asked = replace(request(QosClass.BURSTABLE, 100 * MIB, 100 * MIB, 200 * MIB), qos_source=source)
    spec = Resources(memory_limit_bytes=200 * MIB, unified=unified)
    assert set(rewritten(asked, spec, policy=policy).unified) - {"memory.oom.group"} == expected


SET = {"memory.low": str(100 * MIB), "memory.high": str(190 * MIB)}
"""What is set for a container that asks for 100 MiB of at most 200."""


@pytest.mark.parametrize(
    ("shown", "said", "after", "expected"),
    [
        # Request and limit grow; then only the limit; then it asks for all of it (k8s #142569).
        (SET, {}, (200, 400), {"memory.low": str(200 * MIB), "memory.high": str(380 * MIB)}),
        (SET, {}, (100, 400), {"memory.high": str(370 * MIB)}),
        (SET, {}, (200, 200), {"memory.low": str(200 * MIB), "memory.high": "max"}),
        (SET, {}, (100, 200), {}),
        # kubelet writes with every change what it has to say: nothing.
        (SET, KUBELETS_RESETS, (100, 200), {"memory.low": SET["memory.low"]}),
        (SET, {"memory.high": "max"}, (100, 200), {"memory.high": SET["memory.high"]}),
        (SET | KUBELETS_RESETS, {}, (100, 200), {"memory.low": SET["memory.low"]}),
        (
            SET | KUBELETS_RESETS,
            KUBELETS_RESETS,
            (200, 200),
            {"memory.low": str(200 * MIB), "memory.high": "max"},
        ),
        # What somebody chose, then or now, stays.
        (SET | {"memory.high": str(150 * MIB)}, {}, (200, 400), {"memory.low": str(200 * MIB)}),
        (SET, {"memory.low": str(MIB)}, (200, 400), {"memory.high": str(380 * MIB)}),
        # So does a container that was created without us.
        ({}, {}, (200, 400), {}),
    ],
)
def test_memory_qos_follows_a_resize(
    shown: dict[str, str], said: dict[str, str], after: tuple[int, int], expected: dict[str, str]
) -> None:
    basis = Basis(MACHINE, PlacementPolicy(memory_qos=TIERED, kubelet_minor=37), Ledger())
    before, now = (
        request(QosClass.BURSTABLE, asked * MIB, asked * MIB, limit * MIB)
        for asked, limit in ((100, 200), after)
    )
    present, change = Resources(unified=shown), Resources(unified=said)
    assert changed_memory_qos(basis, before, now, present, change) == expected


def test_only_those_are_told_who_were_told_something_else() -> None:
    def entry(name: str, placement: Placement, told: CpuSet | None, pinned: CpuSet | None = None) -> Entry:
        asked = replace(request(QosClass.BURSTABLE, 0, 0), container_id=name, pinned_cpus=pinned)
        return Entry(Decision(asked, Outcome.PLACED, placement), told)

    shared = CpuSet(range(2, 16))
    ledger = Ledger.of(
        [
            entry("exclusive", Placement(exclusive_cpus=CpuSet([0, 1])), CpuSet([0, 1])),
            entry("current", Placement(), shared),
            entry("late", Placement(), MACHINE.online_cpus),
            entry("never-told", Placement(), None),
            entry("pinned", Placement(), None, CpuSet([3])),
        ]
    )
    updates = cpus_updates(ledger, shared)
    assert updates == [Update("late", cpuset_cpus=shared), Update("never-told", cpuset_cpus=shared)]
    notified = ledger.with_notified_cpus({one.container_id: shared for one in updates})
    assert cpus_updates(notified, shared) == []


@pytest.mark.parametrize(
    ("wish", "own", "beside", "expected"),
    [
        (None, [2, 3], [4, 5], None),
        (ExecCpus.SHARED, [2, 3], [4, 5], [0, 1, *range(4, 16)]),
        (ExecCpus.SHARED, [2, 3], [], None),
        (ExecCpus.FIRST, [2, 3], [], [0, 1, 2, *range(4, 16)]),
        (ExecCpus.FIRST, [2, 3], [4, 5], [0, 1, 2, *range(4, 16)]),
        (ExecCpus.FIRST, [], [], None),
    ],
)
def test_processes_that_enter_later_are_kept_off_its_own_cpus(
    wish: ExecCpus | None, own: list[int], beside: list[int], expected: list[int] | None
) -> None:
    asked = replace(request(QosClass.BURSTABLE, 0, 0), exec_cpus=wish)
    placement = Placement(NodeSet([1]), CpuSet(own), beside_cpus=CpuSet(beside))
    decision = Decision(asked, Outcome.PLACED, placement)
    cpus = exec_cpus_of(MACHINE, decision)
    assert cpus == (None if expected is None else CpuSet(expected))
    # What the cgroup has of them is beside its own CPUs, or the first of these.
    if cpus is not None:
        assert cpus & decision.placement.exclusive_cpus <= CpuSet(own[:1])
    assert bool(own_cpu_notes(decision)) == (wish is not None and cpus is None)
    assert not exec_notes(decision, Wrapper.of(pod(), container("c", pod())))
    assert bool(exec_notes(decision, Hook.of(pod(), container("c", pod())))) == (cpus is not None)
    with_own = replace(container("c", pod(), resources=Resources()), exec_cpus=CpuSet([2]))
    made = adjustment_for(Basis(MACHINE, PlacementPolicy(), Ledger()), Ability(), SHARED, decision, with_own)
    assert made.exec_cpus is None


@pytest.mark.parametrize(
    ("wished", "own", "beside", "isolated", "notes"),
    [
        ({"partition": True, "irqs_away": True}, [2, 3], [], [2, 3], 0),
        ({"partition": True}, [2, 3], [4], [], 1),
        ({"irqs_away": True}, [2, 3], [4], [], 0),
        ({"partition": True}, [], [], [], 1),
        ({"irqs_away": True}, [], [], [], 1),
        ({"partition": True, "irqs_away": True, "pinned_cpus": CpuSet([2, 3])}, [2, 3], [], [], 1),
        ({}, [2, 3], [], [], 0),
    ],
)
def test_a_partition_is_for_cpus_that_nobody_shares(
    wished: dict[str, Any], own: list[int], beside: list[int], isolated: list[int], notes: int
) -> None:
    asked = replace(request(QosClass.BURSTABLE, 0, 0), **wished)
    placement = Placement(NodeSet([1]), CpuSet(own), beside_cpus=CpuSet(beside))
    decision = Decision(asked, Outcome.PLACED, placement)
    assert isolated_cpus(decision) == CpuSet(isolated)
    assert [one.code for one in own_cpu_notes(decision)] == [NOT_ISOLATED] * notes
    assert not isolation_notes(decision, cgroup_v2=True)
    assert len(isolation_notes(decision, cgroup_v2=False)) == bool(own and asked.partition)


def test_the_containers_of_a_pod_that_share_its_cpus_have_no_partition() -> None:
    totals = PodTotals(GIB, 4000)
    asked = replace(
        request(QosClass.GUARANTEED, 0, 0),
        partition=True,
        pod_level=True,
        pod_totals=totals,
        memory=Interval(0, 0, "pod"),
    )
    decision = Decision(asked, Outcome.PLACED, Placement(NodeSet([1]), CpuSet([2, 3])))
    assert isolated_cpus(decision) == CpuSet()
    assert own_cpu_notes(decision)
