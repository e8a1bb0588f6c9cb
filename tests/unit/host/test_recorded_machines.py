"""The machines in tests/data/machines are understood; each shape once, in its own words."""

from pathlib import Path

import pytest

from bayplan.engines.exact.engine import ExactEngine
from bayplan.host.record import record, unpack
from bayplan.host.sysfs import GENERIC_INITIATOR, UNKNOWN_SOCKET, read_machine
from bayplan.model.basis import Basis
from bayplan.model.decision import Outcome
from bayplan.model.ledger import Entry, Ledger
from bayplan.model.machine import Performance
from bayplan.model.policy import CpuAlignment, PlacementPolicy, TopologyPolicy
from bayplan.quantity import GIB, MIB
from bayplan.sets import CpuSet, NodeSet
from support.requests import guaranteed_request

MACHINES = Path(__file__).parents[2] / "data" / "machines"
NAMES = sorted(path.stem for path in MACHINES.glob("*.txt"))


@pytest.fixture
def machine(tmp_path):
    def read(name):
        unpack((MACHINES / f"{name}.txt").read_text(), tmp_path)
        return read_machine(tmp_path)

    return read


def distances(machine):
    return [list(node.distances.values()) for node in machine.nodes]


def test_every_recording_is_in_the_readme_and_has_its_provenance():
    readme = (MACHINES / "README.md").read_text()
    assert len(NAMES) == 13
    for name in NAMES:
        assert f"| `{name}.txt` |" in readme
        assert (MACHINES / f"{name}.txt").read_text().startswith("# ")


@pytest.mark.parametrize("name", NAMES)
def test_recording_a_recording_changes_nothing(name, tmp_path):
    listing = (MACHINES / f"{name}.txt").read_text()
    unpack(listing, tmp_path)
    assert record(tmp_path) == "".join(
        line for line in listing.splitlines(keepends=True) if not line.startswith("#")
    )


def test_one_node(machine):
    found = machine("one-node-firecracker")
    assert found.node_ids == NodeSet([0])
    assert [cpu.core_id for cpu in found.cpus] == [0, 1]
    assert {cpu.l3_cache_id for cpu in found.cpus} == {0}
    assert found.nodes[0].hugepages_bytes == {2 * MIB: 0, GIB: 0}


def test_two_nodes_with_smt(machine):
    found = machine("two-nodes-smt")
    assert [node.cpus for node in found.nodes] == [CpuSet([0, 1, 2, 3]), CpuSet([4, 5, 6, 7])]
    assert [cpu.core_id for cpu in found.cpus] == [0, 0, 2, 2, 4, 4, 6, 6]
    assert [cpu.socket_id for cpu in found.cpus] == [0] * 4 + [1] * 4
    assert [cpu.l3_cache_id for cpu in found.cpus] == [0] * 4 + [4] * 4
    assert [node.hugepages_bytes[2 * MIB] for node in found.nodes] == [8 * MIB, 16 * MIB]
    assert all(200 * MIB < node.memory_bytes < 256 * MIB for node in found.nodes)


def test_asymmetric_distances(machine):
    assert distances(machine("four-nodes-asymmetric")) == [
        [10, 15, 20, 25],
        [16, 10, 26, 21],
        [20, 30, 10, 15],
        [40, 21, 17, 10],
    ]


def test_a_node_without_cpus(machine):
    found = machine("cpu-less-node")
    assert found.cpu_nodes == NodeSet([0, 1])
    assert found.memory_nodes == NodeSet([0, 1, 2])
    assert found.node_by_id[2].memory_bytes == max(node.memory_bytes for node in found.nodes)


def test_node_ids_with_a_gap(machine):
    found = machine("sparse-nodes")
    assert found.node_ids == NodeSet([0, 1, 3])
    assert found.node_by_id[3].cpus == CpuSet()
    assert found.node_by_id[0].distances == {0: 10, 1: 17, 3: 24}
    assert found.node_by_id[1].distances == {0: 18, 1: 10, 3: 32}
    assert found.node_by_id[3].distances == {0: 24, 1: 31, 3: 10}


def test_a_node_without_memory(machine):
    found = machine("memory-less-node")
    assert found.memory_nodes == NodeSet([0])
    assert found.node_by_id[1].memory_bytes == 0
    assert found.node_by_id[1].cpus == CpuSet([2, 3])


