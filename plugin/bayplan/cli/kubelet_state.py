"""What kubelet's static managers placed becomes bayplan's (`bayplan import-state`), or the claims that
dra-driver-cpu has prepared; and the way back, in files that kubelet starts with (`export-state`).
"""

import argparse
import json
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from bayplan.cli.client import ask
from bayplan.cli.layout import Block, Column, Table
from bayplan.errors import ConfigError, HostError, Problem
from bayplan.files import check_kind, kind_of, read_text, unreadable
from bayplan.quantity import counted

DEFAULT_DIRECTORY: Final = Path("/var/lib/kubelet")
FILES: Final = {"cpu": "cpu_manager_state", "memory": "memory_manager_state"}
CLAIMS: Final = "claims"
CLAIMS_FILE: Final = "dra_manager_state"
CDI_DIRECTORY: Final = Path("/var/run/cdi")
CDI_FILES: Final = ("dra.k8s.io-cpu_*.json", "dra.cpu_metadata_*.json")
"""The driver's CDI specs: of the CPUs of each claim, and of the file that describes these to containers."""
_COLUMNS: Final = (Column("CONTAINER"), Column("CPUS"), Column("NODES"))
_CLAIM_COLUMNS: Final = (
    Column("RESOURCE CLAIM", least=16),
    Column("NODES"),
    Column("CPUS"),
    Column("CONTAINERS", rank=1),
)
_LEFT_COLUMNS: Final = (Column("NOT TAKEN OVER", least=16), Column("BECAUSE", least=20))
_NO_POLICY: Final = "none"
_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
_MODE: Final = 0o600
"""kubelet's own."""


class ImportState:
    """`bayplan import-state`: take over what kubelet's managers, or dra-driver-cpu, have given."""

    VERB = "import-state"
    HELP = (
        "take over what kubelet's static CPU and Memory Manager, or dra-driver-cpu, have given to "
        "containers; moves none"
    )

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        """Where kubelet's files are, and whether to do it."""
        parser.add_argument(
            "--kubelet-directory",
            type=Path,
            default=DEFAULT_DIRECTORY,
            metavar="DIR",
            help=f"where kubelet keeps its state files (default: {DEFAULT_DIRECTORY})",
        )
        parser.add_argument(
            "--only",
            choices=(*FILES, CLAIMS),
            help="leave the other manager's file out; with claims take over what dra-driver-cpu has prepared",
        )
        parser.add_argument(
            "--cdi-directory",
            type=Path,
            default=CDI_DIRECTORY,
            metavar="DIR",
            help=f"where dra-driver-cpu's CDI specs are, with --only claims (default: {CDI_DIRECTORY})",
        )
        confirmed = parser.add_mutually_exclusive_group()
        confirmed.add_argument(
            "--dry-run", action="store_true", help="only show what would be taken over (the default)"
        )
        confirmed.add_argument("--yes", action="store_true", help="do it")

    @staticmethod
    def answer(arguments: argparse.Namespace) -> dict[str, Any]:
        """The daemon's answer.

        Raises:
            ConfigError: there is no directory, or a file cannot be read.
            BayplanError: no daemon answers, or it says what is wrong with the files.
        """
        check_kind(arguments.kubelet_directory, stat.S_IFDIR, "kubelet's directory")
        check_kind(arguments.cdi_directory, stat.S_IFDIR, "the directory of CDI specs")
        if arguments.only == CLAIMS:
            return _claims_answer(arguments)
        names = FILES.values() if arguments.only is None else [FILES[arguments.only]]
        paths = [arguments.kubelet_directory / name for name in names]
        texts = _texts(paths, "kubelet's state", "kubelet's state file")
        return ask(arguments.admin_socket, ImportState.VERB, files=texts, dryRun=not arguments.yes)

    @staticmethod
    def blocks(view: dict[str, Any]) -> list[Block]:
        """What is taken over, for people."""
        if "claims" in view:
            return _claims_blocks(view)
        rows = tuple(
            (one["name"], one["cpus"] or "shared", one["mems"] or "all") for one in view["containers"]
        )
        shown: list[Block] = (
            [Table(_COLUMNS, rows)] if rows else ["The files give nothing to a running container."]
        )
        if view["sharing"]:
            shown.append(f"On the shared CPUs: {', '.join(view['sharing'])}.")
        if view["notRunning"]:
            shown.append(f"Not running, so left out: {', '.join(view['notRunning'])}.")
        if view["dryRun"]:
            shown.append("Nothing was changed. bayplan import-state --yes does it, while kubelet is stopped.")
        else:
            shown.append(
                "Taken over. Switch kubelet's managers off before it is started: docs/kubelet-state.md."
            )
        return shown


