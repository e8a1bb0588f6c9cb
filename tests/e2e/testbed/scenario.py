"""What a scenario says about the node it wants: `@on(FOUR_NODES, "2.1", "2.3")`, `@on_systemd(TWO_NODES)`."""

from dataclasses import dataclass

import pytest

from testbed.containerd import DEFAULT_VERSIONS
from testbed.topology import Topology


@dataclass(frozen=True, slots=True)
class Wanted:
    """`version` is containerd's, None: none runs; with `systemd`, that is process 1, and podman is there."""

    topology: Topology
    version: str | None
    systemd: bool = False


def on(topology: Topology, *versions: str) -> pytest.MarkDecorator:
    """Run the test once per containerd version (default: 1.7, 2.1, 2.3), with a clean node as the fixture
    `node`.
    """
    wanted = [
        pytest.param(Wanted(topology, version), id=f"{topology.name}-{version}")
        for version in versions or DEFAULT_VERSIONS
    ]
    return pytest.mark.parametrize("node", wanted, indirect=True)


def on_systemd(topology: Topology, version: str | None = None) -> pytest.MarkDecorator:
    """Run the test on a node with systemd and podman, and with this containerd or none."""
    name = f"{topology.name}-systemd" + (f"-{version}" if version else "")
    return pytest.mark.parametrize(
        "node", [pytest.param(Wanted(topology, version, True), id=name)], indirect=True
    )
