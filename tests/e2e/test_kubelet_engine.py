"""The engine that answers as kubelet: its placements in the kernel, its refusals in the runtime's words."""

from dataclasses import replace

import pytest
from testbed.node import Node
from testbed.pods import MIB, Pod, best_effort, guaranteed
from testbed.scenario import on
from testbed.topology import FOUR_NODES, SPLIT_SOCKETS

KUBELET = (
    "--engine=kubelet",
    "--reserved-cpus=0",
    "--reserved-memory=0:memory=25Mi;1:memory=25Mi;2:memory=25Mi;3:memory=25Mi",
)


def start(node: Node, policy: str, *flags: str) -> None:
    node.bayplan.start(*KUBELET, f"--topology-manager-policy={policy}", *flags)
    node.bayplan.await_synchronized()


@pytest.mark.matrix
@on(FOUR_NODES, "2.3")
def test_restricted_fills_node_after_node_and_refuses_in_kubelets_words(node: Node) -> None:
    start(node, "restricted")
    pods = [node.launch(guaranteed(f"full-{i}", 0.5, "600Mi").touching("300Mi")) for i in range(4)]
    for i, pod in enumerate(pods):
        node.crictl.await_log(pod, "touched")
        view = node.view(pod)
        assert view.mems_allowed == {i}
        assert {place for place, amount in view.numa_stat["anon"].items() if amount} == {i}
    one_too_many = guaranteed("one-too-many", 0.5, "600Mi")
    for _ in range(2):
        refusal = node.crictl.refused(one_too_many)
        assert "UnexpectedAdmissionError: default/one-too-many/main: " in refusal
        assert "[memorymanager]" in refusal
        # The second time the state is that of another daemon, made from what the first one recorded.
        node.bayplan.restart()
        node.bayplan.await_synchronized()
        one_too_many = replace(one_too_many, uid=f"{one_too_many.uid}-again")
    node.crictl.remove_sandbox(pods[2].sandbox_id)
    again = node.launch(guaranteed("reuse", 0.5, "600Mi"))
    assert node.view(again).mems_allowed == {2}
    assert node.bayplan.status()["daemon"]["engine"] == "kubelet"


@pytest.mark.matrix
@on(FOUR_NODES, "2.3")
def test_a_group_of_nodes_takes_no_single_node_pods_and_the_refusal_says_that_there_is_room(
    node: Node,
) -> None:
    start(node, "restricted")
    wide = node.launch(guaranteed("wide", 0.5, "1200Mi"))
    singles = [node.launch(guaranteed(f"single-{i}", 0.5, "700Mi")) for i in range(2)]
    assert node.view(wide).mems_allowed == {0, 1}
    assert [node.view(pod).mems_allowed for pod in singles] == [{2}, {3}]
    refusal = node.crictl.refused(guaranteed("barred", 0.5, "300Mi"))
    assert "TopologyAffinityError: default/barred/main: " in refusal
    assert "nodes 1 " in refusal


@pytest.mark.matrix
@on(FOUR_NODES, "2.3")
def test_single_numa_node_aligns_cpus_with_memory_and_never_takes_two_nodes(node: Node) -> None:
    start(node, "single-numa-node")
    assert "TopologyAffinityError" in node.crictl.refused(guaranteed("wide", 0.5, "1200Mi"))
    aligned = node.launch(guaranteed("aligned", 2, "300Mi").touching("100Mi"))
    node.crictl.await_log(aligned, "touched")
    view = node.view(aligned)
    assert view.cpus_allowed == {2, 3}
    assert view.mems_allowed == {1}
    assert {place for place, amount in view.numa_stat["anon"].items() if amount} == {1}
    assert "TopologyAffinityError" in node.crictl.refused(guaranteed("more-cpus-than-a-node", 3, "100Mi"))


