"""The real daemon with files that are none: it says what is odd, hears its signals, and never hangs."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from bayplan.cli.bayplan import main
from bayplan.cli.client import ask
from bayplan.state import Store
from support.coroutines import PATIENCE_S

pytestmark = pytest.mark.root


class Node:
    """Where a daemon runs, and a service manager that it notifies."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.state = directory / "state"
        self.config = directory / "bayplan.toml"
        self._manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._manager.bind(str(directory / "notify"))
        self._manager.settimeout(PATIENCE_S)

    def argv(self, *more: str) -> list[str]:
        """The daemon's command line."""
        return [
            *(sys.executable, "-m", "bayplan.daemon.baypland", "--config", str(self.config)),
            *("--state-dir", str(self.state), "--admin-socket", str(self.directory / "admin.sock")),
            *("--oci-socket", "none", "--nri-socket", str(self.directory / "nri.sock"), *more),
            *("--agent-socket", "none"),
        ]

    def start(self) -> "subprocess.Popen[str]":
        """A daemon that is ready."""
        environ = {**os.environ, "NOTIFY_SOCKET": str(self.directory / "notify")}
        process = subprocess.Popen(self.argv(), stderr=subprocess.PIPE, text=True, env=environ)
        self.await_notice("READY=1")
        return process

    def run(self, *more: str, within: Sequence[str] = ()) -> "subprocess.CompletedProcess[str]":
        """A daemon that ends by itself."""
        return subprocess.run(
            [*within, *self.argv(*more)], capture_output=True, text=True, check=False, timeout=PATIENCE_S
        )

    def await_notice(self, notice: str) -> None:
        """Wait until the daemon has told the service manager."""
        while not self._manager.recv(4096).decode().startswith(notice):
            pass

    def close(self) -> None:
        """Take the manager away."""
        self._manager.close()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    one = Node(tmp_path)
    one.config.touch()
    yield one
    one.close()


def make_directory_of_drop_ins(path: Path) -> None:
    path.mkdir()
    os.mkfifo(path / "10.conf")


ODD: dict[str, tuple[Callable[[Path], None], str]] = {
    "a FIFO": (os.mkfifo, "found a FIFO"),
    "an endless device": (
        lambda path: path.symlink_to("/dev/zero"),
        "found a device",
    ),
    "a long file": (lambda path: os.truncate(path, 1 << 40), "more than 1 MiB"),
    "a FIFO in a directory": (make_directory_of_drop_ins, "10.conf: the file: found a FIFO"),
    "a link to itself": (lambda path: path.symlink_to(path), "bayplan.toml"),
    "an empty directory": (Path.mkdir, "the directory: found no file"),
}


@pytest.mark.parametrize("kind", ODD)
def test_a_configuration_that_is_no_file_is_named(node: Node, kind: str) -> None:
    make, words = ODD[kind]
    if kind != "a long file":
        node.config.unlink()
    make(node.config)
    for more in ((), ("--check-config",)):
        ended = node.run(*more)
        assert ended.returncode == 2
        assert words in ended.stderr
        assert "Traceback" not in ended.stderr


def test_a_reload_with_a_configuration_that_is_no_file_changes_nothing_and_blocks_nothing(node: Node) -> None:
    with node.start() as process:
        node.config.unlink()
        os.mkfifo(node.config)
        for _ in range(2):
            process.send_signal(signal.SIGHUP)
            node.await_notice("RELOADING=1")
            node.await_notice("READY=1")
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    refused = [line for line in map(json.loads, said.splitlines()) if line["level"] == "error"]
    assert [str(node.config) in line["problem"] for line in refused] == [True, True]


def make_linked_log(state: Path) -> None:
    Store.open(state).close()
    (state / "state.db-wal").symlink_to("/dev/null")


def make_database_linked_to_itself(state: Path) -> None:
    state.mkdir()
    (state / "state.db").symlink_to("state.db")


def make_database_in_a_loop_of_links(state: Path) -> None:
    state.mkdir()
    (state / "state.db").symlink_to("other.db")
    (state / "other.db").symlink_to(state / "state.db")


def make_lock_linked_to_itself(state: Path) -> None:
    state.mkdir()
    (state / "lock").symlink_to("lock")


def make_directory_linked_to_itself(state: Path) -> None:
    state.symlink_to(state)


def make_directory_linked_to_nothing(state: Path) -> None:
    state.symlink_to(state.with_name("nothing"))


def make_fifo_directory(state: Path) -> None:
    os.mkfifo(state)


def make_fifo_lock(state: Path) -> None:
    state.mkdir()
    os.mkfifo(state / "lock")


def make_open_directory(state: Path) -> None:
    state.mkdir()
    state.chmod(0o777)


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (make_linked_log, "state.db-wal: "),
        (make_fifo_lock, "lock: "),
        (make_database_linked_to_itself, "state.db: "),
        (make_database_in_a_loop_of_links, "state.db: "),
        (make_lock_linked_to_itself, "lock: "),
        (make_directory_linked_to_itself, "state: "),
        (make_directory_linked_to_nothing, "state: "),
        (make_fifo_directory, "state: "),
        (make_open_directory, "its mode: found 777"),
    ],
)
def test_an_odd_state_directory_is_named_with_what_to_do_and_not_tried_again(
    node: Node, make: Callable[[Path], None], named: str
) -> None:
    make(node.state)
    ended = node.run()
    # The service manager does not start it again after this status.
    assert ended.returncode == 2
    assert named in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_file_that_is_no_recording_is_not_replaced(node: Node) -> None:
    path = node.directory / "notes"
    path.write_text("somebody's")
    ended = node.run("--record", str(path))
    assert ended.returncode == 2
    assert f"{path}: found " in ended.stderr
    assert path.read_text() == "somebody's"


def test_what_a_killed_daemon_has_recorded_can_be_replayed(node: Node) -> None:
    path = node.directory / "recording"
    node.config.write_text(f'recording = "{path}"\n')
    with node.start() as process:
        process.kill()
        process.communicate(timeout=PATIENCE_S)
    assert main(["replay", str(path)]) == 0


@pytest.mark.parametrize("most_files", [20, 64])
def test_too_few_descriptors_are_named(node: Node, most_files: int) -> None:
    ended = node.run(within=("prlimit", f"--nofile={most_files}:{most_files}"))
    assert ended.returncode == 2
    assert f"open files: found at most {most_files}, expected" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_low_limit_that_may_be_raised_is_raised(node: Node) -> None:
    environ = {**os.environ, "NOTIFY_SOCKET": str(node.directory / "notify")}
    argv = ["prlimit", "--nofile=64:4096", *node.argv()]
    with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True, env=environ) as process:
        node.await_notice("READY=1")
        limits = Path(f"/proc/{process.pid}/limits").read_text()
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    (soft,) = [int(line.split()[3]) for line in limits.splitlines() if line.startswith("Max open files")]
    assert soft > 300


def test_any_number_of_silent_clients_takes_few_descriptors_and_nobodys_answer(node: Node) -> None:
    with node.start() as process:
        path = str(node.directory / "admin.sock")
        silent = []
        for _ in range(400):
            client = socket.socket(socket.AF_UNIX)
            client.setblocking(False)
            silent.append(client)
            with contextlib.suppress(BlockingIOError):
                client.connect(path)
        assert len(list(Path(f"/proc/{process.pid}/fd").iterdir())) < 100
        assert ask(Path(path), "ping", timeout_s=PATIENCE_S)["kind"] == "Pong"
        assert len(list(Path(f"/proc/{process.pid}/fd").iterdir())) < 100
        for client in silent:
            client.close()
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
