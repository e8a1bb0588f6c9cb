"""What a scenario says about the node it wants: `@on(FOUR_NODES, "2.3", "2.4")`, `@on_systemd(TWO_NODES)`."""

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

    def __str__(self) -> str:
        words = [self.topology.name, *(["systemd"] if self.systemd else []), self.version or ""]
        return "-".join(filter(None, words))


def on(topology: Topology, *versions: str) -> pytest.MarkDecorator:
    """Run the test once per containerd version (default: all), with a clean node as the fixture `node`.

    The first version is part of `make test`, the others are marked `matrix`.
    """
    wanted = [Wanted(topology, version) for version in versions or DEFAULT_VERSIONS]
    return pytest.mark.parametrize(
        "node",
        [
            pytest.param(one, id=str(one), marks=[pytest.mark.matrix] if place else [])
            for place, one in enumerate(wanted)
        ],
        indirect=True,
    )


def on_systemd(topology: Topology, version: str | None = None) -> pytest.MarkDecorator:
    """Run the test on a node with systemd and podman, and with this containerd or none."""
    wanted = Wanted(topology, version, True)
    return pytest.mark.parametrize("node", [pytest.param(wanted, id=str(wanted))], indirect=True)
