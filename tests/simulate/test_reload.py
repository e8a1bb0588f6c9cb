"""The real daemon and SIGHUP: at any time, with files of any kind, it goes on."""

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bayplan.agent_protocol import Subscribe, encode
from bayplan.cli.client import ask
from support.coroutines import PATIENCE_S


class Reloaded:
    """A baypland process whose configuration a test rewrites."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.config = directory / "bayplan.toml"
        self._log = directory / "log"
        self.config.touch()
        argv = [sys.executable, "-m", "bayplan.daemon.baypland", "--config", str(self.config)]
        for flag in ("admin", "agent", "nri", "oci"):
            argv += [f"--{flag}-socket", str(directory / f"{flag}.sock")]
        with self._log.open("wb") as log:
            self.process = subprocess.Popen([*argv, "--state-dir", str(directory / "state")], stderr=log)

    def said(self, text: str) -> bool:
        return text in self._log.read_text()

    def reload_until(self, text: str) -> None:
        """SIGHUP, again and again, until the log has *text*."""
        end = time.monotonic() + PATIENCE_S
        while not self.said(text):
            assert self.process.poll() is None, self._log.read_text()
            assert time.monotonic() < end, self._log.read_text()
            self.process.send_signal(signal.SIGHUP)
            time.sleep(0.05)

    def await_said(self, text: str) -> None:
        end = time.monotonic() + PATIENCE_S
        while not self.said(text):
            assert time.monotonic() < end
            time.sleep(0.001)


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Reloaded]:
    made = Reloaded(tmp_path)
    yield made
    made.process.kill()
    made.process.wait()


def test_a_reload_at_any_time_with_any_file(daemon: Reloaded) -> None:
    daemon.await_said('"started"')
    daemon.process.send_signal(signal.SIGHUP)
    for number, broken in enumerate(
        ("logLevel = ", "logLevel = 'loud'", f"a = {'[' * 9000}", "a = " + "9" * 9000)
    ):
        daemon.config.write_text(f"# {number}\n{broken}\n")
        daemon.reload_until(("at line 2", "'loud'", "recursion", "4300 digits")[number])
    assert daemon.said("settings not taken over; those before stay in force")
    assert not daemon.said("Traceback")
    daemon.config.write_text("stateDirectory = '/elsewhere'\nlogLevel = 'debug'\nlogFormat = 'text'\n")
    daemon.reload_until('"settings taken over"')
    daemon.reload_until("changed settings wait for a restart")
    assert daemon.said('["logFormat"]')  # the directory comes from a flag, which wins
    daemon.process.terminate()
    assert daemon.process.wait(PATIENCE_S) == 0


def test_rules_follow_the_kubelet_that_the_agent_names(daemon: Reloaded) -> None:
    """Those of the files as they were read last: what has been written since is not taken over with it."""
    daemon.await_said('"started"')

    while not (daemon.directory / "agent.sock").exists():
        time.sleep(0.01)

    def agent_says(version: str, log: str) -> dict[str, object]:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(PATIENCE_S)
            connection.connect(str(daemon.directory / "agent.sock"))
            connection.sendall(encode(Subscribe(kubelet_version=version)))
            daemon.await_said(log)
        status = ask(daemon.directory / "admin.sock", "status")
        return {"version": status["kubelet"]["version"], "known": status["kubelet"]["knownBy"] is not None}

    daemon.config.write_text("kubeletVersion = '1.34'\n")
    assert agent_says("v1.36.3", '"rules": "1.36"') == {"version": "1.36", "known": True}
    assert agent_says("v1.37.2", '"rules": "1.37"') == {"version": "1.37", "known": True}
    assert agent_says("devel", "'devel'") == {"version": "1.37", "known": True}
    # And what is configured wins.
    daemon.reload_until('"kubelet": "1.34"')
    assert agent_says("v1.35.1", '"version": "v1.35.1"') == {"version": "1.34", "known": True}
    daemon.process.terminate()
    assert daemon.process.wait(PATIENCE_S) == 0
