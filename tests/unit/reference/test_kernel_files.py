"""docs/kernel-files.md is what the table of the files says."""

from pathlib import Path

from reference.kernel_files import PAGE, page

TREE = Path(__file__).parents[3]


def test_the_page_about_the_files_is_current() -> None:
    assert (TREE / PAGE).read_text() == page(), "run `make reference`"
