"""Paragraphs and tables for people: which columns are shown in so many characters, how wide each is, where
cells are folded, and how it is written to a terminal.

Nothing is ever cut: what is too wide is folded, and where there is no room for all columns, those of the
highest rank are left out before names become unreadable. In a pipe lines are as long as they are, unless
COLUMNS is set.
"""

import argparse
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple, Protocol, TextIO

from bayplan.printable import printable, printable_lines
from bayplan.quantity import GIB, MIB, whole_number

GAP: Final = "  "
_LEAST: Final = 20
"""A column of texts that says nothing else keeps so many characters as long as other columns can be left
out."""
_NARROW: Final = 8
"""And so many where none can be left out any more."""
_BREAKS_AFTER: Final = "/-,;:=."
"""A word that is too long is folded after one of these, so that parts of names and of lists stay whole."""

Style = Callable[..., str]
"""``style(cell, heading=...)``: the code of its colour, empty for none."""


class Column(NamedTuple):
    """A column's heading; ``number`` aligns it to the right. Where there is no room for all columns, those
    with the highest ``rank`` are left out first; those of rank 0 never are. As long as others can be left
    out, it is not folded to fewer than ``least`` characters."""

    heading: str
    number: bool = False
    rank: int = 0
    least: int = _LEAST


Row = tuple[str, ...] | str


class Table(NamedTuple):
    """Rows of texts under columns; a row that is one text heads those that follow. Without any heading there
    is no line for them. ``inset`` spaces stand before each line but the ``title``."""

    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    inset: int = 0
    title: str = ""


Block = str | Table
"""A paragraph, or a table."""


class CommandVerb(Protocol):
    """One verb of the command line: a module, or a class of a module that has several."""

    VERB: str
    HELP: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """The verb's own arguments."""

    def answer(self, arguments: argparse.Namespace) -> dict[str, Any]:
        """The answer as plain values; raises BayplanError."""

    def blocks(self, view: dict[str, Any], /) -> list[Block]:
        """The answer for people."""


def table_lines(table: Table, width: int | None, style: Style) -> list[str]:
    """The lines of *table*, at most *width* characters long as far as that is possible."""
    kept, widths = _fitted(table, None if width is None else width - table.inset)
    columns = [table.columns[position] for position in kept]
    lines: list[str] = []
    if any(column.heading for column in columns):
        headings = [column.heading for column in columns]
        lines += _row_lines(headings, columns, widths, style, heading=True)
    for row in table.rows:
        if isinstance(row, str):
            first, *rest = fold(row, None if width is None else width - table.inset)
            lines += [_colored(first, style(row, heading=True)), *rest]
        else:
            lines += _row_lines([row[position] for position in kept], columns, widths, style, heading=False)
    title = fold(table.title, width, inset=2) if table.title else []
    return [*title, *((" " * table.inset + line).rstrip() for line in lines)]


def fold(text: str, width: int | None, inset: int = 0) -> list[str]:
    """*text* in lines of at most *width* characters, those after the first of *inset* less: between words,
    else after a mark within a word, else anywhere."""
    if width is None or cells(text) <= width:
        return [text]
    lines, room, line = [], max(1, width), ""
    for word in text.split(" "):
        rest = f"{line} {word}" if line else word
        if cells(rest) > room and line:
            lines.append(line)
            room, rest = max(1, width - inset), word
        while cells(rest) > room:
            head = _head(rest, room)
            lines.append(head)
            room, rest = max(1, width - inset), rest[len(head) :]
        line = rest
    return [*lines, line]


def cells(text: str) -> int:
    """How many characters of a terminal *text* takes: characters of East Asia take two, accents none."""
    if text.isascii():
        return len(text)
    import unicodedata  # noqa: PLC0415 - names of Kubernetes are ASCII, and it is a library to load

    return sum(
        0 if unicodedata.combining(one) else 2 if unicodedata.east_asian_width(one) in "WF" else 1
        for one in text
    )


def _head(word: str, room: int) -> str:
    """The part of *word* that stands on a line; one character at least."""
    end = 1
    while end < len(word) and cells(word[: end + 1]) <= room:
        end += 1
    marks = [position + 1 for position in range(end) if word[position] in _BREAKS_AFTER]
    return word[: marks[-1]] if marks else word[:end]


def _fitted(table: Table, width: int | None) -> tuple[list[int], list[int]]:
    """The positions of the columns that are shown, and how wide each is."""
    kept = list(range(len(table.columns)))
    inner = [
        max((cells(row[position]) for row in table.rows if not isinstance(row, str)), default=0)
        for position in kept
    ]
    natural = [max(inner[position], cells(table.columns[position].heading)) for position in kept]
    if width is None:
        return kept, natural
    least = [_least(column, inner[position], column.least) for position, column in enumerate(table.columns)]
    while _sum(least, kept) > width:
        leaving = max(kept, key=lambda position: (table.columns[position].rank, position))
        if not table.columns[leaving].rank:
            break
        kept.remove(leaving)
    if _sum(least, kept) > width:
        least = [_least(column, inner[position], _NARROW) for position, column in enumerate(table.columns)]
    widths = list(natural)
    while (over := _sum(widths, kept) - width) > 0:
        shrinkable = [position for position in kept if widths[position] > least[position]]
        if not shrinkable:
            break
        # The widest gives way to the next one, so that what is short stays on one line.
        widest = max(shrinkable, key=lambda position: widths[position])
        below = max((widths[one] for one in shrinkable if widths[one] < widths[widest]), default=0)
        widths[widest] -= max(1, min(over, widths[widest] - max(below, least[widest])))
    return kept, [widths[position] for position in kept]


def _least(column: Column, inner: int, least: int) -> int:
    """A heading is folded between its words, a number never."""
    heading = max(map(cells, column.heading.split(" ")))
    return max(heading, inner if column.number else min(inner, least))


def _sum(widths: Sequence[int], kept: Sequence[int]) -> int:
    return sum(widths[position] for position in kept) + len(GAP) * (len(kept) - 1)


def _row_lines(
    texts: Sequence[str], columns: Sequence[Column], widths: Sequence[int], style: Style, *, heading: bool
) -> list[str]:
    folded = [fold(text, width) for text, width in zip(texts, widths, strict=True)]
    codes = [style(text, heading=heading) for text in texts]
    height = max(map(len, folded))
    lines = []
    for number in range(height):
        parts = []
        for column, width, cell, code in zip(columns, widths, folded, codes, strict=True):
            text = cell[number] if number < len(cell) else ""
            blank = " " * (width - cells(text))
            shown = _colored(text, code)
            parts.append(blank + shown if column.number else shown + blank)
        lines.append(GAP.join(parts).rstrip())
    return lines


def _colored(text: str, code: str) -> str:
    return f"\x1b[{code}m{text}\x1b[0m" if code and text else text


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
    """Where is written to: the characters in a line (None: any number), whether it has colours, and which
    characters it can show."""

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


def amounts_to_type(amounts_bytes: Sequence[int]) -> list[str]:
    """What can be asked for of each amount, as one column: all whole Gi, or all whole Mi, never rounded up.

    >>> amounts_to_type([28 << 30, 0]), amounts_to_type([28 << 30, (1 << 30) - 1])
    (['28Gi', '0'], ['28672Mi', '1023Mi'])
    """
    whole = [amount - amount % MIB for amount in amounts_bytes]
    unit_bytes, unit = (GIB, "Gi") if all(amount % GIB == 0 for amount in whole) else (MIB, "Mi")
    return [f"{amount // unit_bytes}{unit}" if amount else "0" for amount in whole]
