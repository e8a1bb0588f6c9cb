"""`bayplan map` writes the picture of the daemon's nodes."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bayplan.cli.bayplan import main
from bayplan.drawing.maps import machine_map
from bayplan.errors import EXIT_FAILURE
from bayplan.views.status import nodes_view

if TYPE_CHECKING:
    from conftest import Daemon

Capture = pytest.CaptureFixture[str]


def test_the_picture_is_written(daemon: "Daemon", tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "node.svg"
    assert main(["map", "--svg", str(file), "--admin-socket", str(daemon.path)]) == 0
    assert file.read_text() == machine_map(nodes_view(daemon.snapshot)["nodes"])
    assert capsys.readouterr().out == f"{file}: 2 NUMA nodes\n"


def test_a_file_that_cannot_be_written_is_named(daemon: "Daemon", tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "nowhere" / "node.svg"
    assert main(["map", "--svg", str(file), "--admin-socket", str(daemon.path)]) == EXIT_FAILURE
    assert str(file) in capsys.readouterr().err
