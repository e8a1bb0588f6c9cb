"""Sent to the guest and run there: says on which CPUs the processes of containers may run, at each change.

One JSON array per line: seconds of the monotonic clock at the look before and at this one, process id, the
container's id, the path of the process's program, the list of CPUs. A process that is gone has an empty list;
at SIGTERM, after a last look, all have. The last line is an object: how many looks there were, and the median
and the longest time between two. Standard library only.
"""
# ruff: noqa: PTH115, PTH123, PTH208 - as little as possible is imported in the guest

import itertools
import json
import os
import re
import signal
import statistics
import time

ID = re.compile(r"[0-9a-f]{64}")
MONITOR = "/crio-conmon-"
"""The cgroup of CRI-O's own program beside a container has the container's id, too."""
CPUS = "Cpus_allowed_list:\t"


def kernel_threads():
    """The names in /proc of those that exist now; they never get into a container."""
    return {name for name in os.listdir("/proc") if name.isdigit() and not program_of(name)}


def program_of(name):
    """The path of the file that the process executes; empty for a kernel thread and what has ended."""
    try:
        return os.readlink(f"/proc/{name}/exe")
    except OSError:
        return ""


def look(left_out):
    """Process id -> what is said of it, for all processes in cgroups of containers."""
    found = {}
    for name in os.listdir("/proc"):
        if not name.isdigit() or name in left_out:
            continue
        try:
            with open(f"/proc/{name}/cgroup") as file:
                cgroup = file.read()
            ids = ID.findall(cgroup)
            if not ids or MONITOR in cgroup:
                continue
            # In this order: what a program is allowed is known when it is that program already.
            program = program_of(name)
            with open(f"/proc/{name}/status") as file:
                (cpus,) = (line[len(CPUS) : -1] for line in file if line.startswith(CPUS))
        except (FileNotFoundError, ProcessLookupError):
            continue
        if program:
            found[int(name)] = (ids[-1], program, cpus)
    return found


def main():
    asked_to_end = []
    signal.signal(signal.SIGTERM, lambda *_: asked_to_end.append(True))
    last, looks_at, ended, left_out = {}, [], False, kernel_threads()
    while not ended:
        ended = bool(asked_to_end)
        now, found = time.monotonic(), look(left_out)
        before = looks_at[-1] if looks_at else now
        looks_at.append(now)
        for pid, said in found.items():
            if last.get(pid) != said:
                print(json.dumps([before, now, pid, *said]), flush=True)
        for pid in last if ended else last.keys() - found.keys():
            print(json.dumps([before, now, pid, *last[pid][:2], ""]), flush=True)
        last = found
        time.sleep(0.001)
    between = [after - before for before, after in itertools.pairwise(looks_at)] or [0.0]
    told = {"looks": len(looks_at), "median_s": statistics.median(between), "longest_s": max(between)}
    print(json.dumps(told), flush=True)


main()
