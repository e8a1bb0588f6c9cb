"""From plain values (what TOML, YAML and flags can hold) to typed ones, with every problem named by its
path.

A reader takes a path and a plain value and returns the typed value, or raises InvalidValueError with
*all* problems at and below that path. Readers of tables are made of readers of their parts.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from decimal import Decimal
from pathlib import Path
from types import TracebackType
from typing import Final, TypeAlias, TypeVar

from bayplan.admin_protocol import MAX_SOCKET_PATH_BYTES
from bayplan.errors import ParseError, Problem, excerpt, meant_by
from bayplan.printable import pattern
from bayplan.quantity import counted
from bayplan.sets import CpuSet, NodeSet

T = TypeVar("T")
Reader: TypeAlias = Callable[[str, object], T]

_WHOLE_NUMBER: Final = pattern("[0-9]{1,10}")
_FRACTIONS: Final = range(8, 1 << 31)
"""What the kernel takes for vm.percpu_pagelist_high_fraction beside 0."""
_DURATION: Final = pattern(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m)")
_NAMESPACE: Final = "[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
_UNIT_MS: Final = {"ms": 1, "s": 1000, "m": 60_000}
NOBODY: Final = "none"
_DECIMAL_BITS: Final = 1024
_MINOR_DIGITS: Final = 2
_KUBELET_VERSION: Final = pattern(r"v?1\.([0-9]{1,3})(?:\.[0-9]+)?(?:[-+].*)?")
"""Of the minor versions of Kubernetes that are maintained."""


class InvalidValueError(Exception):
    """Everything that is wrong with a value.

    *readable*: the value is clear all the same; it is ``value``, and further checks use it.
    """

    def __init__(self, *problems: Problem, readable: bool = False, value: object = None) -> None:
        super().__init__(*problems)
        self.problems = problems
        self.readable = readable
        self.value = value


def invalid(path: str, found: str, expected: str) -> InvalidValueError:
    """The error for the value at *path* alone."""
    return InvalidValueError(Problem(path, found, expected))


class ProblemCollector:
    """Collects the problems of several values: ``with collector:`` around each, then `raise_problems`."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.readable = True

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if isinstance(error, InvalidValueError):
            self.problems += error.problems
            self.readable = self.readable and error.readable
        return isinstance(error, InvalidValueError)

    def raise_problems(self, value: object = None) -> None:
        """Raise what was collected, if anything; *value* is what could be read."""
        if self.problems:
            raise InvalidValueError(*self.problems, readable=self.readable, value=value)


