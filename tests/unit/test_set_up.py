"""Set-up of the machines of tests/e2e: what it counts, and what is left of one that was killed."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
PREPARE = PROJECT / "tests" / "e2e" / "prepare.py"
SET_UP = PROJECT / "packaging" / "dev" / "setup.sh"
BUILDS = """
from pathlib import Path
from testbed.cache import artefact
from testbed.shell import build_command

def build(path):
    path.write_text("half")
    build_command("The program", ["sh", "-c", {script!r}])
    path.write_text("whole")

print(artefact("program", {{"version": 1}}, build).read_text())
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {
        **os.environ,
        "BAYPLAN_CACHE": str(tmp_path / "cache"),
        "PYTHONPATH": str(PREPARE.parent),
        "CONTAINERD_VERSIONS": "2.1 1.7 2.3",
    }


@pytest.mark.parametrize("purpose", ["run", "e2e", "cluster"])
def test_both_halves_count_the_same_steps(purpose: str, environment: dict[str, str]) -> None:
    counted = subprocess.run(
        [sys.executable, PREPARE, "--count", purpose],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(counted.stdout) == int(re.findall(rf"\[{purpose}\]=(\d+)", SET_UP.read_text())[0])
    assert not Path(environment["BAYPLAN_CACHE"]).exists()


@pytest.mark.root
def test_a_killed_build_leaves_no_process_and_the_next_one_clears_up(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    # Both hold the writing end of the pipe as long as they live.
    script = f"exec 9>{fifo}; echo begun >&9; sleep infinity & exec sleep infinity"
    builder = subprocess.Popen(
        [sys.executable, "-c", BUILDS.format(script=script)], env=environment, stdout=subprocess.DEVNULL
    )
    with fifo.open() as alive:
        assert alive.readline() == "begun\n"
        builder.send_signal(signal.SIGKILL)
        assert alive.read() == ""
    builder.wait()
    kept = Path(environment["BAYPLAN_CACHE"]) / "program"
    assert [entry.name.startswith(".") for entry in kept.iterdir()] == [True]
    again = subprocess.run(
        [sys.executable, "-c", BUILDS.format(script="true")],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert again.stdout == "whole\n"
    assert [entry.name.startswith(".") for entry in kept.iterdir()] == [False]


def test_a_failed_build_shows_the_end_of_its_log(environment: dict[str, str]) -> None:
    failed = subprocess.run(
        [sys.executable, "-c", BUILDS.format(script="seq 100; exit 3")],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert failed.returncode == 1
    assert "The program could not be built" in failed.stderr
    assert "    100\n" in failed.stderr
    (log,) = re.findall(r"\(all of it: (.+)\)", failed.stderr)
    assert Path(log).read_text().splitlines() == [str(number) for number in range(1, 101)]
