"""The pictures of a machine and of a cluster. Pure.

A machine is drawn for a width, and its height follows. Nodes are grouped by their sockets; what has no CPUs,
such as CXL memory, is a group of its own. Nodes that have nothing are named in a line. Nothing is written
over anything else. In this order: bars, cores, a card, where sockets and cards go, the table of distances,
the picture.

A cluster is a cell for each NUMA node, filled as far as its memory is promised. What a cell cannot show is in
its tip; a node's cells are a link to its own picture.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from math import ceil
from typing import Any, Final, NamedTuple, TypeAlias

from bayplan.drawing.svg import (
    NAMED,
    STYLE,
    box,
    colors_of,
    element,
    fitting,
    folded,
    plain,
    text,
    text_width,
)
from bayplan.quantity import counted, format_bytes
from bayplan.sets import CpuSet, IdSet, NodeSet

Part: TypeAlias = tuple[int, str, str]
"""Bytes, the class of their colour, and what they are."""

_SEEN: float = 0.8
"""A part that is narrower is not drawn: it could not be seen, and there may be hundreds."""


def bar(y: float, width: float, height: float, total_bytes: int, parts: Iterable[Part]) -> str:
    """*parts* one after the other, on ground that stands for the whole. What is more than the whole, as can
    happen when memory was taken away, does not leave the bar."""
    drawn = [box(0, y, width, height, "free", radius=2)]
    at_bytes = 0
    for amount_bytes, class_, what in parts:
        shown_bytes = min(amount_bytes, total_bytes - at_bytes)
        length = width * shown_bytes / total_bytes if total_bytes else 0
        if length >= _SEEN:
            start = width * at_bytes / total_bytes
            gap = 0.6 if length > 3 * _SEEN else 0  # a thin gap between neighbours
            drawn.append(box(start, y, length - gap, height, class_, f"{what}: {format_bytes(amount_bytes)}"))
        at_bytes += max(0, shown_bytes)
    return "".join(drawn)


def promised_parts(node: Mapping[str, Any], resource: str, colors: Mapping[str, str]) -> list[Part]:
    """What of a resource is reserved, and what each container is promised, the largest first."""
    amounts = node["resources"][resource]
    held = [(one["bookedBytes"].get(resource, 0), one["name"]) for one in node["containers"]]
    promised = [(amount, colors[name], name) for amount, name in sorted(held, key=_largest_first) if amount]
    return [(amounts["reservedBytes"], "kept", "reserved"), *promised]


def used_parts(live: Mapping[str, Any]) -> list[Part]:
    """What of the memory is really used, and by whom."""
    return [
        (live["heldOutsideBytes"], "kept", "held outside of containers"),
        (live["usedByOwnersBytes"], "used", "used by containers that stay here"),
        (live["movableBytes"], "stray", "used by containers, and may lie elsewhere"),
        (live["reclaimableBytes"], "cache", "can be reclaimed"),
    ]


def _largest_first(one: tuple[int, str]) -> tuple[int, str]:
    return -one[0], one[1]


_GAP: Final = 3.0
_FRAME: Final = 3.0
"""Around the cores of each cache or kind, where there are several."""


def cores(
    node: Mapping[str, Any], y: float, width: float, size: float, colors: Mapping[str, str]
) -> tuple[float, str]:
    """Each core as a column of its CPUs, in rows across *width*; a CPU is *size* wide and high. Those of each
    L3 cache and each kind are in a frame, where there are several.

    Returns:
        The height, and the picture.
    """
    owners = {cpu: one["name"] for one in node["containers"] for cpu in CpuSet.parse(one["exclusiveCpus"])}
    kinds = {key: CpuSet.parse(node["cpus"][key]) for key in ("contested", "reserved", "isolated", "shared")}
    pools = {cpu: name for name, text in node["cpus"]["pools"].items() for cpu in CpuSet.parse(text)}
    groups = _groups(node["cpus"])
    threads = max([len(core) for group in groups for core in group.cores], default=0)
    step_x, step_y = size + _GAP, threads * size + _GAP
    frame = _FRAME if len(groups) > 1 else 0.0
    columns = max(1, int((width - 2 * frame + _GAP) / step_x))
    left, top, bottom, drawn = 0.0, y, y, []
    for group in groups:
        across = min(columns, len(group.cores)) * step_x - _GAP + 2 * frame
        if left and left + across > width:
            left, top = 0.0, bottom + _GAP
        down = -(-len(group.cores) // columns) * step_y - _GAP + 2 * frame
        if frame:
            drawn.append(box(left, top, across, down, "group", group.tip, 3))
        for number, core in enumerate(group.cores):
            x, down_to = left + frame + (number % columns) * step_x, top + frame + number // columns * step_y
            for place, cpu in enumerate(core):
                class_, whose = _look(cpu, owners, pools, kinds, colors)
                drawn.append(box(x, down_to + place * size, size, size, class_, f"CPU {cpu}: {whose}", 1.5))
        bottom, left = max(bottom, top + down), left + across + _GAP
    return bottom - y, "".join(drawn)


class _CoreGroup(NamedTuple):
    """Cores of one kind at one L3 cache, and what is to be said of them."""

    tip: str
    cores: list[list[int]]


def _groups(cpus: Mapping[str, Any]) -> list[_CoreGroup]:
    """The cores of a node by their L3 caches and kinds, in the order of both."""
    caches = [(CpuSet.parse(one["cpus"]), _of_cache(one)) for one in cpus["l3CacheUse"]]
    kinds = [(CpuSet.parse(ids), _of_kind(kind, ids)) for kind, ids in cpus["kinds"].items()]
    found: dict[tuple[str, ...], list[list[int]]] = {}
    for core in map(CpuSet.parse, cpus["cores"]):
        of = [tip for one in (caches, kinds) for cpus_of, tip in one if not core.isdisjoint(cpus_of)]
        found.setdefault(tuple(of), []).append(list(core))
    return [_CoreGroup("; ".join(of), cores) for of, cores in found.items()]


def _of_kind(kind: str, cpus: str) -> str:
    return f"{cpus}: cores of kind {kind}"


def _of_cache(cache: Mapping[str, Any]) -> str:
    owners = ", ".join(cache["owners"])
    whole = f"{cache['wholeCores']} of {counted(cache['cores'], 'core')} whole"
    return f"L3 cache of {cache['cpus']}: {whole}{f'; {owners}' if owners else ''}"


def _look(
    cpu: int,
    owners: Mapping[int, str],
    pools: Mapping[int, str],
    kinds: Mapping[str, CpuSet],
    colors: Mapping[str, str],
) -> tuple[str, str]:
    """The class of a CPU's colour, and the owner of the CPU."""
    if cpu in pools:
        return "pool", f"the pool {pools[cpu]}"
    if cpu in owners:
        whose = f"{owners[cpu]} and others" if cpu in kinds["contested"] else f"only {owners[cpu]}"
        return colors[owners[cpu]], whose
    if cpu in kinds["reserved"]:
        return "kept", "reserved"
    if cpu in kinds["isolated"]:
        return "kept", "isolated, for who asks for it"
    return ("shared", "shared") if cpu in kinds["shared"] else ("free", "nobody's")


