"""CRI-O in the guest with systemd: built from source, started as a unit of its own, driven with crictl.

It shares podman's store, so that podman can make its images; it pulls nothing. Pods are on the host's
network: there is no network plugin. Hooks are looked for where CRI-O looks by itself.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from testbed import gobuild
from testbed.channel import LIMIT_S
from testbed.containerd import NRI_SOCKET
from testbed.crictl import CRICTL, Crictl, Running
from testbed.disks import tree_disk
from testbed.forms import HOOKS_DIR, PATIENCE_S, SOURCE
from testbed.guest import Guest
from testbed.node import Node
from testbed.oci import PAUSE_IMAGE, WORKLOAD_IMAGE
from testbed.podman import IMAGE_ROOT
from testbed.pods import Pod, guaranteed
from testbed.topology import Topology

UNIT = "crio"
PROGRAMS = "/opt/crio/bin"
SOCKET = "/var/run/crio/crio.sock"
DROP_INS = "/etc/crio/crio.conf.d"
LOG = "/var/log/crio.log"
# Containers outlive it, and with them the unit: one that systemd-run makes could not be made again.
UNIT_TEXT = f"""[Service]
ExecStart={PROGRAMS}/crio
KillMode=process
OOMScoreAdjust=-999
Delegate=yes
StandardOutput=append:{LOG}
StandardError=append:{LOG}
"""
RUNTIMES = {"runc": "/usr/sbin/runc", "crun": "/usr/bin/crun"}
HANDLER = """[crio.runtime.runtimes.{name}]
runtime_path = "{program}"
runtime_root = "/run/{name}"
monitor_path = "/usr/bin/conmon"
"""
# What install-hooks calls the handler of the wrapper.
WRAPPER_HANDLER = "bayplan"
HANDLERS = (*RUNTIMES, WRAPPER_HANDLER)


def crio_disk() -> Path:
    """A disk with CRI-O, for a Guest; it appears as /opt/crio."""
    return tree_disk("crio", gobuild.crio())


class Crio:
    """The one CRI-O of a guest. `start` it with what it is to know; it is configured by drop-ins alone."""

    def __init__(self, guest: Guest) -> None:
        self.guest = guest
        self._prepared = False

    def start(
        self,
        *,
        nri: bool,
        wrapper: bool = False,
        driver: str = "systemd",
        handlers: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Start it anew and wait until it serves; containers live on. With `wrapper` the shipped drop-in
        makes that the default runtime; the other handlers stay. `driver` is the cgroup driver; `handlers`
        are more runtimes, as their programs by name.
        """
        self.stop()
        self._prepare()
        self.guest.write(f"{DROP_INS}/10-testbed.conf", config_text(nri=nri, driver=driver, more=handlers))
        if wrapper:
            self.guest.run(f"{SOURCE}/packaging/install-hooks", "crio-wrapper")
        else:
            self.guest.run("rm", "-f", f"{DROP_INS}/90-bayplan-wrapper.conf")
        self.guest.run("systemctl", "start", UNIT)
        asking = f"""until test -S {SOCKET} && {CRICTL} --runtime-endpoint=unix://{SOCKET} version
            do systemctl is-active --quiet {UNIT} || {{ tail -n 5 {LOG} >&2; exit 1; }}; sleep 0.2; done"""
        self.guest.run("sh", "-c", asking, limit_s=LIMIT_S)

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

    def _prepare(self) -> None:
        """Once per machine: the unit, and the images. Those are the same: what a pod's container is to run is
        said in its config.
        """
        if not self._prepared:
            self.guest.write(f"/run/systemd/system/{UNIT}.service", UNIT_TEXT)
            self.guest.run("systemctl", "daemon-reload")
            entry = 'ENTRYPOINT ["/bin/workload", "pause"]'
            self.guest.run("podman", "import", "--quiet", "--change", entry, IMAGE_ROOT, PAUSE_IMAGE)
            self.guest.run("podman", "tag", PAUSE_IMAGE, WORKLOAD_IMAGE)
            self._prepared = True


