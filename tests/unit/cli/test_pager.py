"""What is longer than the terminal is shown in a pager: on a terminal of its own, by less itself too."""

import fcntl
import json
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from bayplan.views.status import nodes_view
from support.coroutines import PATIENCE_S
from support.snapshots import make_snapshot

NODES = 40
KUBECTL = """\
#!/bin/sh
case " $* " in *" get "*) exec cat "${{0%/*}}/pods" ;; *) exec cat "${{0%/*}}/answer" ;; esac
"""
PAGER = """\
#!{python}
import os, pathlib, sys
here = pathlib.Path(__file__).parent
(here / "paged").write_text(sys.stdin.read())
(here / "less").write_text(os.environ["LESS"])
"""


def program(directory: Path, name: str, text: str) -> Path:
    path = directory / name
    path.write_text(text.format(python=sys.executable))
    path.chmod(0o755)
    return path


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    running = {"phase": "Running", "containerStatuses": [{"name": "daemon", "state": {"running": {}}}]}
    pods = [
        {"metadata": {"name": f"p{n}"}, "spec": {"nodeName": f"node-{n:03}"}, "status": running}
        for n in range(NODES)
    ]
    (tmp_path / "pods").write_text(json.dumps({"items": pods}))
    (tmp_path / "answer").write_text(json.dumps(nodes_view(make_snapshot())))
    program(tmp_path, "kubectl", KUBECTL)
    return tmp_path


class Terminal:
    """The command on a terminal of so many lines."""

    def __init__(self, directory: Path, lines: int, pager: str) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, 60, 0, 0))
        environment = os.environ | {
            "PATH": f"{directory}:{os.environ['PATH']}", "PAGER": pager, "TERM": "xterm", "NO_COLOR": "1",
        }  # fmt: skip
        environment.pop("COLUMNS", None)
        environment.pop("LINES", None)
        command = [sys.executable, "-m", "bayplan.cli.kubectl_bayplan", "map"]
        self.process = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=subprocess.DEVNULL, env=environment,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509 - for less
        )  # fmt: skip
        os.close(slave)

    def shown_until(self, text: str) -> str:
        """What came on the terminal until *text* did; with "" all until its end."""
        shown, end_s = "", time.monotonic() + PATIENCE_S
        while not text or text not in shown:
            assert time.monotonic() < end_s, shown
            if not select.select([self._master], [], [], 1)[0]:
                continue
            try:
                more = os.read(self._master, 65536)
            except OSError:  # Nobody has it open any more.
                more = b""
            if not more:
                break
            shown += more.decode(errors="replace").replace("\r\n", "\n")
        return shown

    def press(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def end(self) -> int:
        self.shown_until("")
        os.close(self._master)
        return self.process.wait(PATIENCE_S)


def strips(text: str) -> list[str]:
    return [line.split()[0] for line in text.splitlines() if line.startswith("node-")]


def test_a_map_that_does_not_fit_is_handed_to_the_pager_as_it_would_be_written(directory: Path) -> None:
    program(directory, "pages", PAGER)
    small = Terminal(directory, 8, f"{directory}/pages --quietly")
    assert small.end() == 0
    paged = (directory / "paged").read_text()
    assert (directory / "less").read_text() == "FRX"
    (directory / "paged").unlink()
    large = Terminal(directory, 500, f"{directory}/pages")
    assert large.shown_until("") == paged
    assert large.end() == 0
    assert not (directory / "paged").exists()
    assert strips(paged)[0] == "node-000"
    assert len(strips(paged)) > 1


@pytest.mark.parametrize("pager", ["", "nowhere/at-all", "less 'unbalanced"])
def test_without_a_pager_that_can_be_started_all_is_written(directory: Path, pager: str) -> None:
    terminal = Terminal(directory, 8, pager)
    assert strips(terminal.shown_until(""))[0] == "node-000"
    assert terminal.end() == 0


def test_less_itself_shows_a_page_at_a_time_and_may_be_left_at_once(directory: Path) -> None:
    terminal = Terminal(directory, 8, "less")
    first = terminal.shown_until("\n:")
    assert first.count("\n") < 10
    terminal.press("q")
    assert terminal.end() == 0
