"""`bayplan log-level`: shows or changes how much the running daemon logs."""

from typing import Any, Final

from bayplan.cli.render import Block

VERB: Final = "log-level"
HELP: Final = "show or change how much the running daemon logs"


def blocks(answer: dict[str, Any]) -> list[Block]:
    """The answer to ``log-level`` for people."""
    return [str(answer["level"])]
