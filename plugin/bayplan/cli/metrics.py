"""`bayplan metrics`: the daemon's state for Prometheus."""

import argparse
from typing import Any, Final

from bayplan.cli.client import ask
from bayplan.cli.layout import Block

VERB: Final = "metrics"
HELP: Final = "print the daemon's state in Prometheus' text format"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """None of its own."""


def answer(arguments: argparse.Namespace) -> dict[str, Any]:
    """The daemon's answer."""
    return ask(arguments.admin_socket, VERB)


def blocks(view: dict[str, Any]) -> list[Block]:
    """The text as it is."""
    return [str(view["text"]).removesuffix("\n")]
