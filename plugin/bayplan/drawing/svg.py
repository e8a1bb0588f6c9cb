"""Elements of SVG as text. Everything that is not markup is escaped here and nowhere else."""

from html import escape
from typing import Final

from bayplan.printable import printable

_CHARACTER: Final = 0.58
"""The width of a character of a sans-serif font, on average, in parts of its size; bold ones are wider by a
tenth."""


def element(name: str, *children: str, **attributes: str | float) -> str:
    """``<name attributes>children</name>``; the children are markup. An underscore in the name of an
    attribute is a dash, one at its end is nothing (``class_``)."""
    parts = [name]
    for key, value in attributes.items():
        parts.append(f'{key.rstrip("_").replace("_", "-")}="{_value(value)}"')
    inside = "".join(children)
    return f"<{' '.join(parts)}>{inside}</{name}>" if inside else f"<{' '.join(parts)}/>"


def text(x: float, y: float, words: str, class_: str = "", anchor: str = "start") -> str:
    """A line of text; *anchor* is ``start``, ``middle`` or ``end``."""
    return element("text", plain(words), x=x, y=y, class_=class_, text_anchor=anchor)


def box(
    x: float,
    y: float,
    width: float,
    height: float,
    class_: str,
    tip: str = "",
    radius: float = 0,
    opacity: float = 1,
) -> str:
    """A rectangle; *tip* is shown when the pointer rests on it."""
    tips = (element("title", plain(tip)),) if tip else ()
    more: dict[str, str | float] = {"rx": radius} if radius else {}
    if opacity < 1:
        more["fill_opacity"] = f"{opacity:.2f}"
    return element("rect", *tips, x=x, y=y, width=max(0.0, width), height=height, class_=class_, **more)


def plain(words: str) -> str:
    """Text as markup that shows it."""
    return escape(printable(words))


def fitting(words: str, width: float, size: float) -> str:
    """As much of *words* as has room on *width* in a font of *size*: the end is what tells names apart.

    >>> fitting("default/web-0/nginx", 80, 12)
    '…eb-0/nginx'
    """
    most = max(2, int(width / (size * _CHARACTER)))
    return words if len(words) <= most else f"…{words[len(words) - most + 1 :]}"


def text_width(words: str, size: float, *, bold: bool = False) -> float:
    """How much room a line of text takes at most, for fonts that are usual."""
    return len(words) * size * _CHARACTER * (1.1 if bold else 1)


def folded(words: str, width: float, size: float, *, bold: bool = False) -> list[str]:
    """*words* in lines that have room on *width*, between words.

    >>> folded("Memory without CPUs", 90, 12)
    ['Memory', 'without CPUs']
    """
    lines = [""]
    for word in words.split(" "):
        line = f"{lines[-1]} {word}".lstrip()
        if lines[-1] and text_width(line, size, bold=bold) > width:
            lines.append(word)
        else:
            lines[-1] = line
    return lines


def _value(value: str | float) -> str:
    return escape(value) if isinstance(value, str) else f"{round(value, 1):g}"
