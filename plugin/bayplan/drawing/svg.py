"""Elements of SVG as text, and how the pictures look, on light and on dark ground.

Everything that is not markup is escaped here and nowhere else.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
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


COLORS: Final = 8
"""So many that they can be told apart. Only a card of more containers than that has one of them twice."""

NAMED: Final = 6
"""So many containers are named on a card; the page lists all."""

_LIGHT: Final = (
    "--ink:#1d2733;--soft:#5c6b7a;--line:#d5dce4;--card:#ffffff;--ground:#f3f5f8;--free:#e8edf2;"
    "--kept:#b9c3ce;--used:#33475c;--stray:#c2571a;--cache:#b7c6d6;"
    "--c0:#3b76c4;--c1:#d98a1f;--c2:#2f9c7a;--c3:#b4549a;--c4:#7a5230;--c5:#c9503c;--c6:#7d6bc0;--c7:#8a9a2b"
)
_DARK: Final = (
    "--ink:#e6ebf1;--soft:#93a1b0;--line:#33404e;--card:#1b232c;--ground:#12181f;--free:#2a343f;"
    "--kept:#566372;--used:#c9d5e2;--stray:#f08a4b;--cache:#4d6278;"
    "--c0:#5f9be8;--c1:#e8a548;--c2:#48bd98;--c3:#d27bbb;--c4:#bf9470;--c5:#e67a66;--c6:#a090e2;--c7:#b2c04e"
)

STYLE: Final = (
    f".map{{{_LIGHT};font-family:system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,sans-serif;"
    "font-size:12px;fill:var(--ink)}"
    f"@media (prefers-color-scheme:dark){{.map{{{_DARK}}}}}"
    ".map .ground{fill:var(--ground)}.map .card{fill:var(--card);stroke:var(--line)}"
    ".map .socket{fill:none;stroke:var(--line);stroke-dasharray:3 3}"
    ".map .group{fill:var(--ground);stroke:var(--line)}"
    ".map .head{font-size:15px;font-weight:600}.map .strong{font-weight:600}"
    ".map .soft{fill:var(--soft)}.map .small{font-size:11px}.map .tiny{font-size:9px}"
    ".map .free{fill:var(--free)}.map .kept{fill:var(--kept)}.map .used{fill:var(--used)}"
    ".map .stray{fill:var(--stray)}.map .cache{fill:var(--cache)}"
    ".map .shared{fill:var(--free);stroke:var(--soft);stroke-width:.5}"
    ".map .pool{fill:var(--cache);stroke:var(--used);stroke-width:1}"
    ".map .near{fill:var(--c0)}"
    + "".join(f".map .c{number}{{fill:var(--c{number})}}" for number in range(COLORS))
)


def colors_of(cards: Iterable[Iterable[str]]) -> Mapping[str, str]:
    """The class of each container's colour, by its name; each of *cards* has the names of its containers,
    those that matter most first.

    Those that are named on most cards are first given the colour that is least used on their cards, by
    others that are named there above all, and of several the one that is least used at all.
    """
    weights: dict[str, dict[int, int]] = defaultdict(dict)  # name -> card -> whether it is named there
    for number, names in enumerate(cards):
        for place, name in enumerate(dict.fromkeys(names)):
            weights[name][number] = 100 if place < NAMED else 1
    used: dict[int, Counter[int]] = defaultdict(Counter)
    all_used: Counter[int] = Counter()
    colors = {}
    for name in sorted(weights, key=lambda one: (-sum(weights[one].values()), one)):
        mine = weights[name]

        def cost(color: int, mine: Mapping[int, int] = mine) -> tuple[int, int, int]:
            beside = sum(weight * used[number][color] for number, weight in mine.items())
            return beside, all_used[color], color

        color = min(range(COLORS), key=cost)
        for number, weight in mine.items():
            used[number][color] += weight
        all_used[color] += 1
        colors[name] = f"c{color}"
    return colors
