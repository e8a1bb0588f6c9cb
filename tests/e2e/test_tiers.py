"""Memory of several kinds, memory and CPUs that come and go, memory that others hold: in a real kernel."""

import pytest
from testbed.node import Node
from testbed.pods import MIB, best_effort, guaranteed
from testbed.scenario import on
from testbed.topology import TIERED

CPU = "/sys/devices/system/cpu/cpu3/online"
BLOCKS = "/sys/devices/system/node/node1/memory[0-9]*"
CHANGED = '"msg": "the hardware changed"'


def write(node: Node, path: str, text: str) -> None:
    node.guest.run("sh", "-c", f"echo {text} >{path}")


def problems(node: Node) -> list[str]:
    return [str(problem) for problem in node.bayplan.status()["problems"]]


@pytest.mark.matrix
@on(TIERED, "2.3")
def test_a_slower_tier_is_for_those_who_ask_for_it(node: Node) -> None:
    node.bayplan.start()
    node.bayplan.await_synchronized()
    kinds = [one["kind"] for one in node.bayplan.nodes()["nodes"]]
    assert [kind["tierNames"] for kind in kinds] == [["0", "dram"], ["0", "dram"], ["1", "slow", "cxl"]]
    assert [kind["ordinary"] for kind in kinds] == [True, True, False]
    assert [kind["initiators"] for kind in kinds] == ["0", "1", "0"]
    assert (kinds[2]["rated"]["readLatencyNs"], kinds[2]["rated"]["readBandwidthMiBPerSecond"]) == (
        250,
        30_000,
    )

    asks = {"bayplan.dev/required-tier": "slow"}
    slow = node.launch(guaranteed("slow", 0.5, "400Mi", annotations=asks).touching("300Mi"))
    batch = node.launch(best_effort("batch"))
    wide = node.launch(guaranteed("wide", 0.5, "1500Mi"))
    node.crictl.await_log(slow, "touched")
    view = node.view(slow)
    assert view.mems_allowed == {2}
    assert set(view.anon_bytes()) == {2}
    assert [node.view(pod).mems_allowed for pod in (batch, wide)] == [{0, 1}, {0, 1}]
    full = node.launch(guaranteed("full", 0.5, "600Mi"))
    assert 2 not in node.view(full).mems_allowed
    assert node.bayplan.decided(full.container_id)["outcome"] == "degraded"
    unknown = node.launch(best_effort("unknown", annotations={"bayplan.dev/required-tier": "hbm"}))
    assert node.view(unknown).mems_allowed == {0, 1}
    reasons = node.bayplan.decided(unknown.container_id)["reasons"]
    assert "wrong-annotation" in [one["code"] for one in reasons]


@on(TIERED, "2.3")
def test_cpus_and_memory_leave_and_come_back_without_a_restart(node: Node) -> None:
    node.bayplan.start()
    node.bayplan.await_synchronized()
    before = node.bayplan.nodes()["nodes"][1]
    almost_all = before["resources"]["memory"]["freeBytes"] - 64 * MIB
    pinned = node.launch(guaranteed("pinned", 2, almost_all))
    assert (node.view(pinned).mems_allowed, node.view(pinned).cpus_allowed) == ({1}, {2, 3})

    since = node.bayplan.log_position()
    write(node, CPU, "0")
    node.bayplan.await_log(CHANGED, since=since)
    assert node.bayplan.nodes()["nodes"][1]["cpus"]["all"] == "2"
    (problem,) = problems(node)
    assert problem.startswith("default/pinned/main ")
    since = node.bayplan.log_position()
    write(node, CPU, "1")
    node.bayplan.await_log(CHANGED, since=since)

    since = node.bayplan.log_position()
    # Not every block can leave: the kernel has its own pages in some, and others have some that are busy.
    once = f'for block in {BLOCKS}; do echo offline >"$block/state" && echo "$block" && exit; done'
    leave = f"for try in 1 2 3 4 5; do {once}; echo 3 >/proc/sys/vm/drop_caches; sleep 1; done; exit 1"
    block = node.guest.run("sh", "-c", f"({leave}) 2>/dev/null").stdout.strip()
    node.bayplan.await_log(CHANGED, since=since)
    less = node.bayplan.nodes()["nodes"][1]
    assert before["memTotalBytes"] - less["memTotalBytes"] == 128 * MIB
    (problem,) = problems(node)
    assert problem.startswith("node 1 ")
    assert "default/pinned/main" in problem
    assert node.view(node.launch(guaranteed("new", 0.5, "50Mi"))).mems_allowed == {0}
    since = node.bayplan.log_position()
    write(node, f"{block}/state", "online")
    node.bayplan.await_log(CHANGED, since=since)
    assert node.bayplan.nodes()["nodes"][1]["memTotalBytes"] == before["memTotalBytes"]
    assert problems(node) == []
    assert node.view(pinned).cpus_allowed == {2, 3}


@pytest.mark.matrix
@on(TIERED, "2.3")
def test_what_others_hold_on_a_node_is_not_promised_there(node: Node) -> None:
    node.guest.run("sh", "-c", "mkdir -p /held && mount -t tmpfs -o size=400m,mpol=bind:1 held /held")
    node.guest.run("sh", "-c", "head -c 300M /dev/zero >/held/file")
    try:
        node.bayplan.start("--measured-reservation", "true")
        node.bayplan.await_log("nodes keep memory from containers")
        found = node.bayplan.nodes()["nodes"][1]
        assert found["reservation"]["source"] == "measured"
        assert 300 * MIB < found["reservation"]["heldOutsideBytes"] < 500 * MIB
        memory = found["resources"]["memory"]
        assert memory["totalBytes"] - memory["allocatableBytes"] > 300 * MIB
        ask = {"bayplan.dev/required-nodes": "1"}
        too_much = guaranteed("much", 0.5, memory["allocatableBytes"] + 64 * MIB, annotations=ask)
        assert "node 1 holds" in node.crictl.refused(too_much)
        fits = node.launch(guaranteed("fits", 0.5, memory["allocatableBytes"] - 64 * MIB, annotations=ask))
        assert node.view(fits).mems_allowed == {1}
    finally:
        node.guest.run("umount", "/held")