NodeView: TypeAlias = Mapping[str, Any]
"""A node as the answer to ``nodes`` has it."""

PADDING: Final = 12.0
_CARD_LINE: Final = 17.0
_MEMORY: Final = "memory"


class Card:
    """Draws a node downwards from its top; ``height`` is how far it came."""

    def __init__(self, node: NodeView, width: float, colors: Mapping[str, str], *, compact: bool) -> None:
        self.height = PADDING
        self._node = node
        self._width = width - 2 * PADDING
        self._colors = colors
        self._compact = compact
        self._parts: list[str] = []
        self._draw()
        self.height += PADDING

    def picture(self, width: float, height: float) -> str:
        """The card; all of a line have the same *height*."""
        ground = box(0, 0, width, height, "card", radius=8)
        inside = element("g", *self._parts, transform=f"translate({PADDING:g} 0)")
        return element("g", ground, inside, data_node=str(self._node["id"]))

    def _draw(self) -> None:
        memory = self._node["resources"][_MEMORY]
        self._head(memory)
        if memory["totalBytes"]:
            self._bars(memory)
        if not self._compact:
            self._huge_pages()
            self._whole()
        size = 7.0 if self._compact else 12.0
        height, drawn = cores(self._node, self.height, self._width, size, self._colors)
        if drawn:
            self._parts.append(drawn)
            self.height += height
        if not self._compact:
            self._containers()

    def _head(self, memory: Mapping[str, Any]) -> None:
        name, note = f"Node {self._node['id']}", _kind(self._node)
        if self._compact:
            promised, allocatable = memory["bookedBytes"], memory["allocatableBytes"]
            note = f"{_percent(promised, allocatable)}" if memory["totalBytes"] else "no memory"
        self._label(name, note, head=True)

    def _bars(self, memory: Mapping[str, Any]) -> None:
        total_bytes = memory["totalBytes"]
        if not self._compact:
            promised, allocatable = (format_bytes(memory[f"{key}Bytes"]) for key in ("booked", "allocatable"))
            self._label(f"{promised} of {allocatable} promised", f"{format_bytes(memory['freeBytes'])} left")
        parts = promised_parts(self._node, _MEMORY, self._colors)
        self._bar(10 if self._compact else 18, total_bytes, parts)
        live = self._node["live"]
        if live is None:
            return
        used = used_parts(live)
        if not self._compact:
            self._label(f"{format_bytes(sum(part[0] for part in used[:3]))} really used", _still(live))
        self._bar(5 if self._compact else 9, total_bytes, used)

    def _huge_pages(self) -> None:
        for resource, amounts in self._node["resources"].items():
            if resource != _MEMORY and amounts["totalBytes"]:
                promised, total = format_bytes(amounts["bookedBytes"]), format_bytes(amounts["totalBytes"])
                self._label(f"{promised} of {total} {resource}")
                parts = promised_parts(self._node, resource, self._colors)
                self._bar(9, amounts["totalBytes"], parts)

    def _whole(self) -> None:
        """What of cores and L3 caches is whole and nobody's, and which CPUs are of which kind."""
        cpus = self._node["cpus"]
        if not cpus["cores"]:
            return
        caches = cpus["l3CacheUse"]
        whole = sum(one["wholeCores"] == one["cores"] for one in caches)
        of_caches = f"{whole} of {counted(len(caches), 'L3 cache')}" if len(caches) > 1 else ""
        self._label(f"{cpus['wholeCores']} of {counted(len(cpus['cores']), 'core')} whole", of_caches)
        for kind, ids in cpus["kinds"].items():
            self._label(_of_kind(kind, ids))

    def _containers(self) -> None:
        holders = holders_of(self._node)
        if holders:
            self.height += 6
        for one in holders[:NAMED]:
            self.height += _CARD_LINE
            amount = _amounts(one)
            self._parts.append(box(0, self.height - 9, 9, 9, self._colors[one["name"]], radius=2))
            room = self._width - 20 - 6.2 * len(amount)
            self._parts.append(text(15, self.height, fitting(one["name"], room, 12)))
            self._parts.append(text(self._width, self.height, amount, "soft small", "end"))
        if len(holders) > NAMED:
            self.height += _CARD_LINE
            self._parts.append(text(15, self.height, f"and {len(holders) - NAMED} more", "soft small"))

    def _label(self, left: str, right: str = "", *, head: bool = False) -> None:
        """*left*, and *right* at the other edge, or below where there is no room for both."""
        size, baseline, line = (15, 12, 22) if head else (12, 10, 16)
        self._parts.append(text(0, self.height + baseline, left, "head" if head else ""))
        if right and text_width(left, size, bold=head) + text_width(right, 11) <= self._width:
            self._parts.append(text(self._width, self.height + baseline, right, "soft small", "end"))
        elif right:
            self.height += 15
            note = fitting(right, self._width, 11)
            self._parts.append(text(0, self.height + baseline, note, "soft small"))
        self.height += line

    def _bar(self, height: float, total_bytes: int, parts: list[tuple[int, str, str]]) -> None:
        self._parts.append(bar(self.height, self._width, height, total_bytes, parts))
        self.height += height + (4 if self._compact else 8)


