"""The devices of a node by its ledger: what the API server takes, and what claims can have."""

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from bayplan.agent.dra.slices import (
    capacity_key,
    device_name,
    devices_of,
    node_of_device,
    resource_of_key,
    resource_slices,
    step_of,
    with_mapping,
    without_lists,
)
from bayplan.model.basis import Basis
from bayplan.model.decision import Claim, Placement
from bayplan.model.ledger import Entry, Ledger
from bayplan.model.machine import Machine
from bayplan.model.policy import PlacementPolicy
from bayplan.quantity import GIB, MIB, parse_quantity
from bayplan.sets import CpuSet, NodeSet
from bayplan.simulate.topology_sources import read_topology
from bayplan.views.node_room import claimable_by_node
from support.exact_draws import draw_machine
from support.layouts import Layout
from support.slice_rules import complaints, pool_devices
from support.snapshots import BURSTABLE, MACHINE, make_snapshot

DATA = Path(__file__).parents[3] / "data"
FILES = sorted([*(DATA / "machines").glob("*.txt"), *(DATA / "gallery").glob("*.yaml")])
NUMA = "resource.kubernetes.io/numaNode"
NOTHING = {"value": "0", "requestPolicy": {"default": "0", "validValues": ["0"]}}


def devices(**changes: object) -> dict[str, dict]:
    found = pool_devices(resource_slices("node-a", "uid", devices_of(make_snapshot(**changes)), 1))
    assert found is not None
    return found


def value(device: dict, key: str) -> int:
    return int(parse_quantity(device["capacity"][f"bayplan.dev/{key}"]["value"]))


def test_a_device_has_what_is_left_on_its_node() -> None:
    found = devices()
    assert list(found) == ["numa-0", "numa-1"]
    # 3 Gi less 64 Mi of huge pages are allocatable; 1 Gi, 4 Mi of these and CPUs 2 and 3 are a container's.
    first = found["numa-0"]
    assert value(first, "memory") == 2 * GIB - 64 * MIB
    assert value(first, "hugepages2Mi") == 60 * MIB
    assert value(first, "cpu") == 1
    assert first["capacity"]["bayplan.dev/cpu"]["requestPolicy"] == {
        "default": "0",
        "validRange": {"min": "0", "step": "1"},
    }
    assert first["allowMultipleAllocations"] is True
    assert first["attributes"][NUMA] == {"int": 0}
    assert first["attributes"]["bayplan.dev/memoryTier"] == {"string": "dram"}


def test_of_less_than_a_step_nothing_can_be_claimed() -> None:
    full = replace(BURSTABLE, placement=Placement(claim=Claim(NodeSet([1]), {"memory": 4 * GIB - MIB + 1})))
    found = devices(ledger=Ledger.of([Entry(full)]), policy=PlacementPolicy())
    assert found["numa-1"]["capacity"]["bayplan.dev/memory"] == NOTHING
    # Its pool has none.
    assert found["numa-1"]["capacity"]["bayplan.dev/hugepages2Mi"] == NOTHING
    assert value(found["numa-1"], "cpu") == 4


def test_what_is_promised_on_several_nodes_counts_where_it_cannot_lie_elsewhere() -> None:
    wide = replace(BURSTABLE, placement=Placement(claim=Claim(NodeSet([0, 1]), {"memory": 6 * GIB})))
    found = devices(ledger=Ledger.of([Entry(wide)]), policy=PlacementPolicy())
    assert [value(device, "memory") for device in found.values()] == [2 * GIB - 64 * MIB] * 2


def test_a_change_of_less_than_a_step_changes_nothing() -> None:
    small = replace(BURSTABLE, placement=Placement(claim=Claim(NodeSet([1]), {"memory": 8192})))
    smaller = replace(BURSTABLE, placement=Placement(claim=Claim(NodeSet([1]), {"memory": 4096})))
    assert devices(ledger=Ledger.of([Entry(small)])) == devices(ledger=Ledger.of([Entry(smaller)]))


def test_sockets_and_distances_are_groups() -> None:
    machine = Layout(sockets=2, nodes=2, caches=2, cores=2).machine()
    near = {(0, 1), (1, 0), (2, 3), (3, 2)}
    nodes = tuple(
        replace(
            node,
            distances={
                other: 10 if other == node.id else 12 if (node.id, other) in near else 21
                for other in range(4)
            },
        )
        for node in machine.nodes
    )
    found = devices(machine=Machine(nodes, machine.cpus), ledger=Ledger(), policy=PlacementPolicy())
    attributes = [device["attributes"] for device in found.values()]
    assert [one["bayplan.dev/socket"]["int"] for one in attributes] == [0, 0, 1, 1]
    assert [one["bayplan.dev/within12"]["int"] for one in attributes] == [0, 0, 2, 2]
    assert [one["bayplan.dev/l3Caches"]["int"] for one in attributes] == [2] * 4
    # All together, or each alone, is no grouping.
    assert not any(key.endswith(("within10", "within21")) for one in attributes for key in one)


def test_memory_of_another_tier_is_a_device_of_its_own_and_a_devices_memory_is_none() -> None:
    first, second = MACHINE.nodes
    slow = replace(second, cpus=CpuSet(), tier=2, initiators=NodeSet([0]))
    machine = Machine((replace(first, tier=1), slow), MACHINE.cpus[:4])
    found = devices(machine=machine, ledger=Ledger())
    assert found["numa-1"]["attributes"]["bayplan.dev/memoryTier"] == {"string": "slow"}
    assert found["numa-1"]["attributes"]["bayplan.dev/socket"] == {"int": 0}
    assert found["numa-1"]["attributes"]["bayplan.dev/coreKind"] == {"string": "none"}
    assert found["numa-1"]["capacity"]["bayplan.dev/cpu"] == NOTHING
    of_a_gpu = Machine((first, replace(slow, owner="gpu")), MACHINE.cpus[:4])
    assert list(devices(machine=of_a_gpu, ledger=Ledger())) == ["numa-0"]


