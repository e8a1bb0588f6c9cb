"""A node of a cluster: kubelet, containerd, baypland and bayplan-agent in a guest, joined to a control plane
that runs on this machine.
"""

import json
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from bayplan.agent.cluster.node_objects import pod_fingerprint
from bayplan.model.workload import parts_in_pod
from bayplan.sets import CpuSet
from support.control_plane import GUESTS_VIEW, SERVICE, ControlPlane
from testbed.agent import GROUP, start_agent
from testbed.agent import SERVICE as AGENT
from testbed.channel import LIMIT_S
from testbed.errors import GuestError
from testbed.guest import Guest
from testbed.kubelet import ROOT, Kubelet
from testbed.kubernetes import KUBERNETES_VERSION
from testbed.node import Node
from testbed.oci import WORKLOAD_IMAGE

PODS = "/api/v1/namespaces/default/pods"
TOPOLOGIES = "/apis/topology.node.k8s.io/v1alpha2/noderesourcetopologies"
POLL_S = 0.5
TASKS = "topology,pods,events,evictions"
# What QEMU's user-mode network expects of its only guest.
NETWORK = """modprobe virtio_net && ip link set eth0 up && ip addr add 10.0.2.15/24 dev eth0 &&
ip route add default via 10.0.2.2"""
# kubelet calls a node ready that has a network; the pods here use that of the node.
CNI = '{"cniVersion": "1.0.0", "name": "none", "plugins": [{"type": "loopback"}]}'
COPY = """
import asyncio
async def copy(reader, writer):
    try:
        while piece := await reader.read(65536):
            writer.write(piece)
            await writer.drain()
    finally:
        writer.close()
async def connect(reader, writer, host, port):
    theirs = await asyncio.open_connection(host, port)
    await asyncio.gather(copy(reader, theirs[1]), copy(theirs[0], writer), return_exceptions=True)
async def serve_forever(listening):
    async with await listening as server:
        await server.serve_forever()
"""
FORWARD = (
    COPY
    + """
async def serve(reader, writer):
    await connect(reader, writer, "{host}", {port})
asyncio.run(serve_forever(asyncio.start_server(serve, "{service}", 443)))
"""
)
# An HTTP proxy that has one destination, whichever it is asked for.
KUBELET_PROXY = (
    COPY
    + """
async def serve(reader, writer):
    await reader.readuntil(bytes((13, 10, 13, 10)))
    writer.write(b"HTTP/1.1 200 OK" + bytes((13, 10, 13, 10)))
    await connect(reader, writer, "127.0.0.1", 10250)
asyncio.run(serve_forever(asyncio.start_unix_server(serve, "{path}")))
"""
)
KUBELET_SOCKET = "/run/kubelet-proxy.sock"
CNI_FILE = "/etc/cni/net.d/10-none.conflist"


def join(node: Node, plane: ControlPlane, name: str, token: str, *flags: str) -> Kubelet:
    """Have a node become `name` of a cluster, with baypland under these flags, and the agent with the token
    of a service account; returns once the API server calls it ready."""
    guest = node.guest
    node.bayplan.start("--agent-group", GROUP, *flags)
    node.bayplan.await_synchronized()
    kubelet = start_kubelet(guest, plane, name)
    follow(guest, plane, name, token)
    await_object(plane, f"/api/v1/nodes/{name}", is_ready)
    return kubelet


def join_with_claims(
    node: Node, plane: ControlPlane, name: str, account: str, *flags: str
) -> tuple[Kubelet, Callable[[], None]]:
    """The same as a DRA driver, as of `serve_claims`; what that returns is beside kubelet."""
    node.bayplan.start("--agent-group", GROUP, *flags)
    node.bayplan.await_synchronized()
    kubelet = start_kubelet(node.guest, plane, name)
    return kubelet, serve_claims(node.guest, plane, name, account)


def serve_claims(guest: Guest, plane: ControlPlane, name: str, account: str) -> Callable[[], None]:
    """Start the agent with the task claims, once kubelet's node `name` is ready: with a token of the service
    account at the path *account* that says on which node its bearer is, as those of pods do, and with the
    directories that the chart gives to its pod. What is returned starts it again."""
    uid = await_object(plane, f"/api/v1/nodes/{name}", is_ready)["metadata"]["uid"]
    token = plane.token(account, {"apiVersion": "v1", "kind": "Node", "name": name, "uid": uid})
    plugins, registry = (f"{ROOT}/{one}" for one in ("plugins", "plugins_registry"))
    own = (f"{plugins}/bayplan.dev", f"{registry}/bayplan.dev")
    guest.run("install", "--directory", "--owner=nobody", "--group=nogroup", *own)
    # kubelet's directories are closed to others; a pod has its mounts below others of these names.
    guest.run("chmod", "o+x", ROOT, plugins, registry)
    start = partial(follow, guest, plane, name, token, "topology,pods,events,claims")
    start()
    guest.await_socket(f"{registry}/bayplan.dev/bayplan.dev-reg.sock", service=AGENT)
    return start


def start_kubelet(guest: Guest, plane: ControlPlane, name: str) -> Kubelet:
    """Have kubelet register the guest as the node `name`."""
    guest.run("sh", "-c", NETWORK)
    guest.write(CNI_FILE, CNI)
    joining = plane.kubeconfig(f"{name}-kubelet", GUESTS_VIEW, token=name).read_text()
    kubelet = Kubelet(guest, KUBERNETES_VERSION, name=name, kubeconfig=joining)
    kubelet.start({})
    return kubelet


