"""A node that has joined a control plane: its pods come from there, and what bayplan decides goes there."""

import json
import re
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from testbed import kubernetes
from testbed.agent import GROUP, LOG
from testbed.bayplan import POLL_S
from testbed.channel import LIMIT_S
from testbed.cluster import PODS, await_object, await_published, is_ready, join, pod
from testbed.kubelet import kubelet_disks
from testbed.kubernetes import KUBERNETES_VERSION
from testbed.node import Node
from testbed.pods import MIB
from testbed.topology import CLUSTER_NODE

from support.control_plane import ControlPlane, running_control_plane
from support.kubernetes_page import agent_rules

pytestmark = [pytest.mark.cluster, pytest.mark.matrix]

NAME = "node-a"
EVENTS = "/apis/events.k8s.io/v1/namespaces/default/events"
STRATEGIC = "application/strategic-merge-patch+json"
REPLICA_SETS = "/apis/apps/v1/namespaces/default/replicasets"
AWAY_S = 60.0
HELD_MIB = 300


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    with running_control_plane(kubernetes.api_server(), NAME) as plane:
        plane.define(kubernetes.topology_crd())
        yield plane


@pytest.fixture(scope="module")
def joined(plane: ControlPlane) -> Iterator[Node]:
    """The node, joined once for all scenarios: that takes longer than any of them."""
    node = Node(CLUSTER_NODE, "2.3", more_disks=kubelet_disks(KUBERNETES_VERSION))
    try:
        token = plane.make_service_account("bayplan-agent", agent_rules())
        join(node, plane, NAME, token, "--topology-manager-policy", "single-numa-node")
        yield node
    finally:
        node.shut_down()


@pytest.fixture
def node(joined: Node, plane: ControlPlane) -> Iterator[Node]:
    """The node without pods."""
    yield joined
    for one in plane.ask("GET", PODS)["items"]:
        plane.ask("DELETE", f"{PODS}/{one['metadata']['name']}")
    joined.bayplan.await_known(())


def launch(plane: ControlPlane, name: str, resources: Mapping[str, Mapping[str, str]]) -> Mapping[str, Any]:
    """A pod on the node, once it is ready."""
    plane.ask("POST", PODS, pod(name, resources, nodeName=NAME))
    return await_object(plane, f"{PODS}/{name}", is_ready)


def guaranteed(memory: str) -> dict[str, dict[str, str]]:
    return {"limits": {"cpu": "250m", "memory": memory}, "requests": {"cpu": "250m", "memory": memory}}


def resize(plane: ControlPlane, name: str, resources: Mapping[str, Mapping[str, str]]) -> Mapping[str, Any]:
    """As `kubectl patch --subresource resize`; the container's status once kubelet has done it."""
    body = {"spec": {"containers": [{"name": "main", "resources": resources}]}}
    plane.ask("PATCH", f"{PODS}/{name}/resize", body, STRATEGIC)

    def done(found: Mapping[str, Any]) -> bool:
        now = found["status"]["containerStatuses"][0].get("resources", {})
        return all(
            now.get(kind, {}).get(key) == value
            for kind in resources
            for key, value in resources[kind].items()
        )

    found: Mapping[str, Any] = await_object(plane, f"{PODS}/{name}", done)["status"]["containerStatuses"][0]
    return found


def await_claim(node: Node, name: str, amount: int) -> Mapping[str, Any]:
    """Wait until the claim of the pod's container is exactly so much; what `bayplan status` says of it."""
    deadline = time.monotonic() + LIMIT_S
    while True:
        containers = {one["name"]: one for one in node.bayplan.status()["containers"]}
        found: Mapping[str, Any] = containers.get(f"default/{name}/main", {})
        memory = found.get("memory", {})
        if memory.get("requestExact") and memory["requestHighBytes"] == amount:
            return found
        log = node.guest.read_files(LOG).get(LOG, "")
        assert time.monotonic() < deadline, f"{json.dumps(found, indent=1)}\n{log}"
        time.sleep(POLL_S)


def container_id(status: Mapping[str, Any]) -> str:
    return str(status["containerID"].removeprefix("containerd://"))


def test_a_resize_in_place_corrects_the_claim_exactly(node: Node, plane: ControlPlane) -> None:
    launch(plane, "web", {"requests": {"cpu": "100m", "memory": "133Mi"}, "limits": {"memory": "200Mi"}})
    launch(plane, "db", guaranteed("300Mi"))
    web, db = await_claim(node, "web", 133 * MIB), await_claim(node, "db", 300 * MIB)
    await_published(node, plane, NAME)

    after = resize(plane, "web", {"requests": {"memory": "177Mi"}, "limits": {"memory": "260Mi"}})
    assert (container_id(after), after["restartCount"]) == (web["id"], 0)
    assert await_claim(node, "web", 177 * MIB)["id"] == web["id"]
    assert node.view(web["id"]).memory_max_bytes == 260 * MIB

    for amount in (450, 200):
        after = resize(plane, "db", guaranteed(f"{amount}Mi"))
        assert (container_id(after), after["restartCount"]) == (db["id"], 0)
        await_claim(node, "db", amount * MIB)
        assert node.view(db["id"]).memory_max_bytes == amount * MIB
        await_published(node, plane, NAME)


