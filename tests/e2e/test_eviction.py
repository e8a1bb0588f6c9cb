"""One node of four runs out of memory while the machine has plenty: the right pod goes, nobody is killed."""

import re
import time

import pytest
from testbed.node import Node
from testbed.pods import GUARANTEED_OOM_SCORE_ADJ, MIB, best_effort, burstable, guaranteed
from testbed.scenario import on
from testbed.topology import SPLIT_SOCKETS

LIMIT_S = 300.0
POLL_S = 0.5
SIGNAL = "node1.memory.available"
HELD_MIB = 180
KILLED = re.compile(r"Killed process .* oom_score_adj:(-?[0-9]+)")


def await_exited(node: Node, container_id: str) -> None:
    deadline = time.monotonic() + LIMIT_S
    while node.crictl.state(container_id) != "CONTAINER_EXITED":
        assert time.monotonic() < deadline, node.bayplan.status()["problems"]
        time.sleep(POLL_S)


@pytest.mark.matrix
@on(SPLIT_SOCKETS, "2.3")
def test_pressure_on_one_node_of_four_ends_who_is_there(node: Node) -> None:
    node.bayplan.start("--memory-pressure", "relieve")
    node.bayplan.await_synchronized()
    threshold_mib = node.bayplan.available_mib(1) - HELD_MIB // 2
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
    assert f"{SIGNAL}: " in explained
    assert f" {threshold_mib}Mi" in explained
    events = node.bayplan.ask("history", "default/hog")["events"]
    assert [one["event"] for one in events] == ["placed", "evicted"]
    assert "bayplan_evictions_total" in node.bayplan.command("metrics").stdout
    # It holds nothing any more, and the pressure is over.
    deadline = time.monotonic() + LIMIT_S
    while node.bayplan.status()["problems"]:
        assert time.monotonic() < deadline, node.bayplan.status()["problems"]
        time.sleep(POLL_S)
    assert node.bayplan.available_mib(1) >= threshold_mib


@pytest.mark.matrix
@on(SPLIT_SOCKETS, "2.3")
def test_where_nobody_evicts_the_kernel_kills_whom_eviction_would_choose(node: Node) -> None:
    """All on one node, which runs full: who is furthest above its request goes, whatever its class, and never
    who is within it."""
    node.bayplan.start("--memory-pressure", "off")
    node.bayplan.await_synchronized()
    there = {"bayplan.dev/required-nodes": "1"}
    total = node.kernel.memory_total_bytes()
    before = len(KILLED.findall(node.guest.run("dmesg").stdout))
    within = node.launch(guaranteed("within", 0.1, "120Mi", annotations=there).touching("100Mi"))
    burst = node.launch(
        burstable("burst", node_memory_bytes=total, memory="60Mi", annotations=there).touching("50Mi")
    )
    best = node.launch(best_effort("best", annotations=there).touching("40Mi"))
    left = [within, burst, best]
    for running in left:
        node.crictl.await_log(running, "touched")
    for grows in (burst, best):
        script = f"/bin/workload touch {600 * MIB} >/dev/null 2>&1 &"
        node.crictl.execute(grows.container_id, "/bin/sh", "-c", script)
        await_exited(node, grows.container_id)
        left.remove(grows)
        assert {node.crictl.state(one.container_id) for one in left} == {"CONTAINER_RUNNING"}
    scores = {int(score) for score in KILLED.findall(node.guest.run("dmesg").stdout)[before:]}
    assert len(scores) == 2
    assert max(scores) == 1000
    assert GUARANTEED_OOM_SCORE_ADJ not in scores
