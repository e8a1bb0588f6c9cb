"""bayplan-agent at a real API server, with the role of docs/kubernetes.md and nothing beyond."""

import asyncio
import itertools
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from socket import gethostname

import pytest
from msgspec.structs import replace
from testbed import kubernetes

from bayplan.agent.kubelet_pods import pod_of_object
from bayplan.agent_protocol import EvictionAnswer, EvictionOutcome, EvictPod
from bayplan.control.placements import ExactRequests
from bayplan.errors import PlacementError
from bayplan.model.decision import EvictionRecord, QosClass
from bayplan.model.kubelet_requests import BY_KUBELET
from bayplan.quantity import GIB, MIB
from support.agents import serving
from support.cluster_agents import (
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
from support.control_plane import MERGE, ControlPlane, Object
from support.controllers import Controlled, begun, controlled
from support.coroutines import PATIENCE_S
from support.kubelet_pods import sandbox
from support.kubernetes_page import agent_rules
from support.machines import container, pod

# They share one control plane, whose start takes longer than most of them.
pytestmark = [pytest.mark.cluster, pytest.mark.matrix, pytest.mark.xdist_group("control-plane")]

ACCOUNT = "bayplan-agent"
EVENTS = "/apis/events.k8s.io/v1/namespaces/default/events"
GUARANTEED = pod("g", QosClass.GUARANTEED)


@pytest.fixture(scope="module")
def token(control_plane: ControlPlane) -> str:
    return control_plane.make_service_account(ACCOUNT, agent_rules())


@pytest.fixture
def crd(control_plane: ControlPlane) -> Iterator[Callable[..., None]]:
    """Install the CustomResourceDefinition, with all its versions or with these; it is not there before."""
    whole = kubernetes.topology_crd()

    def install(*versions: str) -> None:
        kept = [one for one in whole["spec"]["versions"] if one["name"] in versions or not versions]
        kept[-1] = {**kept[-1], "storage": True}
        control_plane.define({**whole, "spec": {**whole["spec"], "versions": kept}})
        control_plane.wait_for(TOPOLOGIES.replace("v1alpha2", kept[-1]["name"]), bool)

    yield install
    control_plane.remove_definition(whole)


@pytest.fixture
def node_name(control_plane: ControlPlane, request: pytest.FixtureRequest) -> Iterator[str]:
    """A node of the cluster without pods."""
    name = re.sub(r"[^a-z0-9]+", "-", request.node.name.removeprefix("test_"))[:60].strip("-")
    make_node(control_plane, name)
    yield name
    for one in control_plane.ask("GET", f"{PODS}?fieldSelector=spec.nodeName={name}")["items"]:
        control_plane.ask("DELETE", f"{PODS}/{one['metadata']['name']}?gracePeriodSeconds=0")
    control_plane.ask("DELETE", f"/api/v1/nodes/{name}")


def burstable(plane: ControlPlane, node_name: str, name: str, memory: str) -> Object:
    """A pod of the node whose container requests so much memory."""
    resources = {"requests": {"cpu": "100m", "memory": memory}, "limits": {"memory": "1Gi"}}
    return make_pod(plane, name, resources, nodeName=node_name)


def resize(plane: ControlPlane, name: str, memory: str) -> None:
    """Ask for another memory request of the pod's container in place."""
    changed = {"name": "main", "resources": {"requests": {"memory": memory}}}
    strategic = "application/strategic-merge-patch+json"
    plane.ask("PATCH", f"{PODS}/{name}/resize", {"spec": {"containers": [changed]}}, strategic)


async def refuse(one: Controlled, made: Object, container_id: str) -> None:
    """Have a container of a pod refused: it has more than a node."""
    owner = replace(sandbox(pod_of_object(made)), cgroup_parent="/kubepods/podg")
    big = replace(container(container_id, owner, memory_bytes=20 * GIB, milli_cpus=500), name="main")
    with pytest.raises(PlacementError):
        await one.controller.create_container(owner, big)


def claim(one: Controlled, container_id: str) -> int:
    """What a container requests, once that is known from its pod, else 0."""
    memory = one.controller.state.ledger.entries[container_id].decision.request.memory
    return memory.high_bytes if memory.source == BY_KUBELET else 0


def told(plane: ControlPlane, made: Object) -> list[Object]:
    """The events on a pod."""
    uid = made["metadata"]["uid"]
    return [one for one in plane.ask("GET", EVENTS)["items"] if one["regarding"].get("uid") == uid]


def watching(plane: ControlPlane, user: str, node_name: str) -> bool:
    """Whether *user* has begun to watch the pods of the node."""
    asked_for = [one["requestURI"] for one in plane.audited(user) if one["verb"] == "watch"]
    return any(uri.endswith(node_name) or f"{node_name}&" in uri for uri in asked_for)


async def test_the_room_follows_the_ledger_until_it_is_removed(
    tmp_path: Path, control_plane: ControlPlane, token: str, crd: Callable[..., None], node_name: str
) -> None:
    crd()
    plane, socket = control_plane, tmp_path / "a.sock"
    kubeconfig = plane.kubeconfig("agent", token=token)
    async with (
        controlled(tmp_path / "state", on=MACHINE) as one,
        serving(one, socket),
        agent(socket, kubeconfig, node_name) as running,
    ):
        await until(lambda: published(plane, node_name, one))
        await begun(
            one.controller, GUARANTEED, container("x", GUARANTEED, memory_bytes=3 * GIB, milli_cpus=2000)
        )
        await until(lambda: published(plane, node_name, one))
        plane.ask("PATCH", f"/api/v1/nodes/{node_name}", {"metadata": {"labels": {"a": "b"}}}, MERGE)
        assert not running.warnings
        for sentence in ("the node's room is not published any more", "the node's room was not published"):
            async with agent(socket, kubeconfig, node_name, "--remove-topology") as removing:
                assert await removing.process.wait() == 0
                await until(lambda said=removing, sentence=sentence: said.said(sentence))
            assert plane.find(f"{TOPOLOGIES}/{node_name}") is None


@pytest.mark.usefixtures("garbage_collector")
async def test_the_room_is_deleted_with_its_node(
    tmp_path: Path, control_plane: ControlPlane, token: str, crd: Callable[..., None]
) -> None:
    crd()
    make_node(control_plane, "doomed")
    socket, kubeconfig = tmp_path / "a.sock", control_plane.kubeconfig("agent", token=token)
    async with (
        controlled(tmp_path / "state", on=MACHINE) as one,
        serving(one, socket),
        agent(socket, kubeconfig, "doomed"),
    ):
        await until(lambda: published(control_plane, "doomed", one))
    control_plane.ask("DELETE", "/api/v1/nodes/doomed")
    control_plane.wait_for(f"{TOPOLOGIES}/doomed", lambda found: found is None)


async def test_a_resource_that_is_missing_or_of_another_version_is_one_line_until_it_is_there(
    tmp_path: Path, control_plane: ControlPlane, token: str, crd: Callable[..., None], node_name: str
) -> None:
    socket, kubeconfig = tmp_path / "a.sock", control_plane.kubeconfig("agent", token=token)
    failing = "the node's room is not published"
    async with (
        controlled(tmp_path / "state", on=MACHINE) as one,
        serving(one, socket),
        agent(socket, kubeconfig, node_name) as running,
    ):
        await until(lambda: running.said(failing))
        crd("v1alpha1")
        await until(lambda: len(running.said(failing)) == 2)
        crd()
        await until(lambda: published(control_plane, node_name, one))
        await until(lambda: running.said("the node's room is published again"))
    missing, other = running.said(failing)
    assert missing.endswith("install its CustomResourceDefinition")
    assert other.endswith("as v1alpha1, not as v1alpha2")


async def test_fields_of_another_publisher_are_left_to_it(
    tmp_path: Path, control_plane: ControlPlane, token: str, crd: Callable[..., None], node_name: str
) -> None:
    crd()
    path = f"{TOPOLOGIES}/{node_name}"
    theirs = {
        "apiVersion": "topology.node.k8s.io/v1alpha2",
        "kind": "NodeResourceTopology",
        "metadata": {"name": node_name},
        "zones": [{"name": "node-0", "type": "Node"}],
    }
    control_plane.ask("POST", TOPOLOGIES, theirs)
    socket, kubeconfig = tmp_path / "a.sock", control_plane.kubeconfig("agent", token=token)
    async with (
        controlled(tmp_path / "state", on=MACHINE) as one,
        serving(one, socket),
        agent(socket, kubeconfig, node_name) as running,
    ):
        (problem,) = await until(lambda: running.said("the node's room is not published"))
        assert "is another publisher of noderesourcetopologies at work?" in problem
        assert control_plane.ask("GET", path)["zones"] == theirs["zones"]
        control_plane.ask("DELETE", path)
        await until(lambda: published(control_plane, node_name, one))


async def test_requests_are_those_of_the_api_server_resized_in_place_too(
    tmp_path: Path, control_plane: ControlPlane, token: str, node_name: str
) -> None:
    socket, kubeconfig = tmp_path / "a.sock", control_plane.kubeconfig("agent", token=token)
    burstable(control_plane, f"not-{node_name}", "elsewhere", "50Mi")
    before = burstable(control_plane, node_name, "before", "101Mi")
    async with controlled(tmp_path / "state", on=MACHINE) as one, serving(one, socket):
        exact = asyncio.create_task(ExactRequests(one.controller.state).follow())
        await create(one, before, "before")
        assert not claim(one, "before")
        async with agent(socket, kubeconfig, node_name, "--cluster-tasks=pods") as running:
            await until(lambda: claim(one, "before") == 101 * MIB)
            after = burstable(control_plane, node_name, "after", "203Mi")
            await create(one, after, "after")
            await until(lambda: claim(one, "after") == 203 * MIB)
            resize(control_plane, "after", "307Mi")
            await until(lambda: claim(one, "after") == 307 * MIB)
            assert not running.warnings
        exact.cancel()
    control_plane.ask("DELETE", f"{PODS}/elsewhere?gracePeriodSeconds=0")


async def test_an_api_server_that_is_killed_delays_and_loses_nothing(
    tmp_path: Path, control_plane: ControlPlane, token: str, crd: Callable[..., None], node_name: str
) -> None:
    crd()
    plane, socket = control_plane, tmp_path / "a.sock"
    kubeconfig = plane.kubeconfig("agent", token=token)
    made = burstable(plane, node_name, "killed", "101Mi")
    async with controlled(tmp_path / "state", ONE_NODE, on=MACHINE) as one, serving(one, socket):
        exact = asyncio.create_task(ExactRequests(one.controller.state).follow())
        await create(one, made, "early")
        async with agent(socket, kubeconfig, node_name) as running:
            await until(lambda: claim(one, "early") and published(plane, node_name, one))
            plane.kill_api_server()
            try:
                await create(one, made, "late")
                assert claim(one, "late") == 101 * MIB
                await begun(
                    one.controller, GUARANTEED, container("g", GUARANTEED, memory_bytes=GIB, milli_cpus=1000)
                )
                await refuse(one, made, "x")
                failing = (
                    "the node's room is not published",
                    "the API server's pods are not followed",
                    "events are not recorded",
                )
                await until(lambda: all(map(running.said, failing)))
            finally:
                plane.start_api_server()
            await until(lambda: published(plane, node_name, one) and told(plane, made))
            resize(plane, "killed", "307Mi")
            await until(lambda: claim(one, "early") == 307 * MIB)
            again = ("published again", "followed again", "recorded again")
            await until(lambda: all(any(end in each["msg"] for each in running.lines) for end in again))
        exact.cancel()


async def test_two_agents_for_one_node_say_the_same(
    tmp_path: Path, control_plane: ControlPlane, token: str, crd: Callable[..., None], node_name: str
) -> None:
    crd()
    plane, socket = control_plane, tmp_path / "a.sock"
    kubeconfig = plane.kubeconfig("agent", token=token)
    made = burstable(plane, node_name, "twice", "101Mi")
    async with (
        controlled(tmp_path / "state", ONE_NODE, on=MACHINE) as one,
        serving(one, socket),
        agent(socket, kubeconfig, node_name) as first,
        agent(socket, kubeconfig, node_name) as second,
    ):
        for running in (first, second):
            await until(lambda said=running: said.said("following the daemon"))
        await create(one, made, "x")
        await until(lambda: published(plane, node_name, one))
        await refuse(one, made, "big")
        await until(lambda: told(plane, made))
        first.process.send_signal(signal.SIGKILL)
        await begun(one.controller, GUARANTEED, container("y", GUARANTEED, memory_bytes=GIB, milli_cpus=1000))
        await until(lambda: published(plane, node_name, one))
        # An agent that skips a room which the other one has published sees that somebody writes, too.
        noticed = "the node's room is written by others, too"
        assert [each for each in (*first.warnings, *second.warnings) if each["msg"] != noticed] == []
    # Its name has the moment of the refusal: both make the same event.
    assert len(told(plane, made)) == 1


async def test_agents_of_two_machines_for_one_node_are_an_event_on_it(
    tmp_path: Path, control_plane: ControlPlane, token: str, crd: Callable[..., None], node_name: str
) -> None:
    """Of which kubelet has not said what machine it is."""
    crd()
    plane, sockets = control_plane, (tmp_path / "a.sock", tmp_path / "b.sock")
    kubeconfig = plane.kubeconfig("agent", token=token)
    async with (
        controlled(tmp_path / "a", on=MACHINE) as one,
        controlled(tmp_path / "b", on=MACHINE) as other,
        serving(one, sockets[0]),
        serving(other, sockets[1]),
        agent(sockets[0], kubeconfig, node_name) as first,
        agent(sockets[1], kubeconfig, node_name) as second,
    ):
        events: list[Object] = []
        for number in itertools.count():
            for node, size_bytes in ((one, MIB), (other, 100 * MIB)):
                owner = pod(f"pod-{number}", QosClass.GUARANTEED)
                spec = container(owner.name, owner, memory_bytes=size_bytes, milli_cpus=100)
                await begun(node.controller, owner, spec)
            with suppress(TimeoutError):
                events = await until(lambda: on_node(plane, node_name), 3)
                break
        said = [*first.warnings, *second.warnings]
    assert {one["reason"] for one in events} == {"TopologyOverwritten"}
    assert {one["msg"] for one in said} == {"the node's room is written by others, too"}
    assert events[0]["note"].endswith(said[0]["problem"])


async def test_an_agent_with_the_name_of_another_machine_publishes_nothing_and_is_an_event_on_the_node(
    tmp_path: Path, control_plane: ControlPlane, token: str, crd: Callable[..., None], node_name: str
) -> None:
    crd()
    plane, socket = control_plane, tmp_path / "a.sock"
    kubeconfig = plane.kubeconfig("agent", token=token)
    described = plane.ask("GET", f"/api/v1/nodes/{node_name}")["status"]["nodeInfo"] | {"bootID": "another"}
    plane.ask("PATCH", f"/api/v1/nodes/{node_name}/status", {"status": {"nodeInfo": described}}, MERGE)
    async with (
        controlled(tmp_path / "state", on=MACHINE) as one,
        serving(one, socket),
        agent(socket, kubeconfig, node_name) as running,
    ):
        (event,) = await until(lambda: on_node(plane, node_name))
        (problem,) = running.said("the node's room is not published")
    assert event["reason"] == "TopologyNotPublished"
    assert event["note"] == f"bayplan-agent on {gethostname()}: {problem}"
    assert "boot id is another" in problem
    assert plane.find(f"{TOPOLOGIES}/{node_name}") is None


def on_node(plane: ControlPlane, node_name: str) -> list[Object]:
    """The agents' events on a node, as `kubectl describe node` asks for them."""
    query = f"fieldSelector=involvedObject.kind=Node,involvedObject.uid={node_name}"
    found = plane.ask("GET", f"/api/v1/namespaces/default/events?{query}")["items"]
    return [one | {"note": one["message"]} for one in found]


async def test_pods_are_evicted_as_their_disruption_budgets_allow_and_told_so(
    tmp_path: Path, control_plane: ControlPlane, token: str, node_name: str
) -> None:
    plane, socket, tasks = control_plane, tmp_path / "a.sock", "--cluster-tasks=pods,events,evictions"
    made = burstable(plane, node_name, "evicted", "101Mi")
    path, meta = f"{PODS}/evicted", made["metadata"]
    # The API server heeds no budget of pods that do not run.
    plane.ask("PATCH", f"{path}/status", {"status": {"phase": "Running"}}, MERGE)
    plane.ask("PATCH", path, {"metadata": {"labels": {"app": "web"}}}, MERGE)
    budgets = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
    spec = {"minAvailable": 1, "selector": {"matchLabels": {"app": "web"}}}
    budget = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "web"}}
    plane.ask("POST", budgets, {**budget, "spec": spec})
    meant = EvictPod(meta["uid"], "default", "evicted", 1)
    async with (
        controlled(tmp_path / "state", on=MACHINE) as one,
        serving(one, socket) as server,
        agent(socket, plane.kubeconfig("agent", token=token), node_name, tasks) as running,
    ):
        await until(lambda: running.said("following the daemon"))
        kept = await server.evict(meant, PATIENCE_S)
        assert kept is not None
        assert kept.outcome is EvictionOutcome.LATER
        assert "disruption budget" in kept.problem
        plane.ask("DELETE", f"{budgets}/web")
        other = await server.evict(replace(meant, uid="another"), PATIENCE_S)
        assert other is not None
        assert other.outcome is EvictionOutcome.REFUSED
        assert "deletionTimestamp" not in plane.ask("GET", path)["metadata"]

        record = EvictionRecord(
            time.time_ns() // 1000,
            "x",
            "default/evicted/main",
            "node0.memory.available",
            QosClass.BURSTABLE,
            *(GIB, MIB, GIB, 101 * MIB, 0),
            "Node 0 is full. ",
        )
        accepted = await server.evict(meant, PATIENCE_S)
        assert accepted == EvictionAnswer(meta["uid"], EvictionOutcome.ACCEPTED)
        one.controller.state.changes.evicted(record, {"starved_resource": "memory"})
        (event,) = await until(lambda: told(plane, made))
        assert not running.warnings
    deleted = plane.ask("GET", path)
    assert deleted["metadata"]["deletionGracePeriodSeconds"] == 1
    assert [one["reason"] for one in deleted["status"]["conditions"]] == ["EvictionByEvictionAPI"]
    assert (event["reason"], event["metadata"]["annotations"]) == ("Evicted", {"starved_resource": "memory"})
    plane.ask("DELETE", f"{path}?gracePeriodSeconds=0")


