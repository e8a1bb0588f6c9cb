"""Stands between a container runtime and an NRI plugin, and kills the plugin at a step of a creation:
``python3 kill_at.py LISTEN RUNTIME_SOCKET STEP_FILE``.

``STEP_FILE`` names the step, once it is there; it is removed when the plugin was killed. `request`: the
plugin is not told of the creation any more. `writing`: it has begun to write to its database. `record`:
another container is recorded. `cpusets`: it has written to the cpuset of a container. `reply`: the runtime
does not get what it replies. `start`: it is not told of the start that follows. `slowed`: it has bound what a
container may use. `pages`: a container has memory on each of several nodes. Standard library only.
"""

import ctypes
import os
import signal
import socket
import sqlite3
import struct
import sys
import threading
import time
from pathlib import Path

LISTEN, RUNTIME, STEP_FILE = sys.argv[1:]
STATE = Path("/var/lib/bayplan")
CGROUPS = Path("/sys/fs/cgroup/kubepods")
WATCHED = {
    "writing": (STATE, "state.db*"),
    "record": (STATE, "state.db*"),
    "cpusets": (CGROUPS, "**/cpuset.*s"),
    "slowed": (CGROUPS, "**/memory.high"),
}
IN_MODIFY = 2
# The method of a request, with its length, as others contain its name.
START = b"\x12\x0eStartContainer"
MANY_BYTES = 8 << 20


def killed(pid: int, step: str) -> None:
    os.kill(pid, signal.SIGKILL)
    Path(STEP_FILE).unlink()
    print(f"killed at {step}", flush=True)


def step_of(data: bytes) -> str:
    """The step at which the plugin is to be killed, if *data* has what it begins with."""
    try:
        step = Path(STEP_FILE).read_text().strip()
    except FileNotFoundError:
        return ""
    return step if (START if step == "start" else b"CreateContainer") in data else ""


def recorded() -> int:
    """How many containers are recorded."""
    database = sqlite3.connect(STATE / "state.db")
    try:
        return int(database.execute("SELECT count(*) FROM decisions WHERE current").fetchone()[0])
    finally:
        database.close()


def watched(pid: int, step: str) -> None:
    """Have the plugin killed when it has written what *step* says."""
    libc = ctypes.CDLL(None, use_errno=True)
    watch = libc.inotify_init1(os.O_CLOEXEC)
    directory, pattern = WATCHED[step]
    for path in directory.glob(pattern):
        libc.inotify_add_watch(watch, str(path).encode(), IN_MODIFY)
    before = recorded()

    def wait() -> None:
        os.read(watch, 4096)
        while step == "record" and recorded() == before:
            pass
        killed(pid, step)

    threading.Thread(target=wait, daemon=True).start()


def lies_on_several_nodes(numa_stat: Path) -> bool:
    """Whether a container has much anonymous memory on each of several nodes."""
    try:
        line = next(one for one in numa_stat.read_text().splitlines() if one.startswith("anon "))
    except (OSError, StopIteration):
        return False
    return sum(int(one.partition("=")[2]) > MANY_BYTES for one in line.split()[1:]) > 1


def followed(pid: int) -> None:
    """Have the plugin killed when a container has memory on several nodes."""

    def wait() -> None:
        while not any(map(lies_on_several_nodes, CGROUPS.glob("pod*/*/memory.numa_stat"))):
            time.sleep(0.005)
        killed(pid, "pages")

    threading.Thread(target=wait, daemon=True).start()


class Connection:
    def __init__(self, plugin: socket.socket) -> None:
        credentials = plugin.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        self.pid = struct.unpack("3i", credentials)[0]
        self.plugin, self.runtime = plugin, socket.socket(socket.AF_UNIX)
        self.runtime.connect(RUNTIME)
        self.holds_reply = False
        for pump in (self.to_plugin, self.to_runtime):
            threading.Thread(target=pump, daemon=True).start()

    def to_plugin(self) -> None:
        while data := received(self.runtime):
            step = step_of(data)
            if step in ("request", "start"):
                killed(self.pid, step)
            elif step in WATCHED:
                watched(self.pid, step)
            elif step == "pages":
                followed(self.pid)
            self.holds_reply = step == "reply"
            sent(self.plugin, data)
        closed(self.plugin)

    def to_runtime(self) -> None:
        while data := received(self.plugin):
            if self.holds_reply:
                killed(self.pid, "reply")
                break
            sent(self.runtime, data)
        closed(self.runtime)


def received(one: socket.socket) -> bytes:
    try:
        return one.recv(1 << 20)
    except OSError:
        return b""


def sent(one: socket.socket, data: bytes) -> None:
    try:
        one.sendall(data)
    except OSError:
        return


def closed(one: socket.socket) -> None:
    try:
        one.shutdown(socket.SHUT_RDWR)
    except OSError:
        return


listener = socket.socket(socket.AF_UNIX)
listener.bind(LISTEN)
listener.listen()
print("listening", flush=True)
while True:
    Connection(listener.accept()[0])