class ExportState:
    """`bayplan export-state`: hand containers back, in files that kubelet starts with."""

    VERB = "export-state"
    HELP = "write what containers were given as state files that a kubelet with static managers starts with"

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        """The directory to write to."""
        parser.add_argument(
            "directory",
            type=Path,
            metavar="DIR",
            help="the directory to write cpu_manager_state and memory_manager_state to, as /var/lib/kubelet",
        )

    @staticmethod
    def answer(arguments: argparse.Namespace) -> dict[str, Any]:
        """The daemon's answer; the files are written.

        Raises:
            ConfigError: there is no such directory, or something in it that would be lost.
            HostError: a file cannot be written.
            BayplanError: no daemon answers, or it says what kubelet could not go on with.
        """
        directory: Path = arguments.directory
        check_kind(directory, stat.S_IFDIR, "a directory")
        view = ask(arguments.admin_socket, ExportState.VERB)
        paths = {name: directory / name for name in view["files"]}
        problems = tuple(problem for path in paths.values() if (problem := _in_the_way(path)))
        if problems:
            raise ConfigError(str(directory), problems)
        for name, content in view["files"].items():
            _write(paths[name], json.dumps(content, separators=(",", ":")).encode())
        return {**view, "directory": str(directory)}

    @staticmethod
    def blocks(view: dict[str, Any]) -> list[Block]:
        """What was written, for people."""
        count, files = len(view["containers"]), " and ".join(view["files"])
        return [
            f"{view['directory']}: {files}, with {counted(count, 'container')}.",
            "Stop bayplan before kubelet is started with static managers: docs/kubelet-state.md.",
        ]


def _claims_answer(arguments: argparse.Namespace) -> dict[str, Any]:
    checkpoint = arguments.kubelet_directory / CLAIMS_FILE
    if not arguments.cdi_directory.exists():
        found = Problem("--cdi-directory", str(arguments.cdi_directory), "a directory that is there")
        raise ConfigError("dra-driver-cpu's claims", (found,))
    paths = [path for pattern in CDI_FILES for path in sorted(arguments.cdi_directory.glob(pattern))]
    texts = _texts([checkpoint], "kubelet's claims", "kubelet's record of claims")
    specs = _texts(paths, "dra-driver-cpu's claims", "a CDI spec")
    return ask(
        arguments.admin_socket,
        "import-claims",
        checkpoint=texts[CLAIMS_FILE],
        specs=specs,
        dryRun=not arguments.yes,
    )


def _texts(paths: Iterable[Path], what: str, expected: str) -> dict[str, str]:
    """The texts of files by their names; raises ConfigError with each that cannot be read."""
    texts, problems = dict[str, str](), list[Problem]()
    for path in paths:
        try:
            texts[path.name] = read_text(path)
        except (OSError, UnicodeDecodeError) as error:
            problems.append(Problem(str(path), unreadable(error), expected))
    if problems:
        raise ConfigError(what, tuple(problems))
    return texts


def _claims_blocks(view: dict[str, Any]) -> list[Block]:
    rows = tuple(
        (one["name"], one["nodes"], one["cpus"], ", ".join(one["containers"]) or "none yet")
        for one in view["claims"]
    )
    shown: list[Block] = (
        [Table(_CLAIM_COLUMNS, rows)] if rows else ["No claim of dra-driver-cpu can be taken over."]
    )
    if view["leftOut"]:
        shown.append(Table(_LEFT_COLUMNS, tuple((one["name"], one["problem"]) for one in view["leftOut"])))
    if view["sharing"]:
        shown.append(f"On the shared CPUs: {', '.join(view['sharing'])}.")
    if view["dryRun"]:
        shown.append("Nothing was changed. bayplan import-state --only claims --yes does it.")
    else:
        shown.append("Taken over: bayplan claims lists what is held.")
    return shown


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
