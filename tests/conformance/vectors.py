"""Run the engine against a folder of recorded answers and those in it: ``python -m conformance DIR``.

Every case of every known table is executed; fields of a case that no check reads are ignored. Tables and
files that no section claims, or that can't be read, are reported by name, never passed over in silence. The
exit status is 1 if any case fails, anything can't be read or is unknown, or there is no case at all.
"""

import json
import sys
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from bayplan.standard_streams import CommandLineParser
from conformance.sections import Folder, MismatchError, Section, modules

SHOWN_FAILURES = 3
"""Failures of one section that are printed in full; the rest are only counted."""

_NAMES = ("test", "name", "description", "id")


@dataclass(frozen=True, slots=True)
class Failure:
    """A case that failed: its place in the table, its name if it has one, and why."""

    index: int
    name: str
    why: str

    def __str__(self) -> str:
        return f"case {self.index} {self.name}: {self.why}" if self.name else f"case {self.index}: {self.why}"


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of one section over one folder."""

    section: Section
    cases: int
    failures: tuple[Failure, ...]

    @property
    def passed(self) -> int:
        """How many cases gave the recorded answer."""
        return self.cases - len(self.failures)


def sections() -> tuple[Section, ...]:
    """All registered sections."""
    return tuple(section for found, _ in modules() for section in found)


def references() -> dict[str, str]:
    """Files, or ``file:key`` tables, which hold no cases for the engine, and the reason."""
    return {name: why for _, found in modules() for name, why in found.items()}


def run(section: Section, folder: Folder) -> Result:
    """Execute every case of one section."""
    failures = []
    try:
        cases = section.cases(folder)
    except ValueError as error:
        return Result(section, 1, (Failure(0, "", str(error)),))
    for index, case in enumerate(cases):
        try:
            section.check(case, folder)
        except MismatchError as mismatch:
            failures.append(Failure(index, _name(case), str(mismatch)))
        except Exception as error:  # noqa: BLE001 - an engine that raises has failed that case, not the run
            last = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{Path(last.filename).name}:{last.lineno}"
            failures.append(Failure(index, _name(case), f"{type(error).__name__} at {where}: {error}"))
    return Result(section, len(cases), tuple(failures))


def damaged(folder: Folder) -> dict[str, str]:
    """The vector files of *folder* that can't be read, known or not, and why."""
    found = {}
    for name in _files(folder):
        try:
            folder.load(name)
        except (ValueError, OSError) as error:
            found[name] = str(error)
    return found


def unknown(folder: Folder) -> Iterator[str]:
    """The files and tables of *folder* that neither a section nor a reference claims."""
    claimed = {str(section) for section in sections()} | set(references())
    for name in _files(folder):
        if name in claimed or name in damaged(folder):
            continue
        content = folder.load(name)
        keys = [key for key in content if not key.startswith("_")] if isinstance(content, dict) else []
        tables = [f"{name}:{key}" for key in keys] if keys else [name]
        yield from (table for table in tables if table not in claimed)


def report(folder: Folder, out: TextIO) -> bool:
    """Run everything in *folder*, print passed and failed per section; whether all of it passed."""
    unreadable = damaged(folder)
    passed, failed = 0, len(unreadable)
    for section in sections():
        if section.file in unreadable:
            continue
        result = run(section, folder)
        passed += result.passed
        failed += len(result.failures)
        _print(result, out)
    for name, why in sorted(unreadable.items()):
        print(f"{'FAILED':>15}  {name}: can't be read: {why}", file=out)
    for name, why in sorted(references().items()):
        if folder.has(name.partition(":")[0]) and name not in unreadable:
            print(f"{'no cases':>15}  {name}: {why}", file=out)
    unread = list(unknown(folder))
    for name in unread:
        print(f"{'UNKNOWN':>15}  {name}: no section of this engine reads it", file=out)
    if not (passed or failed):
        print(f"{'NOTHING':>15}  {folder.path}: no file in it holds a case", file=out)
    print(f"{passed} passed, {failed} failed, {len(unread)} unknown tables", file=out)
    return bool(passed) and not failed and not unread


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit status."""
    parser = CommandLineParser(
        prog="python -m conformance",
        description="Check the kubelet engine against a folder of recorded answers.",
    )
    parser.add_argument("directory", type=Path, metavar="DIR", help="folder of vector files (.json, .jsonl)")
    directory = parser.parse_args(arguments).directory
    if not directory.is_dir():
        parser.error(f"{directory}: not a folder")
    below = sorted(path for path in directory.rglob("*") if path.is_dir())
    folders = [folder for folder in map(Folder, (directory, *below)) if _files(folder)]
    found = []
    for folder in folders or [Folder(directory)]:
        if len(folders) > 1:
            print(f"{folder.path}:")
        found.append(report(folder, sys.stdout))
    return 0 if all(found) else 1


def _print(result: Result, out: TextIO) -> None:
    if not result.cases:
        print(f"{'absent':>15}  {result.section}", file=out)
        return
    state = "ok" if not result.failures else "FAILED"
    print(f"{result.passed:6}/{result.cases:<6} {state}  {result.section}", file=out)
    for failure in result.failures[:SHOWN_FAILURES]:
        print(f"{'':17}{failure}", file=out)
    if len(result.failures) > SHOWN_FAILURES:
        print(f"{'':17}... and {len(result.failures) - SHOWN_FAILURES} more", file=out)


def _files(folder: Folder) -> list[str]:
    """The names of the vector files that are in *folder*."""
    files = (path for path in folder.path.iterdir() if path.suffix in {".json", ".jsonl"} and path.is_file())
    return sorted(path.name for path in files)


def _name(case: Any) -> str:
    """What the file calls the case."""
    if isinstance(case, dict):
        found = [str(case[key]) for key in _NAMES if case.get(key) not in (None, "")]
        return json.dumps("/".join(found)) if found else ""
    return json.dumps(case[0]) if isinstance(case, list) and case else ""
