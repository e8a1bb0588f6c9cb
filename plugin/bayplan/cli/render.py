"""Paragraphs and tables for people: with rich on a terminal, plain aligned text anywhere else.

rich is imported only where it is used: it costs more time than everything else that this command does.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

from bayplan.printable import printable, printable_lines

if TYPE_CHECKING:
    from rich.table import Table as RichTable

GAP = "  "


@dataclass(frozen=True, slots=True)
class Column:
    """A column's heading; ``number`` aligns it to the right."""

    heading: str
    number: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of texts under columns."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]


Block = str | Table

STYLES = {
    "placed": "green",
    "degraded": "yellow",
    "adopted": "cyan",
}
"""Colours of cells on a terminal, by their text."""


def show(blocks: Iterable[Block], stream: TextIO, *, color: bool = True) -> None:
    """Write *blocks* to *stream*, with an empty line between them."""
    if stream.isatty():
        _show_rich(blocks, stream, color=color)
        return
    stream.write(
        "\n".join(
            _plain_table(one) if isinstance(one, Table) else printable_lines(one) + "\n" for one in blocks
        )
    )


def _plain_table(table: Table) -> str:
    rows = [tuple(column.heading for column in table.columns), *table.rows]
    cells = [[printable(cell) for cell in row] for row in rows]
    widths = [max(len(row[position]) for row in cells) for position in range(len(table.columns))]
    return "".join(_plain_row(row, widths, table.columns) for row in cells)


def _plain_row(cells: Sequence[str], widths: Sequence[int], columns: Sequence[Column]) -> str:
    padded = [
        cell.rjust(width) if column.number else cell.ljust(width)
        for cell, width, column in zip(cells, widths, columns, strict=True)
    ]
    return GAP.join(padded).rstrip() + "\n"


def _show_rich(blocks: Iterable[Block], stream: TextIO, *, color: bool) -> None:
    from rich.console import Console  # noqa: PLC0415 - imported only where it is needed, as it takes time
    from rich.text import Text  # noqa: PLC0415 - imported only where it is needed, as it takes time

    console = Console(file=stream, no_color=not color, highlight=False)
    for position, block in enumerate(blocks):
        if position:
            console.print()
        console.print(_rich_table(block) if isinstance(block, Table) else Text(printable_lines(block)))


def _rich_table(table: Table) -> "RichTable":
    from rich.table import Table as RichTable  # noqa: PLC0415 - imported only where it is needed, as it takes time
    from rich.text import Text  # noqa: PLC0415 - imported only where it is needed, as it takes time

    shown = RichTable(box=None, pad_edge=False, padding=(0, len(GAP), 0, 0))
    for column in table.columns:
        shown.add_column(
            column.heading,
            justify="right" if column.number else "left",
            header_style="bold",
            overflow="fold",
        )
    for row in table.rows:
        shown.add_row(*(Text(printable(cell), style=STYLES.get(cell, "")) for cell in row))
    return shown
