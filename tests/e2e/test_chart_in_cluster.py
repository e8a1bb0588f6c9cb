"""The chart on a node of a real control plane: kubelet runs the image of the Containerfile as daemon and
agent, which are asked, upgraded and removed while pods run."""

import contextlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from testbed import gobuild, kubernetes
from testbed.channel import LIMIT_S
from testbed.cluster import (
    PODS,
    POLL_S,
    TOPOLOGIES,
    await_object,
    await_published,
    is_ready,
    pod,
    serve_api,
    serve_kubelet,
    start_kubelet,
)
from testbed.disks import tree_disk
from testbed.errors import CommandError
from testbed.handed_out import ARCHIVE, IMAGE, image
from testbed.kubelet import kubelet_disks
from testbed.kubernetes import KUBERNETES_VERSION
from testbed.node import Node
from testbed.pods import MIB
from testbed.topology import CLUSTER_NODE

from support.chart_manifests import CHART
from support.control_plane import ADMIN, ControlPlane, running_control_plane

pytestmark = [pytest.mark.cluster, pytest.mark.matrix]

NAME = "node-a"
NAMESPACE = "/api/v1/namespaces/bayplan"
DAEMON_SETS = "/apis/apps/v1/namespaces/bayplan/daemonsets"
BLIND = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}
VERSION = yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"]
# Nothing depends on how fast an emulated machine is.
SLOW = ("config.requestDeadline=15s", "config.measuredReservation=false", f"image.repository={IMAGE}")
# Whole CPUs of its own, a share of them, and no more than requests.
RESOURCES = {
    "exclusive": {"limits": {"cpu": "1", "memory": "200Mi"}, "requests": {"cpu": "1", "memory": "200Mi"}},
    "shared": {"limits": {"cpu": "250m", "memory": "300Mi"}, "requests": {"cpu": "250m", "memory": "300Mi"}},
    "burstable": {"requests": {"cpu": "100m", "memory": "133Mi"}},
}
MISSED = {"limits": {"cpu": "250m", "memory": "150Mi"}, "requests": {"cpu": "250m", "memory": "150Mi"}}
# The runtime's own words for the end of a plugin's connection, and for the next one's beginning.
CONNECTION = re.compile(
    r'^time="([^"]+)" level=info msg="(?:connection to )?plugin .* (closed|registered) ?.*"$', re.MULTILINE
)


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    with running_control_plane(kubernetes.api_server(), NAME) as plane:
        plane.define(kubernetes.topology_crd())
        plane.start_controllers(
            kubernetes.controller_manager(), "daemonset-controller", "garbage-collector-controller"
        )
        plane.start_scheduler(kubernetes.scheduler(), BLIND)
        yield plane


