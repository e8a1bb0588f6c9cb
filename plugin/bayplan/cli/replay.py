"""`bayplan replay`: what a daemon decided, decided again by this version."""

import argparse
import time
from pathlib import Path
from typing import Any, Final

from bayplan.cli.layout import Block, Column, Table
from bayplan.quantity import US_PER_S, counted

VERB: Final = "replay"
HELP: Final = (
    "decide again what baypland --record has recorded, and show what comes out otherwise; needs no daemon"
)

_COLUMNS: Final = (
    Column("LINE", number=True, rank=2),
    Column("WHO", rank=1),
    Column("RECORDED"),
    Column("NOW"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The recording."""
    parser.add_argument("file", type=Path, metavar="FILE", help="a recording of baypland --record")


def answer(arguments: argparse.Namespace) -> dict[str, Any]:
    """What differs; raises ConfigError if the file is no recording."""
    from bayplan.recording.replay import replay_view  # noqa: PLC0415 - other verbs need no engines

    return replay_view(arguments.file)


def blocks(view: dict[str, Any]) -> list[Block]:
    """The differences for people."""
    begun = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(view["begunUs"] // US_PER_S))
    shown: list[Block] = [
        f"Recorded from {begun} on by bayplan {view['recordedBy']}; replayed by {view['replayedBy']}."
    ]
    if view["cutOff"]:
        shown.append("The last line is cut off and left out: the daemon was writing it when it ended.")
    count = f"{counted(view['questions'], 'question')} to the engine"
    if not view["differences"]:
        return [*shown, f"{count}: every answer is the same."]
    rows = tuple(
        (str(one["line"]), one["name"] or one["question"], one["recorded"], one["now"])
        for one in view["differences"]
    )
    shown.append(
        f"{count}: {view['different']} answered otherwise, {view['explainedOtherwise']} only explained "
        "otherwise."
    )
    return [*shown, Table(_COLUMNS, rows)]
