"""How the picture looks, on light and on dark ground, and the colours of containers."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Final

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
