"""A container's cgroup: every file absent, garbage and good on trees; then the calls on a real kernel."""

import contextlib
import errno
import os
from pathlib import Path

import pytest

from bayplan.errors import HostError, ParseError
from bayplan.host.container import ContainerCgroup, Readings, paths_by_id, raise_hugepage_limits
from bayplan.host.hierarchy import CGROUP_SUPER_MAGIC, CPUSET, MEMORY
from bayplan.host.kernelfs import AbsentError, RefusedError
from bayplan.host.live_memory import read_held
from bayplan.model.workload import Update
from bayplan.quantity import MIB
from bayplan.sets import CpuSet, NodeSet
from support.allowed import allowed_cpus, allowed_mems

POD = "/kubepods.slice/kubepods-pod1.slice"
SCOPE = f"{POD}/crio-c1.scope"
CGROUPS_PATH = "kubepods-pod1.slice:crio:c1"


def open_descriptors():
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.fixture
def container(v2):
    v2.add(SCOPE)
    with ContainerCgroup.find(v2.detect(), CGROUPS_PATH) as cgroup:
        yield cgroup


@pytest.fixture
def legacy(v1):
    v1.add_v1(SCOPE, SCOPE)
    with ContainerCgroup.find(v1.detect(), CGROUPS_PATH) as cgroup:
        yield cgroup


class TestReadV2:
    def test_good(self, container):
        assert container.read() == Readings(
            path=SCOPE,
            cpus=CpuSet([0, 1, 2, 3]),
            mems=NodeSet([0]),
            cpus_effective=CpuSet([0, 1, 2]),
            mems_effective=NodeSet([0]),
            memory_max_bytes=None,
            memory_high_bytes=None,
            memory_low_bytes=0,
            memory_min_bytes=0,
            memory_oom_group=False,
        )

    def test_the_other_values(self, v2):
        v2.add(
            SCOPE,
            cpuset__cpus="",
            cpuset__mems="0,2-3",
            memory__max="67108864",
            memory__high="50331648",
            memory__low="max",
            memory__min="4096",
            memory__oom__group="1",
        )
        with ContainerCgroup.find(v2.detect(), CGROUPS_PATH) as container:
            readings = container.read()
        assert readings.cpus == CpuSet()
        assert readings.mems == NodeSet([0, 2, 3])
        assert (readings.memory_max_bytes, readings.memory_high_bytes) == (64 * MIB, 48 * MIB)
        assert (readings.memory_low_bytes, readings.memory_min_bytes) == (None, 4096)
        assert readings.memory_oom_group is True

    def test_files_as_they_are(self, v2, container):
        v2.add(SCOPE, cpu__max="max 100000")
        assert container.texts(["cpu.max", "memory.max", "pids.max"]) == {
            "cpu.max": "max 100000",
            "memory.max": "max",
        }

    @pytest.mark.parametrize(
        "name",
        [
            "cpuset.cpus",
            "cpuset.mems",
            "cpuset.cpus.effective",
            "cpuset.mems.effective",
            "memory.max",
            "memory.high",
            "memory.low",
            "memory.min",
            "memory.oom.group",
        ],
    )
    def test_each_file_absent_and_garbage(self, v2, container, name):
        path = v2.base / SCOPE[1:] / name
        path.write_text("banana\n")
        with pytest.raises(HostError, match="'banana'") as caught:
            container.read()
        assert caught.value.subject == str(path)
        path.unlink()
        with pytest.raises(
            HostError, match=r"is the controller in the parent's cgroup.subtree_control"
        ) as caught:
            container.read()
        assert caught.value.subject == str(path)
        assert not isinstance(caught.value, AbsentError)

    def test_processes(self, v2, container):
        path = v2.base / SCOPE[1:] / "cgroup.procs"
        assert container.processes() == ()
        path.write_text("300\n20\n")
        v2.add(f"{SCOPE}/inner")
        v2.add(f"{SCOPE}/inner/deep", cgroup__procs="7")
        v2.add(f"{SCOPE}/other")
        assert container.processes() == (7, 20, 300)
        path.write_text("0\n20\n")
        with pytest.raises(HostError, match="PID namespace"):
            container.processes()
        path.write_text("banana\n")
        with pytest.raises(HostError, match="'banana'"):
            container.processes()


