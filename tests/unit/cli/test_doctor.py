"""`bayplan doctor` as people run it: tables, JSON, exit statuses; what it finds is tested in service."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bayplan.cli.main import main

if TYPE_CHECKING:
    from conftest import Daemon

Capture = pytest.CaptureFixture[str]


def test_a_node_without_a_daemon(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "etc/crio").mkdir(parents=True)
    arguments = ["doctor", "--root", str(tmp_path), "--admin-socket", str(tmp_path / "none.sock")]
    assert main(arguments) == 1
    assert capsys.readouterr().out.splitlines() == [
        "ENGINE  NRI  HOOK  PRECREATE  WRAPPER",
        "CRI-O   -    -     -          -",
        "",
        "error: baypland: no daemon answers; nothing is decided",
        "  systemctl start bayplan; the journal says why it stopped (journalctl -u bayplan)",
    ]
    assert main([*arguments, "--output", "json"]) == 1
    assert json.loads(capsys.readouterr().out)["health"] == "error"


def test_a_daemon_that_answers(daemon: "Daemon", tmp_path: Path, capsys: Capture) -> None:
    """The daemon of these tests is connected to a containerd."""
    root = tmp_path / "root"
    arguments = ["doctor", "--root", str(root), "--admin-socket", str(daemon.path)]
    assert main(arguments) == 4
    out = capsys.readouterr().out
    assert out.startswith(
        "No container engine was found.\n\nwarning: baypland: the daemon runs, but no engine"
    )
    (root / "etc/containerd").mkdir(parents=True)
    (root / "etc/containerd/config.toml").write_text("version = 3\n")
    assert main(arguments) == 0
    assert capsys.readouterr().out.splitlines() == [
        "ENGINE      NRI        HOOK  PRECREATE  WRAPPER",
        "containerd  connected  -     -          -",
        "",
        "Nothing is wrong.",
    ]
