"""What a pod asks of bayplan by annotation.

``bayplan.dev/KEY`` holds for every container of the pod, ``CONTAINER.bayplan.dev/KEY`` for one container
and wins over the other. The container's name goes into the prefix, because the part after the slash is
limited to 63 characters and a container's name alone may have as many.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from bayplan.domain.decision import DeviceHint
from bayplan.errors import ConfigError, ParseError, Problem
from bayplan.quantity import parse_bytes
from bayplan.sets import NodeSet

PREFIX: Final = "bayplan.dev"
ALL: Final = "all"
"""In place of the names of devices: every one."""

_SEPARATOR: Final = ";"
_HINTS_EXPECTED: Final = "DEVICE=NODES, several separated by ;, like gpu=1; nic=0-1"


@dataclass(frozen=True, slots=True)
class Wishes:
    """The wishes of one container. ``memory_limit_bytes`` is for a container whose spec has no limit.

    ``added_hints`` count beside those of the container's own devices, of which ``ignored_hints`` names the
    ones that don't count (or ALL); ``replaced_hints`` count instead of everything else.
    """

    memory_limit_bytes: int | None = None
    added_hints: tuple[DeviceHint, ...] = ()
    ignored_hints: frozenset[str] = frozenset()
    replaced_hints: tuple[DeviceHint, ...] | None = None


def _positive_bytes(text: str) -> int:
    amount_bytes = parse_bytes(text)
    if amount_bytes == 0:
        raise ParseError("memory limit", text, "more than 0 bytes")
    return amount_bytes


def _device_hints(text: str) -> tuple[DeviceHint, ...]:
    """``DEVICE=NODES; ...``; a device's name may hold ``=`` itself, as those of CDI do."""
    hints: dict[str, DeviceHint] = {}
    for part in text.split(_SEPARATOR):
        device, equals, nodes = (word.strip() for word in part.rpartition("="))
        if not equals or not device or not nodes or device in hints:
            raise ParseError("device hints", text, _HINTS_EXPECTED)
        try:
            hints[device] = DeviceHint(device, NodeSet.parse(nodes))
        except ParseError as error:
            raise ParseError("device hints", text, _HINTS_EXPECTED) from error
    return tuple(hints.values())


def _device_names(text: str) -> frozenset[str]:
    names = [name.strip() for name in text.split(_SEPARATOR)]
    if not all(names) or (ALL in names and len(names) > 1):
        raise ParseError("devices", text, f"{ALL}, or names of devices separated by ;")
    return frozenset(names)


_KEYS: Final[Mapping[str, tuple[str, Callable[[str], Any]]]] = {
    "memory-limit": ("memory_limit_bytes", _positive_bytes),
    "add-device-hints": ("added_hints", _device_hints),
    "ignore-device-hints": ("ignored_hints", _device_names),
    "replace-device-hints": ("replaced_hints", _device_hints),
}
"""Key -> the field of `Wishes` that it sets, and how its text is read."""


def read_wishes(annotations: Mapping[str, str], container_name: str) -> Wishes:
    """The wishes for *container_name* in a pod's *annotations*; other prefixes are none of our business.

    Raises:
        ConfigError: unknown keys or wrong values under our prefix, all of them, for this container.
    """
    values: dict[str, Any] = {}
    problems: list[Problem] = []
    own_prefix = f"{container_name}.{PREFIX}"
    for wanted_prefix in (PREFIX, own_prefix):
        for annotation, text in sorted(annotations.items()):
            prefix, slash, key = annotation.partition("/")
            if not slash or prefix != wanted_prefix:
                continue
            if key not in _KEYS:
                known = ", ".join(f"{prefix}/{known_key}" for known_key in sorted(_KEYS))
                problems.append(Problem(f"annotation {annotation}", "an unknown key", f"one of {known}"))
                continue
            field, read = _KEYS[key]
            try:
                values[field] = read(text)
            except ParseError as error:
                problems.append(Problem(f"annotation {annotation}", repr(text), error.expected))
    if problems:
        raise ConfigError(f"annotations for container {container_name}", tuple(problems))
    return Wishes(**values)
