"""Which kubelet the node runs: what its program says of its version, and the flags that it was started with.

The program asked is that of a kubelet that runs, else the one that its systemd unit names. It is started only
if no container can have put it there. A process counts if it is root's and is in the mount namespace of
process 1 or in ours. The file counts if it is root's and nobody else may write it, and so does each directory
above a unit's program. It is started through a descriptor of that very file, with a limit in time and without
an environment.

Source of what it answers: ``component-base/version/verflag`` (``Kubernetes v1.37.2``), and k3s, whose program
has kubelet within it and the same version number (``k3s version v1.36.3+k3s1 (...)``).
"""

import os
import stat
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import chain, pairwise
from pathlib import Path
from typing import Final

from msgspec import Struct

from bayplan.files import read_text
from bayplan.printable import pattern

LIMIT_S: Final = 10.0
"""It takes a tenth of a second; from a slow disk, of which 80 MB have to be read, some seconds."""

_PROGRAMS: Final = {"kubelet": "kubelet", "k3s": "k3s", "k3s-server": "k3s", "k3s-agent": "k3s"}
"""Names of processes, and what their programs are called."""
_FLAG: Final = pattern(r"--?[A-Za-z]")
_OF_K3S: Final = "kubelet-arg"
"""The flag of k3s whose texts are kubelet's flags, without dashes."""
_UNITS: Final = ("kubelet.service", "k3s.service", "k3s-agent.service")
_UNIT_DIRECTORIES: Final = (
    "etc/systemd/system",
    "run/systemd/system",
    "usr/local/lib/systemd/system",
    "usr/lib/systemd/system",
    "lib/systemd/system",
)
"""systemd.unit(5), the first one wins."""
_ANSWER: Final = pattern(r"(?:Kubernetes|k3s version) (v1\.[0-9]{1,3}\.[0-9]+\S*)")
_ENGINES: Final = frozenset({"crictl", "ctr", "docker", "nerdctl", "podman", "rkt"})
_PREFIXES: Final = "@-:+!|"
"""Of a program in ExecStart=, systemd.service(5)."""
_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH


class KubeletVersion(Struct, frozen=True):
    """A version as kubelet writes it (``v1.37.2``), and where it is known from, for people."""

    version: str
    known_by: str


def kubelet_of_node(root: Path = Path("/"), limit_s: float = LIMIT_S) -> KubeletVersion | None:
    """The version of the kubelet that runs on the node below *root*, else of the one that a unit would start;
    None where no program can be found, trusted, or understood."""
    # One after the other: where one that runs answers, no unit is read.
    for name, path in chain(_running(root), _of_units(root)):
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            continue
        try:
            status = os.fstat(descriptor)
            trusted = stat.S_ISREG(status.st_mode) and _is_roots(status)
            version = _asked(name, descriptor, limit_s) if trusted else None
        finally:
            os.close(descriptor)
        if version is not None:
            return KubeletVersion(version, f"{path} --version")
    return None


def kubelet_flags(root: Path = Path("/")) -> dict[str, list[str]]:
    """The flags that the kubelet which runs on the node below *root* was started with: the texts of each, in
    their order, by its name without dashes. Empty where none runs. What is said by kubelet's flags wins over
    its files."""
    for name, program in _running(root):
        # It may have ended.
        with suppress(OSError, UnicodeDecodeError):
            flags = flags_in(read_text(program.with_name("cmdline")).rstrip("\0").split("\0")[1:])
            if name == _PROGRAMS["kubelet"]:
                return flags
            return flags_in([f"--{text}" for text in flags.get(_OF_K3S, ())])
    return {}


def flags_in(words: Sequence[str]) -> dict[str, list[str]]:
    """Flags as the library pflag reads them, ``--name=text`` or ``--name text``, by their names; a switch
    without a text is true. A word that is not one, a subcommand for instance, is left out."""
    flags: dict[str, list[str]] = {}
    for word, following in pairwise((*words, "")):
        if _FLAG.match(word):
            flag, sign, text = word.partition("=")
            if not sign:
                text = "true" if not following or _FLAG.match(following) else following
            flags.setdefault(flag.lstrip("-").replace("_", "-"), []).append(text)
    return flags


def _running(root: Path) -> Iterator[tuple[str, Path]]:
    """Name and program of each kubelet that is a process of the node's own."""
    proc = root / "proc"
    trusted = set()
    for known in ("1", "self"):
        # That of process 1 takes CAP_SYS_PTRACE, and may be another one than that of a unit with PrivateTmp=.
        with suppress(OSError):
            trusted.add((proc / known / "ns/mnt").readlink())
    with suppress(OSError):
        for directory in sorted(proc.iterdir()):
            if not directory.name.isdigit():
                continue
            # Processes come and go, and of some nothing may be read.
            with suppress(OSError):
                name = _PROGRAMS.get(read_text(directory / "comm").strip(), "")
                is_nodes = directory.stat().st_uid == 0 and (directory / "ns/mnt").readlink() in trusted
                if name and is_nodes:
                    yield name, directory / "exe"


def _of_units(root: Path) -> Iterator[tuple[str, Path]]:
    """Name and program of each kubelet that a unit starts, as far as only root can have put it there."""
    for unit in _UNITS:
        program = _started_by(_exec_start(root, unit))
        if program is None:
            continue
        name = program.name
        with suppress(OSError):
            place = (root / str(program).lstrip("/")).resolve(strict=True)
            if all(
                _is_roots(above.stat()) for above in place.parents if above.is_relative_to(root.resolve())
            ):
                yield name, place


def _started_by(words: Sequence[str]) -> Path | None:
    """The program of kubelet in the words of a command: the first, or what a shell or systemd-inhibit is to
    start. What a container engine is to start is in an image."""
    programs = [Path(word) for text in words for word in text.lstrip(_PREFIXES).split()]
    if not programs or programs[0].name in _ENGINES:
        return None
    return next((one for one in programs if one.is_absolute() and one.name in _PROGRAMS.values()), None)


def _exec_start(root: Path, unit: str) -> list[str]:
    """The words of the last ExecStart= of *unit* and its drop-ins; an empty one takes those before away."""
    files = [root / directory / unit for directory in _UNIT_DIRECTORIES]
    texts = [file for file in files if file.is_file()][:1]
    drop_ins: dict[str, Path] = {}
    for directory in reversed(_UNIT_DIRECTORIES):
        drop_ins |= {file.name: file for file in (root / directory / f"{unit}.d").glob("*.conf")}
    command = ""
    for file in (*texts, *(drop_ins[name] for name in sorted(drop_ins))):
        with suppress(OSError, UnicodeDecodeError):
            for line in read_text(file).replace("\\\n", " ").splitlines():
                key, _, value = line.partition("=")
                if key.strip() == "ExecStart":
                    command = value.strip()
    try:
        from shlex import split  # noqa: PLC0415 - where kubelet is looked for

        return split(command)
    except ValueError:
        return []


def _is_roots(status: os.stat_result) -> bool:
    return status.st_uid == 0 and not status.st_mode & _OTHERS_WRITE


def _asked(name: str, descriptor: int, limit_s: float) -> str | None:
    """What the program behind *descriptor* says of its version; its path may lead elsewhere by now."""
    try:
        finished = subprocess.run(  # noqa: S603 - a file of root's alone: see above
            [name, "--version"],
            executable=f"/proc/self/fd/{descriptor}",
            pass_fds=(descriptor,),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            cwd="/",
            env={},
            timeout=limit_s,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    found = _ANSWER.match(finished.stdout.decode(errors="replace"))
    return None if found is None or finished.returncode else found[1]
