"""The real daemon and a Go plugin that does nothing, each connected to a Go side of NRI of its own.

The daemon sees a machine of 4 nodes and 144 CPUs: files mounted over sysfs and /proc/meminfo in a mount
namespace of its own. Its containers have no cgroups.
"""

import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "interop"))

from goside import NEWEST, GoSide, build

from bayplan.model.machine import Machine
from bayplan.quantity import GIB, KIB, MIB
from support.machines import machine
from support.sysfs import SysfsTree

__all__ = ["NEWEST", "SHARED", "WHOLE", "Kind", "Plugin", "both", "build"]

MACHINE = machine(4, cpus_per_node=36, memory_bytes=64 * GIB)
MOUNT = """
set -e
mount --bind "$1/sys/devices/system" /sys/devices/system
mount --bind "$1/proc/meminfo" /proc/meminfo
shift
exec "$@"
"""
IN_NAMESPACE = ("unshare", "--map-root-user", "--mount", "sh", "-c", MOUNT, "sh")

Linux = Mapping[str, object]
"""The Linux part of a container, as protobuf's JSON; the pod's cgroup parent tells its QoS class."""


def resources(shares: int, quota_us: int = 0, limit_bytes: int = 0) -> Linux:
    cpu = {"shares": {"value": shares}}
    if quota_us:
        cpu |= {"quota": {"value": quota_us}, "period": {"value": 100_000}}
    return {"cpu": cpu} | ({"memory": {"limit": {"value": limit_bytes}}} if limit_bytes else {})


class Kind:
    """Containers of one kind, each in a pod of its own."""

    def __init__(self, parent: str, oom_score_adj: int, linux: Linux) -> None:
        self.parent = parent
        self.linux = {"resources": linux, "oomScoreAdj": {"value": oom_score_adj}}


WHOLE = Kind("/kubepods", -997, resources(2048, 200_000, MIB))
SHARED = (
    Kind("/kubepods", -997, resources(512, 50_000, MIB)),
    Kind("/kubepods/burstable", 995, resources(256, limit_bytes=2 * MIB)),
    Kind("/kubepods/besteffort", 1000, resources(2)),
)


class Plugin:
    """A plugin, started as often as asked, and the runtime that it connects to."""

    def __init__(self, runtime: GoSide, argv: list[str], log: Path) -> None:
        self.runtime = runtime
        self._argv = argv
        self._log = log
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> tuple[float, float]:
        """Start it; milliseconds until the runtime has synchronized with it, and those of the Synchronize."""
        begun = time.perf_counter()
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(self._argv, stderr=log, stdout=log)
        notice = self.runtime.notice()
        took_ms = (time.perf_counter() - begun) * 1000
        assert notice["error"] == "", notice
        return took_ms, notice["ms"]

    def end(self) -> None:
        """Stop the plugin, if it runs."""
        if self.process is not None:
            self.process.terminate()
            self.process.wait(30)
            self.process = None

    def create(self, kind: Kind, name: str) -> float:
        """Have a container created; how many milliseconds the runtime waited."""
        return self._do("CreateContainer", kind, name)

    def note_creation(self, kind: Kind, name: str) -> float:
        """Send the event after a container's creation; how many milliseconds the runtime waited."""
        return self._do("PostCreateContainer", kind, name)

    def run(self, kind: Kind, name: str) -> None:
        """Have a container created and started."""
        self.create(kind, name)
        self._do("PostStartContainer", kind, name)

    def stop(self, kind: Kind, name: str) -> float:
        """Have a container stopped; how many milliseconds the runtime waited."""
        return self._do("StopContainer", kind, name)

    def _do(self, event: str, kind: Kind, name: str) -> float:
        one = {"pod": f"pod-{name}", "parent": f"{kind.parent}/pod{name}", "id": name, "linux": kind.linux}
        done = self.runtime.do(event, **one)
        assert done["error"] == "", done
        return done["ms"]

    def resident_mib(self) -> float:
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) / 1024


@contextmanager
def both(program: Path, directory: Path, *flags: str) -> Iterator[tuple[Plugin, Plugin]]:
    """The daemon and the plugin that does nothing, neither started; the Go sides get *flags*."""
    ours, noop = directory / "bayplan", directory / "noop"
    ours.mkdir()
    noop.mkdir()
    with closing(GoSide(program, ours, *flags)) as first, closing(GoSide(program, noop, *flags)) as second:
        daemon = Plugin(first, [*IN_NAMESPACE, str(machine_in(ours)), *_daemon(ours)], ours / "daemon.log")
        nothing = Plugin(second, [str(program), "-noop", "-socket", str(second.socket)], noop / "noop.log")
        try:
            yield daemon, nothing
        finally:
            daemon.end()
            nothing.end()


def _daemon(directory: Path) -> list[str]:
    argv = [sys.executable, "-m", "bayplan.daemon.baypland", "--nri-socket", directory / "nri.sock"]
    argv += ["--state-dir", directory / "state", "--admin-socket", directory / "admin.sock"]
    return [*map(str, argv), "--oci-socket", "none", "--agent-socket", "none", "--log-format", "json"]


def machine_in(directory: Path, described: Machine = MACHINE) -> Path:
    """A machine as files, nothing of its memory used."""
    tree = SysfsTree(described)
    empty = {"MemFree": 0, "Active(file)": 0, "Inactive(file)": 0}
    for path in [path for path in tree.files if path.endswith("meminfo")]:
        node = path.split("/")[-2].removeprefix("node")
        total_bytes = described.memory_bytes if node == "proc" else described.nodes[int(node)].memory_bytes
        before = "" if node == "proc" else f"Node {node} "
        amounts = empty | {"MemTotal": total_bytes, "MemFree": total_bytes}
        tree.files[path] = "".join(f"{before}{name}: {size // KIB} kB\n" for name, size in amounts.items())
    return tree.write(directory / "machine")
