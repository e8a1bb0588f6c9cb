"""How a node's container engines are set up to start containers: their own configuration files, as values.

containerd, CRI-O, podman and docker, each by its own rules for defaults, drop-ins and order. Every path is
below an injectable root. Nothing is checked here; a file that cannot be read becomes a `Problem`.
"""

import json
import re
import tomllib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, Final

from bayplan.config.values import show
from bayplan.errors import Problem
from bayplan.files import read_text
from bayplan.kubelet.eviction_manager import ThresholdError, read_duration
from bayplan.printable import pattern

Table = dict[str, Any]

SHARED_HOOKS: Final = "/usr/share/containers/oci/hooks.d"
"""Read by CRI-O and podman unless they are configured otherwise; podman reads the second one too."""
_RANCHER: Final = "/var/lib/rancher/{}/agent/etc/containerd/config.toml"
LOCAL_HOOKS: Final = "/etc/containers/oci/hooks.d"
_NS_PER_MS: Final = 1_000_000
_NRI_TABLE: Final = ("plugins", "io.containerd.nri.v1.nri")
_NRI_TABLE_OF_VERSION_1: Final = ("plugins", "nri")
"""Version 1 of containerd's file calls plugins by their short names."""
_NRI_KEYS: Final = frozenset(
    ("plugin_request_timeout", "plugin_registration_timeout", "plugin_config_path", "disable_connections")
)
"""Keys that only NRI has in containerd's file."""
_AMBIGUOUS_NRI_KEYS: Final = frozenset(("disable", "socket_path", "plugin_path"))
"""Keys of NRI that other plugins of containerd have, too."""
_NRI_TABLE_OF_CRIO: Final = ("crio", "nri")
_NRI_KEYS_OF_CRIO: Final = {
    "enable_nri": "disable",
    "nri_listen": "socket_path",
    "nri_plugin_dir": "plugin_path",
    "nri_plugin_config_dir": "plugin_config_path",
    "nri_plugin_registration_timeout": "plugin_registration_timeout",
    "nri_plugin_request_timeout": "plugin_request_timeout",
    "nri_disable_connections": "disable_connections",
}
"""Keys of NRI in CRI-O's files, and what containerd calls them."""
_NAMES_IN_CONTAINERD: Final = _NRI_KEYS_OF_CRIO
_NAMES_IN_CRIO: Final = {name: key for key, name in _NRI_KEYS_OF_CRIO.items() if name in _NRI_KEYS}
_RUNTIMES_APART: Final = {"default": "default_runtime", "untrusted": "untrusted_workload_runtime"}
"""Handlers that have tables of their own in older files of containerd."""
_NRI_IS_ON_FROM: Final = 3
"""Versions of containerd's file from this one on are of containerd 2, where NRI is on by default."""
_SANDBOXES: Final = {
    "kata": "Kata Containers",
    "runsc": "gVisor",
    "gvisor": "gVisor",
    "firecracker": "Firecracker",
    "urunc": "urunc",
    "krun": "libkrun",
    "crun-vm": "crun-vm",
    "nerdbox": "libkrun",
}
"""Runtimes that do not run a container as processes of the node, by what their names begin with."""
_SANDBOX: Final = pattern(rf"(?:^|[._-])({'|'.join(_SANDBOXES)})")
_PROGRAM_DIRECTORIES: Final = ("/usr/bin", "/usr/local/bin", "/usr/sbin", "/usr/local/sbin")


@dataclass(frozen=True, slots=True)
class HookDefinition:
    """A file in a directory of hooks; ``program`` is started at ``stages``."""

    path: str
    program: str
    stages: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MisplacedKey:
    """A key of NRI in a ``table`` of the file ``path`` where the engine ignores it, or which it calls by
    another ``name``."""

    path: str
    table: str
    key: str
    value: str
    name: str


@dataclass(frozen=True, slots=True)
class ContainerEngine:
    """A container engine as it is configured.

    ``nri`` is whether NRI is switched on; None if that depends on its version, or it has none. ``runtimes``
    maps the names of OCI runtimes to their programs, where a file says them; ``default`` is the name of the
    one for containers that ask for none. ``nri_timeout_ms`` is what a file says that NRI plugins have for an
    answer, ``misplaced`` what files say of NRI in vain; ``distribution`` is the Kubernetes distribution (k3s,
    rke2) that the engine is a part of. ``sandboxes`` maps the handlers of RuntimeClasses whose containers run
    in a virtual machine, or on a kernel of their own, to the kind of it.
    """

    name: str
    nri: bool | None = None
    nri_timeout_ms: int | None = None
    misplaced: tuple[MisplacedKey, ...] = ()
    distribution: str = ""
    hooks: tuple[HookDefinition, ...] = ()
    runtimes: Mapping[str, str] = field(default_factory=dict)
    default: str = ""
    sandboxes: Mapping[str, str] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()


