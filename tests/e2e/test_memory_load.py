"""Nobody is killed within its claim while everybody uses what they may, and others take the rest.

For two minutes; `make e2e-load MINUTES=10` is the same for longer, with and without relief.
"""

import pytest
from testbed.full_nodes import EQUAL_LOAD, UNEQUAL_LOAD, Load, measured
from testbed.node import Node
from testbed.scenario import on

SECONDS = 120
pytestmark = [pytest.mark.matrix, pytest.mark.timeout(SECONDS + 1200, method="signal", func_only=True)]


def keeps_promises(node: Node, load: Load) -> None:
    found = measured(node, load, "relieve", SECONDS)
    assert found.killed_within_claims == [], found
    assert found.lowest_share >= 0.99, found


@on(EQUAL_LOAD.topology, "2.3")
def test_nobody_is_killed_within_its_claim_on_equal_nodes(node: Node) -> None:
    keeps_promises(node, EQUAL_LOAD)


@on(UNEQUAL_LOAD.topology, "2.3")
def test_nobody_is_killed_within_its_claim_on_unequal_nodes(node: Node) -> None:
    keeps_promises(node, UNEQUAL_LOAD)
