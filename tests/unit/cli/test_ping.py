"""`bayplan ping` as probes run it: exit statuses, and the sentence that kubelet shows."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bayplan.cli.bayplan import main
from support.snapshots import make_snapshot

if TYPE_CHECKING:
    from conftest import Daemon

Capture = pytest.CaptureFixture[str]


def test_a_daemon_that_a_runtime_asks(daemon: "Daemon", capsys: Capture) -> None:
    assert main(["ping", "--runtime", "--admin-socket", str(daemon.path)]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("baypland ")
    assert second.startswith("containerd v2.1.0 asks it over NRI ")


def test_a_daemon_that_nobody_asks_lives_and_is_not_ready(daemon: "Daemon", capsys: Capture) -> None:
    daemon.snapshot = make_snapshot(runtime=None)
    assert main(["ping", "--admin-socket", str(daemon.path)]) == 0
    assert "No container runtime is connected over NRI." in capsys.readouterr().out
    assert main(["ping", "--runtime", "--admin-socket", str(daemon.path)]) == 3
    assert "no container runtime is connected over NRI" in capsys.readouterr().err


def test_no_daemon(tmp_path: Path, capsys: Capture) -> None:
    assert main(["ping", "--admin-socket", str(tmp_path / "none.sock")]) == 3
    assert "no daemon answers" in capsys.readouterr().err
