"""Pods that are made at the same moment, and who was allowed on whose CPUs meanwhile."""

import json
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from signal import SIGTERM
from typing import Self

from testbed.channel import LIMIT_S
from testbed.crictl import Running
from testbed.guest import Guest
from testbed.kernel import parse_ids
from testbed.node import POLL_S, Node
from testbed.pods import Pod

PROGRAM = Path(__file__).parent / "programs" / "cpu_watch.py"
SERVICE = "cpu-watch"
LOG = "/run/testbed/cpu-watch.log"
RUNTIMES_OWN = re.compile(r"/$|/(usr/s?bin/|memfd:)?(runc|crun)")
"""The programs that an OCI runtime executes in a cgroup before it starts the container: itself, or a copy in
memory, in an overlay (runc) or in a mount that is nowhere (crun, hence the mere slash). The names of their
processes say nothing: one is called 6, after a descriptor."""


@dataclass(frozen=True, slots=True)
class Allowed:
    """A process was allowed on these CPUs: by the guest's clock seen there from ``begin_s`` to ``last_s``,
    and at ``end_s`` no more. ``program`` is the path of what it executes."""

    container_id: str
    program: str
    cpus: frozenset[int]
    begin_s: float
    last_s: float
    end_s: float

    @property
    def starting(self) -> bool:
        """Whether the OCI runtime is still to start the container's own program."""
        return RUNTIMES_OWN.match(self.program) is not None


@dataclass(frozen=True, slots=True)
class Overlap:
    """A process of another container that was allowed on an owner's CPUs while that ran, for at most
    ``seconds``, and at least for ``seen_s``."""

    owner: str
    other: Allowed
    seconds: float
    seen_s: float


class CpuWatch:
    """Looks at all processes of containers while the block runs; then `overlaps` can be asked for."""

    def __init__(self, guest: Guest) -> None:
        self._guest = guest
        self._seen: list[Allowed] = []
        self._looks = ""

    def __enter__(self) -> Self:
        path = f"/run/testbed/{PROGRAM.name}"
        self._guest.write(path, PROGRAM.read_text())
        self._guest.run("rm", "-f", LOG)
        self._guest.start(SERVICE, "python3", path, log=LOG)
        return self

    def __exit__(self, *_: object) -> None:
        self._guest.signal(SERVICE, SIGTERM)
        log = self._guest.read(LOG)
        self._seen, self._looks = _intervals(log), log.rstrip("\n").rpartition("\n")[2]

    def await_programs(self, container_ids: Iterable[str], *, limit_s: float = LIMIT_S) -> None:
        """Wait until the own program of each container was seen: `crictl start` ends before it begins."""
        missing, deadline = set(container_ids), time.monotonic() + limit_s
        while missing:
            assert time.monotonic() < deadline, f"the programs of the containers {missing} were never seen"
            time.sleep(POLL_S)
            seen = _intervals(self._guest.read(LOG))
            missing -= {one.container_id for one in seen if not one.starting}

    def overlaps(self, owners: Mapping[str, Iterable[int]], others: Iterable[str]) -> list[Overlap]:
        """Which of the containers *others* were on the CPUs of *owners* (container id -> its own CPUs), from
        the start of the owner's program to its end. A pod's own container is nobody's to place."""
        counted = set(others)
        found = []
        for owner, cpus in owners.items():
            own = [one for one in self._seen if one.container_id == owner and not one.starting]
            begin_s, end_s = min(one.begin_s for one in own), max(one.end_s for one in own)
            for other in self._seen:
                first_s = max(other.begin_s, begin_s)
                seconds = min(other.end_s, end_s) - first_s
                seen_s = max(0.0, min(other.last_s, end_s) - first_s)
                if other.container_id not in counted - {owner}:
                    continue
                if seconds > 0 and other.cpus & frozenset(cpus):
                    found.append(Overlap(owner, other, seconds, seen_s))
        return found

    def measured(self, overlaps: Iterable[Overlap]) -> str:
        """For people: for how long each container was there before its start, and how often was looked."""
        found: dict[str, tuple[float, float]] = {}
        for one in overlaps:
            if one.other.starting:
                key = f"{one.other.container_id[:6]} {one.other.program}"
                found[key] = max(found.get(key, (0.0, 0.0)), (one.seconds, one.seen_s))
        texts = [f"{key} seen for {seen:.3f}, at most {most:.3f}" for key, (most, seen) in found.items()]
        return f"before their start, in s: {texts or 'none'}; looks: {self._looks}"


def _intervals(log: str) -> list[Allowed]:
    """What the watch wrote, as stretches of time; while it runs the last line may be cut."""
    seen: list[Allowed] = []
    open_since: dict[int, tuple[float, str, str, str]] = {}
    now_s = 0.0
    for line in log.split("\n")[:-1]:
        if line.startswith("{"):
            break
        before_s, now_s, pid, container_id, program, cpus = json.loads(line)
        if pid in open_since:
            begin_s, *was = open_since.pop(pid)
            seen.append(_allowed(*was, begin_s, max(begin_s, before_s), now_s))
        if cpus:
            open_since[pid] = (now_s, container_id, program, cpus)
    for begin_s, *was in open_since.values():
        seen.append(_allowed(*was, begin_s, now_s, now_s))
    return seen


def _allowed(
    container_id: str, program: str, cpus: str, begin_s: float, last_s: float, end_s: float
) -> Allowed:
    return Allowed(container_id, program, frozenset(parse_ids(cpus)), begin_s, last_s, end_s)


def run_sandboxes(node: Node, pods: Sequence[Pod], *, handler: str = "") -> list[str]:
    """Their sandboxes, one after the other."""
    return [node.crictl.run_sandbox(pod, handler=handler) for pod in pods]


def launch_at_once(node: Node, pods: Sequence[Pod], sandboxes: Sequence[str]) -> list[Running]:
    """Create and start the only container of each pod in its sandbox, each with a crictl of its own."""

    def launched(pod: Pod, sandbox_id: str) -> Running:
        (container,) = pod.containers
        container_id = node.crictl.create(sandbox_id, pod, container)
        node.crictl.start(container_id)
        return Running(pod, sandbox_id, {container.name: container_id})

    with ThreadPoolExecutor(len(pods)) as pool:
        return list(pool.map(launched, pods, sandboxes))


def exclusive_cpus(node: Node) -> dict[str, frozenset[int]]:
    """By the status: container id -> CPUs of its own, for those that have some."""
    entries = node.bayplan.status()["containers"]
    return {one["id"]: frozenset(parse_ids(one["cpus"])) for one in entries if one["cpusExclusive"]}
