"""The real daemon and SIGHUP: at any time, with files of any kind, it goes on."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

PATIENCE_S = 60


class Reloaded:
    """A baypland process whose configuration a test rewrites."""

    def __init__(self, directory: Path) -> None:
        self.config = directory / "bayplan.toml"
        self._log = directory / "log"
        self.config.touch()
        argv = [sys.executable, "-m", "bayplan.daemon.main", "--config", str(self.config)]
        for flag in ("admin", "nri", "oci"):
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
