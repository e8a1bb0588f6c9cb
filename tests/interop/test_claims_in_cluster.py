"""Kubernetes' own scheduler and API server, and two nodes with agents: where pods are sent by a scheduler
that knows no NUMA nodes, by NodeResourceTopology, by resource claims and by both beside each other, and what
the nodes then refuse."""

import asyncio
import enum
import random
from collections import Counter
from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from msgspec.structs import replace
from testbed import kubernetes

from bayplan._proto.dra import api_pb2 as pb
from bayplan.agent.dra.slices import COLLECTION, device_name
from bayplan.agent.kubelet_pods import pod_of_object
from bayplan.control.resource_claims import ResourceClaims
from bayplan.errors import PlacementError
from bayplan.host.devices import ClaimSpecs
from bayplan.quantity import GIB, MIB, parse_bytes
from bayplan.views.node_room import claimable_by_node, free_bytes_by_node
from support.agents import serving
from support.cluster_agents import (
    LOADS,
    MACHINE,
    ONE_NODE,
    PODS,
    TOPOLOGIES,
    agent,
    create,
    make_node,
    make_pod,
    published,
    until,
)
from support.control_plane import MERGE, ControlPlane, Object, running_control_plane
from support.controllers import Controlled, begun, controlled, here
from support.dra_kubelet import DraKubelet, registered
from support.kubelet_pods import sandbox
from support.kubernetes_page import agent_rules, scheduler_configuration
from support.machines import container
from support.places import IN_MEMORY
from support.resource_claims import environment

pytestmark = [pytest.mark.cluster, pytest.mark.matrix, pytest.mark.xdist_group("control-plane")]

CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
STEPS = 30
RUNNING = {"status": {"phase": "Running"}}
COUNTS_CLAIMS = "DRANodeAllocatableResources"
RESYNC_S = 2
"""``cacheResyncPeriodSeconds`` of the documented configuration."""


class Way(enum.Enum):
    """How pods find a NUMA node with room."""

    BLIND = "requests, and a scheduler that knows no NUMA nodes"
    TOPOLOGY = "requests, and a scheduler that reads NodeResourceTopology"
    CLAIMS = "resource claims"
    BESIDE = "resource claims and NodeResourceTopology by turns, each by its own scheduler"


NUMA_SCHEDULER = "numa-scheduler"
AGENTS = "system:serviceaccount:default:bayplan-agent"
CLASS = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "DeviceClass",
    "metadata": {"name": "numa.bayplan.dev"},
    "spec": {"selectors": [{"cel": {"expression": 'device.driver == "bayplan.dev"'}}]},
}


class Node:
    """A daemon's controller, and the kubelet that has claims prepared by the agent beside it."""

    def __init__(self, one: Controlled, specs: Path, kubelet: DraKubelet) -> None:
        self.one = one
        self.specs = specs
        self.kubelet = kubelet

    def most_free_bytes(self) -> int:
        """The most that a NUMA node has left alone."""
        rooms = free_bytes_by_node(self.one.controller.state.basis)
        return max(row["memory"] for row in rooms.values())


