"""How vector files become checks: one module of this package per part of the engine, one Section per table.

A module lists its tables in a constant ``SECTIONS`` and, where a file holds no cases of its own, says why in
a constant ``REFERENCES``. The modules are found by themselves: nothing else is registered.
A check runs the engine on one case and calls `expect`; whatever it raises is a failure of that case.
"""

import importlib
import json
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Case = Any
"""One case as the file has it: a JSON object, or ``[key, value]`` where the table is an object itself."""


class MismatchError(AssertionError):
    """The engine answered otherwise than the vector."""

    def __init__(self, what: str, found: object, expected: object) -> None:
        super().__init__(what, found, expected)
        self.what = what
        self.found = found
        self.expected = expected

    def __str__(self) -> str:
        return f"{self.what}: found {self.found!r}, expected {self.expected!r}"


def expect(what: str, found: object, expected: object) -> None:
    """Compare one answer of the engine with the vector's.

    Raises:
        MismatchError: they differ.
    """
    if found != expected:
        raise MismatchError(what, found, expected)


def expect_error(found: object, expected: str | None) -> None:
    """Compare an error (or None) with the recorded text, which may be a part of it, as in kubelet's tests.

    Raises:
        MismatchError: only one of them is an error, or the text is another.
    """
    if not (found is not None and expected and expected in str(found)):
        expect("error", None if found is None else str(found), expected or None)


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder of vector files. Checks may read further files of it, such as named topologies."""

    path: Path
    _loaded: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)

    def load(self, file: str) -> Any:
        """The content of one file: its JSON value, or for ``.jsonl`` the list of its lines' values.

        Raises:
            ValueError: not JSON, or not text.
            OSError: not there, or not for us to read.
        """
        if file not in self._loaded:
            text = (self.path / file).read_text(encoding="utf-8")
            if file.endswith(".jsonl"):
                self._loaded[file] = _lines(text)
            else:
                self._loaded[file] = json.loads(text)
        return self._loaded[file]

    def has(self, file: str) -> bool:
        """Whether the folder holds that file."""
        return (self.path / file).is_file()


def _lines(text: str) -> list[Any]:
    values = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                values.append(json.loads(line))
            except ValueError as error:
                raise ValueError(f"line {number}: {error}") from error
    return values


@dataclass(frozen=True, slots=True)
class Section:
    """One table of cases.

    ``key`` names the table inside the file; None means that the whole file is the table (a JSON list, or
    JSON lines). ``check`` receives each case and the folder, and raises when the engine answers otherwise.
    """

    file: str
    key: str | None
    check: Callable[[Case, Folder], None]

    def __str__(self) -> str:
        return self.file if self.key is None else f"{self.file}:{self.key}"

    def cases(self, folder: Folder) -> tuple[Case, ...]:
        """The cases that *folder* holds for this section; none if the file or the table is not there.

        Raises:
            ValueError: the file is not JSON, or holds something else there than cases.
        """
        if not folder.has(self.file):
            return ()
        table = folder.load(self.file)
        if self.key is not None:
            if not isinstance(table, dict):
                raise ValueError(f"the file holds a {type(table).__name__}, expected tables by name")
            table = table.get(self.key)
        if table is None:
            return ()
        if isinstance(table, dict):
            return tuple([key, value] for key, value in table.items())
        if not isinstance(table, list):
            raise ValueError(f"the table is a {type(table).__name__}, expected a list of cases")  # noqa: TRY004 - the table is wrong, not the call
        return tuple(table)


def modules() -> Iterator[tuple[tuple[Section, ...], Mapping[str, str]]]:
    """The SECTIONS and REFERENCES of every module here, in the order of the modules' names."""
    for found in sorted(pkgutil.iter_modules(__path__), key=lambda found: found.name):
        module = importlib.import_module(f"{__name__}.{found.name}")
        yield getattr(module, "SECTIONS", ()), getattr(module, "REFERENCES", {})
