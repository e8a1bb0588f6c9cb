"""What a pod asks of bayplan by annotation.

``bayplan.dev/KEY`` holds for every container of the pod, ``CONTAINER.bayplan.dev/KEY`` for one container
and wins over the other. The container's name goes into the prefix, because the part after the slash is
limited to 63 characters and a container's name alone may have as many.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from bayplan.errors import ConfigError, ParseError, Problem
from bayplan.quantity import parse_bytes

PREFIX: Final = "bayplan.dev"
_MEMORY_LIMIT: Final = "memory-limit"


@dataclass(frozen=True, slots=True)
class Wishes:
    """The wishes of one container. ``memory_limit_bytes`` is for a container whose spec has no limit."""

    memory_limit_bytes: int | None = None


def _positive_bytes(text: str) -> int:
    amount_bytes = parse_bytes(text)
    if amount_bytes == 0:
        raise ParseError("memory limit", text, "more than 0 bytes")
    return amount_bytes


_KEYS: Final[Mapping[str, Callable[[str], int]]] = {_MEMORY_LIMIT: _positive_bytes}


def read_wishes(annotations: Mapping[str, str], container_name: str) -> Wishes:
    """The wishes for *container_name* in a pod's *annotations*; other prefixes are none of our business.

    Raises:
        ConfigError: unknown keys or wrong values under our prefix, all of them, for this container.
    """
    values: dict[str, int] = {}
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
            try:
                values[key] = _KEYS[key](text)
            except ParseError as error:
                problems.append(Problem(f"annotation {annotation}", repr(text), error.expected))
    if problems:
        raise ConfigError(f"annotations for container {container_name}", tuple(problems))
    return Wishes(memory_limit_bytes=values.get(_MEMORY_LIMIT))
