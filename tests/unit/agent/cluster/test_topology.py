"""The NodeResourceTopology object by the ledger."""

import json

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from bayplan._proto.podresources import api_pb2 as pb
from bayplan.agent.cluster.node_objects import pod_fingerprint, pods_of, topology_object
from bayplan.agent.pod_resources import allocatable_answer
from bayplan.config.reservations import resolve_policy
from bayplan.config.settings import Settings
from bayplan.engines.exact.resources import ResourceFlows
from bayplan.engines.kubelet.memory_state import empty_nodes
from bayplan.model.basis import Allocatable, Basis
from bayplan.model.decision import Claim, Placement
from bayplan.model.ledger import Entry, Ledger
from bayplan.model.machine import Machine
from bayplan.model.policy import PlacementPolicy, TopologyPolicy
from bayplan.placement.measured_reservation import learn
from bayplan.quantity import GIB, MIB
from bayplan.sets import NodeSet
from bayplan.views.node_room import node_rooms
from bayplan.views.status import nodes_view
from support.snapshots import BURSTABLE, GUARANTEED, MACHINE, PINNED, make_snapshot


def amounts(zone: dict, resource: str) -> tuple[int, int, int]:
    (found,) = (one for one in zone["resources"] if one["name"] == resource)
    return int(found["capacity"]), int(found["allocatable"]), int(found["available"])


def test_the_object_is_the_nodes_room() -> None:
    made = topology_object("node-a", "uid-1", make_snapshot())
    assert json.loads(json.dumps(made)) == made
    assert (made["apiVersion"], made["kind"]) == ("topology.node.k8s.io/v1alpha2", "NodeResourceTopology")
    assert made["metadata"]["ownerReferences"] == [
        {"apiVersion": "v1", "kind": "Node", "name": "node-a", "uid": "uid-1"}
    ]
    first, second = made["zones"]
    assert (first["name"], first["type"]) == ("node-0", "Node")
    assert second["costs"] == [{"name": "node-0", "value": 31}, {"name": "node-1", "value": 10}]
    # CPU 0 is reserved, 2 and 3 are a container's own, as 1 Gi and 4 Mi of huge pages are.
    assert amounts(first, "cpu") == (4, 3, 1)
    assert amounts(first, "memory") == (4 * GIB - 64 * MIB, 3 * GIB - 64 * MIB, 2 * GIB - 64 * MIB)
    assert amounts(first, "hugepages-2Mi") == (64 * MIB, 64 * MIB, 60 * MIB)
    # CPU 7 is another program's choice for a container of its.
    assert amounts(second, "cpu") == (4, 4, 3)
    assert amounts(second, "memory") == (4 * GIB, 4 * GIB, 4 * GIB)


def test_what_is_promised_on_several_nodes_counts_where_it_cannot_lie_elsewhere() -> None:
    claim = Claim(NodeSet([0, 1]), {"memory": 6 * GIB})
    wide = replace(BURSTABLE, placement=Placement(NodeSet([0, 1]), claim=claim))
    snapshot = make_snapshot(ledger=Ledger.of([Entry(wide)]), policy=PlacementPolicy())
    zones = topology_object("node-a", "", snapshot)["zones"]
    rooms = node_rooms(Basis(MACHINE, snapshot.policy, snapshot.ledger))
    free = [room["resources"]["memory"]["freeBytes"] for room in rooms]
    assert [amounts(zone, "memory")[2] for zone in zones] == free
    nodes = nodes_view(snapshot)["nodes"]
    assert [node["resources"]["memory"]["safeBytes"] for node in nodes] == free
    # 4 Gi less 64 Mi of huge pages, and 4 Gi: on either one, what 6 Gi leave of both.
    assert free == [2 * GIB - 64 * MIB, 2 * GIB - 64 * MIB]