def read_container_engines(root: Path) -> tuple[ContainerEngine, ...]:
    """The engines that are found below *root*, each as its files say."""
    known: tuple[tuple[str, str, Callable[[_Files], ContainerEngine]], ...] = (
        ("containerd", "/etc/containerd/config.toml", _containerd),
        *((name, _RANCHER.format(name), partial(_rancher, name)) for name in ("k3s", "rke2")),
        ("crio", "/etc/crio", _crio),
        ("podman", "/etc/containers/containers.conf", _podman),
        ("dockerd", "/etc/docker/daemon.json", _docker),
    )
    engines = []
    for program, settings, read in known:
        if Path(root, settings[1:]).exists() or _installed(root, program):
            engines.append(read(_Files(root)))
    return tuple(engines)


class _Files:
    """Reads files below a root, and keeps what was wrong with them."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.problems: list[Problem] = []

    def at(self, path: str) -> Path:
        """Where the node's *path* is for us."""
        return self._root / path.lstrip("/")

    def listed(self, directory: str, ending: str = "") -> list[str]:
        """The files of *directory* in the order of their names; none if it is not there."""
        try:
            names = sorted(one.name for one in self.at(directory).iterdir() if one.is_file())
        except OSError:
            return []
        return [f"{directory}/{name}" for name in names if name.endswith(ending)]

    def toml(self, path: str) -> Table:
        """The content of *path*; empty if it is absent or broken."""
        return self._parsed(path, "TOML", tomllib.loads)

    def json(self, path: str) -> Table:
        """The content of *path*; empty if it is absent or broken."""
        return self._parsed(path, "JSON", json.loads)

    def duration_ms(self, path: str, table: Table, key: str) -> int | None:
        """The duration that *table*, of the file *path*, has for *key*, as Go spells it; None if it says
        nothing or nonsense."""
        if key not in table:
            return None
        try:
            return read_duration(key, str(table[key])) // _NS_PER_MS
        except ThresholdError as wrong:
            self.problems.append(Problem(f"{path}: {key}", show(table[key]), wrong.expected))
            return None

    def _parsed(self, path: str, language: str, parse: Callable[[str], Any]) -> Table:
        try:
            content = parse(read_text(self.at(path)))
        except FileNotFoundError:
            return {}
        except OSError as error:
            self.problems.append(Problem(path, error.strerror or str(error), "a file that can be read"))
            return {}
        except (ValueError, RecursionError) as error:
            self.problems.append(Problem(path, str(error), language))
            return {}
        if not isinstance(content, dict):
            self.problems.append(Problem(path, type(content).__name__, "an object"))
            return {}
        return content


def _installed(root: Path, program: str) -> bool:
    return any(Path(root, folder[1:], program).exists() for folder in _PROGRAM_DIRECTORIES)


def _rancher(distribution: str, files: _Files) -> ContainerEngine:
    """The containerd of k3s or rke2, which write its configuration themselves."""
    found = _containerd(files, _RANCHER.format(distribution))
    return replace(found, name=f"containerd ({distribution})", distribution=distribution)


def _containerd(files: _Files, main: str = "/etc/containerd/config.toml") -> ContainerEngine:
    """What *main* and its imports say. NRI is on by default from 2.0 on, which writes version 3."""
    contents = _with_imports(files, main)
    content: Table = {}
    for part in contents.values():
        content = _merged(content, part)
    version = content.get("version")
    version = version if isinstance(version, int) else 0
    plugins = _table(content, "plugins")
    own_tables = (_NRI_TABLE, _NRI_TABLE_OF_VERSION_1) if version <= 1 else (_NRI_TABLE,)
    nri = _table(plugins, _NRI_TABLE[-1])
    disabled = nri.get("disable", False if version >= _NRI_IS_ON_FROM else None)
    runtimes: dict[str, str] = {}
    sandboxes: dict[str, str] = {}
    default = ""
    for plugin in ("cri", "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime"):
        cri = _table(_table(plugins, plugin), "containerd")
        default = str(cri.get("default_runtime_name", default))
        handlers = {name: _table(cri, key) for name, key in _RUNTIMES_APART.items() if key in cri}
        handlers |= {name: _table(cri["runtimes"], name) for name in _table(cri, "runtimes")}
        for name, runtime in handlers.items():
            options = _table(runtime, "options")
            program = options.get("BinaryName") or options.get("Runtime") or runtime.get("runtime_engine", "")
            runtimes[name] = str(program)
            sandbox = _sandbox(runtime.get("runtime_type"), runtime.get("runtime_path"), program)
            if sandbox:
                sandboxes[name] = sandbox
    return ContainerEngine(
        "containerd",
        nri=None if disabled is None else not disabled,
        nri_timeout_ms=files.duration_ms(main, nri, "plugin_request_timeout"),
        misplaced=tuple(
            key
            for path, part in contents.items()
            for key in _misplaced_nri_keys(
                path, part, own_tables, _NRI_KEYS, _NAMES_IN_CONTAINERD, _AMBIGUOUS_NRI_KEYS
            )
        ),
        runtimes=runtimes,
        default=default or "runc",
        sandboxes=sandboxes,
        problems=tuple(files.problems),
    )


