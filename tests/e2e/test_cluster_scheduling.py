"""Two nodes that have joined a control plane with the scheduler of scheduler-plugins: where pods go, and what
the nodes refuse.
"""

import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml
from testbed import kubernetes
from testbed.channel import LIMIT_S
from testbed.cluster import PODS, POLL_S, await_object, is_ready, join, pod
from testbed.kubelet import kubelet_disk
from testbed.node import Node
from testbed.topology import CLUSTER_NODE

from support.control_plane import MERGE, ControlPlane, agent_rules, scheduler_configuration

pytestmark = [pytest.mark.cluster, pytest.mark.matrix]

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
TOPOLOGIES = "/apis/topology.node.k8s.io/v1alpha2/noderesourcetopologies"
EVENTS = "/apis/events.k8s.io/v1/namespaces/default/events"
NODES = "/api/v1/nodes"
# Percent of an empty NUMA node's room that pods take first, one on each: `uneven` has less left, but most
# of it on one NUMA node.
LOADS = {"even": (60, 60), "uneven": (85, 40)}
# Only `uneven` has a NUMA node with room for it, and only once.
WANTED_PERCENT = 55


class Cluster:
    """The control plane, and the room of its empty nodes."""

    def __init__(self, plane: ControlPlane) -> None:
        self.plane = plane
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

    def await_that(self, condition: Callable[[], bool]) -> None:
        """Wait until it holds."""
        deadline = time.monotonic() + LIMIT_S
        while not condition():
            assert time.monotonic() < deadline, self.plane.ask("GET", TOPOLOGIES)
            time.sleep(POLL_S)

    def told(self, reason: str, made: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """The events with this reason on these pods. The agent may write one again for a pod that is gone."""
        uids = {one["metadata"]["uid"] for one in made}
        found = self.plane.ask("GET", EVENTS)["items"]
        return [one for one in found if one["reason"] == reason and one["regarding"].get("uid") in uids]

    def clear(self) -> None:
        """No pods, nor events of them; the nodes are empty."""
        self.plane.stop_scheduler()
        for path in (PODS, EVENTS):
            self.plane.ask("DELETE", path)
        for name in LOADS:
            self.await_that(lambda name=name: self.room(name) == self.empty[name])


@pytest.fixture(scope="module")
def joined() -> Iterator[Cluster]:
    """The cluster of LOADS, whose nodes are joined once for all scenarios."""
    programs = kubernetes.api_server()
    with ExitStack() as running:
        # A socket's path is short; pytest's directories are not.
        directory = running.enter_context(tempfile.TemporaryDirectory())
        plane = ControlPlane(programs, Path(directory), nodes=tuple(LOADS))
        running.enter_context(plane.running())
        crd = yaml.safe_load((programs / kubernetes.TOPOLOGY_CRD).read_text())
        plane.apply(f"{CRDS}/{crd['metadata']['name']}", crd)
        token = plane.make_service_account("bayplan-agent", agent_rules())
        for name in LOADS:
            node = Node(CLUSTER_NODE, "2.1", more_disks={"kubelet": kubelet_disk()})
            running.callback(node.shut_down)
            join(node, plane, name, token, "--topology-manager-policy", "single-numa-node")
            # Of a kubelet that was not ready yet; a controller takes it away.
            plane.ask("PATCH", f"{NODES}/{name}", {"spec": {"taints": None}}, MERGE)
        yield Cluster(plane)


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
    blind = {key: one for key, one in scheduler_configuration().items() if key != "profiles"}
    cluster.plane.start_scheduler(kubernetes.scheduler(), blind)
    wanted = cluster.launch("wanted", WANTED_PERCENT)
    found = await_object(cluster.plane, f"{PODS}/wanted", waits)
    assert found["spec"]["nodeName"] == "even"
    cluster.await_that(lambda: bool(cluster.told("PlacementRefused", [wanted])))


def test_no_node_refuses_a_pod_and_a_full_cluster_says_why(cluster: Cluster) -> None:
    cluster.load()
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
