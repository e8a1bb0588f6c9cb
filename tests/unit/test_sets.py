"""NodeSet and CpuSet: text form, operations, limits."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayplan.errors import ParseError, excerpt
from bayplan.sets import CpuSet, NodeSet, is_open_ended

ids = st.sets(st.integers(0, 300))


@given(ids)
def test_text_is_read_back(members: set[int]) -> None:
    cpus = CpuSet(members)
    assert CpuSet.parse(str(cpus)) == cpus
    assert list(cpus) == sorted(members)
    assert len(cpus) == len(members)


@given(ids, ids)
def test_operations_agree_with_python_sets(left: set[int], right: set[int]) -> None:
    a, b = NodeSet(left), NodeSet(right)
    assert set(a | b) == left | right
    assert set(a & b) == left & right
    assert set(a - b) == left - right
    assert (a <= b) == (left <= right)
    assert a.isdisjoint(b) == left.isdisjoint(right)
    assert (a == b) == (left == right)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("", ""), ("0", "0"), ("0-3,8", "0-3,8"), ("3,1,2", "1-3"), (" 0-1\n", "0-1"), ("0,0-2,70", "0-2,70"),
        ("0-3,", "0-3"), (" 0 , 1 ", "0-1"), ("1,,2", "1-2"), ("1 2", "1-2"), (",", ""), ("0\n1", "0"),
        ("0,\n1", "0-1"), ("0-7:1/2", "0,2,4,6"), ("0-7:2/4,9", "0-1,4-5,9"), ("0-3:0/2", ""), ("007", "7"),
        ("all", "0-15"), ("ALL:1/4", "0,4,8,12"), ("0-N", "0-15"), ("N", "15"), ("12-N:1/2", "12,14"),
        ("0-7:1/2N", "0,2,4,6,15"),
    ],
)  # fmt: skip
def test_kernel_list_format(text: str, shown: str) -> None:
    """As bitmap_parselist() of Linux 6.18 reads them where the last id is 15."""
    assert str(CpuSet.parse(text, last_id=15)) == shown


def test_without_a_machine_the_last_id_is_the_last_of_any() -> None:
    assert CpuSet.parse("8190-N") == CpuSet([8190, 8191])
    assert len(NodeSet.parse("all")) == NodeSet.max_id + 1
    assert [is_open_ended(text) for text in ("0-N", "All", "0-3")] == [True, True, False]


@pytest.mark.parametrize(
    "text",
    [
        "a",
        "1-",
        "-1",
        "3-1",
        "0x1",
        "8192",
        "5:1/2",
        "0-3:3/2",
        "0-3:1/0",
        "0-3:1",
        "all0",
        "NN",
        "²",
        "9" * 5000,
    ],
)
def test_wrong_text_names_the_value(text: str) -> None:
    with pytest.raises(ParseError) as caught:
        CpuSet.parse(text)
    assert repr(excerpt(text)) in str(caught.value)


@pytest.mark.parametrize("kind", [CpuSet, NodeSet])
def test_ids_that_no_kernel_has_are_wrong(kind: type[CpuSet] | type[NodeSet]) -> None:
    assert len(kind.parse(f"0-{kind.max_id}")) == kind.max_id + 1
    with pytest.raises(ParseError, match=f"ids up to {kind.max_id}"):
        kind.parse(f"0-{kind.max_id + 1}")


def test_sets_of_different_kinds_are_never_equal() -> None:
    assert NodeSet([1]) != CpuSet([1])
    assert len({NodeSet([1]), CpuSet([1])}) == 2


def test_a_set_is_immutable_and_survives_pickling() -> None:
    nodes = NodeSet([0, 64, 1000])
    with pytest.raises(AttributeError):
        nodes.mask = 0
    assert pickle.loads(pickle.dumps(nodes)) == nodes
    assert 64 in nodes
    assert -1 not in nodes
    assert repr(nodes) == "NodeSet('0,64,1000')"


def test_negative_ids_are_refused() -> None:
    with pytest.raises(ParseError):
        CpuSet([-1])
