"""Memory and CPUs that the machine itself gains and loses while containers run: device_add and device_del."""

import pytest
from testbed.node import Node
from testbed.pods import MIB, guaranteed
from testbed.scenario import on
from testbed.topology import HOT_PLUG

ADDED_MIB = 512
CHANGED = '"msg": "the hardware changed"'
LAST_CPU = "/sys/devices/system/cpu/cpu5"


@pytest.mark.matrix
@on(HOT_PLUG, "2.3")
def test_added_memory_is_promised_and_removed_cpus_are_missed_until_they_are_back(node: Node) -> None:
    node.bayplan.start("--topology-manager-policy", "single-numa-node")
    node.bayplan.await_synchronized()
    monitor, before = node.guest.monitor, node.bayplan.nodes()["nodes"][1]
    too_much = before["resources"]["memory"]["freeBytes"] + 256 * MIB
    assert "TopologyAffinityError" in node.crictl.refused(guaranteed("early", 0.5, too_much))

    since = node.bayplan.log_position()
    monitor("object-add", **{"qom-type": "memory-backend-ram", "id": "dimm-memory", "size": ADDED_MIB * MIB})
    monitor("device_add", driver="pc-dimm", id="dimm", memdev="dimm-memory", node=1)
    node.bayplan.await_log(CHANGED, since=since)
    grown = node.await_node(
        1, lambda found: found["memTotalBytes"] == before["memTotalBytes"] + ADDED_MIB * MIB
    )
    assert grown["resources"]["memory"]["freeBytes"] > too_much
    roomy = node.launch(guaranteed("roomy", 0.5, too_much).touching("200Mi"))
    node.crictl.await_log(roomy, "touched")
    assert node.view(roomy).mems_allowed == {1}

    pinned = node.launch(guaranteed("pinned", 4, "100Mi"))
    assert node.view(pinned).cpus_allowed == {2, 3, 4, 5}
    since = node.bayplan.log_position()
    monitor("device_del", id="cpu5")
    node.bayplan.await_log(CHANGED, since=since)
    node.await_node(1, lambda found: found["cpus"]["all"] == "2-4")
    assert any(str(one).startswith("default/pinned/main ") for one in node.bayplan.status()["problems"])

    since = node.bayplan.log_position()
    monitor("device_add", **HOT_PLUG.removable(5))
    node.guest.run("sh", "-c", f"until echo 1 >{LAST_CPU}/online; do sleep 0.1; done 2>/dev/null")
    node.bayplan.await_log(CHANGED, since=since)
    node.await_node(1, lambda found: found["cpus"]["all"] == "2-5")
    assert node.view(pinned).cpus_allowed == {2, 3, 4, 5}
