"""A cluster as one picture: a cell for each NUMA node, filled as far as its memory is promised, those of a
node side by side, nodes in rows below the name of their pool.

Pure. What a cell cannot show is in its tip; a node's cells are a link to its own picture.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from bayplan.drawing.svg import STYLE, box, element, text
from bayplan.quantity import counted, format_bytes

_WIDTH, _CELL, _HEIGHT, _GAP, _LINE, _HEAD = 1200, 11, 22, 6, 30, 34
_LEGEND: Final = (
    ("c0", "promised"),
    ("used", "used by nobody's promise"),
    ("free", "free"),
    ("c5", "no answer"),
)


def cluster_map(views: Sequence[Mapping[str, Any]]) -> str:
    """The picture. A view has the ``name`` of a node, its ``pool``, and the ``nodes`` of its answer, or none
    of these where it did not answer."""
    pools: dict[str, list[Mapping[str, Any]]] = {}
    for view in views:
        pools.setdefault(view["pool"], []).append(view)
    drawn, y = _legend(), 64.0
    for pool, some in sorted(pools.items()):
        drawn.append(text(12, y + 14, f"{pool or 'nodes'}: {counted(len(some), 'node')}", "strong"))
        y, x = y + _HEAD - 10, 12.0
        for view in some:
            width = max(1, len(view.get("nodes", ()))) * (_CELL + 1)
            if x + width > _WIDTH - 12:
                x, y = 12.0, y + _LINE
            drawn.append(_node(view, x, y))
            x += width + _GAP
        y += _LINE + 12
    ground = box(0, 0, _WIDTH, y, "ground")
    size = {"width": f"{_WIDTH}", "height": f"{y:.0f}", "viewBox": f"0 0 {_WIDTH} {y:.0f}"}
    return element(
        "svg",
        element("style", STYLE),
        ground,
        *drawn,
        xmlns="http://www.w3.org/2000/svg",
        class_="map",
        role="img",
        aria_label=f"Memory of {counted(len(views), 'node')}",
        **size,
    )


def _legend() -> list[str]:
    drawn, x = [text(12, 28, "Memory of all NUMA nodes", "head")], 12.0
    for class_, words in _LEGEND:
        drawn += [box(x, 40, 10, 10, class_), text(x + 14, 49, words, "soft")]
        x += 26 + 6.6 * len(words)
    return drawn


def _node(view: Mapping[str, Any], x: float, y: float) -> str:
    numa = view.get("nodes")
    if numa is None:
        return box(x, y, _CELL, _HEIGHT, "c5", f"{view['name']}: no answer")
    cells = [_cell(view["name"], one, x + position * (_CELL + 1), y) for position, one in enumerate(numa)]
    return element("a", *cells, href=f"{view['name']}.svg")


def _cell(name: str, numa: Mapping[str, Any], x: float, y: float) -> str:
    room = numa["resources"].get("memory")
    if room is None:
        return box(x, y, _CELL, _HEIGHT, "shared", f"{name}, node {numa['id']}: no memory")
    total, promised = room["totalBytes"], room["bookedBytes"]
    live = numa.get("live")
    # What others hold cannot be promised, whatever the ledger says.
    outside = 0 if live is None else live["heldOutsideBytes"] + live["movableBytes"]
    tip = (
        f"{name}, node {numa['id']}: {format_bytes(promised)} of {format_bytes(room['allocatableBytes'])} "
        f"promised, {format_bytes(room['freeBytes'])} in one piece"
    )
    parts = [box(x, y, _CELL, _HEIGHT, "free", tip)]
    bottom = y + _HEIGHT
    for amount, class_ in ((promised, "c0"), (min(outside, total - promised), "used")):
        height = _HEIGHT * max(0, amount) / total if total else 0
        if height:
            bottom -= height
            parts.append(box(x, bottom, _CELL, height, class_, tip))
    return "".join(parts)
