"""kubelet itself in the guest: its pods come from manifests, or from an API server that it has joined.

Stand-alone kubelet admits, places and runs static pods by its own managers. It has no network plugin here, so
pods are on the host's network.
"""

import json
import signal
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testbed import kubernetes
from testbed.channel import LIMIT_S
from testbed.crictl import CRICTL, RUNTIME_LIMIT, SOCKET
from testbed.disks import tree_disk
from testbed.errors import GuestError, TestBedError
from testbed.guest import Guest
from testbed.kubernetes import KUBELET_VERSIONS
from testbed.oci import WORKLOAD_IMAGE
from testbed.pods import new_uid

SERVICE = "kubelet"
CONFIG = "/etc/kubernetes/kubelet.yaml"
KUBECONFIG = "/etc/kubernetes/kubelet.kubeconfig"
MANIFESTS = "/etc/kubernetes/manifests"
ROOT = "/var/lib/kubelet"
LOG = "/var/log/kubelet.log"
PORT = 10255
NODE_NAME = "node"

# What has no influence on placement, and what a machine without an API server needs.
SURROUNDINGS: Mapping[str, object] = {
    "apiVersion": "kubelet.config.k8s.io/v1beta1",
    "kind": "KubeletConfiguration",
    "staticPodPath": MANIFESTS,
    "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
    "authorization": {"mode": "AlwaysAllow"},
    "address": "127.0.0.1",
    "readOnlyPort": PORT,
    "cgroupDriver": "cgroupfs",
    "containerRuntimeEndpoint": f"unix://{SOCKET}",
    "failSwapOn": False,
    "imageGCHighThresholdPercent": 100,
}

# In the guest: wait until the pod ARGV[1] is admitted (and so placed) or refused, then print it. Without an
# HTTP library, whose import takes seconds under emulation.
AWAIT_ADMISSION = f"""
import json, socket, sys, time
name, limit = sys.argv[1], time.monotonic() + float(sys.argv[2])
while time.monotonic() < limit:
    answer = b""
    try:
        with socket.create_connection(("127.0.0.1", {PORT})) as link:
            link.sendall(b"GET /pods HTTP/1.0\\r\\n\\r\\n")
            while piece := link.recv(65536):
                answer += piece
        pods = json.loads(answer.partition(b"\\r\\n\\r\\n")[2])["items"] or []
    except (OSError, ValueError):
        pods = []
    for pod in pods:
        status = pod["status"]
        if pod["metadata"]["name"] == name and (status.get("phase") != "Pending" or status.get("startTime")):
            sys.exit(print(json.dumps(pod)))
    time.sleep(0.2)
sys.exit("kubelet did not decide about " + name)
"""

