import os
import signal
import subprocess
import sys

import pytest

from bayplan.errors import HostError, UnavailableError
from bayplan.state.directory import HOLDER, DirectoryLock

HOLD = """
import sys
from pathlib import Path
from bayplan.state.directory import DirectoryLock
lock = DirectoryLock(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def hold(directory):
    child = subprocess.Popen(
        [sys.executable, "-c", HOLD, directory], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout.readline() == "held\n"
    return child


def end(child):
    child.communicate()


def test_the_second_instance_is_told_who_holds_it(tmp_path):
    child = hold(tmp_path)
    try:
        with pytest.raises(UnavailableError) as caught:
            DirectoryLock(tmp_path)
        assert str(caught.value) == (
            f"{tmp_path}: in use by another instance, pid {child.pid}; only one may run on a node"
        )
        assert caught.value.exit_code == 3
    finally:
        end(child)


def test_the_kernel_gives_the_lock_back_when_the_holder_is_killed(tmp_path):
    child = hold(tmp_path)
    child.send_signal(signal.SIGKILL)
    end(child)
    assert (tmp_path / HOLDER).read_text() == f"{child.pid}\n"
    with DirectoryLock(tmp_path):
        assert (tmp_path / HOLDER).read_text() == f"{os.getpid()}\n"


def test_deleting_the_file_does_not_let_a_second_one_in(tmp_path):
    with DirectoryLock(tmp_path):
        (tmp_path / HOLDER).unlink()
        with pytest.raises(UnavailableError, match="pid unknown"):
            DirectoryLock(tmp_path)


def test_garbage_in_the_file_is_not_shown_as_a_pid(tmp_path):
    with DirectoryLock(tmp_path):
        (tmp_path / HOLDER).write_text("banana\n")
        with pytest.raises(UnavailableError, match="pid unknown"):
            DirectoryLock(tmp_path)


def test_nothing_is_left_of_an_earlier_holder(tmp_path):
    (tmp_path / HOLDER).write_text("99999999999999\n")
    with DirectoryLock(tmp_path):
        assert (tmp_path / HOLDER).read_text() == f"{os.getpid()}\n"


def test_closing_gives_it_back_and_may_be_done_twice(tmp_path):
    lock = DirectoryLock(tmp_path)
    lock.close()
    lock.close()
    with DirectoryLock(tmp_path):
        pass


def test_it_is_not_inherited_by_programs_we_start(tmp_path):
    with DirectoryLock(tmp_path):
        child = subprocess.Popen(["sleep", "600"], close_fds=False)
    try:
        with DirectoryLock(tmp_path):
            pass
    finally:
        child.kill()
        child.wait()


def test_a_directory_that_is_not_there(tmp_path):
    with pytest.raises(HostError, match="cannot be opened") as caught:
        DirectoryLock(tmp_path / "absent")
    assert caught.value.subject == str(tmp_path / "absent")


def test_a_holder_file_that_cannot_be_written_gives_the_lock_back(tmp_path):
    (tmp_path / HOLDER).symlink_to("/dev/null")
    with pytest.raises(HostError, match="cannot be written"):
        DirectoryLock(tmp_path)
    (tmp_path / HOLDER).unlink()
    with DirectoryLock(tmp_path):
        pass
