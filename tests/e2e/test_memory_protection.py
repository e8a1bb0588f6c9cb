"""memory.min and memory.low protect a container as far as all cgroups above it do, and the doctor says so."""

import pytest
from testbed.node import Node
from testbed.pods import MIB
from testbed.scenario import on
from testbed.topology import TWO_NODES

MOUNT = "/sys/fs/cgroup"
CLASS = "/sums/burstable"
CONTAINER = f"{CLASS}/pod/{'0123456789abcdef' * 4}"
ABOVE = ("/sums", CLASS, f"{CLASS}/pod")
CACHED_MIB = 80
FILE = "/var/lib/containerd/holes"

MAKE = f"""
set -e
mkdir -p {MOUNT}{CONTAINER}
for one in "" {" ".join(ABOVE)}; do echo +memory > {MOUNT}$one/cgroup.subtree_control; done
truncate -s {CACHED_MIB}M {FILE}
"""
# As page cache of the container, with nothing of it in use: the first that the kernel takes.
READ = f"""
sync; echo 1 > /proc/sys/vm/drop_caches
sh -c 'echo $$ > {MOUNT}{CONTAINER}/cgroup.procs; exec cat {FILE} > /dev/null'
cat {MOUNT}{CONTAINER}/memory.current
"""
# By the whole machine: the kernel refuses where it gets less than it was asked for.
RECLAIM = f"echo 4G > {MOUNT}/memory.reclaim; cat {MOUNT}{CONTAINER}/memory.current"


def left_mib(node: Node) -> int:
    """What the container has of its page cache once all that is not protected was reclaimed."""
    read = node.guest.run("sh", "-c", READ)
    assert int(read.stdout) > CACHED_MIB * MIB * 0.9
    return int(node.guest.run("sh", "-c", RECLAIM).stdout) // MIB


def unprotected(node: Node) -> list[str]:
    """What the doctor finds of protections that are void."""
    findings = node.bayplan.ask_in_guest("doctor")["findings"]
    return [one["text"] for one in findings if "are protected" in one["text"]]


def protect(node: Node, name: str, *paths: str) -> None:
    for path in paths:
        node.guest.write(f"{MOUNT}{path}/{name}", str(CACHED_MIB * MIB))


@pytest.mark.matrix
@on(TWO_NODES, "2.3")
@pytest.mark.parametrize("name", ["memory.min", "memory.low"])
def test_a_protection_is_as_good_as_those_above_it(node: Node, name: str) -> None:
    node.guest.run("sh", "-c", MAKE)
    assert left_mib(node) < CACHED_MIB // 4
    protect(node, name, CONTAINER)
    assert left_mib(node) < CACHED_MIB // 4
    (said,) = unprotected(node)
    assert f"{MOUNT}/sums/{name}" in said
    assert "are protected not at all" in said
    # As kubelet 1.36 writes memory.low: of the class and the pod, not of the tree of all pods.
    protect(node, name, CLASS, f"{CLASS}/pod")
    assert left_mib(node) < CACHED_MIB // 4
    protect(node, name, "/sums")
    assert left_mib(node) > CACHED_MIB * 3 // 4
    assert not unprotected(node)
    clean = f"rmdir {MOUNT}{CONTAINER} {' '.join(MOUNT + one for one in reversed(ABOVE))}; rm {FILE}"
    node.guest.run("sh", "-c", clean)
