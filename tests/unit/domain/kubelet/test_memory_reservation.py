"""The flag and the configuration key for reserved memory, and every mistake that can be made with them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayplan.domain.kubelet.memory_errors import MemoryConfigurationError
from bayplan.domain.kubelet.memory_manager import MemoryPolicy
from bayplan.domain.kubelet.memory_reservation import (
    Reservation,
    by_node,
    check_machine,
    check_sums,
    check_values,
    format_flag,
    of_nodes,
    parse_configuration,
    parse_flags,
)
from bayplan.domain.kubelet.memory_restore import start
from bayplan.domain.kubelet.node_reservation import node_allocatable_reservation
from bayplan.domain.kubelet.pod import FeatureGates
from bayplan.domain.topology import Machine, Node
from bayplan.errors import ConfigError
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


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([], []),
        ([""], []),
        (["0:memory=1Gi"], [(0, {"memory": GIB})]),
        (["0:memory=3Gi;1:memory=2148Mi"], [(0, {"memory": 3 * GIB}), (1, {"memory": 2148 * MIB})]),
        (["0:memory=1G", "2:memory=512Mi"], [(0, {"memory": 10**9}), (2, {"memory": 512 * MIB})]),
        (
            ["0:memory=1Gi,hugepages-1Gi=2Gi,hugepages-2Mi=4Mi"],
            [(0, {"memory": GIB, "hugepages-1Gi": 2 * GIB, "hugepages-2Mi": 4 * MIB})],
        ),
        (["0:memory=1Gi", "", "1:memory=1Gi"], [(1, {"memory": GIB})]),
        (["0:memory=1;0:memory=2"], [(0, {"memory": 1}), (0, {"memory": 2})]),
    ],
)
def test_reads_every_spelling_of_the_flag(values, expected):
    found, problems = parse_flags(values)
    assert problems == ()
    assert [(each.node, each.sizes) for each in found] == expected


@pytest.mark.parametrize(
    ("value", "kubelet"),
    [
        (
            "memory=1Gi",
            (
                "the reserved memory has incorrect format, "
                "expected numaNodeID:type=quantity[,type=quantity...], got memory=1Gi"
            ),
        ),
        (
            "0:1:memory=1Gi",
            (
                "the reserved memory has incorrect format, "
                "expected numaNodeID:type=quantity[,type=quantity...], got 0:1:memory=1Gi"
            ),
        ),
        ("a:memory=1Gi", "failed to convert the NUMA node ID, expected integer, got a"),
        ("0:memory", "the reserved limit has incorrect value, expected type=quantity, got memory"),
        ("0:memory=1=2", "the reserved limit has incorrect value, expected type=quantity, got memory=1=2"),
        ("0:cpu=1", 'memory type conversion error, unknown type: "cpu"'),
        ("0:memory=lots", "failed to parse the quantity: lots"),
        ("0:memory=-1Gi", "failed to parse the quantity: -1Gi"),
    ],
)
def test_says_what_kubelet_says_about_a_wrong_flag(value, kubelet):
    found, problems = parse_flags([value])
    assert found == ()
    assert [problem.kubelet for problem in problems] == [kubelet]
    assert problems[0].path == "--reserved-memory"


def test_reports_all_mistakes_of_all_values_at_once():
    found, problems = parse_flags(["x:cpu=1,memory=lots;1:memory=1Gi", "2"])
    assert [(each.node, each.sizes) for each in found] == [(1, {"memory": GIB})]
    assert [(problem.path, problem.found) for problem in problems] == [
        ("--reserved-memory[0]", "'x'"),
        ("--reserved-memory[0]", "'cpu'"),
        ("--reserved-memory[0]", "'lots'"),
        ("--reserved-memory[1]", "'2'"),
    ]
    assert str(ConfigError("flags", problems)).startswith(
        "flags: 4 problems:\n  --reserved-memory[0]: found 'x'"
    )


@given(
    st.dictionaries(
        st.integers(0, 99),
        st.dictionaries(
            st.sampled_from(["memory", "hugepages-2Mi", "hugepages-1Gi"]), st.integers(1, 1 << 40), min_size=1
        ),
    )
)
def test_what_is_printed_can_be_read(reserved):
    reservations = of_nodes(reserved)
    flags = [format_flag([each]) for each in reservations]
    assert parse_flags(flags) == (reservations, ())
    assert by_node(reservations, Machine((), ())) == reserved


def test_reads_the_configuration():
    found, problems = parse_configuration(
        [{"numaNode": 0, "limits": {"memory": "1Gi", "hugepages-2Mi": 4194304}}, {"limits": {"memory": "1"}}]
    )
    assert problems == ()
    assert [(each.node, each.sizes) for each in found] == [
        (0, {"memory": GIB, "hugepages-2Mi": 4 * MIB}),
        (0, {"memory": 1}),
    ]


@pytest.mark.parametrize(
    ("value", "paths"),
    [
        ("1Gi", ["reservedMemory"]),
        (["1Gi"], ["reservedMemory[0]"]),
        (
            [{"numaNode": "0", "limits": {"memory": "x"}, "node": 1}],
            ["reservedMemory[0].node", "reservedMemory[0].numaNode", "reservedMemory[0].limits.memory"],
        ),
        ([{"numaNode": 0}], ["reservedMemory[0].limits"]),
    ],
)
def test_names_the_place_of_a_wrong_value(value, paths):
    found, problems = parse_configuration(value)
    assert found == ()
    assert [problem.path for problem in problems] == paths


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
        ("hugepages-many on NUMA node 0", "hugepages-<page size>"),
        ("hugepages-2Mi=99Gi on NUMA node 0", "at most the 16Mi that the node has"),
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
    assert str(memory) == (
        "reservedMemory: found 2Gi of memory in all (node 0 1Gi + node 1 1Gi), expected 2148Mi "
        "(kubeReserved 1Gi + systemReserved 1Gi + evictionHard memory.available 100Mi)"
    )
    assert memory.kubelet == (
        'the total amount "2Gi" of type "memory" is not equal to the value "2148Mi" '
        "determined by Node Allocatable feature"
    )
    assert str(huge) == (
        "reservedMemory: found 2Mi of hugepages-2Mi in all (node 1 2Mi), "
        "expected 0 (nothing is reserved for the node)"
    )
    whole = (*reservations[:1], Reservation(1, {"memory": GIB + 100 * MIB}))
    assert check_sums(whole, needed, words) == ()


def test_static_needs_memory_reserved_for_the_system():
    with pytest.raises(MemoryConfigurationError) as raised:
        start(MemoryPolicy.STATIC, machine(4), {0: {"hugepages-2Mi": GIB}}, FeatureGates())
    assert str(raised.value) == "[memorymanager] you should specify the system reserved memory"


def test_unknown_policy():
    with pytest.raises(MemoryConfigurationError) as raised:
        MemoryPolicy.named("static")
    assert str(raised.value) == 'unknown policy: "static"'
