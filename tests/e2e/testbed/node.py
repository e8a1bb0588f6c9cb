"""A whole node: guest, containerd, crictl, podman, bayplan and the kernel's view, as one value for scenarios.

A node lives through many scenarios; `prepare` gives each of them a clean one, `restore` a new one.
"""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from testbed.bayplan import Bayplan
from testbed.channel import LIMIT_S
from testbed.containerd import Containerd
from testbed.crictl import Crictl, Running
from testbed.errors import TestBedError
from testbed.forms import Forms
from testbed.guest import Guest
from testbed.kernel import ContainerView, Kernel
from testbed.machine import Machine
from testbed.payload import payload_disk
from testbed.podman import Podman
from testbed.pods import Pod
from testbed.supplies import disks
from testbed.topology import Topology

POLL_S = 0.2
LEFT_BEHIND = """
find /sys/fs/cgroup/kubepods /sys/fs/cgroup/k8s.io -depth -type d -exec rmdir {} + 2>/dev/null
rm -rf /var/lib/bayplan /etc/bayplan /run/bayplan /var/log/pods /run/testbed
for log in /var/log/containerd.log /var/log/bayplan.log; do : >"$log"; done
"""


class Node:
    """A node with this containerd, or with none, and with podman if `systemd` is process 1. `more_disks` are
    by their names under /opt.
    """

    def __init__(
        self,
        topology: Topology,
        version: str | None = None,
        *,
        systemd: bool = False,
        more_disks: Mapping[str, Path] | None = None,
    ) -> None:
        self.topology = topology
        self.version = version
        self.systemd = systemd
        versions = () if version is None else (version,)
        supplied = disks(*versions, with_bayplan=False, systemd=systemd)
        self._machine = Machine(topology, {**supplied, **(more_disks or {})}, systemd)
        purpose = "-".join([*(["systemd"] if systemd else []), *versions, *(more_disks or ())])
        self._saved = self._machine.saved(purpose or "bare", self._settle)
        self._payload = payload_disk()
        self.restore()

    def restore(self) -> None:
        """Begin again with the saved machine: containerd serves and has its images, nothing else happened."""
        self._take(self._machine.restore(self._saved, self._payload))

    def _settle(self, guest: Guest) -> None:
        """What a machine has done before it is saved."""
        self._take(guest)
        if self.version is not None:
            self.containerd.start()
            self.containerd.import_images()
        if self.systemd:
            self.podman.import_image()

    def _take(self, guest: Guest) -> None:
        self.guest = guest
        self.containerd = Containerd(guest, self.version)
        self.crictl = Crictl(guest)
        self.podman = Podman(guest)
        self.bayplan = Bayplan(guest)
        self.forms = Forms(guest)
        self.kernel = Kernel(guest)

    def prepare(self) -> None:
        """A node without pods, decisions and logs, with containerd serving, if any, and bayplan down."""
        if self.bayplan.running():
            self.bayplan.kill()
        self.podman.remove_everything()
        if self.version is not None:
            self.crictl.remove_everything()
        self.guest.run("sh", "-c", LEFT_BEHIND)

    def view(self, running: Running | str) -> ContainerView:
        """The kernel's view of a container: of its id, or of a pod with one container."""
        container_id = running if isinstance(running, str) else running.container_id
        engine = self.podman if self.podman.made(container_id) else self.crictl
        return self.kernel.view(engine.pid(container_id))

    def await_view(
        self, running: Running | str, condition: Callable[[ContainerView], bool], *, limit_s: float = LIMIT_S
    ) -> ContainerView:
        """Wait until the kernel's view of a container is as wanted; the view then. What others give back
        comes beside the end of theirs."""
        deadline = time.monotonic() + limit_s
        while not condition(view := self.view(running)):
            assert time.monotonic() < deadline, f"the kernel has {view.placement}"
            time.sleep(POLL_S)
        return view

    def await_node(
        self, number: int, condition: Callable[[dict[str, Any]], bool], *, limit_s: float = LIMIT_S
    ) -> dict[str, Any]:
        """Wait until `bayplan nodes` says of a NUMA node what is wanted; what it says then."""
        deadline = time.monotonic() + limit_s
        while not condition(found := self.bayplan.nodes()["nodes"][number]):
            assert time.monotonic() < deadline, f"bayplan says of node {number}: {found}"
            time.sleep(POLL_S)
        return dict(found)

    def launch(self, pod: Pod, *, handler: str = "") -> Running:
        return self.crictl.launch(pod, handler=handler)

    def save_logs(self, directory: Path) -> list[Path]:
        """Serial console, kernel messages, both logs, containers and status, as far as they can still be
        had.
        """
        directory.mkdir(parents=True, exist_ok=True)
        saved = [directory / "console.log"]
        saved[0].write_text(self.guest.qemu.console_text())
        if not self.guest.alive():
            return saved
        asked = {
            "containerd.log": self.containerd.log,
            "bayplan.log": self.bayplan.log,
            "dmesg.log": lambda: self.guest.run("dmesg", check=False).stdout,
            "containers.txt": lambda: self._engine("ps", "--all", check=False).stdout,
            "status.json": lambda: self.bayplan.command("status", "--output", "json", check=False).stdout,
        }
        if self.systemd:
            asked["journal.log"] = lambda: self.guest.run("journalctl", "--boot", "--no-pager").stdout
        for name, ask in asked.items():
            try:
                text = ask()
            except TestBedError as error:
                text = f"not to be had: {error}\n"
            if text:
                (directory / name).write_text(text)
                saved.append(directory / name)
        return saved

    @property
    def _engine(self) -> Crictl | Podman:
        return self.crictl if self.version is not None else self.podman

    def shut_down(self) -> None:
        self.guest.shut_down()
