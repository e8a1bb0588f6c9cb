"""`bayplan explain`: why a container is where it is, or was refused."""

import argparse
from typing import Any, Final

from bayplan.cli.client import ask
from bayplan.cli.decision_text import decision_blocks
from bayplan.cli.layout import Block, Column, Table

VERB: Final = "explain"
HELP: Final = "say why a container is where it is, or why it was refused: also one that is gone"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Whom to explain."""
    add_subject(parser)


def add_subject(parser: argparse.ArgumentParser) -> None:
    """A pod or a container that something was decided about."""
    parser.add_argument(
        "subject",
        metavar="NAME",
        help="a pod, NAMESPACE/POD, POD/CONTAINER, NAMESPACE/POD/CONTAINER, a container's id, or a part of a "
        "name that only one pod has",
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
        columns = (Column("EARLIER"), Column("CONTAINER ID", rank=1), Column("DECISION"))
        shown.append(Table(columns, rows))
    if one["pageMoves"]:
        moves = tuple((item["at"], item["text"]) for item in one["pageMoves"])
        shown.append(Table((Column("PAGES MOVED"), Column("WHAT")), moves))
    if one["evictions"]:
        evictions = tuple((item["at"], item["text"]) for item in one["evictions"])
        shown.append(Table((Column("EVICTED"), Column("WHY")), evictions))
    return shown
