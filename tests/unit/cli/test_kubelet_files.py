"""`bayplan import-state` reads kubelet's files, `bayplan export-state` writes them: these, and whole."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bayplan.cli.bayplan import main
from bayplan.errors import EXIT_CONFIG

Capture = pytest.CaptureFixture[str]
Serve = Callable[[bytes], Path]

STATES = {"cpu_manager_state": {"policyName": "static"}, "memory_manager_state": {"policyName": "Static"}}
GIVEN = {"containers": ["default/web/main"], "files": STATES}
TAKEN = {
    "dryRun": True,
    "containers": [
        {"id": "a", "name": "default/a-very-long-name-of-a-pod/main", "cpus": "2-3", "mems": "1"},
        {"id": "b", "name": "default/b/main", "cpus": "", "mems": None},
    ],
    "sharing": ["default/c/main"],
    "notRunning": ["1ca45a945a3bf4e2db7478429a628bb5/main"],
}


def answer(kind: str, said: dict[str, Any]) -> bytes:
    return json.dumps({"apiVersion": "bayplan/v1", "kind": kind, **said}).encode() + b"\n"


def export(serve_once: Serve, directory: Path) -> int:
    admin = serve_once(answer("ExportState", GIVEN))
    return main(["export-state", str(directory), "--admin-socket", str(admin)])


def test_both_files_are_written_for_root_alone(tmp_path: Path, serve_once: Serve, capsys: Capture) -> None:
    directory = tmp_path / "kubelet"
    directory.mkdir()
    assert export(serve_once, directory) == 0
    assert {path.name: json.loads(path.read_text()) for path in directory.iterdir()} == STATES
    assert {path.stat().st_mode & 0o777 for path in directory.iterdir()} == {0o600}
    assert "with 1 container." in capsys.readouterr().out


def test_files_of_managers_that_are_switched_off_are_replaced(tmp_path: Path, serve_once: Serve) -> None:
    for name, policy in zip(STATES, ("none", "None"), strict=True):
        (tmp_path / name).write_text(json.dumps({"policyName": policy, "checksum": 1}))
    (tmp_path / ".cpu_manager_state.bayplan").write_text("cut off")
    assert export(serve_once, tmp_path) == 0
    assert {name: json.loads((tmp_path / name).read_text()) for name in STATES} == STATES
    assert not (tmp_path / ".cpu_manager_state.bayplan").exists()


@pytest.mark.parametrize(
    ("make", "found"),
    [
        (lambda path: path.write_text('{"policyName": "static"}'), "the file of policy 'static'"),
        (lambda path: path.write_text("notes"), "a file that is no state of kubelet"),
        (lambda path: path.write_text("[]"), "the file of policy None"),
        (os.mkfifo, "a FIFO"),
        (lambda path: path.symlink_to("/dev/null"), "a symbolic link"),
    ],
)
def test_nothing_else_is_replaced_and_all_of_it_is_named(
    tmp_path: Path, serve_once: Serve, capsys: Capture, make: Callable[[Path], object], found: str
) -> None:
    for name in STATES:
        make(tmp_path / name)
    assert export(serve_once, tmp_path) == EXIT_CONFIG
    said = capsys.readouterr().err
    assert "2 problems:" in said
    for name in STATES:
        assert f"{name}: found {found}, expected nothing, or the file of a manager" in said


@pytest.mark.parametrize("width", [60, 80])
def test_what_would_be_taken_over_fits(
    tmp_path: Path, serve_once: Serve, capsys: Capture, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    for name in STATES:
        (tmp_path / name).write_text("{}")
    admin = serve_once(answer("ImportState", TAKEN))
    words = ["import-state", "--kubelet-directory", str(tmp_path), "--admin-socket", str(admin)]
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= width
    text = " ".join(shown.split())
    for words_of_it in ("2-3 1", "shared all", "default/c/main.", "Nothing was changed."):
        assert words_of_it in text


def test_all_files_that_cannot_be_read_are_named(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "memory_manager_state").mkdir()
    assert main(["import-state", "--kubelet-directory", str(tmp_path)]) == EXIT_CONFIG
    said = capsys.readouterr().err
    assert "cpu_manager_state: found No such file or directory" in said
    assert "memory_manager_state: found a directory" in said


def test_the_other_file_may_be_left_out(tmp_path: Path, serve_once: Serve) -> None:
    (tmp_path / "cpu_manager_state").write_text("{}")
    admin = serve_once(answer("ImportState", {**TAKEN, "dryRun": False}))
    words = ["--kubelet-directory", str(tmp_path), "--only=cpu", "--yes", "--admin-socket", str(admin)]
    assert main(["import-state", *words]) == 0


CLAIMS = {
    "dryRun": True,
    "claims": [
        {
            "name": "default/cpus",
            "uid": "u-1",
            "cpus": "2-3",
            "nodes": "0",
            "containers": ["default/web/main"],
        }
    ],
    "leftOut": [{"name": "batch/solver", "uid": "u-2", "problem": "it has CPU 5, which is reserved here"}],
    "sharing": ["default/other/main"],
}


def left_by_the_driver(directory: Path) -> list[str]:
    kubelet, cdi = directory / "kubelet", directory / "cdi"
    kubelet.mkdir()
    cdi.mkdir()
    (kubelet / "dra_manager_state").write_text("{}")
    for name in ("dra.k8s.io-cpu_claim-x.json", "dra.cpu_metadata_x_r.json", "nvidia.yaml", "vendor.json"):
        (cdi / name).write_text("{}")
    return ["--only", "claims", "--kubelet-directory", str(kubelet), "--cdi-directory", str(cdi)]


def test_what_becomes_of_claims_is_one_report(tmp_path: Path, serve_once: Serve, capsys: Capture) -> None:
    options = left_by_the_driver(tmp_path)
    admin = serve_once(answer("ImportClaims", CLAIMS))
    assert main(["import-state", *options, "--admin-socket", str(admin)]) == 0
    shown = capsys.readouterr().out
    for word in ("default/cpus", "batch/solver", "CPU 5", "default/other/main", "--yes"):
        assert word in shown


def test_of_claims_that_cannot_be_read_each_file_is_named(tmp_path: Path, capsys: Capture) -> None:
    options = left_by_the_driver(tmp_path)
    (tmp_path / "kubelet/dra_manager_state").unlink()
    assert main(["import-state", *options]) == EXIT_CONFIG
    assert "dra_manager_state" in capsys.readouterr().err
    assert main(["import-state", *options[:-1], str(tmp_path / "nowhere")]) == EXIT_CONFIG
    assert "nowhere" in capsys.readouterr().err
