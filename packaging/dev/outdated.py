"""What this tree pins, and what is newer: `make outdated`.

Pinned are the Python packages of requirements.lock, the modules that each go.mod requires itself, and what
the test bed builds from modules (Kubernetes, etcd, containerd, CRI-O, cri-tools). The registries are asked
by the clients that install from them, `uv` and `go list`. What could not be asked is `unknown`, with what the
client said; what Debian brings is not pinned, and is said as that. Nothing is changed.

Invariant: everything that is pinned has a line if it is not the newest of all, or if that is not known.
"""

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

PYTHON: Final = "Python"
GO: Final = "Go"
TEST_BED: Final = "tests/e2e/testbed"
LIMIT_S: Final = 300

_MODULES: Final = {
    "CRI_TOOLS": "sigs.k8s.io/cri-tools",
    "CRIO": "github.com/cri-o/cri-o",
    "RUNC": "github.com/opencontainers/runc",
}
"""Of versions in the test bed beside which no module stands under the same name."""
_OTHER_PINS: Final = {
    "github.com/containerd/containerd/v2": r"(?:containerd_from_source\(|UNSTABLE_FALLBACK = )",
    "k8s.io/kubernetes": r"KUBELET_VERSIONS = \(",
}
"""What stands before the other versions in the test bed, by module."""
_VERSION: Final = re.compile(r"v([0-9]+)\.([0-9]+)\.([0-9]+)(-[^+]+)?(?:\+.*)?")
_REQUIRED: Final = re.compile(r"^\s*(?:require\s+)?([^\s/]+/\S+)\s+(v\S+)\s*$", re.MULTILINE)
"""A module that a go.mod requires itself; those that come along are marked ``// indirect``."""


class Pin(NamedTuple):
    """Something at one version, and the files that say so."""

    kind: str
    name: str
    version: str
    where: tuple[str, ...]


class Newest(NamedTuple):
    """What a registry has of one thing: the newest of the pinned one's series (its minor version; "" where
    nobody asks), and of all. ``problem``: it could not be asked."""

    of_series: str = ""
    of_all: str = ""
    problem: str = ""


def pins(root: Path) -> list[Pin]:
    """All that the tree at *root* pins, by kind, name and version."""
    found: dict[tuple[str, str, str], set[str]] = {}
    for kind, name, version, file in (*_python_pins(root), *_go_pins(root), *_test_bed_pins(root)):
        found.setdefault((kind, name, version), set()).add(str(file.relative_to(root)))
    return [Pin(*pin, tuple(sorted(files))) for pin, files in sorted(found.items())]


def _python_pins(root: Path) -> Iterator[tuple[str, str, str, Path]]:
    lock = root / "requirements.lock"
    for name, version in re.findall(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)", lock.read_text(), re.MULTILINE):
        yield PYTHON, name, version, lock


def _go_pins(root: Path) -> Iterator[tuple[str, str, str, Path]]:
    for file in sorted((root / "tests").rglob("go.mod")):
        for name, version in _REQUIRED.findall(file.read_text()):
            yield GO, name, version, file


def _test_bed_pins(root: Path) -> Iterator[tuple[str, str, str, Path]]:
    for file in sorted((root / TEST_BED).glob("*.py")):
        text = file.read_text()
        modules = dict(re.findall(r'^([A-Z_]+) = "([a-z0-9.]+/[^\s"]+)"$', text, re.MULTILINE))
        for name, version in re.findall(r'^([A-Z_]+)_VERSION = "(v[^"]+)"$', text, re.MULTILINE):
            yield GO, (_MODULES | modules).get(name, name), version, file
        for name, words in _OTHER_PINS.items():
            for version in re.findall(rf'^.*{words}.*"(v[^"]+)"', text, re.MULTILINE):
                yield GO, name, version, file


def newest_packages(said: str) -> dict[str, str]:
    """The newest versions by name in what ``uv pip list --outdated --format json`` says."""
    return {one["name"].lower(): one["latest_version"] for one in json.loads(said)}


