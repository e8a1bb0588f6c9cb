"""Configuration files and flags, merged and checked: later files win over earlier ones, flags over files.

A later source replaces the whole value of a key. Every problem of every source is reported at once. kubelet's
own file can be among the files: the keys that mean the same here are taken from it, the others are not ours.
"""

import enum
import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, TypeAlias

from bayplan.daemon.keys import FEATURE_GATES, KEYS
from bayplan.daemon.managers import engine_of, wrong_options
from bayplan.daemon.reservations import resolve_policy
from bayplan.daemon.settings import EXACT, KUBELET, Settings
from bayplan.daemon.values import Complaints, Wrong, items, show, unknown_key
from bayplan.domain.pins import KubeletManager
from bayplan.domain.policy import MemoryReservationPolicy
from bayplan.errors import ConfigError, ParseError, Problem

__all__ = ["DEFAULT_DIRECTORY", "Settings", "engine_of", "load_settings", "resolve_policy"]

DEFAULT_DIRECTORY: Final = Path("/etc/bayplan")
_SUFFIXES: Final = (".toml", ".yaml", ".yml")
_KUBELETS: Final = (".json", ".conf")
"""How kubelet's own file and its drop-ins may end, too; of a directory they are not taken."""
_FLAGS: Final = "command line"
_HERE: Final = "on this machine"

MoreProblems: TypeAlias = Callable[[Settings, Collection[str]], Iterable[Problem]]
"""What is wrong with settings beyond themselves, apart from what depends on keys that could not be read."""

_PINNING: Final[Mapping[tuple[str, str], KubeletManager]] = {
    ("cpuManagerPolicy", "static"): KubeletManager.CPU,
    ("memoryManagerPolicy", "Static"): KubeletManager.MEMORY,
}
_MANAGER_KEYS: Final = tuple(key for key in KEYS.values() if key.of_managers)


@dataclass(frozen=True, slots=True)
class _Source:
    """Where values come from: its name, the values under their paths by key, and what is wrong already.

    ``unread`` are keys that it sets to what can't be read. ``of_managers`` are further values that count for
    the engine `kubelet` only. ``pinning`` are the managers of kubelet that the file switches on."""

    name: str
    values: Mapping[str, tuple[str, object]]
    notices: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()
    unread: frozenset[str] = frozenset()
    of_managers: Mapping[str, tuple[str, object]] = field(default_factory=dict)
    pinning: tuple[KubeletManager, ...] = ()

    def for_engine(self, engine: object) -> "_Source":
        """The source as it counts for an engine."""
        if engine == KUBELET:
            return replace(self, values={**self.values, **self.of_managers})
        return self


def load_settings(
    paths: Sequence[Path] = (),
    flags: Mapping[str, Sequence[str]] | None = None,
    default_directory: Path = DEFAULT_DIRECTORY,
    more_problems: MoreProblems | None = None,
) -> Settings:
    """The settings from the files at *paths*, in that order, and the *flags* (key -> texts of the flag).

    A directory stands for its .toml, .yaml and .yml files in lexical order. Without *paths*: bayplan.toml
    (or .yaml) of *default_directory* and then its conf.d, as far as they exist. If something is wrong,
    *more_problems* is asked about all that could be read, unless a whole file could not.

    Raises:
        ConfigError: everything that is wrong, in all of them.
    """
    sources: list[_Source] = []
    problems: list[tuple[str, Problem]] = []
    damaged = False
    for file in _files(paths) if paths else _default_files(default_directory):
        try:
            sources.append(_read(file))
        except Wrong as wrong:
            damaged = True
            problems += [(str(file), problem) for problem in wrong.problems]
    sources.append(_of_flags(flags or {}))
    engines = [source.values["engine"][1] for source in sources if "engine" in source.values]
    sources = [source.for_engine(engines[-1] if engines else EXACT) for source in sources]
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
        sources=tuple(source.name for source in sources if source.name != _FLAGS),
        notices=tuple(f"{source.name}: {notice}" for source in sources for notice in source.notices),
        kubelet_managers={manager: source.name for source in sources for manager in source.pinning},
    )
    for name, problem in _contradictions(settings, origin, unread):
        problems.append((name, problem))
        unread.add(problem.path)
    if problems:
        if more_problems is not None and not damaged:
            problems += [(_HERE, problem) for problem in more_problems(settings, unread)]
        raise _config_error(problems)
    return settings


def _read_values(source: _Source) -> tuple[dict[str, Any], set[str], list[Problem]]:
    """The fields that *source* sets, the keys whose values can't be read, and everything that is wrong."""
    complaints = Complaints()
    typed: dict[str, Any] = {}
    unread = set(source.unread)
    for key, (path, value) in source.values.items():
        with complaints:
            if key not in KEYS:
                raise Wrong(unknown_key("", key, KEYS))
            try:
                typed[KEYS[key].field] = KEYS[key].read(path, value)
            except Wrong as wrong:
                if wrong.readable:
                    typed[KEYS[key].field] = wrong.value
                else:
                    unread.add(key)
                raise
    return typed, unread, [*source.problems, *complaints.problems]


