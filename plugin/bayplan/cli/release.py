"""`bayplan release`: give every managed container back the CPUs and nodes of its parent cgroup."""

import argparse
from pathlib import Path
from typing import Any, Final

from bayplan.cli.client import ask
from bayplan.cli.layout import Block, Column, Table
from bayplan.errors import UnavailableError
from bayplan.quantity import counted

VERB: Final = "release"
HELP: Final = "give every managed container back its parent's CPUs and nodes, before bayplan is removed"

DEFAULT_STATE_DIRECTORY: Final = Path("/var/lib/bayplan")
_COLUMNS: Final = (Column("CONTAINER"), Column("GIVES BACK"), Column("OUTCOME"))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Whether to do it, and where the records are if no daemon runs."""
    confirmed = parser.add_mutually_exclusive_group()
    confirmed.add_argument(
        "--dry-run", action="store_true", help="only show what would be done (the default)"
    )
    confirmed.add_argument("--yes", action="store_true", help="do it")
    parser.add_argument(
        "--state-directory",
        type=Path,
        metavar="DIR",
        default=DEFAULT_STATE_DIRECTORY,
        help=f"the daemon's state directory, used where none runs (default: {DEFAULT_STATE_DIRECTORY})",
    )


def answer(arguments: argparse.Namespace) -> dict[str, Any]:
    """The daemon's answer; where none runs, by the records in its state directory."""
    dry_run = not arguments.yes
    try:
        return ask(arguments.admin_socket, VERB, dryRun=dry_run)
    except UnavailableError:
        from bayplan.admin.release import release_recorded  # noqa: PLC0415 - other verbs need neither kernel nor state

        return release_recorded(arguments.state_directory, dry_run=dry_run)


def blocks(view: dict[str, Any]) -> list[Block]:
    """The answer for people."""
    containers = view["containers"]
    to = "would be set" if view["dryRun"] else "was set"
    settings = [f"{name} {to} to {value} again." for name, value in view["sysctls"].items()]
    if view["partitions"]:
        settings.append(
            f"cpuset.cpus.partition of {counted(len(view['partitions']), 'cgroup')} {to} to member again."
        )
    if view["irqs"]:
        settings.append(f"The affinity of {counted(len(view['irqs']), 'interrupt')} {to} to what it was.")
    if not containers:
        return ["No container is managed.", *settings]
    rows = tuple(
        (
            one["name"],
            " and ".join(word for word, ours in (("CPUs", one["cpus"]), ("nodes", one["mems"])) if ours),
            one["outcome"] or "not done",
        )
        for one in containers
    )
    shown: list[Block] = [Table(_COLUMNS, rows), *settings]
    if view["dryRun"]:
        shown.append("Nothing was changed. bayplan release --yes does it.")
    elif view["daemonRuns"]:
        shown.append("The daemon leaves these containers as they are from now on, and places new ones.")
    return shown
