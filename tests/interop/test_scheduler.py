"""The scheduler of scheduler-plugins at a real API server, beside two nodes whose agents publish their room:
where it sends pods, and what the nodes then refuse.
"""

import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import pytest
from testbed import kubernetes

from bayplan.errors import PlacementError
from bayplan.model.decision import QosClass
from bayplan.quantity import MIB
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
from support.control_plane import MERGE, SCHEDULER, ControlPlane, Object
from support.controllers import Controlled, begun, controlled
from support.kubernetes_page import agent_rules, scheduler_configuration, scheduler_rules
from support.machines import container, pod

pytestmark = [pytest.mark.cluster, pytest.mark.matrix, pytest.mark.xdist_group("control-plane")]

WANTED_GIB = (8, 8, 5, 5)
COMPARISONS = 3
SCHEDULER_USER = f"system:serviceaccount:default:{SCHEDULER}"


class Cluster:
    """Two nodes, by name, with a daemon's controller each, and what became of pods that were scheduled."""

    def __init__(self, plane: ControlPlane, nodes: dict[str, Controlled]) -> None:
        self.plane = plane
        self.nodes = nodes
        self.placed: dict[str, str] = {}
        self.refused: dict[str, str] = {}
        self.pending: dict[str, str] = {}

    async def run(self, name: str, gib: int, **spec: str) -> None:
        """Make a pod, and do on the node that it is bound to what kubelet does."""
        await self.become(await self.schedule(name, gib, **spec))

    async def schedule(self, name: str, gib: int, **spec: str) -> Object:
        """Make a pod; what it is once the scheduler has decided."""
        amounts = {"cpu": "100m", "memory": f"{gib}Gi"}
        make_pod(self.plane, name, {"requests": amounts, "limits": amounts}, **spec)
        found: Object = await until(lambda: self._scheduled(name))
        return found

    def change_objects(self) -> None:
        """Have the scheduler try pending pods again, as it does where pods come and go on any node."""
        for name in self.nodes:
            change = {"metadata": {"labels": {"change": str(time.monotonic_ns())}}}
            self.plane.ask("PATCH", f"{TOPOLOGIES}/{name}", change, MERGE)

    def comparisons(self) -> int:
        """How often the scheduler has asked for an object since it began, to compare fingerprints."""
        audited = self.plane.audited(SCHEDULER_USER)
        targets = [(one.get("objectRef", {}).get("resource"), one["verb"]) for one in audited]
        return targets.count(("noderesourcetopologies", "get"))

    async def become(self, made: Object) -> None:
        """What follows from where the scheduler has sent a pod, or has not."""
        name, node_name = made["metadata"]["name"], made["spec"].get("nodeName")
        if node_name is None:
            self.pending[name] = made["status"]["conditions"][0]["message"]
            return
        one = self.nodes[node_name]
        try:
            await create(one, made, name)
        except PlacementError:
            self.refused[name] = node_name
            return
        self.placed[name] = node_name
        self.plane.ask("PATCH", f"{PODS}/{name}/status", {"status": {"phase": "Running"}}, MERGE)
        await until(lambda: published(self.plane, node_name, one))

    async def run_later(self, name: str) -> None:
        """Have a pending pod run. The scheduler tries it again when the room of any node changes, and counts
        what it has placed on every NUMA node until it has compared fingerprints."""
        changed = "uneven"
        del self.pending[name]
        for number in range(20):
            owner = pod(f"change-{number}", QosClass.GUARANTEED)
            one = container(owner.name, owner, memory_bytes=MIB, milli_cpus=100)
            await begun(self.nodes[changed].controller, owner, one)
            with suppress(TimeoutError):
                await until(lambda: "nodeName" in self.plane.ask("GET", f"{PODS}/{name}")["spec"], 3)
                break
        await self.become(self.plane.ask("GET", f"{PODS}/{name}"))

    def _scheduled(self, name: str) -> Object | None:
        """The pod, once the scheduler has decided."""
        found = self.plane.ask("GET", f"{PODS}/{name}")
        reasons = [one.get("reason") for one in found["status"].get("conditions", ())]
        return found if "nodeName" in found["spec"] or "Unschedulable" in reasons else None


