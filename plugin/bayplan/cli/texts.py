"""Words for values that several verbs show: amounts that may be typed."""

from collections.abc import Sequence

from bayplan.quantity import GIB, MIB


def amounts_to_type(amounts_bytes: Sequence[int]) -> list[str]:
    """What can be asked for of each amount, as one column: all whole Gi, or all whole Mi, never rounded up.

    >>> amounts_to_type([28 << 30, 0]), amounts_to_type([28 << 30, (1 << 30) - 1])
    (['28Gi', '0'], ['28672Mi', '1023Mi'])
    """
    whole = [amount - amount % MIB for amount in amounts_bytes]
    unit_bytes, unit = (GIB, "Gi") if all(amount % GIB == 0 for amount in whole) else (MIB, "Mi")
    return [f"{amount // unit_bytes}{unit}" if amount else "0" for amount in whole]