class CrioNode(Node):
    """A node on which `crictl` speaks to CRI-O. `prepare` leaves it down."""

    def __init__(self, topology: Topology) -> None:
        super().__init__(topology, systemd=True, more_disks={"crio": crio_disk()})

    def _take(self, guest: Guest) -> None:
        super()._take(guest)
        self.crictl = Crictl(guest, socket=SOCKET)
        self.crio = Crio(guest)

    def prepare(self) -> None:
        """A node without pods, decisions, logs, hooks and drop-ins, CRI-O and bayplan down."""
        if self.bayplan.running():
            self.bayplan.kill()
        if self.crio.running():
            self.crictl.remove_everything()
            self.crio.stop()
        super().prepare()
        self.guest.run("sh", "-c", f"rm -rf {DROP_INS} {HOOKS_DIR}; : >{LOG}")

    def install_forms(self, *, timeout_s: float = PATIENCE_S, on_failure: str = "allow") -> None:
        """Hook and wrapper, which becomes runc, that wait so long for the daemon and then do as told."""
        self.forms.install(timeout_s=timeout_s, on_failure=on_failure)
        self.forms.wrap("runc")

    def entry_of(self, container_id: str) -> dict[str, Any]:
        """The entry of a container in bayplan's status, which must be there."""
        entry = self.bayplan.decided(container_id)
        assert entry is not None
        return entry

    def infra_pid(self, pod: Running) -> int:
        """The first process of the sandbox's own container."""
        told = json.loads(self.crictl("inspectp", pod.sandbox_id).stdout)
        return int(told["info"]["pid"])

    def examined(self, subject: str) -> str:
        """What `bayplan doctor` finds to be wrong with that."""
        findings = self.bayplan.ask_in_guest("doctor")["findings"]
        return "; ".join(one["text"] for one in findings if one["subject"] == subject)

    @property
    def _engine(self) -> Crictl:
        return self.crictl

    def save_logs(self, directory: Path) -> list[Path]:
        saved = super().save_logs(directory)
        if self.guest.alive():
            (directory / "crio.log").write_text(self.crio.log())
            saved.append(directory / "crio.log")
        return saved


def config_text(*, nri: bool, driver: str, more: Mapping[str, str]) -> str:
    """The drop-in: our images, both runtimes and `more`. The infra container is not dropped, so that there is
    one to leave alone."""
    runtimes = {**RUNTIMES, **more}
    handlers = "".join(HANDLER.format(name=name, program=program) for name, program in runtimes.items())
    return f"""[crio]
storage_driver = "overlay"
[crio.runtime]
cgroup_manager = "{driver}"
default_runtime = "crun"
drop_infra_ctr = false
pinns_path = "{PROGRAMS}/pinns"
disable_hostport_mapping = true
{handlers}[crio.image]
pause_image = "{PAUSE_IMAGE}"
pause_command = ""
[crio.network]
plugin_dirs = ["/usr/lib/cni"]
[crio.nri]
enable_nri = {str(nri).lower()}
nri_listen = "{NRI_SOCKET}"
nri_plugin_request_timeout = "20s"
"""


def whole_cpu(name: str, memory: str = "600Mi") -> Pod:
    """A Guaranteed pod with a CPU of its own, as kubelet asks for it with the systemd driver. Of two small
    nodes one takes each node."""
    return in_slice(guaranteed(name, cpus=1, memory=memory)).touching("100Mi")


def in_slice(pod: Pod) -> Pod:
    """A pod of `guaranteed` and its like, as kubelet asks for it with the systemd driver."""
    qos = pod.cgroup_parent.removeprefix("/kubepods").rpartition("/")[0].strip("/")
    parts = ["kubepods", *([qos] if qos else []), f"pod{pod.uid.replace('-', '_')}"]
    return replace(pod, cgroup_parent=f"{'-'.join(parts)}.slice")