@pytest.mark.matrix
@on(FOUR_NODES, "2.3")
def test_pod_scope_puts_all_of_a_pod_where_all_of_it_fits(node: Node) -> None:
    start(node, "single-numa-node", "--topology-manager-scope=pod")
    node.launch(guaranteed("resident", 0.5, "500Mi"))
    pod = _pair("pair", "200Mi", "500Mi")
    pair = node.launch(pod)
    assert [node.view(pair.container_ids[name]).mems_allowed for name in ("main", "side")] == [{1}, {1}]
    small = node.launch(guaranteed("small", 0.5, "200Mi"))
    assert node.view(small).mems_allowed == {0}
    sums = {**pod.sandbox_resources, "memory_limit_in_bytes": 1200 * MIB}
    too_wide = replace(_pair("too-wide", "600Mi", "600Mi"), sandbox_resources=sums)
    first = replace(too_wide, containers=too_wide.containers[:1])
    assert "TopologyAffinityError: default/too-wide/main" in node.crictl.refused(first)


@pytest.mark.matrix
@on(FOUR_NODES, "2.3")
def test_huge_pages_and_memory_come_from_one_node_until_no_node_has_both(node: Node) -> None:
    start(node, "restricted")
    pages = {"2MB": 64 * MIB}
    pods = [node.launch(guaranteed(f"huge-{i}", 0.5, "100Mi", hugepages=pages)) for i in range(4)]
    assert [node.view(pod).mems_allowed for pod in pods] == [{0}, {1}, {2}, {3}]
    entry = node.bayplan.decided(pods[1].container_id)
    assert entry is not None
    assert entry["bookedBytes"] == {"1": {"memory": 100 * MIB, "hugepages-2Mi": 64 * MIB}}
    refusal = node.crictl.refused(guaranteed("huge-4", 0.5, "100Mi", hugepages=pages))
    assert "[memorymanager]" in refusal
    assert node.view(node.launch(guaranteed("without", 0.5, "100Mi"))).mems_allowed == {0}


@pytest.mark.matrix
@on(FOUR_NODES, "2.3")
def test_exclusive_cpus_are_whole_cores_and_reserved_ones_are_nobodys(node: Node) -> None:
    options = "full-pcpus-only=true,strict-cpu-reservation=true"
    start(node, "restricted", f"--cpu-manager-policy-options={options}")
    shared = node.launch(best_effort("shared"))
    assert node.view(shared).cpus_allowed == {1, 2, 3, 4, 5, 6, 7}
    pods = [node.launch(guaranteed(f"core-{i}", 2, "100Mi")) for i in range(2)]
    assert [node.view(pod).cpus_allowed for pod in pods] == [{2, 3}, {4, 5}]
    assert [node.view(pod).mems_allowed for pod in pods] == [{1}, {2}]
    assert node.view(shared).cpus_allowed == {1, 6, 7}
    refusal = node.crictl.refused(guaranteed("half-a-core", 1, "100Mi"))
    assert "SMTAlignmentError: default/half-a-core/main: " in refusal
    node.crictl.stop(pods[0].container_id)
    node.await_view(shared, lambda view: view.cpus_allowed == {1, 2, 3, 6, 7})


def _pair(name: str, *memory: str) -> Pod:
    """A Guaranteed pod of the containers main and side, with kubelet's sums on its sandbox."""
    singles = [guaranteed(name, 0.5, amount) for amount in memory]
    containers = tuple(
        replace(single.containers[0], name=label)
        for single, label in zip(singles, ("main", "side"), strict=True)
    )
    sums = {
        key: sum(single.sandbox_resources[key] for single in singles) for key in singles[0].sandbox_resources
    }
    return replace(singles[0], containers=containers, sandbox_resources={**sums, "cpu_period": 100_000})


@pytest.mark.matrix
@on(SPLIT_SOCKETS, "2.3")
def test_cpus_of_two_nodes_come_from_one_socket(node: Node) -> None:
    assert node.kernel.packages() == {0: {0, 1, 2, 3}, 1: {4, 5, 6, 7}}
    gate = "--feature-gates=CPUManagerPolicyAlphaOptions=true"
    start(node, "best-effort", gate, "--cpu-manager-policy-options=align-by-socket=true")
    # CPU 0 is reserved: three of the first socket are left, on both of its nodes.
    pods = [node.launch(guaranteed(f"wide-{i}", 3, "100Mi")) for i in range(2)]
    assert [node.view(pod).cpus_allowed for pod in pods] == [{1, 2, 3}, {4, 5, 6}]
