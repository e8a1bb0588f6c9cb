"""The bed itself: topologies come out as asked, every containerd runs pods, and the kernel's view can be
read.
"""

from dataclasses import replace

import pytest
from testbed.errors import CommandError
from testbed.node import Node
from testbed.pods import MIB, Container, Pod, best_effort, guaranteed
from testbed.scenario import on
from testbed.topology import FAR_MEMORY, FOUR_NODES, NO_MEMORY, NumaNode, Path, Topology

HMAT = Topology(
    "hmat",
    (NumaNode(2, 1024), NumaNode(2, 1024), NumaNode(0, 512)),
    sockets_per_node=2,
    distances=((10, 20, 30), (20, 10, 40), (30, 40, 10)),
    hmat=(
        *(Path(initiator=i, target=i, latency_ns=10, bandwidth_mib_s=10_000) for i in (0, 1)),
        *(Path(initiator=i, target=1 - i, latency_ns=20, bandwidth_mib_s=5_000) for i in (0, 1)),
        Path(initiator=0, target=2, latency_ns=100, bandwidth_mib_s=2_000),
        Path(initiator=1, target=2, latency_ns=150, bandwidth_mib_s=1_000),
    ),
    kernel_args=("numa_balancing=enable",),
)


def expect_topology(node: Node) -> None:
    wanted, count = node.topology, len(node.topology.nodes)
    assert node.kernel.nodes_online() == set(range(count))
    assert node.kernel.cpus_of_nodes() == {i: set(wanted.cpus_of(i)) for i in range(count)}
    assert node.kernel.distances() == {i: [wanted.distance(i, j) for j in range(count)] for i in range(count)}
    memory = node.kernel.memory_of_nodes()
    for i, numa_node in enumerate(wanted.nodes):
        asked = numa_node.memory_mib * MIB
        # The kernel keeps its own image and tables for itself, most of them on the first node.
        assert asked * 0.85 <= memory[i] <= asked
    huge = node.kernel.hugepages_of_nodes()
    assert huge == {i: numa_node.hugepages_2mi for i, numa_node in enumerate(wanted.nodes)}


@on(FOUR_NODES, "2.3")
def test_four_nodes_with_distances_and_huge_pages(node: Node) -> None:
    expect_topology(node)


@pytest.mark.matrix
@on(FAR_MEMORY, "2.3")
def test_a_node_without_cpus(node: Node) -> None:
    expect_topology(node)
    assert node.kernel.cpus_of_nodes()[2] == frozenset()


@pytest.mark.matrix
@on(NO_MEMORY, "2.3")
def test_a_node_without_memory(node: Node) -> None:
    expect_topology(node)
    assert node.kernel.memory_of_nodes()[1] == 0


@pytest.mark.matrix
@on(HMAT, "2.3")
def test_latency_and_bandwidth_from_firmware_tables(node: Node) -> None:
    expect_topology(node)
    read = "/sys/devices/system/node/node{}/access0/initiators/read_{}"
    measures = [(i, what) for i in (0, 1, 2) for what in ("latency", "bandwidth")]
    assert [int(node.guest.read(read.format(i, what))) for i, what in measures] == [
        *(10, 10_000),
        *(10, 10_000),
        *(100, 2_000),
    ]
    packages = node.guest.read_files(
        "/sys/devices/system/cpu/cpu*/topology/physical_package_id", pattern=True
    )
    assert {text.strip() for text in packages.values()} == {"0", "1", "2", "3"}
    assert node.guest.read("/proc/sys/kernel/numa_balancing").strip() == "1"


@on(FOUR_NODES)
def test_the_asked_version_serves(node: Node, request: pytest.FixtureRequest) -> None:
    version = request.node.callspec.params["node"].version
    said = dict(line.split(":", 1) for line in node.crictl("version").stdout.splitlines())
    assert said["RuntimeVersion"].strip().removeprefix("v").startswith(f"{version}.")


@on(FOUR_NODES)
def test_a_pod_starts_and_the_kernel_view_is_readable(node: Node) -> None:
    pod = guaranteed("first", cpus=1, memory="64Mi").touching("16Mi")
    pinned = replace(pod.containers[0], cpuset_cpus="2-3", cpuset_mems="1")
    running = node.launch(pod.with_containers(pinned))
    node.crictl.await_log(running, "touched")

    view = node.view(running)
    assert view.mems_allowed == {1}
    assert view.cpus_allowed == {2, 3}
    assert view.cpuset_mems_effective == {1}
    assert view.oom_score_adj == -997
    assert view.memory_max_bytes == 64 * MIB
    assert view.oom_group is False
    assert view.cgroup.startswith(f"{pod.cgroup_parent}/")
    assert set(view.anon_bytes()) == {1}
    assert view.anon_bytes()[1] >= 16 * MIB
    assert node.crictl.execute(running.container_id, "echo", "hello").stdout.strip() == "hello"


@pytest.mark.matrix
@on(FOUR_NODES, "2.3")
def test_huge_pages_are_charged_to_the_container(node: Node) -> None:
    pod = guaranteed("huge", cpus=1, memory="64Mi", hugepages={"2MB": 8 * MIB}).touching(
        "8Mi", hugepages="2Mi"
    )
    running = node.launch(pod)
    node.crictl.await_log(running, "touched")
    view = node.view(running)
    assert view.limit("hugetlb.2MB.max") == 8 * MIB
    assert view.limit("hugetlb.2MB.current") == 8 * MIB


@pytest.mark.matrix
@on(FOUR_NODES, "2.3")
def test_what_crictl_refuses_is_an_error_with_its_words(node: Node) -> None:
    nonsense = Container(cpuset_mems="63")
    with pytest.raises(CommandError, match=r"cpuset|mems|range|Invalid|invalid"):
        node.launch(Pod("nonsense", containers=(nonsense,)))


@pytest.mark.matrix
@on(FOUR_NODES, "2.3", "2.4")
def test_containers_survive_a_restart_of_containerd(node: Node) -> None:
    running = node.launch(best_effort("survivor"))
    before = node.crictl.pid(running.container_id)
    node.containerd.restart()
    assert node.crictl.pid(running.container_id) == before
    node.crictl.update(running.container_id, cpu_share=512)
    assert node.view(running).files["cpu.weight"].strip() != "1"
