"""What a scenario says about the node it wants: `@on(FOUR_NODES, "2.1", "2.3")`."""

from dataclasses import dataclass

import pytest

from testbed.containerd import DEFAULT_VERSIONS
from testbed.topology import Topology


@dataclass(frozen=True, slots=True)
class Wanted:
    topology: Topology
    version: str


def on(topology: Topology, *versions: str) -> pytest.MarkDecorator:
    """Run the test once per containerd version (default: 1.7, 2.1, 2.3), with a clean node as the fixture
    `node`.
    """
    wanted = [
        pytest.param(Wanted(topology, version), id=f"{topology.name}-{version}")
        for version in versions or DEFAULT_VERSIONS
    ]
    return pytest.mark.parametrize("node", wanted, indirect=True)
