"""Whether a container has a process: by what each kind of kernel shows, and by a first process elsewhere."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from bayplan.host.container_processes import Occupancy, Place
from bayplan.host.hierarchy import CPUSET, MEMORY, Hierarchy, Layout
from bayplan.model.decision import QosClass
from bayplan.model.origin import Hook
from support.machines import container, pod
from support.oci_node import OciNode


@contextmanager
def running() -> Iterator["subprocess.Popen[bytes]"]:
    """A process of this machine, which ends with the block at the latest."""
    with subprocess.Popen(["/bin/sleep", "600"]) as process:
        try:
            yield process
        finally:
            process.kill()


OWNER = replace(pod("web", QosClass.BURSTABLE), cgroup_parent="/kubepods/burstable/podweb")
ID, OTHER = "c1" * 32, "d2" * 32
PATH = f"/kubepods/burstable/podweb/{ID}"
MAIN = replace(container(ID, OWNER), cgroups_path=PATH)


def open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


@pytest.fixture(params=list(Layout), ids=lambda layout: layout.name.lower())
def node(request: pytest.FixtureRequest, tmp_path: Path) -> OciNode:
    return OciNode(tmp_path, request.param)


def events(node: OciNode, populated: int, path: str = PATH) -> None:
    """cgroup v2 has one file more."""
    if node.hierarchy.unified:
        (node.directory(path) / "cgroup.events").write_text(f"populated {populated}\nfrozen 0\n")


def test_a_cgroup_with_a_process_an_empty_one_and_none(node: OciNode) -> None:
    occupancy, place = Occupancy(node.hierarchy), Place.of(OWNER, MAIN)
    assert not occupancy.has_process(place)
    node.make_cgroup(PATH)
    events(node, 0)
    assert not occupancy.has_process(place)
    node.make_process(42, PATH)
    events(node, 1)
    assert occupancy.has_process(place)
    node.end(42)
    assert not occupancy.has_process(place)


def test_processes_below_it_count(node: OciNode) -> None:
    node.make_cgroup(PATH)
    node.make_cgroup(f"{PATH}/init.scope")
    node.make_process(42, f"{PATH}/init.scope")
    events(node, 1)
    assert Occupancy(node.hierarchy).has_process(Place.of(OWNER, MAIN))


def test_files_stay_open_as_long_as_they_are_asked_for_and_are_opened_anew(node: OciNode) -> None:
    occupancy, place = Occupancy(node.hierarchy, most_files=1), Place.of(OWNER, MAIN)
    other = replace(MAIN, id=OTHER, cgroups_path=f"{PATH}-other")
    for one in (MAIN, other):
        node.make_cgroup(one.cgroups_path)
        node.make_process(40 + len(one.cgroups_path), one.cgroups_path)
        events(node, 1, one.cgroups_path)
    before = open_files()
    for _ in range(2):
        assert occupancy.has_process(place)
        assert occupancy.has_process(Place.of(OWNER, other))
    assert open_files() == before + 1
    # Empty, and again with a process: of a container that is started again under its id.
    procs = node.directory(PATH) / "cgroup.procs"
    procs.write_text("")
    events(node, 0)
    assert not occupancy.has_process(place)
    assert open_files() == before
    procs.write_text("43\n")
    events(node, 1)
    assert occupancy.has_process(place)
    occupancy.keep({OTHER})
    assert open_files() == before


def test_a_first_process_is_followed_without_a_file_of_its_cgroup(node: OciNode) -> None:
    """Nothing is read as long as it runs; and when it has ended others may still be there."""
    occupancy, before = Occupancy(node.hierarchy, 1, os.pidfd_open), open_files()
    node.make_cgroup(PATH)
    events(node, 1)
    with running() as process:
        place = Place.of(OWNER, replace(MAIN, pid=process.pid))
        node.make_process(process.pid, PATH)
        for _ in range(2):
            assert occupancy.has_process(place)
            assert open_files() == before + 1
        procs = node.directory(PATH) / "cgroup.procs"
        procs.unlink()
        assert occupancy.have_processes([ID])
    assert not occupancy.have_processes([ID])
    procs.write_text("43\n")
    occupancy.keep({ID})
    assert open_files() == before
    assert occupancy.has_process(place)
    assert occupancy.have_processes([ID])
    occupancy.keep(())
    assert open_files() == before


def test_a_first_process_that_is_anothers_by_now_is_not_followed(node: OciNode) -> None:
    """Its id went to a process of somebody else, which goes on."""
    occupancy = Occupancy(node.hierarchy, 1, os.pidfd_open)
    node.make_cgroup(PATH)
    node.make_process(43, PATH)
    events(node, 1)
    with running() as process:
        node.make_process(process.pid, "/kubepods/burstable/podother/x")
        place = Place.of(OWNER, replace(MAIN, pid=process.pid))
        assert occupancy.has_process(place)
        (node.directory(PATH) / "cgroup.procs").write_text("")
        events(node, 0)
        assert not occupancy.have_processes([ID])
        assert not occupancy.has_process(place)


def test_a_first_process_elsewhere_counts_if_it_is_its_own(node: OciNode) -> None:
    """Sandboxes with a kernel of their own leave the container's cgroup empty, or make none."""
    occupancy = Occupancy(node.hierarchy)
    sandbox = replace(MAIN, pid=42)
    node.make_process(42, "/kubepods/burstable/podweb/sandbox")
    assert occupancy.has_process(Place.of(OWNER, sandbox))
    stranger = replace(pod("other", QosClass.BURSTABLE), cgroup_parent="/kubepods/burstable/podother")
    assert not occupancy.has_process(Place.of(stranger, replace(sandbox, pod_id="other")))
    assert not occupancy.has_process(Place.of(OWNER, replace(sandbox, pid=43)))
    stat = node.root / "proc/42/stat"
    stat.write_text(stat.read_text().replace(") S ", ") Z "))
    assert not occupancy.has_process(Place.of(OWNER, sandbox))


