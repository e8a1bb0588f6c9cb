"""What goes on until it is interrupted: --watch, and top in a terminal."""

import itertools
import os
import pty
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from bayplan.cli.bayplan import main

if TYPE_CHECKING:
    from conftest import Daemon

DRAWN = b"\x1b[H\x1b[J"
FRAMES = 3


def frames(daemon: "Daemon", *words: str) -> bytes:
    """What a terminal gets until the screen was drawn some times; then it is interrupted."""
    ours, theirs = pty.openpty()
    environ = {**os.environ, "TERM": "xterm", "NO_COLOR": "1"}
    command = [sys.executable, "-m", "bayplan.cli.bayplan", *words, "--admin-socket", str(daemon.path)]
    process = subprocess.Popen(command, stdout=theirs, env=environ)
    os.close(theirs)
    shown = b""
    while shown.count(DRAWN) < FRAMES:
        piece = os.read(ours, 1 << 16)
        assert piece
        shown += piece
    process.send_signal(signal.SIGINT)
    while True:
        try:
            shown += os.read(ours, 1 << 16)
        except OSError:  # the end of a terminal is EIO
            break
    os.close(ours)
    assert process.wait() == 128 + signal.SIGINT
    return shown


@pytest.mark.parametrize("verb", ["status", "nodes", "refused"])
def test_it_is_shown_again_and_again_from_the_corner_of_the_screen(daemon: "Daemon", verb: str) -> None:
    first, *rest = frames(daemon, verb, "--watch", "0.01").split(DRAWN)
    assert first == b""
    # The last one may have been interrupted.
    assert all(rest[:-1])


def test_top_goes_on_in_a_terminal_and_is_shown_once_elsewhere(
    daemon: "Daemon", capsys: pytest.CaptureFixture[str]
) -> None:
    def look(number: int) -> dict[str, Any]:
        return {
            "apiVersion": "bayplan/v1",
            "kind": "Top",
            "atMicroseconds": number,
            "nodes": [],
            "containers": [],
        }

    daemon.activity = map(look, itertools.count())
    assert b"No container runs." in frames(daemon, "top", "--interval", "0.01")
    assert main(["top", "--interval", "0.01", "--admin-socket", str(daemon.path)]) == 0
    assert capsys.readouterr().out.count("No container runs.") == 1


def test_a_watch_ends_with_the_daemon(daemon: "Daemon", capsys: pytest.CaptureFixture[str]) -> None:
    """As any other question does that nobody answers."""
    words = ["status", "--watch", "0.01", "--admin-socket", str(daemon.path.with_name("none.sock"))]
    assert main(words) == 3
    assert "systemctl start bayplan" in capsys.readouterr().err
