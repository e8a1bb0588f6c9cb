import os
import subprocess
from pathlib import Path

import pytest

from bayplan.errors import HostError
from bayplan.host.hierarchy import (
    CGROUP2_SUPER_MAGIC,
    CGROUP_SUPER_MAGIC,
    CPUSET,
    MEMORY,
    Hierarchy,
    Layout,
    file_system_magic,
)
from bayplan.host.kernelfs import AbsentError

PROC_SUPER_MAGIC = 0x9FA0


class TestDetect:
    def test_cgroup_v2(self, v2):
        hierarchy = v2.detect()
        assert hierarchy.layout is Layout.UNIFIED
        assert hierarchy.unified
        assert hierarchy.mounts == {CPUSET: str(v2.base), MEMORY: str(v2.base)}

    def test_cgroup_v1(self, v1):
        hierarchy = v1.detect()
        assert hierarchy.layout is Layout.LEGACY
        assert not hierarchy.unified
        assert hierarchy.mounts == {CPUSET: str(v1.base / "cpuset"), MEMORY: str(v1.base / "memory")}

    def test_hybrid(self, v1):
        v1.mount("unified", CGROUP2_SUPER_MAGIC)
        assert v1.detect().layout is Layout.HYBRID
        assert not v1.detect().unified

    def test_a_directory_of_the_same_name_is_no_mount(self, v1):
        v1.magics.pop(str(v1.base / "memory"))
        with pytest.raises(HostError, match="no cgroup controller memory is to be found there"):
            v1.detect()

    def test_a_kernel_without_the_memory_controller(self, v2):
        (v2.base / "cgroup.controllers").write_text("cpu io\n")
        with pytest.raises(HostError, match="cpuset and memory") as caught:
            v2.detect()
        assert caught.value.subject == str(v2.base)

    def test_nothing_mounted(self, tmp_path):
        (tmp_path / "proc/self").mkdir(parents=True)
        (tmp_path / "proc/self/cgroup").write_text("0::/\n")
        with pytest.raises(AbsentError) as caught:
            Hierarchy.detect(tmp_path)
        assert caught.value.subject == str(tmp_path / "sys/fs/cgroup")

    def test_garbage_in_our_own_membership(self, v2):
        v2.membership("self", "banana\n")
        with pytest.raises(HostError, match="'banana'") as caught:
            v2.detect()
        assert caught.value.subject == str(v2.root / "proc/self/cgroup")

    def test_a_tree_is_no_cgroup_file_system_unless_a_test_says_so(self, v2):
        with pytest.raises(HostError, match="no cgroup controller"):
            Hierarchy.detect(v2.root)


class TestThisHost:
    def test_magic_is_what_the_kernel_says(self, tmp_path):
        assert file_system_magic("/proc") == PROC_SUPER_MAGIC
        assert file_system_magic(str(tmp_path)) not in (CGROUP2_SUPER_MAGIC, CGROUP_SUPER_MAGIC)
        with pytest.raises(AbsentError):
            file_system_magic(str(tmp_path / "absent"))

    def test_it_is_detected_as_the_mount_table_has_it(self):
        types = {}
        for line in Path("/proc/self/mounts").read_text().splitlines():
            _, where, kind, *_ = line.split()
            types[where] = kind
        hierarchy = Hierarchy.detect()
        expected = "cgroup2" if hierarchy.unified else "cgroup"
        assert {types[mount] for mount in hierarchy.mounts.values()} == {expected}
        assert (hierarchy.layout is Layout.HYBRID) == (types.get("/sys/fs/cgroup/unified") == "cgroup2")

    def test_a_child_is_where_we_are(self):
        hierarchy = Hierarchy.detect()
        with subprocess.Popen(["sleep", "600"]) as child:
            try:
                assert hierarchy.paths_of_process(child.pid) == hierarchy.paths_of_process(os.getpid())
            finally:
                child.kill()


class TestPathsOfProcess:
    def test_v2(self, v2):
        v2.membership(77, "0::/kubepods/pod1/c1\n")
        assert v2.detect().paths_of_process(77) == {CPUSET: "/kubepods/pod1/c1", MEMORY: "/kubepods/pod1/c1"}

    def test_v1_has_one_for_each_controller(self, v1):
        v1.membership(77, "9:cpu,cpuacct:/x\n4:memory:/a\n3:cpuset,debug:/b\n0::/c\n")
        assert v1.detect().paths_of_process(77) == {CPUSET: "/b", MEMORY: "/a"}

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("0::/../../kubepods/pod1\n", "outside of this process's cgroup namespace"),
            ("0::/..\n", "outside of this process's cgroup namespace"),
            ("1:name=systemd:/x\n", "no line for"),
            ("banana\n", "'banana'"),
        ],
    )
    def test_what_leads_nowhere(self, v2, text, message):
        v2.membership(77, text)
        with pytest.raises(HostError, match=message) as caught:
            v2.detect().paths_of_process(77)
        assert caught.value.subject == str(v2.root / "proc/77/cgroup")

    def test_a_removed_cgroup_and_an_ended_process(self, v2):
        hierarchy = v2.detect()
        v2.membership(77, "0::/kubepods/pod1/c1 (deleted)\n")
        with pytest.raises(AbsentError, match="has been removed"):
            hierarchy.paths_of_process(77)
        with pytest.raises(AbsentError):
            hierarchy.paths_of_process(78)


class TestProtected:
    @pytest.mark.parametrize(
        "path", ["/", "/init.scope", "/init.scope/x", "/system.slice", "/system.slice/bayplan.service"]
    )
    def test_off_limits(self, v2, v1, path):
        assert v2.detect().why_protected(path)
        assert v1.detect().why_protected(path)

    @pytest.mark.parametrize(
        "path",
        [
            "/kubepods.slice",
            "/system.slice/other.service",
            "/system.slice/bayplan.service/child",
            "/init.scopes",
        ],
    )
    def test_not_off_limits(self, v2, path):
        assert v2.detect().why_protected(path) is None
