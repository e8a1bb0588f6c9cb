"""Where sockets and their nodes go: sockets in rows, in each of them its nodes in columns of the same width.

A row takes as many sockets as fit with cards that are not narrower than they may be; what is left over makes
the cards of that row wider, up to a limit.
"""

from collections.abc import Sequence
from math import ceil
from typing import Final, NamedTuple

from bayplan.drawing.node_card import NodeView

GAP: Final = 12.0
_WIDEST: Final = 580.0


class Socket(NamedTuple):
    """The nodes of one socket, or of several that have nodes in common; of none: memory without CPUs."""

    ids: tuple[int, ...]
    nodes: tuple[NodeView, ...]
    columns: int = 1


class Row(NamedTuple):
    """Sockets beside each other, and how wide each of their cards is."""

    sockets: tuple[Socket, ...]
    card_width: float

    def width_of(self, socket: Socket) -> float:
        """The width of a socket, with the space around its cards."""
        return socket.columns * (self.card_width + GAP) + GAP


def rows_of(sockets: Sequence[Socket], width: float, narrowest: float) -> list[Row]:
    """All sockets in their order, in rows of *width*, with cards that are not narrower than *narrowest* where
    at least one of these fits."""
    rows: list[list[Socket]] = []
    for socket in sockets:
        placed = _in_columns(socket, width, narrowest)
        if rows and _card_width([*rows[-1], placed], width) >= narrowest:
            rows[-1].append(placed)
        else:
            rows.append([placed])
    return [Row(tuple(row), min(_WIDEST, _card_width(row, width))) for row in rows]


def _in_columns(socket: Socket, width: float, narrowest: float) -> Socket:
    """In as many columns as fit, or as few as need no more lines: four nodes are 2 by 2, not 3 and 1."""
    count = len(socket.nodes)
    most = max(1, min(count, int((width - GAP) / (narrowest + GAP))))
    return Socket(socket.ids, socket.nodes, ceil(count / ceil(count / most)))


def _card_width(sockets: Sequence[Socket], width: float) -> float:
    columns = sum(socket.columns for socket in sockets)
    spaces = columns + len(sockets) + len(sockets) - 1  # one after each card, one before them, one between
    return (width - spaces * GAP) / columns
