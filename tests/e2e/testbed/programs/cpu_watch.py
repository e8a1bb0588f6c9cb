"""Sent to the guest and run there: says on which CPUs the processes of containers may run, at each change.

One JSON array per line: seconds of the monotonic clock, process id, the container's id, the process's name,
the list of CPUs. A process that is gone has an empty list; at SIGTERM, after a last look, all have. Standard
library only.
"""
# ruff: noqa: PTH123, PTH208

import json
import os
import re
import signal
import time

ID = re.compile(r"[0-9a-f]{64}")
KEPT = ("Name", "Cpus_allowed_list")


def look():
    """Process id -> what is said of it, for all processes in cgroups of containers."""
    found = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/cgroup") as file:
                ids = ID.findall(file.read())
            if not ids:
                continue
            with open(f"/proc/{name}/status") as file:
                fields = dict(line.rstrip("\n").split(":\t", 1) for line in file if line.startswith(KEPT))
        except (FileNotFoundError, ProcessLookupError):
            continue
        found[int(name)] = (ids[-1], *(fields[key] for key in KEPT))
    return found


def main():
    asked_to_end = []
    signal.signal(signal.SIGTERM, lambda *_: asked_to_end.append(True))
    last, ended = {}, False
    while not ended:
        ended = bool(asked_to_end)
        now, found = time.monotonic(), look()
        for pid, said in found.items():
            if last.get(pid) != said:
                print(json.dumps([now, pid, *said]), flush=True)
        for pid in last if ended else last.keys() - found.keys():
            print(json.dumps([now, pid, *last[pid][:2], ""]), flush=True)
        last = found
        time.sleep(0.001)


main()
