"""What changes while pages are moved: cpusets, processes that fork and end, pools of huge pages, nodes."""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import pytest
from testbed.crowded_nodes import (
    CALM_LIMIT_S,
    FILLED,
    POLL_S,
    all_keep,
    await_calm,
    await_moving,
    crowded,
    grow,
    owner,
    owners_grow,
    pages_moved,
    put,
    web,
)
from testbed.memory_load import kills
from testbed.node import Node
from testbed.pods import MIB, best_effort, guaranteed
from testbed.scenario import on
from testbed.topology import DIMM_NODE, SPLIT_SOCKETS

pytestmark = pytest.mark.matrix

# Children write to some of the pages that they share with it, and end, again and again.
FORK = f"""{FILLED}
print("filled", flush=True)
while True:
    child = os.fork()
    if not child:
        for at in range(0, size, 16 * mmap.PAGESIZE):
            memory[at] = 1
        os._exit(0)
    os.waitpid(child, 0)
"""
FORK_LOG = "/run/fork.log"
SLOWLY = ("--memory-pressure", "relieve", "--page-move-rate", "8Mi")
POOL = "/sys/devices/system/node/node1/hugepages/hugepages-2048kB"
DIMM_MIB = 512
MOST_PAGES = 64


def await_that(condition: Callable[[], object], what: str, *, limit_s: float = CALM_LIMIT_S) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(POLL_S)


@on(SPLIT_SOCKETS, "2.3")
def test_processes_that_change_their_cpuset_fork_or_end_while_they_are_moved(node: Node) -> None:
    node.bayplan.start(*SLOWLY)
    node.bayplan.await_synchronized()
    owners, others = crowded(node)
    moved, _, ends = others
    cgroup = f"/sys/fs/cgroup{node.view(moved).cgroup}"
    node.guest.start("fork", "python3", "-c", FORK, cgroup, "1", str(16 * MIB), log=FORK_LOG)
    try:
        node.guest.await_text(FORK_LOG, "filled")
        await_moving(node, moved, 1)
        node.guest.write(f"{cgroup}/cpuset.mems", "1\n")
        await_that(
            lambda: any("Permission denied" in one["obstacle"] for one in pages_moved(node, moved)),
            "nothing was refused",
        )
        # Once it is set it cannot be emptied as long as somebody is in it.
        node.guest.write(f"{cgroup}/cpuset.mems", "0-3\n")
        await_moving(node, moved, 1)
        node.crictl.stop(ends.container_id)
    finally:
        node.guest.signal("fork", signal.SIGKILL)
    await_calm(node)
    owners_grow(node, owners)
    all_keep(node, others[:2], (220, 220))
    assert "Traceback" not in node.bayplan.log()


@contextmanager
def huge_pages(node: Node, count: int) -> Iterator[None]:
    """So many huge pages of 2 MiB on node 1."""
    reserve(node, count)
    try:
        yield
    finally:
        node.guest.write(f"{POOL}/nr_hugepages", "0\n")


# Pages on lists of CPUs are in the way of pieces of 2 MiB, and the kernel does not empty the lists for these:
# each update of the statistics shortens them.
MAKE_ROOM = """
sync
echo 3 >/proc/sys/vm/drop_caches
for _ in 1 2 3 4 5 6 7 8 9 10; do echo 1 >/proc/sys/vm/stat_refresh; done
echo 1 >/proc/sys/vm/compact_memory
"""


def reserve(node: Node, count: int) -> None:
    node.guest.run("sh", "-c", MAKE_ROOM)
    # The kernel takes what it finds in one piece, and finds more the next time.
    for _ in range(10):
        node.guest.write(f"{POOL}/nr_hugepages", f"{count}\n")
    assert node.kernel.hugepages_of_nodes()[1] == count


def has_pool(node: Node, count: int) -> bool:
    """Whether it is known that so many huge pages can be promised on node 1."""
    found = node.bayplan.nodes()["nodes"][1]["resources"]["hugepages-2Mi"]
    return int(found["allocatableBytes"]) == count * 2 * MIB


def relieved_bytes(node: Node) -> int:
    return int(node.bayplan.status()["counters"].get("relieved_bytes", 0))


