"""The distances between nodes as a table whose cells are the fainter the farther."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from bayplan.drawing.svg import box, text

_LABELS: Final = 30.0
_LARGEST_CELL: Final = 34.0
_LEGIBLE_CELL: Final = 22.0
"""Cells that are smaller have no numbers, but tips."""

_TOP: Final = 44.0


def distances(nodes: Sequence[Mapping[str, Any]], width: float) -> tuple[float, str]:
    """The height and the table; nothing for a single node."""
    if len(nodes) < 2:  # noqa: PLR2004 - it takes two for a distance
        return 0.0, ""
    cell = min(_LARGEST_CELL, (width - _LABELS) / len(nodes))
    legible = cell >= _LEGIBLE_CELL
    known = [value for node in nodes for value in node["distances"].values()]
    nearest, farthest = min(known), max(known)
    drawn = [text(0, 16, "Distances", "strong")]
    for row, node in enumerate(nodes):
        top = _TOP + row * cell
        if legible:
            drawn.append(text(_LABELS - 8, top + cell / 2 + 4, str(node["id"]), "soft small", "end"))
            drawn.append(
                text(_LABELS + (row + 0.5) * cell, _TOP - 8, str(node["id"]), "soft small", "middle")
            )
        for column, other in enumerate(nodes):
            value = node["distances"].get(str(other["id"]))
            if value is None:
                continue
            left = _LABELS + column * cell
            opacity = 0.75 - 0.65 * (value - nearest) / max(1, farthest - nearest)
            tip = f"from node {node['id']} to node {other['id']}: {value}"
            drawn.append(box(left, top, cell - 1.5, cell - 1.5, "near", tip, 2, opacity))
            if legible:
                drawn.append(text(left + cell / 2 - 1, top + cell / 2 + 4, str(value), "small", "middle"))
    return _TOP + len(nodes) * cell + 8, "".join(drawn)