class TestFind:
    def test_crun_keeps_the_processes_in_a_child_of_the_scope(self, v2):
        v2.add(SCOPE, memory__max="1048576")
        v2.add(f"{SCOPE}/container", cpuset__cpus="2", memory__max="2097152")
        with ContainerCgroup.find(v2.detect(), CGROUPS_PATH) as container:
            assert container.path == f"{SCOPE}/container"
            readings = container.read()
            assert readings.cpus == CpuSet([2])
            assert readings.memory_max_bytes == 1048576  # the tighter of both
            container.write_cpus(CpuSet([1, 3]))
            container.write_memory_max(MIB * 8)
        for directory in (SCOPE, f"{SCOPE}/container"):
            assert (v2.base / directory[1:] / "cpuset.cpus").read_text() == "1,3"
            assert (v2.base / directory[1:] / "memory.max").read_text() == str(8 * MIB)

    def test_crun_by_its_process(self, v2):
        v2.add(SCOPE)
        v2.add(f"{SCOPE}/container")
        v2.membership(77, f"0::{SCOPE}/container\n")
        hierarchy = v2.detect()
        with ContainerCgroup(hierarchy, hierarchy.paths_of_process(77)) as container:
            container.write_mems(NodeSet([1]))
            assert container.path == f"{SCOPE}/container"
        assert (v2.base / SCOPE[1:] / "cpuset.mems").read_text() == "1"

    def test_a_child_called_container_is_only_crun_s_below_a_scope(self, v2):
        v2.add("/kubepods/pod1/container")
        (v2.base / "kubepods/pod1/container/container").mkdir()
        with ContainerCgroup.find(v2.detect(), "/kubepods/pod1/container") as container:
            assert container.path == "/kubepods/pod1/container"

    def test_by_parent_and_id(self, v2):
        v2.add(SCOPE)
        with ContainerCgroup.find(v2.detect(), "", "kubepods-pod1.slice", "c1") as container:
            assert container.path == SCOPE

    def test_nowhere_names_all_places(self, v2):
        with pytest.raises(AbsentError) as caught:
            ContainerCgroup.find(v2.detect(), "", "kubepods-pod1.slice", "c1")
        message = str(caught.value)
        assert message.startswith(f"{v2.base}{POD}/cri-containerd-c1.scope: there is no such cgroup")
        for name in ("crio-c1.scope", "/c1", "crio-c1"):
            assert f"{POD}/{name}".replace("//", "/") in message

    def test_a_path_that_leads_out(self, v2):
        with pytest.raises(ParseError):
            ContainerCgroup.find(v2.detect(), "/../../etc")
        with pytest.raises(ParseError):
            ContainerCgroup(v2.detect(), {CPUSET: "/a/../..", MEMORY: "/a"})

    def test_v1_with_two_places(self, v1):
        v1.add_v1("/b", "/a", cpuset__cpus="3")
        v1.membership(77, "4:memory:/a\n3:cpuset:/b\n")
        hierarchy = v1.detect()
        with ContainerCgroup(hierarchy, hierarchy.paths_of_process(77)) as container:
            assert container.read().cpus == CpuSet([3])

    def test_v1_without_its_memory_cgroup_leaks_no_descriptor(self, v1):
        v1.add_v1("/b", None)
        hierarchy = v1.detect()
        before = open_descriptors()
        with pytest.raises(AbsentError):
            ContainerCgroup.find(hierarchy, "/b")
        assert open_descriptors() == before