@asynccontextmanager
async def cluster(plane: ControlPlane, directory: Path) -> AsyncIterator[Cluster]:
    """The nodes of LOADS, whose room is published."""
    token = plane.make_service_account("bayplan-agent", agent_rules())
    kubeconfig = plane.kubeconfig("agent", token=token)
    async with AsyncExitStack() as running:
        nodes: dict[str, Controlled] = {}
        for name in LOADS:
            make_node(plane, name)
            # Of a kubelet that is not ready yet; a controller takes it away.
            plane.ask("PATCH", f"/api/v1/nodes/{name}", {"spec": {"taints": None}}, MERGE)
            one = await running.enter_async_context(controlled(directory / name, ONE_NODE, on=MACHINE))
            socket = directory / f"{name}.sock"
            await running.enter_async_context(serving(one, socket))
            await running.enter_async_context(agent(socket, kubeconfig, name))
            nodes[name] = one
        found = Cluster(plane, nodes)
        for name, loads in LOADS.items():
            for number, gib in enumerate(loads):
                await found.run(f"{name}-{number}", gib, nodeName=name)
        assert len(found.placed) == 4
        try:
            yield found
        finally:
            for each in plane.ask("GET", PODS)["items"]:
                plane.ask("DELETE", f"{PODS}/{each['metadata']['name']}?gracePeriodSeconds=0")
            for name in LOADS:
                plane.ask("DELETE", f"/api/v1/nodes/{name}")


async def schedule(
    plane: ControlPlane, directory: Path, configuration: Object, later: tuple[str, ...] = ()
) -> Cluster:
    """What becomes of WANTED_GIB under this configuration; those of *later* run in the end."""
    async with cluster(plane, directory) as found:
        plane.start_scheduler(kubernetes.scheduler(), configuration)
        try:
            for number, gib in enumerate(WANTED_GIB):
                await found.run(f"pod-{number}", gib)
            for name in set(later) & found.pending.keys():
                await found.run_later(name)
        finally:
            plane.stop_schedulers()
    return found


@pytest.mark.usefixtures("topologies")
async def test_pods_go_where_a_numa_node_has_room_and_no_node_refuses_any(
    tmp_path: Path, control_plane: ControlPlane
) -> None:
    found = await schedule(control_plane, tmp_path, scheduler_configuration(), ("pod-3",))
    assert found.refused == {}
    assert found.placed == found.placed | {"pod-0": "uneven", "pod-2": "even", "pod-3": "even"}
    # The machine has 12Gi left, but no NUMA node has 8.
    assert list(found.pending) == ["pod-1"]
    assert "cannot align container" in found.pending["pod-1"]
    check_rights(control_plane)


def check_rights(plane: ControlPlane) -> None:
    """By the audit log: nothing was denied to the scheduler, and the documented rules are what it used."""
    audited = plane.audited(SCHEDULER_USER)
    assert {one["annotations"]["authorization.k8s.io/decision"] for one in audited} == {"allow"}
    (documented,) = scheduler_rules()
    targets = [(one["objectRef"], one["verb"]) for one in audited if "objectRef" in one]
    used = {verb for one, verb in targets if [one["resource"]] == documented["resources"]}
    assert used == set(documented["verbs"])


@pytest.mark.usefixtures("topologies")
async def test_a_scheduler_that_knows_no_numa_nodes_sends_pods_where_they_are_refused(
    tmp_path: Path, control_plane: ControlPlane
) -> None:
    blind = {key: one for key, one in scheduler_configuration().items() if key != "profiles"}
    found = await schedule(control_plane, tmp_path, blind)
    assert found.refused == {"pod-0": "even"}
    # What it was promised by the scheduler is lost to the others.
    assert list(found.pending) == ["pod-2", "pod-3"]


@pytest.mark.usefixtures("topologies")
async def test_a_pod_keeps_its_room_between_its_binding_and_its_creation(
    tmp_path: Path, control_plane: ControlPlane
) -> None:
    """`uneven` has room for two pods, but its only NUMA node with room has it for one. kubelet takes its time
    with the first."""
    async with cluster(control_plane, tmp_path) as found:
        control_plane.ask("PATCH", "/api/v1/nodes/even", {"spec": {"unschedulable": True}}, MERGE)
        control_plane.start_scheduler(kubernetes.scheduler(), scheduler_configuration())
        try:
            first = await found.schedule("first", 5)
            await until(lambda: published(control_plane, "uneven", found.nodes["uneven"]))
            await found.schedule("second", 5)
            compared = found.comparisons()

            def tried_often() -> bool:
                found.change_objects()
                assert "nodeName" not in control_plane.ask("GET", f"{PODS}/second")["spec"]
                return found.comparisons() >= compared + COMPARISONS

            await until(tried_often)
            await found.become(first)
        finally:
            control_plane.stop_schedulers()
    assert found.refused == {}
