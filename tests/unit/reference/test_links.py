"""Every link between the documents leads somewhere: to a file, and to a heading in it."""

import re
from pathlib import Path
from typing import Final

import pytest

TREE: Final = Path(__file__).parents[3]
PAGES: Final = sorted(
    [*TREE.glob("*.md"), *(TREE / "docs").rglob("*.md"), TREE / "tests/e2e/README.md"],
)
LINK: Final = re.compile(r"\]\(([^()\s]+)\)")
CODE: Final = re.compile(r"^```.*?^```|`[^`\n]*`", re.DOTALL | re.MULTILINE)


def headings(page: Path) -> set[str]:
    """The anchors of *page*, as GitHub makes them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    found: set[str] = set()
    for title in re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE):
        anchor = re.sub(r"[^\w\- ]", "", re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title).lower()).replace(
            " ", "-"
        )
        repeated = sum(
            one == anchor or re.fullmatch(rf"{re.escape(anchor)}-\d+", one) is not None for one in found
        )
        found.add(f"{anchor}-{repeated}" if repeated else anchor)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(TREE)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(CODE.sub("", page.read_text(encoding="utf-8"))):
        if "://" in target or target.startswith("mailto:"):
            continue
        name, _, anchor = target.partition("#")
        other = (page.parent / name).resolve() if name else page
        assert other.exists(), target
        if anchor and other.suffix == ".md":
            assert anchor in headings(other), target
