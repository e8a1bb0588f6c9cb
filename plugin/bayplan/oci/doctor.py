"""What is wrong with the ways from a node's container engines to bayplan: NRI, OCI hook, precreate, wrapper.

Reads the container engines' files (`bayplan.oci.container_engines`), checks programs and sockets, and says
what is wrong. It changes nothing and connects to nothing; the daemon's own answer is passed in.

What a node needs before a daemon that is asked over NRI alone can place containers is checked in the step
that comes before the daemon in a pod: how a runtime is configured is its operator's business.
"""

import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any, Final

from msgspec import Struct

from bayplan.admin_protocol import API_VERSION, DEFAULT_OCI_SOCKET
from bayplan.config.settings import Settings
from bayplan.errors import Problem
from bayplan.files import read_text
from bayplan.oci.container_engines import ContainerEngine, HookDefinition, read_container_engines
from bayplan.oci.node_checks import DaemonState, Finding, Level, node_findings

WRAPPER_SETTINGS: Final = "/etc/bayplan/oci-runtime.conf"
KEYS: Final = ("runtime", "socket", "timeout", "on-failure")
MAX_TIMEOUT_S: Final = 3600.0


@dataclass(frozen=True, slots=True)
class WrapperSettings:
    """The texts of the lines ``key = value``, and what is wrong with other lines."""

    values: Mapping[str, str] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()


def parse_wrapper_settings(text: str) -> WrapperSettings:
    """The settings in *text*, by the rules of the shell that reads them: blanks around ``=``, no quotes."""
    values: dict[str, str] = {}
    problems = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split(None, 2)
        if not words or words[0].startswith("#"):
            continue
        if len(words) < 2 or words[1] != "=":  # noqa: PLR2004 - key, sign and value
            problems.append(
                Problem(
                    f"{WRAPPER_SETTINGS}:{number}", repr(line.strip()), "key = value, with blanks around ="
                )
            )
        elif words[0] not in KEYS:
            problems.append(Problem(f"{WRAPPER_SETTINGS}:{number}", words[0], f"one of {', '.join(KEYS)}"))
        else:
            values[words[0]] = words[2].strip() if len(words) > 2 else ""  # noqa: PLR2004 - key, sign and value
    problems += [problem for key, value in values.items() if (problem := _wrong(key, value)) is not None]
    return WrapperSettings(values, tuple(problems))


def _wrong(key: str, value: str) -> Problem | None:
    if key == "on-failure" and value not in ("", "allow", "refuse"):
        return Problem(f"{WRAPPER_SETTINGS}: on-failure", value, "allow or refuse")
    if key == "timeout" and value and not _is_timeout(value):
        return Problem(f"{WRAPPER_SETTINGS}: timeout", value, f"seconds above 0, at most {MAX_TIMEOUT_S:g}")
    if key in ("runtime", "socket") and value and not value.startswith("/"):
        return Problem(f"{WRAPPER_SETTINGS}: {key}", value, "an absolute path")
    return None


def _is_timeout(value: str) -> bool:
    try:
        return 0 < float(value) <= MAX_TIMEOUT_S
    except ValueError:
        return False


NRI_SOCKETS: Final = ("/var/run/nri/nri.sock", "/run/nri/nri.sock")
"""One place under two names; below another root the link between them may lead out of it."""
LIBEXEC: Final = "/usr/libexec/bayplan"
HOOK: Final = "oci-hook"
WRAPPER: Final = "bayplan-runtime"
PYTHON: Final = "/usr/bin/python3"
_PYTHON_FROM: Final = (3, 9)
"""Enterprise Linux 9 has 3.9 under this name, whatever else is installed."""
CONNECTED: Final = "connected"
DEADLINE_MS: Final = Settings().request_deadline_ms
"""As far as it is not configured."""
_OUR_STAGES: Final = ("createRuntime", "poststop", "precreate")
_NRI_NAMES: Final = {"containerd": "containerd", "CRI-O": "cri-o"}
"""Engines that have NRI, and what they call themselves there."""
_OCI_STAGES: Final = frozenset(
    ("prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop")
)