def show(value: object) -> str:
    """A plain value as it stands in a file, with its type where that is not obvious."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return "a table"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, str):
        return repr(excerpt(value))
    return f"{excerpt(digits(value) if isinstance(value, int) else str(value))} ({type(value).__name__})"


def digits(value: int) -> str:
    """A number as text. Files can hold more digits in hexadecimal than Python writes in decimal."""
    return str(value) if value.bit_length() <= _DECIMAL_BITS else hex(value)


def join(path: str, key: str) -> str:
    """The path of *key* in the table at *path*; keys that are not plain words are quoted as in TOML."""
    name = excerpt(key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else f'"{key}"')
    return f"{path}.{name}" if path else name


def unknown_key(path: str, key: str, known: Collection[str]) -> Problem:
    """The problem that *key* is, with the key that was probably meant."""
    return unknown_keys(path, [key], known)[0]


def unknown_keys(path: str, keys: Iterable[str], known: Collection[str], advice: str = "") -> list[Problem]:
    """The problems that *keys* are: one for each whose meaning can be guessed, and one for all the others,
    which has the known keys once, and *advice*."""
    plain = {_plain(name): name for name in known}
    guessed: list[Problem] = []
    others: list[str] = []
    for key in keys:
        if near := meant_by(_plain(key), plain):
            guessed.append(Problem(join(path, key), "an unknown key", f"{plain[near]}, perhaps"))
        else:
            others.append(join(path, key))
    if others:
        found = "an unknown key" if len(others) == 1 else counted(len(others), "unknown key")
        expected = f"one of {', '.join(sorted(known))}{advice}"
        guessed.append(Problem(excerpt(", ".join(others)), found, expected))
    return guessed


def kubelet_minor(path: str, value: object) -> int:
    """A version of Kubernetes as kubelet and vendors write it (``v1.37.2``, ``v1.35.1-gke.1256000``), as its
    minor version. YAML and TOML read 1.37 as a number."""
    if isinstance(value, float):
        # 1.40 becomes 1.4, so that only what cannot be that is taken.
        text = f"{value}"
        if len(text.partition(".")[2]) < _MINOR_DIGITS:
            raise invalid(path, text, "a text such as '1.40'")
        value = text
    match = _KUBELET_VERSION.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise invalid(path, show(value), "a version of Kubernetes such as 1.37 or v1.36.3")
    return int(match[1])


def one_of(choices: Mapping[str, T]) -> Reader[T]:
    """A text out of *choices*."""

    def read(path: str, value: object) -> T:
        if isinstance(value, str) and value in choices:
            return choices[value]
        raise invalid(path, show(value), " or ".join(choices))

    return read


def off_or_one_of(choices: Mapping[str, T]) -> Reader[T]:
    """A text out of *choices*; YAML has false for the word off."""
    read = one_of(choices)
    return lambda path, value: read(path, "off" if value is False else value)


def boolean(path: str, value: object) -> bool:
    """True or false."""
    if isinstance(value, bool):
        return value
    raise invalid(path, show(value), "true or false")


def share_or_none(path: str, value: object) -> float | None:
    """A number in (0, 1]; the word none (in YAML also null) for None."""
    if value is None or value == "none":
        return None
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= 1:
        return float(value)
    raise invalid(path, show(value), "a number above 0 and up to 1, or none")


def whole_number(least: int, most: int) -> Reader[int]:
    """A number from *least* to *most*."""

    def read(path: str, value: object) -> int:
        if isinstance(value, int) and not isinstance(value, bool) and least <= value <= most:
            return value
        raise invalid(path, show(value), f"a whole number from {least} to {most}")

    return read


def whole_number_or(word: str, most: int) -> Reader[int | None]:
    """A number from 0 to *most*; *word* for None."""

    def read(path: str, value: object) -> int | None:
        if value == word:
            return None
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most:
            return value
        raise invalid(path, show(value), f"a whole number from 0 to {most}, or {word}")

    return read


def text_like(pattern: str, expected: str) -> Reader[str]:
    """A text that matches *pattern*."""

    def read(path: str, value: object) -> str:
        if isinstance(value, str) and re.fullmatch(pattern, value, re.ASCII):
            return value
        raise invalid(path, show(value), expected)

    return read


def namespaces(path: str, value: object) -> frozenset[str]:
    """Names of Kubernetes' namespaces, as a list, or with commas between them; an empty text for none."""
    names = [name for name in value.split(",") if name] if isinstance(value, str) else value
    if not isinstance(names, list):
        raise invalid(path, show(value), "a list of namespaces")
    expected = "a namespace: up to 63 of a-z, 0-9 and -, with a letter or digit at both ends"
    read, alone = text_like(_NAMESPACE, expected), len(names) == 1
    return frozenset(read(path if alone else f"{path}[{place}]", one) for place, one in enumerate(names))


def some_of(known: Collection[str]) -> Reader[frozenset[str]]:
    """Some of *known*, as a list, or with commas between them; the word none, or an empty text, for none."""

    def read(path: str, value: object) -> frozenset[str]:
        names = [name for name in value.split(",") if name] if isinstance(value, str) else value
        if names == ["none"]:
            return frozenset()
        expected = f"some of {', '.join(sorted(known))}"
        if not isinstance(names, list):
            raise invalid(path, show(value), f"a list with {expected}")
        for name in names:
            if name not in known:
                raise invalid(path, show(name), expected)
        return frozenset(names)

    return read


def absolute_path(path: str, value: object) -> Path:
    """A path that starts at the root."""
    if isinstance(value, str) and value.startswith("/") and "\0" not in value:
        return Path(value)
    raise invalid(path, show(value), "an absolute path")


def absolute_path_or_none(path: str, value: object) -> Path | None:
    """A path that starts at the root; the word none for None."""
    return None if value == "none" else absolute_path(path, value)


def socket_path(path: str, value: object) -> Path:
    """A path that fits into a unix socket's address."""
    socket = absolute_path(path, value)
    if len(bytes(socket)) > MAX_SOCKET_PATH_BYTES:
        raise invalid(path, show(value), f"a path of at most {MAX_SOCKET_PATH_BYTES} bytes")
    return socket


