"""A node without power, and its cold boot: `whenDown: refuse`, the plugin required, kubelet with static pods.

The daemon is a unit, then a static pod itself, which has to start although it is not there yet. No deadlock
means that all pods run; none is unplaced but the daemon's own.
"""

import json
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from test_required_plugin import TOLERATE, documented_settings
from testbed.bayplan import Bayplan
from testbed.channel import LIMIT_S
from testbed.containerd import CONFIG as CONTAINERD_CONFIG
from testbed.containerd import IMAGES, PLUGIN_TIMEOUT_S, config_text
from testbed.crictl import SOCKET, Crictl
from testbed.disks import root_disk
from testbed.guest import Guest
from testbed.kernel import Kernel
from testbed.kubelet import CONFIG as KUBELET_CONFIG
from testbed.kubelet import LOG, MANIFESTS, NODE_NAME, ROOT, SURROUNDINGS, kubelet_disks, pod_spec
from testbed.kubernetes import KUBELET_VERSIONS
from testbed.machine import ROOT as ROOT_DISK
from testbed.machine import Machine
from testbed.pods import new_uid
from testbed.qemu import make_overlay
from testbed.supplies import disks
from testbed.topology import TWO_NODES

PROJECT = Path(__file__).parents[2]
VERSION = "2.4-nri"
"""With NRI 0.12.5, which honours a plugin's failure_policy."""
BINARIES = f"/opt/containerd-{VERSION}/bin"
UNITS = "/etc/systemd/system"
TARGET = "bayplan-guest.target"
KUBE_SYSTEM = "kube-system"
POLL_S = 1.0

# The test bed mounts this disk only in machines that are restored.
MOUNT = """for disk in /sys/block/vd*; do
	read -r serial <"$disk/serial"
	[ "$serial" != bayplan ] || exec mount -t ext4 -o ro "/dev/${disk##*/}" /opt/bayplan
done
exit 1
"""
PATHS = f"Environment=PATH={BINARIES}:/usr/sbin:/usr/bin:/sbin:/bin GOMAXPROCS=2"
UNIT_FILES: Mapping[str, str] = {
    "bayplan-disk.service": """[Unit]
Before=bayplan.service
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/sh /usr/local/sbin/mount-bayplan
""",
    # What mounts the other disks is a step before the test bed's agent. The rest is containerd's own unit.
    "containerd.service": f"""[Unit]
After=bayplan-guest.service bayplan-disk.service
[Service]
Type=notify
{PATHS}
ExecStart={BINARIES}/containerd
Delegate=yes
KillMode=process
Restart=always
OOMScoreAdjust=-999
""",
    "kubelet.service": f"""[Unit]
After=containerd.service
[Service]
{PATHS}
ExecStart=/bin/sh -c "exec /opt/kubelet-{KUBELET_VERSIONS[0]}/bin/kubelet --config={KUBELET_CONFIG} \\
  --hostname-override={NODE_NAME} --root-dir={ROOT} --v=2 >>{LOG} 2>&1"
KillMode=process
Restart=always
""",
}
DAEMON_POD: dict[str, Any] = {
    "hostNetwork": True,
    "hostPID": True,
    "priorityClassName": "system-node-critical",
    "containers": [
        {
            "name": "baypland",
            "image": "bayplan.test/workload:1",
            "imagePullPolicy": "Never",
            "command": ["/bin/busybox", "chroot", "/host", "/opt/bayplan/bin/baypland"],
            "securityContext": {"privileged": True},
            "volumeMounts": [{"name": "host", "mountPath": "/host", "mountPropagation": "HostToContainer"}],
        }
    ],
    "volumes": [{"name": "host", "hostPath": {"path": "/"}}],
}


@dataclass(frozen=True, slots=True)
class DurableMachine(Machine):
    """Its root disk keeps from one boot to the next what is written to it."""

    def power_on(self, directory: Path, payload: Path) -> Guest:
        """A guest on the root disk in *directory*; *payload* is the disk with bayplan."""
        return self._start(lambda: self._launch(directory, payload, restored=False), LIMIT_S)