class TestWriteV2:
    def test_each_value(self, v2, container):
        container.write_cpus(CpuSet([0, 1, 2, 8]))
        container.write_mems(NodeSet([1, 65]))
        container.write_memory_max(64 * MIB)
        for key, value in {
            "memory.high": "1048576",
            "memory.low": "max",
            "memory.min": " 4096 ",
            "memory.oom.group": "1",
        }.items():
            container.write_unified(key, value)
        written = {path.name: path.read_text() for path in (v2.base / SCOPE[1:]).iterdir()}
        assert written["cpuset.cpus"] == "0-2,8"
        assert written["cpuset.mems"] == "1,65"
        assert written["memory.max"] == str(64 * MIB)
        assert written["memory.high"] == "1048576"
        assert written["memory.low"] == "max"
        assert written["memory.min"] == "4096"
        assert written["memory.oom.group"] == "1"
        container.write_memory_max(None)
        container.write_unified("cpuset.cpus", "0,5")
        container.write_unified("cpuset.mems", "0")
        container.write_unified("memory.oom.group", "0")
        readings = container.read()
        assert readings.memory_max_bytes is None
        assert (readings.cpus, readings.mems) == (CpuSet([0, 5]), NodeSet([0]))
        assert readings.memory_oom_group is False

    def test_an_update_as_a_whole(self, container):
        container.apply(
            Update(
                "c1", CpuSet([1]), NodeSet([0, 1]), 32 * MIB, {"memory.low": "8192", "memory.oom.group": "1"}
            )
        )
        readings = container.read()
        assert (readings.cpus, readings.mems) == (CpuSet([1]), NodeSet([0, 1]))
        assert (readings.memory_max_bytes, readings.memory_low_bytes) == (32 * MIB, 8192)
        assert readings.memory_oom_group is True

    def test_an_update_of_nothing_writes_nothing(self, v2, container):
        before = {path.name: path.stat().st_mtime_ns for path in (v2.base / SCOPE[1:]).iterdir()}
        container.apply(Update("c1"))
        assert {path.name: path.stat().st_mtime_ns for path in (v2.base / SCOPE[1:]).iterdir()} == before

    def test_an_empty_set_is_refused(self, container):
        for write in (
            lambda: container.write_cpus(CpuSet()),
            lambda: container.write_mems(NodeSet()),
            lambda: container.write_unified("cpuset.cpus", ""),
        ):
            with pytest.raises(HostError, match="at least one"):
                write()
        assert container.read().cpus == CpuSet([0, 1, 2, 3])

    @pytest.mark.parametrize(
        "write",
        [
            lambda container: container.write_memory_max(1024),
            lambda container: container.write_unified("memory.max", "1024"),
        ],
    )
    def test_a_limit_below_what_is_in_use_is_refused(self, container, write):
        with pytest.raises(RefusedError, match="1Ki is below the 4Ki in use") as caught:
            write(container)
        assert caught.value.errno == errno.EBUSY
        assert container.read().memory_max_bytes is None

    @pytest.mark.parametrize(
        ("key", "value"),
        [
            ("memory.max", "banana"),
            ("memory.low", "-1"),
            ("memory.oom.group", ""),
            ("cpuset.mems", "3-1"),
            ("cpu.max", "max"),
            ("../other/memory.max", "max"),
            ("", "1"),
        ],
    )
    def test_unified_keys_and_values_that_are_none(self, container, key, value):
        with pytest.raises(HostError) as caught:
            container.write_unified(key, value)
        assert caught.value.subject == f"{SCOPE}/{key}"

    @pytest.mark.parametrize("name", ["memory.current", "memory.low"])
    def test_a_file_that_is_missing_is_not_made(self, v2, container, name):
        path = v2.base / SCOPE[1:] / name
        path.unlink()
        with pytest.raises(HostError) as caught:
            container.apply(Update("c1", memory_limit_bytes=MIB, unified={"memory.low": "1"}))
        assert caught.value.subject == str(path)
        assert not path.exists()

    def test_protected_cgroups_are_read_but_not_written(self, v2):
        v2.add("/system.slice/bayplan.service")
        v2.add("/init.scope")
        v2.add("/system.slice")
        v2.add("/")
        for path in ("/", "/init.scope", "/system.slice", "/system.slice/bayplan.service"):
            with ContainerCgroup(v2.detect(), {CPUSET: path, MEMORY: path}) as cgroup:
                assert cgroup.read().cpus == CpuSet([0, 1, 2, 3])
                for write in (
                    lambda cgroup=cgroup: cgroup.write_cpus(CpuSet([1])),
                    lambda cgroup=cgroup: cgroup.write_mems(NodeSet([1])),
                    lambda cgroup=cgroup: cgroup.write_memory_max(None),
                    lambda cgroup=cgroup: cgroup.write_unified("memory.low", "1"),
                ):
                    with pytest.raises(HostError, match="will not be changed"):
                        write()
                assert cgroup.read().cpus == CpuSet([0, 1, 2, 3])

    def test_a_cgroup_that_holds_this_process_is_known_by_its_processes_too(self, v2, container):
        # In a cgroup namespace /proc/self/cgroup says "/", wherever this process is in truth.
        (v2.base / SCOPE[1:] / "cgroup.procs").write_text(f"1234567\n{os.getpid()}\n")
        with pytest.raises(HostError, match="this process is in it"):
            container.write_cpus(CpuSet([1]))


