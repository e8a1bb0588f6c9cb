"""The chart on a node of a real control plane: kubelet runs the image of the Containerfile as daemon and
agent, which are upgraded and removed while pods run."""

import os
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from chart import helm_program
from testbed import kubernetes
from testbed.channel import LIMIT_S
from testbed.cluster import PODS, await_object, is_ready, pod, serve_api, start_kubelet
from testbed.disks import tree_disk
from testbed.handed_out import ARCHIVE, IMAGE, image
from testbed.kubelet import kubelet_disk
from testbed.node import Node
from testbed.topology import CLUSTER_NODE

from support.chart_manifests import CHART
from support.control_plane import ADMIN, ControlPlane

pytestmark = [pytest.mark.cluster, pytest.mark.matrix]

NAME = "node-a"
NAMESPACE = "/api/v1/namespaces/bayplan"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
DAEMON_SETS = "/apis/apps/v1/namespaces/bayplan/daemonsets"
TOPOLOGY = f"/apis/topology.node.k8s.io/v1alpha2/noderesourcetopologies/{NAME}"
BLIND = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}
VERSION = yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"]
# Nothing depends on how fast an emulated machine is.
SLOW = ("config.requestDeadline=15s", "config.measuredReservation=false", f"image.repository={IMAGE}")


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    programs = kubernetes.api_server()
    with tempfile.TemporaryDirectory() as directory:
        plane = ControlPlane(programs, Path(directory), nodes=(NAME,))
        with plane.running():
            crd = yaml.safe_load((programs / kubernetes.TOPOLOGY_CRD).read_text())
            plane.apply(f"{CRDS}/{crd['metadata']['name']}", crd)
            plane.start_controllers(kubernetes.controller_manager(), "daemonset-controller")
            plane.start_scheduler(kubernetes.scheduler(), BLIND)
            yield plane


@pytest.fixture(scope="module")
def node(plane: ControlPlane) -> Iterator[Node]:
    """A node without bayplan, which has its image."""
    disks = {"kubelet": kubelet_disk(), "image": tree_disk("container-image", image(VERSION))}
    node = Node(CLUSTER_NODE, "2.1", more_disks=disks)
    try:
        # As systemd has mounted them.
        node.guest.run("mount", "--make-rshared", "/")
        node.containerd.ctr("images", "import", f"/opt/image/{ARCHIVE}")
        start_kubelet(node.guest, plane, NAME)
        serve_api(node.guest, plane)
        await_object(plane, f"/api/v1/nodes/{NAME}", is_ready)
        yield node
    finally:
        node.shut_down()


def helm(plane: ControlPlane, *words: str) -> None:
    """As an administrator types it."""
    environment = {**os.environ, "KUBECONFIG": str(plane.kubeconfig("admin", token=ADMIN))}
    argv = [helm_program(), *words, "--namespace=bayplan"]
    finished = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr


def await_daemon_sets(plane: ControlPlane) -> None:
    """Wait until daemon and agent are ready, both as the chart has them now."""
    for name in ("bayplan", "bayplan-agent"):
        await_object(plane, f"{DAEMON_SETS}/{name}", is_rolled_out, 2 * LIMIT_S)


def is_rolled_out(found: Mapping[str, Any]) -> bool:
    status = found["status"]
    if status.get("observedGeneration") != found["metadata"]["generation"]:
        return False
    return bool(status.get("updatedNumberScheduled") == status.get("numberReady") == 1)


def launch(plane: ControlPlane, name: str) -> Mapping[str, Any]:
    """A Guaranteed pod on the node, once it is ready."""
    amounts = {"cpu": "250m", "memory": "300Mi"}
    plane.ask("POST", PODS, pod(name, {"limits": amounts, "requests": amounts}, nodeName=NAME))
    return await_object(plane, f"{PODS}/{name}", is_ready)


def container_of(found: Mapping[str, Any]) -> tuple[str, int]:
    """Its id, and how often it was restarted."""
    (status,) = found["status"]["containerStatuses"]
    return status["containerID"].removeprefix("containerd://"), status["restartCount"]


def confined(node: Node, container_id: str) -> tuple[frozenset[int], frozenset[int], int | None]:
    """Nodes, CPUs and memory limit by the kernel."""
    view = node.view(container_id)
    return view.mems_allowed, view.cpus_allowed, view.memory_max_bytes


def test_the_image_is_installed_upgraded_and_removed_while_pods_run(node: Node, plane: ControlPlane) -> None:
    labels = {"pod-security.kubernetes.io/enforce": "privileged"}
    meta = {"name": "bayplan", "labels": labels}
    plane.ask("POST", "/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": meta})
    # A controller's, where it runs.
    ca = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "kube-root-ca.crt"}}
    plane.ask("POST", f"{NAMESPACE}/configmaps", {**ca, "data": {"ca.crt": plane.ca.read_text()}})
    values = [f"--set={one}" for one in SLOW]
    helm(plane, "install", "bayplan", str(CHART), *values)
    await_daemon_sets(plane)

    first = launch(plane, "first")
    container_id, restarts = container_of(first)
    (placed,) = (one for one in node.bayplan.status()["containers"] if one["id"] == container_id)
    before = confined(node, container_id)
    assert before[0] == {0}
    await_object(plane, TOPOLOGY, lambda found: bool(found["zones"]))

    began_s = time.monotonic()
    helm(plane, "upgrade", "bayplan", str(CHART), "--reset-then-reuse-values", "--set=config.logLevel=debug")
    # Perhaps while there is no daemon: then the next one finds it.
    second = launch(plane, "second")
    await_daemon_sets(plane)
    print(f"upgraded within {time.monotonic() - began_s:.0f} s")
    assert container_of(plane.ask("GET", f"{PODS}/first")) == (container_id, restarts)
    assert confined(node, container_id) == before
    # Beside daemon and agent, which are containers as all others.
    assert {container_id, container_of(second)[0]} <= set(node.bayplan.known())
    (after,) = (one for one in node.bayplan.status()["containers"] if one["id"] == container_id)
    assert after == placed

    helm(plane, "uninstall", "bayplan", "--wait")
    assert container_of(plane.ask("GET", f"{PODS}/first")) == (container_id, restarts)
    assert confined(node, container_id) == before
