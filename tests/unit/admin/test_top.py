"""What nodes and containers use, beside what was promised: the question `top` on a recorded machine."""

import asyncio
from pathlib import Path

from bayplan.admin.snapshot_source import watching
from bayplan.host.hierarchy import Hierarchy, Layout
from bayplan.quantity import GIB, MIB
from support.controllers import here
from support.snapshots import make_snapshot

KINDS = ("anon", "shmem", "inactive_anon", "active_anon", "inactive_file", "active_file", "unevictable")


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_memory_on_other_nodes_than_a_containers_own_is_told_apart(tmp_path: Path) -> None:
    cgroup = tmp_path / "cgroup/pod/nginx"
    rows = dict.fromkeys(KINDS, (0, 0)) | {"inactive_anon": (MIB, 3 * MIB), "active_file": (MIB, 0)}
    write(cgroup / "memory.numa_stat", "".join(f"{kind} N0={a} N1={b}\n" for kind, (a, b) in rows.items()))
    write(cgroup / "memory.stat", "pgfault 20\npgmajfault 1\n")
    for node in (0, 1):
        directory = tmp_path / f"sys/devices/system/node/node{node}"
        amounts = {"MemTotal": 4096, "MemFree": 1024, "Active(file)": 0, "Inactive(file)": 512}
        lines = [f"Node {node} {name}: {mib * 1024} kB\n" for name, mib in amounts.items()]
        write(directory / "meminfo", "".join(lines))
        write(directory / "numastat", "numa_miss 5\nnuma_foreign 0\nother_node 2\n")
    mount = str(tmp_path / "cgroup")
    hierarchy = Hierarchy(Layout.UNIFIED, {"cpuset": mount, "memory": mount}, {}, tmp_path)
    paths = dict.fromkeys(("cpuset", "memory"), "/pod/nginx")
    running = [("aaa", "", "", paths), ("bbb", "", "", dict.fromkeys(paths, "/gone")), ("?", "", "", paths)]
    said = asyncio.run(watching(hierarchy, lambda: running, here)(make_snapshot(), {}))
    (nginx,) = said["containers"]
    assert (nginx["name"], nginx["nodes"], nginx["promisedBytes"]) == ("default/web-0/nginx", "0", GIB)
    assert (nginx["usedHereBytes"], nginx["usedElsewhereBytes"]) == (2 * MIB, 3 * MIB)
    assert (nginx["pageFaults"], nginx["majorPageFaults"], nginx["memoryStallPercent"]) == (20, 1, None)
    first, second = said["nodes"]
    assert (first["id"], first["promisedBytes"], first["missedPages"]) == (0, GIB, 5)
    assert (first["usedByContainersBytes"], second["usedByContainersBytes"]) == (2 * MIB, 3 * MIB)
    assert second["freeBytes"] == GIB