def test_what_came_by_the_hook_is_known_by_its_start(node: OciNode) -> None:
    occupancy = Occupancy(node.hierarchy)
    node.make_process(42, "/elsewhere", start_ticks=1000)
    origin = Hook.of(OWNER, replace(MAIN, pid=42))
    same = replace(origin, start_ticks=1000, cgroups={CPUSET: PATH, MEMORY: PATH})
    assert occupancy.has_process(Place.of(OWNER, MAIN, same))
    assert not occupancy.has_process(Place.of(OWNER, MAIN, replace(same, start_ticks=2000)))


def test_a_container_whose_cgroup_is_not_known_has_none(node: OciNode) -> None:
    assert not Occupancy(node.hierarchy).has_process(Place("x"))
    assert not Occupancy(node.hierarchy).has_process(Place("x", cgroups_path="relative/path"))


@pytest.fixture
def unified() -> Iterator[tuple[Hierarchy, Path]]:
    """A cgroup of this machine's cgroup v2, which may have no controllers."""
    for mount in (Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup")):
        if (mount / "cgroup.controllers").exists() and os.access(mount, os.W_OK):
            directory = mount / f"bayplan-occupancy-{os.getpid()}"
            directory.mkdir()
            mounts = {CPUSET: str(mount), MEMORY: str(mount)}
            yield Hierarchy(Layout.UNIFIED, mounts, {"": "/"}), directory
            directory.rmdir()
            return
    pytest.skip("needs root, and a cgroup v2")


@pytest.mark.root
def test_a_kernel_says_so_at_once(unified: tuple[Hierarchy, Path]) -> None:
    hierarchy, directory = unified
    occupancy = Occupancy(hierarchy, most_files=1)
    place = Place.of(OWNER, replace(MAIN, cgroups_path=f"/{directory.name}"))
    assert not occupancy.has_process(place)
    with subprocess.Popen(["/bin/sleep", "600"]) as process:
        (directory / "cgroup.procs").write_text(str(process.pid))
        assert occupancy.has_process(place)
        process.kill()
    assert not occupancy.has_process(place)
    occupancy.close()
