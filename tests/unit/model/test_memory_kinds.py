"""Other tiers only on request, a device's memory only with the device: examples, and random machines."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from bayplan.errors import ParseError
from bayplan.model.decision import (
    DeviceHint,
    Interval,
    NodeWish,
    QosClass,
    QosSource,
    Request,
    TierWish,
)
from bayplan.model.machine import Machine, Node
from bayplan.model.memory_kinds import (
    device_nodes,
    tier_nodes,
    tier_rank,
    tier_ranks,
    usable_nodes,
    why_unusable,
)
from bayplan.quantity import GIB
from bayplan.sets import CpuSet, NodeSet

GPU = "0009:01:00.0"


FOUND = DeviceHint("/dev/nvidia0", NodeSet([0]), names=("/dev/nvidia0", GPU))


def asking(**wishes) -> Request:
    plain = Request("c", "p", "ns/p/c", QosClass.BURSTABLE, QosSource.INFERRED, Interval(GIB, GIB, "limit"))
    return replace(plain, **wishes)


def nodes(text: str) -> NodeSet:
    return NodeSet.parse(text)


MACHINE = Machine(
    (
        Node(0, CpuSet([0]), GIB, tier=1),
        Node(1, CpuSet([1]), GIB, tier=1),
        Node(2, CpuSet(), GIB, tier=0),
        Node(4, CpuSet(), GIB, tier=2),
        Node(8, CpuSet(), GIB, tier=3),
        Node(16, CpuSet(), GIB, tier=1, owner=GPU),
        Node(32, CpuSet(), 0, owner=GPU),
    ),
    (),
)


@pytest.mark.parametrize(
    ("wishes", "usable"),
    [
        ({}, "0-1"),
        ({"tier": TierWish(2)}, "0-1,4"),
        ({"tier": TierWish(2, required=True)}, "4"),
        ({"tier": TierWish(1, required=True)}, "0-1"),
        ({"tier": TierWish(7, required=True)}, ""),
        ({"nodes": NodeWish(nodes("1,8"))}, "0-1,8"),
        ({"nodes": NodeWish(nodes("1,8"), required=True)}, "1,8"),
        ({"nodes": NodeWish(nodes("2,16"), required=True)}, "2"),
        ({"nodes": NodeWish(nodes("16"), required=True), "hints": (FOUND,)}, "16"),
        ({"hints": (FOUND,)}, "0-1"),
        ({"nodes": NodeWish(nodes("0-4"), required=True), "tier": TierWish(2, required=True)}, "4"),
        ({"nodes": NodeWish(nodes("0")), "tier": TierWish(2, required=True)}, "4"),
        ({"nodes": NodeWish(nodes("8")), "tier": TierWish(2)}, "0-1,4,8"),
    ],
)
def test_what_is_usable(wishes, usable):
    assert usable_nodes(MACHINE, asking(**wishes)) == nodes(usable)


def test_the_memory_of_its_own_device_is_open_to_a_container():
    assert device_nodes(MACHINE, asking()) == nodes("")
    disk = DeviceHint("/dev/sda", nodes("0"), names=("/dev/sda", "0000:00:1f.2"))
    assert device_nodes(MACHINE, asking(hints=(disk,))) == nodes("")
    assert device_nodes(MACHINE, asking(hints=(disk, FOUND))) == nodes("16")


def test_to_say_that_it_has_a_device_is_not_to_have_it():
    said = DeviceHint(GPU, nodes("16"))
    assert device_nodes(MACHINE, asking(hints=(said,))) == nodes("")


def test_tiers_have_numbers_and_names_relative_to_the_cpus():
    assert tier_ranks(MACHINE) == {
        "0": 0, "1": 1, "2": 2, "3": 3, "dram": 1, "fast": 0, "hbm": 0, "slow": 2, "cxl": 2,
    }  # fmt: skip
    assert tier_rank(MACHINE, "cxl") == 2
    with pytest.raises(ParseError, match="a tier of this machine: 0, 1, 2, 3, dram, fast, hbm, slow, cxl"):
        tier_rank(MACHINE, "pmem")


def test_an_older_kernel_has_no_tiers():
    bare = Machine(tuple(replace(node, tier=None) for node in MACHINE.nodes), ())
    assert tier_ranks(bare) == {}
    with pytest.raises(ParseError, match="none, because its kernel shows"):
        tier_rank(bare, "slow")


def test_a_tier_that_is_all_a_devices_has_no_name():
    owned = Machine((MACHINE.nodes[0], Node(16, CpuSet(), GIB, tier=0, owner=GPU)), ())
    assert tier_ranks(owned) == {"1": 1, "dram": 1}


DEVICES = ("", "", GPU, "000a:01:00.0")


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    ids = draw(st.lists(st.integers(0, 1023), min_size=1, max_size=10, unique=True))
    return Machine(
        tuple(
            Node(
                number,
                CpuSet([place] if draw(st.booleans()) else []),
                draw(st.sampled_from([0, GIB, 4 * GIB])),
                tier=draw(st.sampled_from([None, 0, 1, 2])),
                owner=draw(st.sampled_from(DEVICES)),
            )
            for place, number in enumerate(ids)
        ),
        (),
    )


@st.composite
def questions(draw: st.DrawFn) -> tuple[Machine, Request]:
    machine = draw(machines())
    some = st.builds(NodeSet, st.sets(st.sampled_from([node.id for node in machine.nodes])))
    flags = st.booleans()
    return machine, asking(
        nodes=draw(st.none() | st.builds(NodeWish, some, flags)),
        tier=draw(st.none() | st.builds(TierWish, st.integers(0, 2), flags)),
        hints=tuple(draw(st.lists(st.sampled_from([FOUND, DeviceHint("/dev/sda", NodeSet())]), max_size=2))),
    )


@given(questions())
def test_no_node_is_used_against_the_rules(question):
    machine, request = question
    usable, own = usable_nodes(machine, request), device_nodes(machine, request)
    wished = request.nodes.nodes if request.nodes is not None else NodeSet()
    for node in (machine.node_by_id[number] for number in usable):
        assert node.memory_bytes > 0
        assert not node.owner or (node.id in own and node.id in wished)
        in_wished_tier = request.tier is not None and node.tier == request.tier.tier
        assert node.id in machine.ordinary_nodes or node.id in wished or in_wished_tier


@given(questions())
def test_required_wishes_restrict_and_preferred_ones_never_do(question):
    machine, request = question
    usable = usable_nodes(machine, request)
    nodes_required = request.nodes is not None and request.nodes.required
    tier_required = request.tier is not None and request.tier.required
    if nodes_required:
        assert usable <= request.nodes.nodes
    if tier_required:
        assert usable <= tier_nodes(machine, request.tier.tier)
    if not nodes_required and not tier_required:
        assert machine.ordinary_nodes <= usable


@given(machines())
def test_memory_that_is_nobodys_is_ordinary_somewhere(machine):
    unowned = [node.id for node in machine.nodes if node.memory_bytes > 0 and not node.owner]
    assert bool(machine.ordinary_nodes) == bool(unowned)
    assert machine.ordinary_nodes <= NodeSet(unowned)
    for name, rank in tier_ranks(machine).items():
        assert tier_nodes(machine, rank), name


@pytest.mark.parametrize(
    ("wishes", "why"),
    [
        ({"nodes": NodeWish(nodes("16"))}, f"which is memory of a device that it does not have ({GPU})"),
        ({"nodes": NodeWish(nodes("32,64"))}, "and this machine has no memory there"),
        ({"tier": TierWish(7)}, "and this machine has no such nodes for it"),
        ({"nodes": NodeWish(nodes("8")), "tier": TierWish(2)}, "and none of these nodes is of that tier"),
    ],
)
def test_why_nothing_is_usable(wishes, why):
    assert why_unusable(MACHINE, asking(**wishes)) == why
