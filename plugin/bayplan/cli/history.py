"""`bayplan history`: everything that was decided about a pod, in the order in which it happened."""

import argparse
from typing import Any, Final

from bayplan.cli.client import ask
from bayplan.cli.explain import add_subject
from bayplan.cli.layout import Block, Column, Table

VERB: Final = "history"
HELP: Final = "show all that was decided about a pod, the oldest first, and when pages of it were moved"

_COLUMNS: Final = (
    Column("AT"),
    Column("EVENT"),
    Column("CONTAINER", rank=1),
    Column("WHAT"),
    Column("ID", rank=2),
)
_ID_CHARACTERS: Final = 13
"""As many as crictl shows; `bayplan explain` takes them."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Whose history."""
    add_subject(parser)


def answer(arguments: argparse.Namespace) -> dict[str, Any]:
    """The daemon's answer."""
    return ask(arguments.admin_socket, VERB, subject=arguments.subject)


def blocks(view: dict[str, Any]) -> list[Block]:
    """The answer for people."""
    rows = tuple(
        (one["at"], one["event"], one["name"], one["text"], one["id"][:_ID_CHARACTERS])
        for one in view["events"]
    )
    shown: list[Block] = [Table(_COLUMNS, rows)]
    return shown if view["complete"] else [*shown, "There is more; these are the latest."]