# In the guest: wait until the containers ARGV[1] (JSON: cgroup -> ids of CPUs) have these CPUs.
AWAIT_CPUS = """
import json, sys, time
wanted, limit = json.loads(sys.argv[1]), time.monotonic() + float(sys.argv[2])
def cpus(cgroup):
    spans = open("/sys/fs/cgroup" + cgroup + "/cpuset.cpus.effective").read().split(",")
    ends = [(span.partition("-")[0], span.rpartition("-")[2]) for span in spans]
    return [cpu for first, last in ends for cpu in range(int(first), int(last) + 1)]
while late := {cgroup: cpus(cgroup) for cgroup, ids in wanted.items() if cpus(cgroup) != ids}:
    if time.monotonic() > limit:
        sys.exit("these CPUs never came to be those of " + json.dumps(wanted) + ": " + json.dumps(late))
    time.sleep(0.2)
"""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What kubelet decided about a pod: its uid, and the reason and message if it was refused."""

    uid: str
    reason: str = ""
    message: str = ""


def kubelet_disks(*versions: str) -> dict[str, Path]:
    """Disks with kubelet of these versions, for a Guest."""
    return {_name(version): tree_disk("kubelet", kubernetes.kubelet(version)) for version in versions}


def _name(version: str) -> str:
    """The name of the disk, which appears below /opt."""
    return f"kubelet-{version}"


class Kubelet:
    """One kubelet in a guest with containerd, of a version whose disk that has. With the text of a
    `kubeconfig` it is the node `name` of that cluster.
    """

    def __init__(
        self, guest: Guest, version: str = KUBELET_VERSIONS[0], *, name: str = NODE_NAME, kubeconfig: str = ""
    ) -> None:
        self.guest = guest
        self.version = version
        self.name = name
        self._kubeconfig = kubeconfig

    def start(self, config: Mapping[str, object]) -> None:
        """Start it without any state, under *config* and SURROUNDINGS; returns once it serves."""
        self.guest.run("sh", "-c", f"rm -rf {ROOT} {MANIFESTS}; mkdir -p {ROOT} {MANIFESTS}")
        self.configure(config)
        if self._kubeconfig:
            self.guest.write(KUBECONFIG, self._kubeconfig, mode=0o600)
        self.start_again()
        asking = f"until grep -qs policyName {ROOT}/memory_manager_state; do sleep 0.2; done"
        self.guest.run("sh", "-c", asking, limit_s=LIMIT_S)

    def configure(self, config: Mapping[str, object]) -> None:
        """Write its file: *config* and SURROUNDINGS."""
        # JSON is YAML.
        self.guest.write(CONFIG, json.dumps({**SURROUNDINGS, **config}))

    def forget_state(self) -> None:
        """Remove its managers' state files, as it wants it before other policies."""
        self.guest.run("rm", *(f"{ROOT}/{manager}_manager_state" for manager in ("cpu", "memory")))

    def start_again(self) -> None:
        """Start it with the state and the file of the last time; does not wait until it serves."""
        words = (f"--config={CONFIG}", f"--hostname-override={self.name}", f"--root-dir={ROOT}", "--v=2")
        if self._kubeconfig:
            words = (*words, f"--kubeconfig={KUBECONFIG}")
        self.guest.start(SERVICE, f"/opt/{_name(self.version)}/bin/kubelet", *words, log=LOG)

    def stop(self) -> None:
        """End it; its pods keep running."""
        self.guest.signal(SERVICE, signal.SIGTERM)

    def admit(self, name: str, spec: Mapping[str, object], *, limit_s: float = LIMIT_S) -> Verdict:
        """Give it a pod, and wait for its decision."""
        self.put(name, spec)
        said = self.guest.run(
            "python3", "-IS", "-c", AWAIT_ADMISSION, f"{name}-{NODE_NAME}", str(limit_s), limit_s=limit_s + 30
        )
        pod = json.loads(said.stdout)
        status = pod["status"]
        return Verdict(pod["metadata"]["uid"], status.get("reason", ""), status.get("message", ""))

    def put(self, name: str, spec: Mapping[str, object]) -> None:
        """Give it a pod, without waiting for anything. The uid is ours: kubelet's own for a pod of a file is
        a hash over all fields that its version has."""
        metadata = {"name": name, "namespace": "default", "uid": new_uid()}
        manifest = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata}
        # A manifest that is half written is none.
        self.guest.write(f"/run/{name}.json", json.dumps({**manifest, "spec": spec}))
        self.guest.run("mv", f"/run/{name}.json", f"{MANIFESTS}/{name}.json")

    def remove(self, name: str, *, limit_s: float = LIMIT_S) -> None:
        """Take a pod away, and wait until it is gone."""
        label = f"io.kubernetes.pod.name={name}-{NODE_NAME}"
        gone = f"""rm {MANIFESTS}/{name}.json
            while {CRICTL} --timeout={RUNTIME_LIMIT} ps --quiet --label {label} | grep -q .
            do sleep 0.2; done"""
        self.guest.run("sh", "-c", gone, limit_s=limit_s)

    def containers(
        self, wanted: Collection[tuple[str, str]], *, limit_s: float = LIMIT_S
    ) -> dict[tuple[str, str], str]:
        """The ids of the containers *wanted*, by names of pod and container, once they all run. Others may
        still be there: kubelet forgets a removed pod before its containers have ended."""
        deadline = time.monotonic() + limit_s
        while True:
            running = ("ps", "--state", "running", "--output", "json")
            said = self.guest.run(CRICTL, f"--timeout={RUNTIME_LIMIT}", *running).stdout
            found = {
                (
                    one["labels"]["io.kubernetes.pod.name"].removesuffix(f"-{NODE_NAME}"),
                    one["metadata"]["name"],
                ): str(one["id"])
                for one in json.loads(said)["containers"]
            }
            if found.keys() >= set(wanted):
                return {key: found[key] for key in wanted}
            if time.monotonic() > deadline:
                missing = sorted(set(wanted) - found.keys())
                raise GuestError(f"kubelet did not start {missing} within {limit_s:g} s")

    def await_cpus(self, cpus: Mapping[str, frozenset[int]], *, limit_s: float = LIMIT_S) -> None:
        """Wait until containers, by their cgroups, have these CPUs: kubelet tells those of the shared pool
        when it reconciles next."""
        words = (json.dumps({cgroup: sorted(ids) for cgroup, ids in cpus.items()}), str(limit_s))
        self.guest.run("python3", "-IS", "-c", AWAIT_CPUS, *words, limit_s=limit_s + 30)

    def state(self, manager: str) -> dict[str, Any]:
        """The state file of the ``cpu`` or ``memory`` manager."""
        found: dict[str, Any] = json.loads(self.guest.read(f"{ROOT}/{manager}_manager_state"))
        return found

    def log(self) -> str:
        return self.guest.read_files(LOG).get(LOG, "")

    def running(self) -> bool:
        return self.guest.running(SERVICE) is not None


def pod_spec(containers: Mapping[str, Mapping[str, str]]) -> dict[str, object]:
    """A pod of containers that do nothing, with their limits; requests follow them, as in the API server."""
    if not containers:
        raise TestBedError("a pod needs a container")
    return {
        "hostNetwork": True,
        "terminationGracePeriodSeconds": 0,
        "containers": [
            {
                "name": name,
                "image": WORKLOAD_IMAGE,
                "imagePullPolicy": "Never",
                "command": ["/bin/workload", "pause"],
                "resources": {"limits": dict(limits), "requests": dict(limits)},
            }
            for name, limits in containers.items()
        ],
    }
