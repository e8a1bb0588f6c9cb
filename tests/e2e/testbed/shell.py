"""Runs programs of this machine that build things: output kept in CACHE/logs, shown only when they fail.

None of them outlives this process, however that ends: each is the first process of a PID namespace, which the
kernel ends with it, and what it mounts is seen by nobody else.
"""

import os
import re
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import IO

from testbed import progress
from testbed.cache import cache_root
from testbed.errors import BuildError, MissingError

BUILD_LIMIT_S = 1800
# What programs say of two frequent causes, and what to do about each.
OUT_OF_REACH = (
    "Failed to fetch",  # apt
    "Could not connect",
    "Could not resolve",
    "dial tcp",  # go
    "i/o timeout",
    "error sending request",  # uv
)
ANOTHER_SOURCE = (
    "A package source is out of reach: is the network up? BAYPLAN_DEBIAN_MIRROR names another Debian mirror, "
    "GOPROXY another Go module proxy, UV_DEFAULT_INDEX another Python index."
)
FULL = ("No space left on device", "Disk quota exceeded")
MORE_ROOM = "The disk is full: make room, or set BAYPLAN_CACHE to a directory elsewhere."
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
# uv has certificates of its own; behind a proxy those of the machine are wanted.
OWN_CERTIFICATES = {"UV_SYSTEM_CERTS": "1", "UV_NATIVE_TLS": "1"} if CERTIFICATES.exists() else {}


_children: set[subprocess.Popen[str]] = set()
_children_lock = threading.Lock()


def build_command(
    what: str, argv: Sequence[str | Path], *, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> str:
    """Run a program to its end; its output.

    Raises BuildError with the end of that output when it fails, MissingError when the program is not
    installed.
    """
    words = [require(str(argv[0])), *map(str, argv[1:])]
    log = _new_log(what)
    with log.open("r+", errors="replace") as output:
        with _started(words, output, cwd=cwd, env={**OWN_CERTIFICATES, **os.environ, **(env or {})}) as child:
            try:
                exit_code = child.wait(BUILD_LIMIT_S)
            except subprocess.TimeoutExpired as error:
                raise BuildError(
                    what, " ".join(words), f"took longer than {BUILD_LIMIT_S} s", log=log
                ) from error
        progress.check()
        output.seek(0)
        said = output.read()
    if exit_code == 0:
        log.unlink()
        return said
    advice = ""
    for marks, sentence in ((OUT_OF_REACH, ANOTHER_SOURCE), (FULL, MORE_ROOM)):
        if any(mark in said for mark in marks):
            advice = sentence
    raise BuildError(what, " ".join(words), said, log=log, advice=advice)


def end_all() -> None:
    """End all programs that run, and let none start any more."""
    progress.end()
    with _children_lock:
        for child in _children:
            child.kill()


def _new_log(what: str) -> Path:
    directory = cache_root() / "logs"
    directory.mkdir(parents=True, exist_ok=True)
    name = re.sub("[^a-z0-9.]+", "-", what.lower()).strip("-")
    handle, path = tempfile.mkstemp(prefix=f"{name}-", suffix=".log", dir=directory)
    os.close(handle)
    return Path(path)


@contextmanager
def _started(
    words: Sequence[str], output: IO[str], *, cwd: Path | None, env: Mapping[str, str]
) -> Iterator[subprocess.Popen[str]]:
    with _children_lock:
        progress.check()
        child = subprocess.Popen(
            [*_containment(), *words],
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
        )
        _children.add(child)
    try:
        yield child
    finally:
        child.kill()
        child.wait()
        with _children_lock:
            _children.discard(child)


@cache
def _containment() -> list[str]:
    """What runs a program so that its processes end with this one; less where namespaces are not allowed."""
    if shutil.which("setpriv") is None:
        return []
    dying = ["setpriv", "--pdeathsig", "KILL"]
    apart = [*dying, "unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    allowed = (
        shutil.which("unshare")
        and not subprocess.run([*apart, "true"], capture_output=True, check=False).returncode
    )
    return apart if allowed else dying


def require(program: str) -> str:
    """The path of a program, or MissingError saying how to get it (sbin is looked at too)."""
    path = shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if path is None:
        raise MissingError(f"{program} is not installed: run `make setup-e2e` as root")
    return path


def require_root() -> None:
    if os.geteuid() != 0:
        raise MissingError("Building the virtual machine's Debian image needs root: run this as root")