def holders_of(node: NodeView) -> list[Mapping[str, Any]]:
    """The containers of a node, those with the most memory there first."""
    return sorted(node["containers"], key=lambda one: (-_held(one), one["name"]))


def is_empty(node: NodeView) -> bool:
    """Whether a node has neither memory nor CPUs, nor anybody there, such as those that a GPU's driver keeps
    for its partitions. They have no card."""
    return not (
        node["cpus"]["all"]
        or node["containers"]
        or any(amounts["totalBytes"] for amounts in node["resources"].values())
    )


def _kind(node: NodeView) -> str:
    """What is to be said of the node's memory, beside its size."""
    kind = node["kind"]
    if not node["memTotalBytes"]:
        return "no memory"
    if kind["owner"]:
        return f"memory of {kind['owner']}"
    return "" if kind["tier"] is None or kind["ordinary"] else f"tier {kind['tier']}"


def _still(live: Mapping[str, Any]) -> str:
    outstanding_bytes = live["outstandingBytes"]
    return f"{format_bytes(outstanding_bytes)} outstanding" if outstanding_bytes else ""


def _held(container: Mapping[str, Any]) -> int:
    return int(container["bookedBytes"].get(_MEMORY, 0)) or int(container["heldBytes"] or 0)


def _amounts(container: Mapping[str, Any]) -> str:
    """What the container is promised here, else what it holds here; and its CPUs."""
    promised_bytes = container["bookedBytes"].get(_MEMORY, 0)
    held_bytes = container["heldBytes"]
    parts = []
    if promised_bytes:
        parts.append(format_bytes(promised_bytes))
    elif held_bytes:
        parts.append(f"holds {format_bytes(held_bytes)}")
    count = len(CpuSet.parse(container["exclusiveCpus"]))
    if count:
        parts.append(counted(count, "CPU"))
    return ", ".join(parts)


