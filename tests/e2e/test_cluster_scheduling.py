"""Two nodes that have joined a control plane with the scheduler of scheduler-plugins: where pods go, what the
nodes refuse, and what becomes of the pods of a node that is drained.
"""

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import pytest
from testbed import kubernetes
from testbed.channel import LIMIT_S
from testbed.cluster import (
    PODS,
    POLL_S,
    TOPOLOGIES,
    await_object,
    await_published,
    is_ready,
    join,
    pod,
)
from testbed.kubelet import kubelet_disks
from testbed.kubernetes import KUBERNETES_VERSION
from testbed.node import Node
from testbed.topology import CLUSTER_NODE

from support.control_plane import MERGE, ControlPlane, running_control_plane
from support.kubernetes_page import agent_rules, scheduler_configuration

pytestmark = [pytest.mark.cluster, pytest.mark.matrix]

EVENTS = "/apis/events.k8s.io/v1/namespaces/default/events"
REPLICA_SETS = "/apis/apps/v1/namespaces/default/replicasets"
NODES = "/api/v1/nodes"
# Percent of an empty NUMA node's room that pods take first, one on each: `uneven` has less left, but most
# of it on one NUMA node.
LOADS = {"even": (60, 60), "uneven": (85, 40)}
# Only `uneven` has a NUMA node with room for it, and only once.
WANTED_PERCENT = 55
# Of a pod that is on every node, as an agent's is.
RESIDENT_PERCENT = 2
# A node has room for two of them, one on each NUMA node.
REPLICAS = 3


