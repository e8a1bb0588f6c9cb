"""Words for values that several verbs show: durations, amounts, how long ago."""

from collections.abc import Mapping, Sequence

from bayplan.quantity import GIB, MIB, format_bytes, format_page_size


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


def optional_bytes(amount: int | None) -> str:
    """An amount that may not be known."""
    return "-" if amount is None else format_bytes(amount)


def amounts_to_type(amounts_bytes: Sequence[int]) -> list[str]:
    """What can be asked for of each amount, as one column: all whole Gi, or all whole Mi, never rounded up.

    >>> amounts_to_type([28 << 30, 0]), amounts_to_type([28 << 30, (1 << 30) - 1])
    (['28Gi', '0'], ['28672Mi', '1023Mi'])
    """
    whole = [amount - amount % MIB for amount in amounts_bytes]
    unit_bytes, unit = (GIB, "Gi") if all(amount % GIB == 0 for amount in whole) else (MIB, "Mi")
    return [f"{amount // unit_bytes}{unit}" if amount else "0" for amount in whole]


def amount_to_type(amount_bytes: int) -> str:
    """What can be asked for of *amount_bytes*: whole Mi, never rounded up.

    >>> amount_to_type(28 << 30), amount_to_type((28 << 30) - 1), amount_to_type(0)
    ('28Gi', '28671Mi', '0')
    """
    return format_page_size(amount_bytes - amount_bytes % MIB)