class TestV1:
    def test_good(self, legacy):
        readings = legacy.read()
        assert readings == Readings(
            SCOPE, CpuSet([0, 1, 2, 3]), NodeSet([0]), CpuSet([0, 1, 2]), NodeSet([0]), None
        )
        assert (readings.memory_high_bytes, readings.memory_min_bytes) == (None, 0)
        assert readings.memory_oom_group is False

    @pytest.mark.parametrize(
        "path",
        [
            f"cpuset{SCOPE}/cpuset.cpus",
            f"cpuset{SCOPE}/cpuset.mems",
            f"cpuset{SCOPE}/cpuset.effective_cpus",
            f"cpuset{SCOPE}/cpuset.effective_mems",
            f"memory{SCOPE}/memory.limit_in_bytes",
        ],
    )
    def test_each_file_absent_and_garbage(self, v1, legacy, path):
        file = v1.base / path
        file.write_text("banana\n")
        with pytest.raises(HostError, match="'banana'") as caught:
            legacy.read()
        assert caught.value.subject == str(file)
        file.unlink()
        with pytest.raises(HostError, match="no such file") as caught:
            legacy.read()
        assert caught.value.subject == str(file)

    def test_a_limit_above_the_one_with_swap_raises_that_first(self, v1, legacy):
        memory = v1.base / f"memory{SCOPE}"
        (memory / "memory.memsw.limit_in_bytes").write_text(str(16 * MIB))
        legacy.write_memory_max(8 * MIB)
        assert (memory / "memory.memsw.limit_in_bytes").read_text() == str(16 * MIB)
        legacy.write_memory_max(32 * MIB)
        assert (memory / "memory.memsw.limit_in_bytes").read_text() == str(32 * MIB)
        assert (memory / "memory.limit_in_bytes").read_text() == str(32 * MIB)
        legacy.write_memory_max(None)
        assert (memory / "memory.memsw.limit_in_bytes").read_text() == "-1"
        assert (memory / "memory.limit_in_bytes").read_text() == "-1"

    def test_without_swap_accounting_there_is_nothing_to_raise(self, v1, legacy):
        (v1.base / f"memory{SCOPE}/memory.memsw.limit_in_bytes").unlink()
        legacy.write_memory_max(32 * MIB)
        assert legacy.read().memory_max_bytes == 32 * MIB

    def test_unified_keys_need_v2(self, legacy):
        with pytest.raises(HostError, match="needs cgroup v2, and this host has cgroup v1"):
            legacy.write_unified("memory.min", "0")


