"""Where configuration comes from: the files that a path stands for, and what each holds as plain values.

The meaning of keys is not known here, except those by which kubelet's own files are recognized.
"""

import os
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct, field

from bayplan.config.kubelet_documents import (
    KUBELETS_KIND,
    KubeletConfiguration,
    kubelet_configuration,
    refuse_foreign,
)
from bayplan.config.values import InvalidValueError, invalid, items, show
from bayplan.errors import Problem, excerpt
from bayplan.files import MIB, read_text, unreadable
from bayplan.placement.foreign_cpusets import PinningManager
from bayplan.printable import pattern
from bayplan.quantity import counted

MAX_CONFIG_BYTES: Final = MIB

_SUFFIXES: Final = (".toml", ".yaml", ".yml")
_DROP_IN: Final = ".conf"
_KUBELETS: Final = (".json", _DROP_IN)
"""How kubelet's own file and its drop-ins may end, too."""
_FLAG: Final = pattern(r"""(?:^|[\s="'])--[a-z][a-z-]+[= ]""", re.MULTILINE)
_MAX_WALKED: Final = 10_000
"""Entries of a directory that is searched for kubelet's drop-ins. Nobody means so many."""


Values = Mapping[str, tuple[str, object]]
"""By key: the path of a value, and the value."""


class NothingToReadError(InvalidValueError):
    """A directory in which nothing is read; ``value`` are the names in it."""


class File(Struct, frozen=True):
    """A file that is to be read. ``drop_in``: it was found in a directory of kubelet's drop-ins."""

    path: Path
    drop_in: bool = False


class Document(Struct, frozen=True):
    """What of a file is read. ``where`` in it the values are, if they are not all of it. ``remarks`` are for
    the operator."""

    file: File
    values: Mapping[str, object]
    where: str = ""
    remarks: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """How problems and sources name it."""
        return f"{self.file.path}: {self.where}" if self.where else str(self.file.path)

    @property
    def of_kubelet(self) -> bool:
        """Whether it is part of kubelet's own configuration."""
        return self.file.drop_in or self.values.get("kind") == KUBELETS_KIND


class Source(Struct, frozen=True):
    """Where values come from: its name, the values under their paths by key, and what is wrong already.

    ``unread`` are keys that it sets to what can't be read. ``of_managers`` are further values that count for
    the engine `kubelet` only, ``other_gates`` kubelet's feature gates that are not read. ``pinning``
    are the managers of kubelet that the file switches on, ``remarks`` are for the operator."""

    name: str
    values: Values
    problems: tuple[Problem, ...] = ()
    unread: frozenset[str] = frozenset()
    of_managers: Values = field(default_factory=dict)
    other_gates: Mapping[str, object] = field(default_factory=dict)
    of_kubelet: bool = False
    pinning: tuple[PinningManager, ...] = ()
    remarks: tuple[str, ...] = ()


def files_of(path: Path) -> list[File]:
    """The file *path*, or those of the directory *path* in lexical order: ours, or else kubelet's drop-ins,
    which may also be in directories below it.

    Raises:
        NothingToReadError: the directory has neither.
        InvalidValueError: the directory has both, or cannot be read.
    """
    try:
        names = sorted((one.name for one in path.iterdir()), key=os.fsencode)
    except (NotADirectoryError, FileNotFoundError):
        return [File(path)]  # a file, or what reading will say is wrong
    except OSError as error:
        expected = "a file or a directory that can be read"
        raise invalid("the file", error.strerror or str(error), expected) from error
    own = [name for name in names if Path(name).suffix in _SUFFIXES and name[0] != "."]
    drop_ins = list(_drop_ins(path))
    if own and (theirs := [one for one in drop_ins if _is_of_kubelet(one)]):
        found = f"{own[0]} beside kubelet's {theirs[0].relative_to(path)}"
        raise invalid("the directory", found, "files of one kind; name those of the other by themselves")
    if own:
        return [File(path / name) for name in own]
    if drop_ins:
        return [File(one, drop_in=True) for one in drop_ins]
    found = f"only {excerpt(', '.join(names))}" if names else "no file"
    expected = f"files that end in {', '.join(_SUFFIXES)}, or kubelet's drop-ins, which end in {_DROP_IN}"
    raise NothingToReadError(Problem("the directory", found, expected), value=names)


