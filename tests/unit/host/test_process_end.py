"""Processes of a cgroup end by themselves, or are killed; never those of anybody else."""

import contextlib
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bayplan.errors import HostError
from bayplan.host.container_processes import end_processes
from bayplan.host.shadow_mode import ShadowModeError, shadow_mode
from support.oci_node import OWN_CGROUP, OciNode

PATH = "/kubepods/pod1/c1"
DOCILE = "import time; print(1, flush=True); time.sleep(600)"
STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {DOCILE}"


def begun(program: str) -> subprocess.Popen[bytes]:
    """The program, once it runs."""
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process.stdout as stream:
        stream.readline()
    return process


class Node:
    """A cgroup in a directory with real processes; time passes only while somebody waits for their end."""

    def __init__(self, root: Path, programs: list[str], *, kills: bool) -> None:
        self.node = OciNode(root)
        self.directory = self.node.make_cgroup(PATH)
        self.alive = [begun(one) for one in programs]
        if kills:
            (self.directory / "cgroup.kill").write_text("")
        self.now_s = 0.0
        self.ended: list[int] = []
        self.write()

    def write(self) -> None:
        (self.directory / "cgroup.procs").write_text("".join(f"{one.pid}\n" for one in self.alive))

    def pause(self, seconds: float) -> None:
        """The kernel notices who has ended, and carries out cgroup.kill."""
        self.now_s += seconds
        kill = self.directory / "cgroup.kill"
        if kill.exists() and kill.read_text() == "1":
            for one in self.alive:
                one.kill()
        for one in list(self.alive):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.ended.append(one.wait(0.5))
                self.alive.remove(one)
        self.write()

    def end(self, grace_s: float = 1.0) -> str:
        return end_processes(self.node.hierarchy, [PATH], grace_s, lambda: self.now_s, self.pause)


@pytest.fixture
def started(tmp_path: Path) -> Iterator[list[Node]]:
    nodes: list[Node] = []
    yield nodes
    for node in nodes:
        for one in node.alive:
            one.kill()
            one.wait()


def test_who_ends_on_sigterm_is_not_killed(tmp_path: Path, started: list[Node]) -> None:
    started.append(node := Node(tmp_path, [DOCILE, DOCILE], kills=False))
    assert node.end(grace_s=30) == ""
    assert node.ended == [-signal.SIGTERM] * 2


@pytest.mark.parametrize("kills", [True, False], ids=["cgroup.kill", "older kernel"])
def test_who_does_not_is_killed_after_the_grace_period(
    tmp_path: Path, started: list[Node], kills: bool
) -> None:
    started.append(node := Node(tmp_path, [STUBBORN], kills=kills))
    assert node.end(grace_s=0.3) == ""
    assert node.ended == [-signal.SIGKILL]


def test_who_is_still_there_is_named(tmp_path: Path) -> None:
    node = OciNode(tmp_path)
    node.make_cgroup(PATH)
    stuck = begun(DOCILE)
    now = [0.0]

    def pause(seconds: float) -> None:
        now[0] += seconds

    try:
        # A zombie that nobody waits for, for the files' sake.
        (node.directory(PATH) / "cgroup.procs").write_text(f"{stuck.pid}\n")
        said = end_processes(node.hierarchy, [PATH], 1.0, lambda: now[0], pause)
        assert said == f"processes {stuck.pid} were killed and are still there after 10 s"
    finally:
        stuck.kill()
        stuck.wait()


def test_a_cgroup_that_is_gone_has_nobody(tmp_path: Path) -> None:
    assert end_processes(OciNode(tmp_path).hierarchy, [PATH], 1.0) == ""


def test_neither_ourselves_nor_anybody_in_shadow_mode(tmp_path: Path, started: list[Node]) -> None:
    started.append(node := Node(tmp_path, [DOCILE], kills=False))
    with pytest.raises(HostError, match="nobody there is ended"):
        end_processes(node.node.hierarchy, [PATH, OWN_CGROUP], 1.0)
    with shadow_mode(), pytest.raises(ShadowModeError):
        node.end()
    assert node.alive[0].poll() is None
