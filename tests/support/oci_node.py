"""A node for OCI hooks in a directory: bundles, processes and cgroups as files, for the real code to read.

Writes land in the files, where tests read them. What only a kernel can do (refuse a value, migrate pages)
needs a kernel.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from bayplan.host.hierarchy import CPUSET, MEMORY, Hierarchy, Layout, container_path

MOUNT: Final = "sys/fs/cgroup"
OWN_CGROUP: Final = "/system.slice/baypland.service"
_FILES: Final = {
    "cgroup.procs": "",
    "cpuset.cpus": "",
    "cpuset.mems": "",
    "cpuset.cpus.effective": "0-7",
    "cpuset.mems.effective": "0-1",
    "memory.max": "max",
    "memory.high": "max",
    "memory.low": "0",
    "memory.min": "0",
    "memory.current": "4096",
    "memory.oom.group": "0",
    "memory.numa_stat": "inactive_anon N0=0 N1=0\nactive_anon N0=0 N1=0\nunevictable N0=0 N1=0",
}


class OciNode:
    """Containers below *root*: ``hierarchy`` is what the daemon would have detected there. With cgroup v1
    both controllers are mounted together."""

    def __init__(self, root: Path, layout: Layout = Layout.UNIFIED) -> None:
        self.root = root
        mount = str(root / MOUNT)
        self.hierarchy = Hierarchy(layout, {CPUSET: mount, MEMORY: mount}, {"": OWN_CGROUP}, root=root)

    def bundle(self, container_id: str) -> Path:
        """Where the bundle of a container is, as CRI-O and podman have them."""
        return self.root / "run/containers/storage/overlay-containers" / container_id / "userdata"

    def write_spec(self, container_id: str, spec: Mapping[str, Any]) -> Path:
        """Make a bundle with that config.json."""
        bundle = self.bundle(container_id)
        bundle.mkdir(parents=True, exist_ok=True)
        (bundle / "config.json").write_text(json.dumps(spec))
        (bundle / "config.json").chmod(0o600)
        return bundle

    def begin(self, container_id: str, spec: Mapping[str, Any], pid: int, *, child: bool = False) -> bytes:
        """A container as a runtime has made it when it runs the createRuntime hooks; the state for them.

        *child* puts the process into crun's child of the scope.
        """
        bundle = self.write_spec(container_id, spec)
        path = container_path(spec["linux"]["cgroupsPath"])
        self.make_cgroup(path)
        if child:
            path += "/container"
            self.make_cgroup(path)
        self.make_process(pid, path)
        return state(container_id, bundle, pid)

    def make_cgroup(self, path: str) -> Path:
        """Make a cgroup with nothing set and nobody in it."""
        directory = self.directory(path)
        directory.mkdir(parents=True, exist_ok=True)
        for name, text in _FILES.items():
            (directory / name).write_text(f"{text}\n")
        return directory

    def make_process(self, pid: int, path: str, start_ticks: int = 1000) -> None:
        """Make a process and put it into the cgroup *path*, if that has been made."""
        directory = self.root / "proc" / str(pid)
        directory.mkdir(parents=True, exist_ok=True)
        fields = " ".join(["0"] * 18)
        (directory / "stat").write_text(f"{pid} (runc:[2:INIT]) S {fields} {start_ticks} 0\n")
        (directory / "cgroup").write_text(f"0::{path}\n")
        (directory / "oom_score_adj").write_text("0\n")
        procs = self.directory(path) / "cgroup.procs"
        if procs.exists():
            procs.write_text(f"{procs.read_text()}{pid}\n")

    def end(self, pid: int) -> None:
        """The process ends, and the runtime removes its cgroup."""
        directory = self.root / "proc" / str(pid)
        path = (directory / "cgroup").read_text().strip().removeprefix("0::")
        for place in (directory, self.directory(path)):
            for file in place.iterdir():
                file.unlink()
            place.rmdir()

    def directory(self, path: str) -> Path:
        """The directory of the cgroup *path*."""
        return self.root / MOUNT / path.lstrip("/")

    def shown(self, path: str, *names: str) -> tuple[str, ...]:
        """The texts of files of the cgroup *path*."""
        return tuple((self.directory(path) / name).read_text().strip() for name in names)

    def oom_score_adj(self, pid: int) -> int:
        """The oom_score_adj of a process."""
        return int((self.root / "proc" / str(pid) / "oom_score_adj").read_text())


def state(container_id: str, bundle: Path | str, pid: int, **more: Any) -> bytes:
    """The state that runc gives to createRuntime hooks."""
    document = {"ociVersion": "1.2.0", "id": container_id, "status": "creating", "pid": pid}
    return json.dumps({**document, "bundle": str(bundle), "annotations": {}, **more}).encode()


def spec(
    cgroups_path: str,
    *,
    resources: Mapping[str, Any] | None = None,
    annotations: Mapping[str, str] | None = None,
    oom_score_adj: int | None = None,
) -> dict[str, Any]:
    """A spec with what placing looks at, and a little more that it must leave alone."""
    process: dict[str, Any] = {"args": ["/bin/sh"], "cwd": "/", "user": {"uid": 0, "gid": 0}}
    if oom_score_adj is not None:
        process["oomScoreAdj"] = oom_score_adj
    return {
        "ociVersion": "1.2.0",
        "process": process,
        "root": {"path": "rootfs"},
        "annotations": dict(annotations or {}),
        "linux": {
            "cgroupsPath": cgroups_path,
            "resources": dict(resources or {}),
            "maskedPaths": ["/proc/keys"],
        },
    }


def guaranteed(cpus: int, memory_bytes: int) -> dict[str, Any]:
    """The resources of a Guaranteed container."""
    return {
        "cpu": {"shares": cpus * 1024, "quota": cpus * 100_000, "period": 100_000},
        "memory": {"limit": memory_bytes},
    }
