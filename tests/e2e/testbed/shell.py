"""Runs programs of this machine that build things: output kept, shown only when they fail."""

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from testbed.errors import BuildError, MissingError

BUILD_LIMIT_S = 1800
# What apt, go and uv say when a package source is out of reach.
OUT_OF_REACH = (
    "Failed to fetch",
    "Could not connect",
    "Could not resolve",
    "dial tcp",
    "i/o timeout",
    "error sending request",
)
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
# uv has certificates of its own; behind a proxy those of the machine are wanted.
OWN_CERTIFICATES = {"UV_SYSTEM_CERTS": "1", "UV_NATIVE_TLS": "1"} if CERTIFICATES.exists() else {}


def build_command(
    what: str, argv: Sequence[str | Path], *, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> str:
    """Run a program to its end; its output.

    Raises BuildError with the end of that output when it fails, MissingError when the program is not
    installed or a package source is out of its reach.
    """
    words = [str(word) for word in argv]
    try:
        done = subprocess.run(
            words,
            cwd=cwd,
            env={**OWN_CERTIFICATES, **os.environ, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=BUILD_LIMIT_S,
            check=False,
        )
    except FileNotFoundError as error:
        raise MissingError(
            f"{words[0]} is not installed: run `packaging/dev/setup.sh e2e` as root"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise BuildError(what, " ".join(words), f"took longer than {BUILD_LIMIT_S} s") from error
    if done.returncode:
        for line in done.stdout.splitlines():
            if any(words in line for words in OUT_OF_REACH):
                raise MissingError(f"{what} needs a package source that is out of reach: {line.strip()}")
        raise BuildError(what, " ".join(words), done.stdout)
    return done.stdout


def require(program: str) -> str:
    """The path of a program, or MissingError saying how to get it (sbin is looked at too)."""
    path = shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if path is None:
        raise MissingError(f"{program} is not installed: run `packaging/dev/setup.sh e2e` as root")
    return path


def require_root() -> None:
    if os.geteuid() != 0:
        raise MissingError("Building the virtual machine's Debian image needs root: run this as root")
