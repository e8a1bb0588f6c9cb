"""CRI-O in the guest with systemd: built from source, started as a unit of its own, driven with crictl.

It shares podman's store, so that podman can make its images; it pulls nothing. Pods are on the host's
network: there is no network plugin. Hooks are looked for where CRI-O looks by itself.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from testbed import gobuild
from testbed.containerd import CRICTL, NRI_SOCKET
from testbed.crictl import Crictl
from testbed.disks import tree_disk
from testbed.errors import TestBedError
from testbed.forms import HOOKS_DIR, SOURCE
from testbed.guest import Guest
from testbed.node import Node
from testbed.oci import PAUSE_IMAGE, WORKLOAD_IMAGE
from testbed.podman import IMAGE_ROOT
from testbed.pods import Pod
from testbed.topology import Topology

UNIT = "crio"
PROGRAMS = "/opt/crio/bin"
SOCKET = "/var/run/crio/crio.sock"
DROP_INS = "/etc/crio/crio.conf.d"
LOG = "/var/log/crio.log"
START_LIMIT_S = 120
# What install-hooks calls the handler of the wrapper.
WRAPPER_HANDLER = "bayplan"


def crio_disk() -> Path:
    """A disk with CRI-O, for a Guest; it appears as /opt/crio."""
    return tree_disk("crio", gobuild.crio())


class Crio:
    """The one CRI-O of a guest. `start` it with what it is to know; it is configured by drop-ins alone."""

    def __init__(self, guest: Guest) -> None:
        self.guest = guest
        self._prepared = False

    def start(self, *, nri: bool, wrapper: bool = False, default_runtime: str = "crun") -> None:
        """Start it anew and wait until it serves; containers live on. With `wrapper` the shipped drop-in
        makes that the default runtime; the other handlers stay.
        """
        self.stop()
        self._make_images()
        self.guest.write(f"{DROP_INS}/10-testbed.conf", config_text(nri=nri, default_runtime=default_runtime))
        if wrapper:
            self.guest.run(f"{SOURCE}/packaging/install-hooks", "crio-wrapper")
        else:
            self.guest.run("rm", "-f", f"{DROP_INS}/90-bayplan-wrapper.conf")
        words = ["--collect", f"--unit={UNIT}", "--property=KillMode=process", "--property=Delegate=yes"]
        words += [f"--property=StandardOutput=append:{LOG}", f"--property=StandardError=append:{LOG}"]
        self.guest.run("systemd-run", *words, f"{PROGRAMS}/crio")
        asking = f"""until test -S {SOCKET} && {CRICTL} --runtime-endpoint=unix://{SOCKET} version
            do systemctl is-active --quiet {UNIT} || {{ tail -n 5 {LOG} >&2; exit 1; }}; sleep 0.2; done"""
        self.guest.run("sh", "-c", asking, limit_s=START_LIMIT_S)

    def stop(self) -> None:
        if self.running():
            self.guest.run("systemctl", "stop", UNIT)

    def running(self) -> bool:
        return self.guest.run("systemctl", "is-active", "--quiet", UNIT, check=False).exit_code == 0

    def log(self) -> str:
        return self.guest.read_files(LOG).get(LOG, "")

    def bundle_spec(self, container_id: str) -> dict[str, Any]:
        """The spec that the runtime was given: config.json in the bundle."""
        path = f"/run/containers/storage/overlay-containers/{container_id}/userdata/config.json"
        spec: dict[str, Any] = json.loads(self.guest.read(path))
        return spec

    def _make_images(self) -> None:
        """Once per machine. Both images are one: what a pod's container is to run is said in its config."""
        if not self._prepared:
            entry = 'ENTRYPOINT ["/bin/workload", "pause"]'
            self.guest.run("podman", "import", "--quiet", "--change", entry, IMAGE_ROOT, PAUSE_IMAGE)
            self.guest.run("podman", "tag", PAUSE_IMAGE, WORKLOAD_IMAGE)
            self._prepared = True


class CrioNode(Node):
    """A node on which `crictl` speaks to CRI-O. `prepare` leaves it down."""

    def __init__(self, topology: Topology) -> None:
        super().__init__(topology, systemd=True, more_disks={"crio": crio_disk()})
        self.crictl = Crictl(self.guest, socket=SOCKET)
        self.crio = Crio(self.guest)

    def prepare(self, version: str | None = None) -> None:
        """A node without pods, decisions, logs, hooks and drop-ins, CRI-O and bayplan down."""
        if version is not None:
            raise TestBedError(f"a node with CRI-O has no containerd {version}")
        if self.bayplan.running():
            self.bayplan.kill()
        if self.crio.running():
            self.crictl.remove_everything()
            self.crio.stop()
        super().prepare(None)
        self.guest.run("sh", "-c", f"rm -rf {DROP_INS} {HOOKS_DIR}; : >{LOG}")

    @property
    def _engine(self) -> Crictl:
        return self.crictl

    def save_logs(self, directory: Path) -> list[Path]:
        saved = super().save_logs(directory)
        if self.guest.alive():
            (directory / "crio.log").write_text(self.crio.log())
            saved.append(directory / "crio.log")
        return saved


def config_text(*, nri: bool, default_runtime: str) -> str:
    """The drop-in: systemd driver, our images, both runtimes. The infra container is not dropped, so that
    there is one to leave alone."""
    return f"""[crio]
storage_driver = "overlay"
[crio.runtime]
cgroup_manager = "systemd"
default_runtime = "{default_runtime}"
drop_infra_ctr = false
pinns_path = "{PROGRAMS}/pinns"
disable_hostport_mapping = true
[crio.runtime.runtimes.runc]
runtime_path = "/usr/sbin/runc"
runtime_root = "/run/runc"
monitor_path = "/usr/bin/conmon"
[crio.runtime.runtimes.crun]
runtime_path = "/usr/bin/crun"
runtime_root = "/run/crun"
monitor_path = "/usr/bin/conmon"
[crio.image]
pause_image = "{PAUSE_IMAGE}"
pause_command = ""
[crio.network]
plugin_dirs = ["/usr/lib/cni"]
[crio.nri]
enable_nri = {str(nri).lower()}
nri_listen = "{NRI_SOCKET}"
nri_plugin_request_timeout = "20s"
"""


def in_slice(pod: Pod) -> Pod:
    """A pod of `guaranteed` and its like, as kubelet asks for it with the systemd driver."""
    qos = pod.cgroup_parent.removeprefix("/kubepods").rpartition("/")[0].strip("/")
    parts = ["kubepods", *([qos] if qos else []), f"pod{pod.uid.replace('-', '_')}"]
    return replace(pod, cgroup_parent=f"{'-'.join(parts)}.slice")