def test_offline_cpus(machine):
    found = machine("offline-cpus")
    assert found.online_cpus == CpuSet([0, 1, 3, 5, 6])
    assert [node.cpus for node in found.nodes] == [CpuSet([0, 1, 3]), CpuSet([5, 6])]
    offline = [cpu for cpu in found.cpus if not cpu.online]
    assert [(cpu.id, cpu.node_id, cpu.socket_id, cpu.l3_cache_id) for cpu in offline] == [
        (2, 0, UNKNOWN_SOCKET, None),
        (4, 1, UNKNOWN_SOCKET, None),
        (7, 1, UNKNOWN_SOCKET, None),
    ]
    assert found.cpu_by_id[3].core_id == 3  # its sibling 2 is offline
    assert found.cpu_by_id[5].l3_cache_id == 5  # CPU 4 would have given the name


def test_eight_nodes_with_an_l3_each(machine):
    found = machine("eight-nodes-l3-per-ccx")
    assert [cpu.l3_cache_id for cpu in found.cpus] == [cpu // 4 * 4 for cpu in range(32)]
    assert [cpu.core_id for cpu in found.cpus] == [cpu // 2 * 2 for cpu in range(32)]
    assert [cpu.socket_id for cpu in found.cpus] == [0] * 16 + [1] * 16
    assert found.nodes_of(CpuSet([0, 31])) == NodeSet([0, 7])


def test_cxl_memory_is_a_slower_tier(machine):
    found = machine("cxl-memory")
    assert [node.tier for node in found.nodes] == [0, 0, 1]
    assert [node.initiators for node in found.nodes] == [NodeSet([0]), NodeSet([1]), NodeSet([0])]
    assert found.node_by_id[2].performance == Performance(250, 250, 30_000, 30_000)
    assert found.ordinary_nodes == NodeSet([0, 1])


def test_hbm_is_a_faster_tier(machine):
    found = machine("hbm-flat-mode")
    assert [node.tier for node in found.nodes] == [1, 1, 0, 0]
    assert [node.initiators for node in found.nodes] == [NodeSet([node]) for node in (0, 1, 0, 1)]
    assert found.node_by_id[2].performance.read_bandwidth_mib_s == 400_000
    assert found.ordinary_nodes == NodeSet([0, 1])


def test_the_memory_of_a_gpu_is_not_ordinary_even_in_the_tier_of_the_cpus(machine):
    found = machine("gpu-nodes")
    assert found.node_ids == NodeSet.parse("0,2,4-10")
    assert found.memory_nodes == NodeSet([0, 2])
    assert found.node_by_id[2].tier == found.node_by_id[0].tier
    assert found.node_by_id[2].owner == "0009:01:00.0"
    assert {node.owner for node in found.nodes[2:]} == {GENERIC_INITIATOR}
    assert found.ordinary_nodes == NodeSet([0])


def test_the_halves_of_a_core_have_caches_of_their_own(machine):
    found = machine("power10-half-cores")
    assert {cpu.core_id for cpu in found.cpus} == {0, 8, 16, 24}
    assert [cpu.l3_cache_id for cpu in found.cpus[:8]] == [0, 1] * 4
    # Half a core to each is as much as a core of four threads.
    ledger, own = Ledger(), []
    for number, count in enumerate((4, 4, 4, 12)):
        request = guaranteed_request(f"c{number}", exclusive_cpus=count)
        decision = ExactEngine().decide(Basis(found, PlacementPolicy(), ledger), request)
        ledger = ledger.with_entry(Entry(decision))
        own.append(str(decision.placement.exclusive_cpus))
    assert own == ["1,3,5,7", "8,10,12,14", "9,11,13,15", "16-24,26,28,30"]
    # kubelet knows cores alone.
    strict = PlacementPolicy(TopologyPolicy.RESTRICTED, cpu_alignment=CpuAlignment(full_pcpus_only=True))
    request = guaranteed_request("c", exclusive_cpus=4)
    assert ExactEngine().decide(Basis(found, strict, Ledger()), request).outcome is Outcome.REFUSED


def test_the_highest_ids(machine):
    found = machine("highest-ids")
    assert found.node_ids == NodeSet([0, 1, 63, 64, 512, 1023])
    assert found.cpu_nodes == NodeSet([0, 1, 64, 1023])
    assert found.ordinary_nodes == NodeSet([0, 1, 63, 64, 1023])
    assert found.distance(1023, 0) == found.distance(0, 1023) == 25