@on(SPLIT_SOCKETS, "2.3")
def test_promised_memory_is_free_beside_huge_pages_and_they_stay(node: Node) -> None:
    before = len(kills(node))
    with huge_pages(node, 16):
        node.bayplan.start("--memory-pressure", "relieve")
        node.bayplan.await_synchronized()
        huge = best_effort("huge")
        (container,) = huge.containers
        huge_owner = node.launch(huge.with_containers(container.touching("24Mi", hugepages="2Mi")))
        node.crictl.await_log(huge_owner, "touched")
        grow(node, huge_owner, 40)
        # Of the others some pages stay, which have to go once the pool grows.
        owners, others = crowded(node, promised_mib=200)
        await_calm(node)
        # A pool that grows takes what was free for others. What lists of CPUs hold, and page cache, may be
        # enough for the first pages: an eighth of the node, at one moment or another.
        relieved, pages = relieved_bytes(node), 16
        while relieved_bytes(node) <= relieved + 16 * MIB:
            pages += 16
            assert pages <= MOST_PAGES, "nobody made room for the pool"
            reserve(node, pages)
            await_that(partial(has_pool, node, pages), "the larger pool was not seen")
            await_calm(node)
        owners_grow(node, owners, 175)
        all_keep(node, others)
        assert node.guest.read(f"{POOL}/free_hugepages").strip() == str(pages - 12)
        assert len(kills(node)) == before


@on(DIMM_NODE, "2.3")
def test_a_node_whose_memory_goes_while_pages_are_moved_there_and_comes_back(node: Node) -> None:
    monitor, before = node.guest.monitor, len(kills(node))

    def add() -> None:
        monitor("device_add", driver="pc-dimm", id="dimm", memdev="dimm-memory", node=1)
        await_that(lambda: node.kernel.memory_of_nodes().get(1) == DIMM_MIB * MIB, "it is not added")

    # What lies there can be moved elsewhere: else it would stay for good.
    node.guest.write("/sys/devices/system/memory/auto_online_blocks", "online_movable\n")
    monitor("object-add", **{"qom-type": "memory-backend-ram", "id": "dimm-memory", "size": DIMM_MIB * MIB})
    add()
    node.bayplan.start(*SLOWLY)
    node.bayplan.await_synchronized()
    owners = {0: owner(node, 0, 400)}
    others = [web(node, 1), node.launch(best_effort("batch").touching("100Mi"))]
    for running in (*owners.values(), *others):
        node.crictl.await_log(running, "touched")
    put(node, [(other, 0) for other in others])
    await_moving(node, others[1], 0)

    monitor("device_del", id="dimm")
    await_that(lambda: not node.kernel.memory_of_nodes().get(1), "it is not removed")
    node.await_node(1, lambda found: not found["memTotalBytes"])
    all_keep(node, others, (220, 100))
    add()
    await_calm(node)
    owners_grow(node, owners, 380)
    all_keep(node, others, (220, 100))
    assert len(kills(node)) == before
    assert "Traceback" not in node.bayplan.log()


@on(SPLIT_SOCKETS, "2.3")
def test_who_made_room_for_another_goes_back_once_that_one_is_gone(node: Node) -> None:
    before = len(kills(node))
    node.bayplan.start("--memory-pressure", "relieve")
    node.bayplan.await_synchronized()
    moved = node.launch(guaranteed("moved", 0.1, "300Mi").touching("250Mi"))
    node.crictl.await_log(moved, "touched")
    (home,) = node.view(moved).mems_allowed
    required = {"bayplan.dev/required-nodes": str(home)}
    late = node.launch(guaranteed("late", 0.1, "360Mi", annotations=required).touching("320Mi"))
    node.crictl.await_log(late, "touched", limit_s=CALM_LIMIT_S)
    assert len(node.view(moved).mems_allowed) == 2
    assert node.view(late).anon_bytes()[home] >= 320 * MIB
    assert node.view(moved).anon_bytes().get(home, 0) < 150 * MIB

    node.crictl.remove_sandbox(late.sandbox_id)
    await_that(lambda: node.view(moved).mems_allowed == {home}, "it does not go back")
    held = node.view(moved).anon_bytes()
    assert held.get(home, 0) >= 250 * MIB
    assert sum(held.values()) - held[home] < MIB
    assert len(kills(node)) == before
    counters = node.bayplan.status()["counters"]
    assert (counters["pages_moved_bytes"] >= 100 * MIB, counters.get("returns_failed", 0)) == (True, 0)
