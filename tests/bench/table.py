"""One table of what things cost beside what they cost at least, each measured in turns with the other."""

import statistics
from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Row(NamedTuple):
    """What was measured: ours, and the reference if there is one. ``most`` is the aim, as a ratio to the
    reference where there is one and unless ``as_ratio`` is False, else as an amount."""

    name: str
    ours: Sequence[float]
    reference: Sequence[float] = ()
    most: float | None = None
    unit: str = "ms"
    as_ratio: bool = True


def show(rows: Iterable[Row]) -> None:
    """Print each row as soon as it is there."""
    print(f"{'':48} {'median':>9} {'p99':>9} {'worst':>9}      {'reference':>9} {'ratio':>7}    aim")
    for row in rows:
        print(_line(row), flush=True)


def _line(row: Row) -> str:
    ours = sorted(row.ours)
    median, p99 = statistics.median(ours), ours[min(len(ours) - 1, len(ours) * 99 // 100)]
    cells = [f"{row.name:48} {median:9.2f} {p99:9.2f} {ours[-1]:9.2f} {row.unit:3}"]
    reference = statistics.median(row.reference) if row.reference else None
    cells.append(f"{'':17}" if reference is None else f"{reference:9.2f} {median / reference:6.1f}x")
    if row.most is not None:
        cells.append(f"{row.most:4g} {'x' if row.reference and row.as_ratio else row.unit}")
    return "  ".join(cells).rstrip()
