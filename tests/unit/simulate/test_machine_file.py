"""Machine files: what can be said in them, and what is refused."""

import pytest

from bayplan.config.values import InvalidValueError
from bayplan.host.record import listing_of, unpack
from bayplan.host.sysfs import read_machine
from bayplan.model.machine import Machine
from bayplan.sets import CpuSet
from bayplan.simulate.machine_file import described_machine, parse_document

EPYC = """\
# 2 x 96 cores
threadsPerCore: 2
siblings: apart
coresPerL3: 8
nodesPerSocket: 4
distances: {socket: 12, remote: 32}
nodes:
- {count: 8, cpus: 48, memory: 96Gi}
"""


def machine_of(text: str) -> Machine:
    return described_machine(parse_document(text, ".yaml"))


def groups(machine: Machine, name: str) -> dict[object, CpuSet]:
    found: dict[object, list[int]] = {}
    for cpu in machine.cpus:
        if cpu.online:
            found.setdefault(getattr(cpu, name), []).append(cpu.id)
    return {key: CpuSet(cpus) for key, cpus in found.items()}


def lists(machine: Machine, name: str) -> list[str]:
    return [str(cpus) for cpus in groups(machine, name).values()]


def test_a_server_of_2_x_96_cores_in_ten_lines():
    found = machine_of(EPYC)
    assert len(EPYC.splitlines()) <= 10
    assert len(found.online_cpus) == 384
    assert str(found.node_by_id[1].cpus) == "24-47,216-239"
    assert groups(found, "core_id")[25] == CpuSet([25, 217])
    assert groups(found, "l3_cache_id")[8] == CpuSet.parse("8-15,200-207")
    assert len(groups(found, "l3_cache_id")) == 24
    assert [str(cpus) for cpus in groups(found, "socket_id").values()] == ["0-95,192-287", "96-191,288-383"]
    assert found.distances_from(found.nodes[1]) == [12, 10, 12, 12, 32, 32, 32, 32]


def test_neighbours_are_threads_unless_they_are_apart():
    found = machine_of("{threadsPerCore: 2, nodes: [{cpus: 4, memory: 1Gi}, {cpus: '8-11', memory: 1Gi}]}")
    assert lists(found, "core_id") == ["0-1", "2-3", "8-9", "10-11"]
    found = machine_of("{nodes: [{cpus: '0,4,2,6', memory: 1Gi, threadsPerCore: 2, siblings: apart}]}")
    assert lists(found, "core_id") == ["0,4", "2,6"]


def test_sockets_of_a_node_and_nodes_of_a_socket():
    found = machine_of("{coresPerSocket: 2, nodes: [{count: 2, cpus: 4, memory: 1Gi}]}")
    assert lists(found, "socket_id") == ["0-1", "2-3", "4-5", "6-7"]
    found = machine_of("{nodesPerSocket: 2, nodes: [{count: 4, cpus: 2, memory: 1Gi}]}")
    assert lists(found, "socket_id") == ["0-3", "4-7"]
    found = machine_of("{nodes: [{cpus: 2, memory: 1Gi, socket: 7}, {cpus: 2, memory: 1Gi, socket: 7}]}")
    assert groups(found, "socket_id") == {7: CpuSet(range(4))}


def test_caches_dies_and_clusters_by_amount():
    found = machine_of(
        "{threadsPerCore: 2, coresPerL3: 2, coresPerCluster: 1, coresPerDie: 4, "
        "nodes: [{cpus: 16, memory: 1Gi}, {cpus: 8, memory: 1Gi, coresPerL3: 0}]}"
    )
    assert lists(found, "l3_cache_id") == ["0-3", "4-7", "8-11", "12-15", "16-23"]
    assert found.cpu_by_id[16].l3_cache_id is None
    assert lists(found, "die_id") == ["0-7", "8-15", "16-23"]
    assert found.cpu_by_id[7].cluster_id == 6


def test_what_is_irregular_is_said_in_lists():
    found = machine_of(
        "{cores: ['0,3'], l3: ['0-1', '2-3'], clusters: ['1-2'], dies: ['0-3'], sockets: {36: '0-1'}, "
        "nodes: [{cpus: 4, memory: 1Gi}]}"
    )
    assert [cpu.core_id for cpu in found.cpus] == [0, 1, 2, 0]
    assert [cpu.l3_cache_id for cpu in found.cpus] == [0, 0, 2, 2]
    assert [cpu.cluster_id for cpu in found.cpus] == [None, 1, 1, None]
    assert [cpu.socket_id for cpu in found.cpus] == [36, 36, 0, 0]


def test_a_hybrid_machine():
    found = machine_of(
        "kinds:\n"
        "  performance: {cpus: 0-11, threadsPerCore: 2}\n"
        "  efficiency: {cpus: 12-19, coresPerCluster: 4}\n"
        "nodes: [{cpus: 20, memory: 64Gi}]\n"
    )
    assert lists(found, "kind") == ["0-11", "12-19"]
    assert [cpu.core_id for cpu in found.cpus][10:14] == [10, 10, 12, 13]
    assert lists(found, "cluster_id") == ["0-11", "12-15", "16-19"]
    assert lists(found, "l3_cache_id") == ["0-19"]


