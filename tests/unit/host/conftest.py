"""Trees that look like cgroup file systems to code that is told so, and cgroups of this host's own."""

import contextlib
import os
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from bayplan.host.hierarchy import CGROUP2_SUPER_MAGIC, CGROUP_SUPER_MAGIC, Hierarchy, Layout
from bayplan.host.kernelfs import AbsentError

TMPFS_MAGIC = 0x01021994

V2_FILES = {
    "cgroup.procs": "",
    "cpuset.cpus": "0-3",
    "cpuset.mems": "0",
    "cpuset.cpus.effective": "0-2",
    "cpuset.mems.effective": "0",
    "memory.max": "max",
    "memory.high": "max",
    "memory.low": "0",
    "memory.min": "0",
    "memory.current": "4096",
    "memory.oom.group": "0",
    "memory.numa_stat": "inactive_anon N0=4096 N1=0\nactive_anon\nunevictable\ninactive_file N0=0 N1=8192",
}
V1_CPUSET_FILES = {
    "cgroup.procs": "",
    "cpuset.cpus": "0-3",
    "cpuset.mems": "0",
    "cpuset.effective_cpus": "0-2",
    "cpuset.effective_mems": "0",
}
V1_MEMORY_FILES = {
    "cgroup.procs": "",
    "memory.limit_in_bytes": "9223372036854771712",
    "memory.usage_in_bytes": "4096",
    "memory.memsw.limit_in_bytes": "9223372036854771712",
    "memory.numa_stat": "total=9 N0=9\nhierarchical_anon=3 N0=1 N1=2\nhierarchical_file=0 N0=0 N1=0",
}


@dataclass
class CgroupTree:
    """A root directory with /sys/fs/cgroup and /proc, and the file system types to be claimed for it."""

    root: Path
    magics: dict[str, int] = field(default_factory=dict)

    @property
    def base(self):
        return self.root / "sys/fs/cgroup"

    def magic(self, directory):
        if not Path(directory).is_dir():
            raise AbsentError(directory, "not there")
        return self.magics.get(directory, TMPFS_MAGIC)

    def mount(self, path, magic):
        directory = self.base / path
        directory.mkdir(parents=True, exist_ok=True)
        self.magics[str(directory)] = magic

    def membership(self, pid, text):
        directory = self.root / "proc" / str(pid)
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "cgroup").write_text(text)

    def add(self, path, **changed):
        """A cgroup of v2; keywords replace the text of files, with __ for dots."""
        self._write(self.base / path.lstrip("/"), V2_FILES, changed)

    def add_v1(self, cpuset_path, memory_path, **changed):
        """A cgroup of v1, or only its half where one path is None; keywords are for the cpuset half."""
        if cpuset_path:
            self._write(self.base / "cpuset" / cpuset_path.lstrip("/"), V1_CPUSET_FILES, changed)
        if memory_path:
            self._write(self.base / "memory" / memory_path.lstrip("/"), V1_MEMORY_FILES, {})

    def _write(self, directory, files, changed):
        directory.mkdir(parents=True, exist_ok=True)
        for name, text in (files | {name.replace("__", "."): text for name, text in changed.items()}).items():
            (directory / name).write_text(f"{text}\n")

    def detect(self):
        return Hierarchy.detect(self.root, self.magic)


@pytest.fixture
def v2(tmp_path):
    tree = CgroupTree(tmp_path / "v2")
    tree.mount("", CGROUP2_SUPER_MAGIC)
    (tree.base / "cgroup.controllers").write_text("cpuset cpu io memory hugetlb pids\n")
    tree.membership("self", "0::/system.slice/bayplan.service\n")
    return tree


@pytest.fixture
def v1(tmp_path):
    tree = CgroupTree(tmp_path / "v1")
    tree.mount("cpuset", CGROUP_SUPER_MAGIC)
    tree.mount("memory", CGROUP_SUPER_MAGIC)
    tree.membership("self", "3:memory:/system.slice/bayplan.service\n2:cpuset:/\n")
    return tree


@pytest.fixture
def root_user():
    """These tests change real cgroups; there is no stand-in for what a kernel does then."""
    if os.geteuid() != 0:
        pytest.fail("this test makes cgroups on this host and needs root")


@pytest.fixture
def real(root_user):
    """This host's hierarchy, with a cgroup of ours below its mounts: (hierarchy, path)."""
    hierarchy = Hierarchy.detect()
    path = f"/bayplan-test-{os.getpid()}"
    mounts = set(hierarchy.mounts.values())
    with contextlib.ExitStack() as stack:
        for mount in mounts:
            if hierarchy.unified:
                stack.enter_context(_switched_on(Path(mount) / "cgroup.subtree_control"))
            stack.enter_context(_made(Path(mount + path)))
        yield hierarchy, path


@pytest.fixture
def real_v2(root_user, tmp_path):
    """A cgroup v2 mount of this host as a hierarchy, whatever controllers it has there."""
    for mount in ("/sys/fs/cgroup", "/sys/fs/cgroup/unified"):
        if (Path(mount) / "cgroup.controllers").exists():
            yield Hierarchy(Layout.UNIFIED, {"cpuset": mount, "memory": mount}, {"": "/"})
            return
    subprocess.run(["mount", "-t", "cgroup2", "none", tmp_path], check=True)
    try:
        yield Hierarchy(Layout.UNIFIED, {"cpuset": str(tmp_path), "memory": str(tmp_path)}, {"": "/"})
    finally:
        subprocess.run(["umount", tmp_path], check=True)


@contextlib.contextmanager
def _switched_on(subtree_control):
    missing = {"cpuset", "memory"} - set(subtree_control.read_text().split())
    for controller in missing:
        subtree_control.write_text(f"+{controller}")
    try:
        yield
    finally:
        for controller in missing:
            subtree_control.write_text(f"-{controller}")


@pytest.fixture
def made():
    """A function that makes a cgroup for a ``with``; removed with all below, its processes moved out."""
    return _made


@contextlib.contextmanager
def _made(directory):
    directory.mkdir()
    try:
        yield directory
    finally:
        for below in sorted((directory, *directory.rglob("*/")), reverse=True):
            _evict(below, directory.parent)
            below.rmdir()


def _evict(cgroup, root):
    with contextlib.suppress(OSError):  # a threaded cgroup does not list processes: its parent does
        for pid in (cgroup / "cgroup.procs").read_text().split():
            (root / "cgroup.procs").write_text(pid)


@pytest.fixture
def sleeper():
    """A process to be moved about; it has ended and left its cgroup when the test is over."""
    process = subprocess.Popen(["sleep", "600"])
    yield process
    process.kill()
    process.wait()
