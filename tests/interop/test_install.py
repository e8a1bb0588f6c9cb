"""The documented ways to install, upgrade and remove, with helm and kubectl, at a real API server."""

import contextlib
import json
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from chart import IMAGE, rendered
from testbed import gobuild
from testbed.errors import TestBedError

from support.chart_manifests import PROJECT
from support.cluster_agents import TOPOLOGIES, make_node
from support.console_blocks import commands
from support.control_plane import ADMIN, MERGE, POLL_S, ApiRefusalError, ControlPlane, Object

pytestmark = [pytest.mark.cluster, pytest.mark.matrix, pytest.mark.xdist_group("control-plane")]

NAMESPACE = "/api/v1/namespaces/bayplan"
DAEMON_SETS = "/apis/apps/v1/namespaces/bayplan/daemonsets"
LIMIT_S = 300


class Controllers:
    """What commands wait for, as no controllers run here: a namespace that is being deleted goes, and
    a DaemonSet is rolled out, on no node."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane
        self._ending = threading.Event()

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        thread = threading.Thread(target=self._run)
        thread.start()
        try:
            yield
        finally:
            self._ending.set()
            thread.join()

    def _run(self) -> None:
        while not self._ending.wait(POLL_S):
            # Somebody else deletes it, or writes it, in between.
            with contextlib.suppress(ApiRefusalError):
                self._look()

    def _look(self) -> None:
        namespace = self._plane.find(NAMESPACE)
        if namespace is not None and namespace["status"]["phase"] == "Terminating":
            namespace["spec"]["finalizers"] = []
            self._plane.ask("PUT", f"{NAMESPACE}/finalize", namespace)
        for one in (self._plane.find(DAEMON_SETS) or {"items": []})["items"]:
            generation = one["metadata"]["generation"]
            if one["status"].get("observedGeneration") != generation:
                numbers = (
                    "currentNumberScheduled",
                    "desiredNumberScheduled",
                    "numberMisscheduled",
                    "numberReady",
                )
                one["status"] = {**dict.fromkeys(numbers, 0), "observedGeneration": generation}
                self._plane.ask("PUT", f"{DAEMON_SETS}/{one['metadata']['name']}/status", one)


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with helm and kubectl."""
    directory = tmp_path_factory.mktemp("programs")
    try:
        for name, program in (("helm", gobuild.helm()), ("kubectl", gobuild.kubectl())):
            shutil.copy2(program, directory / name)
    except TestBedError as error:
        pytest.fail(str(error), pytrace=False)
    return directory


@pytest.fixture
def shell(control_plane: ControlPlane, programs: Path, tmp_path: Path) -> Iterator["Shell"]:
    with Controllers(control_plane).running():
        yield Shell(control_plane, programs, tmp_path)


class Shell:
    """What an administrator types, in the source tree."""

    def __init__(self, plane: ControlPlane, programs: Path, home: Path) -> None:
        self._environment = {
            "PATH": f"{programs}:{sys.prefix}/bin:/usr/bin:/bin",
            "HOME": str(home),
            "KUBECONFIG": str(plane.kubeconfig("admin", token=ADMIN)),
        }

    def run(self, command: str) -> str:
        """What *command* prints; the test fails if it does."""
        finished = self._run(command)
        assert finished.returncode == 0, f"$ {command}\n{finished.stdout}"
        return finished.stdout

    def try_to(self, command: str) -> str:
        """What *command* prints, whether it fails or not."""
        return self._run(command).stdout

    def _run(self, command: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            ["bash", "-c", command],
            cwd=PROJECT,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )


@pytest.mark.usefixtures("topologies")
def test_the_documented_commands(control_plane: ControlPlane, shell: Shell) -> None:
    """In their order, but that what removes comes last."""
    shown = commands("run by tests/interop/test_install.py")
    install, upgrade, uninstall, apply, delete, create, label, fetch, rollout, roll, release, forget = shown

    def strategy() -> str:
        found = control_plane.find(f"{DAEMON_SETS}/bayplan")
        return "" if found is None else found["spec"]["updateStrategy"]["type"]

    shell.run(install)
    shell.run(upgrade)
    assert strategy() == "RollingUpdate"
    shell.run(fetch)
    assert strategy() == "OnDelete"
    shell.run(rollout)
    shell.run(roll)
    assert strategy() == "RollingUpdate"
    make_node(control_plane, "left")
    control_plane.apply(f"{TOPOLOGIES}/left", topology("left"))
    shell.run(release)
    shell.run(uninstall)
    shell.run(forget)
    assert control_plane.ask("GET", TOPOLOGIES)["items"] == []
    assert strategy() == ""
    shell.run("kubectl delete namespace bayplan")
    assert "Warning" not in shell.run(apply)
    assert strategy() == "RollingUpdate"
    shell.run(delete)
    assert control_plane.find(NAMESPACE) is None
    shell.run(create)
    shell.run(label)
    shell.run("kubectl delete namespace bayplan")


