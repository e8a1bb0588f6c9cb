"""`bayplan ping`: whether the daemon answers, and whether a runtime asks it; for probes."""

import argparse
from typing import Any, Final

from bayplan.cli.client import ask
from bayplan.cli.layout import Block
from bayplan.errors import UnavailableError

VERB: Final = "ping"
HELP: Final = "say whether the daemon answers, and with --runtime whether a container runtime asks it"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What is asked for."""
    parser.add_argument(
        "--runtime",
        action="store_true",
        help="fail unless a container runtime is connected, which asks about new containers",
    )


def answer(arguments: argparse.Namespace) -> dict[str, Any]:
    """The daemon's answer.

    Raises:
        UnavailableError: no daemon answers, or no runtime is connected to it although one should be.
    """
    view = ask(arguments.admin_socket, VERB)
    if arguments.runtime and not view["runtime"]["connected"]:
        problem = "no container runtime is connected over NRI. `bayplan doctor` says what to do"
        raise UnavailableError("the daemon answers, and decides nothing", problem)
    return view


def blocks(view: dict[str, Any]) -> list[Block]:
    """The answer for people."""
    daemon, runtime = view["daemon"], view["runtime"]
    lines = [f"baypland {daemon['version']} (process {daemon['pid']}) answers."]
    if runtime["connected"]:
        lines.append(f"{runtime['name']} {runtime['version']} asks it over NRI {runtime['nriVersion']}.")
    else:
        lines.append("No container runtime is connected over NRI.")
    return ["\n".join(lines)]