@pytest.mark.parametrize(
    ("resource", "key", "step"),
    [
        ("memory", "memory", MIB),
        ("hugepages-2Mi", "hugepages2Mi", 2 * MIB),
        ("hugepages-1Gi", "hugepages1Gi", GIB),
        ("hugepages-64Ki", "hugepages64Ki", 64 << 10),
        ("cpu", "cpu", 1),
    ],
)
def test_names_of_capacities(resource: str, key: str, step: int) -> None:
    assert capacity_key(resource) == key
    assert resource_of_key(key) == resource_of_key(f"bayplan.dev/{key}") == resource
    assert step_of(resource) == step


def test_names_of_devices() -> None:
    assert [node_of_device(device_name(node)) for node in (0, 17)] == [0, 17]
    assert [node_of_device(name) for name in ("numa-", "cpu-1", "numa", "numa-x", "numa-1-2", "numa-²")] == [
        None
    ] * 6


@given(seed=st.integers(0, 10**6), count=st.integers(2, 12), held=st.integers(0, 200))
def test_the_api_server_takes_the_slices_of_every_machine(seed: int, count: int, held: int) -> None:
    draw = random.Random(seed)
    machine = draw_machine(draw, count)
    nodes = NodeSet(draw.sample(list(machine.memory_nodes), draw.randint(1, len(machine.memory_nodes))))
    taken = replace(BURSTABLE, placement=Placement(claim=Claim(nodes, {"memory": held * MIB // 2})))
    snapshot = make_snapshot(machine=machine, policy=PlacementPolicy(), ledger=Ledger.of([Entry(taken)]))
    made = resource_slices("node-a", "uid", devices_of(snapshot), 7)
    assert [one for each in made for one in complaints(each)] == []
    found = pool_devices(made)
    assert found is not None
    rooms = claimable_by_node(Basis(machine, snapshot.policy, snapshot.ledger))
    for node, room in rooms.items():
        for resource, amount in room.items():
            entry = found[device_name(node)]["capacity"].get(f"bayplan.dev/{capacity_key(resource)}")
            there = 0 if entry is None else int(parse_quantity(entry["value"]))
            assert there == amount // step_of(resource) * step_of(resource)


def test_more_nodes_than_a_slice_holds_are_several_slices_of_one_pool() -> None:
    machine = Layout(sockets=70, cores=1, threads=1).machine()
    snapshot = make_snapshot(machine=machine, ledger=Ledger(), policy=PlacementPolicy())
    made = resource_slices("n" * 253, "uid", devices_of(snapshot), 3)
    assert [len(one["spec"]["devices"]) for one in made] == [64, 6]
    assert [one for each in made for one in complaints(each)] == []
    found = pool_devices(made)
    assert found is not None
    assert len(found) == 70
    assert pool_devices(made[:1]) is None


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_api_server_takes_the_devices_of_each_machine_that_we_know(path: Path) -> None:
    """All that a slice may have: so many devices, so many attributes, so long a text."""
    machine = read_topology(path)
    fits(machine)
    fits(with_everything(machine))


def test_the_api_server_takes_the_devices_of_the_largest_machines() -> None:
    for made in (Layout(sockets=36, cores=4), Layout(sockets=4, nodes=9, cores=4, caches=2)):
        fits(with_everything(made.machine()))


def with_everything(machine: Machine) -> Machine:
    """*machine* with all page sizes of any kernel, groups at many distances, and PCI roots."""
    sizes = {
        size: 8 * size for size in (64 << 10, MIB, 2 * MIB, 16 * MIB, 32 * MIB, 512 * MIB, GIB, 16 * GIB)
    }
    ids = [node.id for node in machine.nodes]
    nodes = tuple(
        replace(
            node,
            hugepages_bytes=sizes,
            memory_bytes=1024 * GIB,
            # A tree: two nodes of each pair at 12, two pairs at 14, and so on.
            distances={other: 10 + 2 * (ids.index(node.id) ^ ids.index(other)).bit_length() for other in ids},
            pcie_roots=tuple(f"pci{node.id:04x}:{root:02x}" for root in range(24)),
        )
        for node in machine.nodes
    )
    return Machine(nodes, machine.cpus)


def fits(machine: Machine) -> None:
    snapshot = make_snapshot(machine=machine, ledger=Ledger(), policy=PlacementPolicy())
    found = [with_mapping(device) for device in devices_of(snapshot)]
    for taken in (found, [without_lists(device) for device in found]):
        made = resource_slices("n" * 253, "uid", taken, 3)
        assert [one for each in made for one in complaints(each)] == []
        assert pool_devices(made) == {device["name"]: device for device in taken}


def test_the_roots_of_pci_devices_are_a_list_and_none_where_they_are_too_many() -> None:
    first, second = MACHINE.nodes
    few = replace(first, pcie_roots=("pci0000:00", "pci0000:16"))
    many = replace(second, pcie_roots=tuple(f"pci0000:{root:02x}" for root in range(25)))
    found = devices(machine=Machine((few, many), MACHINE.cpus))
    roots = [device["attributes"].get("resource.kubernetes.io/pcieRoot") for device in found.values()]
    assert roots == [{"strings": ["pci0000:00", "pci0000:16"]}, None]
    assert without_lists(found["numa-0"])["attributes"].keys() == found["numa-1"]["attributes"].keys()