def test_offline_and_isolated_cpus():
    found = machine_of(
        "{threadsPerCore: 2, offline: '0,5', isolated: '2-5', nodes: [{count: 2, cpus: 4, memory: 1Gi}]}"
    )
    assert str(found.online_cpus) == "1-4,6-7"
    assert str(found.isolated) == "2-4"
    assert [str(node.cpus) for node in found.nodes] == ["1-3", "4,6-7"]
    assert found.cpu_by_id[1].core_id == found.cpu_by_id[1].l3_cache_id == 1
    assert (found.cpu_by_id[5].node_id, found.cpu_by_id[5].online) == (1, False)


def test_one_direction_of_a_distance_is_both():
    found = machine_of(
        "{distances: {remote: 21}, nodes: [{count: 2, cpus: 1, memory: 1Gi}, "
        "{id: 8, memory: 1Gi, distances: {0: 24, 1: 34}}]}"
    )
    assert [found.distances_from(node) for node in found.nodes] == [[10, 21, 24], [21, 10, 34], [24, 34, 10]]


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("nodes: [{count: 4, cpus: 8, memory: 16Gi, distances: [10, 12, 32, 32]}]", "nodes[0].distances"),
        ("nodes: [{count: 4, cpus: 8, memory: 16Gi, distances: {0: 10}}]", "nodes[0].distances"),
        ("nodes: [{cpus: 8, memory: 16Gi, distances: [10, 12]}]", "nodes[0].distances"),
        ("nodes: [{cpus: 1, memory: 1Gi, distances: [10]}, {memory: 1Gi}]", "nodes[0].distances"),
        ("nodes: [{cpus: 8, memory: 16Gi, distances: [99]}]", "nodes[0].distances[0]"),
        ("nodes: [{cpus: 8, memory: 16Gi, distances: {0: 21}}]", "nodes[0].distances.0"),
        ("nodes: [{cpus: 8, memory: 16Gi, distances: {3: 21}}]", "nodes[0].distances"),
        ("{distances: [[10, 20]], nodes: [{count: 2, cpus: 8, memory: 1Gi}]}", "distances"),
        ("{distances: [[10], [10, 20]], nodes: [{count: 2, cpus: 8, memory: 1Gi}]}", "distances[0]"),
        ("{distances: [[10, 9], [10, 10]], nodes: [{count: 2, cpus: 8, memory: 1Gi}]}", "distances[0][1]"),
        ("{distances: {far: 20}, nodes: [{cpus: 8, memory: 1Gi}]}", "distances.far"),
        ("{distances: {remote: 300}, nodes: [{cpus: 8, memory: 1Gi}]}", "distances.remote"),
        ("{siblings: near, nodes: [{cpus: 8, memory: 1Gi}]}", "siblings"),
        ("{threadsPerCore: 2, siblings: apart, nodes: [{cpus: 3, memory: 1Gi}]}", "nodes"),
        ("{coresPerL3: 3, nodes: [{cpus: 8, memory: 1Gi}]}", "nodes[0].coresPerL3"),
        ("{offline: '9', nodes: [{cpus: 8, memory: 1Gi}]}", "offline"),
        ("{offline: '0-7', nodes: [{cpus: 8, memory: 1Gi}]}", "nodes"),
        ("{isolated: many, nodes: [{cpus: 8, memory: 1Gi}]}", "isolated"),
        ("{l3: ['0-1', '1-2'], nodes: [{cpus: 8, memory: 1Gi}]}", "l3[1]"),
        ("{l3: '0-1', nodes: [{cpus: 8, memory: 1Gi}]}", "l3"),
        ("{kinds: {strong: '0-7'}, nodes: [{cpus: 8, memory: 1Gi}]}", "kinds.strong"),
        ("{kinds: {performance: {0: '0-7'}}, nodes: [{cpus: 8, memory: 1Gi}]}", "kinds.performance.0"),
        ("{kinds: {performance: '0-3', efficiency: '4-6'}, nodes: [{cpus: 8, memory: 1Gi}]}", "kinds"),
        ("{kinds: {performance: '0-7'}, nodes: [{cpus: 8, memory: 1Gi}]}", "kinds"),
        ("nodes: [{cpus: 8, memory: 1Gi, hugepages: {2Mi: 3Mi}}]", "nodes[0].hugepages.2Mi"),
        ("nodes: [{cpus: 8, memory: 1Gi, owner: a/b}]", "nodes[0].owner"),
        ("nodes: [{count: 1024, cpus: 100, memory: 1Gi}]", "nodes"),
    ],
)
def test_what_cannot_be_is_named_by_its_path(text, path):
    with pytest.raises(InvalidValueError) as caught:
        machine_of(text)
    assert [problem.path for problem in caught.value.problems] == [path]


@pytest.mark.parametrize(
    "text",
    [
        EPYC,
        "{threadsPerCore: 2, offline: '0,5', isolated: '2-4', nodes: [{count: 2, cpus: 4, memory: 1Gi}]}",
        """\
kinds: {performance: {cpus: 0-3, threadsPerCore: 2}, middle: '4-5', efficiency: '6-7'}
nodes: [{cpus: 8, memory: 1Gi, devices: 2, hugepages: {2Mi: 4Mi}}]
""",
        """\
coresPerDie: 2
coresPerCluster: 1
nodes:
- {count: 2, cpus: 4, memory: 1Gi}
- {memory: 1Gi, tier: 1}
- {memory: 2Gi, owner: '0009:01:00.0'}
""",
    ],
)
def test_its_recording_is_the_same_machine(text, tmp_path):
    found = machine_of(text)
    unpack(listing_of(found), tmp_path)
    assert read_machine(tmp_path) == found