@pytest.fixture(scope="module")
def node(plane: ControlPlane) -> Iterator[Node]:
    """A node without bayplan, which has its image."""
    disks = {**kubelet_disks(KUBERNETES_VERSION), "image": tree_disk("container-image", image(VERSION))}
    node = Node(CLUSTER_NODE, "2.3", more_disks=disks)
    try:
        # As systemd has mounted them.
        node.guest.run("mount", "--make-rshared", "/")
        node.containerd.ctr("images", "import", f"/opt/image/{ARCHIVE}")
        start_kubelet(node.guest, plane, NAME)
        serve_api(node.guest, plane)
        serve_kubelet(node.guest, plane)
        await_object(plane, f"/api/v1/nodes/{NAME}", is_ready)
        yield node
    finally:
        node.shut_down()


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A PATH with helm, kubectl and its plugin."""
    directory = tmp_path_factory.mktemp("programs")
    for name, program in (("helm", gobuild.helm()), ("kubectl", gobuild.kubectl())):
        (directory / name).symlink_to(program)
    return f"{directory}:{sys.prefix}/bin:{os.environ['PATH']}"


@pytest.fixture
def admin(plane: ControlPlane, programs: str) -> Callable[..., str]:
    """What an administrator types; what it prints."""
    kubeconfig = str(plane.kubeconfig("admin", token=ADMIN))
    environment = {**os.environ, "PATH": programs, "KUBECONFIG": kubeconfig}

    def typed(*words: str, stdin: str | None = None) -> str:
        finished = subprocess.run(
            words, env=environment, input=stdin, capture_output=True, text=True, check=False
        )
        assert finished.returncode == 0, f"{words}: {finished.stderr}"
        return finished.stdout

    return typed


def await_daemon_sets(plane: ControlPlane) -> None:
    """Wait until daemon and agent are ready, both as the chart has them now."""
    for name in ("bayplan", "bayplan-agent"):
        await_object(plane, f"{DAEMON_SETS}/{name}", is_rolled_out, 2 * LIMIT_S)


def is_rolled_out(found: Mapping[str, Any]) -> bool:
    status = found["status"]
    if status.get("observedGeneration") != found["metadata"]["generation"]:
        return False
    return bool(status.get("updatedNumberScheduled") == status.get("numberReady") == 1)


def launch(plane: ControlPlane, **resources: Mapping[str, Mapping[str, str]]) -> dict[str, tuple[str, int]]:
    """Pods on the node; what `container_of` says of each, once they are ready."""
    for name, amounts in resources.items():
        plane.ask("POST", PODS, pod(name, amounts, nodeName=NAME))
    return {name: container_of(await_object(plane, f"{PODS}/{name}", is_ready)) for name in resources}


def container_of(found: Mapping[str, Any]) -> tuple[str, int]:
    """Its id, and how often it was restarted."""
    (status,) = found["status"]["containerStatuses"]
    return status["containerID"].removeprefix("containerd://"), status["restartCount"]


def confined(node: Node, container_id: str) -> tuple[frozenset[int], frozenset[int], int | None]:
    """Nodes, CPUs and memory limit by the kernel."""
    view = node.view(container_id)
    return view.mems_allowed, view.cpus_allowed, view.memory_max_bytes


def ledger(node: Node) -> dict[str, Mapping[str, Any]]:
    """All that is promised, and to whom, but to the chart's own pods, by the pods' names. On which nodes a
    container is booked that is bound to none is no promise."""
    found = {}
    for one in node.bayplan.status()["containers"]:
        namespace, name, _ = one["name"].split("/")
        if namespace == "default":
            found[name] = {key: value for key, value in one.items() if key != "bookedBytes" or one["mems"]}
    return found


def await_ledger(node: Node, condition: Callable[[dict[str, Mapping[str, Any]]], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    found: dict[str, Mapping[str, Any]] = {}
    while not found or not condition(found):
        assert time.monotonic() < deadline, json.dumps(found, indent=1)
        time.sleep(POLL_S)
        # kubelet may be starting it anew.
        with contextlib.suppress(CommandError):
            found = ledger(node)


def connections(node: Node) -> list[tuple[datetime, str]]:
    """When the runtime's connection to the plugin was "closed" and "registered", by its log."""
    return [(datetime.fromisoformat(at), what) for at, what in CONNECTION.findall(node.containerd.log())]


def await_no_plugin(node: Node) -> None:
    """Wait until the runtime has none."""
    deadline = time.monotonic() + LIMIT_S
    while connections(node)[-1][1] != "closed":
        assert time.monotonic() < deadline, node.containerd.log()
        time.sleep(POLL_S)


def prepare_namespace(plane: ControlPlane) -> None:
    labels = {"pod-security.kubernetes.io/enforce": "privileged"}
    meta = {"name": "bayplan", "labels": labels}
    plane.ask("POST", "/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": meta})
    # A controller's, where it runs.
    ca = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "kube-root-ca.crt"}}
    plane.ask("POST", f"{NAMESPACE}/configmaps", {**ca, "data": {"ca.crt": plane.ca.read_text()}})


def upgrade(admin: Callable[..., str], *values: str) -> None:
    """As docs/kubernetes.md has it; the daemons follow."""
    given = [f"--set={one}" for one in values]
    admin(
        "helm", "upgrade", "bayplan", str(CHART), "--namespace=bayplan", "--reset-then-reuse-values", *given
    )