def _percent(part_bytes: int, whole_bytes: int) -> str:
    return f"{100 * part_bytes // whole_bytes if whole_bytes else 0} %"


GAP: Final = 12.0
_WIDEST: Final = 580.0


class Socket(NamedTuple):
    """The nodes of one socket, or of several that have nodes in common; of none: memory without CPUs."""

    ids: tuple[int, ...]
    nodes: tuple[NodeView, ...]
    columns: int = 1


class SocketRow(NamedTuple):
    """Sockets beside each other, and how wide each of their cards is."""

    sockets: tuple[Socket, ...]
    card_width: float

    def width_of(self, socket: Socket) -> float:
        """The width of a socket, with the space around its cards."""
        return socket.columns * (self.card_width + GAP) + GAP


def rows_of(sockets: Sequence[Socket], width: float, narrowest: float) -> list[SocketRow]:
    """All sockets in their order, in rows of *width*, with cards that are not narrower than *narrowest* where
    at least one of these fits."""
    rows: list[list[Socket]] = []
    for socket in sockets:
        placed = _in_columns(socket, width, narrowest)
        if rows and _card_width([*rows[-1], placed], width) >= narrowest:
            rows[-1].append(placed)
        else:
            rows.append([placed])
    return [SocketRow(tuple(row), min(_WIDEST, _card_width(row, width))) for row in rows]


def _in_columns(socket: Socket, width: float, narrowest: float) -> Socket:
    """In as many columns as fit, or as few as need no more lines: four nodes are 2 by 2, not 3 and 1."""
    count = len(socket.nodes)
    most = max(1, min(count, int((width - GAP) / (narrowest + GAP))))
    return Socket(socket.ids, socket.nodes, ceil(count / ceil(count / most)))


def _card_width(sockets: Sequence[Socket], width: float) -> float:
    columns = sum(socket.columns for socket in sockets)
    spaces = columns + len(sockets) + len(sockets) - 1  # one after each card, one before them, one between
    return (width - spaces * GAP) / columns


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


def _row(row: SocketRow, colors: Mapping[str, str], *, compact: bool) -> tuple[float, str]:
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


_WIDTH, _CELL, _HEIGHT, _CELL_GAP, _ROW, _HEAD = 1200, 11, 22, 6, 30, 34
_CLUSTER_LEGEND: Final = (
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
    drawn, y = _cluster_legend(), 64.0
    for pool, some in sorted(pools.items()):
        drawn.append(text(12, y + 14, f"{pool or 'nodes'}: {counted(len(some), 'node')}", "strong"))
        y, x = y + _HEAD - 10, 12.0
        for view in some:
            width = max(1, len(view.get("nodes", ()))) * (_CELL + 1)
            if x + width > _WIDTH - 12:
                x, y = 12.0, y + _ROW
            drawn.append(_node(view, x, y))
            x += width + _CELL_GAP
        y += _ROW + 12
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


def _cluster_legend() -> list[str]:
    drawn, x = [text(12, 28, "Memory of all NUMA nodes", "head")], 12.0
    for class_, words in _CLUSTER_LEGEND:
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
