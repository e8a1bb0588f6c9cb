"""Cgroups as directories whose effective cpusets are what was written, for a fake runtime and the real code.

What a kernel refuses, or does with memory, needs a kernel.
"""

from pathlib import Path

from bayplan._proto.nri import api_pb2 as pb
from bayplan.host.hierarchy import container_path
from bayplan.sets import CpuSet
from support.oci_node import OciNode


class CpusetTree:
    """The cgroups of the containers that a runtime made."""

    def __init__(self, root: Path, every_cpu: CpuSet) -> None:
        self.node = OciNode(root)
        self._every_cpu = every_cpu
        self._directories: dict[str, Path] = {}

    def write(self, container: pb.Container) -> None:
        """As an OCI runtime does it: without a cpuset in the spec it is the parent's, with every CPU."""
        directory = self._directories.get(container.id)
        if directory is None:
            directory = self.node.make_cgroup(container_path(container.linux.cgroups_path))
            for name in ("cpuset.cpus", "cpuset.mems"):
                effective = directory / f"{name}.effective"
                (directory / name).write_text(effective.read_text())
                effective.unlink()
                effective.symlink_to(name)
            self._directories[container.id] = directory
        cpu = container.linux.resources.cpu
        (directory / "cpuset.cpus").write_text(f"{cpu.cpus or self._every_cpu}\n")
        if cpu.mems:
            (directory / "cpuset.mems").write_text(f"{cpu.mems}\n")
        for name, value in container.linux.resources.unified.items():
            (directory / name).write_text(f"{value}\n")

    def cpus(self, container_id: str) -> CpuSet:
        """The CPUs on which its processes may run."""
        return CpuSet.parse((self._directories[container_id] / "cpuset.cpus").read_text().strip())
