"""The daemon as its pod in packaging/kubernetes has it: the same command line, mounts and namespaces, in a
privileged container of containerd, whose root directory cannot be written."""

import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from testbed.bayplan import ADMIN_SOCKET, CLIENT, DAEMON
from testbed.node import Node
from testbed.pods import guaranteed
from testbed.scenario import on
from testbed.topology import TWO_NODES

if TYPE_CHECKING:
    from conftest import Nodes

MANIFESTS = Path(__file__).parents[2] / "packaging/kubernetes/bayplan.yaml"
VERSION = "2.4"
CTR = f"/opt/containerd-{VERSION}/bin/ctr"
LOG = "/var/log/bayplan.log"
SCRATCH = "/run/chart"
# Nothing depends on how fast an emulated machine is.
CONFIG = 'requestDeadline: "15s"\nmeasuredReservation: false\n'
ROOT = f"""
mkdir -p {SCRATCH}/root {SCRATCH}/temporary
mount --bind / {SCRATCH}/root
"""


def pod() -> dict[str, Any]:
    objects = yaml.safe_load_all(MANIFESTS.read_text())
    (found,) = (one for one in objects if (one["kind"], one["metadata"]["name"]) == ("DaemonSet", "bayplan"))
    spec: dict[str, Any] = found["spec"]["template"]["spec"]
    return spec


def words(spec: dict[str, Any]) -> list[str]:
    """The command line that has ctr run the container of *spec*."""
    (container,) = spec["containers"]
    security = container["securityContext"]
    assert security["privileged"]
    assert security["readOnlyRootFilesystem"]
    assert spec["hostPID"]
    assert spec["hostNetwork"]
    # A privileged container has the host's cgroup namespace, too.
    namespaces = [f"--with-ns={name}:/proc/1/ns/{file}" for name, file in HOST]
    sources = {one["name"]: one.get("hostPath", {}).get("path") for one in spec["volumes"]}
    sources |= {"configuration": f"{SCRATCH}/configuration", "temporary": f"{SCRATCH}/temporary"}
    mounts = [mount(sources[one["name"]], one) for one in container["volumeMounts"]]
    # The program comes with the image; here it is on a disk of its own.
    mounts.append(mount("/opt/bayplan", {"mountPath": "/opt/bayplan", "readOnly": True}))
    command = [
        DAEMON if one == "/usr/bin/baypland" else one for one in container["command"] + container["args"]
    ]
    flags = ["--rootfs", "--privileged", "--read-only", *namespaces, *mounts]
    return [CTR, "run", *flags, f"{SCRATCH}/root", "chart", *command]


HOST = (("pid", "pid"), ("network", "net"), ("cgroup", "cgroup"))


def mount(source: str, one: dict[str, Any]) -> str:
    options = ["rbind", "ro" if one.get("readOnly") else "rw"]
    options += ["rslave"] if one.get("mountPropagation") == "HostToContainer" else []
    return f"--mount=type=bind,src={source},dst={one['mountPath']},options={':'.join(options)}"


@pytest.mark.matrix
@on(TWO_NODES, VERSION)
def test_the_daemon_s_pod_places_containers(node: Node, nodes: "Nodes") -> None:
    node.guest.write(f"{SCRATCH}/configuration/bayplan.yaml", CONFIG)
    spec = pod()
    made = [one["hostPath"]["path"] for one in spec["volumes"] if "hostPath" in one]
    node.guest.run("sh", "-c", f"{ROOT}mkdir -p {' '.join(made)}")
    since = node.bayplan.log_position()
    try:
        node.guest.start("chart", *words(spec), log=LOG)
        node.guest.await_socket(ADMIN_SOCKET)
        node.bayplan.await_synchronized(since=since)
        first = node.launch(guaranteed("first", 1, "600Mi"))
        second = node.launch(guaranteed("second", 1, "600Mi"))
        assert [node.view(one).mems_allowed for one in (first, second)] == [{0}, {1}]
        probe = ("tasks", "exec", "--exec-id", "probe", "chart", CLIENT, "ping", "--runtime")
        node.guest.run(CTR, *probe)
        # By the capabilities of its process it can do all that the unit's daemon can.
        examined = node.bayplan.ask_in_guest("doctor")
        assert [one for one in examined["findings"] if "has no CAP_" in one["text"]] == []
        # A second one ends at once, and takes nothing from the first.
        assert node.bayplan.start_refused().exit_code == 3
        assert node.guest.signal("chart", signal.SIGTERM) == 0
        assert [node.view(one).mems_allowed for one in (first, second)] == [{0}, {1}]
    finally:
        nodes.forget()
