"""Kubelet's recorded classes, scores and cgroup values."""

from pathlib import Path

import pytest

from bayplan.testing.vector_sections import Folder, qos
from bayplan.testing.vectors import run

VECTORS = Folder(Path(__file__).parents[3] / "data" / "vectors")


@pytest.mark.parametrize("section", qos.SECTIONS, ids=str)
def test_answers_as_kubelet_does(section):
    result = run(section, VECTORS)
    assert result.cases
    assert not result.failures, result.failures[0]