def socket_path_or_none(path: str, value: object) -> Path | None:
    """A path that fits into a unix socket's address; the word none for None."""
    return None if value == "none" else socket_path(path, value)


def duration_ms(low_ms: int, high_ms: int) -> Reader[int]:
    """A duration such as 800ms or 1.5s, in whole milliseconds."""
    expected = f"a duration from {low_ms}ms to {high_ms}ms, such as 800ms or 1s"

    def read(path: str, value: object) -> int:
        match = _DURATION.fullmatch(value) if isinstance(value, str) else None
        if match is not None:
            amount_ms = int(Decimal(match[1]) * _UNIT_MS[match[2]])
            if low_ms <= amount_ms <= high_ms:
                return amount_ms
        raise invalid(path, show(value), expected)

    return read


def list_fraction(path: str, value: object) -> int:
    """A value of vm.percpu_pagelist_high_fraction; flags have it as text."""
    number = int(value) if isinstance(value, str) and _WHOLE_NUMBER.fullmatch(value) else value
    if isinstance(number, int) and not isinstance(number, bool) and (number == 0 or number in _FRACTIONS):
        return number
    raise invalid(path, show(value), f"0, or a whole number from {_FRACTIONS[0]} to {_FRACTIONS[-1]}")


def cpu_list(path: str, value: object) -> CpuSet:
    """CPU ids in the kernel's list format."""
    return parsed(CpuSet.parse, path, value, "a CPU list such as 0-1,8")


def node_owners(path: str, value: object) -> dict[int, str]:
    """Devices by lists of NUMA nodes, as the device of each node; the word none for no device."""
    collector = ProblemCollector()
    owners: dict[int, str] = {}
    for key, item in items(path, value):
        here = join(path, key)
        with collector:
            nodes = parsed(NodeSet.parse, here, key, "a list of NUMA nodes such as 1-8")
            device = text_like(r"\S{1,128}", "the name of a device, without blanks, or none")(here, item)
            for node in nodes:
                if node in owners:
                    raise invalid(here, f"node {node} a second time", "one device for each node")
                owners[node] = "" if device == NOBODY else device
    collector.raise_problems()
    return owners


def table(readers: Mapping[str, Reader[T]]) -> Reader[dict[str, T]]:
    """A table with some of the keys of *readers*."""

    def read(path: str, value: object) -> dict[str, T]:
        def entry(here: str, key: str, item: object) -> T:
            if key not in readers:
                raise InvalidValueError(unknown_key(path, key, readers))
            return readers[key](here, item)

        return entries(path, value, entry)

    return read


def policy_options(known: Collection[str]) -> Reader[dict[str, str]]:
    """The options of one of kubelet's policies: texts by name; true, false and numbers stand for their texts.
    What the texts say is not checked here; the known options are read also beside unknown ones."""

    def read(path: str, value: object) -> dict[str, str]:
        def option(here: str, key: str, item: object) -> str:
            if key not in known:
                raise InvalidValueError(unknown_key(path, key, known), readable=True)
            if isinstance(item, bool):
                return "true" if item else "false"
            if isinstance(item, int):
                return digits(item)
            if isinstance(item, str):
                return item
            raise invalid(here, show(item), "a text such as 'true'")

        return entries(path, value, option)

    return read


def entries(path: str, value: object, entry: Callable[[str, str, object], T]) -> dict[str, T]:
    """A table whose entries *entry* reads, one by one: it gets the path, the key and the value of each."""
    collector = ProblemCollector()
    typed: dict[str, T] = {}
    for key, item in items(path, value):
        with collector:
            typed[key] = entry(join(path, key), key, item)
    collector.raise_problems(typed)
    return typed


def items(path: str, value: object) -> list[tuple[str, object]]:
    """The keys and values of a table."""
    if not isinstance(value, Mapping):
        raise invalid(path, show(value), "a table")
    return [(str(key), item) for key, item in value.items()]


def parsed(parse: Callable[[str], T], path: str, value: object, expected: str) -> T:
    """What *parse* makes of a text."""
    if not isinstance(value, str):
        raise invalid(path, show(value), expected)
    try:
        return parse(value)
    except ParseError as error:
        raise invalid(path, show(value), expected) from error


def _plain(key: str) -> str:
    """A key without what people vary: reserved_memory and reserved-memory are reservedMemory."""
    return re.sub(r"[-_]", "", key).lower()