class Cluster:
    """The control plane, its nodes by name, and the room that they have when they are empty."""

    def __init__(self, plane: ControlPlane, nodes: Mapping[str, Node]) -> None:
        self.plane = plane
        self.nodes = nodes
        self._changes = itertools.count()
        self.empty = {name: self.room(name) for name in LOADS}
        self._whole = min(amount for room in self.empty.values() for amount in room.values())

    def room(self, name: str) -> dict[str, int]:
        """Bytes of memory that are left on each NUMA node, as the API server has it."""
        published = await_object(self.plane, f"{TOPOLOGIES}/{name}", lambda found: bool(found["zones"]))
        return {
            zone["name"]: int(one["available"])
            for zone in published["zones"]
            for one in zone["resources"]
            if one["name"] == "memory"
        }

    def guaranteed(self, percent: int) -> dict[str, dict[str, str]]:
        """Resources with so much of an empty NUMA node."""
        amounts = {"cpu": "100m", "memory": str(self._whole * percent // 100)}
        return {"limits": amounts, "requests": amounts}

    def launch(self, name: str, percent: int, **spec: object) -> dict[str, Any]:
        """Make a Guaranteed pod."""
        return self.plane.ask("POST", PODS, pod(name, self.guaranteed(percent), **spec))

    def load(self) -> None:
        """Have LOADS run, and wait until the nodes have published what is left."""
        made = [
            self.launch(f"{name}-{number}", percent, nodeName=name)
            for name, loads in LOADS.items()
            for number, percent in enumerate(loads)
        ]
        for one in made:
            await_object(self.plane, f"{PODS}/{one['metadata']['name']}", is_ready)
        for node_name, loads in LOADS.items():
            taken = self._whole * sum(loads) // 100 - len(loads)
            left = sum(self.empty[node_name].values()) - taken
            self.await_that(lambda name=node_name, most=left: sum(self.room(name).values()) <= most)

    def await_that(self, condition: Callable[[], bool], meanwhile: Callable[[], None] | None = None) -> None:
        """Wait until it holds."""
        deadline = time.monotonic() + LIMIT_S
        while not condition():
            assert time.monotonic() < deadline, self.plane.ask("GET", TOPOLOGIES)
            time.sleep(POLL_S)
            if meanwhile is not None:
                meanwhile()

    def change_objects(self) -> None:
        """Have the scheduler try pending pods again, as it does where pods come and go on any node."""
        for name in self.nodes:
            change = {"metadata": {"labels": {"change": str(next(self._changes))}}}
            self.plane.ask("PATCH", f"{TOPOLOGIES}/{name}", change, MERGE)

    def cordon(self, name: str, unschedulable: bool = True) -> None:
        """As `kubectl cordon` and `kubectl uncordon` do it."""
        self.plane.ask("PATCH", f"{NODES}/{name}", {"spec": {"unschedulable": unschedulable}}, MERGE)

    def drain(self, name: str) -> None:
        """As `kubectl drain --ignore-daemonsets` does it where a budget has it wait for each replacement. One
        that cannot be scheduled will do, too."""
        self.cordon(name)
        for uid, one in self.replicas_on(name).items():
            meta = {"name": one["metadata"]["name"], "namespace": "default"}
            body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": meta}
            self.plane.ask("POST", f"{PODS}/{meta['name']}/eviction", body)
            self.await_that(lambda uid=uid: self._is_replaced(uid), self.change_objects)

    def _is_replaced(self, uid: str) -> bool:
        found = self.replicas()
        settled = [one for one in found.values() if is_ready(one) or self.told("FailedScheduling", [one])]
        return uid not in found and len(settled) == REPLICAS

    def replicas(self) -> dict[str, Mapping[str, Any]]:
        """The pods of the ReplicaSet, by uid."""
        found = self.plane.ask("GET", f"{PODS}?labelSelector=app%3Dweb")["items"]
        return {one["metadata"]["uid"]: one for one in found}

    def replicas_on(self, name: str) -> dict[str, Mapping[str, Any]]:
        """Those of a node."""
        found = self.replicas().items()
        return {uid: one for uid, one in found if one["spec"].get("nodeName") == name}

    def run_replicas(self) -> None:
        """Make the ReplicaSet."""
        self.plane.start_controllers(kubernetes.controller_manager(), "replicaset-controller")
        template = pod("web", self.guaranteed(WANTED_PERCENT))
        template["metadata"] = {"labels": {"app": "web"}}
        wanted = {"replicas": REPLICAS, "selector": {"matchLabels": {"app": "web"}}, "template": template}
        made = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "web"}, "spec": wanted}
        self.plane.ask("POST", REPLICA_SETS, made)

    def await_running(self, **wanted: int) -> None:
        """Wait until so many replicas are ready on each node."""

        def run() -> bool:
            return all(
                sum(map(is_ready, self.replicas_on(name).values())) == number
                for name, number in wanted.items()
            )

        self.await_that(run, self.change_objects)

    def refusals(self) -> dict[str, int]:
        """How many containers each node has refused so far."""
        counters = {name: node.bayplan.status()["counters"] for name, node in self.nodes.items()}
        return {name: found.get("decisions_refused", 0) for name, found in counters.items()}

    def told(self, reason: str, made: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """The events with this reason on these pods. The agent may write one again for a pod that is gone."""
        uids = {one["metadata"]["uid"] for one in made}
        found = self.plane.ask("GET", EVENTS)["items"]
        return [one for one in found if one["reason"] == reason and one["regarding"].get("uid") in uids]

    def clear(self) -> None:
        """No pods, nor what would make them, nor events of them; the nodes are as in the beginning."""
        self.plane.stop_schedulers()
        self.plane.stop_controllers()
        for path in (REPLICA_SETS, PODS, EVENTS):
            self.plane.ask("DELETE", path)
        for name in LOADS:
            self.cordon(name, unschedulable=False)
            self.await_that(lambda name=name: self.room(name) == self.empty[name])


@pytest.fixture(scope="module")
def joined() -> Iterator[Cluster]:
    """The cluster of LOADS, whose nodes are joined once for all scenarios."""
    with ExitStack() as running:
        plane = running.enter_context(running_control_plane(kubernetes.api_server(), *LOADS))
        plane.define(kubernetes.topology_crd())
        token = plane.make_service_account("bayplan-agent", agent_rules())
        nodes = {}
        for name in LOADS:
            nodes[name] = node = Node(CLUSTER_NODE, "2.3", more_disks=kubelet_disks(KUBERNETES_VERSION))
            running.callback(node.shut_down)
            join(node, plane, name, token, "--topology-manager-policy", "single-numa-node")
            # Of a kubelet that was not ready yet; a controller takes it away.
            plane.ask("PATCH", f"{NODES}/{name}", {"spec": {"taints": None}}, MERGE)
        yield Cluster(plane, nodes)


@pytest.fixture
def cluster(joined: Cluster) -> Iterator[Cluster]:
    """The cluster without pods, whose scheduler is down."""
    yield joined
    joined.clear()


def waits(found: Mapping[str, Any]) -> bool:
    """Whether kubelet cannot create the pod's container."""
    (status,) = found["status"].get("containerStatuses") or [{}]
    return bool(status.get("state", {}).get("waiting", {}).get("reason") == "CreateContainerError")


def test_a_scheduler_that_knows_no_numa_nodes_sends_a_pod_where_it_is_refused(cluster: Cluster) -> None:
    cluster.load()
    refused = cluster.refusals()
    blind = {key: one for key, one in scheduler_configuration().items() if key != "profiles"}
    cluster.plane.start_scheduler(kubernetes.scheduler(), blind)
    wanted = cluster.launch("wanted", WANTED_PERCENT)
    found = await_object(cluster.plane, f"{PODS}/wanted", waits)
    assert found["spec"]["nodeName"] == "even"
    cluster.await_that(lambda: bool(cluster.told("PlacementRefused", [wanted])))
    assert cluster.refusals()["even"] > refused["even"]


def test_no_node_refuses_a_pod_and_a_full_cluster_says_why(cluster: Cluster) -> None:
    cluster.load()
    refused = cluster.refusals()
    cluster.plane.start_scheduler(kubernetes.scheduler(), scheduler_configuration())
    wanted = cluster.launch("wanted", WANTED_PERCENT)
    found = await_object(cluster.plane, f"{PODS}/wanted", is_ready)
    assert found["spec"]["nodeName"] == "uneven"

    # `even` has room for it, but none of its NUMA nodes has.
    assert (
        sum(cluster.room("even").values())
        > int(cluster.guaranteed(WANTED_PERCENT)["limits"]["memory"])
        > max(cluster.room("even").values())
    )
    late = cluster.launch("late", WANTED_PERCENT)
    cluster.await_that(lambda: bool(cluster.told("FailedScheduling", [late])))
    (event, *_) = cluster.told("FailedScheduling", [late])
    assert "cannot align container" in event["note"]
    assert "nodeName" not in cluster.plane.ask("GET", f"{PODS}/late")["spec"]
    assert cluster.told("PlacementRefused", [wanted, late]) == []
    assert cluster.refusals() == refused


def test_a_drained_node_s_pods_run_on_the_other_as_far_as_there_is_room_and_come_back(
    cluster: Cluster,
) -> None:
    refused = cluster.refusals()
    # Without any pod on a node the scheduler never compares what it counts there with what is published.
    for name in LOADS:
        cluster.launch(f"resident-{name}", RESIDENT_PERCENT, nodeName=name)
    for name in LOADS:
        await_object(cluster.plane, f"{PODS}/resident-{name}", is_ready)
    cluster.plane.start_scheduler(kubernetes.scheduler(), scheduler_configuration())
    cluster.run_replicas()
    cluster.await_that(
        lambda: sum(map(is_ready, cluster.replicas().values())) == REPLICAS, cluster.change_objects
    )
    drained, other = sorted(LOADS, key=lambda name: -len(cluster.replicas_on(name)))
    assert [len(cluster.replicas_on(name)) for name in (drained, other)] == [2, 1]
    stayed = cluster.replicas_on(other)

    began_s = time.monotonic()
    cluster.drain(drained)
    cluster.await_running(**{drained: 0, other: 2})
    (pending,) = (one for one in cluster.replicas().values() if "nodeName" not in one["spec"])
    (event, *_) = cluster.told("FailedScheduling", [pending])
    assert "1 cannot align container" in event["note"]
    assert "1 node(s) were unschedulable" in event["note"]
    assert stayed.keys() < cluster.replicas_on(other).keys()
    away_s = time.monotonic()

    cluster.cordon(drained, unschedulable=False)
    cluster.await_running(**{drained: 1, other: 2})
    assert cluster.replicas_on(drained).keys() == {pending["metadata"]["uid"]}
    print(f"drained within {away_s - began_s:.0f} s, back within {time.monotonic() - away_s:.0f} s")
    assert cluster.refusals() == refused
    for name, node in cluster.nodes.items():
        await_published(node, cluster.plane, name)
