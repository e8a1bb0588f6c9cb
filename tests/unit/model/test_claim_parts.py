"""The parts of a claim: what is promised on which set by itself."""

from hypothesis import given
from hypothesis import strategies as st

from bayplan.model.claims import divided
from bayplan.model.decision import Claim
from bayplan.quantity import MIB
from bayplan.sets import NodeSet

AMOUNTS = st.dictionaries(st.sampled_from(["memory", "hugepages-2Mi", "hugepages-1Gi"]), st.integers(1, 99))


def test_as_a_whole_it_is_one_part() -> None:
    amounts = {"memory": 5 * MIB, "hugepages-2Mi": 4 * MIB}
    assert Claim(NodeSet([0, 1]), amounts).parts == ((NodeSet([0, 1]), amounts),)


def test_even_huge_pages_are_on_each_node_by_itself_and_memory_is_not() -> None:
    claim = Claim(NodeSet([0, 2]), {"memory": 5 * MIB, "hugepages-2Mi": 4 * MIB}, even_hugepages=True)
    assert claim.parts == (
        (NodeSet([0]), {"hugepages-2Mi": 2 * MIB}),
        (NodeSet([2]), {"hugepages-2Mi": 2 * MIB}),
        (NodeSet([0, 2]), {"memory": 5 * MIB}),
    )


@given(st.sets(st.integers(0, 40), min_size=1), AMOUNTS, AMOUNTS)
def test_the_parts_sum_to_the_whole_and_differ_by_a_byte_at_most(
    nodes: set[int], amounts: dict[str, int], wanted: dict[str, int]
) -> None:
    even = {resource: min(amount, amounts.get(resource, 0)) for resource, amount in wanted.items()}
    parts = divided(
        NodeSet(nodes), amounts, {resource: amount for resource, amount in even.items() if amount}
    )
    for resource, amount in amounts.items():
        assert sum(row.get(resource, 0) for _, row in parts) == amount
        each = [row[resource] for part, row in parts if len(part) == 1 and resource in row and len(nodes) > 1]
        assert not each or max(each) - min(each) <= 1
    assert all(part <= NodeSet(nodes) for part, _ in parts)
