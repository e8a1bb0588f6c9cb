"""Recordings, which need no daemon: of a machine's topology, to simulate with (`bayplan record-topology`),
and of what a daemon decided, to decide again (`replay`).
"""

import argparse
import stat
import time
from pathlib import Path
from typing import Any, Final

from bayplan.cli.layout import Block, Column, Table
from bayplan.files import check_kind
from bayplan.quantity import US_PER_S, counted

_COLUMNS: Final = (
    Column("LINE", number=True, rank=2),
    Column("WHO", rank=1),
    Column("RECORDED"),
    Column("NOW"),
)


class RecordTopology:
    """`bayplan record-topology`: a machine's NUMA and CPU topology as one text, for `bayplan simulate`."""

    VERB = "record-topology"
    HELP = "print a machine's topology as a text that bayplan simulate takes; needs no daemon"

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        """The machine: this one, one below another root, or files about another one."""
        parser.add_argument(
            "--root",
            type=Path,
            default=Path("/"),
            metavar="DIR",
            help="its root directory (default: /)",
        )
        parser.add_argument(
            "--from",
            dest="sources",
            action="append",
            type=Path,
            default=[],
            metavar="FILE",
            help="another machine: a machine file, lstopo's XML, the output of numactl -H and lscpu, files "
            "of sysfs as grep -rs prints them, a tree; repeatable for outputs of one machine; - is stdin",
        )

    @staticmethod
    def answer(arguments: argparse.Namespace) -> dict[str, Any]:
        """The recording; raises HostError, and ConfigError if the root is no directory or a file is wrong."""
        from bayplan.simulate import topology_sources  # noqa: PLC0415 - only this verb reads sysfs

        if arguments.sources:
            return topology_sources.converted_topology(arguments.sources)
        check_kind(arguments.root, stat.S_IFDIR, "the machine's root directory")
        return topology_sources.recorded_topology(arguments.root)

    @staticmethod
    def blocks(view: dict[str, Any]) -> list[Block]:
        """The text itself."""
        return [view["listing"].rstrip("\n")]


class Replay:
    """`bayplan replay`: what a daemon decided, decided again by this version."""

    VERB = "replay"
    HELP = (
        "decide again what baypland --record has recorded, and show what comes out otherwise; needs no daemon"
    )

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        """The recording."""
        parser.add_argument("file", type=Path, metavar="FILE", help="a recording of baypland --record")

    @staticmethod
    def answer(arguments: argparse.Namespace) -> dict[str, Any]:
        """What differs; raises ConfigError if the file is no recording."""
        from bayplan.recording.replay import replay_view  # noqa: PLC0415 - other verbs need no engines

        return replay_view(arguments.file)

    @staticmethod
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
