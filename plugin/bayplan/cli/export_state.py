"""`bayplan export-state`: hand containers back to kubelet's static managers, in files that it starts with."""

import argparse
import json
import os
import stat
from pathlib import Path
from typing import Any, Final

from bayplan.cli.client import ask
from bayplan.cli.layout import Block
from bayplan.errors import ConfigError, HostError, Problem
from bayplan.files import check_kind, kind_of, read_text
from bayplan.quantity import counted

VERB: Final = "export-state"
HELP: Final = (
    "write what containers were given as state files that a kubelet with static managers starts with"
)

_NO_POLICY: Final = "none"
_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
_MODE: Final = 0o600
"""kubelet's own."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Where to."""
    parser.add_argument(
        "directory",
        type=Path,
        metavar="DIR",
        help="the directory to write cpu_manager_state and memory_manager_state to, as /var/lib/kubelet",
    )


def answer(arguments: argparse.Namespace) -> dict[str, Any]:
    """The daemon's answer; the files are written.

    Raises:
        ConfigError: there is no such directory, or something in it that would be lost.
        HostError: a file cannot be written.
        BayplanError: no daemon answers, or it says what kubelet could not go on with.
    """
    directory: Path = arguments.directory
    check_kind(directory, stat.S_IFDIR, "a directory")
    view = ask(arguments.admin_socket, VERB)
    paths = {name: directory / name for name in view["files"]}
    problems = tuple(problem for path in paths.values() if (problem := _in_the_way(path)))
    if problems:
        raise ConfigError(str(directory), problems)
    for name, content in view["files"].items():
        _write(paths[name], json.dumps(content, separators=(",", ":")).encode())
    return {**view, "directory": str(directory)}


def blocks(view: dict[str, Any]) -> list[Block]:
    """What was written, for people."""
    count, files = len(view["containers"]), " and ".join(view["files"])
    return [
        f"{view['directory']}: {files}, with {counted(count, 'container')}.",
        "Stop bayplan before kubelet is started with static managers: docs/kubelet-state.md.",
    ]


def _in_the_way(path: Path) -> Problem | None:
    """What is at *path* if it is more than the file of a kubelet whose manager is switched off."""
    expected = "nothing, or the file of a manager that is switched off"
    try:
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode):
            return Problem(str(path), kind_of(status), expected)
        content = json.loads(read_text(path))
    except FileNotFoundError:
        return None
    except OSError as error:
        return Problem(str(path), error.strerror or str(error), expected)
    except (ValueError, RecursionError):
        return Problem(str(path), "a file that is no state of kubelet", expected)
    policy = content.get("policyName") if isinstance(content, dict) else None
    if isinstance(policy, str) and policy.lower() == _NO_POLICY:
        return None
    return Problem(str(path), f"the file of policy {policy!r}", expected)


def _write(path: Path, content: bytes) -> None:
    """Write the file whole, or not at all."""
    unfinished = path.with_name(f".{path.name}.bayplan")
    try:
        unfinished.unlink(missing_ok=True)
        descriptor = os.open(unfinished, _FLAGS, _MODE)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    except OSError as error:
        raise HostError(str(path), f"cannot be written: {error.strerror}") from error
