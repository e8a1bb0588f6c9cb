"""Sent to the guest and run there: for how long nodes have less free memory than the kernel's low watermark,
and how much of the anonymous memory of containers is on the nodes where it was promised.

The only argument is a JSON object: cgroup -> the nodes of its promise. At SIGTERM the last line is an object:
``below_low_s`` by node, ``seconds`` that it looked, the ``longest_s`` between two looks, and by cgroup the
``lowest_share`` that was ever on its nodes. Standard library only.
"""
# ruff: noqa: PTH123 - as little as possible is imported in the guest

import json
import re
import signal
import sys
import time

LOOK_S = 0.2
NODE = "/sys/devices/system/node/node{}/meminfo"
FREE = re.compile(r"MemFree: +(\d+) kB")
ZONE = re.compile(r"^Node (\d+), zone|^ +low +(\d+)$", re.MULTILINE)
COLUMN = re.compile(r"N(\d+)=(\d+)")
PAGE_KIB = 4


def read(path):
    with open(path) as file:
        return file.read()


def low_watermarks():
    """In KiB by node, the sum of its zones."""
    found, node = {}, 0
    for zone, pages in ZONE.findall(read("/proc/zoneinfo")):
        if zone:
            node = int(zone)
        else:
            found[node] = found.get(node, 0) + int(pages) * PAGE_KIB
    return found


def share(cgroup, nodes):
    """Which part of the container's anonymous memory is on *nodes*; 1 of one that is gone."""
    try:
        text = read(f"/sys/fs/cgroup{cgroup}/memory.numa_stat")
    except (FileNotFoundError, OSError):
        return 1.0
    row = {int(node): int(amount) for node, amount in COLUMN.findall(text.split("\n", 1)[0])}
    return sum(row.get(node, 0) for node in nodes) / max(1, sum(row.values()))


def main():
    promised = json.loads(sys.argv[1])
    ended = []
    signal.signal(signal.SIGTERM, lambda *_: ended.append(True))
    print("looking", flush=True)
    lows = low_watermarks()
    below, lowest, longest = dict.fromkeys(lows, 0.0), dict.fromkeys(promised, 1.0), 0.0
    begun = last = time.monotonic()
    while not ended:
        for cgroup, nodes in promised.items():
            lowest[cgroup] = min(lowest[cgroup], share(cgroup, nodes))
        found = {node: int(FREE.search(read(NODE.format(node)))[1]) for node in lows}
        now = time.monotonic()
        passed, last = now - last, now
        longest = max(longest, passed)
        for node, free in found.items():
            if free < lows[node]:
                below[node] += passed
        time.sleep(LOOK_S)
    print(
        json.dumps(
            {"below_low_s": below, "seconds": last - begun, "longest_s": longest, "lowest_share": lowest}
        )
    )


main()
