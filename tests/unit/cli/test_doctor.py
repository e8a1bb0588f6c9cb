"""`bayplan doctor` as people run it: tables, JSON, exit statuses; what it finds is tested in service."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bayplan.cli.bayplan import main
from bayplan.placement.ledger_check import OVERCLAIMED, WRONG_TOTAL, Fault
from support.snapshots import make_snapshot

if TYPE_CHECKING:
    from conftest import Daemon

Capture = pytest.CaptureFixture[str]


def test_a_node_without_a_daemon(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "etc/crio").mkdir(parents=True)
    arguments = ["doctor", "--root", str(tmp_path), "--admin-socket", str(tmp_path / "none.sock")]
    assert main(arguments) == 1
    assert capsys.readouterr().out.splitlines() == [
        "ENGINE  VERSION  NRI  HOOK  PRECREATE  WRAPPER",
        "CRI-O   -        -    -     -          -",
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
    assert main([*arguments, "--json"]) == 0
    (believed,) = json.loads(capsys.readouterr().out)["engines"]
    assert (believed["name"], believed["version"], believed["nri"]) == ("containerd", "v2.1.0", "connected")
    (root / "etc/containerd").mkdir(parents=True)
    (root / "etc/containerd/config.toml").write_text("version = 3\n")
    assert main(arguments) == 0
    heading, engine, *rest = capsys.readouterr().out.splitlines()
    assert dict(zip(heading.split(), engine.split(), strict=True)) == {
        "ENGINE": "containerd",
        "VERSION": "v2.1.0",
        "NRI": "connected",
        "HOOK": "-",
        "PRECREATE": "-",
        "WRAPPER": "-",
    }
    assert rest == ["", "Nothing is wrong."]
    daemon.snapshot = make_snapshot(runtime=None)
    assert main([*arguments, "--json"]) == 4
    assert {one["subject"] for one in json.loads(capsys.readouterr().out)["findings"]} == {"baypland"}


def test_what_does_not_hold_of_the_ledger(daemon: "Daemon", tmp_path: Path, capsys: Capture) -> None:
    arguments = ["doctor", "--root", str(tmp_path), "--admin-socket", str(daemon.path), "--json"]
    for code, level, status in ((OVERCLAIMED, "warning", 4), (WRONG_TOTAL, "error", 1)):
        daemon.faults = (Fault(code, "what was found"),)
        assert main(arguments) == status
        (finding,) = json.loads(capsys.readouterr().out)["findings"]
        assert (finding["subject"], finding["level"], finding["text"]) == ("ledger", level, "what was found")
        assert bool(finding["advice"]) == (level == "error")