@given(st.lists(st.integers(0, 5 * GIB), min_size=2, max_size=2), st.integers(0, 4 * GIB), st.booleans())
def test_everybody_is_told_the_same_of_what_can_be_promised(
    held: list[int], kept: int, measured: bool
) -> None:
    """The engine's ledger, `nodes`, this object, PodResources, and the Memory Manager of a kubelet with the
    same amounts as reservedMemory."""
    settings = Settings(kube_reserved={"memory": kept}, measured_reservation=measured)
    learned = learn({}, dict(enumerate(held)), MACHINE, 1)
    snapshot = make_snapshot(policy=resolve_policy(settings, MACHINE, learned, Ledger()), ledger=Ledger())
    allocatable = Allocatable(MACHINE, snapshot.policy)
    expected = {node: row["memory"] for node, row in allocatable.bytes_by_node.items()}
    if measured:
        assert all(most <= 4 * GIB - held[node] or not most for node, most in expected.items())
    capacity = ResourceFlows(Basis(MACHINE, snapshot.policy, Ledger())).flow("memory").capacity
    assert {node: capacity.get(1 << node, 0) for node in expected} == expected
    shown = {one["id"]: one["resources"]["memory"] for one in nodes_view(snapshot)["nodes"]}
    assert {node: one["allocatableBytes"] for node, one in shown.items()} == expected
    assert {node: one["freeBytes"] for node, one in shown.items()} == expected
    zones = topology_object("node-a", "", snapshot)["zones"]
    assert {node: amounts(zone, "memory")[1:] for node, zone in enumerate(zones)} == {
        node: (most, most) for node, most in expected.items()
    }
    told = allocatable_answer(allocatable, pb.AllocatableResourcesResponse()).memory
    blocks = {one.topology.nodes[0].ID: one.size for one in told if one.memory_type == "memory"}
    assert {node: blocks.get(node, 0) for node in expected} == expected
    nodes = empty_nodes(MACHINE, snapshot.policy.reserved_bytes)
    assert {node: one.allocatable_bytes("memory") for node, one in nodes.items()} == expected


def test_memory_that_is_had_on_request_only_is_nobodys_room() -> None:
    first, second = MACHINE.nodes
    of_a_device = replace(second, cpus=type(second.cpus)(), owner="gpu")
    machine = Machine((first, of_a_device), MACHINE.cpus[:4])
    (zone,) = topology_object("node-a", "", make_snapshot(machine=machine, ledger=Ledger()))["zones"]
    assert zone["name"] == "node-0"
    without_memory = replace(second, memory_bytes=0, hugepages_bytes={})
    machine = Machine((first, without_memory), MACHINE.cpus)
    zones = topology_object("node-a", "", make_snapshot(machine=machine, ledger=Ledger()))["zones"]
    assert [one["name"] for one in zones[1]["resources"]] == ["cpu"]


def test_policy_and_pods_are_attributes() -> None:
    policy = PlacementPolicy(topology=TopologyPolicy.SINGLE_NUMA_NODE)
    made = topology_object("node-a", "", make_snapshot(policy=policy))
    attributes = {one["name"]: one["value"] for one in made["attributes"]}
    assert attributes == {
        "topologyManagerPolicy": "single-numa-node",
        "topologyManagerScope": "container",
        "nodeTopologyPodsFingerprint": pod_fingerprint(
            [("kube-system", "agent"), ("default", "web-0"), ("default", "job")]
        ),
        "nodeTopologyPodsFingerprintMethod": "all",
    }


def test_pods_count_once_also_between_their_containers_and_not_without_a_namespace() -> None:
    sidecar = replace(
        GUARANTEED, request=replace(GUARANTEED.request, container_id="s", name="default/web-0/s")
    )
    alone = replace(PINNED, request=replace(PINNED.request, container_id="d", name="-/-/d"))
    ledger = Ledger.of([Entry(GUARANTEED), Entry(sidecar), Entry(alone), Entry(BURSTABLE, ended=True)])
    assert pods_of(ledger) == {("default", "web-0"), ("default", "job")}


def test_the_fingerprint_depends_on_the_pods_and_not_on_their_order() -> None:
    pods = [("default", "a"), ("default", "b"), ("kube-system", "a")]
    assert pod_fingerprint(pods) == pod_fingerprint(reversed(pods))
    assert len({pod_fingerprint(pods[:count]) for count in range(4)}) == 4
    assert pod_fingerprint([("ab", "c")]) != pod_fingerprint([("a", "bc")])