class TestIdentity:
    def test_a_cgroup_made_again_is_another_one(self, v2, container):
        directory = v2.base / SCOPE[1:]
        assert container.is_current()
        directory.rename(directory.with_name("moved"))
        assert not container.is_current()
        v2.add(SCOPE, cpuset__cpus="7")
        assert not container.is_current()
        assert container.read().cpus == CpuSet([0, 1, 2, 3])  # still the one that was opened
        with ContainerCgroup.find(v2.detect(), CGROUPS_PATH) as successor:
            assert successor.identity != container.identity
            assert successor.read().cpus == CpuSet([7])

    def test_closing_twice_is_harmless(self, container):
        container.close()
        container.close()


@pytest.mark.root
class TestReal:
    """On the kernel that runs the tests, with cgroups of our own."""

    def test_what_is_written_is_what_the_kernel_does(self, real, sleeper):
        hierarchy, path = real
        nodes = allowed_mems(sleeper.pid)
        for controller, mount in hierarchy.mounts.items():
            directory = Path(mount + path)
            if controller == CPUSET and not hierarchy.unified:
                (directory / "cpuset.cpus").write_text(Path(f"{mount}/cpuset.cpus").read_text())
                (directory / "cpuset.mems").write_text(Path(f"{mount}/cpuset.mems").read_text())
            (directory / "cgroup.procs").write_text(str(sleeper.pid))
        with ContainerCgroup(hierarchy, hierarchy.paths_of_process(sleeper.pid)) as container:
            assert container.path == path
            assert container.processes() == (sleeper.pid,)
            before = container.read()
            assert before.memory_max_bytes is None
            first_cpu, first_node = min(before.cpus_effective), min(nodes)
            container.apply(Update("x", CpuSet([first_cpu]), NodeSet([first_node]), 64 * MIB))
            after = container.read()
            assert (after.cpus, after.cpus_effective) == (CpuSet([first_cpu]), CpuSet([first_cpu]))
            assert (after.mems, after.mems_effective) == (NodeSet([first_node]), NodeSet([first_node]))
            assert after.memory_max_bytes == 64 * MIB
            assert allowed_cpus(sleeper.pid) == CpuSet([first_cpu])
            assert allowed_mems(sleeper.pid) == NodeSet([first_node])
            assert NodeSet(read_held(hierarchy, path).of_processes_bytes) <= nodes
            container.write_memory_max(None)
            assert container.read().memory_max_bytes is None

    def test_what_is_given_back_is_the_parents(self, real, sleeper):
        hierarchy, path = real
        child = f"{path}/{'c' * 64}"
        for mount in set(hierarchy.mounts.values()):
            parent = Path(mount + path)
            if hierarchy.unified:
                (parent / "cgroup.subtree_control").write_text("+cpuset +memory")
            (parent / child.rpartition("/")[2]).mkdir()
        try:
            parent = Path(hierarchy.mounts[CPUSET] + path)
            if not hierarchy.unified:
                for name in ("cpuset.cpus", "cpuset.mems"):
                    (parent / name).write_text((parent.parent / name).read_text())
            found = paths_by_id(hierarchy, ["c" * 64, "d" * 64])
            assert found == {"c" * 64: {CPUSET: child, MEMORY: child}}
            with ContainerCgroup(hierarchy, found["c" * 64]) as container:
                before = container.read().cpus_effective
                container.write_cpus(CpuSet([0]))
                container.write_mems(NodeSet([0]))
                (Path(hierarchy.mounts[CPUSET] + child) / "cgroup.procs").write_text(str(sleeper.pid))
                for _ in range(2):
                    container.inherit(cpus=True, mems=True)
                readings = container.read()
                everything = readings.cpus_effective
                assert everything >= (before or CpuSet([0]))
                assert len(everything) == os.cpu_count()
                assert allowed_cpus(sleeper.pid) == everything
        finally:
            sleeper.kill()
            sleeper.wait()
            for mount in set(hierarchy.mounts.values()):
                Path(mount + child).rmdir()

    def test_cpusets_of_containers_within_a_container_follow(self, real, sleeper, made):
        hierarchy, path = real
        mount = Path(hierarchy.mounts[CPUSET])
        cpus = CpuSet.parse((mount / "cpuset.cpus").read_text()) if not hierarchy.unified else CpuSet()
        first, rest = CpuSet(list(cpus)[:1]), CpuSet(list(cpus)[1:])
        if not rest:
            pytest.skip("takes cgroup v1, where they do not follow by themselves, and two CPUs")
        outer, docker, inner, pinned = (
            mount / f"{path[1:]}{below}" for below in ("", "/docker", "/docker/inner", "/docker/pinned")
        )
        with contextlib.ExitStack() as stack:
            stack.enter_context(made(docker))
            for directory in (outer, docker, inner, pinned):
                directory.mkdir(exist_ok=True)
                # As runtimes do it: the parent's, where nobody asks for others.
                (directory / "cpuset.cpus").write_text(str(cpus))
                (directory / "cpuset.mems").write_text("0")
            (pinned / "cpuset.cpus").write_text(str(rest))
            (inner / "cgroup.procs").write_text(str(sleeper.pid))
            with pytest.raises(OSError, match="busy"):
                (outer / "cpuset.cpus").write_text(str(first))

            def shown():
                return [
                    CpuSet.parse((one / "cpuset.effective_cpus").read_text())
                    for one in (outer, docker, inner, pinned)
                ]

            with ContainerCgroup(hierarchy, dict.fromkeys((CPUSET, MEMORY), path)) as container:
                container.write_cpus(cpus)
                assert shown() == [cpus, cpus, cpus, rest]
                container.write_cpus(first)
                assert shown() == [first] * 4
                assert allowed_cpus(sleeper.pid) == first
                # To others altogether: nothing of what they have stays.
                container.write_cpus(rest)
                assert shown() == [rest] * 4
                container.inherit(cpus=True, mems=True)
                assert shown() == [cpus] * 4
                assert allowed_cpus(sleeper.pid) == cpus
                container.write_mems(NodeSet([0]))

    def test_what_the_kernel_refuses_is_reported_with_the_value(self, real):
        hierarchy, path = real
        with ContainerCgroup.find(hierarchy, path) as container:
            with pytest.raises(RefusedError) as caught:
                container.write_mems(NodeSet([1023]))
            assert "'1023'" in str(caught.value)
            assert caught.value.errno in (errno.EINVAL, errno.EACCES, errno.ERANGE)
            assert caught.value.subject == f"{hierarchy.mounts[CPUSET]}{path}/cpuset.mems"

    def test_a_cgroup_that_is_removed_while_open_and_made_again(self, real_v2, made):
        path = f"/bayplan-test-again-{os.getpid()}"
        directory = Path(real_v2.mounts[CPUSET] + path)
        with contextlib.ExitStack() as stack:
            stack.enter_context(made(directory))
            first = stack.enter_context(ContainerCgroup.find(real_v2, path))
            directory.rmdir()
            for call in (first.read, first.processes, lambda: first.write_cpus(CpuSet([0]))):
                with pytest.raises(AbsentError):
                    call()
            directory.mkdir()
            with pytest.raises(AbsentError, match="the cgroup is gone"):
                first.read()
            second = stack.enter_context(ContainerCgroup.find(real_v2, path))
            assert second.identity != first.identity
            assert (second.is_current(), first.is_current()) == (True, False)

    def test_processes_of_nested_cgroups(self, real_v2, sleeper, made):
        path = f"/bayplan-test-nested-{os.getpid()}"
        with made(Path(real_v2.mounts[CPUSET] + path)) as directory:
            inner = directory / "inner"
            inner.mkdir()
            (inner / "cgroup.procs").write_text(str(sleeper.pid))
            with ContainerCgroup.find(real_v2, path) as container:
                assert container.processes() == (sleeper.pid,)
            assert real_v2.paths_of_process(sleeper.pid)[CPUSET] == f"{path}/inner"

    def test_processes_of_a_threaded_cgroup_are_listed_once(self, real_v2, sleeper, made):
        path = f"/bayplan-test-threaded-{os.getpid()}"
        with made(Path(real_v2.mounts[CPUSET] + path)) as directory:
            (directory / "cgroup.procs").write_text(str(sleeper.pid))
            (directory / "inner").mkdir()
            (directory / "inner/cgroup.type").write_text("threaded")
            with pytest.raises(OSError, match="not supported"):
                (directory / "inner/cgroup.procs").read_text()
            with ContainerCgroup.find(real_v2, path) as container:
                assert container.processes() == (sleeper.pid,)

    def test_a_controller_that_is_not_switched_on_is_named(self, real_v2, made):
        path = f"/bayplan-test-bare-{os.getpid()}"
        with made(Path(real_v2.mounts[CPUSET] + path)) as directory:
            (directory / "inner").mkdir()  # nothing is in this directory's cgroup.subtree_control
            with (
                ContainerCgroup.find(real_v2, f"{path}/inner") as container,
                pytest.raises(HostError, match=r"is the controller in the parent's cgroup.subtree_control"),
            ):
                container.read()