@pytest.mark.parametrize(
    "values",
    [
        "agent.podResources=true,daemon.kubeletConfig=/var/lib/kubelet/config.yaml",
        "agent.http.exposed=true,agent.http.tokenSecret=token,agent.http.tlsSecret=tls",
        "daemon.checkPrerequisites=false,agent.clusterTasks=null,agent.maxUnavailable=100%",
    ],
)
def test_the_api_server_accepts_every_variant(shell: Shell, tmp_path: Path, values: str) -> None:
    """With all its own checks, and strictly: a field that it does not know is an error."""
    (tmp_path / "objects.yaml").write_text(rendered(f"--set={values}"))
    shell.run("kubectl create namespace bayplan")
    said = shell.run(f"kubectl apply --dry-run=server --validate=strict --filename {tmp_path}/objects.yaml")
    assert "daemonset.apps/bayplan created (server dry run)" in said
    assert "Warning" not in said
    shell.run("kubectl delete namespace bayplan")


@pytest.mark.usefixtures("topologies")
def test_an_agent_writes_the_object_of_its_own_node_only(
    control_plane: ControlPlane, shell: Shell, tmp_path: Path
) -> None:
    shell.run(f"helm install bayplan packaging/helm/bayplan --namespace bayplan --create-namespace {IMAGE}")
    for node in ("mine", "other"):
        make_node(control_plane, node)
    pod: Object = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "agent"},
        "spec": {
            "nodeName": "mine",
            "serviceAccountName": "bayplan-agent",
            "automountServiceAccountToken": False,
            "containers": [{"name": "agent", "image": "agent"}],
        },
    }
    uid = control_plane.ask("POST", f"{NAMESPACE}/pods", pod)["metadata"]["uid"]
    bound = {"apiVersion": "v1", "kind": "Pod", "name": "agent", "uid": uid}
    token = control_plane.token(f"{NAMESPACE}/serviceaccounts/bayplan-agent", bound)
    agent = f"kubectl --kubeconfig {control_plane.kubeconfig('agent', token=token)}"

    def write(node: str) -> str:
        """What the agent is told that makes the object of *node*."""
        (tmp_path / node).write_text(json.dumps(topology(node)))
        return shell.try_to(f"{agent} create --raw {TOPOLOGIES} --filename {tmp_path}/{node}")

    refusal = "an agent may only write the NodeResourceTopology of its own node, mine"
    deadline_s = time.monotonic() + LIMIT_S
    # The API server takes a moment to learn of a policy.
    while refusal not in write("other"):
        assert time.monotonic() < deadline_s
        control_plane.ask("DELETE", f"{TOPOLOGIES}/other")
    assert '"name":"mine"' in write("mine")
    control_plane.apply(f"{TOPOLOGIES}/other", topology("other"))
    assert refusal in shell.try_to(f"{agent} delete --raw {TOPOLOGIES}/other")
    shell.run(f"{agent} delete --raw {TOPOLOGIES}/mine")
    shell.run("helm uninstall bayplan --namespace bayplan && kubectl delete namespace bayplan --force")


def test_kubectl_starts_its_plugin_which_finds_the_daemons(control_plane: ControlPlane, shell: Shell) -> None:
    """No kubelet is behind these pods: each node is named with the reason that kubectl, or its pod, gives."""
    shell.run(f"helm install bayplan packaging/helm/bayplan --namespace bayplan --create-namespace {IMAGE}")
    chart = control_plane.ask("GET", f"{DAEMON_SETS}/bayplan")["spec"]["template"]
    labels, account = chart["metadata"]["labels"], {"serviceAccountName": "bayplan"}
    for node in ("begins", "runs"):
        make_node(control_plane, node)
        spec = {**account, "nodeName": node, "containers": [{"name": "daemon", "image": "daemon"}]}
        made = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": node, "labels": labels}, "spec": spec}
        control_plane.ask("POST", f"{NAMESPACE}/pods", made)
    running = {"name": "daemon", "image": "", "imageID": "", "ready": True, "restartCount": 0}
    running["state"] = {"running": {}}
    status = {"status": {"phase": "Running", "containerStatuses": [running]}}
    control_plane.ask("PATCH", f"{NAMESPACE}/pods/runs/status", status, MERGE)
    said = shell.try_to("kubectl bayplan nodes; echo $?").splitlines()
    assert said[0] == "Node begins: no answer: the pod begins is Pending"
    assert said[2].startswith("Node runs: no answer: ")
    assert "kubectl" not in said[2]
    assert said[-1] == "3"
    shell.run("helm uninstall bayplan --namespace bayplan && kubectl delete namespace bayplan --force")


def topology(node: str) -> Object:
    """A NodeResourceTopology without room."""
    version = TOPOLOGIES.removeprefix("/apis/").rpartition("/")[0]
    meta = {"name": node}
    return {"apiVersion": version, "kind": "NodeResourceTopology", "metadata": meta, "zones": []}
