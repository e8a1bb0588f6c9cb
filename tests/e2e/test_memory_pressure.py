"""Memory is free where it is promised: containers within their claims survive while others grow to theirs."""

import signal
import time

import pytest
from testbed.crictl import Running
from testbed.node import Node
from testbed.pods import MIB, best_effort, burstable, guaranteed
from testbed.scenario import on
from testbed.topology import SPLIT_SOCKETS

POLL_S = 0.5
CALM_LIMIT_S = 600.0
KILLED = "Killed process"

PUT = """
import contextlib, sys
sys.path.insert(0, "/opt/bayplan/lib")
from bayplan.errors import HostError
from bayplan.host.page_migration import migrate_pages
from bayplan.sets import NodeSet
# What has no room on its node yet has it once the others are on theirs.
for tolerated in ((HostError,), ()):
    for pid, there in zip(sys.argv[1::2], sys.argv[2::2]):
        with contextlib.suppress(*tolerated):
            migrate_pages(int(pid), NodeSet.parse("0-3"), NodeSet.parse(there))
"""

# Puts itself into a cgroup and fills so much memory on a node, which two pipes refer to from then on: like a
# device that works with it, they keep the pages where they are.
PIN = """
import ctypes, fcntl, mmap, os, signal, sys
cgroup, there, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
SET_MEMPOLICY, MPOL_DEFAULT, MPOL_BIND, F_SETPIPE_SZ, SPLICE_F_NONBLOCK = 238, 0, 2, 1031, 2
libc = ctypes.CDLL(None, use_errno=True)
for path in (cgroup + "/cgroup.procs", "/proc/self/oom_score_adj"):
    with open(path, "w") as file:
        file.write("0" if "cgroup" in path else "1000")
memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
memory.madvise(mmap.MADV_NOHUGEPAGE)
assert libc.syscall(SET_MEMPOLICY, MPOL_BIND, ctypes.byref(ctypes.c_ulong(1 << there)), 64) == 0
memory.write(b"x" * size)
assert libc.syscall(SET_MEMPOLICY, MPOL_DEFAULT, None, 0) == 0
start, part = ctypes.addressof(ctypes.c_char.from_buffer(memory)), size // 2
for at in (start, start + part):
    _, into = os.pipe()
    fcntl.fcntl(into, F_SETPIPE_SZ, part)
    pages = (ctypes.c_size_t * 2)(at, part)
    assert libc.vmsplice(into, pages, ctypes.c_size_t(1), SPLICE_F_NONBLOCK) == part
print("pinned", flush=True)
signal.pause()
"""
PIN_LOG = "/run/pin.log"


def put(node: Node, placed: list[tuple[Running, int]]) -> None:
    """Have the pages of containers lie on one node each, as they would by first touch of its CPUs."""
    words = [word for running, there in placed for word in (str(node.view(running).pid), str(there))]
    node.guest.run("python3", "-c", PUT, *words)


def kills(node: Node) -> list[str]:
    return [line for line in node.guest.run("dmesg").stdout.splitlines() if KILLED in line]


def grow(node: Node, running: Running, amount_mib: int) -> None:
    """Have another process of the container fill so much memory, and wait for its end or its words."""
    script = f"/bin/workload touch {amount_mib * MIB} >/dev/null 2>&1 &"
    node.crictl.execute(running.container_id, "/bin/sh", "-c", script)


def await_held(node: Node, running: Running, amount_mib: int, *, limit_s: float = CALM_LIMIT_S) -> bool:
    """Wait until a container holds so much anonymous memory, or somebody is killed; whether it does."""
    deadline, killed = time.monotonic() + limit_s, len(kills(node))
    while sum(node.view(running).anon_bytes().values()) < amount_mib * MIB:
        if len(kills(node)) > killed:
            return False
        assert time.monotonic() < deadline, f"it holds {node.view(running).anon_bytes()}"
        time.sleep(POLL_S)
    return True


def crowded(node: Node) -> tuple[list[Running], list[Running]]:
    """Two Guaranteed containers that have not grown yet, on nodes 1 and 2, and three others within their
    claims, whose pages lie there."""
    total = node.kernel.memory_total_bytes()
    owners = [
        node.launch(
            guaranteed(
                f"owner-{place}", 0.1, "300Mi", annotations={"bayplan.dev/required-nodes": str(place)}
            ).touching("10Mi")
        )
        for place in (1, 2)
    ]
    others = [
        node.launch(burstable(f"web-{place}", node_memory_bytes=total, memory="230Mi").touching("220Mi"))
        for place in (1, 2)
    ]
    others.append(node.launch(best_effort("batch").touching("40Mi")))
    for running in (*owners, *others):
        node.crictl.await_log(running, "touched")
    put(node, list(zip(others, (1, 2, 2), strict=True)))
    return owners, others


def short_nodes(node: Node) -> list[object]:
    """The nodes that cannot give what is outstanding there, or that nobody has looked at yet."""
    return [
        one["live"] or one["id"]
        for one in node.bayplan.nodes()["nodes"]
        if one["live"] is None
        or one["live"]["freeBytes"] + one["live"]["reclaimableBytes"] < one["live"]["outstandingBytes"]
    ]


