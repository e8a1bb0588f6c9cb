"""requirements.lock has every package that pyproject.toml asks for and what these depend on, with hashes.

This environment was made from it.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping
from importlib.metadata import requires, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import NormalizedName, canonicalize_name

PROJECT = Path(__file__).parents[2]
LOCK = (PROJECT / "requirements.lock").read_text()
ENTRIES = {
    canonicalize_name(entry.name): entry
    for entry in (Requirement(line.removesuffix(" \\")) for line in LOCK.splitlines() if line[0].isalnum())
}


def wanted() -> Iterator[Requirement]:
    """What the project itself, its agent, its build and its development ask for."""
    declared = tomllib.loads((PROJECT / "pyproject.toml").read_text())
    groups: Mapping[str, list[object]] = declared["dependency-groups"]
    texts = [*declared["project"]["dependencies"], *declared["build-system"]["requires"]]
    texts += [text for extra in declared["project"]["optional-dependencies"].values() for text in extra]
    texts += [text for group in groups.values() for text in group if isinstance(text, str)]
    yield from map(Requirement, texts)


def test_every_wanted_package_is_locked_in_a_version_that_fits() -> None:
    for requirement in wanted():
        (pinned,) = ENTRIES[canonicalize_name(requirement.name)].specifier
        assert pinned.operator == "=="
        assert requirement.specifier.contains(pinned.version), f"{requirement}: locked is {pinned.version}"


def test_every_file_is_named_by_hash_and_none_by_address() -> None:
    assert re.search(r"://|--(?:extra-)?index|--find-links|@", LOCK) is None
    for block in re.split(r"^(?=\w)", LOCK, flags=re.MULTILINE)[1:]:
        name, *hashes = block.replace(" \\\n", "\n").splitlines()
        assert hashes, f"{name} has no hash"
        for line in hashes:
            assert re.fullmatch(r"    --hash=sha256:[0-9a-f]{64}", line), f"{name}: {line}"


@pytest.mark.parametrize("name", sorted(ENTRIES))
def test_the_environment_has_the_locked_version(name: NormalizedName) -> None:
    entry = ENTRIES[name]
    if entry.marker is not None and not entry.marker.evaluate():
        return  # for another system
    assert entry.specifier.contains(version(name)), "run `make setup`"
    for needed in map(Requirement, requires(name) or ()):
        if needed.marker is None or needed.marker.evaluate({"extra": ""}):
            assert canonicalize_name(needed.name) in ENTRIES
