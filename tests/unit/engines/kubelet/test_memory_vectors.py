"""Kubelet's recorded answers of the Memory Manager: policy, manager, reservations, state file."""

from pathlib import Path

import pytest

from conformance.sections import Folder, memory, memory_around, memory_files
from conformance.vectors import run

VECTORS = Folder(Path(__file__).parents[3] / "data" / "vectors")


SECTIONS = [
    section
    for section in (*memory.SECTIONS, *memory_around.SECTIONS, *memory_files.SECTIONS)
    if VECTORS.has(section.file)
]


@pytest.mark.parametrize("section", SECTIONS, ids=str)
def test_answers_as_kubelet_does(section):
    result = run(section, VECTORS)
    assert result.cases
    assert not result.failures, result.failures[0]