NRI_TABLE: Final = '[plugins."io.containerd.nri.v1.nri"]'
"""Of containerd's file, whatever its version is."""
_SANDBOX_ADVICE: Final = "see docs/operations.md, Pods in virtual machines, for what reaches them"
_UNIT: Final = "set OOMScoreAdjust=-999 in its systemd unit"
_PROTECTION: Final = {
    "containerd": _UNIT,
    "crio": _UNIT,
    "dockerd": _UNIT,
    "kubelet": "leave oomScoreAdj of KubeletConfiguration at -999",
    "baypland": "let it start with CAP_SYS_RESOURCE, or set OOMScoreAdjust=-998 in its systemd unit",
}
"""Programs that all containers depend on, and how each is protected."""


class Forms(Struct, frozen=True):
    """How one container engine reaches the daemon; each form is "" (absent) or its state. ``version`` is
    known of the one that is connected."""

    engine: str
    version: str = ""
    nri: str = ""
    hook: str = ""
    precreate: str = ""
    wrapper: str = ""

    @property
    def active(self) -> tuple[str, ...]:
        """The names of those that decide about each container."""
        reached = {"NRI": self.nri == CONNECTED, "hook": self.hook, "precreate": self.precreate}
        reached["wrapper"] = self.wrapper == "default"
        return tuple(name for name, is_active in reached.items() if is_active)


