"""A node without a virtual machine: namespaces on this machine's kernel, with what guests have.

What wants many pods, and neither NUMA nodes nor cgroup v2, runs here ten times as fast. All of it is below
one process in a PID namespace, with mounts, network, host name and cgroups of its own, and ends with that.
"""

import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from testbed import debian
from testbed.channel import LIMIT_S, Channel
from testbed.containerd import VERSIONS, Containerd
from testbed.disks import GUEST_FILES
from testbed.errors import MissingError
from testbed.forwarding import Forwarding
from testbed.guest import Guest
from testbed.node import Node
from testbed.payload import payload_tree
from testbed.shell import require
from testbed.supplies import images_directory
from testbed.topology import THIS_MACHINE

PROGRAMS = Path(__file__).parent / "programs"
CGROUPS = Path("/sys/fs/cgroup")
POLL_S = 0.05


class Namespaces:
    """The process, as `Qemu` is that of a virtual machine. *directories* appear as /opt/NAME; *ports* are the
    agent's two, as file descriptors."""

    def __init__(self, own: Path, directories: Mapping[str, Path], ports: tuple[int, int]) -> None:
        self._said = own / "agent.log"
        self._cgroups = _make_cgroups(own.name)
        root = own / "root"
        root.mkdir()
        shown = [word for name, path in directories.items() for word in (name, str(path))]
        # The shell enters the cgroups, which become the roots of what it sees once it is in its namespaces.
        enter = 'for d in $CGROUPS; do echo 0 >"$d/cgroup.procs" || exit; done; exec "$@"'
        spaces = ("--mount", "--pid", "--fork", "--kill-child", "--uts", "--ipc", "--net", "--cgroup")
        with self._said.open("wb") as said:
            self.process = subprocess.Popen(
                [
                    *(require("setpriv"), "--pdeathsig", "KILL", "sh", "-c", enter, "enter"),
                    *(require("unshare"), *spaces, "sh", str(PROGRAMS / "namespaces.sh")),
                    *(
                        str(root),
                        str(debian.systemd_root_tree()),
                        str(GUEST_FILES / "agent.py"),
                        *map(str, ports),
                    ),
                    *shown,
                ],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                pass_fds=ports,
                env={"PATH": os.environ["PATH"], "CGROUPS": " ".join(map(str, self._cgroups))},
                start_new_session=True,
            )

    def alive(self) -> bool:
        return self.process.poll() is None

    def aborted(self) -> bool:
        """It asserts nothing of its own."""
        return False

    def kill(self) -> None:
        if self.alive():
            self.process.kill()
        self.process.wait()
        deadline = time.monotonic() + LIMIT_S
        while self._cgroups and time.monotonic() < deadline:
            # The kernel ends the processes of a PID namespace after its first.
            self._cgroups = [path for path in self._cgroups if not _removed(path)]
            time.sleep(POLL_S)

    def console_text(self) -> str:
        try:
            return self._said.read_text(errors="replace")
        except FileNotFoundError:
            return ""

    def why(self) -> str:
        """What the agent and what came before it said."""
        return f"the namespaces' first process: {self.console_text()[-2000:] or 'said nothing'}"


def guest_in_namespaces(directories: Mapping[str, Path]) -> Guest:
    """A guest of this machine's kernel."""
    if not (CGROUPS / "cpuset/cgroup.procs").exists():
        raise MissingError("A node in namespaces needs a machine with cgroup v1")
    own = Path(tempfile.mkdtemp(prefix="bayplan-guest-"))
    agent, streams = socket.socketpair(), socket.socketpair()
    process = Namespaces(own, directories, (agent[1].fileno(), streams[1].fileno()))
    for pair in (agent, streams):
        pair[1].close()
    guest = Guest(process, Channel(agent[0]), Forwarding(streams[0], own), None, own)
    guest.await_agent(LIMIT_S)
    return guest


def _make_cgroups(name: str) -> list[Path]:
    """One below this process's own in each hierarchy of cgroup v1."""
    made = []
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        hierarchy = CGROUPS / controllers.removeprefix("name=")
        if not controllers or not hierarchy.is_dir():
            continue
        parent = hierarchy / path.lstrip("/")
        cgroup = parent / name
        cgroup.mkdir()
        if controllers == "cpuset":
            for file in ("cpuset.cpus", "cpuset.mems"):
                (cgroup / file).write_text((parent / file).read_text())
        made.append(cgroup)
    return made


def _removed(cgroup: Path) -> bool:
    """Remove a cgroup with those below it; whether it is gone."""
    try:
        for directory, _, _ in os.walk(cgroup, topdown=False):
            Path(directory).rmdir()
    except OSError:
        return not cgroup.exists()
    return True


class ContainerdInNamespaces(Containerd):
    """It does without what this machine's cgroups and capabilities may lack."""

    def _config_text(self, *, nri: bool, plugin_timeout_s: int) -> str:
        text = super()._config_text(nri=nri, plugin_timeout_s=plugin_timeout_s)
        lacking = "disable_hugetlb_controller = true\n  restrict_oom_score_adj = true"
        return text.replace("disable_hugetlb_controller = false", lacking)


class NodeInNamespaces(Node):
    """A node with this containerd, on the CPUs and the memory of this machine."""

    def __init__(self, version: str) -> None:
        self._directories = {
            "images": images_directory(),
            "bayplan": payload_tree(),
        }
        if (source := VERSIONS[version]) is not None:
            self._directories[f"containerd-{version}"] = source()
        self.topology = THIS_MACHINE
        self.version = version
        self.systemd = False
        self.restore()

    def restore(self) -> None:
        self._take(guest_in_namespaces(self._directories))
        self.containerd = ContainerdInNamespaces(self.guest, self.version)
        self.containerd.start()
        self.containerd.import_images()
