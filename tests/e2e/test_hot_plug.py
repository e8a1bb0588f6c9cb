"""Memory and CPUs that the machine itself gains and loses while containers run: device_add and device_del."""

from dataclasses import replace

import pytest
from testbed import gobuild
from testbed.containerd import Handler
from testbed.memory_load import kills
from testbed.node import Node
from testbed.pods import MIB, Pod, guaranteed
from testbed.scenario import on
from testbed.topology import HOT_PLUG, MOVABLE_NODE

ADDED_MIB = 512
CHANGED = '"msg": "the hardware changed"'
RUNC = "/usr/local/bin/runc-of-memory-policies"
LEFT_MIB = 8
"""What the programs themselves and the kernel have of a promise."""
LAST_CPU = "/sys/devices/system/cpu/cpu5"


@pytest.mark.matrix
@on(HOT_PLUG, "2.3")
def test_added_memory_is_promised_and_removed_cpus_are_missed_until_they_are_back(node: Node) -> None:
    node.bayplan.start("--topology-manager-policy", "single-numa-node")
    node.bayplan.await_synchronized()
    monitor, before = node.guest.monitor, node.bayplan.nodes()["nodes"][1]
    too_much = before["resources"]["memory"]["freeBytes"] + 256 * MIB
    assert "TopologyAffinityError" in node.crictl.refused(guaranteed("early", 0.5, too_much))

    plug_in(node)
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


@pytest.mark.matrix
@on(MOVABLE_NODE, "2.3")
def test_all_that_is_promised_on_a_movable_node_is_touched_and_pipes_work_there(node: Node) -> None:
    node.guest.write(RUNC, (gobuild.runc() / "bin/runc").read_bytes(), mode=0o755)
    node.containerd.end()
    node.containerd.start(handlers=[Handler("bound", binary=RUNC)])
    node.bayplan.start("--measured-reservation", "true", "--memory-pressure", "relieve")
    node.bayplan.await_synchronized()
    plug_in(node)
    there = node.await_node(1, lambda found: found["resources"]["memory"]["freeBytes"] > 0)
    promised_mib = int(there["resources"]["memory"]["freeBytes"]) // MIB
    assert promised_mib > ADDED_MIB // 2

    # This runc sets no memory policy.
    plain = node.launch(piping("plain", 64))
    node.crictl.await_log(plain, "touched")
    assert "through" in node.crictl.logs(plain)
    assert node.view(plain).mems_allowed == {0, 1}
    (decided,) = node.bayplan.ask("explain", plain.container_id)["containers"]
    assert (decided["outcome"], decided["placement"]["claim"]["nodes"]) == ("degraded", "0-1")
    node.crictl.remove_sandbox(plain.sandbox_id)

    bound = node.launch(piping("bound", promised_mib), handler="bound")
    node.crictl.await_log(bound, "touched", limit_s=300)
    assert "through" in node.crictl.logs(bound)
    view = node.view(bound)
    assert view.mems_allowed == {0, 1}
    assert view.anon_bytes()[1] >= (promised_mib - LEFT_MIB) * MIB
    assert kills(node) == []
    (explained,) = node.bayplan.ask("explain", "bound")["containers"]
    assert explained["placement"]["claim"]["nodes"] == "1"


def plug_in(node: Node) -> None:
    """More memory on node 1, as the daemon sees it, too."""
    monitor, since = node.guest.monitor, node.bayplan.log_position()
    monitor("object-add", **{"qom-type": "memory-backend-ram", "id": "dimm-memory", "size": ADDED_MIB * MIB})
    monitor("device_add", driver="pc-dimm", id="dimm", memdev="dimm-memory", node=1)
    node.bayplan.await_log(CHANGED, since=since)


def piping(name: str, promised_mib: int) -> Pod:
    """Bound to node 1: it writes to a pipe, then touches nearly all that it is promised."""
    pod = guaranteed(name, 0.5, f"{promised_mib}Mi", annotations={"bayplan.dev/required-nodes": "1"})
    (container,) = pod.containers
    amount = (promised_mib - LEFT_MIB) * MIB
    script = f"echo through | cat; exec /bin/workload touch {amount}"
    return pod.with_containers(replace(container, command=("/bin/sh", "-c", script)))
