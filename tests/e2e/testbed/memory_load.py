"""Containers that use memory as on a full node, and what became of it: kills, watermarks, faults."""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from signal import SIGTERM
from typing import Any, Self

from testbed import gobuild
from testbed.crictl import Running
from testbed.node import Node
from testbed.pods import BEST_EFFORT_OOM_SCORE_ADJ, MIB, Pod

DIRECTORY = "/run/testbed/memory-load"
INSIDE = "/memory-load"
GATE = "go"
WATCH = Path(__file__).parent / "programs" / "memory_watch.py"
SERVICE = "memory-watch"
LOG = "/run/testbed/memory-watch.log"
_KILLED = re.compile(r"Killed process (\d+) \(([^)]*)\).*oom_score_adj:(-?\d+)")
_CHOSEN = re.compile(r"oom-kill:constraint=(\w+).*?mems_allowed=([\d,-]*).*?task_memcg=([^,]*),.*?pid=(\d+)")
# As the units of containerd and kubelet have it.
_PROTECT = """
for pid in $(pidof containerd) $(pgrep -f agent.py); do echo -999 >/proc/$pid/oom_score_adj; done
"""


@dataclass(frozen=True, slots=True)
class Kill:
    """A process that the kernel killed for memory. Who is BestEffort was promised nothing. ``constraint``
    says what had none left: a cpuset, a memory policy, a cgroup or the machine; ``nodes`` are those of who
    asked, ``cgroup`` that of who was killed."""

    pid: int
    program: str
    oom_score_adj: int
    constraint: str = ""
    nodes: str = ""
    cgroup: str = ""

    @property
    def of_a_claim(self) -> bool:
        """Whether it was promised memory, or is the machine's own."""
        return self.oom_score_adj < BEST_EFFORT_OOM_SCORE_ADJ


def kills(node: Node) -> list[Kill]:
    """All since the boot, by the kernel's log."""
    log = node.guest.run("dmesg").stdout
    chosen = {pid: why for *why, pid in _CHOSEN.findall(log)}
    # With memory.oom.group the kernel names the one that it chose a second time.
    found = (
        Kill(int(pid), program, int(score), *chosen.get(pid, ()))
        for pid, program, score in _KILLED.findall(log)
    )
    return list(dict.fromkeys(found))


def install(node: Node) -> None:
    """Have the program in the guest, and its services protected as their units would do it: what the agent
    starts from now on is protected as well."""
    node.guest.write(f"{DIRECTORY}/memory_load", gobuild.memory_load().read_bytes(), mode=0o755)
    node.guest.run("sh", "-c", _PROTECT)


def let_go(node: Node) -> None:
    """Have the programs begin."""
    node.guest.write(f"{DIRECTORY}/{GATE}", "")


def using(pod: Pod, *programs: Sequence[str | int]) -> Pod:
    """The same pod, whose container runs the program with these words once it is let go; a BestEffort one may
    run it several times, and starts again what the kernel killed."""
    (container,) = pod.containers
    begin = (f"{INSIDE}/memory_load", "after", f"{INSIDE}/{GATE}")
    commands = [(*begin, *map(str, words)) for words in programs]
    if container.oom_score_adj == BEST_EFFORT_OOM_SCORE_ADJ:
        loops = [f"while :; do {' '.join(command)}; /bin/sleep 1; done" for command in commands]
        commands = [("/bin/sh", "-c", " & ".join(loops))]
    (command,) = commands
    return pod.with_containers(replace(container, command=command, mounts={INSIDE: DIRECTORY}))


def varying(low_mib: int, high_mib: int, rate_mib: int) -> tuple[str | int, ...]:
    """Anonymous memory between these, at so much per second."""
    return "vary", low_mib * MIB, high_mib * MIB, rate_mib * MIB


def said(node: Node, running: Running) -> dict[str, Any]:
    """What the program of a container said last."""
    lines = node.crictl.logs(running).splitlines()
    # containerd begins each line with time, stream and a tag.
    found: dict[str, Any] = json.loads(lines[-1].split(" ", 3)[3]) if lines else {}
    return found


class MemoryWatch:
    """Looks at nodes, and at the containers *confined* to some of them, while the block runs; then the fields
    have what was seen."""

    def __init__(self, node: Node, confined: Iterable[Running]) -> None:
        self._node = node
        views = [node.view(one) for one in confined]
        self._promised = {view.cgroup: sorted(view.mems_allowed) for view in views}
        self.below_low_s: dict[int, float] = {}
        self.seconds = 0.0
        self.longest_s = 0.0
        self.lowest_share = 1.0

    def __enter__(self) -> Self:
        guest, path = self._node.guest, f"/run/testbed/{WATCH.name}"
        guest.write(path, WATCH.read_text())
        guest.run("rm", "-f", LOG)
        guest.start(SERVICE, "python3", path, json.dumps(self._promised), log=LOG)
        guest.await_text(LOG, "looking")
        return self

    def __exit__(self, *_: object) -> None:
        self._node.guest.signal(SERVICE, SIGTERM)
        seen = json.loads(self._node.guest.read(LOG).splitlines()[-1])
        self.below_low_s = {int(node): amount for node, amount in seen["below_low_s"].items()}
        self.seconds, self.longest_s = seen["seconds"], seen["longest_s"]
        self.lowest_share = min(seen["lowest_share"].values(), default=1.0)
