"""kubelet's recorded answers about CPUs, table by table."""

from pathlib import Path

import pytest

from conformance.sections import Folder, cpu, cpu_static
from conformance.vectors import run

FOLDER = Folder(Path(__file__).parents[3] / "data" / "vectors")


SECTIONS = [section for section in (*cpu.SECTIONS, *cpu_static.SECTIONS) if FOLDER.has(section.file)]


@pytest.mark.parametrize("section", SECTIONS, ids=str)
def test_engine_gives_the_recorded_answers(section):
    result = run(section, FOLDER)

    assert result.cases > 0
    assert [str(failure) for failure in result.failures] == []
