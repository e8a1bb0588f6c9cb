"""The picture of docs/design.md: which package of bayplan imports which, from the imports themselves.

A row is a layer of `pyproject.toml`, where import-linter reads them too; a box is a package, or a module
beside the packages, with its lines; a line goes from a box to each below it that it imports, thicker for more
modules that do. Nothing goes up, or `make lint` fails. What all use, the single modules at the bottom and the
generated messages, is without lines.
"""

import ast
import tomllib
from collections import Counter
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Final

PICTURE: Final = "docs/design/imports.svg"

_TREE: Final = Path(__file__).parents[3]
_PACKAGE: Final = _TREE / "plugin" / "bayplan"
_ROW_PX: Final = 58
_BOX_PX: Final = 34
_WIDTH_PX: Final = 900
_GAP_PX: Final = 16
_THICKEST_PX: Final = 5.0
_MODULES_A_PX: Final = 8
_CROWDED: Final = 3
_SHIFT_PX: Final = 150
_STYLE: Final = (
    "text{font:12px sans-serif;fill:#1a1a1a}.l{font-size:10px;fill:#555}"
    "rect{fill:#fff;stroke:#4a6fa5}path{fill:none;stroke:#4a6fa5;stroke-opacity:.28}"
    "@media(prefers-color-scheme:dark){text{fill:#eee}.l{fill:#aaa}rect{fill:#1d2733;stroke:#8fb0dd}"
    "path{stroke:#8fb0dd}}"
)


def layers() -> list[list[str]]:
    """The names in each layer, the highest first."""
    project = tomllib.loads((_TREE / "pyproject.toml").read_text())
    contract = next(one for one in project["tool"]["importlinter"]["contracts"] if one["type"] == "layers")
    return [[name.strip() for name in row.split("|")] for row in contract["layers"]]


def _files(name: str) -> list[Path]:
    folder = _PACKAGE / name
    return sorted(folder.rglob("*.py")) if folder.is_dir() else [_PACKAGE / f"{name}.py"]


def _imported(path: Path) -> Iterator[str]:
    """What *path* imports of the package, by the first name below it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            top, _, below = node.module.partition(".")
            if top == "bayplan":
                yield from [below.partition(".")[0]] if below else (one.name for one in node.names)
        elif isinstance(node, ast.Import):
            yield from (one.name.split(".")[1] for one in node.names if one.name.startswith("bayplan."))


def imports() -> dict[str, Counter[str]]:
    """Of each package or module, which others it imports, and in how many modules."""
    names = [name for row in layers() for name in row]
    found = {}
    for name in names:
        others: Counter[str] = Counter()
        for path in _files(name):
            others.update(set(_imported(path)) & set(names) - {name})
        found[name] = others
    return found


def picture() -> str:
    """The drawing, as SVG."""
    rows, boxes = layers(), dict[str, tuple[float, float, float]]()
    for number, row in enumerate(rows):
        width = min(190.0, (_WIDTH_PX - _GAP_PX * (len(row) + 1)) / len(row))
        left = (_WIDTH_PX - width * len(row) - _GAP_PX * (len(row) - 1)) / 2
        if len(row) < _CROWDED:
            # One row to the left and the next to the right, so that lines pass beside the boxes between.
            left += _SHIFT_PX if number % 2 else -_SHIFT_PX
        for place, name in enumerate(row):
            boxes[name] = (left + place * (width + _GAP_PX), 8.0 + number * _ROW_PX, width)
    height = len(rows) * _ROW_PX
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH_PX} {height}" role="img">',
        "<title>Which package imports which</title>",
        f"<style>{_STYLE}</style>",
    ]
    for name, others in imports().items():
        x, y, width = boxes[name]
        for other, count in sorted(others.items()):
            if not (_PACKAGE / other).is_dir() or other.startswith("_"):
                continue
            to_x, to_y, to_width = boxes[other]
            start, end = x + width / 2, to_x + to_width / 2
            thick = min(_THICKEST_PX, 0.6 + count / _MODULES_A_PX)
            bend = (to_y - y) / 2
            parts.append(
                f'<path stroke-width="{thick:.1f}" d="M{start:.0f},{y + _BOX_PX:.0f} '
                f'C{start:.0f},{y + _BOX_PX + bend:.0f} {end:.0f},{to_y - bend:.0f} {end:.0f},{to_y:.0f}"/>'
            )
    for name, (x, y, width) in boxes.items():
        files = _files(name)
        # In hundreds, so that not each change of a line is one of the picture.
        lines = sum(len(path.read_text().splitlines()) for path in files)
        size = f"{round(lines, -2):,} lines" if round(lines, -2) else f"{len(files)} module"
        middle = x + width / 2
        parts.append(f'<rect x="{x:.0f}" y="{y:.0f}" width="{width:.0f}" height="{_BOX_PX}" rx="4"/>')
        parts.append(f'<text x="{middle:.0f}" y="{y + 14:.0f}" text-anchor="middle">{escape(name)}</text>')
        parts.append(f'<text class="l" x="{middle:.0f}" y="{y + 27:.0f}" text-anchor="middle">{size}</text>')
    return "\n".join([*parts, "</svg>", ""])