def _with_imports(files: _Files, main: str) -> dict[str, Table]:
    """The contents by their paths, in the order in which containerd merges them: breadth first, each file
    once, relative paths from the directory of the file that has them."""
    contents: dict[str, Table] = {}
    pending = [main]
    while pending:
        path = pending.pop(0)
        if path in contents:
            continue
        contents[path] = files.toml(path)
        for wanted in _texts(contents[path].get("imports")):
            imported = PurePosixPath(path).parent / wanted
            listed = files.listed(str(imported.parent))
            pending += [one for one in listed if PurePosixPath(one).match(imported.name)]
    return contents


def _misplaced_nri_keys(
    path: str,
    content: Table,
    own_tables: Collection[tuple[str, ...]],
    keys: Collection[str],
    names: Mapping[str, str],
    ambiguous: Collection[str] = (),
) -> Iterator[MisplacedKey]:
    """*keys* of NRI that *content* has outside of NRI's own tables, where engines warn in their logs at most
    and go on; and keys by which another engine calls them, with the engine's own *names*. An *ambiguous* key
    is NRI's at the root, in a table named after NRI, and beside one that only NRI has."""
    pending: list[tuple[tuple[str, ...], Table]] = [((), content)]
    while pending:
        place, table = pending.pop(0)
        pending += [((*place, name), value) for name, value in table.items() if isinstance(value, dict)]
        of_nri = not place or "nri" in ".".join(place).split(".") or not _NRI_KEYS.isdisjoint(table)
        for key in table:
            if key in names:
                yield _misplaced(path, place, key, table[key], names[key])
            elif place in own_tables:
                continue
            elif key in keys or (of_nri and key in ambiguous):
                yield _misplaced(path, place, key, table[key], key)


def _misplaced(path: str, place: Iterable[str], key: str, value: object, name: str) -> MisplacedKey:
    return MisplacedKey(path, _toml_name(place), key, json.dumps(value, default=str), name)


def _toml_name(place: Iterable[str]) -> str:
    """The name of a table as a file has it; "" for the root."""
    return ".".join(one if re.fullmatch(r"[\w-]+", one, re.ASCII) else json.dumps(one) for one in place)


def _sandbox(*names: object) -> str:
    """The kind of sandbox that a runtime with these types and programs makes; "" for none. The handler's own
    name says nothing: one that is called kata may well be runc."""
    for name in names:
        found = _SANDBOX.search(str(name or "").rpartition("/")[2])
        if found:
            return _SANDBOXES[found[1]]
    return ""


def _sandboxes(runtimes: Mapping[str, Iterable[object]]) -> dict[str, str]:
    """The kinds of those *runtimes* that make sandboxes, by types and programs."""
    kinds = {name: _sandbox(*names) for name, names in runtimes.items()}
    return {name: kind for name, kind in kinds.items() if kind}


