"""Whose pins a container carries."""

import pytest

from bayplan.model.decision import QosClass
from bayplan.model.request import changed_request, derive_request
from bayplan.model.resources import Resources
from bayplan.model.workload import Pod
from bayplan.placement.foreign_cpusets import (
    DetectedBy,
    PinningManager,
    how_detected,
    pin_sentences,
    pinning_managers,
)
from bayplan.quantity import MIB
from bayplan.sets import CpuSet, NodeSet
from support.machines import container, machine, pod

MACHINE = machine(1, 16)

KUBELETS = pod("g", QosClass.GUARANTEED)
BEST_EFFORT = pod("b", QosClass.BEST_EFFORT)
CPU, MEMORY = PinningManager.CPU, PinningManager.MEMORY


@pytest.mark.parametrize(
    ("owner", "milli", "cpus", "mems", "expected"),
    [
        (KUBELETS, 2000, [2, 3], [1], (CPU, MEMORY)),
        (KUBELETS, 500, [0, 1, 4, 5], None, (CPU,)),
        (KUBELETS, 500, None, [1], (MEMORY,)),
        (BEST_EFFORT, None, [0, 1, 4, 5], None, (CPU,)),
        # What kubelet never sets: other CPUs than were asked for, memory nodes of a BestEffort container.
        (KUBELETS, 2000, [2, 3, 4], None, ()),
        (BEST_EFFORT, None, None, [1], ()),
        (BEST_EFFORT, None, [0, 1, 4, 5], [1], ()),
        (pod("plain"), 2000, [2, 3], [1], ()),
        (KUBELETS, 2000, None, None, ()),
    ],
)
def test_kubelets_managers_are_known_by_what_they_set(
    owner: Pod,
    milli: int | None,
    cpus: list[int] | None,
    mems: list[int] | None,
    expected: tuple[PinningManager, ...],
) -> None:
    base = container("c", owner, memory_bytes=MIB if milli else None, milli_cpus=milli)
    request = derive_request(owner, base, MACHINE)
    sets = Resources(
        cpuset_cpus=CpuSet(cpus) if cpus is not None else None,
        cpuset_mems=NodeSet(mems) if mems is not None else None,
    )
    assert pinning_managers(changed_request(request, base.resources, sets, MACHINE)) == expected


def test_the_first_reconciliation_repeats_what_the_spec_had_and_changes_nothing() -> None:
    """kubelet sends every container of the shared pool the CPUs that it created it with."""
    sets = Resources(cpuset_cpus=CpuSet([0, 1]))
    request = derive_request(BEST_EFFORT, container("c", BEST_EFFORT, resources=sets), MACHINE)
    assert changed_request(request, sets, sets, MACHINE) == request
    later = changed_request(request, sets, Resources(cpuset_cpus=CpuSet([0])), MACHINE)
    assert (later.pinned_cpus, how_detected(later)) == (CpuSet([0]), DetectedBy.SPEC)


def test_nothing_is_said_where_nobody_pins() -> None:
    request = derive_request(KUBELETS, container("c", KUBELETS, memory_bytes=MIB, milli_cpus=500), MACHINE)
    assert list(pin_sentences([request])) == []
    (said,) = pin_sentences([], [MEMORY])
    why = "(seen in kubelet's configuration)"
    assert said == f"kubelet's Memory Manager pins containers itself {why}; what it sets stays as it is"