class Examination:
    """An examination of the node below *root*. ``daemon`` is None if none answers.

    ``forms`` alone takes a few files; the findings take a look at every process.
    """

    def __init__(self, root: Path, daemon: DaemonState | None) -> None:
        self._root = root
        self._daemon = daemon
        self._engines = (*(found := read_container_engines(root)), *self._connected_beside(found))
        self.forms = tuple(self._forms(engine) for engine in self._engines)

    @cached_property
    def findings(self) -> tuple[Finding, ...]:
        """What is wrong, and what to do about it."""
        found = [*self._of_engines(), *self._of_programs(), *self._of_wrapper(), *self._of_daemon()]
        found += [
            *self._of_nri(),
            *self._of_sandboxes(),
            *node_findings(self._root, self._daemon),
            *self._of_unprotected(),
        ]
        # Two engines may read the same file.
        return tuple(dict.fromkeys(found))

    def view(self) -> dict[str, Any]:
        """The whole examination, ready for JSON; ``health`` is the worst that was found."""
        return view_of(self.forms, self.findings)

    def _forms(self, engine: ContainerEngine) -> Forms:
        ours = [hook for hook in engine.hooks if _name(hook.program) == HOOK]
        wrapped = [name for name, program in engine.runtimes.items() if _name(program) == WRAPPER]
        nri = self._nri(engine)
        return Forms(
            engine.name,
            version=self._daemon.runtime_version if self._daemon is not None and nri == CONNECTED else "",
            nri=nri,
            hook=_at_stage(ours, "createRuntime"),
            precreate=_at_stage(ours, "precreate") if engine.name == "podman" else "",
            wrapper="default" if engine.default in wrapped else ", ".join(sorted(wrapped)),
        )

    def _nri(self, engine: ContainerEngine) -> str:
        name = nri_name(engine)
        if not name:
            return ""
        if self._daemon is not None and self._daemon.nri_runtime.lower() == name:
            return CONNECTED
        return "on" if engine.nri is not False and any(map(self._is_socket, NRI_SOCKETS)) else ""

    def _connected_beside(self, found: tuple[ContainerEngine, ...]) -> Iterator[ContainerEngine]:
        """The runtime that the daemon is connected to, if none of its files is known."""
        runtime = "" if self._daemon is None else self._daemon.nri_runtime
        if runtime and all(nri_name(engine) != runtime.lower() for engine in found):
            names = {name: engine for engine, name in _NRI_NAMES.items()}
            yield ContainerEngine(names.get(runtime.lower(), runtime), nri=True)

    def _of_nri(self) -> Iterator[Finding]:
        """Engines whose NRI is switched off, is configured where nobody reads it, or gives plugins less time
        than ours takes."""
        for engine, forms in zip(self._engines, self.forms, strict=True):
            for lost in engine.misplaced:
                place = f"[{lost.table}]" if lost.table else "the root of the file"
                table = "[crio.nri]" if engine.name == "CRI-O" else NRI_TABLE
                move = "move it to" if lost.name == lost.key else f"it is called {lost.name}: set that in"
                yield Finding(
                    Level.WARNING,
                    lost.path,
                    f"{lost.key} = {lost.value} stands in {place}, where {engine.name} ignores it",
                    f"{move} {table}{_of_template(engine)}",
                )
            if engine.nri is False and not forms.active:
                yield Finding(
                    Level.WARNING,
                    engine.name,
                    "NRI is switched off in its configuration",
                    how_to_switch_on(engine),
                )
            limit_ms = engine.nri_timeout_ms
            if limit_ms is not None and limit_ms <= DEADLINE_MS:
                text = (
                    f"gives NRI plugins {limit_ms} ms for an answer, and bayplan takes up to {DEADLINE_MS} ms"
                )
                key = "nri_plugin_request_timeout" if engine.name == "CRI-O" else "plugin_request_timeout"
                advice = f"set {key} to 2s, or requestDeadline of bayplan lower"
                yield Finding(Level.WARNING, engine.name, text, advice)

    def _of_sandboxes(self) -> Iterator[Finding]:
        """Runtimes that run containers in a virtual machine, of which the node's cgroups see the outside."""
        for engine in self._engines:
            if engine.sandboxes:
                named = ", ".join(f"{name} ({kind})" for name, kind in sorted(engine.sandboxes.items()))
                text = (
                    f"has runtimes (handlers of RuntimeClasses) for sandboxes: {named}. There CPUs and nodes "
                    "hold for a pod's sandbox at most, not for each container in it, and its overhead is "
                    "not counted"
                )
                yield Finding(Level.NOTE, engine.name, text, _SANDBOX_ADVICE)

    def _of_engines(self) -> Iterator[Finding]:
        for engine, forms in zip(self._engines, self.forms, strict=True):
            for problem in engine.problems:
                yield Finding(
                    Level.ERROR, problem.path, f"found {problem.found}, expected {problem.expected}"
                )
            if len(forms.active) > 1:
                both = " and ".join(forms.active)
                yield Finding(
                    Level.WARNING,
                    engine.name,
                    f"{both} are active at once: the first that sees a container decides, each costs time",
                    "keep one: NRI where there is NRI, else what docs/oci-hook.md says",
                )
            if engine.name == "CRI-O":
                yield from _unknown_stages(engine)

    def _of_programs(self) -> Iterator[Finding]:
        if any(forms.hook or forms.precreate or forms.wrapper for forms in self.forms):
            yield from self._of_interpreter()
        for engine in self._engines:
            for hook in engine.hooks:
                if _name(hook.program) == HOOK:
                    yield from self._of_program(hook.program, f"named by {hook.path}")
                    yield from _wrong_stages(hook)
            for name, program in engine.runtimes.items():
                if _name(program) != WRAPPER:
                    continue
                named = f"the runtime {name} of {engine.name}"
                yield from self._of_program(program, named)
                beside = str(PurePosixPath(program).with_name(HOOK))
                if self._status(program) is not None and self._status(beside) is None:
                    yield from self._of_program(f"{LIBEXEC}/{HOOK}", f"needed by {named}")

    def _of_interpreter(self) -> Iterator[Finding]:
        found, needed = self._status(PYTHON), ".".join(map(str, _PYTHON_FROM))
        if found is None or not found.st_mode & 0o111:
            text = "oci-hook is run by it, and it is not there"
            yield Finding(Level.ERROR, PYTHON, text, f"install Python {needed} or later")
            return
        # It is a link to a name with the version; starting it would run a program from below the root.
        version = re.fullmatch(r"python(\d+)\.(\d+)", os.path.realpath(self._at(PYTHON)).rpartition("/")[2])
        if version is not None and (int(version[1]), int(version[2])) < _PYTHON_FROM:
            text = f"is Python {version[1]}.{version[2]}, and oci-hook needs {needed}"
            yield Finding(Level.ERROR, PYTHON, text, f"install Python {needed} or later there")

    def _of_program(self, program: str, named: str) -> Iterator[Finding]:
        found = self._status(program)
        if found is None or not stat.S_ISREG(found.st_mode):
            text = f"{named}, but there is no such program"
            yield Finding(
                Level.ERROR, program, text, "install it (packaging/install-hooks), or remove what names it"
            )
        elif not found.st_mode & 0o111:
            yield Finding(Level.ERROR, program, f"{named}, but it is not executable", f"chmod 755 {program}")
        elif found.st_mode & 0o022 or found.st_uid not in (0, os.geteuid()):
            text = (
                f"mode {stat.S_IMODE(found.st_mode):o}, user {found.st_uid}: others than root can change it"
            )
            yield Finding(Level.ERROR, program, text, f"chown root {program}; chmod 755 {program}")

    def _of_wrapper(self) -> Iterator[Finding]:
        settings = self._wrapper_settings()
        for problem in settings.problems:
            yield Finding(Level.ERROR, problem.path, f"found {problem.found}, expected {problem.expected}")
        runtime = settings.values.get("runtime", "")
        if not runtime.startswith("/"):
            return
        subject = f"{WRAPPER_SETTINGS}: runtime"
        if _name(runtime) == WRAPPER:
            yield Finding(Level.ERROR, subject, f"{runtime} is the wrapper itself", "name the real runtime")
        elif (found := self._status(runtime)) is None or not found.st_mode & 0o111:
            text = f"{runtime} is no program that can be run"
            yield Finding(Level.ERROR, subject, text, "name runc, crun or another OCI runtime")

    def _of_daemon(self) -> Iterator[Finding]:
        if self._daemon is None:
            advice = "systemctl start bayplan; the journal says why it stopped (journalctl -u bayplan)"
            yield Finding(Level.ERROR, "baypland", "no daemon answers; nothing is decided", advice)
        elif not any(forms.active for forms in self.forms):
            text = "the daemon runs, but no engine asks it"
            yield Finding(
                Level.WARNING, "baypland", text, "switch NRI on, or install a form of docs/oci-hook.md"
            )
        for text, mended in ({} if self._daemon is None else self._daemon.faults).items():
            advice = "it was put right; please report it, with the daemon's log" if mended else ""
            yield Finding(Level.ERROR if mended else Level.WARNING, "ledger", text, advice)
        for forms in self.forms:
            if forms.nri == "on" and self._daemon is not None:
                text = f"{NRI_SOCKETS[0]} is there, but the daemon is not connected to {forms.engine}"
                yield Finding(Level.WARNING, forms.engine, text, "see bayplan status and the daemon's log")
        if any(forms.hook or forms.precreate or forms.wrapper for forms in self.forms):
            yield from self._of_socket(
                self._wrapper_settings().values.get("socket") or str(DEFAULT_OCI_SOCKET)
            )

    def _of_unprotected(self) -> Iterator[Finding]:
        """Programs that every container depends on, and that the kernel may kill like any other."""
        try:
            found = [one for one in self._at("/proc").iterdir() if one.name.isdecimal()]
        except OSError:
            return
        for directory in sorted(found, key=lambda one: int(one.name)):
            try:
                program = (directory / "comm").read_text(errors="replace").strip()
                score = int((directory / "oom_score_adj").read_text())
            except (OSError, ValueError):
                continue  # It has ended.
            if program in _PROTECTION and score >= 0:
                yield Finding(
                    Level.WARNING,
                    f"{program} (process {directory.name})",
                    f"has the oom_score_adj {score}: when memory runs out the kernel may kill it",
                    _PROTECTION[program],
                )

    def _of_socket(self, path: str) -> Iterator[Finding]:
        found = self._status(path)
        if found is None:
            text = "the daemon's socket for hooks and wrapper is not there"
            yield Finding(Level.ERROR, path, text, "start the daemon; see ociSocket in docs/configuration.md")
        elif not stat.S_ISSOCK(found.st_mode):
            yield Finding(Level.ERROR, path, "is not a socket", "remove it, and restart the daemon")
        elif found.st_mode & 0o022 or found.st_uid not in (0, os.geteuid()):
            text = f"mode {stat.S_IMODE(found.st_mode):o}, user {found.st_uid}: others than root may connect"
            yield Finding(Level.ERROR, path, text, "restart the daemon, which makes it anew")

    def _wrapper_settings(self) -> WrapperSettings:
        try:
            text = read_text(self._at(WRAPPER_SETTINGS), errors="replace")
        except OSError:
            return WrapperSettings()
        return parse_wrapper_settings(text)

    def _at(self, path: str) -> Path:
        return self._root / path.lstrip("/")

    def _status(self, path: str) -> os.stat_result | None:
        try:
            return self._at(path).stat()
        except OSError:
            return None

    def _is_socket(self, path: str) -> bool:
        found = self._status(path)
        return found is not None and stat.S_ISSOCK(found.st_mode)


