"""`bayplan import-state`: take the containers over that kubelet's static managers have placed."""

import argparse
import stat
from pathlib import Path
from typing import Any, Final

from bayplan.cli.client import ask
from bayplan.cli.table_layout import Block, Column, Table
from bayplan.errors import ConfigError, Problem
from bayplan.files import check_kind, read_text, unreadable

VERB: Final = "import-state"
HELP: Final = "take over what kubelet's static CPU and Memory Manager have given to containers; moves none"

DEFAULT_DIRECTORY: Final = Path("/var/lib/kubelet")
FILES: Final = {"cpu": "cpu_manager_state", "memory": "memory_manager_state"}
_COLUMNS: Final = (Column("CONTAINER"), Column("CPUS"), Column("NODES"))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Where kubelet's files are, and whether to do it."""
    parser.add_argument(
        "--kubelet-directory",
        type=Path,
        default=DEFAULT_DIRECTORY,
        metavar="DIR",
        help=f"where kubelet keeps its state files (default: {DEFAULT_DIRECTORY})",
    )
    parser.add_argument("--only", choices=tuple(FILES), help="leave the other manager's file out")
    confirmed = parser.add_mutually_exclusive_group()
    confirmed.add_argument(
        "--dry-run", action="store_true", help="only show what would be taken over (the default)"
    )
    confirmed.add_argument("--yes", action="store_true", help="do it")


def answer(arguments: argparse.Namespace) -> dict[str, Any]:
    """The daemon's answer.

    Raises:
        ConfigError: there is no directory, or a file cannot be read.
        BayplanError: no daemon answers, or it says what is wrong with the files.
    """
    check_kind(arguments.kubelet_directory, stat.S_IFDIR, "kubelet's directory")
    names = FILES.values() if arguments.only is None else [FILES[arguments.only]]
    texts, problems = dict[str, str](), list[Problem]()
    for name in names:
        path = arguments.kubelet_directory / name
        try:
            texts[name] = read_text(path)
        except (OSError, UnicodeDecodeError) as error:
            problems.append(Problem(str(path), unreadable(error), "kubelet's state file"))
    if problems:
        raise ConfigError("kubelet's state", tuple(problems))
    return ask(arguments.admin_socket, VERB, files=texts, dryRun=not arguments.yes)


def blocks(view: dict[str, Any]) -> list[Block]:
    """What is taken over, for people."""
    rows = tuple((one["name"], one["cpus"] or "shared", one["mems"] or "all") for one in view["containers"])
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
        shown.append("Taken over. Switch kubelet's managers off before it is started: docs/kubelet-state.md.")
    return shown
