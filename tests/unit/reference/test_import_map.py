"""The picture of the imports: every layer, every import, nothing that goes up; in the tree in that shape."""

import re
from pathlib import Path

from reference.import_map import PICTURE, imports, layers, picture

TREE = Path(__file__).parents[3]


def shape(text: str) -> list[str]:
    """Boxes and lines without the numbers that every change of a line changes."""
    text = re.sub(r"[\d,]+ lines", "", text)
    return re.sub(r'stroke-width="[\d.]+"', "", text).splitlines()


def test_the_picture_in_the_tree_is_that_of_the_imports() -> None:
    assert shape((TREE / PICTURE).read_text()) == shape(picture()), "run `make reference`"
    assert PICTURE.removeprefix("docs/") in (TREE / "docs/design.md").read_text()


def test_every_package_and_module_has_its_layer() -> None:
    there = {
        path.stem for path in (TREE / "plugin/bayplan").iterdir() if path.suffix == ".py" or path.is_dir()
    }
    named = {name for row in layers() for name in row}
    assert there - {"__init__", "__pycache__", "py"} == named


def test_imports_go_down_only() -> None:
    level = {name: number for number, row in enumerate(layers()) for name in row}
    found = imports()
    assert found["control"]["model"]
    assert [
        (one, other) for one, others in found.items() for other in others if level[one] >= level[other]
    ] == []