def _crio(files: _Files) -> ContainerEngine:
    """What crio.conf and its drop-ins say. The defaults are those of 1.31 and later."""
    paths = ("/etc/crio/crio.conf", *files.listed("/etc/crio/crio.conf.d"))
    contents = {path: files.toml(path) for path in paths}
    content: Table = {}
    for part in contents.values():
        content = _merged(content, _table(part, "crio"))
    runtime = _table(content, "runtime")
    handlers = _table(runtime, "runtimes")
    programs = {name: str(_table(handlers, name).get("runtime_path", "")) for name in handlers}
    sandboxes = {}
    for name, program in programs.items():
        is_vm = _table(handlers, name).get("runtime_type") == "vm"
        sandboxes[name] = _sandbox(program) or ("virtual machine" if is_vm else "")
    return ContainerEngine(
        "CRI-O",
        nri=bool(_table(content, "nri").get("enable_nri", True)),
        nri_timeout_ms=files.duration_ms("/etc/crio", _table(content, "nri"), "nri_plugin_request_timeout"),
        misplaced=tuple(
            key
            for path, part in contents.items()
            for key in _misplaced_nri_keys(
                path, part, (_NRI_TABLE_OF_CRIO,), _NRI_KEYS_OF_CRIO, _NAMES_IN_CRIO
            )
        ),
        hooks=_hooks(files, _texts(runtime.get("hooks_dir")) or [SHARED_HOOKS]),
        runtimes=programs,
        default=str(runtime.get("default_runtime", "")) or "crun",
        sandboxes={name: kind for name, kind in sandboxes.items() if kind},
        problems=tuple(files.problems),
    )


def _podman(files: _Files) -> ContainerEngine:
    """What containers.conf, those of the system, and their drop-ins say."""
    engine: Table = {}
    paths = ["/usr/share/containers/containers.conf", "/etc/containers/containers.conf"]
    paths += files.listed("/etc/containers/containers.conf.d", ".conf")
    for path in paths:
        engine = _merged(engine, _table(files.toml(path), "engine"))
    runtimes = {}
    for name, candidates in _table(engine, "runtimes").items():
        found = [one for one in _texts(candidates) if files.at(one).exists()]
        runtimes[name] = (found or _texts(candidates) or [""])[0]
    default = str(engine.get("runtime", ""))
    if default.startswith("/"):
        runtimes[default] = default
    return ContainerEngine(
        "podman",
        hooks=_hooks(files, _texts(engine.get("hooks_dir")) or [SHARED_HOOKS, LOCAL_HOOKS]),
        runtimes=runtimes,
        default=default,
        sandboxes=_sandboxes({name: (program,) for name, program in runtimes.items()}),
        problems=tuple(files.problems),
    )


def _docker(files: _Files) -> ContainerEngine:
    """Docker as daemon.json configures it."""
    content = files.json("/etc/docker/daemon.json")
    known = {name: _table(content["runtimes"], name) for name in _table(content, "runtimes")}
    return ContainerEngine(
        "docker",
        runtimes={name: str(one.get("path", "")) for name, one in known.items()},
        default=str(content.get("default-runtime", "")) or "runc",
        sandboxes=_sandboxes(
            {name: (one.get("path"), one.get("runtimeType")) for name, one in known.items()}
        ),
        problems=tuple(files.problems),
    )


def _hooks(files: _Files, directories: Iterable[str]) -> tuple[HookDefinition, ...]:
    """The definitions in *directories*; one in a later directory masks its namesake in an earlier one."""
    paths = {
        path.rpartition("/")[2]: path
        for directory in directories
        for path in files.listed(directory, ".json")
    }
    definitions = []
    for path in paths.values():
        content = files.json(path)
        hook = content.get("hook")
        # Version 0.1.0 has the program itself there, and may call the stages by another name.
        program = _table(content, "hook").get("path", "") if isinstance(hook, dict) else hook
        stages = content.get("stages", content.get("stage"))
        if isinstance(program, str) and program:
            definitions.append(HookDefinition(path, program, tuple(_texts(stages))))
        elif content:
            files.problems.append(Problem(f"{path}: hook.path", repr(program), "the path of a program"))
    return tuple(definitions)


def _merged(below: Table, above: Table) -> Table:
    """Tables are joined; any other value of *above* wins."""
    joined = dict(below)
    for name, value in above.items():
        known = joined.get(name)
        if isinstance(known, dict) and isinstance(value, dict):
            joined[name] = _merged(known, value)
        else:
            joined[name] = _appended(known, value)
    return joined


def _appended(known: Any, value: Any) -> Any:
    """*value*, or *known* with the elements of *value* if that is a list of containers.conf with an element
    ``{append=true}``."""
    appends = isinstance(value, list) and any(isinstance(one, dict) and one.get("append") for one in value)
    return [*known, *value] if appends and isinstance(known, list) else value


def _table(content: Table, name: str) -> Table:
    value = content.get(name)
    return value if isinstance(value, dict) else {}


def _texts(value: Any) -> list[str]:
    return [one for one in value if isinstance(one, str)] if isinstance(value, list) else []
