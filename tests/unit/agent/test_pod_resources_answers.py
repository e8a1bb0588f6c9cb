"""What is promised, as kubelet's PodResources tell it."""

from msgspec.structs import replace

from bayplan._proto.podresources import api_pb2 as pb
from bayplan.agent.pod_resources import allocatable_answer, get_answer, list_answer
from bayplan.model.basis import Allocatable
from bayplan.model.decision import Claim, Decision, Placement
from bayplan.model.ledger import Entry, Ledger
from bayplan.model.policy import PlacementPolicy
from bayplan.quantity import GIB, MIB
from bayplan.sets import CpuSet, NodeSet
from support.snapshots import BURSTABLE, GUARANTEED, MACHINE, PINNED, make_snapshot

NOTHING = pb.ListPodResourcesResponse()


def placed(placement: Placement, decision: Decision = GUARANTEED, **request: object) -> Entry:
    return Entry(replace(decision, placement=placement, request=replace(decision.request, **request)))


def blocks(memory) -> list[tuple[str, int, list[int]]]:
    return [(one.memory_type, one.size, [node.ID for node in one.topology.nodes]) for one in memory]


def only_container(ledger: Ledger, kubelet: pb.ListPodResourcesResponse = NOTHING) -> pb.ContainerResources:
    (pod,) = list_answer(ledger, kubelet).pod_resources
    (container,) = pod.containers
    return container


def test_every_pod_is_listed_with_what_is_bound_for_its_containers() -> None:
    listed = list_answer(make_snapshot().ledger, NOTHING)
    pods = {(pod.namespace, pod.name): list(pod.containers) for pod in listed.pod_resources}
    assert list(pods) == [("default", "job"), ("default", "web-0"), ("kube-system", "agent")]
    (nginx,) = pods["default", "web-0"]
    assert (nginx.name, list(nginx.cpu_ids)) == ("nginx", [2, 3])
    assert blocks(nginx.memory) == [("hugepages-2Mi", 4 * MIB, [0]), ("memory", GIB, [0])]
    for free in (*pods["default", "job"], *pods["kube-system", "agent"]):
        assert not free.cpu_ids
        assert not free.memory


def test_a_claim_on_several_nodes_is_one_block_with_all_of_them() -> None:
    claim = Claim(NodeSet([0, 1]), {"memory": 5 * GIB, "hugepages-2Mi": 0})
    container = only_container(Ledger.of([placed(Placement(NodeSet([0, 1]), claim=claim))]))
    assert blocks(container.memory) == [("memory", 5 * GIB, [0, 1])]


def test_huge_pages_that_lie_evenly_are_a_block_for_each_node() -> None:
    claim = Claim(NodeSet([0, 1]), {"memory": GIB, "hugepages-2Mi": 8 * MIB}, even_hugepages=True)
    container = only_container(Ledger.of([placed(Placement(NodeSet([0, 1]), claim=claim))]))
    assert blocks(container.memory) == [
        ("hugepages-2Mi", 4 * MIB, [0]),
        ("hugepages-2Mi", 4 * MIB, [1]),
        ("memory", GIB, [0, 1]),
    ]


def test_bookings_on_several_nodes_are_one_block_with_all_nodes_of_the_container() -> None:
    booked = {0: {"memory": 3 * GIB}, 1: {"memory": GIB}}
    container = only_container(Ledger.of([placed(Placement(NodeSet([0, 1]), booked_bytes=booked))]))
    assert blocks(container.memory) == [("memory", 4 * GIB, [0, 1])]


def test_the_claim_of_a_container_that_may_use_every_node_is_bound_nowhere() -> None:
    claim = Claim(NodeSet([0, 1]), {"memory": GIB})
    assert not only_container(Ledger.of([placed(Placement(claim=claim))])).memory


def test_containers_without_a_kubernetes_pod_are_not_listed() -> None:
    by_hand = placed(GUARANTEED.placement, name="-/-/0123456789ab")
    assert not list_answer(Ledger.of([by_hand]), NOTHING).pod_resources


def test_both_of_two_containers_of_one_name_are_listed_as_both_hold_something() -> None:
    again = placed(Placement(NodeSet([1]), CpuSet([5]), {1: {"memory": GIB}}), container_id="zzz")
    (pod,) = list_answer(Ledger.of([Entry(GUARANTEED), again]), NOTHING).pod_resources
    assert [(one.name, list(one.cpu_ids)) for one in pod.containers] == [("nginx", [2, 3]), ("nginx", [5])]