class ColdNode:
    """The node, and what it is asked when it is on."""

    def __init__(self, directory: Path) -> None:
        supplied = disks(VERSION, systemd=True)
        self._payload = supplied.pop("bayplan")
        self._machine = DurableMachine(
            TWO_NODES, {**supplied, **kubelet_disks(KUBELET_VERSIONS[0])}, systemd=True
        )
        self._directory = directory
        make_overlay(directory / ROOT_DISK, root_disk(systemd=True))
        self.power_on()

    def power_on(self) -> None:
        self.guest = self._machine.power_on(self._directory, self._payload)
        self.crictl = Crictl(self.guest)
        self.bayplan = Bayplan(self.guest)
        self.kernel = Kernel(self.guest)

    def power_off(self) -> None:
        """As if the cable was pulled, but for what was written before."""
        self.guest.run("sync")
        self.guest.monitor("quit")
        self.guest.shut_down()

    def install(self) -> None:
        """Programs, units, configuration and images; nothing is started by the next boot yet."""
        self.guest.run(
            "mkdir", "-p", "/opt/bayplan", MANIFESTS, ROOT, "/etc/bayplan", f"{UNITS}/{TARGET}.wants"
        )
        self.guest.write("/usr/local/sbin/mount-bayplan", MOUNT)
        for name, text in UNIT_FILES.items():
            self.guest.write(f"{UNITS}/{name}", text)
        unit = PROJECT / "packaging/systemd/bayplan.service"
        self.guest.write(f"{UNITS}/bayplan.service", unit.read_text())
        self.guest.write("/etc/bayplan/bayplan.toml", 'whenDown = "refuse"\n')
        settings = config_text(VERSION, plugin_timeout_s=PLUGIN_TIMEOUT_S) + documented_settings()
        self.guest.write(CONTAINERD_CONFIG, settings)
        self.guest.write(KUBELET_CONFIG, json.dumps(SURROUNDINGS))
        self.guest.run("systemctl", "daemon-reload")
        self.enable("bayplan-disk", "containerd", "bayplan", "kubelet")
        self.guest.run("systemctl", "start", "containerd")
        self.guest.await_socket(SOCKET)
        self.guest.run(
            f"{BINARIES}/ctr", "-n", "k8s.io", "images", "import", "--snapshotter", "overlayfs", IMAGES
        )

    def enable(self, *names: str) -> None:
        for name in names:
            self.guest.run("ln", "-sf", f"../{name}.service", f"{UNITS}/{TARGET}.wants/{name}.service")

    def put(
        self, name: str, spec: Mapping[str, object], namespace: str = "default", **annotations: str
    ) -> None:
        """A static pod."""
        metadata = {"name": name, "namespace": namespace, "uid": new_uid(), "annotations": annotations}
        manifest = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
        self.guest.write(f"{MANIFESTS}/{name}.json", json.dumps(manifest))

    def await_pods(self, *names: str) -> dict[str, str]:
        """The ids of the containers of pods of these names, once all run."""
        deadline, found = time.monotonic() + LIMIT_S, dict[str, str]()
        while found.keys() < set(names):
            said = self.crictl("ps", "--state", "running", "--output", "json", check=False)
            containers = json.loads(said.stdout)["containers"] if not said.exit_code else []
            names_of = {
                one["labels"]["io.kubernetes.pod.name"].removesuffix(f"-{NODE_NAME}"): one
                for one in containers
            }
            found = {name: str(one["id"]) for name, one in names_of.items() if name in names}
            assert time.monotonic() < deadline, f"only {sorted(found)} of {sorted(names)} run"
            time.sleep(POLL_S)
        return found


@pytest.fixture
def cold(tmp_path: Path) -> Iterator[ColdNode]:
    made = ColdNode(tmp_path)
    yield made
    made.guest.shut_down()
    # What the machine had of memory is there as well.
    shutil.rmtree(tmp_path)


def none_is_unplaced(
    cold: ColdNode, running: Mapping[str, str], *, but: frozenset[str] = frozenset()
) -> None:
    """All of *running* have a decision, and nobody else has one."""
    cold.bayplan.await_known(running.values())
    status = cold.bayplan.status()
    assert {one["name"].split("/")[1].removesuffix(f"-{NODE_NAME}") for one in status["unmanaged"]} <= but
    decided = {name: cold.bayplan.decided(key) for name, key in running.items() if name not in but}
    assert {one["outcome"] for one in decided.values() if one is not None} == {"placed"}
    assert {one["id"] for one in status["containers"]} == set(running.values())
    own = cold.kernel.view(cold.crictl.pid(running["db"])).cpus_allowed
    assert len(own) == 1
    assert cold.kernel.view(cold.crictl.pid(running["web"])).cpus_allowed.isdisjoint(own)


@pytest.mark.matrix
def test_a_node_boots_from_cold(cold: ColdNode) -> None:
    web, db = pod_spec({"main": {}}), pod_spec({"main": {"cpu": "1", "memory": "100Mi"}})
    cold.install()
    cold.put("db", db)
    cold.put("web", web)
    cold.put("system", web, KUBE_SYSTEM)
    cold.power_off()

    # The daemon is a unit, and nothing has ever run.
    cold.power_on()
    first = cold.await_pods("db", "web", "system")
    none_is_unplaced(cold, first)
    cold.power_off()

    # Its record is of containers that are no more.
    cold.power_on()
    second = cold.await_pods("db", "web", "system")
    assert set(second.values()).isdisjoint(first.values())
    none_is_unplaced(cold, second)

    # It is a pod, which kubelet starts in an order of its own.
    cold.guest.run("rm", f"{UNITS}/{TARGET}.wants/bayplan.service")
    cold.put("bayplan", DAEMON_POD, KUBE_SYSTEM, **TOLERATE)
    cold.power_off()
    cold.power_on()
    third = cold.await_pods("db", "web", "system", "bayplan")
    none_is_unplaced(cold, third, but=frozenset({"bayplan"}))
    cold.power_off()