class Cluster:
    """Two nodes; what became of the pods, and which have ended meanwhile."""

    def __init__(self, plane: ControlPlane, nodes: dict[str, Node]) -> None:
        self.plane = plane
        self.nodes = nodes
        self.placed: dict[str, tuple[str, Object, Object | None]] = {}
        self.outcomes: Counter[str] = Counter()
        self.of_requests = "default-scheduler"
        """The scheduler of pods without claims."""

    async def run(self, name: str, gib: int, *, claims: bool) -> None:
        """Make a pod of that size, and do on the node that it is bound to what kubelet does."""
        claim = self._make_claim(name, gib) if claims else None
        # What a pod with a claim requests itself would count beside it, where the scheduler counts claims.
        amounts = {"cpu": "100m"} | ({} if claims else {"memory": f"{gib}Gi"})
        more: dict[str, Any] = {"schedulerName": self.of_requests}
        if claims:
            more = {"resourceClaims": [{"name": "near", "resourceClaimName": name}]}
        make_pod(self.plane, name, {"requests": amounts, "limits": amounts}, **more)
        made = await until(lambda: self._scheduled(name))
        node_name = made["spec"].get("nodeName")
        if node_name is None:
            fits = any(node.most_free_bytes() >= gib * GIB for node in self.nodes.values())
            self.outcomes["pending, would fit" if fits else "pending"] += 1
            await self._delete(name, made, claim)
            return
        if await self._started(self.nodes[node_name], made, claim):
            self.outcomes["placed"] += 1
            self.outcomes["counted as requests"] += "nodeAllocatableResourceClaimStatuses" in made["status"]
            self.placed[name] = node_name, made, claim
            self.plane.ask("PATCH", f"{PODS}/{name}/status", RUNNING, MERGE)
            return
        self.outcomes["refused"] += 1
        await self._delete(name, made, claim)

    async def settle(self) -> None:
        """Give a scheduler that counts by NodeResourceTopology the room as it is, and time to compare it."""
        for name, node in self.nodes.items():
            await until(lambda name=name, node=node: published(self.plane, name, node.one))
        await until(lambda: _room_is_published(self.plane, self.nodes))
        await asyncio.sleep(2 * RESYNC_S)

    async def end(self, name: str) -> None:
        """A pod ends."""
        node_name, made, claim = self.placed.pop(name)
        node = self.nodes[node_name]
        owner = sandbox(pod_of_object(made))
        await node.one.controller.stop_container(owner, container(name, owner))
        if claim is not None:
            assert await node.kubelet.unprepare(_asked(claim)) == {claim["metadata"]["uid"]: ""}
        await self._delete(name, made, claim)

    async def _started(self, node: Node, made: Object, claim: Object | None) -> bool:
        try:
            if claim is None:
                await create(node.one, made, made["metadata"]["name"])
                return True
            answer = (await node.kubelet.prepare(_asked(claim)))[claim["metadata"]["uid"]]
            if answer.error:
                return False
            names = [name for device in answer.devices for name in device.cdi_device_ids]
            owner = sandbox(pod_of_object(made))
            one = container(made["metadata"]["name"], owner, milli_cpus=100)
            told = replace(one, resource_claims=environment(node.specs, names))
            await begun(node.one.controller, owner, told)
        except PlacementError:
            return False
        return True

    def _make_claim(self, name: str, gib: int) -> Object:
        capacity = {"requests": {"bayplan.dev/memory": f"{gib}Gi"}}
        exactly = {"deviceClassName": "numa.bayplan.dev", "capacity": capacity}
        return self.plane.ask(
            "POST",
            CLAIMS,
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceClaim",
                "metadata": {"name": name, "namespace": "default"},
                "spec": {"devices": {"requests": [{"name": "near", "exactly": exactly}]}},
            },
        )

    def _scheduled(self, name: str) -> Object | None:
        found = self.plane.ask("GET", f"{PODS}/{name}")
        reasons = [one.get("reason") for one in found["status"].get("conditions", ())]
        return found if "nodeName" in found["spec"] or "Unschedulable" in reasons else None

    async def _delete(self, name: str, made: Object, claim: Object | None) -> None:
        """As a controller does it, once kubelet has ended it."""
        self.plane.ask("DELETE", f"{PODS}/{made['metadata']['name']}?gracePeriodSeconds=0")
        if claim is not None:
            self.plane.ask("PATCH", f"{CLAIMS}/{name}", {"metadata": {"finalizers": None}}, MERGE)
            self.plane.ask("DELETE", f"{CLAIMS}/{name}")


def _asked(claim: Object) -> pb.Claim:
    metadata = claim["metadata"]
    return pb.Claim(namespace="default", name=metadata["name"], uid=metadata["uid"])


@asynccontextmanager
async def cluster(plane: ControlPlane, features: Collection[str] = ()) -> AsyncIterator[Cluster]:
    """The nodes of LOADS, with what they publish."""
    token = plane.make_service_account("bayplan-agent", agent_rules(claims=True))
    kubeconfig = plane.kubeconfig("agent", token=token)
    plane.apply("/apis/resource.k8s.io/v1/deviceclasses/numa.bayplan.dev", CLASS)
    async with AsyncExitStack() as running:
        # A socket's path has 107 bytes.
        directory = Path(running.enter_context(TemporaryDirectory(prefix="dra", dir=IN_MEMORY)))
        nodes: dict[str, Node] = {}
        for name, loads in LOADS.items():
            make_node(plane, name, *features)
            plane.ask("PATCH", f"/api/v1/nodes/{name}", {"spec": {"taints": None}}, MERGE)
            own = directory / name
            (own / "registry").mkdir(parents=True)
            one = await running.enter_async_context(controlled(own / "state", ONE_NODE, on=MACHINE))
            part = one.controller.state, one.controller.placements
            claims = ResourceClaims(*part, ClaimSpecs(own / "cdi"), here)
            await running.enter_async_context(serving(one, own / "agent.sock", claims=claims))
            places = (f"--kubelet-plugins={own}/plugins", f"--kubelet-plugins-registry={own}/registry")
            await running.enter_async_context(
                agent(own / "agent.sock", kubeconfig, name, "--cluster-tasks=topology,claims", *places)
            )
            kubelet = await running.enter_async_context(registered(own / "registry"))
            nodes[name] = Node(one, own / "cdi", kubelet)
            for number, gib in enumerate(loads):
                key = f"{name}-{number}"
                amounts = {"cpu": "100m", "memory": f"{gib}Gi"}
                made = make_pod(plane, key, {"requests": amounts, "limits": amounts}, nodeName=name)
                await create(one, made, key)
                plane.ask("PATCH", f"{PODS}/{key}/status", RUNNING, MERGE)
        await until(lambda: _room_is_published(plane, nodes))
        try:
            yield Cluster(plane, nodes)
        finally:
            for each in plane.ask("GET", CLAIMS)["items"]:
                path = f"{CLAIMS}/{each['metadata']['name']}"
                plane.ask("PATCH", path, {"metadata": {"finalizers": None}}, MERGE)
                plane.ask("DELETE", path)
            for each in plane.ask("GET", PODS)["items"]:
                plane.ask("DELETE", f"{PODS}/{each['metadata']['name']}?gracePeriodSeconds=0")
            for name in LOADS:
                plane.ask("DELETE", f"/api/v1/nodes/{name}")
            for each in plane.ask("GET", COLLECTION)["items"]:
                plane.ask("DELETE", f"{COLLECTION}/{each['metadata']['name']}")


