"""OCI hooks on the kernel that runs the tests: a process of our own stands for a created container."""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from bayplan.host.container_processes import Occupancy, Place
from bayplan.host.hierarchy import CPUSET, MEMORY, Hierarchy
from bayplan.host.proc import identify, read_oom_score_adj
from bayplan.host.sysfs import read_machine
from bayplan.model.policy import PlacementPolicy
from bayplan.quantity import MIB
from bayplan.sets import CpuSet
from support.allowed import allowed_cpus
from support.machines import machine
from support.oci_node import OciNode, guaranteed, spec, state
from support.oci_socket import CRIO, ID, oci_socket

pytestmark = pytest.mark.root


@pytest.fixture
def created() -> Iterator[tuple[Hierarchy, str, int]]:
    """A process in a cgroup of its own: this host's hierarchy, the cgroup's path, the pid."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    hierarchy, path = Hierarchy.detect(), f"/bayplan-test-oci-{os.getpid()}-{ID}"
    directories = [Path(mount + path) for mount in sorted(set(hierarchy.mounts.values()))]
    process = subprocess.Popen(["sleep", "600"])
    # Where these tests may not run themselves, a container may.
    os.sched_setaffinity(process.pid, range(os.sysconf("SC_NPROCESSORS_CONF")))
    with contextlib.ExitStack() as stack:
        for directory in directories:
            if hierarchy.unified:
                (directory.parent / "cgroup.subtree_control").write_text("+cpuset +memory")
            directory.mkdir()
            stack.callback(directory.rmdir)
        stack.callback(process.wait)
        stack.callback(process.kill)
        for directory in directories:
            if (directory / "cpuset.cpus").exists() and not hierarchy.unified:
                for name in ("cpuset.cpus", "cpuset.mems"):
                    (directory / name).write_text((directory.parent / name).read_text())
            (directory / "cgroup.procs").write_text(str(process.pid))
        yield hierarchy, path, process.pid


async def test_a_created_container_is_placed_by_the_kernel_and_released_with_its_end(
    created: tuple[Hierarchy, str, int], tmp_path: Path
) -> None:
    hierarchy, path, pid = created
    policy = PlacementPolicy(default_memory_limit_bytes={"BestEffort": 64 * MIB}, reserved_cpus=CpuSet([0]))

    async with oci_socket(tmp_path, policy, hierarchy=hierarchy, on=read_machine()) as one:
        bundle = OciNode(tmp_path).write_spec(ID, spec(path, annotations=CRIO))
        assert await one.ask("createRuntime", state(ID, bundle, pid)) == ("ok", "")
        entry = one.entries[ID]
        assert dict(entry.origin.cgroups) == {CPUSET: path, MEMORY: path}
        assert allowed_cpus(pid) == one.around.controller.state.wanted(entry).cpuset_cpus
        assert read_oom_score_adj(identify(pid)) == 1000
        limit = "memory.max" if hierarchy.unified else "memory.limit_in_bytes"
        text = Path(f"{hierarchy.mounts[MEMORY]}{path}/{limit}").read_text()  # noqa: ASYNC240 - a file in memory
        assert int(text) == 64 * MIB
        # It lives, so that a deletion that failed takes nothing away.
        assert await one.ask("delete", ID.encode()) == ("ok", "")
        place = Place.of(entry.origin.pod, entry.origin.container, entry.origin)
        assert Occupancy(hierarchy).has_process(place)
        os.kill(pid, 9)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # noqa: ASYNC222 - a zombie from here on
        for mount in set(hierarchy.mounts.values()):
            while Path(f"{mount}{path}/cgroup.procs").read_text():  # noqa: ASYNC240 - a file in memory
                pass
        assert await one.ask("poststop", state(ID, bundle, 0)) == ("ok", "")
        assert one.entries == {}


async def test_a_value_that_the_kernel_refuses_undoes_the_decision(
    created: tuple[Hierarchy, str, int], tmp_path: Path
) -> None:
    """The kernel can be built for 8192 CPUs at most."""
    hierarchy, path, pid = created
    too_many = machine(2, cpus_per_node=8192)

    policy = PlacementPolicy(reserved_cpus=CpuSet(range(8192)))
    async with oci_socket(tmp_path, policy, hierarchy=hierarchy, on=too_many) as one:
        document = spec(path, resources=guaranteed(2, 64 * MIB), annotations=CRIO)
        bundle = OciNode(tmp_path).write_spec(ID, document)
        status, text = await one.ask("createRuntime", state(ID, bundle, pid))
        assert (status, one.entries) == ("error", {})
        # cgroup v1 gets what the container has beside it first, so that nothing in it is in the way.
        assert f"{path}/cpuset.cpus: cannot take '" in text
        assert "8192-8193'" in text


async def test_our_own_process_is_no_container(tmp_path: Path) -> None:
    hierarchy = Hierarchy.detect()

    async with oci_socket(tmp_path, hierarchy=hierarchy) as one:
        bundle = OciNode(tmp_path).write_spec(ID, spec("/x", annotations=CRIO))
        status, text = await one.ask("createRuntime", state(ID, bundle, os.getpid()))
        assert status == "error"
        assert f" of process {os.getpid()}: " in text
        status, text = await one.ask("createRuntime", state(ID, bundle, 1))
        assert (status, f"state of container {ID}: " in text) == ("error", True)
