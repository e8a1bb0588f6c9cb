"""One NUMA node as a card: memory promised and really used, huge pages, CPUs core by core, who holds what.

On machines of many nodes cards are compact: no lists, and in words only what matters most.
"""

from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from bayplan.drawing.bars import bar, promised_parts, used_parts
from bayplan.drawing.cpus import cores
from bayplan.drawing.style import NAMED
from bayplan.drawing.svg import box, element, fitting, text, text_width
from bayplan.quantity import counted, format_bytes
from bayplan.sets import CpuSet

NodeView: TypeAlias = Mapping[str, Any]
"""A node as the answer to ``nodes`` has it."""

PADDING: Final = 12.0
_LINE: Final = 17.0
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
        size = 7.0 if self._compact else 12.0
        height, drawn = cores(self._node, self.height, self._width, size, self._colors)
        if drawn:
            self._parts.append(drawn)
            self.height += height
        if not self._compact:
            self._containers()

    def _head(self, memory: Mapping[str, Any]) -> None:
        name, note = f"Node {self._node['id']}", _kind(self._node)
        self._parts.append(text(0, self.height + 12, name, "head"))
        if self._compact:
            promised, allocatable = memory["bookedBytes"], memory["allocatableBytes"]
            note = f"{_percent(promised, allocatable)}" if memory["totalBytes"] else "no memory"
        if text_width(name, 15, bold=True) + text_width(note, 11) > self._width:
            self.height += 15
            note = fitting(note, self._width, 11)
            self._parts.append(text(0, self.height + 12, note, "soft small"))
        else:
            self._parts.append(text(self._width, self.height + 12, note, "soft small", "end"))
        self.height += 22

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

    def _containers(self) -> None:
        holders = holders_of(self._node)
        if holders:
            self.height += 6
        for one in holders[:NAMED]:
            self.height += _LINE
            amount = _amounts(one)
            self._parts.append(box(0, self.height - 9, 9, 9, self._colors[one["name"]], radius=2))
            room = self._width - 20 - 6.2 * len(amount)
            self._parts.append(text(15, self.height, fitting(one["name"], room, 12)))
            self._parts.append(text(self._width, self.height, amount, "soft small", "end"))
        if len(holders) > NAMED:
            self.height += _LINE
            self._parts.append(text(15, self.height, f"and {len(holders) - NAMED} more", "soft small"))

    def _label(self, left: str, right: str = "") -> None:
        self._parts.append(text(0, self.height + 10, left))
        if right:
            self._parts.append(text(self._width, self.height + 10, right, "soft small", "end"))
        self.height += 16

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
