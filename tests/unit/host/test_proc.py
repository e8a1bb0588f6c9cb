"""Processes: real children of this one, and trees that show what a real kernel rarely does."""

import contextlib
import errno
import itertools
import os
import subprocess
from pathlib import Path

import pytest

from bayplan.errors import HostError, ParseError
from bayplan.host.kernelfs import AbsentError, RefusedError
from bayplan.host.proc import (
    Process,
    identify,
    read_oom_score_adj,
    runs,
    write_oom_score_adj,
    write_oom_score_adj_of_all,
)

CAP_SYS_RESOURCE = 24
STAT = "77 (a) b (c) S 1 77 77 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 {start} 49336320 4231"


@contextlib.contextmanager
def sleeping():
    process = subprocess.Popen(["sleep", "600"])
    yield process
    process.kill()
    process.wait()


@pytest.fixture
def child():
    with sleeping() as process:
        yield process


@pytest.fixture
def late():
    with sleeping() as process:
        yield process


@pytest.fixture
def tree(tmp_path):
    """A root with one process, 77, started at tick 4711."""
    add(tmp_path, 77)
    return tmp_path


def add(root, pid, start=4711):
    directory = root / "proc" / str(pid)
    directory.mkdir(parents=True)
    (directory / "stat").write_text(STAT.format(start=start) + "\n")
    (directory / "oom_score_adj").write_text("-997\n")


class TestReal:
    def test_a_child_is_raised(self, child):
        process = identify(child.pid)
        before = read_oom_score_adj(process)
        assert before == int(Path("/proc/self/oom_score_adj").read_text())
        # Where tests run with a high score, as in a BestEffort pod, less may not be allowed.
        write_oom_score_adj(process, max(before, 777))
        assert read_oom_score_adj(process) == max(before, 777)
        write_oom_score_adj(process, 1000)
        assert read_oom_score_adj(process) == 1000

    def test_lowering_works_or_says_which_capability_is_missing(self, child):
        process = identify(child.pid)
        path = f"/proc/{child.pid}/oom_score_adj"
        effective = int(Path("/proc/self/status").read_text().partition("CapEff:")[2].split()[0], 16)
        before = read_oom_score_adj(process)
        if effective >> CAP_SYS_RESOURCE & 1:
            write_oom_score_adj(process, -1000)
            assert read_oom_score_adj(process) == -1000
            return
        with pytest.raises(RefusedError) as caught:
            write_oom_score_adj(process, -1000)
        assert str(caught.value) == (
            f"{path}: cannot be lowered to -1000: this program lacks CAP_SYS_RESOURCE"
        )
        assert caught.value.errno == errno.EACCES
        assert read_oom_score_adj(process) == before

    def test_a_process_that_ended_is_absent(self, child):
        process = identify(child.pid)
        child.kill()
        child.wait()
        for act in (
            lambda: identify(child.pid),
            lambda: read_oom_score_adj(process),
            lambda: write_oom_score_adj(process, 1),
        ):
            with pytest.raises(AbsentError):
                act()

    def test_a_process_runs_until_it_ends_not_until_it_is_waited_for(self, child):
        process = identify(child.pid)
        assert runs(process)
        assert not runs(Process(child.pid, process.start_ticks - 1))
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert identify(child.pid) == process
        assert not runs(process)
        child.wait()
        assert not runs(process)

    def test_another_process_with_the_same_id_is_left_alone(self, child):
        process = identify(child.pid)
        before = read_oom_score_adj(process)
        earlier = Process(child.pid, process.start_ticks - 1)
        with pytest.raises(AbsentError, match="is another process by now"):
            write_oom_score_adj(earlier, 1000)
        assert read_oom_score_adj(process) == before

    def test_all_of_a_growing_list_and_none_that_ended(self, child, late):
        ended = subprocess.Popen(["true"])
        ended.wait()
        lists = itertools.chain([[child.pid, ended.pid]], itertools.repeat([child.pid, late.pid]))
        written = write_oom_score_adj_of_all(lambda: next(lists), 1000)
        assert {process.pid for process in written} == {child.pid, late.pid}
        assert [read_oom_score_adj(process) for process in written] == [1000, 1000]


class TestRefused:
    @pytest.mark.parametrize("pid", [1, 0, -1])
    def test_process_one_and_below(self, pid):
        for act in (
            lambda: identify(pid),
            lambda: read_oom_score_adj(Process(pid, 1)),
            lambda: write_oom_score_adj(Process(pid, 1), 5),
            lambda: write_oom_score_adj_of_all(lambda: [pid], 5),
        ):
            with pytest.raises(HostError, match="never a container's"):
                act()

    @pytest.mark.parametrize("value", [-1001, 1001])
    def test_values_out_of_range(self, tree, value):
        with pytest.raises(ParseError, match="-1000 to 1000"):
            write_oom_score_adj(identify(77, tree), value, tree)
        assert (tree / "proc/77/oom_score_adj").read_text() == "-997\n"

    def test_processes_that_keep_coming(self, tree):
        pids = itertools.count(100)

        def one_more():
            pid = next(pids)
            add(tree, pid)
            return range(100, pid + 1)

        with pytest.raises(HostError, match="new processes kept coming"):
            write_oom_score_adj_of_all(one_more, 5, tree)


class TestFiles:
    def test_good(self, tree):
        process = identify(77, tree)
        assert process == Process(77, 4711)
        assert read_oom_score_adj(process, tree) == -997
        write_oom_score_adj(process, -5, tree)
        assert (tree / "proc/77/oom_score_adj").read_text() == "-5"

    @pytest.mark.parametrize("name", ["stat", "oom_score_adj"])
    def test_absent(self, tree, name):
        process = identify(77, tree)
        (tree / "proc/77" / name).unlink()
        with pytest.raises(AbsentError) as caught:
            read_oom_score_adj(process, tree)
        assert caught.value.subject == str(tree / "proc/77" / name)

    @pytest.mark.parametrize(
        ("name", "text"),
        [
            ("stat", "banana"),
            ("stat", STAT.format(start="soon")),
            ("oom_score_adj", "banana"),
            ("oom_score_adj", "--5"),
            ("oom_score_adj", "4000"),
            ("oom_score_adj", ""),
        ],
    )
    def test_garbage(self, tree, name, text):
        process = identify(77, tree)
        (tree / "proc/77" / name).write_text(text)
        with pytest.raises(HostError) as caught:
            read_oom_score_adj(process, tree)
        assert caught.value.subject == str(tree / "proc/77" / name)
        assert not isinstance(caught.value, AbsentError)
