"""The daemon itself: whether it answers (`bayplan ping`), its state for Prometheus (`metrics`), how much it
logs (`log-level`), its machine as a picture (`map`), and all that it gave handed back (`release`).
"""

import argparse
import stat
from pathlib import Path
from typing import Any, Final

from bayplan.admin_protocol import LOG_LEVELS
from bayplan.cli.client import ask
from bayplan.cli.layout import Block, Column, Table
from bayplan.errors import HostError, UnavailableError
from bayplan.files import check_kind
from bayplan.quantity import counted

DEFAULT_STATE_DIRECTORY: Final = Path("/var/lib/bayplan")
_RELEASE_COLUMNS: Final = (Column("CONTAINER"), Column("GIVES BACK"), Column("OUTCOME"))


class Ping:
    """`bayplan ping`: whether the daemon answers, and whether a runtime asks it; for probes."""

    VERB = "ping"
    HELP = "say whether the daemon answers, and with --runtime whether a container runtime asks it"

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        """What has to be true for the exit status 0."""
        parser.add_argument(
            "--runtime",
            action="store_true",
            help="fail unless a container runtime is connected, which asks about new containers",
        )

    @staticmethod
    def answer(arguments: argparse.Namespace) -> dict[str, Any]:
        """The daemon's answer.

        Raises:
            UnavailableError: no daemon answers, or no runtime is connected to it although one should be.
        """
        view = ask(arguments.admin_socket, "ping")
        if arguments.runtime and not view["runtime"]["connected"]:
            problem = "no container runtime is connected over NRI. `bayplan doctor` says what to do"
            raise UnavailableError("the daemon answers, and decides nothing", problem)
        return view

    @staticmethod
    def blocks(view: dict[str, Any]) -> list[Block]:
        """The answer for people."""
        daemon, runtime = view["daemon"], view["runtime"]
        lines = [f"baypland {daemon['version']} (process {daemon['pid']}) answers."]
        if runtime["connected"]:
            lines.append(f"{runtime['name']} {runtime['version']} asks it over NRI {runtime['nriVersion']}.")
        else:
            lines.append("No container runtime is connected over NRI.")
        return ["\n".join(lines)]


class Metrics:
    """`bayplan metrics`: the daemon's state for Prometheus."""

    VERB = "metrics"
    HELP = "print the daemon's state in Prometheus' text format"

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        """No arguments of its own."""

    @staticmethod
    def answer(arguments: argparse.Namespace) -> dict[str, Any]:
        """The daemon's answer."""
        return ask(arguments.admin_socket, "metrics")

    @staticmethod
    def blocks(view: dict[str, Any]) -> list[Block]:
        """The text as it is."""
        return [str(view["text"]).removesuffix("\n")]


class LogLevel:
    """`bayplan log-level`: shows or changes how much the running daemon logs."""

    VERB = "log-level"
    HELP = "show or change how much the running daemon logs"

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        """The new level, if it is to change."""
        parser.add_argument("level", nargs="?", choices=LOG_LEVELS, help="the new level; none shows it")

    @staticmethod
    def answer(arguments: argparse.Namespace) -> dict[str, Any]:
        """The daemon's answer."""
        fields = {"level": arguments.level} if arguments.level else {}
        return ask(arguments.admin_socket, "log-level", **fields)

    @staticmethod
    def blocks(view: dict[str, Any]) -> list[Block]:
        """The answer for people."""
        return [str(view["level"])]


class Map:
    """`bayplan map`: the machine as a picture."""

    VERB = "map"
    HELP = "draw the machine as a picture: sockets, nodes, CPUs, who holds what"

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        """Where to, and how wide."""
        parser.add_argument(
            "--svg",
            type=Path,
            required=True,
            metavar="FILE",
            help="the file to write, in SVG; browsers show it",
        )

    @staticmethod
    def answer(arguments: argparse.Namespace) -> dict[str, Any]:
        """The picture, written; the answer says where and of what.

        Raises:
            ConfigError: there is something that is not a regular file.
            HostError: the file cannot be written.
        """
        from bayplan.drawing.maps import machine_map  # noqa: PLC0415 - only this verb draws

        check_kind(arguments.svg, stat.S_IFREG, "a file to write the picture to")
        view = ask(arguments.admin_socket, "nodes")
        picture = machine_map(view["nodes"])
        try:
            arguments.svg.write_text(picture, encoding="utf-8")
        except OSError as error:
            raise HostError(str(arguments.svg), f"cannot be written: {error.strerror}") from error
        return {
            "apiVersion": view["apiVersion"],
            "kind": "Map",
            "file": str(arguments.svg),
            "nodes": len(view["nodes"]),
        }

    @staticmethod
    def blocks(view: dict[str, Any]) -> list[Block]:
        """The sentence that the picture was written."""
        return [f"{view['file']}: {counted(view['nodes'], 'NUMA node')}"]


class Release:
    """`bayplan release`: give every managed container back the CPUs and nodes of its parent cgroup."""

    VERB = "release"
    HELP = "give every managed container back its parent's CPUs and nodes, before bayplan is removed"

    @staticmethod
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

    @staticmethod
    def answer(arguments: argparse.Namespace) -> dict[str, Any]:
        """The daemon's answer; where none runs, by the records in its state directory."""
        dry_run = not arguments.yes
        try:
            return ask(arguments.admin_socket, "release", dryRun=dry_run)
        except UnavailableError:
            from bayplan.admin.release import release_recorded  # noqa: PLC0415 - other verbs need neither kernel nor state

            return release_recorded(arguments.state_directory, dry_run=dry_run)

    @staticmethod
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
        shown: list[Block] = [Table(_RELEASE_COLUMNS, rows), *settings]
        if view["dryRun"]:
            shown.append("Nothing was changed. bayplan release --yes does it.")
        elif view["daemonRuns"]:
            shown.append("The daemon leaves these containers as they are from now on, and places new ones.")
        return shown
