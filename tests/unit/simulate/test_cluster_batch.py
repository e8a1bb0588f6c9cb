"""`bayplan simulate --cluster` from files to tables: results that are kept and added to, what is refused."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from bayplan.cli.bayplan import main

CLUSTER = """
[[nodes]]
name = "small"
count = 3
[nodes.machine]
threadsPerCore = 2
[[nodes.machine.nodes]]
count = 2
cpus = 8
memory = "16Gi"
"""
TRACE = "name,cpus,memory,arrives,lasts\n" + "".join(
    f"p{number},{1 + number % 6},{(1 + number % 9) << 30},{number * 10},{300 + number}\n"
    for number in range(40)
)
KEYS = ["--set", "topologyManagerPolicy=restricted", "--set", "kubelet:cpuManagerPolicy=static",
        "--set", "kubelet:memoryManagerPolicy=Static"]  # fmt: skip

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    (tmp_path / "cluster.toml").write_text(CLUSTER)
    (tmp_path / "trace.csv").write_text(TRACE)
    return ["simulate", "--cluster", str(tmp_path / "cluster.toml"), "--trace", str(tmp_path / "trace.csv")]


def run(arguments: list[str], capture: Capture) -> dict[str, Any]:
    assert main([*arguments, "-o", "json"]) == 0
    view: dict[str, Any] = json.loads(capture.readouterr().out)
    return view


def without_speed(path: Path) -> dict[str, object]:
    view: dict[str, object] = json.loads(path.read_text())
    del view["speed"]
    return view


def test_results_are_kept_and_added_to(files: list[str], tmp_path: Path, capsys: Capture) -> None:
    results = tmp_path / "results"
    more = ["--engine", "exact", "--engine", "kubelet", *KEYS, "--results", str(results), "--jobs", "2"]
    view = run([*files, "--scheduler", "least-allocated", *more], capsys)
    first = {path: path.stat().st_mtime_ns for path in results.glob("*.json")}
    assert len(first) == len(view["runs"]) == 2
    view = run([*files, "--scheduler", "least-allocated", "--scheduler", "dra", *more], capsys)
    # Claims do not depend on the engine; what was there was not run again.
    assert [(one["scheduler"], one["engine"]) for one in view["runs"]] == [
        ("least-allocated", "exact"), ("least-allocated", "kubelet"), ("dra", "claims"),
    ]  # fmt: skip
    after = {path: path.stat().st_mtime_ns for path in results.glob("*.json")}
    assert first.items() < after.items()
    assert len(after) == 3
    rows = list(csv.DictReader((results / "results.csv").read_text().splitlines()))
    assert {row["scheduler"] for row in rows} == {"least-allocated", "dra"}
    page = (results / "index.html").read_text()
    assert "<svg" in page
    assert "3 nodes, 40 pods" in page
    assert "http" not in page


def test_a_batch_that_was_ended_goes_on_to_the_same_result(
    files: list[str], tmp_path: Path, capsys: Capture
) -> None:
    arguments = [*files, "--scheduler", "ask", "--scheduler", "nrt", "--seed", "4", "--load", "0.9"]
    for name in ("whole", "parts"):
        run([*arguments, "--results", str(tmp_path / name)], capsys)
    ended = min((tmp_path / "parts").glob("*.json"))
    ended.write_text(ended.read_text()[:40])  # as a disk that was full leaves it
    run([*arguments, "--results", str(tmp_path / "parts")], capsys)
    whole, parts = (
        {path.name: without_speed(path) for path in (tmp_path / name).glob("*.json")}
        for name in ("whole", "parts")
    )
    assert whole == parts
    assert (tmp_path / "whole/results.csv").read_text() == (tmp_path / "parts/results.csv").read_text()


def test_the_table(files: list[str], capsys: Capture) -> None:
    assert main(files) == 0
    out = capsys.readouterr().out
    assert "3 nodes; trace of 40 pods" in out
    assert " of 40 " in out


@pytest.mark.parametrize(
    "wrong",
    [
        ["--scheduler", "best"],
        ["--load", "0"],
        ["--load", "nan"],
        ["--nrt-resync", "-1"],
        ["--engine", "best"],
        ["--trace-format", "google"],
        ["--jobs", "-2"],
        ["--set", "topologyManagerPolicy=none-such"],
    ],
)
def test_what_is_wrong_is_one_clear_line(files: list[str], wrong: list[str], capsys: Capture) -> None:
    assert main([*files, *wrong]) == 2
    error = capsys.readouterr().err
    assert wrong[-1].partition("=")[2] or wrong[-1] in error
    assert "Traceback" not in error


def test_options_of_clusters_are_for_clusters(tmp_path: Path, files: list[str], capsys: Capture) -> None:
    assert (
        main(["simulate", "--topology", files[2], "--trace", files[4], "--load", "0.5", "--seed", "3"]) == 2
    )
    error = capsys.readouterr().err
    assert "--load" in error
    assert "--seed" in error