def kubelet_pod(namespace: str, name: str, *containers: pb.ContainerResources) -> pb.PodResources:
    return pb.PodResources(namespace=namespace, name=name, containers=containers)


def test_devices_and_dynamic_resources_are_kubelets_and_what_bayplan_assigned_is_not() -> None:
    devices = pb.ContainerDevices(resource_name="example.com/gpu", device_ids=["gpu-0"])
    claim = pb.DynamicResource(claim_name="nic", claim_namespace="default")
    told = pb.ContainerResources(
        name="nginx",
        devices=[devices],
        dynamic_resources=[claim],
        cpu_ids=[7],
        memory=[pb.ContainerMemory(memory_type="memory", size=1)],
    )
    kubelet = pb.ListPodResourcesResponse(pod_resources=[kubelet_pod("default", "web-0", told)])
    container = only_container(Ledger.of([Entry(GUARANTEED)]), kubelet)
    assert list(container.devices) == [devices]
    assert list(container.dynamic_resources) == [claim]
    assert list(container.cpu_ids) == [2, 3]
    assert ("memory", GIB, [0]) in blocks(container.memory)


def test_what_kubelets_managers_assigned_and_bayplan_left_to_them_is_passed_on() -> None:
    told = pb.ContainerResources(name="agent", cpu_ids=[7])
    other = pb.ContainerResources(name="only-kubelet-knows", cpu_ids=[6])
    kubelet = pb.ListPodResourcesResponse(
        pod_resources=[kubelet_pod("kube-system", "agent", told, other), kubelet_pod("default", "waiting")]
    )
    listed = list_answer(Ledger.of([Entry(PINNED)]), kubelet)
    assert [pod.name for pod in listed.pod_resources] == ["waiting", "agent"]
    assert [(one.name, list(one.cpu_ids)) for one in listed.pod_resources[1].containers] == [
        ("agent", [7]),
        ("only-kubelet-knows", [6]),
    ]


def test_what_kubelet_assigned_to_a_pod_as_a_whole_is_passed_on_unless_bayplan_assigned_something() -> None:
    told = pb.ContainerResources(name="excl", cpu_ids=[1, 9])
    memory = [pb.ContainerMemory(memory_type="memory", size=1)]
    pods = [
        pb.PodResources(
            namespace=namespace, name=name, containers=[told], cpu_ids=[1, 2, 9, 10], memory=memory
        )
        for namespace, name in (("kube-system", "agent"), ("default", "web-0"))
    ]
    kubelet = pb.ListPodResourcesResponse(pod_resources=pods)
    ours, theirs = list_answer(Ledger.of([Entry(PINNED), Entry(GUARANTEED)]), kubelet).pod_resources
    assert (theirs.name, list(theirs.cpu_ids), list(theirs.memory)) == ("agent", [1, 2, 9, 10], memory)
    assert (ours.name, list(ours.cpu_ids), list(ours.memory)) == ("web-0", [], [])


def test_one_pod_is_found_by_namespace_and_name() -> None:
    listed = list_answer(Ledger.of([Entry(GUARANTEED), Entry(BURSTABLE)]), NOTHING)
    found = get_answer(listed, ("default", "web-0"))
    assert found is not None
    assert found.pod_resources == listed.pod_resources[1]
    assert get_answer(listed, ("web-0", "default")) is None


def test_allocatable_is_what_the_reservations_leave_of_each_node() -> None:
    devices = pb.ContainerDevices(resource_name="example.com/gpu", device_ids=["gpu-0", "gpu-1"])
    policy = PlacementPolicy(reserved_bytes={0: {"memory": GIB}}, reserved_cpus=CpuSet([0, 4]))
    kubelet = pb.AllocatableResourcesResponse(devices=[devices], cpu_ids=range(8))
    answer = allocatable_answer(Allocatable(MACHINE, policy), kubelet)
    assert list(answer.devices) == [devices]
    assert list(answer.cpu_ids) == [1, 2, 3, 5, 6, 7]
    total = {node.id: node.capacity_bytes()["memory"] for node in MACHINE.nodes}
    assert blocks(answer.memory) == [
        ("hugepages-2Mi", 64 * MIB, [0]),
        ("memory", total[0] - GIB, [0]),
        ("memory", total[1], [1]),
    ]
