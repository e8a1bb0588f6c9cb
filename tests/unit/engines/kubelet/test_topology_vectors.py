"""Kubelet's recorded answers for masks, hints, merge, options and admission."""

from pathlib import Path

import pytest

from conformance.sections import Folder
from conformance.sections.topology import SECTIONS
from conformance.vectors import run

VECTORS = Folder(Path(__file__).parents[3] / "data" / "vectors")


@pytest.mark.parametrize("section", SECTIONS, ids=str)
def test_answers_as_kubelet_does(section):
    result = run(section, VECTORS)
    assert result.cases
    assert not result.failures, result.failures[0]
