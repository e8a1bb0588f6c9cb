"""One node of four runs out of memory while the machine has plenty: the right pod goes, nobody is killed."""

import time

import pytest
from testbed.node import Node
from testbed.pods import MIB, best_effort
from testbed.scenario import on
from testbed.topology import SPLIT_SOCKETS

LIMIT_S = 300.0
POLL_S = 0.5
SIGNAL = "node1.memory.available"
HELD_MIB = 180


def available_mib(node: Node, there: int) -> int:
    """What a node can give, once somebody has looked at it."""
    deadline = time.monotonic() + LIMIT_S
    while (live := node.bayplan.nodes()["nodes"][there]["live"]) is None:
        assert time.monotonic() < deadline
        time.sleep(POLL_S)
    return int(live["freeBytes"] + live["reclaimableBytes"]) // MIB


def await_exited(node: Node, container_id: str) -> None:
    deadline = time.monotonic() + LIMIT_S
    while node.crictl.state(container_id) != "CONTAINER_EXITED":
        assert time.monotonic() < deadline, node.bayplan.status()["problems"]
        time.sleep(POLL_S)


@pytest.mark.matrix
@on(SPLIT_SOCKETS, "2.1")
def test_pressure_on_one_node_of_four_ends_who_is_there(node: Node) -> None:
    node.bayplan.start("--memory-pressure", "relieve")
    node.bayplan.await_synchronized()
    threshold_mib = available_mib(node, 1) - HELD_MIB // 2
    node.bayplan.stop()
    node.bayplan.start(
        "--memory-pressure", "evict", "--eviction-hard", f"{SIGNAL}<{threshold_mib}Mi,memory.available<50Mi"
    )
    node.bayplan.await_synchronized()
    before = node.guest.run("dmesg").stdout.count("Killed process")
    pods = {
        name: node.launch(
            best_effort(name, annotations={"bayplan.dev/required-nodes": there}).touching(f"{held}Mi")
        )
        for name, there, held in (("elsewhere", "2", 250), ("small", "1", 5), ("hog", "1", HELD_MIB))
    }
    await_exited(node, pods["hog"].container_id)
    assert node.crictl.state(pods["elsewhere"].container_id) == "CONTAINER_RUNNING"
    assert node.crictl.state(pods["small"].container_id) == "CONTAINER_RUNNING"
    # The kernel had no reason to kill anybody: the machine has room.
    assert node.guest.run("dmesg").stdout.count("Killed process") == before
    explained = node.bayplan.command("explain", "default/hog").stdout
    assert (
        f"{SIGNAL}: The node was low on resource: memory. Threshold quantity: {threshold_mib}Mi" in explained
    )
    events = node.bayplan.ask("history", "default/hog")["events"]
    assert [one["event"] for one in events] == ["placed", "evicted"]
    assert "bayplan_evictions_total" in node.bayplan.command("metrics").stdout
    # It holds nothing any more, and the pressure is over.
    deadline = time.monotonic() + LIMIT_S
    while node.bayplan.status()["problems"]:
        assert time.monotonic() < deadline, node.bayplan.status()["problems"]
        time.sleep(POLL_S)
    assert available_mib(node, 1) >= threshold_mib
