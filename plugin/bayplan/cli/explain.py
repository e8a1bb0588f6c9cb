"""`bayplan explain`: why a container is where it is, or was refused."""

import argparse
from typing import Any, Final

from bayplan.cli.client import ask
from bayplan.cli.decision_text import decision_blocks
from bayplan.cli.render import Block, Column, Table

VERB: Final = "explain"
HELP: Final = "say why a container is where it is, or why it was refused: also one that is gone"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Whom to explain."""
    parser.add_argument(
        "subject",
        metavar="POD[/CONTAINER]",
        help="a pod, NAMESPACE/POD, POD/CONTAINER, NAMESPACE/POD/CONTAINER, or a container's id",
    )


def answer(arguments: argparse.Namespace) -> dict[str, Any]:
    """The daemon's answer."""
    return ask(arguments.admin_socket, VERB, subject=arguments.subject)


def blocks(explanation: dict[str, Any]) -> list[Block]:
    """The answer for people, one container after the other."""
    return [block for one in explanation["containers"] for block in _container(one)]


def _container(one: dict[str, Any]) -> list[Block]:
    shown = decision_blocks(one)
    if one["earlier"]:
        rows = tuple((item["at"], item["id"], item["summary"]) for item in one["earlier"])
        shown.append(Table((Column("EARLIER"), Column("CONTAINER ID"), Column("DECISION")), rows))
    if one["pageMoves"]:
        moves = tuple((item["at"], item["text"]) for item in one["pageMoves"])
        shown.append(Table((Column("PAGES MOVED"), Column("WHAT")), moves))
    return shown
