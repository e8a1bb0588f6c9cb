"""What is wrong with reservations of memory, by themselves, on a machine, and added up."""

import pytest

from bayplan.engines.kubelet.memory_state import MemoryConfigurationError
from bayplan.engines.kubelet.state_files import start
from bayplan.kubelet.eviction_manager import node_allocatable_reservation
from bayplan.kubelet.manager_options import (
    MemoryManagerPolicy,
    Reservation,
    check_machine,
    check_sums,
    check_values,
)
from bayplan.kubelet.pod import FeatureGates
from bayplan.model.machine import Machine, Node
from bayplan.sets import CpuSet

MIB, GIB = 1 << 20, 1 << 30


def machine(*memory_gib, pages=0):
    return Machine(
        tuple(
            Node(2 * index, CpuSet(), size * GIB, {2 * MIB: pages * 2 * MIB} if pages else {})
            for index, size in enumerate(memory_gib)
        ),
        (),
    )


def test_finds_unknown_types_zeros_and_duplicates_together():
    reservations = (
        Reservation(0, {"memory": 0, "cpu": 5}),
        Reservation(0, {"memory": GIB}),
        Reservation(1, {"memory": GIB}),
    )
    assert [problem.kubelet for problem in check_values(reservations)] == [
        'invalid configuration: reserved memory may not be zero for NUMA node 0 and resource "memory"',
        (
            'invalid configuration: the limit type "cpu" for NUMA node 0 is not supported, '
            "only [memory hugepages-<HugePageSize>] is accepted"
        ),
        (
            "invalid configuration: the reserved memory has a duplicate value for NUMA node 0 and resource "
            '"memory"'
        ),
    ]


def test_finds_what_the_machine_does_not_have():
    reservations = (
        Reservation(1, {"memory": GIB}),
        Reservation(0, {"hugepages-1Gi": GIB, "hugepages-many": 1, "hugepages-2Mi": 99 * GIB, "memory": GIB}),
    )
    problems = check_machine(reservations, machine(4, 4, pages=8))
    assert [(problem.found, problem.expected) for problem in problems] == [
        ("NUMA node 1", "a NUMA node of this machine (0,2)"),
        ("hugepages-1Gi on NUMA node 0", "what it has: hugepages-2Mi"),
        ("hugepages-2Mi=99Gi on NUMA node 0", "at most the 16Mi that the node has"),
        ("hugepages-many on NUMA node 0", "hugepages-<page size>"),
    ]
    assert problems[0].kubelet == (
        "the reserved memory configuration references a NUMA node 1 that does not exist on this machine"
    )


def test_works_the_sum_out():
    needed, words = node_allocatable_reservation({"memory": GIB, "cpu": 500}, {"memory": GIB}, 100 * MIB)
    assert needed == {"memory": 2 * GIB + 100 * MIB}
    reservations = (
        Reservation(0, {"memory": GIB}),
        Reservation(1, {"memory": GIB, "hugepages-2Mi": 2 * MIB}),
    )
    huge, memory = check_sums(reservations, needed, words)
    assert memory[:3] == (
        "reservedMemory",
        "2Gi of memory in all (node 0 1Gi + node 1 1Gi)",
        "2148Mi (kubeReserved 1Gi + systemReserved 1Gi + evictionHard memory.available 100Mi)",
    )
    assert memory.kubelet == (
        'the total amount "2Gi" of type "memory" is not equal to the value "2148Mi" '
        "determined by Node Allocatable feature"
    )
    assert huge[:3] == (
        "reservedMemory",
        "2Mi of hugepages-2Mi in all (node 1 2Mi)",
        "0 (nothing is reserved for the node)",
    )
    whole = (*reservations[:1], Reservation(1, {"memory": GIB + 100 * MIB}))
    assert check_sums(whole, needed, words) == ()


def test_static_needs_memory_reserved_for_the_system():
    with pytest.raises(MemoryConfigurationError) as raised:
        start(MemoryManagerPolicy.STATIC, machine(4), {0: {"hugepages-2Mi": GIB}}, FeatureGates())
    assert str(raised.value) == "[memorymanager] you should specify the system reserved memory"
