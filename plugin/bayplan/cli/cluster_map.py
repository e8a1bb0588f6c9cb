"""`kubectl bayplan map`: NUMA nodes of a cluster as characters; a thousand nodes fit on two screens.

Of a node's answer a map needs little (`map_digest`, in the form of the answer itself). A character is a NUMA
node: tenths of its memory that are promised, or what is wrong with it; where the numbers are worth a look,
they stand above, the worst first.
"""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from bayplan.cli.layout import Block, Column, Table
from bayplan.quantity import counted, format_bytes

_MEMORY: Final = "memory"
_ROOM: Final = ("totalBytes", "allocatableBytes", "bookedBytes", "freeBytes")
_LIVE: Final = ("heldOutsideBytes", "movableBytes")
MOST_ROWS: Final = 20
_FULL, _OVERDRAWN, _NO_MEMORY, _SILENT = "#", "!", "-", "?"
_LEGEND: Final = (
    f"One character is a NUMA node: tenths of its memory that are promised, {_FULL} if less than a twentieth "
    f"is left, {_OVERDRAWN} if others use what is promised, {_NO_MEMORY} without memory; {_SILENT} is a node "
    "without an answer. A line begins with the name of its first node."
)
_NUMA: Final = (
    Column("NODE"),
    Column("NUMA NODE", number=True),
    Column("PROMISED", number=True),
    Column("OF", number=True, rank=1),
    Column("USED BY OTHERS", number=True),
    Column("FREE IN ONE PIECE", number=True, rank=1),
)
_STRIPS: Final = (Column("FROM"), Column(""))
_TENTHS: Final = 10
_LITTLE: Final = 20
"""Less than this part of it is little."""


def map_digest(answer: dict[str, Any]) -> list[dict[str, Any]]:
    """What a map of the cluster needs of a node's answer to ``nodes``: of each NUMA node its memory."""
    return [
        {
            "id": node["id"],
            "resources": {
                name: {key: room[key] for key in _ROOM}
                for name, room in node["resources"].items()
                if name == _MEMORY
            },
            "live": None if node["live"] is None else {key: node["live"][key] for key in _LIVE},
        }
        for node in answer["nodes"]
    ]


def cluster_blocks(pools: Sequence[tuple[str, Sequence[Mapping[str, Any]]]]) -> list[Block]:
    """The views of nodes in each of *pools*, with ``nodes`` as `map_digest` has them, or a ``problem``: first
    the NUMA nodes that need attention, then all as characters."""
    found = (
        (view["name"], numa)
        for _, views in pools
        for view in views
        for numa in view.get("nodes", ())
        if _character(numa) in (_OVERDRAWN, _FULL)
    )
    rows = sorted(found, key=lambda row: (*_urgency(row[1]), row[0], row[1]["id"]))
    shown: list[Block] = []
    if rows:
        listed = tuple(_numa_row(name, numa) for name, numa in rows[:MOST_ROWS])
        shown.append(Table(_NUMA, listed, title="Overdrawn or full"))
    if len(rows) > MOST_ROWS:
        shown.append(f"And {counted(len(rows) - MOST_ROWS, 'NUMA node')} more below.")
    shown.append(_LEGEND)
    shown += [
        Table(_STRIPS, tuple(_strips(views)), title=f"{name or 'Nodes'}: {counted(len(views), 'node')}")
        for name, views in pools
    ]
    return shown


def _strips(views: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """Lines of nodes, as many as there is room for, in tens or fives if possible so that they can be
    counted."""
    cells = ["".join(map(_character, view["nodes"])) if "nodes" in view else _SILENT for view in views]
    longest = max(len(view["name"]) for view in views)
    room = shutil.get_terminal_size((100, 0)).columns - longest - 2
    fits = max(1, room // (max(map(len, cells)) + 1))
    step = next((fits // one * one for one in (10, 5) if fits >= one), fits)
    for first in range(0, len(views), step):
        yield views[first]["name"], " ".join(cells[first : first + step])


def _character(numa: Mapping[str, Any]) -> str:
    room = numa["resources"].get(_MEMORY)
    if room is None or not room["allocatableBytes"]:
        return _NO_MEMORY
    if _overdrawn_bytes(numa) > 0:
        return _OVERDRAWN
    allocatable, booked = room["allocatableBytes"], room["bookedBytes"]
    if (allocatable - booked) * _LITTLE < allocatable:
        return _FULL
    return str(max(0, booked) * _TENTHS // allocatable)


def _outside_bytes(numa: Mapping[str, Any]) -> int:
    """What is used by nothing that was promised: it cannot be promised, whatever the ledger says."""
    live = numa["live"]
    return 0 if live is None else live["heldOutsideBytes"] + live["movableBytes"]


def _overdrawn_bytes(numa: Mapping[str, Any]) -> int:
    """How much more than there is is promised and used by others together."""
    room = numa["resources"][_MEMORY]
    return int(room["bookedBytes"] + _outside_bytes(numa) - room["totalBytes"])


def _urgency(numa: Mapping[str, Any]) -> tuple[int, float]:
    room, overdrawn = numa["resources"][_MEMORY], _overdrawn_bytes(numa)
    return -max(0, overdrawn), -room["bookedBytes"] / room["allocatableBytes"]


def _numa_row(name: str, numa: Mapping[str, Any]) -> tuple[str, ...]:
    room = numa["resources"][_MEMORY]
    amounts = (room["bookedBytes"], room["allocatableBytes"], _outside_bytes(numa), room["freeBytes"])
    return (name, str(numa["id"]), *map(format_bytes, amounts))
