"""A containerd whose configuration requires bayplan, as docs/operations.md has it."""

import re
from pathlib import Path

import pytest
from testbed.node import Node
from testbed.pods import best_effort, guaranteed
from testbed.scenario import on
from testbed.topology import TWO_NODES

OPERATIONS = Path(__file__).parents[2] / "docs/operations.md"
TOLERATE = {"tolerate-missing-nri-plugins.noderesource.dev": "true"}


def documented_settings() -> str:
    """What the page has an operator write for containerd."""
    found = re.search(r"```toml\n# containerd:.*?\n(.*?)```", OPERATIONS.read_text(), re.DOTALL)
    assert found is not None
    return found[1]


@pytest.mark.matrix
@on(TWO_NODES, "2.4")
def test_nothing_is_created_without_a_plugin_that_is_required(node: Node) -> None:
    """A daemon that was never there, then one that dies, and comes back. What runs is left alone."""
    node.containerd.end()
    node.containerd.start(settings=documented_settings())
    try:
        assert "bayplan" in node.crictl.refused(guaranteed("too-early", 1, "100Mi"))
        tolerant = node.launch(best_effort("tolerant", annotations=TOLERATE))
        assert node.crictl.state(tolerant.container_id) == "CONTAINER_RUNNING"

        node.bayplan.start()
        node.bayplan.await_synchronized()
        placed = node.launch(guaranteed("placed", 1, "100Mi"))
        assert len(node.view(placed).mems_allowed) == 1

        node.bayplan.kill()
        assert "bayplan" in node.crictl.refused(guaranteed("too-late", 1, "100Mi"))
        assert node.crictl.state(placed.container_id) == "CONTAINER_RUNNING"

        position = node.bayplan.log_position()
        node.bayplan.start()
        node.bayplan.await_synchronized(since=position)
        again = node.launch(guaranteed("again", 1, "100Mi"))
        assert node.view(again).cpus_allowed.isdisjoint(node.view(placed).cpus_allowed)
        unmanaged = [one["name"] for one in node.bayplan.status()["unmanaged"]]
        assert unmanaged == ["default/tolerant/main"]
    finally:
        node.containerd.end()
        node.containerd.start()
