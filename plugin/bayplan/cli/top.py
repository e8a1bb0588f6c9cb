"""`bayplan top`: what nodes and containers use now, beside what was promised to them. In a terminal it goes
on.
"""

import argparse
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from bayplan.cli.client import ask
from bayplan.cli.layout import Block, Column, Table
from bayplan.quantity import US_PER_S, format_column

VERB: Final = "top"
HELP: Final = "show live what nodes and containers use, beside what was promised to them"

_NODES: Final = (
    Column("NODE", number=True),
    Column("PROMISED", number=True),
    Column("USED", number=True),
    Column("BY CONTAINERS", number=True, rank=2),
    Column("FREE", number=True),
    Column("RECLAIMABLE", number=True, rank=3),
    Column("MISSED PAGES/S", number=True, rank=1),
)
_CONTAINERS: Final = (
    Column("CONTAINER", least=24),
    Column("NODES"),
    Column("PROMISED", number=True, rank=3),
    Column("USED HERE", number=True),
    Column("USED ELSEWHERE", number=True),
    Column("FAULTS/S", number=True, rank=1),
    Column("FROM DISK/S", number=True, rank=4),
    Column("MEMORY STALL", number=True, rank=2),
    Column("CPU STALL", number=True, rank=5),
)
_SORTED_BY: Final[Mapping[str, str]] = {
    "elsewhere": "usedElsewhereBytes",
    "used": "usedHereBytes",
    "promised": "promisedBytes",
    "faults": "pageFaultsPerSecond",
    "stall": "memoryStallPercent",
}
_RATES: Final = {
    "nodes": {"missedPages": "missedPagesPerSecond"},
    "containers": {
        "pageFaults": "pageFaultsPerSecond",
        "majorPageFaults": "majorPageFaultsPerSecond",
    },
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """In which order, and over how long rates are measured."""
    parser.add_argument(
        "--sort",
        choices=tuple(_SORTED_BY),
        default="elsewhere",
        help="what comes first: memory used on nodes that are not its own (elsewhere, the default), memory "
        "used, promised, page faults, or waiting for memory (stall)",
    )
    parser.add_argument(
        "--interval",
        type=interval,
        default=2.0,
        metavar="SECONDS",
        help="rates are measured over so long, and in a terminal the screen is drawn as often (default: 2)",
    )
    parser.add_argument("--once", action="store_true", help="show it once, also in a terminal")
    parser.add_argument("-n", "--namespace", metavar="NAME", help="only the pods of this namespace")


def answer(arguments: argparse.Namespace) -> dict[str, Any]:
    """Two answers of the daemon as one: the second, with what changed between them in each second."""
    first = ask(arguments.admin_socket, VERB)
    time.sleep(arguments.interval)
    second = ask(arguments.admin_socket, VERB)
    seconds = max(1, second["atMicroseconds"] - first["atMicroseconds"]) / US_PER_S
    for key, rates in _RATES.items():
        before = {one["id"]: one for one in first[key]}
        for one in second[key]:
            earlier = before.get(one["id"], one)
            for total, rate in rates.items():
                one[rate] = round(max(0, one[total] - earlier[total]) / seconds, 1)
    if arguments.namespace is not None:
        second["containers"] = [
            one for one in second["containers"] if one["name"].split("/")[0] == arguments.namespace
        ]
    wanted = _SORTED_BY[arguments.sort]
    second["containers"].sort(key=lambda one: (-(one[wanted] or 0), -one["usedHereBytes"], one["name"]))
    return second


def blocks(view: dict[str, Any]) -> list[Block]:
    """The answer for people."""
    sizes = _sizes(view["nodes"], ("promised", "used", "usedByContainers", "free", "reclaimable"))
    nodes = tuple(
        (str(one["id"]), *amounts, f"{one['missedPagesPerSecond']:g}")
        for one, amounts in zip(view["nodes"], sizes, strict=True)
    )
    sizes = _sizes(view["containers"], ("promised", "usedHere", "usedElsewhere"))
    containers = tuple(
        (
            one["name"],
            "any" if one["nodes"] is None else one["nodes"],
            *amounts,
            f"{one['pageFaultsPerSecond']:g}",
            f"{one['majorPageFaultsPerSecond']:g}",
            _percent(one["memoryStallPercent"]),
            _percent(one["cpuStallPercent"]),
        )
        for one, amounts in zip(view["containers"], sizes, strict=True)
    )
    shown: list[Block] = [Table(_NODES, nodes)]
    return [*shown, Table(_CONTAINERS, containers) if containers else "No container runs."]


def _sizes(rows: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> list[tuple[str, ...]]:
    """The amounts of each row, each column in one unit."""
    columns = [format_column([row[f"{key}Bytes"] for row in rows]) for key in keys]
    return list(zip(*columns, strict=True))


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:g}%"


def interval(text: str) -> float:
    """A number of seconds; raises ArgumentTypeError."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= 3600:  # noqa: PLR2004 - an hour
        raise argparse.ArgumentTypeError(f"found {text!r}, expected a number of seconds up to 3600")
    return seconds