def published(said: str) -> dict[str, list[str] | str]:
    """The versions by module in what ``go list -m -e -versions -json`` says, or why there are none."""
    found: dict[str, list[str] | str] = {}
    decoder, position = json.JSONDecoder(), 0
    while position < len(said):
        one, end = decoder.raw_decode(said, position)
        versions: list[str] = one.get("Versions", [])
        error: dict[str, Any] = one.get("Error", {})
        found[one["Path"]] = versions or _last_line(error.get("Err", "no version is tagged"))
        position = end + len(said[end:]) - len(said[end:].lstrip())
    return found


def newest_of(pinned: str, versions: Iterable[str]) -> Newest:
    """The newest of *versions* that are no preliminary ones, of the series of *pinned* and of all."""
    released = sorted((parts, one) for one in versions if (parts := _release(one)) is not None)
    own = _VERSION.fullmatch(pinned)
    series = [one for parts, one in released if own and parts[:2] == (int(own[1]), int(own[2]))]
    return Newest(
        (series or [""])[-1], released[-1][1] if released else "", "" if released else "nothing but previews"
    )


def lines(pinned: Iterable[Pin], newest: Mapping[tuple[str, str], Newest]) -> list[str]:
    """One line for each of *pinned* that is not the newest of all, or of which that is not known."""
    shown = []
    for pin in pinned:
        found = newest.get((pin.name, pin.version), Newest(problem="nobody was asked"))
        if found.problem:
            what = f"unknown: {found.problem}"
        elif found.of_all in {pin.version, ""} or _is_newer(pin.version, found.of_all):
            continue
        else:
            between = found.of_series not in {"", pin.version, found.of_all}
            what = f"newest {found.of_all}{f', of its series {found.of_series}' if between else ''}"
        shown.append(f"{pin.kind:6}  {pin.name} {pin.version}: {what} ({', '.join(pin.where)})")
    return shown


def _is_newer(one: str, other: str) -> bool:
    mine, theirs = _release(one), _release(other)
    return mine is not None and theirs is not None and mine > theirs


def _release(version: str) -> tuple[int, int, int] | None:
    """The numbers of a version; None for a preliminary one."""
    found = _VERSION.fullmatch(version)
    return None if found is None or found[4] else (int(found[1]), int(found[2]), int(found[3]))


def _last_line(text: str) -> str:
    return text.strip().splitlines()[-1].strip() if text.strip() else "it says nothing"


def _said(words: list[str], directory: str) -> tuple[str, str]:
    """What a client answers, and what is wrong if it does not."""
    try:
        done = subprocess.run(  # noqa: S603 - words of this file and names of modules, no shell
            words, cwd=directory, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return "", str(error)
    return done.stdout, "" if done.returncode == 0 else _last_line(done.stderr)


def _ask(pinned: Iterable[Pin]) -> dict[tuple[str, str], Newest]:
    found: dict[tuple[str, str], Newest] = {}
    modules = sorted({pin.name for pin in pinned if pin.kind == GO})
    with tempfile.TemporaryDirectory() as nowhere:
        # Of the interpreter that runs this, whose environment has what requirements.lock says.
        uv = ["uv", "pip", "list", "--python", sys.executable, "--outdated", "--format", "json"]
        packages, problem = _said(uv, nowhere)
        listed, go_problem = _said(["go", "list", "-m", "-e", "-versions", "-json", *modules], nowhere)
    newer = {} if problem else newest_packages(packages)
    known = published(listed)
    for pin in pinned:
        if pin.kind == PYTHON:
            answer = Newest(of_all=newer.get(pin.name.lower(), pin.version), problem=problem)
        else:
            versions = known.get(pin.name, go_problem or "go list does not name it")
            answer = (
                Newest(problem=versions) if isinstance(versions, str) else newest_of(pin.version, versions)
            )
        found[pin.name, pin.version] = answer
    return found


def main() -> None:
    """Write what is newer than what the tree around this file pins."""
    pinned = pins(Path(__file__).parents[2])
    shown = lines(pinned, _ask(pinned))
    sys.stdout.write("".join(f"{line}\n" for line in shown))
    sys.stdout.write(f"{len(pinned)} pinned, {len(pinned) - len(shown)} of them the newest.\n")
    sys.stdout.write(
        "Not pinned, as Debian has them at set-up: runc, crun, podman, containerd 1.7 and 2.1, Linux.\n"
    )


if __name__ == "__main__":
    main()
