"""Promised nodes that others' pages lie on: containers that have not grown yet, and others in their way."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from testbed.crictl import Running
from testbed.memory_load import kills
from testbed.node import Node
from testbed.pods import MIB, best_effort, burstable, guaranteed

POLL_S = 0.5
CALM_LIMIT_S = 600.0

_PUT = """
import contextlib, sys
sys.path.insert(0, "/opt/bayplan/lib")
from bayplan.errors import HostError
from bayplan.host.page_moves import migrate_pages
from bayplan.sets import NodeSet
# What has no room on its node yet has it once the others are on theirs.
for tolerated in ((HostError,), ()):
    for pid, there in zip(sys.argv[1::2], sys.argv[2::2]):
        with contextlib.suppress(*tolerated):
            migrate_pages(int(pid), NodeSet.parse("0-3"), NodeSet.parse(there))
"""

# The beginning of a program with the arguments CGROUP NODE BYTES: it puts itself into a cgroup and fills so
# much memory on a node.
FILLED = """
import ctypes, fcntl, mmap, os, signal, sys
cgroup, there, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
SET_MEMPOLICY, MPOL_DEFAULT, MPOL_BIND = 238, 0, 2
libc = ctypes.CDLL(None, use_errno=True)
for path in (cgroup + "/cgroup.procs", "/proc/self/oom_score_adj"):
    with open(path, "w") as file:
        file.write("0" if "cgroup" in path else "1000")
memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
memory.madvise(mmap.MADV_NOHUGEPAGE)
assert libc.syscall(SET_MEMPOLICY, MPOL_BIND, ctypes.byref(ctypes.c_ulong(1 << there)), 64) == 0
memory.write(b"x" * size)
assert libc.syscall(SET_MEMPOLICY, MPOL_DEFAULT, None, 0) == 0
"""


def put(node: Node, placed: Sequence[tuple[Running | str, int]]) -> None:
    """Have the pages of containers lie on one node each, as they would by first touch of its CPUs."""
    words = [word for running, there in placed for word in (str(node.view(running).pid), str(there))]
    node.guest.run("python3", "-c", _PUT, *words)


def owner(node: Node, place: int, promised_mib: int) -> Running:
    """A Guaranteed container that must stay on a node, and has not used its promise yet."""
    pinned = {"bayplan.dev/required-nodes": str(place)}
    pod = guaranteed(f"owner-{place}", 0.1, f"{promised_mib}Mi", annotations=pinned)
    return node.launch(pod.touching("10Mi"))


def web(node: Node, number: int) -> Running:
    """A Burstable container within its claim, of 220 MiB, that may lie anywhere."""
    total = node.kernel.memory_total_bytes()
    pod = burstable(f"web-{number}", node_memory_bytes=total, memory="230Mi")
    return node.launch(pod.touching("220Mi"))


def crowded(
    node: Node, places: Sequence[int] = (1, 2), promised_mib: int = 300
) -> tuple[dict[int, Running], list[Running]]:
    """An owner on each of these nodes, by its node, and others within their claims whose pages lie there:
    one on each, and a small one on node 2."""
    owners = {place: owner(node, place, promised_mib) for place in places}
    others = [(web(node, place), place) for place in places]
    if 2 in places:
        others.append((node.launch(best_effort("batch").touching("40Mi")), 2))
    for running in (*owners.values(), *(other for other, _ in others)):
        node.crictl.await_log(running, "touched")
    put(node, others)
    return owners, [other for other, _ in others]


def grow(node: Node, running: Running, amount_mib: int) -> None:
    """Have another process of the container fill so much memory."""
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


def await_moving(node: Node, running: Running, source: int, amount_mib: int = 4) -> None:
    """Wait until so much of a container was moved off a node."""
    deadline, before = time.monotonic() + CALM_LIMIT_S, node.view(running).anon_bytes()[source]
    while node.view(running).anon_bytes().get(source, 0) > before - amount_mib * MIB:
        assert time.monotonic() < deadline, "nothing was moved"
        time.sleep(POLL_S)


def owners_grow(node: Node, owners: Mapping[int, Running], amount_mib: int = 275) -> None:
    """Have the owners use so much of their promise, of which they and the kernel have some already: nobody is
    killed, and it lies on their nodes."""
    before = len(kills(node))
    for one in owners.values():
        grow(node, one, amount_mib)
    assert all(await_held(node, one, amount_mib) for one in owners.values())
    assert len(kills(node)) == before
    for place, one in owners.items():
        held = node.view(one).anon_bytes()
        assert held[place] >= 0.99 * sum(held.values())


def all_keep(node: Node, others: Sequence[Running], amounts_mib: Sequence[int] = (220, 220, 40)) -> None:
    """The others have what they had."""
    for other, amount in zip(others, amounts_mib, strict=True):
        assert sum(node.view(other).anon_bytes().values()) >= amount * MIB


def pages_moved(node: Node, running: Running) -> list[dict[str, Any]]:
    """What was recorded of the container's pages."""
    (explained,) = node.bayplan.ask("explain", running.container_id)["containers"]
    found: list[dict[str, Any]] = explained["pageMoves"]
    return found