def await_calm(node: Node) -> None:
    """Wait until every node can give what is outstanding there, once it was seen that one could not."""
    deadline = time.monotonic() + CALM_LIMIT_S
    while not node.bayplan.status()["counters"].get("memory_at_risk"):
        assert time.monotonic() < deadline, "nothing was seen to be at risk"
        time.sleep(POLL_S)
    while short := short_nodes(node):
        assert time.monotonic() < deadline, short
        time.sleep(POLL_S)


def all_grow(node: Node, owners: list[Running], others: list[Running]) -> None:
    """Have the owners use what they were promised: nobody is killed, and everybody keeps what is theirs."""
    before = len(kills(node))
    for owner in owners:
        grow(node, owner, 280)
    assert all(await_held(node, owner, 280) for owner in owners)
    assert len(kills(node)) == before
    for owner, place in zip(owners, (1, 2), strict=True):
        held = node.view(owner).anon_bytes()
        assert held[place] >= 0.99 * sum(held.values())
    for other, amount in zip(others, (220, 220, 40), strict=True):
        assert sum(node.view(other).anon_bytes().values()) >= amount * MIB


@on(SPLIT_SOCKETS, "2.1")
def test_promised_memory_is_free_where_it_is_promised(node: Node) -> None:
    node.bayplan.start("--memory-pressure", "relieve")
    node.bayplan.await_synchronized()
    owners, others = crowded(node)
    await_calm(node)
    all_grow(node, owners, others)
    status = node.bayplan.status()
    assert status["counters"]["relieved_bytes"] > 20 * MIB
    assert status["counters"]["memory_at_risk"] >= 1
    explained = node.bayplan.command("explain", "default/web-1").stdout
    assert "moved from node 1 to node " in explained


@pytest.mark.matrix
@on(SPLIT_SOCKETS, "2.1")
def test_without_it_the_kernel_kills_somebody_within_its_claim(node: Node) -> None:
    """The same, switched off: what the scenario above has to prevent does happen."""
    node.bayplan.start("--memory-pressure", "off")
    node.bayplan.await_synchronized()
    before = len(kills(node))
    owners, _ = crowded(node)
    for owner in owners:
        grow(node, owner, 280)
    assert not all(await_held(node, owner, 280) for owner in owners)
    assert len(kills(node)) > before


@pytest.mark.matrix
@on(SPLIT_SOCKETS, "2.1")
def test_a_daemon_that_is_killed_while_it_moves_pages_goes_on_after_its_restart(node: Node) -> None:
    node.bayplan.start("--memory-pressure", "relieve", "--page-move-rate", "2Mi")
    node.bayplan.await_synchronized()
    owners, others = crowded(node)
    moved = others[0]
    deadline, before = time.monotonic() + CALM_LIMIT_S, node.view(moved).anon_bytes()[1]
    while node.view(moved).anon_bytes()[1] > before - 4 * MIB:
        assert time.monotonic() < deadline, "nothing was moved"
        time.sleep(POLL_S)
    node.bayplan.kill()
    held = node.view(moved).anon_bytes()
    assert sum(held.values()) >= 220 * MIB

    node.bayplan.start("--memory-pressure", "relieve")
    assert "state.db" not in node.bayplan.await_synchronized()
    # What it was killed at was not over: the new daemon sees it anew, and does the rest.
    await_calm(node)
    all_grow(node, owners, others)
    holds = node.view(moved).anon_bytes()
    # Less what its program, which is in Go, gave back to the kernel meanwhile.
    gone_bytes = held[1] - holds.get(1, 0) - max(0, sum(held.values()) - sum(holds.values()))
    (explained,) = node.bayplan.ask("explain", moved.container_id)["containers"]
    recorded_bytes = sum(one["movedBytes"] for one in explained["pageMoves"] if one["fromNode"] == 1)
    assert recorded_bytes >= gone_bytes


@pytest.mark.matrix
@on(SPLIT_SOCKETS, "2.1")
def test_pages_that_somebody_keeps_in_place_count_as_gone_and_others_make_room(node: Node) -> None:
    node.bayplan.start("--memory-pressure", "relieve")
    node.bayplan.await_synchronized()
    owners, others = crowded(node)
    cgroup = f"/sys/fs/cgroup{node.view(others[-1]).cgroup}"
    node.guest.start("pin", "python3", "-c", PIN, cgroup, "1", str(8 * MIB), log=PIN_LOG)
    try:
        node.guest.await_text(PIN_LOG, "pinned")
        await_calm(node)
        all_grow(node, owners, others)
        assert node.view(others[-1]).anon_bytes()[1] >= 8 * MIB
        (explained,) = node.bayplan.ask("explain", others[-1].container_id)["containers"]
        assert any(one["obstacle"] for one in explained["pageMoves"] if one["fromNode"] == 1)
    finally:
        node.guest.signal("pin", signal.SIGKILL)
