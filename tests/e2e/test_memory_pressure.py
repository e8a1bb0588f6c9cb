"""Memory is free where it is promised: containers within their claims survive while others grow to theirs."""

import signal

import pytest
from testbed.crowded_nodes import (
    FILLED,
    all_keep,
    await_calm,
    await_held,
    await_moving,
    crowded,
    grow,
    owners_grow,
    pages_moved,
)
from testbed.memory_load import kills
from testbed.node import Node
from testbed.pods import MIB
from testbed.scenario import on
from testbed.topology import SPLIT_SOCKETS

# Two pipes refer to the memory from then on: like a device that works with it, they keep its pages in place.
PIN = f"""{FILLED}
F_SETPIPE_SZ, SPLICE_F_NONBLOCK = 1031, 2
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


@on(SPLIT_SOCKETS, "2.3")
@pytest.mark.parametrize("places", [(1,), pytest.param((1, 2), marks=pytest.mark.matrix)], ids=len)
def test_promised_memory_is_free_where_it_is_promised(node: Node, places: tuple[int, ...]) -> None:
    node.bayplan.start("--memory-pressure", "relieve")
    node.bayplan.await_synchronized()
    owners, others = crowded(node, places)
    await_calm(node)
    owners_grow(node, owners)
    all_keep(node, others, (220, 220, 40)[: len(others)])
    status = node.bayplan.status()
    assert status["counters"]["relieved_bytes"] > 20 * MIB
    assert status["counters"]["memory_at_risk"] >= 1
    explained = node.bayplan.command("explain", "default/web-1").stdout
    assert "moved from node 1 to node " in explained


@pytest.mark.matrix
@on(SPLIT_SOCKETS, "2.3")
def test_without_it_the_kernel_kills_somebody_within_its_claim(node: Node) -> None:
    """The same, switched off: what the scenario above has to prevent does happen."""
    node.bayplan.start("--memory-pressure", "off")
    node.bayplan.await_synchronized()
    before = len(kills(node))
    owners, _ = crowded(node)
    for owner in owners.values():
        grow(node, owner, 280)
    assert not all(await_held(node, owner, 280) for owner in owners.values())
    assert len(kills(node)) > before


@pytest.mark.matrix
@on(SPLIT_SOCKETS, "2.3")
def test_a_daemon_that_is_killed_while_it_moves_pages_goes_on_after_its_restart(node: Node) -> None:
    node.bayplan.start("--memory-pressure", "relieve", "--page-move-rate", "2Mi")
    node.bayplan.await_synchronized()
    owners, others = crowded(node)
    moved = others[0]
    await_moving(node, moved, 1)
    node.bayplan.kill()
    held = node.view(moved).anon_bytes()
    assert sum(held.values()) >= 220 * MIB

    node.bayplan.start("--memory-pressure", "relieve")
    assert "state.db" not in node.bayplan.await_synchronized()
    # What it was killed at was not over: the new daemon sees it anew, and does the rest.
    await_calm(node)
    owners_grow(node, owners)
    all_keep(node, others)
    holds = node.view(moved).anon_bytes()
    # Less what its program, which is in Go, gave back meanwhile; some MiB it took anew elsewhere.
    gone_bytes = held[1] - holds.get(1, 0) - max(0, sum(held.values()) - sum(holds.values()))
    recorded_bytes = sum(one["movedBytes"] for one in pages_moved(node, moved) if one["fromNode"] == 1)
    assert recorded_bytes >= 0.95 * gone_bytes


@pytest.mark.matrix
@on(SPLIT_SOCKETS, "2.3")
def test_pages_that_somebody_keeps_in_place_count_as_gone_and_others_make_room(node: Node) -> None:
    node.bayplan.start("--memory-pressure", "relieve")
    node.bayplan.await_synchronized()
    owners, others = crowded(node)
    cgroup = f"/sys/fs/cgroup{node.view(others[-1]).cgroup}"
    node.guest.start("pin", "python3", "-c", PIN, cgroup, "1", str(8 * MIB), log=PIN_LOG)
    try:
        node.guest.await_text(PIN_LOG, "pinned")
        await_calm(node)
        owners_grow(node, owners)
        all_keep(node, others)
        assert node.view(others[-1]).anon_bytes()[1] >= 8 * MIB
        assert any(one["obstacle"] for one in pages_moved(node, others[-1]) if one["fromNode"] == 1)
    finally:
        node.guest.signal("pin", signal.SIGKILL)
