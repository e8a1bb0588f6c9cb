"""The distances between nodes as a table whose cells are the fainter the farther. Where cells are too small
for numbers, a key says which shade is which number."""

from collections.abc import Callable, Mapping, Sequence
from math import ceil
from typing import Any, Final

from bayplan.drawing.svg import box, element, text, text_width

_LABELS: Final = 30.0
_LARGEST_CELL: Final = 34.0
_SIZES: Final = (("small", 11.0), ("tiny", 9.0))
"""Fonts of numbers in cells; the first one that has room."""

_TOP: Final = 44.0


def distances(nodes: Sequence[Mapping[str, Any]], width: float) -> tuple[float, str]:
    """The height and the table; nothing for a single node."""
    if len(nodes) < 2:  # noqa: PLR2004 - it takes two for a distance
        return 0.0, ""
    cell = min(_LARGEST_CELL, (width - _LABELS) / len(nodes))
    known: list[int] = [value for node in nodes for value in node["distances"].values()]
    nearest, farthest = min(known), max(known)
    longest = max(len(str(number)) for number in (*known, *(node["id"] for node in nodes)))
    font = next((name for name, size in _SIZES if text_width("0" * longest, size) + 3 <= cell), None)
    style = f"soft {font or 'tiny'}"
    # Rows that are lower than a line of text do not all have their ids.
    step = 1 if font else max(1, ceil(text_width("0" * longest, 9) * 1.6 / cell))

    def opacity(value: int) -> float:
        return 0.75 - 0.65 * (value - nearest) / max(1, farthest - nearest)

    drawn = [text(0, 16, "Distances", "strong")]
    for row, node in enumerate(nodes):
        top = _TOP + row * cell
        if not row % step:
            drawn.append(text(_LABELS - 8, top + cell / 2 + 4, str(node["id"]), style, "end"))
            drawn.append(text(_LABELS + (row + 0.5) * cell, _TOP - 8, str(node["id"]), style, "middle"))
        for column, other in enumerate(nodes):
            value = node["distances"].get(str(other["id"]))
            if value is None:
                continue
            left = _LABELS + column * cell
            tip = f"from node {node['id']} to node {other['id']}: {value}"
            side = cell - (1.5 if font else 0.5)
            drawn.append(box(left, top, side, side, "near", tip, 2 if font else 0, opacity(value)))
            if font:
                drawn.append(text(left + cell / 2 - 1, top + cell / 2 + 4, str(value), font, "middle"))
    height = _TOP + len(nodes) * cell + 8
    if font:
        return height, "".join(drawn)
    key_height, key = _key(sorted(set(known)), width, opacity)
    return height + key_height, f"{''.join(drawn)}{element('g', key, transform=f'translate(0 {height:g})')}"


def _key(values: Sequence[int], width: float, opacity: Callable[[int], float]) -> tuple[float, str]:
    """Each shade with its number."""
    drawn, x, y = [], 0.0, 14.0
    for value in values:
        length = 27 + text_width(str(value), 11)
        if x and x + length > width:
            x, y = 0.0, y + 20
        drawn.append(box(x, y - 9, 10, 10, "near", radius=2, opacity=opacity(value)))
        drawn.append(text(x + 15, y, str(value), "soft small"))
        x += length
    return y + 12, "".join(drawn)
