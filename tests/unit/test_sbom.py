"""The bill of materials has what bayplan needs at run time, and nothing else."""

import json
import subprocess
import sys
import tomllib
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PROJECT = Path(__file__).parents[2]
DECLARED = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
WANTED = {
    canonicalize_name(Requirement(text).name)
    for text in (*DECLARED["dependencies"], *DECLARED["optional-dependencies"]["agent"])
}
# What they need themselves.
NEEDED = {"typing-extensions"}


def bill(directory: Path, lock: Path = PROJECT / "requirements.lock") -> "subprocess.CompletedProcess[str]":
    """What is said of the packages in *directory*."""
    program = PROJECT / "packaging" / "sbom.py"
    argv = [sys.executable, program, "--version", "1.2", "--packages", directory, "--lock", lock]
    return subprocess.run(argv, capture_output=True, text=True, check=False)


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """The packages of this environment that are installed on nodes."""
    for name in WANTED | NEEDED:
        metadata = Path(str(distribution(name).locate_file("")))
        (found,) = (
            path
            for path in metadata.glob("*.dist-info")
            if canonicalize_name(path.name.split("-")[0]) == name
        )
        (tmp_path / found.name).symlink_to(found)
    return tmp_path


def test_every_package_is_there_with_version_hashes_and_licenses(packages: Path) -> None:
    finished = bill(packages)
    assert finished.returncode == 0, finished.stderr
    document: dict[str, Any] = json.loads(finished.stdout)
    components = {one["name"]: one for one in document["components"]}
    assert components.keys() == WANTED | NEEDED
    for name, one in components.items():
        assert one["purl"] == f"pkg:pypi/{name}@{distribution(name).version}"
        assert one["licenses"]
        (reference,) = one["externalReferences"]
        assert reference["hashes"]
    dependencies = {one["ref"]: one["dependsOn"] for one in document["dependencies"]}
    assert dependencies["pkg:pypi/bayplan@1.2"] == sorted(one["purl"] for one in components.values())
    assert dependencies[components["grpcio"]["purl"]] == [components["typing-extensions"]["purl"]]


def test_it_is_the_same_each_time(packages: Path) -> None:
    assert bill(packages).stdout == bill(packages).stdout


def test_a_package_that_is_not_locked_is_an_error(packages: Path, tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    lock.write_text("h11==0.0.1 \\\n    --hash=sha256:" + "0" * 64 + "\n")
    finished = bill(packages, lock)
    assert finished.returncode == 1
    assert "KeyError" in finished.stderr


def test_the_debian_package_names_the_authors_of_each() -> None:
    text = (PROJECT / "packaging" / "debian" / "copyright").read_text().lower()
    assert [name for name in WANTED | NEEDED if f"{name}" not in text] == []