async def test_a_client_certificate_is_who_asks_and_a_wrong_token_is_one_line(
    tmp_path: Path, control_plane: ControlPlane, node_name: str
) -> None:
    certificate, key = control_plane.client_certificate("nobody")
    certified = control_plane.kubeconfig(
        "certified", **{"client-certificate": str(certificate), "client-key": str(key)}
    )
    wrong = control_plane.kubeconfig("wrong", token="wrong")
    socket, failing = tmp_path / "a.sock", "the node's room is not published"
    async with (
        controlled(tmp_path / "state", on=MACHINE) as one,
        serving(one, socket),
        agent(socket, certified, node_name) as known,
        agent(socket, wrong, node_name) as unknown,
    ):
        (forbidden,) = await until(lambda: known.said(failing))
        (unauthorized,) = await until(lambda: unknown.said(failing))
    assert "answers 403: nodes" in forbidden
    assert 'User "nobody" cannot get resource "nodes"' in forbidden
    assert "answers 401: Unauthorized" in unauthorized


async def test_nothing_is_denied_and_every_right_is_used(
    tmp_path: Path, control_plane: ControlPlane, crd: Callable[..., None], node_name: str
) -> None:
    """By the audit log, of an agent that does everything: an event's repetition is a right of its own."""
    crd()
    plane, socket = control_plane, tmp_path / "a.sock"
    kubeconfig = plane.kubeconfig("audited", token=plane.make_service_account("audited", agent_rules()))
    user = "system:serviceaccount:default:audited"
    made = burstable(plane, node_name, "refused", "1Gi")
    async with (
        controlled(tmp_path / "state", ONE_NODE, on=MACHINE) as one,
        serving(one, socket) as server,
        agent(socket, kubeconfig, node_name, "--cluster-tasks=topology,pods,events,evictions") as running,
    ):
        await until(lambda: published(plane, node_name, one) and watching(plane, user, node_name))
        await refuse(one, made, "x0")
        (event,) = await until(lambda: told(plane, made))
        for number in range(1, 4):
            await refuse(one, made, f"x{number}")
        await until(lambda: [each.get("series", {}).get("count") for each in told(plane, made)] == [4])
        answer = await server.evict(EvictPod(made["metadata"]["uid"], "default", "refused", 1), PATIENCE_S)
        assert answer is not None
        assert answer.outcome is EvictionOutcome.ACCEPTED
        assert not running.warnings
        async with agent(socket, kubeconfig, node_name, "--remove-topology") as removing:
            assert await removing.process.wait() == 0
    assert event["reason"] == "PlacementRefused"
    assert "asks for 20Gi on one node" in event["note"]
    assert event["regarding"]["fieldPath"] == "spec.containers{main}"
    # As `kubectl describe` asks for it.
    query = f"fieldSelector=involvedObject.uid={made['metadata']['uid']}"
    (shown,) = plane.ask("GET", f"/api/v1/namespaces/default/events?{query}")["items"]
    assert shown["message"] == event["note"]

    audited = plane.audited(user)
    assert {each["annotations"]["authorization.k8s.io/decision"] for each in audited} == {"allow"}
    targets = [(each["objectRef"], each["verb"]) for each in audited if "objectRef" in each]
    used = {
        (one.get("apiGroup", ""), "/".join(filter(None, (one["resource"], one.get("subresource")))), verb)
        for one, verb in targets
    }
    granted = {
        (group, resource, verb)
        for rule in agent_rules()
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    # Server-side apply of an object that is not there needs `create`; the log has it as a patch.
    assert used == granted - {("topology.node.k8s.io", "noderesourcetopologies", "create")}