def _is_there(path: Path) -> bool:
    """Whether something is there; also something that cannot be read, which reading will report."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        pass
    return True


def default_paths(directory: Path) -> list[Path]:
    """bayplan.toml (or .yaml) of *directory* and its conf.d, as far as they exist."""
    names = (*(f"bayplan{suffix}" for suffix in _SUFFIXES), "conf.d")
    return [path for name in names if _is_there(path := directory / name)]


def read_document(file: File) -> Document:
    """What *file* holds: kubelet's configuration, also in what others wrap around it, or one of ours.

    Raises:
        InvalidValueError: it can't be read, is not in the language that its name says, or is neither.
    """
    try:
        content = read_text(file.path, MAX_CONFIG_BYTES)
    except (OSError, UnicodeDecodeError) as error:
        expected = "a file that can be read" if isinstance(error, OSError) else "text in UTF-8"
        raise invalid("the file", unreadable(error), expected) from error
    suffix = _DROP_IN if file.drop_in else file.path.suffix
    named = suffix in (*_SUFFIXES, *_KUBELETS)
    repeated: list[str] = []
    try:
        documents = _parsed(content, suffix, repeated)
        if file.drop_in:
            # kubelet takes the first document of a drop-in, and nothing that is wrapped.
            first = documents[0] if documents else {}
            return Document(file, dict(items("the file", first)), remarks=_of_repeated(repeated))
        theirs = kubelet_configuration(documents)
    except InvalidValueError as wrong:
        if named:
            problems = (
                Problem(one.path, one.found, one.expected + _of_flags(content)) for one in wrong.problems
            )
            raise InvalidValueError(*problems) from wrong
        theirs = None
    if theirs is not None:
        remarks = (*_of_repeated(repeated), *_remarks(len(documents), theirs))
        return Document(file, dict(items(theirs.where, theirs.values)), theirs.where, remarks)
    if not named:
        endings = ", ".join((*_SUFFIXES, *_KUBELETS))
        expected = f"one that ends in {endings}, or a file of kind {KUBELETS_KIND}"
        raise invalid("the file name", show(file.path.name), expected + _of_flags(content))
    refuse_foreign(documents)
    if repeated:
        _parsed(content, suffix, None)  # which says where
    return Document(file, dict(items("the file", documents[0] if documents else {})))


def _of_flags(content: str) -> str:
    """What to do with a file of flags: a unit, its environment, the arguments of a snap."""
    if not _FLAG.search(content):
        return ""
    return "; kubelet's flags are not read: give baypland those that it has too, which are named alike"


def _of_repeated(repeated: Sequence[str]) -> tuple[str, ...]:
    """Kubelet takes the last value of a key, with a warning (its codec is lenient for v1beta1)."""
    keys = excerpt(", ".join(dict.fromkeys(repeated)))
    return (f"set more than once, the last counts: {keys}",) if repeated else ()


def _remarks(count: int, theirs: KubeletConfiguration) -> tuple[str, ...]:
    found = []
    if count > 1:
        found.append(f"of its {counted(count, 'document')} only that of kind {KUBELETS_KIND} is read")
    if theirs.whole_file:
        found.append(f"a part of kubelet's file only; the whole is on the node, in {theirs.whole_file}")
    return tuple(found)


def _parsed(content: str, suffix: str, repeated: list[str] | None) -> list[object]:
    """The documents in *content*. What has no suffix of its own may be kubelet's, in YAML or JSON. Keys that
    are there twice are added to *repeated*, or are wrong."""
    if suffix == ".toml":
        try:
            return [tomllib.loads(content)]
        except (ValueError, RecursionError) as error:
            # ValueError: also a number of thousands of digits, which is no TOMLDecodeError.
            raise invalid("the file", str(error), "TOML") from error
    from bayplan.config.yaml_text import parse_documents, parse_json  # noqa: PLC0415 - most nodes have none

    return [parse_json(content, repeated)] if suffix == ".json" else parse_documents(content, repeated)


def _drop_ins(directory: Path) -> Iterable[Path]:
    """The files that kubelet's --config-dir would read, in its order: that of Go's filepath.WalkDir, which
    goes into directories where their names stand, and follows no links to directories."""
    walked = 0

    def below(path: Path) -> Iterable[Path]:
        nonlocal walked
        with os.scandir(path) as entries:
            found = sorted(entries, key=lambda one: os.fsencode(one.name))
        walked += len(found)
        if walked > _MAX_WALKED:
            raise invalid("the directory", f"more than {_MAX_WALKED} entries", "a directory of drop-ins")
        for entry in found:
            if entry.is_dir(follow_symlinks=False):
                yield from below(path / entry.name)
            elif entry.name.endswith(_DROP_IN):
                yield path / entry.name

    try:
        yield from below(directory)
    except OSError as error:
        path = excerpt(str(error.filename))
        raise invalid("the directory", f"{path}: {error.strerror}", "one that can be read") from error


def _is_of_kubelet(file: Path) -> bool:
    """Whether a file contains kubelet's kind; False if it can't be read."""
    try:
        return KUBELETS_KIND in read_text(file, MAX_CONFIG_BYTES, errors="replace")
    except OSError:
        return False