class TestHugepageLimits:
    def test_limits_are_raised_and_never_lowered(self, v2):
        v2.add(POD, hugetlb__2MB__max="0", hugetlb__2MB__rsvd__max="4194304", hugetlb__1GB__max="max")
        raise_hugepage_limits(v2.detect(), POD, {2 * MIB: 64 * MIB, 1 << 30: 1 << 30})
        files = v2.base / POD.lstrip("/")
        assert (files / "hugetlb.2MB.max").read_text() == str(64 * MIB)
        assert (files / "hugetlb.2MB.rsvd.max").read_text() == str(64 * MIB)
        assert (files / "hugetlb.1GB.max").read_text() == "max\n"
        raise_hugepage_limits(v2.detect(), POD, {2 * MIB: 32 * MIB})
        assert (files / "hugetlb.2MB.max").read_text() == str(64 * MIB)

    def test_limits_of_cgroup_v1(self, v1):
        """A hierarchy of its own; without a limit it shows the largest multiple of a page."""
        v1.mount("hugetlb", CGROUP_SUPER_MAGIC)
        files = v1.root / "sys/fs/cgroup/hugetlb" / POD.lstrip("/")
        files.mkdir(parents=True)
        names = {
            "2MB.limit_in_bytes": "0",
            "2MB.rsvd.limit_in_bytes": "9223372036854771712",
            "1GB.limit_in_bytes": "2147483648",
        }
        for name, value in names.items():
            (files / f"hugetlb.{name}").write_text(f"{value}\n")
        raise_hugepage_limits(v1.detect(), POD, {2 * MIB: 64 * MIB, 1 << 30: 1 << 30})
        found = [(files / f"hugetlb.{name}").read_text().strip() for name in names]
        assert found == [str(64 * MIB), "9223372036854771712", str(2 << 30)]

    def test_what_is_not_there_is_said(self, v2):
        v2.add(POD)
        with pytest.raises(AbsentError, match=r"hugetlb\.2MB\.max"):
            raise_hugepage_limits(v2.detect(), POD, {2 * MIB: 64 * MIB})
        with pytest.raises(AbsentError):
            raise_hugepage_limits(v2.detect(), f"{POD}/gone", {2 * MIB: 64 * MIB})