def test_the_image_is_installed_asked_upgraded_and_removed_while_pods_run(
    node: Node, plane: ControlPlane, admin: Callable[..., str], tmp_path: Path
) -> None:
    prepare_namespace(plane)
    values = [f"--set={one}" for one in SLOW]
    admin("helm", "install", "bayplan", str(CHART), "--namespace=bayplan", *values)
    await_daemon_sets(plane)
    ids = launch(plane, **RESOURCES)
    await_ledger(node, lambda found: all(one["memory"]["requestExact"] for one in found.values()))
    before = ledger(node)
    assert {name: (one["id"], 0) for name, one in before.items()} == ids
    kernel = {name: confined(node, one["id"]) for name, one in before.items()}
    assert len(kernel["exclusive"][0]) == len(kernel["exclusive"][1]) == 1
    await_published(node, plane, NAME)

    began_s = time.monotonic()
    upgrade(admin, "config.logLevel=debug")
    await_daemon_sets(plane)
    took_s = time.monotonic() - began_s
    *_, (closed, last), (registered, now) = connections(node)
    assert (last, now) == ("closed", "registered")
    away_s = (registered - closed).total_seconds()
    print(f"upgraded within {took_s:.0f} s, {away_s:.1f} s of them without the plugin")
    await_ledger(node, lambda found: found == before)
    await_published(node, plane, NAME)

    check_kubectl_bayplan(node, admin, tmp_path)

    # An image that the node does not get: it is without the plugin until there is another.
    upgrade(admin, "image.tag=missing")
    await_no_plugin(node)
    ((missed, restarts),) = launch(plane, missed=MISSED).values()
    assert confined(node, missed)[0] == {0, 1}
    upgrade(admin, f"image.tag={VERSION}")
    await_daemon_sets(plane)
    await_ledger(node, lambda found: "missed" in found)
    after = ledger(node)
    adopted = after.pop("missed")
    assert after == before
    assert (adopted["id"], adopted["outcome"], restarts) == (missed, "adopted", 0)
    assert adopted["memory"]["requestHighBytes"] == 150 * MIB
    # So are those of the chart, which start before the daemon does.
    assert missed in [one["id"] for one in node.bayplan.status()["unmanaged"]]
    await_published(node, plane, NAME)
    assert {name: container_of(plane.ask("GET", f"{PODS}/{name}")) for name in ids} == ids
    assert {name: confined(node, one["id"]) for name, one in before.items()} == kernel

    remove(plane, admin)
    assert {name: container_of(plane.ask("GET", f"{PODS}/{name}")) for name in ids} == ids
    assert {name: confined(node, one["id"]) for name, one in before.items()} == kernel


def check_kubectl_bayplan(node: Node, admin: Callable[..., str], directory: Path) -> None:
    """What it shows is what the daemon itself says."""

    def asked(*words: str) -> Any:
        (found,) = json.loads(admin("kubectl", "bayplan", *words, "--output=json", "--timeout=120"))["nodes"]
        assert found["name"] == NAME
        return found["answer"]

    known = ledger(node)
    shown = {one["name"]: one["memory"] for one in asked("status", "--namespace=default")["containers"]}
    assert shown == {one["name"]: one["memory"] for one in known.values()}
    rooms = [one["resources"] for one in asked("nodes")["nodes"]]
    assert rooms == [one["resources"] for one in node.bayplan.nodes()["nodes"]]
    assert known["shared"]["id"] in json.dumps(asked("explain", "shared"))
    pictures = directory / "pictures"
    asked("map", f"--svg={pictures}")
    assert (pictures / f"{NAME}.svg").read_text().startswith("<svg")
    assert "exclusive/main" in admin("kubectl", "bayplan", "status", "--timeout=120")


def remove(plane: ControlPlane, admin: Callable[..., str]) -> None:
    """As docs/kubernetes.md has it, without giving back; nothing is left, nor comes back."""
    objects = admin("helm", "get", "manifest", "bayplan", "--namespace=bayplan")
    shown = ("kubectl", "get", "--filename=-", "--namespace=bayplan", "--ignore-not-found", "--output=name")
    assert {"daemonset.apps/bayplan", "daemonset.apps/bayplan-agent"} < set(
        admin(*shown, stdin=objects).split()
    )
    admin("helm", "uninstall", "bayplan", "--namespace=bayplan", "--wait")
    assert admin(*shown, stdin=objects) == ""
    deadline = time.monotonic() + LIMIT_S
    while left := plane.ask("GET", f"{NAMESPACE}/pods")["items"]:
        assert time.monotonic() < deadline, [one["metadata"]["name"] for one in left]
        time.sleep(POLL_S)
    admin("kubectl", "delete", "noderesourcetopologies", "--all")
    assert plane.ask("GET", TOPOLOGIES)["items"] == []
