"""Configuration files and flags, merged and checked: later files win over earlier ones, flags over files.

A later source replaces the whole value of a key. Every problem of every source is reported at once. kubelet's
own files can be among the files: the keys that mean the same here are taken from them, with kubelet's
defaults below all that is said; what has no effect is remarked on.
"""

import enum
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from bayplan.config.keys import KEYS
from bayplan.config.kubelet_documents import KUBELETS_KIND
from bayplan.config.kubelet_files import (
    kubelet_defaults,
    kubelet_sources,
    overridden_by_flags,
    pinning_managers,
)
from bayplan.config.kubelet_rules import without_effect, wrong_options
from bayplan.config.reservations import missing_grace_periods
from bayplan.config.settings import Settings
from bayplan.config.sources import (
    Document,
    File,
    NothingToReadError,
    Source,
    Values,
    default_paths,
    files_of,
    read_document,
)
from bayplan.config.values import (
    InvalidValueError,
    ProblemCollector,
    invalid,
    kubelet_minor,
    show,
    unknown_keys,
)
from bayplan.engines.interface import KUBELET, EngineKind
from bayplan.errors import ConfigError, ParseError, Problem
from bayplan.host.kubelet_program import KubeletVersion
from bayplan.model.kubelet_version import NEWEST, KubeletRules, rules_of
from bayplan.model.policy import MemoryReservationPolicy
from bayplan.printable import pattern

DEFAULT_DIRECTORY: Final = Path("/etc/bayplan")
_FLAGS: Final = "command line"
_HERE: Final = "on this machine"
_OPENSHIFT: Final = pattern(r"\+[0-9a-f]{7,40}$")
"""How the versions of its kubelet end: with the start of a commit (v1.33.5+1a2b3c4)."""
_KUBELETS_HAS_A_KIND: Final = f"kubelet's own file has kind: {KUBELETS_KIND}"

MoreProblems: TypeAlias = Callable[[Settings, Collection[str]], Iterable[Problem]]
"""Checks settings against more than themselves; leaves out what depends on the keys that could not be
read."""

FindKubelet: TypeAlias = Callable[[], KubeletVersion | None]
"""Finds which kubelet the node runs; asked only where no source says it."""

_MANAGER_KEYS: Final = tuple(key for key in KEYS.values() if key.of_managers)


class Contents(Struct, frozen=True):
    """What is in the files, before it is read as settings: their documents, messages for the operator, and
    what is wrong, with the file's name."""

    documents: tuple[Document, ...]
    notices: tuple[str, ...]
    problems: tuple[tuple[str, Problem], ...]


def load_settings(
    paths: Sequence[Path] = (),
    flags: Mapping[str, Sequence[str]] | None = None,
    default_directory: Path = DEFAULT_DIRECTORY,
    more_problems: MoreProblems | None = None,
    *,
    for_several_engines: bool = False,
) -> Settings:
    """The settings from the files at *paths*, in that order, and the *flags* (key -> texts of the flag).

    `read_contents` and `settings_of` in one.

    Raises:
        ConfigError: everything that is wrong, in all of them.
    """
    contents = read_contents(paths, default_directory)
    return settings_of(contents, flags, more_problems, for_several_engines=for_several_engines)


def read_contents(paths: Sequence[Path] = (), default_directory: Path = DEFAULT_DIRECTORY) -> Contents:
    """What is in the files at *paths*, in that order.

    A directory stands for its .toml, .yaml and .yml files in lexical order, or for kubelet's drop-ins.
    Without *paths*: bayplan.toml (or .yaml) of *default_directory* and then its conf.d, as far as they exist.
    """
    problems: list[tuple[str, Problem]] = []
    documents, notices = _read_all(paths, default_directory, problems)
    return Contents(tuple(documents), tuple(notices), tuple(problems))


