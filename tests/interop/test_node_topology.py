"""The node's room beside what other people's programs make of it: the fingerprint of pods by the library of
scheduler-plugins and NFD, and NFD's topology-updater, unmodified, which reads the agent's PodResources."""

import asyncio
import base64
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec.structs import replace

from bayplan.agent.cluster.node_objects import pod_fingerprint, topology_object
from bayplan.agent.pod_resources import KubeletPodResources, PodResourcesService
from bayplan.host.sysfs import read_machine
from bayplan.model.decision import Placement
from bayplan.model.ledger import Entry, Ledger
from bayplan.model.machine import MEMORY, Machine
from bayplan.model.policy import PlacementPolicy
from bayplan.quantity import MIB, parse_quantity
from bayplan.sets import CpuSet, NodeSet
from bayplan.views.snapshot import Snapshot
from support.fake_api_server import NODE, TOPOLOGY, FakeApiServer
from support.fake_kubelet import RECORDED, TOKEN
from support.snapshots import GUARANTEED, make_snapshot

sys.path.insert(0, str(Path(__file__).parent))

from goside import PATIENCE_S
from testbed.errors import TestBedError
from testbed.gobuild import compiled

HERE = Path(__file__).parent
UPDATER = "sigs.k8s.io/node-feature-discovery/cmd/nfd-topology-updater"

AMOUNTS = {"cpu": "1", "memory": "64Mi"}
POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "web-0", "namespace": "default"},
    "spec": {"containers": [{"name": "nginx", "resources": {"limits": AMOUNTS, "requests": AMOUNTS}}]},
}
"""A Guaranteed one: the updater counts no others."""

KUBELET_CONFIG = {
    "apiVersion": "kubelet.config.k8s.io/v1beta1",
    "kind": "KubeletConfiguration",
    "topologyManagerPolicy": "best-effort",
    "topologyManagerScope": "container",
}


@pytest.mark.interop
@pytest.mark.parametrize(
    "pods",
    [
        [],
        [("default", "web-0")],
        [("kube-system", f"a-name-of-more-than-32-bytes-{number:05}") for number in range(300)],
        [("", "x"), ("ns", ""), ("namespace-of-eight", "12345678"), ("ünicode", "näme")],
    ],
)
def test_the_fingerprint_is_that_of_the_library(pods: list[tuple[str, str]]) -> None:
    program = built("podfingerprint", "podfingerprint")
    words = [f"{namespace}/{name}" for namespace, name in reversed(pods)]
    said = subprocess.run([program, *words], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == pod_fingerprint(pods)


@pytest.mark.matrix
@pytest.mark.interop
def test_nfds_updater_publishes_the_same_room(tmp_path: Path) -> None:
    """The updater reads this machine's own NUMA nodes. It takes four minutes of CPU time to build."""
    updater = built("nfd", "nfd-topology-updater", UPDATER)
    snapshot, fake = here(read_machine()), FakeApiServer()
    fake.objects["/api/v1/namespaces/default/pods/web-0"] = POD
    with fake.serving():
        asyncio.run(update(updater, snapshot, fake, tmp_path))
    theirs = fake.objects[f"{TOPOLOGY}/v1alpha2/noderesourcetopologies/{NODE}"]
    ours = topology_object(NODE, "", snapshot)
    assert room(theirs) == room(ours)
    fingerprints = [attributes(one)["nodeTopologyPodsFingerprint"] for one in (theirs, ours)]
    assert fingerprints[0] == fingerprints[1]


def built(folder: str, name: str, package: str = ".") -> Path:
    try:
        return compiled(HERE / folder, name, package=package)
    except TestBedError as error:
        pytest.fail(str(error), pytrace=False)


def here(machine: Machine) -> Snapshot:
    """A Guaranteed container with 64Mi and the last CPU of the first node of *machine*."""
    node = next(one for one in machine.nodes if one.memory_bytes and len(one.cpus) > 1)
    placement = Placement(NodeSet([node.id]), CpuSet([max(node.cpus)]), {node.id: {MEMORY: 64 * MIB}})
    ledger = Ledger.of([Entry(replace(GUARANTEED, placement=placement))])
    return make_snapshot(machine=machine, policy=PlacementPolicy(), ledger=ledger)


async def update(updater: Path, snapshot: Snapshot, fake: FakeApiServer, directory: Path) -> None:
    """Have *updater* publish once what PodResources says of *snapshot*."""
    (directory / "kubelet.yaml").write_text(yaml.safe_dump(KUBELET_CONFIG))
    (directory / "kubeconfig").write_text(yaml.safe_dump(kubeconfig(fake)))
    service = PodResourcesService(directory / "ours.sock", lambda: snapshot, KubeletPodResources(None))
    await service.start()
    try:
        process = await asyncio.create_subprocess_exec(
            updater,
            *("-oneshot", "-sleep-interval=1s", "-port=0", "-kubelet-state-dir="),
            f"-podresources-socket=unix:{directory / 'ours.sock'}",
            f"-kubelet-config-uri=file://{directory / 'kubelet.yaml'}",
            f"-kubeconfig={directory / 'kubeconfig'}",
            env={"NODE_NAME": NODE, "KUBERNETES_NAMESPACE": "default"},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        try:
            said, _ = await asyncio.wait_for(process.communicate(), PATIENCE_S)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        assert process.returncode == 0, said.decode()
    finally:
        await service.close()


def kubeconfig(fake: FakeApiServer) -> dict[str, Any]:
    cluster = {
        "server": fake.server.url,
        "certificate-authority-data": base64.b64encode((RECORDED / "kubelet.pem").read_bytes()).decode(),
        "tls-server-name": "node",
    }
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "here", "user": "agent"}}],
        "clusters": [{"name": "here", "cluster": cluster}],
        "users": [{"name": "agent", "user": {"token": TOKEN}}],
    }


def room(published: dict[str, Any]) -> dict[str, Any]:
    """By zone and resource, what is allocatable and available."""
    return {
        (zone["name"], one["name"]): (parse_quantity(one["allocatable"]), parse_quantity(one["available"]))
        for zone in published["zones"]
        for one in zone["resources"]
        if parse_quantity(one["allocatable"])
    }


def attributes(published: dict[str, Any]) -> dict[str, str]:
    return {one["name"]: one["value"] for one in published["attributes"]}
