"""What leaves us is printable and bounded, and stays as it is where it is so already."""

from hypothesis import given
from hypothesis import strategies as st

from bayplan.printable import MOST_CHARACTERS, printable, printable_lines, printable_values

anything = st.text(st.characters(), max_size=60)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | anything,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(anything, inner, max_size=3),
)


@given(anything, st.integers(32, 80))
def test_any_text_becomes_printable_bounded_and_stays_so(text, most_characters):
    shown = printable(text, most_characters)
    assert shown.isprintable()
    assert len(shown) <= most_characters
    assert printable(shown, most_characters) == shown
    if text.isprintable() and len(text) <= most_characters:
        assert shown == text
    shown.encode("utf-8")


def test_the_length_of_what_was_cut_is_told():
    assert printable("x" * 100_000).endswith("xxx...[100000 characters]")
    assert len(printable("\x1b" * MOST_CHARACTERS)) == MOST_CHARACTERS


@given(anything)
def test_lines_stay_lines(text):
    assert len(printable_lines(text).split("\n")) == len(text.split("\n"))
    assert all(line.isprintable() for line in printable_lines(text).split("\n"))
    assert len(printable_lines("x" * 100_000)) == MOST_CHARACTERS


@given(values)
def test_every_text_in_a_value_is_printable(value):
    def check(one):
        if isinstance(one, dict):
            for key, item in one.items():
                assert key.isprintable()
                check(item)
        elif isinstance(one, list):
            for item in one:
                check(item)
        elif isinstance(one, str):
            assert one.isprintable()

    check(printable_values(value))
