"""bayplan-agent as a process at an API server, beside a controller of a daemon in this one; pods for it."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from bayplan.admin.snapshot_source import snapshot_of
from bayplan.agent.cluster.node_objects import topology_object
from bayplan.agent.kubelet_pods import pod_of_object
from bayplan.model.policy import PlacementPolicy, TopologyPolicy
from bayplan.quantity import GIB
from support.control_plane import ControlPlane, Object
from support.controllers import Controlled, begun
from support.coroutines import PATIENCE_S
from support.kubelet_pods import asked, sandbox
from support.machines import machine

TOPOLOGIES: Final = "/apis/topology.node.k8s.io/v1alpha2/noderesourcetopologies"
PODS: Final = "/api/v1/namespaces/default/pods"
MACHINE: Final = machine(2, cpus_per_node=4, memory_bytes=16 * GIB)
ONE_NODE: Final = PlacementPolicy(topology=TopologyPolicy.SINGLE_NUMA_NODE)
LOADS: Final = {"even": (10, 10), "uneven": (15, 7)}
"""GiB that a node has promised already, a container for each of its NUMA nodes of 16: `uneven` has less left,
but mostly on one."""


class Agent:
    """The program, and what it logs."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.lines: list[Object] = []

    async def read(self) -> None:
        """Take what it logs, to the end."""
        assert self.process.stderr is not None
        async for line in self.process.stderr:
            self.lines.append(json.loads(line))

    def said(self, message: str) -> list[str]:
        """The problems that came with *message*."""
        return [one.get("problem", "") for one in self.lines if one["msg"] == message]

    @property
    def warnings(self) -> list[Object]:
        """All that is not as it should be."""
        return [one for one in self.lines if one["level"] in {"warning", "error", "critical"}]


@asynccontextmanager
async def agent(socket: Path, kubeconfig: Path, node_name: str, *flags: str) -> AsyncIterator[Agent]:
    """bayplan-agent with no other source than the API server; killed at the end."""
    off = ("kubelet-pods-socket", "pod-resources-socket", "kubelet-pod-resources", "listen")
    process = await asyncio.create_subprocess_exec(
        *(
            sys.executable,
            "-m",
            "bayplan.agent.bayplan_agent",
            "--daemon-socket",
            str(socket),
            "--log-format=json",
        ),
        *(f"--{one}=none" for one in off),
        *(f"--kubeconfig={kubeconfig}", f"--node-name={node_name}", *flags),
        stderr=subprocess.PIPE,
    )
    one = Agent(process)
    reading = asyncio.create_task(one.read())
    try:
        yield one
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        await reading


async def until(condition: Callable[[], Any], limit_s: float = PATIENCE_S) -> Any:
    """Wait until *condition* gives something true, which is asked for in a thread; that."""
    async with asyncio.timeout(limit_s):
        while not (found := await asyncio.to_thread(condition)):  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0.1)
    return found


def make_node(plane: ControlPlane, name: str, *features: str) -> None:
    """A node of the cluster, with the room of MACHINE, which no kubelet looks after. *features* are what it
    declares."""
    allocatable = {"cpu": "8", "memory": "32Gi", "pods": "110"}
    ready = {"type": "Ready", "status": "True", "reason": "Made", "message": ""}
    status = {"allocatable": allocatable, "capacity": allocatable, "conditions": [ready]}
    if features:
        status["declaredFeatures"] = list(features)
    made = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": status}
    plane.ask("POST", "/api/v1/nodes", made)


def published(plane: ControlPlane, node_name: str, one: Controlled) -> bool:
    """Whether the API server has the room of the controller's ledger, owned by the node, and the fingerprint
    of its pods and of those that are pending."""
    found = plane.find(f"{TOPOLOGIES}/{node_name}")
    uid = plane.ask("GET", f"/api/v1/nodes/{node_name}")["metadata"]["uid"]
    query = f"fieldSelector=status.phase=Pending,spec.nodeName={node_name}"
    pending = [each["metadata"] for each in plane.ask("GET", f"{PODS}?{query}")["items"]]
    awaited = frozenset((each["namespace"], each["name"]) for each in pending)
    wanted = topology_object(node_name, uid, snapshot_of(one.controller.state, 0, ()), awaited)
    return found is not None and (
        all(found[key] == wanted[key] for key in ("attributes", "zones"))
        and found["metadata"]["ownerReferences"] == wanted["metadata"]["ownerReferences"]
    )


def make_pod(plane: ControlPlane, name: str, resources: Object, **spec: Any) -> Object:
    """A pod with one container, main."""
    whole = {
        "automountServiceAccountToken": False,
        "containers": [{"name": "main", "image": "none", "resources": resources}],
        **spec,
    }
    meta = {"name": name, "namespace": "default"}
    return plane.ask("POST", PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": whole})


async def create(one: Controlled, made: Object, container_id: str) -> None:
    """Have the container of a pod created and started, as kubelet asks for it; raises PlacementError."""
    described = pod_of_object(made)
    spec = asked(described, "main", sum(node.memory_bytes for node in MACHINE.nodes))
    await begun(one.controller, sandbox(described), replace(spec, id=container_id))
