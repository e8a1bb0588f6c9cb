"""Many agents in one process at one API server: each is what the program runs
(`bayplan.agent.bayplan_agent`), and follows a daemon's controller of its own, with a real ledger and store,
over a real socket.

What they cost is read where it is paid: in the audit log of the API server, and in its metrics.
"""

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime
from http import HTTPStatus
from pathlib import Path
from typing import Final, NamedTuple

from msgspec.structs import replace

from bayplan.agent.bayplan_agent import serve
from bayplan.agent.command_line import AgentSettings, ClusterTask
from bayplan.agent.kubelet_pods import pod_of_object
from bayplan.control.placements import ExactRequests
from bayplan.errors import PlacementError
from bayplan.model.decision import QosClass
from bayplan.model.machine import Machine
from bayplan.model.policy import PlacementPolicy, TopologyPolicy
from bayplan.nri import Event
from bayplan.quantity import GIB, MIB
from support.agents import serving
from support.cluster_agents import PODS, TOPOLOGIES, create, make_node, make_pod
from support.control_plane import MERGE, ControlPlane, Object
from support.controllers import Controlled, begun, controlled
from support.kubelet_pods import sandbox
from support.kubernetes_page import agent_rules
from support.machines import container, machine, pod

ACCOUNT: Final = "fleet"
USER: Final = f"system:serviceaccount:default:{ACCOUNT}"
SLICES: Final = "/apis/resource.k8s.io/v1/resourceslices"
TASKS: Final = frozenset({ClusterTask.TOPOLOGY, ClusterTask.PODS, ClusterTask.EVENTS, ClusterTask.CLAIMS})

_REQUESTS: Final = {"requests": {"cpu": "100m", "memory": "1Gi"}, "limits": {"memory": "2Gi"}}
_WRITES: Final = frozenset({"create", "patch", "update", "delete"})


class Asked(NamedTuple):
    """A request of an agent, as the API server's audit log has it; *at_s* since the epoch. *node* is the
    agent's, where the request names it."""

    at_s: float
    node: str
    verb: str
    resource: str
    status: int

    @property
    def writes(self) -> bool:
        return self.verb in _WRITES


class Metrics:
    """The API server's metrics of one moment."""

    def __init__(self, text: str) -> None:
        self._samples = re.findall(r"^(\w+)(?:\{(.*)\})? (\S+)$", text, re.MULTILINE)

    def sum(self, name: str, *labels: str) -> float:
        """Of all samples called *name* that have all these labels, such as ``verb="LIST"``."""
        return sum(
            float(value)
            for each, given, value in self._samples
            if each == name and all(label in given for label in labels)
        )


class Member(NamedTuple):
    """A node with its daemon's controller and its agent."""

    name: str
    node: Controlled


class Fleet:
    """*members* at *plane*."""

    def __init__(self, plane: ControlPlane, members: Sequence[Member]) -> None:
        self.plane = plane
        self.members = members
        self._lives = 0

    async def published(self) -> None:
        """Wait until every node's room and devices are at the API server."""
        for path in (TOPOLOGIES, SLICES):
            while len(self.items(path)) < len(self.members):  # noqa: ASYNC110 - nothing tells of it
                await asyncio.sleep(1)

    def items(self, path: str) -> list[Object]:
        """The objects of a collection."""
        found = self.plane.find(path) or {}
        items: list[Object] = found.get("items", [])
        return items

    async def live(self, member: Member, linger_s: float) -> None:
        """A pod is bound to the node, its container runs for *linger_s*, and both go, as kubelet has it."""
        self._lives += 1
        name = f"{member.name}-life-{self._lives}"
        plane, path = self.plane, f"{PODS}/{name}"
        made = await asyncio.to_thread(make_pod, plane, name, _REQUESTS, nodeName=member.name)
        await asyncio.sleep(linger_s / 2)
        await create(member.node, made, name)
        running = {"status": {"phase": "Running"}}
        await asyncio.to_thread(plane.ask, "PATCH", f"{path}/status", running, MERGE)
        await asyncio.sleep(linger_s)
        owner = sandbox(pod_of_object(made))
        one = replace(container(name, owner), name="main")
        await member.node.controller.stop_container(owner, one)
        await member.node.controller.state_changed(Event.REMOVE_CONTAINER, owner, one)
        await asyncio.to_thread(plane.ask, "DELETE", f"{path}?gracePeriodSeconds=0")

    async def refuse(self, member: Member, count: int) -> None:
        """Have *count* containers of as many pods refused on the node: each wants more than a NUMA node."""
        for number in range(count):
            owner = pod(f"{member.name}-refused-{number}", QosClass.GUARANTEED)
            big = container(f"{owner.name}-main", owner, memory_bytes=900 * GIB, milli_cpus=500)
            try:
                await member.node.controller.create_container(owner, replace(big, name="main"))
            except PlacementError:
                continue
            raise AssertionError(f"{owner.name} was placed")

    def metrics(self) -> Metrics:
        """Those of the API server."""
        return Metrics(self.plane.text("/metrics"))

    def watching(self, since_s: float = 0.0) -> set[str]:
        """The nodes whose pods their agents began to watch since then."""
        watches = (one for one in self.asked() if (one.verb, one.resource) == ("watch", "pods"))
        return {one.node for one in watches if one.at_s >= since_s and one.status in {0, HTTPStatus.OK}}

    def asked(self) -> list[Asked]:
        """All that the agents asked for so far."""
        # Of a watch the log has the beginning and the end.
        once = {one["auditID"]: one for one in reversed(self.plane.audited(USER))}
        return [
            Asked(
                datetime.fromisoformat(one["requestReceivedTimestamp"]).timestamp(),
                "".join(re.findall(r"fleet-\d+", one["requestURI"])[:1]),
                one["verb"],
                one.get("objectRef", {}).get("resource", one["requestURI"].partition("?")[0]),
                one.get("responseStatus", {}).get("code", 0),
            )
            for one in reversed(once.values())
        ]


