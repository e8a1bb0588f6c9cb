"""Containers as the kernel has them: cgroups and processes as files, for the daemon's own code to use."""

from pathlib import Path

from support.oci_node import OciNode, spec


class Kernel(OciNode):
    """A node in a directory whose effective cpusets are what was written last."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._pids = 1000
        self.placements = root / "run/placements"

    def make_cgroup(self, path: str) -> Path:
        """Make a cgroup that may use everything."""
        directory = super().make_cgroup(path)
        for name, everything in (("cpuset.cpus", "0-7"), ("cpuset.mems", "0-1")):
            (directory / name).write_text(everything)
            effective = directory / f"{name}.effective"
            effective.unlink()
            effective.symlink_to(name)
        return directory

    def start(self, path: str) -> None:
        """Make a container's cgroup, with a process in it."""
        self.make_cgroup(path)
        self._pids += 1
        self.make_process(self._pids, path)

    def stop(self, path: str) -> None:
        """Remove a container's cgroup with its processes."""
        for pid in (self.directory(path) / "cgroup.procs").read_text().split():
            self.end(int(pid))

    def announce(self, container_id: str, path: str, resources: dict[str, object]) -> tuple[int, bytes]:
        """A container whose createRuntime hooks run: its process, and the state that they get."""
        self._pids += 1
        return self._pids, self.begin(container_id, spec(path, resources=resources), self._pids)

    def set(self, path: str, cpus: str, mems: str) -> None:
        """What a runtime writes of a spec: nothing where that says nothing."""
        for name, value in (("cpuset.cpus", cpus), ("cpuset.mems", mems)):
            if value:
                (self.directory(path) / name).write_text(value)