def view_of(forms: Iterable[Forms], findings: Sequence[Finding]) -> dict[str, Any]:
    """An answer of `bayplan doctor`, ready for JSON; ``health`` is the worst of *findings*."""
    levels = {finding.level for finding in findings}
    return {
        "apiVersion": API_VERSION,
        "kind": "Examination",
        "health": next((level.value for level in (Level.ERROR, Level.WARNING) if level in levels), "ok"),
        "engines": [
            {
                "name": one.engine,
                "version": one.version,
                "nri": one.nri,
                "hook": one.hook,
                "precreate": one.precreate,
                "wrapper": one.wrapper,
            }
            for one in forms
        ],
        "findings": [
            {"level": one.level.value, "subject": one.subject, "text": one.text, "advice": one.advice}
            for one in findings
        ],
    }


def nri_name(engine: ContainerEngine) -> str:
    """The engine's own name in NRI; "" if it has none."""
    return _NRI_NAMES.get(engine.name.partition(" ")[0], "")


def how_to_switch_on(engine: ContainerEngine) -> str:
    """What to change so that NRI is on: in the template, where the configuration is made from one."""
    if engine.distribution:
        directory = _template_directory(engine)
        return (
            f"add packaging/containerd/90-bayplan.toml to {directory}/config.toml.tmpl, of which config.toml "
            f"is made (config-v3.toml.tmpl for containerd 2), and restart {engine.distribution}"
        )
    if engine.name == "CRI-O":
        return "set enable_nri = true in [crio.nri], and restart crio"
    return "install packaging/containerd/90-bayplan.toml, and restart containerd"


