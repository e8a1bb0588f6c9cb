"""Paragraphs and tables for people, fitted into the width of the terminal.

Nothing is ever cut: what is too wide is folded, and columns that matter least are left out before names
become unreadable. In a pipe lines are as long as they are, unless COLUMNS is set. Layout is in
`bayplan.cli.table_layout`.
"""

import os
from collections.abc import Iterable
from typing import Final, NamedTuple, TextIO

from bayplan.cli.table_layout import Block, Table, fold, table_lines
from bayplan.printable import printable, printable_lines
from bayplan.quantity import whole_number

_BOLD: Final = "1"
_STYLES: Final = {
    "placed": "32",
    "fits": "32",
    "degraded": "33",
    "not promised": "33",
    "warning": "33",
    "refused": "31",
    "error": "31",
    "adopted": "36",
}
"""Colours (ECMA-48) of cells on a terminal, by their text."""


class Output(NamedTuple):
    """What is written to: the characters in a line (None: as many as it takes), whether it has colours, and
    the characters that it can show."""

    width: int | None = None
    colored: bool = False
    encoding: str = "utf-8"

    @classmethod
    def of(cls, stream: TextIO, *, color: bool) -> "Output":
        """What *stream* is: a terminal has its width and colours, anything else only the width COLUMNS
        says."""
        width, encoding = _columns(), stream.encoding or "utf-8"
        if not stream.isatty():
            return cls(width, encoding=encoding)
        if width is None:
            try:
                width = os.get_terminal_size(stream.fileno()).columns or None
            except OSError:
                width = None
        return cls(width or 80, color and os.environ.get("TERM") != "dumb", encoding)

    def text(self, words: str) -> str:
        """*words* as they will be seen: what the encoding lacks is written as Python writes it in a
        literal."""
        if words.isascii():
            return words
        return words.encode(self.encoding, "backslashreplace").decode(self.encoding)


def show(blocks: Iterable[Block], stream: TextIO, *, color: bool = True) -> None:
    """Write *blocks* to *stream*, with an empty line between them."""
    stream.write("\n".join(f"{text}\n" for text in rendered(blocks, Output.of(stream, color=color))))


def rendered(blocks: Iterable[Block], output: Output) -> list[str]:
    """Each of *blocks* as it is written to *output*."""
    return [_table(one, output) if isinstance(one, Table) else _paragraph(one, output) for one in blocks]


def _paragraph(text: str, output: Output) -> str:
    """Lines that are too long go on below, further in than they began."""
    lines = []
    for line in output.text(printable_lines(text)).split("\n"):
        inset = len(line) - len(line.lstrip())
        width = None if output.width is None else output.width - inset
        first, *rest = fold(line[inset:], width, inset=2)
        lines += [" " * inset + first, *(" " * (inset + 2) + one for one in rest)]
    return "\n".join(lines)


def _table(table: Table, output: Output) -> str:
    def style(cell: str, *, heading: bool) -> str:
        code = _BOLD if heading else _STYLES.get(cell, "")
        return code if output.colored else ""

    seen = Table(
        table.columns,
        tuple(
            output.text(printable(row))
            if isinstance(row, str)
            else tuple(output.text(printable(cell)) for cell in row)
            for row in table.rows
        ),
        table.inset,
        output.text(printable(table.title)),
    )
    return "\n".join(table_lines(seen, output.width, style))


def _columns() -> int | None:
    return whole_number(os.environ.get("COLUMNS", "")) or None
