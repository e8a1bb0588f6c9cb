"""Amounts as text: Kubernetes quantities in, bytes and milli-CPUs out, and bytes as a human reads them.

Sources: the Quantity grammar of Kubernetes' apimachinery (sign, digits, fraction, then a binary or
decimal suffix or an exponent) and the kernel's names of huge page sizes. Amounts are integers; a
fraction of a byte is rounded up, as kubelet's ``Value()`` does.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from decimal import ROUND_CEILING, Decimal
from typing import Final

from bayplan.errors import ParseError
from bayplan.printable import pattern

KIB: Final = 1 << 10
MIB: Final = 1 << 20
GIB: Final = 1 << 30
MILLI_PER_CPU: Final = 1000
US_PER_S: Final = 1_000_000
UNLIMITED_BYTES: Final = 1 << 62
"""What is written for "unlimited" lies above this: 2^63 less a page of the kernel's, 2^63-1, 2^64-1, and what
became of these as floating point numbers. No machine has as much."""

_SUFFIXES: Final[dict[str, Decimal]] = {
    "n": Decimal("1e-9"), "u": Decimal("1e-6"), "m": Decimal("1e-3"), "": Decimal(1),
    "k": Decimal("1e3"), "M": Decimal("1e6"), "G": Decimal("1e9"),
    "T": Decimal("1e12"), "P": Decimal("1e15"), "E": Decimal("1e18"),
    "Ki": Decimal(1 << 10), "Mi": Decimal(1 << 20), "Gi": Decimal(1 << 30),
    "Ti": Decimal(1 << 40), "Pi": Decimal(1 << 50), "Ei": Decimal(1 << 60),
}  # fmt: skip
_QUANTITY: Final = pattern(
    r"([+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+))(?:[eE]([+-]?[0-9]{1,2})|([numkKMGTPE]?i?))"
)
_DECIMAL_UNITS: Final = ("", "k", "M", "G", "T", "P", "E")
_BINARY_UNITS: Final = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_INT64_MAX: Final = (1 << 63) - 1
_MEMPARSE: Final = pattern(r"(?:0[xX]([0-9a-fA-F]{1,40})|(0[0-7]{0,40}|[1-9][0-9]{0,40}))([kKmMgGtTpPeE]?)")
_INT64_DIGITS: Final = 19
_SHORT: Final = 10 * 1024
"""9999Mi still reads well."""


def parse_quantity(text: str) -> Decimal:
    """The exact value of a Kubernetes quantity (``1Gi``, ``500m``, ``1e3``, ``0.5``).

    Raises:
        ParseError: *text* is not a quantity.
    """
    match = _QUANTITY.fullmatch(text.strip())
    if match is None or (match[3] or "") not in _SUFFIXES:
        raise ParseError("quantity", text, "a Kubernetes quantity such as 512Mi, 2Gi or 1500m")
    scale = Decimal(10) ** int(match[2]) if match[2] else _SUFFIXES[match[3] or ""]
    return Decimal(match[1]) * scale


def parse_bytes(text: str) -> int:
    """A non-negative amount of memory in bytes, rounded up to a whole byte.

    Raises:
        ParseError: not a quantity, negative, or above 2**63 - 1.
    """
    value = parse_quantity(text).to_integral_value(ROUND_CEILING)
    if not 0 <= value <= _INT64_MAX:
        raise ParseError("amount of memory", text, "a quantity from 0 to 2^63-1 bytes")
    return int(value)


def whole_number(text: str) -> int | None:
    """A number of 0 or more as kernel and runtimes print it; None where *text* is none, or one that no signed
    counter of 64 bits holds (int() also takes other scripts' digits, and fails on thousands of them)."""
    if not (text.isascii() and text.isdigit() and len(text) <= _INT64_DIGITS):
        return None
    number = int(text)
    return number if number <= _INT64_MAX else None


def parse_cgroup_bytes(text: str) -> int | None:
    """An amount as the kernel reads it from a file of cgroup v2 (memparse()): bytes, decimal, octal or
    hexadecimal, perhaps with a binary suffix; None for ``max``, and for what no counter of the kernel holds.

    Raises:
        ParseError: anything else.
    """
    stripped = text.strip()
    if stripped == "max":
        return None
    match = _MEMPARSE.fullmatch(stripped)
    if match is None:
        raise ParseError("amount of memory", text, "bytes, perhaps with one of KMGTPE, or max")
    base = 16 if match[1] else 8 if len(match[2]) > 1 and match[2].startswith("0") else 10
    amount_bytes = int(match[1] or match[2], base) << (10 * " KMGTPE".index(match[3].upper() or " "))
    return amount_bytes if amount_bytes < UNLIMITED_BYTES else None


def parse_milli_cpus(text: str) -> int:
    """A non-negative amount of CPU in thousandths of one CPU, rounded up.

    Raises:
        ParseError: not a quantity, negative, or above 2**63 - 1.
    """
    value = (parse_quantity(text) * 1000).to_integral_value(ROUND_CEILING)
    if not 0 <= value <= _INT64_MAX:
        raise ParseError("amount of CPU", text, "a quantity from 0 to 2^63-1 thousandths of a CPU")
    return int(value)


def parse_nano_cpus(text: str) -> int:
    """A non-negative amount of CPU in billionths of one CPU, rounded up, as exact as Kubernetes' quantities.

    Raises:
        ParseError: as `parse_milli_cpus`.
    """
    parse_milli_cpus(text)
    return int((parse_quantity(text) * 10**9).to_integral_value(ROUND_CEILING))


def format_bytes(amount_bytes: int) -> str:
    """An amount as people write it: exact with a binary suffix if that is short, else two decimals.

    >>> format_bytes(3 << 30), format_bytes(1500), format_bytes((1 << 30) + 5)
    ('3Gi', '1.46Ki', '1.00Gi')
    """
    sign, rest, unit = ("-" if amount_bytes < 0 else ""), abs(amount_bytes), 0
    exact = rest
    while exact and exact % 1024 == 0 and unit < len(_BINARY_UNITS) - 1:
        exact, unit = exact // 1024, unit + 1
    if exact < _SHORT and (unit or exact < 1024):  # noqa: PLR2004 - bytes are not written without a unit
        return f"{sign}{exact}{_BINARY_UNITS[unit]}"
    value, unit = float(rest), 0
    while value >= 1024 and unit < len(_BINARY_UNITS) - 1:  # noqa: PLR2004 - the step between binary units
        value, unit = value / 1024, unit + 1
    return f"{sign}{value:.2f}{_BINARY_UNITS[unit]}"


def format_column(amounts_bytes: Iterable[int | None]) -> list[str]:
    """Amounts as one column, all in one unit, so that they can be compared at a glance: in the largest in
    which all are exact, where that is short, else in the largest in which the largest is at least 1, with two
    decimals. What is not known is a dash.

    >>> format_column([8 << 30, 240 << 20, None, 0]), format_column([8 << 30, 3 << 30])
    (['8192Mi', '240Mi', '-', '0'], ['8Gi', '3Gi'])
    >>> format_column([240 << 30, 240 << 20]), format_column([1 << 40, 4096])
    (['240.00Gi', '0.23Gi'], ['1.00Ti', '<0.01Ti'])
    """
    amounts = list(amounts_bytes)
    known = [amount for amount in amounts if amount is not None]
    largest = max(map(abs, known), default=0)
    unit = min((max(1, largest).bit_length() - 1) // 10, len(_BINARY_UNITS) - 1)
    below = max(0, unit - 1)
    exact = all(amount % (1 << 10 * unit) == 0 for amount in known)
    if not exact and largest < _SHORT << 10 * below:
        exact = all(amount % (1 << 10 * below) == 0 for amount in known)
        unit = below if exact else unit
    divisor = 1 << 10 * unit

    def shown(amount: int | None) -> str:
        if not amount:
            return "-" if amount is None else "0"
        if exact:
            return f"{amount // divisor}{_BINARY_UNITS[unit]}"
        number = f"{amount / divisor:.2f}"
        return f"{'<0.01' if number in ('0.00', '-0.00') else number}{_BINARY_UNITS[unit]}"

    return [shown(amount) for amount in amounts]


def amounts_column(rows: Iterable[Mapping[str, int]]) -> list[str]:
    """As `amounts`, the memory of all *rows* in one unit.

    >>> amounts_column([{"memory": 1 << 30}, {"memory": 512 << 20, "hugepages-2Mi": 4 << 20}, {}])
    ['1024Mi', '512Mi, 4Mi hugepages-2Mi', '-']
    """
    listed = list(rows)
    memory = format_column(row.get("memory") or None for row in listed)
    pages = [
        amounts({name: amount for name, amount in row.items() if name != "memory"}, "") for row in listed
    ]
    return [
        ", ".join(filter(None, (one if one != "-" else "", more))) or "-"
        for one, more in zip(memory, pages, strict=True)
    ]


def format_page_size(page_size_bytes: int) -> str:
    """The canonical name of a huge page size in resource names: 2Mi, 1Gi, 64Ki."""
    unit = 0
    while page_size_bytes and page_size_bytes % 1024 == 0 and unit < len(_BINARY_UNITS) - 1:
        page_size_bytes, unit = page_size_bytes // 1024, unit + 1
    return f"{page_size_bytes}{_BINARY_UNITS[unit]}"


def counted(number: int, what: str, plural: str = "") -> str:
    """So many of *what*, whose plural has an s behind it unless it is given.

    >>> counted(1, "exclusive CPU"), counted(0, "pod"), counted(2, "other set", "other sets")
    ('1 exclusive CPU', '0 pods', '2 other sets')
    """
    return f"{number} {what if number == 1 else plural or f'{what}s'}"


def first_of_many(things: Sequence[object], separator: str = "; ", most: int = 4) -> str:
    """The first *most* of *things*, and how many more there are.

    >>> first_of_many([1, 2, 3, 4], ", ", most=2), first_of_many(["0-3", "4-7"])
    ('1, 2 and 2 more', '0-3; 4-7')
    """
    shown, more = separator.join(map(str, things[:most])), len(things) - most
    return f"{shown} and {more} more" if more > 0 else shown


def format_count(number: int) -> str:
    """A number of things, such as inodes, as Kubernetes writes it: exact, with a decimal suffix if that is.

    >>> format_count(32_000), format_count(32_768), format_count(0)
    ('32k', '32768', '0')
    """
    unit = 0
    while number and number % 1000 == 0 and unit < len(_DECIMAL_UNITS) - 1:
        number, unit = number // 1000, unit + 1
    return f"{number}{_DECIMAL_UNITS[unit]}"


def hugetlb_size(page_size_bytes: int) -> str:
    """A page size as the kernel's hugetlb files and OCI specs have it.

    >>> hugetlb_size(2 << 20), hugetlb_size(1 << 30), hugetlb_size(64 << 10)
    ('2MB', '1GB', '64KB')
    """
    return format_page_size(page_size_bytes).removesuffix("i") + "B"


def parse_page_size(text: str) -> int:
    """Bytes of a huge page size as runtimes write it: ``2MB``, ``1GB``, ``64KB`` (binary), or ``2Mi``.

    The OCI runtime specification says "<size><unit-prefix>B", binary in spite of the name.

    Raises:
        ParseError: anything else.
    """
    match = re.fullmatch(r"([1-9][0-9]{0,14})(?:([KMGT])(?:i?B|i))?", text.strip())
    if match is None:
        raise ParseError("huge page size", text, "a size such as 2MB, 1GB or 2Mi")
    return int(match[1]) << (10 * " KMGT".index(match[2] or " "))


def duration(seconds: int) -> str:
    """A duration in its two largest units: 3d 4h, 2h 5m, 1m 7s.

    >>> duration(7), duration(7500), duration(273_600)
    ('7s', '2h 5m', '3d 4h')
    """
    parts = []
    for unit, length in (("d", 86_400), ("h", 3600), ("m", 60), ("s", 1)):
        amount, seconds = divmod(seconds, length)
        if amount:
            parts.append(f"{amount}{unit}")
    return " ".join(parts[:2]) or "0s"


def amounts(by_resource: Mapping[str, int], nothing: str = "-") -> str:
    """Amounts of memory and huge pages, those of memory without a name.

    >>> amounts({"memory": 1 << 30, "hugepages-2Mi": 4 << 20}), amounts({})
    ('1Gi, 4Mi hugepages-2Mi', '-')
    """
    return (
        ", ".join(
            format_bytes(amount) + ("" if name == "memory" else f" {name}")
            for name, amount in by_resource.items()
            if amount
        )
        or nothing
    )