def settings_of(
    contents: Contents,
    flags: Mapping[str, Sequence[str]] | None = None,
    more_problems: MoreProblems | None = None,
    find_kubelet: FindKubelet = lambda: None,
    *,
    for_several_engines: bool = False,
    kubelets_flags: Mapping[str, Sequence[str]] | None = None,
) -> Settings:
    """The settings that *contents* and *flags* (key -> texts of the flag) mean for the kubelet that they
    name, else for the one that is found, else for the newest. *kubelets_flags* are those that the node's
    kubelet runs with, which are held against its files and not read.

    If something is wrong, *more_problems* is asked about all that could be read, unless a whole file could
    not. *for_several_engines*: keys of kubelet's managers are for those engines that have them, no mistake.

    Raises:
        ConfigError: everything that is wrong, in all of them.
    """
    problems = list(contents.problems)
    documents, damaged = contents.documents, bool(problems)
    theirs = [document for document in documents if document.of_kubelet]
    flags_of_kubelet = kubelets_flags if theirs and kubelets_flags else {}
    ours = [*(_own(document) for document in documents if not document.of_kubelet), _of_flags(flags or {})]
    named = any("kubeletVersion" in source.values for source in ours)
    found_version = [] if named else _of_found(find_kubelet())
    kubelet = _kubelet_rules([*found_version, *ours])
    said = [*found_version, *_sources_of(documents, theirs, kubelet), ours[-1]]
    sources = [*kubelet_defaults(theirs, kubelet), *said]
    engines = [source.values["engine"][1] for source in sources if "engine" in source.values]
    last = engines[-1] if engines else None
    if isinstance(last, str) and EngineKind.of(last).is_kubelets:
        sources = [replace(source, values={**source.values, **source.of_managers}) for source in sources]
    elif for_several_engines:
        sources = [replace(source, values=_without_managers(source.values)) for source in sources]
    typed: dict[str, Any] = {}
    origin: dict[str, str] = {}
    unread: set[str] = set()
    for source in sources:
        read, wrong_keys, found = _read_values(source)
        typed |= read
        unread |= wrong_keys
        origin |= dict.fromkeys(source.values, source.name)
        problems += [(source.name, problem) for problem in found]
    settings = replace(
        Settings(),
        **typed,
        sources=tuple(document.name for document in documents),
        of_kubelets_file=bool(theirs),
        kubelet_known_by=origin.get("kubeletVersion", ""),
        kubelet_managers=pinning_managers(sources, flags_of_kubelet),
    )
    remarks = [*without_effect(settings, said), *overridden_by_flags(flags_of_kubelet, settings)]
    settings = replace(settings, notices=(*contents.notices, *remarks))
    of_kubelet = {document.name for document in theirs}
    for name, problem in _contradictions(settings, origin, of_kubelet, unread):
        problems.append((name, problem))
        unread.add(problem.path)
    if problems:
        if more_problems is not None and not damaged:
            problems += [(_HERE, problem) for problem in more_problems(settings, unread)]
        raise _config_error(problems)
    return settings


def _kubelet_rules(sources: Sequence[Source]) -> KubeletRules:
    """The rules of the kubelet that the last of *sources* names which does; what cannot be read is named
    where values are read."""
    rules = NEWEST
    for source in sources:
        with suppress(KeyError, InvalidValueError):
            path, version = source.values["kubeletVersion"]
            minor = kubelet_minor(path, version)
            rules = rules_of(minor)
            knows_gates = rules.minor == minor and not _OPENSHIFT.search(str(version))
            rules = replace(rules, refuses_gates=knows_gates)
    return rules


def _of_found(found: KubeletVersion | None) -> list[Source]:
    """The version that was found, as a source below all others."""
    if found is None:
        return []
    return [Source(found.known_by, {"kubeletVersion": (found.known_by, found.version)})]


def _without_managers(values: Values) -> Values:
    names = {key.name for key in _MANAGER_KEYS}
    return {key: value for key, value in values.items() if key not in names}


