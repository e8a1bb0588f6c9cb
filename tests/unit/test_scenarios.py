"""Scenarios that are asked for by name are seldom collected: that all of them can be is seen here."""

import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).parents[2]


def test_every_scenario_can_be_collected() -> None:
    files = [str(path) for path in sorted((PROJECT / "tests/e2e").glob("test_*.py"))]
    argv = [
        sys.executable,
        "-m",
        "pytest",
        "--collect-only",
        "-q",
        "-n",
        "0",
        "-p",
        "no:cacheprovider",
        *files,
    ]
    ended = subprocess.run(argv, cwd=PROJECT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "test_crio.py" in ended.stdout
