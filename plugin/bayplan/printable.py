"""Text of others: the patterns that it is read by, and how it (names, ids, annotations) is made printable and
bounded before it is shown or sent.

A name can hold anything. On a terminal, in a log and in another program's error it must not move the cursor,
begin a line of its own, turn the direction of writing, or be megabytes long. What is printable and short
stays as it is, so that doing it twice changes nothing.

A pattern is compiled when it is first used: of the sixty of its modules a start of the daemon uses few. To
compile them all took 10 ms of its CPU.
"""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, AnyStr, Final

MOST_CHARACTERS: Final = 4096
"""Of one text. The longest sentences of ours, refusals with all who hold the memory, have about 1,000."""

MOST_NAME_CHARACTERS: Final = 256
"""Of one part of a name; Kubernetes allows 253, and ids of runtimes have 64."""


_NUMBERS: Final = (int, bool, float)


def printable(text: str, most_characters: int = MOST_CHARACTERS) -> str:
    """*text* on one line: what is not printable as Python writes it in a literal, and the end of a text that
    is longer than *most_characters* (32 at least) replaced by its length."""
    if len(text) <= most_characters and text.isprintable():
        return text
    shown = "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text[:most_characters])
    if len(text) <= most_characters and len(shown) <= most_characters:
        return shown
    mark = f"...[{len(text)} characters]"
    return shown[: most_characters - len(mark)] + mark


def printable_lines(text: str) -> str:
    """*text* with its line breaks; each line printable. For texts whose lines are ours."""
    return "\n".join(map(printable, text.split("\n")))


def printable_values(value: Any) -> Any:
    """*value*, which JSON can express, with all texts in it printable; what is of another type becomes its
    text."""
    # Most of an answer is plain; a status of 1000 containers has 60,000 values.
    kind = type(value)
    if kind is str:
        return printable(value)
    if value is None or kind in _NUMBERS:
        return value
    if kind is dict or isinstance(value, Mapping):
        return {printable(str(key)): printable_values(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [printable_values(item) for item in value]
    return printable(str(value))


if TYPE_CHECKING:

    def pattern(expression: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
        """*expression* as `re.compile` makes it, when it is first used."""

else:

    class pattern:  # noqa: N801 - stands for a function, as above
        """An expression that gets from `re.Pattern` what it is first asked for."""

        def __init__(self, expression: AnyStr, flags: int = 0) -> None:
            self._given = expression, flags

        def __getattr__(self, name: str) -> Any:
            value = getattr(re.compile(*self._given), name)
            setattr(self, name, value)
            return value