def test_a_full_node_says_why_on_the_pod_and_takes_it_when_there_is_room(
    node: Node, plane: ControlPlane
) -> None:
    for name in ("one", "two"):
        launch(plane, name, guaranteed("500Mi"))
    made = plane.ask("POST", PODS, pod("late", guaranteed("600Mi"), nodeName=NAME))

    def waits(found: Mapping[str, Any]) -> bool:
        (status,) = found["status"].get("containerStatuses") or [{}]
        return bool(status.get("state", {}).get("waiting", {}).get("reason") == "CreateContainerError")

    await_object(plane, f"{PODS}/late", waits)
    deadline = time.monotonic() + LIMIT_S
    while not (told := events(plane, made)):
        assert time.monotonic() < deadline, node.guest.read_files(LOG).get(LOG, "")
        time.sleep(POLL_S)
    assert {one["reason"] for one in told} == {"PlacementRefused"}
    assert "600Mi" in told[0]["note"]
    # Drained of one pod: as `kubectl drain` does it.
    evicted = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": "one", "namespace": "default"},
    }
    plane.ask("POST", f"{PODS}/one/eviction", evicted)
    await_object(plane, f"{PODS}/late", is_ready)
    await_claim(node, "late", 600 * MIB)
    await_published(node, plane, NAME)


def events(plane: ControlPlane, made: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What bayplan told on a pod."""
    found = plane.ask("GET", EVENTS)["items"]
    return [
        one
        for one in found
        if one["regarding"].get("uid") == made["metadata"]["uid"]
        and one["reportingController"] == "bayplan.dev/agent"
    ]


def test_an_api_server_that_is_away_for_a_minute_changes_nothing(node: Node, plane: ControlPlane) -> None:
    launch(plane, "steady", guaranteed("300Mi"))
    before = await_claim(node, "steady", 300 * MIB)
    plane.kill_api_server()
    try:
        away_until = time.monotonic() + AWAY_S
        while time.monotonic() < away_until:
            assert await_claim(node, "steady", 300 * MIB)["id"] == before["id"]
            time.sleep(5)
    finally:
        plane.start_api_server()
    launch(plane, "later", {"requests": {"cpu": "100m", "memory": "155Mi"}, "limits": {"memory": "260Mi"}})
    await_claim(node, "later", 155 * MIB)
    assert await_claim(node, "steady", 300 * MIB)["id"] == before["id"]
    await_published(node, plane, NAME)


@pytest.fixture
def replicas(node: Node, plane: ControlPlane) -> Iterator[None]:
    """Pods of a ReplicaSet are made anew, until the node is cleared."""
    plane.start_controllers(kubernetes.controller_manager(), "replicaset-controller")
    yield
    plane.stop_controllers()


@pytest.mark.usefixtures("replicas")
def test_an_evicted_pod_is_deleted_by_the_api_server_and_made_anew(node: Node, plane: ControlPlane) -> None:
    """Node 1 runs short because of it, while the machine has room."""
    meminfo = node.guest.read("/sys/devices/system/node/node1/meminfo")
    (free_kib,) = re.findall(r"MemFree: +([0-9]+) kB", meminfo)
    threshold_mib = int(free_kib) // 1024 - HELD_MIB // 2
    node.bayplan.stop()
    flags = ("--memory-pressure", "evict", "--eviction-hard", f"node1.memory.available<{threshold_mib}Mi")
    node.bayplan.start("--agent-group", GROUP, *flags)
    node.bayplan.await_synchronized()
    steady = launch(plane, "steady", guaranteed("100Mi"))

    template = pod("hog", {}, nodeName=NAME)
    template["metadata"] = {"labels": {"app": "hog"}, "annotations": {"bayplan.dev/required-nodes": "1"}}
    template["spec"]["containers"][0]["command"] = ["/bin/workload", "touch", str(HELD_MIB * MIB)]
    wanted = {"replicas": 1, "selector": {"matchLabels": {"app": "hog"}}, "template": template}
    made = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "hog"}, "spec": wanted}
    plane.ask("POST", REPLICA_SETS, made)

    def pods() -> dict[str, Mapping[str, Any]]:
        found = plane.ask("GET", f"{PODS}?labelSelector=app%3Dhog")["items"]
        return {one["metadata"]["uid"]: one for one in found}

    seen: dict[str, Mapping[str, Any]] = {}
    told: list[dict[str, Any]] = []
    deadline = time.monotonic() + 2 * LIMIT_S
    while len(seen) < 2 or not told:
        seen |= pods()
        told = [one for each in seen.values() for one in events(plane, each) if one["reason"] == "Evicted"]
        assert time.monotonic() < deadline, node.bayplan.status()["problems"]
        time.sleep(POLL_S)
    (first, *_) = seen.values()
    assert told[0]["regarding"]["uid"] == first["metadata"]["uid"]
    assert told[0]["metadata"]["annotations"]["starved_resource"] == "memory"
    assert node.bayplan.status()["counters"]["evicted_by_api_server"] >= 1
    name = f"default/{first['metadata']['name']}"
    assert "evicted" in [one["event"] for one in node.bayplan.ask("history", name)["events"]]
    assert "Killed process" not in node.guest.run("dmesg").stdout
    found = plane.ask("GET", f"{PODS}/steady")
    assert found["metadata"]["uid"] == steady["metadata"]["uid"]
    assert is_ready(found)
