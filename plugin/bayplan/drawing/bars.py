"""Amounts as bars: what is promised, and what is really used, of all that a node has."""

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from bayplan.drawing.svg import box
from bayplan.quantity import format_bytes

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
