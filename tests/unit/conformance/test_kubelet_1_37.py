"""What kubelet 1.37 answers otherwise than 1.36, table by table."""

from pathlib import Path

import pytest

from conformance.sections import Folder, Section
from conformance.vectors import run, sections

FOLDER = Folder(Path(__file__).parents[2] / "data" / "vectors-1.37")


@pytest.mark.parametrize("section", [each for each in sections() if each.cases(FOLDER)], ids=str)
def test_the_engine_answers_as_the_newer_kubelet(section: Section) -> None:
    result = run(section, FOLDER)
    assert [str(failure) for failure in result.failures] == []


def test_every_recorded_table_is_read() -> None:
    read = {each.file for each in sections() if each.cases(FOLDER)}
    assert read == {path.name for path in FOLDER.path.glob("*.json*")}