def _contradictions(
    settings: Settings, origin: Mapping[str, str], unread: Collection[str]
) -> Iterable[tuple[str, Problem]]:
    if settings.memory_reservation is not MemoryReservationPolicy.NONE and not settings.memory_qos:
        key = "memoryReservationPolicy"
        found = repr(settings.memory_reservation.value)
        yield origin[key], Problem(key, found, "'None', or featureGates with MemoryQoS true")
    if settings.engine == KUBELET:
        for problem in wrong_options(settings, frozenset(unread)):
            yield origin[problem.path], problem
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
    named = [replace(one, path=f"{name}: {one.path}") for name, one in problems]
    return ConfigError("configuration", tuple(named))


def _default_files(directory: Path) -> list[Path]:
    main = [file for suffix in _SUFFIXES if _is_there(file := directory / f"bayplan{suffix}")]
    drop_ins = directory / "conf.d"
    return main + (_files([drop_ins]) if _is_there(drop_ins) else [])


def _is_there(path: Path) -> bool:
    """Whether there is something to read, or something in the way that reading will name."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        pass
    return True


def _files(paths: Iterable[Path]) -> list[Path]:
    files = []
    for path in paths:
        try:
            inside = list(path.iterdir())
        except OSError:
            files.append(path)  # a file, or what reading will say is wrong
        else:
            files += sorted(one for one in inside if one.suffix in _SUFFIXES and one.name[0] != ".")
    return files


def _read(file: Path) -> _Source:
    try:
        content = file.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise Wrong(Problem("the file", error.strerror or str(error), "a file that can be read")) from error
    except UnicodeDecodeError as error:
        raise Wrong(Problem("the file", f"byte {error.start} is not UTF-8", "text in UTF-8")) from error
    if file.suffix == ".toml":
        try:
            values: object = tomllib.loads(content)
        except (ValueError, RecursionError) as error:
            # ValueError: also a number of thousands of digits, which is no TOMLDecodeError.
            raise Wrong(Problem("the file", str(error), "TOML")) from error
    elif file.suffix in (*_SUFFIXES, *_KUBELETS):
        from bayplan.daemon.yaml_text import parse_json, parse_yaml  # noqa: PLC0415 - most nodes have none

        values = parse_json(content) if file.suffix == ".json" else parse_yaml(content)
    else:
        endings = ", ".join((*_SUFFIXES, *_KUBELETS))
        raise Wrong(Problem("the file name", show(file.name), f"one that ends in {endings}"))
    top = dict(items("the file", values))
    if top.get("kind") == "KubeletConfiguration":
        return _of_kubelet(str(file), top)
    return _Source(str(file), {key: (key, value) for key, value in top.items()})


def _of_flags(flags: Mapping[str, Sequence[str]]) -> _Source:
    complaints = Complaints()
    values: dict[str, tuple[str, object]] = {}
    for key, texts in flags.items():
        path = f"--{KEYS[key].flag}"
        with complaints:
            try:
                values[key] = (path, KEYS[key].plain(texts))
            except ParseError as error:
                raise Wrong(Problem(path, show(error.found), error.expected)) from error
    unread = frozenset(flags.keys() - values.keys())
    return _Source(_FLAGS, values, problems=tuple(complaints.problems), unread=unread)


def _reserved_twice(top: Mapping[str, object]) -> tuple[Problem, ...]:
    """An explicit list of CPUs and cgroups for the reservations, of which kubelet takes one only."""
    groups = [key for key in ("systemReservedCgroup", "kubeReservedCgroup") if top.get(key)]
    if not groups or not top.get("reservedSystemCPUs"):
        return ()
    found = f"{show(top['reservedSystemCPUs'])} beside {' and '.join(groups)}"
    kubelet = (
        "can't use reservedSystemCPUs (--reserved-cpus) with systemReservedCgroup (--system-reserved-cgroup) "
        "or kubeReservedCgroup (--kube-reserved-cgroup)"
    )
    return (Problem("reservedSystemCPUs", found, f"one or the other; kubelet: {kubelet}"),)


def _of_kubelet(name: str, top: Mapping[str, object]) -> _Source:
    """What of kubelet's own file means the same here; how kubelet's managers work only for their engine.

    Like kubelet it takes nothing and the empty text for a key that is not there.
    """
    top = {key: value for key, value in top.items() if value not in (None, "")}
    taken = {key: (key, value) for key, value in top.items() if key in KEYS and KEYS[key].of_kubelet}
    managers = {key: (key, value) for key, value in top.items() if key in KEYS and KEYS[key].of_managers}
    gates = top.get("featureGates")
    if isinstance(gates, Mapping):
        ours = {gate: value for gate, value in gates.items() if gate in FEATURE_GATES}
        taken["featureGates"] = ("featureGates", ours)
    return _Source(
        name,
        taken,
        problems=_reserved_twice(top),
        of_managers=managers,
        pinning=tuple(manager for (key, value), manager in _PINNING.items() if top.get(key) == value),
    )
