"""The pictures of docs/concepts.md: as the code draws them now, each one shown, with what bayplan says."""

import re
from pathlib import Path

import pytest

from reference.pictures import SCENES, pictures, show

TREE = Path(__file__).parents[3]
PAGE = (TREE / "docs/concepts.md").read_text()
DRAWN = pictures()


@pytest.mark.parametrize("path", DRAWN)
def test_what_is_in_the_tree_is_what_is_drawn(path: str) -> None:
    assert (TREE / path).read_text() == DRAWN[path], "run `make reference`"


def test_every_picture_is_shown_once_and_there_are_no_others() -> None:
    assert sorted(re.findall(r"\]\((concepts/.*?\.svg)\)", PAGE)) == sorted(
        path.removeprefix("docs/") for path in DRAWN
    )
    assert {str(path.relative_to(TREE)) for path in (TREE / "docs/concepts").iterdir()} == DRAWN.keys()


def test_what_the_page_quotes_is_what_bayplan_says() -> None:
    quoted = re.findall(r"^(?:    .*\n)+", PAGE, re.MULTILINE)
    said = {sentence for scene in SCENES.values() for sentence in show(scene).said}
    assert quoted
    assert {" ".join(block.split()) for block in quoted} <= said


def test_what_a_plan_moves_leaves_no_risk() -> None:
    assert show(SCENES["pages"]).said
    assert not show(SCENES["moved"]).said
