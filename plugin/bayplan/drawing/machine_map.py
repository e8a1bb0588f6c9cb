"""The whole picture: sockets with their nodes as cards, the legend, the distances.

It is drawn for a width, and its height follows. Nodes are grouped by their sockets; what has no CPUs, such as
CXL memory, is a group of its own. Nodes that have nothing are named in a line. Nothing is written over
anything else.
"""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Final

from bayplan.drawing.distances import distances
from bayplan.drawing.node_card import Card, NodeView, holders_of, is_empty
from bayplan.drawing.socket_layout import GAP, Row, Socket, rows_of
from bayplan.drawing.style import STYLE, colors_of
from bayplan.drawing.svg import box, element, folded, plain, text
from bayplan.quantity import counted
from bayplan.sets import IdSet, NodeSet

WIDTH: Final = 1180.0
NARROWEST: Final = 320.0

_MARGIN: Final = 12.0
_SOCKET_HEAD: Final = 28.0
_LINE: Final = 16.0
_FULL_CARDS: Final = 12
"""Nodes, up to which cards have everything."""
_CARD_WIDTH: Final = 258.0
_COMPACT_WIDTH: Final = 130.0

_LEGEND: Final = (
    ("c0", "promised, a colour for each container"),
    ("kept", "reserved, isolated, or held outside of containers"),
    ("used", "really used here"),
    ("stray", "used, may lie elsewhere"),
    ("cache", "can be reclaimed"),
    ("free", "free"),
)


def machine_map(nodes: Sequence[NodeView], width: float = WIDTH, *, embedded: bool = False) -> str:
    """The picture of the *nodes* of an answer to ``nodes``, as an SVG document; *embedded*, in a page that
    has the style and the space around it."""
    width, margin = max(NARROWEST, width), 0.0 if embedded else _MARGIN
    inner, y = width - 2 * margin, margin
    shown = [node for node in nodes if not is_empty(node)]
    empty = [node for node in nodes if is_empty(node)]
    colors = colors_of([one["name"] for one in holders_of(node)] for node in shown)
    compact = len(shown) > _FULL_CARDS
    drawn: list[str] = []
    for row in rows_of(_sockets(shown), inner, _COMPACT_WIDTH if compact else _CARD_WIDTH):
        height, part = _row(row, colors, compact=compact)
        drawn.append(_at(margin, y, part))
        y += height + GAP
    for height, part in (_nothing(empty, inner), _legend(inner), distances(shown, inner)):
        drawn.append(_at(margin, y, part))
        y += height
    y += margin
    return element(
        "svg",
        element("title", plain(counted(len(nodes), "NUMA node"))),
        "" if embedded else element("style", STYLE),
        box(0, 0, width, y, "ground"),
        *drawn,
        xmlns="http://www.w3.org/2000/svg",
        class_="map",
        role="img",
        viewBox=f"0 0 {width:g} {y:g}",
        width=width,
        height=y,
    )


def _sockets(nodes: Sequence[NodeView]) -> list[Socket]:
    """The nodes by their sockets, and those without any at the end."""

    def ids(node: NodeView) -> tuple[int, ...]:
        return tuple(node["cpus"]["sockets"])

    ordered = sorted(nodes, key=lambda node: (not ids(node), ids(node), node["id"]))
    return [Socket(key, tuple(members)) for key, members in groupby(ordered, key=ids)]


def _row(row: Row, colors: Mapping[str, str], *, compact: bool) -> tuple[float, str]:
    """Sockets beside each other, all as high as the highest; the height, and the picture."""
    titles = [folded(_name(one), row.width_of(one) - 2 * GAP, 12, bold=True) for one in row.sockets]
    head = _SOCKET_HEAD + (max(map(len, titles)) - 1) * _LINE
    drawn = [_cards(socket, row.card_width, head, colors, compact=compact) for socket in row.sockets]
    height = max(socket_height for socket_height, _ in drawn)
    parts, x = [], 0.0
    for socket, title, (_, cards) in zip(row.sockets, titles, drawn, strict=True):
        frame = box(0, 0, row.width_of(socket), height, "socket", radius=10)
        lines = "".join(text(GAP, 19 + number * _LINE, line, "strong") for number, line in enumerate(title))
        parts.append(_at(x, 0, frame, lines, cards))
        x += row.width_of(socket) + GAP
    return height, "".join(parts)


def _cards(
    socket: Socket, width: float, head: float, colors: Mapping[str, str], *, compact: bool
) -> tuple[float, str]:
    cards = [Card(node, width, colors, compact=compact) for node in socket.nodes]
    drawn, y = [], head
    for first in range(0, len(cards), socket.columns):
        line = cards[first : first + socket.columns]
        height = max(card.height for card in line)
        for number, card in enumerate(line):
            drawn.append(_at(GAP + number * (width + GAP), y, card.picture(width, height)))
        y += height + GAP
    return y, "".join(drawn)


def _at(x: float, y: float, *parts: str) -> str:
    return element("g", *parts, transform=f"translate({x:g} {y:g})")


def _name(socket: Socket) -> str:
    if not socket.ids:
        return "Memory without CPUs"
    return f"Socket{'s' if len(socket.ids) > 1 else ''} {IdSet(socket.ids)}"


def _nothing(nodes: Sequence[NodeView], width: float) -> tuple[float, str]:
    """The nodes that have nothing, in a line of their own."""
    if not nodes:
        return 0.0, ""
    names = f"Node{'s' if len(nodes) > 1 else ''} {NodeSet(node['id'] for node in nodes)}"
    lines = folded(f"{names}: neither memory nor CPUs", width, 12)
    drawn = [text(0, 14 + number * _LINE, line, "soft") for number, line in enumerate(lines)]
    return 10 + len(lines) * _LINE, "".join(drawn)


def _legend(width: float) -> tuple[float, str]:
    drawn, x, y = [], 0.0, 14.0
    for class_, words in _LEGEND:
        length = 20 + 6.3 * len(words)
        if x and x + length > width:
            x, y = 0.0, y + 20
        drawn.append(box(x, y - 9, 10, 10, class_, radius=2) + text(x + 15, y, words, "soft small"))
        x += length + 14
    return y + 22, "".join(drawn)
