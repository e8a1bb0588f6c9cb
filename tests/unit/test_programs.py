"""The commands of the Debian package and of the test bed's machines: a program for each entry point of the
wheel, which sees nothing else of what a machine has of Python."""

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
ENTRY_POINTS = "[console_scripts]\nfirst = ours.main:main\nsecond = ours.main:other\n"
MODULE = """\
import json, sys

def main():
    print(json.dumps([sys.path, sys.argv[1:], "site" in sys.modules]))
    return 3

def other():
    return "failed"
"""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """With a wheel, what it installs in ``lib``, and what was made of it in ``bin``."""
    wheel = tmp_path / "ours-1.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("ours-1.dist-info/entry_points.txt", ENTRY_POINTS)
    (tmp_path / "lib" / "ours").mkdir(parents=True)
    (tmp_path / "lib" / "ours" / "main.py").write_text(MODULE)
    (tmp_path / "bin").mkdir()
    argv = [sys.executable, PROJECT / "packaging/programs.py", wheel, tmp_path / "lib", tmp_path / "bin"]
    subprocess.run(argv, check=True)
    return tmp_path


def run(program: Path, *words: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([program, *words], env=environment, capture_output=True, text=True, check=False)


def test_every_entry_point_is_a_program_that_ends_as_its_function_does(directory: Path) -> None:
    first, second = sorted((directory / "bin").iterdir())
    assert (first.name, second.name) == ("first", "second")
    finished = run(first, "a", "--b")
    assert finished.returncode == 3, finished.stderr
    assert json.loads(finished.stdout)[1] == ["a", "--b"]
    assert (run(second).returncode, run(second).stderr) == (1, "failed\n")


def test_it_sees_its_own_packages_first_and_nothing_of_the_environment(directory: Path) -> None:
    (directory / "other").mkdir()
    (directory / "other" / "json.py").write_text("raise SystemExit('taken from elsewhere')")
    (directory / "bin" / "json.py").write_text("raise SystemExit('taken from beside the program')")
    finished = run(directory / "bin" / "first", PYTHONPATH=str(directory / "other"), PYTHONHOME="/nowhere")
    assert finished.returncode == 3, finished.stderr
    path, _, has_site = json.loads(finished.stdout)
    assert path[0] == str(directory / "lib")
    assert not has_site
    assert not [one for one in path if "-packages" in one or one == str(directory / "bin")]