def serve_api(guest: Guest, plane: ControlPlane) -> None:
    """Have pods of the guest reach the API server at its service's address, as kube-proxy does."""
    guest.run("ip", "addr", "add", f"{SERVICE}/32", "dev", "lo")
    forward = FORWARD.format(service=SERVICE, host=GUESTS_VIEW, port=plane.port)
    guest.start("api-service", "python3", "-c", forward, log="/var/log/api-service.log")


def serve_kubelet(guest: Guest, plane: ControlPlane) -> None:
    """Have the API server reach the guest's kubelet, whatever node it asks for."""
    proxy = KUBELET_PROXY.format(path=KUBELET_SOCKET)
    guest.start("kubelet-proxy", "python3", "-c", proxy, log="/var/log/kubelet-proxy.log")
    guest.await_socket(KUBELET_SOCKET)
    plane.to_nodes.symlink_to(guest.forwarded(KUBELET_SOCKET))


def follow(guest: Guest, plane: ControlPlane, name: str, token: str, tasks: str = TASKS) -> None:
    """Start the agent, which knows of pods from the API server alone."""
    path = "/run/agent.kubeconfig"
    guest.write(path, plane.kubeconfig(f"{name}-agent", GUESTS_VIEW, token=token).read_text())
    words = (f"--kubeconfig={path}", f"--node-name={name}", f"--cluster-tasks={tasks}")
    start_agent(guest, "--kubelet-pods-socket=none", *words)


def is_ready(node: Mapping[str, Any]) -> bool:
    """Whether a node, or a pod, is ready."""
    return any(
        one["type"] == "Ready" and one["status"] == "True" for one in node["status"].get("conditions", ())
    )


def await_object(
    plane: ControlPlane,
    path: str,
    condition: Callable[[Mapping[str, Any]], bool],
    limit_s: float = LIMIT_S,
) -> Mapping[str, Any]:
    """Wait until an object is there and is as wanted; what it is then."""
    deadline = time.monotonic() + limit_s
    while (found := plane.find(path)) is None or not condition(found):
        if time.monotonic() > deadline:
            raise GuestError(f"{path} did not come to be as wanted within {limit_s:g} s: {found}")
        time.sleep(POLL_S)
    return found


def await_published(node: Node, plane: ControlPlane, name: str) -> None:
    """Wait until the API server has the room of the node's ledger, and of which pods it is."""
    deadline = time.monotonic() + LIMIT_S
    # The ledger may change, too: how much containers request is known exactly a while after they started.
    while (found := plane.find(f"{TOPOLOGIES}/{name}")) is None or published(found) != promised(node):
        if time.monotonic() > deadline:
            raise GuestError(f"{name}: published is {found and published(found)}, but {promised(node)}")
        time.sleep(POLL_S)


def published(topology: Mapping[str, Any]) -> dict[str, object]:
    """What a NodeResourceTopology has: capacity, allocatable and available of each resource by zone, and the
    fingerprint of the pods."""
    amounts = ("capacity", "allocatable", "available")
    zones: dict[str, object] = {
        zone["name"]: {one["name"]: [int(one[key]) for key in amounts] for one in zone["resources"]}
        for zone in topology["zones"]
    }
    attributes = {one["name"]: one["value"] for one in topology["attributes"]}
    return zones | {"pods": attributes["nodeTopologyPodsFingerprint"]}


def promised(node: Node) -> dict[str, object]:
    """The same, by what `bayplan status`, `nodes` and `what-if` say of the ledger."""
    names = (parts_in_pod(one["name"]) for one in node.bayplan.status()["containers"])
    with tempfile.NamedTemporaryFile("w", suffix=".json") as manifest:
        json.dump(pod("none", {}), manifest)
        manifest.flush()
        rooms = node.bayplan.ask("what-if", manifest.name)["nodesBefore"]
    zones = {
        f"node-{one['id']}": _zone(one, room["resources"])
        for one, room in zip(node.bayplan.nodes()["nodes"], rooms, strict=True)
    }
    return {**zones, "pods": pod_fingerprint({parts[:2] for parts in names if parts is not None})}


def _zone(node: Mapping[str, Any], rooms: Mapping[str, Mapping[str, int]]) -> dict[str, list[int]]:
    """Capacity, allocatable and available of each resource."""
    cpus, reserved, exclusive = (CpuSet.parse(node["cpus"][key]) for key in ("all", "reserved", "exclusive"))
    free = cpus - reserved
    amounts = {"cpu": [len(cpus), len(free), len(free - exclusive)]}
    for resource, room in rooms.items():
        total = node["resources"][resource]["totalBytes"]
        amounts[resource] = [total, room["allocatableBytes"], room["freeBytes"]]
    return amounts


def pod(name: str, resources: Mapping[str, Mapping[str, str]], **spec: object) -> dict[str, Any]:
    """A pod with one container, main, that does nothing."""
    container = {
        "name": "main",
        "image": WORKLOAD_IMAGE,
        "imagePullPolicy": "Never",
        "command": ["/bin/workload", "pause"],
        "resources": resources,
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "hostNetwork": True,
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": False,
            "containers": [container],
            **spec,
        },
    }