def _read_all(
    paths: Sequence[Path], default_directory: Path, problems: list[tuple[str, Problem]]
) -> tuple[list[Document], list[str]]:
    """The contents of the files, and messages for the operator; what is wrong is added to *problems*."""
    files: list[File] = []
    notices: list[str] = []
    documents: list[Document] = []
    for path in paths or default_paths(default_directory):
        try:
            files += files_of(path)
        except InvalidValueError as wrong:
            if isinstance(wrong, NothingToReadError) and not paths:
                # Unlike a directory that was asked for, the usual one may be empty.
                notices += [f"{path}: {problem}" for problem in wrong.problems if wrong.value]
            else:
                problems += [(str(path), problem) for problem in wrong.problems]
    for file in files:
        try:
            document = read_document(file)
        except InvalidValueError as wrong:
            problems += [(str(file.path), problem) for problem in wrong.problems]
        else:
            documents.append(document)
            notices += [f"{document.file.path}: {remark}" for remark in document.remarks]
    return documents, notices


def _sources_of(
    documents: Sequence[Document], theirs: Sequence[Document], kubelet: KubeletRules
) -> list[Source]:
    """One source for each document, in their order. kubelet's, *theirs*, are one configuration, also if
    others stand between them."""
    merged = iter(kubelet_sources(theirs, kubelet))
    return [next(merged) if document.of_kubelet else _own(document) for document in documents]


def _own(document: Document) -> Source:
    """A document of our own."""
    return Source(document.name, {key: (key, value) for key, value in document.values.items()})


def _read_values(source: Source) -> tuple[dict[str, Any], set[str], list[Problem]]:
    """The fields that *source* sets, the keys whose values can't be read, and everything that is wrong."""
    collector = ProblemCollector()
    unknown = [key for key in source.values if key not in KEYS]
    collector.problems += unknown_keys("", unknown, KEYS, f"; {_KUBELETS_HAS_A_KIND}")
    typed: dict[str, Any] = {}
    unread = set(source.unread)
    for key, (path, value) in source.values.items():
        if key not in KEYS:
            continue
        with collector:
            try:
                typed[KEYS[key].field] = KEYS[key].read(path, value)
            except InvalidValueError as wrong:
                if wrong.readable:
                    typed[KEYS[key].field] = wrong.value
                else:
                    unread.add(key)
                raise
    return typed, unread, [*source.problems, *collector.problems]


def _contradictions(
    settings: Settings, origin: Mapping[str, str], of_kubelet: Collection[str], unread: Collection[str]
) -> Iterable[tuple[str, Problem]]:
    key = "memoryReservationPolicy"
    # kubelet's own files are held against kubelet's gate: ours may switch off what kubelet does itself.
    if (
        settings.memory_reservation is not MemoryReservationPolicy.NONE
        and not settings.memory_qos
        and origin[key] not in of_kubelet
    ):
        found = repr(settings.memory_reservation.value)
        yield origin[key], Problem(key, found, "'None', or featureGates with MemoryQoS true")
    for problem in missing_grace_periods(settings, unread):
        yield origin[problem.path], problem
    for problem in wrong_options(settings):
        yield origin[problem.path], problem
    if settings.engine_kind.is_kubelets:
        return
    for manager in _MANAGER_KEYS:
        value, usual = getattr(settings, manager.field), getattr(Settings(), manager.field)
        if value != usual:
            found = show(value.value if isinstance(value, enum.Enum) else value)
            expected = f"{manager.default!r}, or the engine {KUBELET!r}"
            yield origin[manager.name], Problem(manager.name, found, expected)


def _config_error(problems: Sequence[tuple[str, Problem]]) -> ConfigError:
    names = {name for name, _ in problems}
    if len(names) == 1:
        return ConfigError(names.pop(), tuple(problem for _, problem in problems))
    named = [Problem(f"{name}: {one.path}", one.found, one.expected) for name, one in problems]
    return ConfigError("configuration", tuple(named))


def _of_flags(flags: Mapping[str, Sequence[str]]) -> Source:
    collector = ProblemCollector()
    values: dict[str, tuple[str, object]] = {}
    for key, texts in flags.items():
        path = f"--{KEYS[key].flag}"
        with collector:
            try:
                values[key] = (path, KEYS[key].plain(texts))
            except ParseError as error:
                raise invalid(path, show(error.found), error.expected) from error
    unread = frozenset(flags.keys() - values.keys())
    return Source(_FLAGS, values, problems=tuple(collector.problems), unread=unread)