@asynccontextmanager
async def fleet(
    plane: ControlPlane,
    directory: Path,
    count: int,
    on: Machine = machine(2, cpus_per_node=64, memory_bytes=256 * GIB),
    beside: int = 30,
    tasks: frozenset[ClusterTask] = TASKS,
) -> AsyncIterator[Fleet]:
    """*count* nodes of the machine *on* with *beside* containers each, and their agents, which run within."""
    kubeconfig = plane.kubeconfig(
        ACCOUNT, token=plane.make_service_account(ACCOUNT, agent_rules(claims=True))
    )
    async with AsyncExitStack() as stack:
        members = []
        for number in range(count):
            name = f"fleet-{number}"
            make_node(plane, name)
            own = directory / str(number)
            own.mkdir()
            policy = PlacementPolicy(topology=TopologyPolicy.SINGLE_NUMA_NODE)
            node = await stack.enter_async_context(controlled(own / "state", policy, on=on))
            for each in range(beside):
                owner = pod(f"{name}-{each}", QosClass.BURSTABLE)
                spec = container(f"{owner.name}-main", owner, memory_bytes=512 * MIB, milli_cpus=250)
                await begun(node.controller, owner, spec)
            await stack.enter_async_context(serving(node, own / "a.sock"))
            exact = asyncio.create_task(ExactRequests(node.state).follow())
            stack.callback(exact.cancel)
            members.append(Member(name, node))
        async with asyncio.TaskGroup() as agents:
            running = [
                agents.create_task(serve(settings(directory / str(number), kubeconfig, one.name, tasks)))
                for number, one in enumerate(members)
            ]
            try:
                yield Fleet(plane, members)
            finally:
                for task in running:
                    task.cancel()


def settings(
    directory: Path, kubeconfig: Path, node_name: str, tasks: frozenset[ClusterTask]
) -> AgentSettings:
    """Those of an agent that has no other source than the API server."""
    return AgentSettings(
        daemon_socket=directory / "a.sock",
        kubelet_pods_socket=None,
        pod_resources_socket=None,
        kubelet_pod_resources=None,
        listen=None,
        kubeconfig=kubeconfig,
        node_name=node_name,
        cluster_tasks=tasks,
        kubelet_plugins=directory,
        kubelet_plugins_registry=directory,
    )


def counted(asked: Sequence[Asked]) -> Counter[tuple[str, str]]:
    """How many requests there were of each verb and resource."""
    return Counter((one.verb, one.resource) for one in asked)


def first_by_node(asked: Sequence[Asked]) -> list[float]:
    """When the agent of each node asked for the first time."""
    return list({one.node: one.at_s for one in reversed(asked) if one.node}.values())


def most_in_a_second(moments_s: Sequence[float]) -> int:
    """How many of *moments_s*, at most, lie within one second."""
    ordered, first, most = sorted(moments_s), 0, 0
    for last, moment_s in enumerate(ordered):
        while ordered[first] <= moment_s - 1:
            first += 1
        most = max(most, last - first + 1)
    return most