def _template_directory(engine: ContainerEngine) -> str:
    return f"/var/lib/rancher/{engine.distribution}/agent/etc/containerd"


def _of_template(engine: ContainerEngine) -> str:
    """Where a key is to be moved, if the file itself is written anew at each start."""
    if not engine.distribution:
        return f", and restart {'crio' if engine.name == 'CRI-O' else 'containerd'}"
    return (
        f" of {_template_directory(engine)}/config.toml.tmpl (config-v3.toml.tmpl for containerd 2), and "
        f"restart {engine.distribution}"
    )


def _unknown_stages(crio: ContainerEngine) -> Iterator[Finding]:
    for hook in crio.hooks:
        for stage in hook.stages:
            if stage not in _OCI_STAGES:
                text = (
                    f"has the stage {stage} in a directory that CRI-O reads, which keeps CRI-O from starting"
                )
                advice = "move it to /usr/share/bayplan/podman-hooks.d, which only podman reads"
                yield Finding(Level.ERROR, hook.path, text, advice)


def _wrong_stages(hook: HookDefinition) -> Iterator[Finding]:
    for stage in hook.stages:
        if stage not in _OUR_STAGES:
            text = f"has oci-hook at the stage {stage}, expected one of {', '.join(_OUR_STAGES)}"
            yield Finding(Level.ERROR, hook.path, text, "install it again (packaging/install-hooks)")


def _at_stage(hooks: list[HookDefinition], stage: str) -> str:
    return "active" if any(stage in hook.stages for hook in hooks) else ""


def _name(program: str) -> str:
    return PurePosixPath(program).name


_FOLLOWS: Final = ", so that nobody would ask bayplan about containers"


def prerequisites(root: Path, nri_socket: Path | None = None) -> dict[str, Any]:
    """The examination of the node below *root*, as far as it matters before the start; ready for JSON. Of the
    node is *nri_socket*, too; None: it is where runtimes have it by default."""
    sockets = NRI_SOCKETS if nri_socket is None else (str(nri_socket),)
    findings = (*_of_runtimes(root, sockets), *node_findings(root, None))
    return view_of(Examination(root, None).forms, findings)


def _of_runtimes(root: Path, sockets: Sequence[str]) -> Iterator[Finding]:
    if any(_is_socket(root / path.lstrip("/")) for path in sockets):
        return
    runtimes = [engine for engine in read_container_engines(root) if nri_name(engine)]
    if not runtimes:
        text = f"is not there, and neither containerd nor CRI-O was found below {root}"
        yield Finding(Level.ERROR, sockets[-1], text, "bayplan needs one of them, with NRI switched on")
    for engine in runtimes:
        yield Finding(Level.ERROR, engine.name, f"serves no {sockets[-1]}{_FOLLOWS}", _advice(engine))


def _advice(engine: ContainerEngine) -> str:
    if engine.nri:
        return "NRI is switched on in its configuration: restart it, and see its log"
    return how_to_switch_on(engine)


def _is_socket(path: Path) -> bool:
    try:
        return stat.S_ISSOCK(path.stat().st_mode)
    except OSError:
        return False
