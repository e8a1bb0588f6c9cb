"""kubelet's orders, where its recorded answers leave something out: ties, disks, inodes and processes."""

import pytest

from bayplan.kubelet.eviction_manager import (
    EPHEMERAL_STORAGE,
    INODES,
    PIDS,
    DiskUse,
    PodUsage,
    disk_uses,
    eviction_order,
)


def names(pods, resource):
    return [pod.name for pod in eviction_order(pods, resource)]


def test_ties_go_by_name_and_the_unmeasured_first():
    pods = [
        PodUsage("d", 5, 5),
        PodUsage("c", 6, 5),
        PodUsage("b", 6, 5),
        PodUsage("z", None, 5, priority=9),
        PodUsage("y", None, priority=9),
        PodUsage("a", 4, 0, priority=-1),
    ]
    assert [pod.name for pod in eviction_order(pods)] == ["y", "z", "a", "b", "c", "d"]
    assert eviction_order(reversed(pods)) == eviction_order(pods)
    assert eviction_order(pods, EPHEMERAL_STORAGE) == eviction_order(pods)


def test_for_processes_the_priority_comes_first_and_nothing_is_requested():
    pods = [
        PodUsage("many", 9000, priority=1),
        PodUsage("some", 20),
        PodUsage("more", 30),
        PodUsage("unmeasured", None),
        PodUsage("least", 1, priority=-1),
    ]
    assert names(pods, PIDS) == ["least", "unmeasured", "more", "some", "many"]
    # By the order for memory the one with many would go before the last of those.
    assert names(pods, EPHEMERAL_STORAGE) != names(pods, PIDS)


def test_of_inodes_kubelet_deducts_the_request_of_bytes():
    modest, greedy = PodUsage("modest", 100), PodUsage("greedy", 5000, deducted=1 << 30)
    assert names([greedy, modest], INODES) == ["modest", "greedy"]
    assert names([PodUsage("greedy", 5000), modest], INODES) == ["greedy", "modest"]


@pytest.mark.parametrize(
    ("signal", "own_disk"),
    [
        ("nodefs.available", {DiskUse.LOGS}),
        ("nodefs.inodesFree", {DiskUse.LOGS}),
        ("imagefs.available", {DiskUse.WRITABLE_LAYER}),
        ("containerfs.inodesFree", {DiskUse.WRITABLE_LAYER}),
    ],
)
def test_what_counts_is_what_is_on_that_disk(signal, own_disk):
    assert disk_uses(signal, image_fs=True) == own_disk
    assert disk_uses(signal, image_fs=False) == set(DiskUse)