def _room_is_published(plane: ControlPlane, nodes: dict[str, Node]) -> bool:
    """Whether each device has what is free on its NUMA node or held there by claims."""
    found = {
        (one["spec"]["nodeName"], device["name"]): parse_bytes(
            device["capacity"]["bayplan.dev/memory"]["value"]
        )
        for one in plane.ask("GET", COLLECTION)["items"]
        for device in one["spec"]["devices"]
    }
    return found == {
        (name, device_name(number)): room["memory"] // MIB * MIB
        for name, node in nodes.items()
        for number, room in claimable_by_node(node.one.controller.state.basis).items()
    }


async def outcomes(plane: ControlPlane, way: Way, features: Collection[str] = ()) -> Counter[str]:
    """What becomes of STEPS pods, some of which end in between, on nodes that declare these features."""
    configuration = scheduler_configuration()
    blind = {key: one for key, one in configuration.items() if key != "profiles"}
    draw = random.Random(37)
    async with cluster(plane, features) as found:
        if way is Way.TOPOLOGY:
            plane.start_scheduler(kubernetes.scheduler(), configuration)
        else:
            plane.start_scheduler(kubernetes.kube_scheduler(), blind)
        if way is Way.BESIDE:
            plane.start_scheduler(kubernetes.scheduler(), scheduler_configuration(NUMA_SCHEDULER))
            found.of_requests = NUMA_SCHEDULER
        before = written(plane)
        try:
            for number in range(STEPS):
                if found.placed and draw.random() < 0.5:
                    await found.end(draw.choice(sorted(found.placed)))
                if way in {Way.TOPOLOGY, Way.BESIDE}:
                    await found.settle()
                claims = way is Way.CLAIMS or (way is Way.BESIDE and number % 2 == 0)
                await found.run(f"pod-{number}", draw.choice([3, 5, 8]), claims=claims)
        finally:
            plane.stop_schedulers()
        found.outcomes += written(plane) - before
    return found.outcomes


def written(plane: ControlPlane) -> Counter[str]:
    """How often the agents of both nodes have written to which resource so far, by the audit log."""
    asked = (one for one in plane.audited(AGENTS) if one["verb"] in {"create", "patch", "update", "delete"})
    return Counter(f"writes of {one['objectRef']['resource']}" for one in asked)


@pytest.mark.usefixtures("topologies")
async def test_no_node_refuses_what_was_claimed(control_plane: ControlPlane) -> None:
    alone = (Way.BLIND, Way.TOPOLOGY, Way.CLAIMS)
    found = {way: await outcomes(control_plane, way) for way in alone}
    print({way.name: dict(counts) for way, counts in found.items()})
    assert found[Way.BLIND]["refused"] > 0
    assert found[Way.TOPOLOGY]["refused"] == 0
    claimed = found[Way.CLAIMS]
    assert claimed["refused"] == 0
    assert claimed["pending, would fit"] == 0
    assert claimed["placed"] > found[Way.BLIND]["placed"]
    assert claimed["counted as requests"] == 0
    # The scheduler subtracts claims itself, and none was refused.
    assert claimed["writes of resourceslices"] == claimed["writes of resourceclaims"] == 0
    assert found[Way.TOPOLOGY]["writes of resourceslices"] <= 2 * STEPS


@pytest.mark.usefixtures("topologies")
async def test_no_node_refuses_a_claim_or_a_request_where_both_come(control_plane: ControlPlane) -> None:
    """A claim counts once in what is published of requests, and the other way round."""
    found = await outcomes(control_plane, Way.BESIDE)
    print(dict(found))
    assert found["refused"] == 0
    assert found["placed"] > STEPS / 3


@pytest.fixture(scope="module")
def counting_plane() -> Iterator[ControlPlane]:
    """A control plane whose scheduler counts claims as requests of their pods."""
    with running_control_plane(kubernetes.api_server(), gates=(COUNTS_CLAIMS,)) as plane:
        definition = kubernetes.topology_crd()
        plane.define(definition)
        plane.wait_for(TOPOLOGIES, bool)
        yield plane


@pytest.mark.parametrize("features", [(COUNTS_CLAIMS,), ()], ids=["declared", "not declared"])
async def test_where_claims_count_as_requests_none_counts_twice(
    counting_plane: ControlPlane, features: tuple[str, ...]
) -> None:
    """Also on a node whose kubelet has the gate off, while the rest of the cluster has it on."""
    found = await outcomes(counting_plane, Way.CLAIMS, features)
    print(dict(found))
    assert found["refused"] == 0
    assert found["pending, would fit"] == 0
    assert found["placed"] > STEPS / 3
    assert found["counted as requests"] == (found["placed"] if features else 0)
