"""`bayplan log-level`: shows or changes how much the running daemon logs."""

import argparse
from typing import Any, Final

from bayplan.admin_protocol import LOG_LEVELS
from bayplan.cli.client import ask
from bayplan.cli.layout import Block

VERB: Final = "log-level"
HELP: Final = "show or change how much the running daemon logs"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The new level."""
    parser.add_argument("level", nargs="?", choices=LOG_LEVELS, help="the new level; none shows it")


def answer(arguments: argparse.Namespace) -> dict[str, Any]:
    """The daemon's answer."""
    fields = {"level": arguments.level} if arguments.level else {}
    return ask(arguments.admin_socket, VERB, **fields)


def blocks(view: dict[str, Any]) -> list[Block]:
    """The answer for people."""
    return [str(view["level"])]
