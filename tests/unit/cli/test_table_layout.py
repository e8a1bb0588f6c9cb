"""Tables in few columns: nothing is cut, what matters least is left out, no cell can pretend to be a row."""

import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayplan.cli.layout import Column, Output, Table, cells, fold, rendered, show, table_lines

WORDS = st.text(st.sampled_from("ab/-. \u4e2d\u00e4"), max_size=40)
NAMES = ["shop/web-7f9c8d7d6-abcde/nginx-with-a-long-name", "shop/web-7f9c8d7d6-abcdf/nginx-with-a-long-name"]
STATUS = Table(
    (Column("CONTAINER"), Column("OUTCOME", rank=2), Column("MEMORY", number=True), Column("WHY", rank=1)),
    tuple((name, "placed", "1024Mi", "one node has room for all that it asks for") for name in NAMES),
)


def lines_of(table: Table, width: int | None) -> list[str]:
    return table_lines(table, width, lambda _, heading: "")


@given(text=WORDS, width=st.integers(2, 30), inset=st.integers(0, 4))
def test_folding_keeps_every_character_and_the_width(text: str, width: int, inset: int) -> None:
    lines = fold(text, width, inset)
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")
    assert all(cells(line.rstrip(" ")) <= width for line in lines)
    assert fold(text, None) == [text]


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_names_are_whole_in_every_width(width: int) -> None:
    lines = lines_of(STATUS, width)
    assert all(cells(line) <= width for line in lines)
    heading = re.match(r"CONTAINER +", lines[0])
    assert heading is not None
    whole = "".join(line[: heading.end()].strip() for line in lines[1:])
    assert whole == "".join(NAMES)


def test_columns_are_left_out_by_rank_and_those_without_one_stay() -> None:
    headings = [tuple(lines_of(STATUS, width)[0].split()) for width in (120, 60, 50, 30)]
    assert headings == [
        ("CONTAINER", "OUTCOME", "MEMORY", "WHY"),
        ("CONTAINER", "OUTCOME", "MEMORY", "WHY"),
        ("CONTAINER", "MEMORY", "WHY"),
        ("CONTAINER", "MEMORY"),
    ]


def test_a_row_of_one_text_heads_those_below() -> None:
    table = Table((Column("A"), Column("B")), ("namespace shop: 2 pods", ("x", "y")), inset=2, title="all")
    assert lines_of(table, None) == ["all", "  A  B", "  namespace shop: 2 pods", "  x  y"]


def test_without_headings_there_is_no_line_for_them() -> None:
    assert lines_of(Table((Column(""), Column("")), (("asked:", "1Gi"),)), None) == ["asked:  1Gi"]


def test_characters_of_two_cells_are_counted_as_such() -> None:
    table = Table((Column("NAME"), Column("N", number=True)), (("\u4e2d\u6587", "1"), ("abcd", "10")))
    assert lines_of(table, None) == ["NAME   N", "\u4e2d\u6587   1", "abcd  10"]


def test_what_an_encoding_lacks_is_counted_as_it_is_written() -> None:
    table = Table((Column("NAME"), Column("N")), (("\u2603", "1"),))
    (text,) = rendered([table], Output(encoding="ascii"))
    assert text.splitlines() == ["NAME    N", "\\u2603  1"]


def test_a_name_cannot_pretend_to_be_a_row() -> None:
    stream = io.StringIO()
    show([Table((Column("NAME"), Column("CPUS")), (("one\nroot/real  0-7", "1"),))], stream)
    assert stream.getvalue().count("\n") == 2
    assert "one\\nroot/real" in stream.getvalue()


def test_paragraphs_go_on_further_in() -> None:
    (text,) = rendered(["  one two three four"], Output(width=12))
    assert text.splitlines() == ["  one two", "    three", "    four"]


def test_colours_are_around_cells_and_headings_only_where_there_are_any() -> None:
    table = Table((Column("OUTCOME"),), (("placed",), ("other",)))
    (plain,) = rendered([table], Output())
    (colored,) = rendered([table], Output(colored=True))
    assert "\x1b" not in plain
    assert colored.splitlines() == ["\x1b[1mOUTCOME\x1b[0m", "\x1b[32mplaced\x1b[0m", "other"]
