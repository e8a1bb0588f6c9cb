"""Scenarios that are asked for by name are seldom collected: that all of them can be is seen here. And all
have the kernel as its users have it.
"""

import re
import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).parents[2]
ONCE = {"drop_caches", "stat_refresh", "compact_memory"}
"""What is written there is done once, and no setting."""


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


def test_no_scenario_changes_how_the_kernel_deals_with_memory() -> None:
    """A test that needs other settings than its users have proves nothing about theirs."""
    for path in sorted((PROJECT / "tests/e2e").rglob("*")):
        if path.suffix in (".py", ".sh", ".go"):
            named = re.findall(r"(?:/proc/sys/vm/|\bvm\.)([a-z_]+)", path.read_text())
            assert set(named) <= ONCE, path
