"""Sent to the guest and run there: every half second a line of JSON, what nodes have and containers use.

The only argument is the directory below which the containers' cgroups are. A line has ``s`` since the boot;
by node ``free``, MemFree, and ``lists``, what lies on the lists of CPUs; and by the first letters of a
container's id ``used``, memory.current, ``high``, memory.high, None without a bound, and ``anon`` by node. In
MiB. Ends at SIGTERM. Standard library only.
"""
# ruff: noqa: PTH119, PTH123, PTH208 - as little as possible is imported in the guest

import json
import os
import re
import sys
import time

PAUSE_S = 0.5
ID_LETTERS = 12
MIB = 1 << 20
PAGE_KIB = 4
FREE = re.compile(r"Node (\d+) MemFree: +(\d+) kB")
ZONE = re.compile(r"^Node (\d+), zone|^ +count: (\d+)$", re.MULTILINE)
COLUMN = re.compile(r"N(\d+)=(\d+)")


def read(path):
    with open(path) as file:
        return file.read()


def free_mib(nodes):
    found = [FREE.search(read(f"/sys/devices/system/node/{node}/meminfo")) for node in nodes]
    return {one[1]: int(one[2]) >> 10 for one in found}


def lists_mib():
    found, node = {}, ""
    for zone, pages in ZONE.findall(read("/proc/zoneinfo")):
        if zone:
            node = zone
        else:
            found[node] = found.get(node, 0) + int(pages) * PAGE_KIB
    return {node: amount >> 10 for node, amount in found.items()}


def container(directory):
    high = read(f"{directory}/memory.high").strip()
    anon = read(f"{directory}/memory.numa_stat").split("\n", 1)[0]
    return {
        "used": int(read(f"{directory}/memory.current")) // MIB,
        "high": None if high == "max" else int(high) // MIB,
        "anon": {node: int(amount) // MIB for node, amount in COLUMN.findall(anon) if int(amount) >= MIB},
    }


def containers(parent):
    found = {}
    for directory, below, _ in os.walk(parent):
        if not below:
            try:
                # CRI-O has its name before the id.
                name = os.path.basename(directory).rpartition("-")[2]
                found[name[:ID_LETTERS]] = container(directory)
            except OSError:
                continue  # It has just ended.
    return found


def main():
    nodes = sorted(name for name in os.listdir("/sys/devices/system/node") if re.fullmatch(r"node\d+", name))
    while True:
        line = {"s": round(time.monotonic(), 1), "free": free_mib(nodes), "lists": lists_mib()}
        print(json.dumps({**line, "containers": containers(sys.argv[1])}), flush=True)
        time.sleep(PAUSE_S)


main()
