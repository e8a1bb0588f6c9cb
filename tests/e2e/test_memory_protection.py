"""memory.min protects a container as far as all cgroups above it do, and the doctor says so. memory.low is
handed down likewise, but gives way once nothing else is left."""

import pytest
from testbed.node import Node
from testbed.pods import MIB
from testbed.scenario import on
from testbed.topology import TWO_NODES

MOUNT = "/sys/fs/cgroup"
TOP = "/sums"
TREE = f"{TOP}/pods"
CLASS = f"{TREE}/burstable"
CONTAINER = f"{CLASS}/pod/{'0123456789abcdef' * 4}"
ABOVE = (TOP, TREE, CLASS, f"{CLASS}/pod")
CACHED_MIB = 80
# More than the page cache: what a cgroup has above its protection makes the kernel (MGLRU) take all of it.
PROTECTED_MIB = 120
NAME = "memory.min"
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
# The kernel refuses where it gets less than it was asked for. For the root it would not go from the top down,
# but by what it worked out for the cgroups above at some other time (MGLRU).
RECLAIM = f"echo 4G > {MOUNT}{TOP}/memory.reclaim; cat {MOUNT}{CONTAINER}/memory.current"


def left_mib(node: Node) -> int:
    """What the container has of its page cache once all that is not protected was reclaimed."""
    read = node.guest.run("sh", "-c", READ)
    assert int(read.stdout) > CACHED_MIB * MIB * 0.9
    return int(node.guest.run("sh", "-c", RECLAIM).stdout) // MIB


def unprotected(node: Node) -> list[str]:
    """The files of which the doctor says that they make protections below them void."""
    findings = node.bayplan.ask_in_guest("doctor")["findings"]
    return [one["subject"] for one in findings if one["subject"].startswith(f"{MOUNT}{TOP}")]


def protect(node: Node, *paths: str) -> None:
    for path in paths:
        node.guest.write(f"{MOUNT}{path}/{NAME}", str(PROTECTED_MIB * MIB))


@pytest.mark.matrix
@on(TWO_NODES, "2.4")
def test_a_protection_is_as_good_as_those_above_it(node: Node) -> None:
    node.guest.run("sh", "-c", MAKE)
    assert left_mib(node) < CACHED_MIB // 4
    protect(node, TOP, CONTAINER)
    assert left_mib(node) < CACHED_MIB // 4
    assert f"{MOUNT}{TREE}/{NAME}" in unprotected(node)
    # As kubelet before 1.37 writes memory.low: of the class and the pod, not of the tree of all pods.
    protect(node, CLASS, f"{CLASS}/pod")
    assert left_mib(node) < CACHED_MIB // 4
    protect(node, TREE)
    assert left_mib(node) > CACHED_MIB * 3 // 4
    assert not unprotected(node)
    clean = f"rmdir {MOUNT}{CONTAINER} {' '.join(MOUNT + one for one in reversed(ABOVE))}; rm {FILE}"
    node.guest.run("sh", "-c", clean)
