"""Without kubelet bayplan is the eviction manager for process ids and disks: on a kernel, with containerd."""

import time
from dataclasses import replace
from typing import Any

import pytest
from testbed.node import Node
from testbed.pods import MIB, Container, Pod, best_effort
from testbed.scenario import on
from testbed.topology import SPLIT_SOCKETS

LIMIT_S = 300.0
POLL_S = 0.5
WRITTEN_MIB = 120
FORKED = 400

TREE = "/sys/fs/cgroup/kubepods"
NO_KUBELET = f"find {TREE} -depth -type d -exec rmdir {{}} + 2>/dev/null; ! test -d {TREE}"
FORKS = f"i=0; while [ $i -lt {FORKED} ]; do /bin/workload pause & i=$((i+1)); done; wait"
AVAILABLE = (
    "import os; disk = os.statvfs('/var/lib/kubelet' if os.path.isdir('/var/lib/kubelet') else '/var/lib'); "
    "print(disk.f_bavail * disk.f_frsize)"
)
PIDS = """
most = min(int(open("/proc/sys/kernel/" + name).read()) for name in ("pid_max", "threads-max"))
print(most - int(open("/proc/loadavg").read().split()[3].partition("/")[2]))
"""


def pod(name: str, *command: str) -> Pod:
    """BestEffort by its score, outside of kubelet's cgroups."""
    made = best_effort(name)
    container: Container = replace(made.containers[0], command=command or made.containers[0].command)
    return replace(made, cgroup_parent=f"/pods/{name}", containers=(container,))


def number(node: Node, program: str) -> int:
    return int(node.guest.run("python3", "-IS", "-c", program).stdout)


def start(node: Node, threshold: str) -> None:
    node.guest.run("sh", "-c", NO_KUBELET)
    node.bayplan.start("--memory-pressure", "evict", "--eviction-hard", f"{threshold},memory.available<50Mi")
    node.bayplan.await_synchronized()


def await_exited(node: Node, container_id: str) -> None:
    deadline = time.monotonic() + LIMIT_S
    while node.crictl.state(container_id) != "CONTAINER_EXITED":
        assert time.monotonic() < deadline, node.bayplan.status()["problems"]
        time.sleep(POLL_S)


def eviction(node: Node, name: str) -> dict[str, Any]:
    """By which numbers the pod with one container went."""
    (container,) = node.bayplan.ask("explain", name)["containers"]
    (found,) = container["evictions"]
    return found  # type: ignore[no-any-return]  # what JSON has


@pytest.mark.matrix
@on(SPLIT_SOCKETS, "2.3")
def test_who_wrote_most_goes_and_nobody_else_while_that_is_to_be_removed(node: Node) -> None:
    threshold_mib = number(node, AVAILABLE) // MIB - WRITTEN_MIB // 2
    start(node, f"nodefs.available<{threshold_mib}Mi")
    modest = node.launch(pod("modest", "/bin/workload", "tmpfs", "/written", str(5 * MIB)))
    writes = node.launch(pod("writes", "/bin/workload", "tmpfs", "/written", str(WRITTEN_MIB * MIB)))
    await_exited(node, writes.container_id)
    evicted = eviction(node, "default/writes")
    assert evicted["signal"] == "nodefs.available"
    # It may go before it has written all.
    assert WRITTEN_MIB // 2 * MIB <= evicted["podUsage"] < 2 * WRITTEN_MIB * MIB
    deadline = time.monotonic() + LIMIT_S
    while not any("default/writes" in problem for problem in node.bayplan.status()["problems"]):
        assert time.monotonic() < deadline, node.bayplan.status()["problems"]
        time.sleep(POLL_S)
    # What it wrote is there until somebody removes it.
    assert number(node, AVAILABLE) // MIB < threshold_mib
    assert node.crictl.state(modest.container_id) == "CONTAINER_RUNNING"
    node.crictl.remove(writes.container_id)
    while node.bayplan.status()["problems"]:
        assert time.monotonic() < deadline, node.bayplan.status()["problems"]
        time.sleep(POLL_S)
    assert node.crictl.state(modest.container_id) == "CONTAINER_RUNNING"


@pytest.mark.matrix
@on(SPLIT_SOCKETS, "2.3")
def test_who_has_most_processes_goes(node: Node) -> None:
    start(node, f"pid.available<{number(node, PIDS) - FORKED // 2}")
    modest = node.launch(pod("modest"))
    forks = node.launch(pod("forks", "/bin/sh", "-c", FORKS))
    await_exited(node, forks.container_id)
    evicted = eviction(node, "default/forks")
    assert evicted["signal"] == "pid.available"
    assert evicted["podUsage"] > FORKED // 4
    deadline = time.monotonic() + LIMIT_S
    while node.bayplan.status()["problems"]:
        assert time.monotonic() < deadline, node.bayplan.status()["problems"]
        time.sleep(POLL_S)
    assert node.crictl.state(modest.container_id) == "CONTAINER_RUNNING"
