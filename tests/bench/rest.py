"""What the daemon takes while nothing happens, beside containers with cgroups and a process in each.

The cgroups are this machine's, v1 or v2, whichever has the controllers, so it takes root; they are removed
again. What its memory is used for stands still: files mounted over sysfs and /proc/meminfo, of one node.
"""

import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, NamedTuple

from plugins import IN_NAMESPACE, machine_in
from table import Row

from bayplan.host.hierarchy import CPUSET, MEMORY, Hierarchy, container_path
from bayplan.quantity import GIB, MIB
from support.flavors import CONTAINERD_2_2
from support.machines import machine
from support.runtime import FakeRuntime
from support.workloads import BEST_EFFORT, BURSTABLE, GUARANTEED, make_container, make_pod

SETTLE_S = 40.0
"""What others hold is measured a few times before the daemon is at rest."""
REST_S = 60.0
MOST_MS = 20.0


def rows(populations: Sequence[int]) -> Iterator[Row]:
    """A minute at rest beside so many."""
    for population in populations:
        taken = asyncio.run(_rest(population))
        beside = f"{REST_S:g} s at rest, beside {population}"
        yield Row(f"CPU of {beside}", [taken.cpu_ms], most=MOST_MS)
        yield Row(f"reads of files in {beside}", [taken.reads], unit="")
        yield Row(f"wakings in {beside}", [taken.wakings], unit="")
        for thread, milliseconds in sorted(taken.by_thread_ms.items(), key=lambda one: -one[1]):
            if milliseconds >= MOST_MS / 100:
                yield Row(f"  CPU of these, thread {thread}", [milliseconds])


class Taken(NamedTuple):
    """What a process has taken since its start, or in a time."""

    reads: int
    wakings: int
    by_thread_ms: dict[str, float]

    @property
    def cpu_ms(self) -> float:
        return sum(self.by_thread_ms.values())

    @classmethod
    def of(cls, pid: int) -> "Taken":
        by_thread, wakings = dict[str, float](), 0
        for task in Path(f"/proc/{pid}/task").iterdir():
            name = f"{task.name} {(task / 'comm').read_text().strip()}"
            by_thread[name] = int((task / "schedstat").read_text().split()[0]) / 1e6
            wakings += _number(task / "status", "voluntary_ctxt_switches:")
        return cls(_number(Path(f"/proc/{pid}/io"), "syscr:"), wakings, by_thread)

    def since(self, before: "Taken") -> "Taken":
        by_thread = {key: ms - before.by_thread_ms.get(key, 0.0) for key, ms in self.by_thread_ms.items()}
        return Taken(self.reads - before.reads, self.wakings - before.wakings, by_thread)


def _number(path: Path, name: str) -> int:
    return next(int(line.split()[1]) for line in path.read_text().splitlines() if line.startswith(name))


async def _rest(population: int) -> Taken:
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as made:
        directory, runtime = Path(scratch), FakeRuntime(CONTAINERD_2_2)
        await runtime.listen(directory / "nri.sock")
        seen = machine_in(directory, machine(1, os.cpu_count() or 1, 64 * GIB))
        argv = [
            *IN_NAMESPACE,
            seen,
            sys.executable,
            "-m",
            "bayplan.daemon.baypland",
            "--nri-socket",
            directory / "nri.sock",
        ]
        argv += ["--state-dir", directory / "state", "--admin-socket", directory / "admin.sock"]
        argv += ["--placement-directory", directory / "placement"]
        argv += ["--oci-socket", "none", "--agent-socket", "none", "--log-format", "json"]
        with (directory / "log").open("wb") as log:
            daemon = _started([*map(str, argv)], log)
        made.callback(daemon.wait, 30)
        made.callback(daemon.terminate)
        try:
            async with asyncio.timeout(60):
                await runtime.synchronized()
            for number in range(population):
                await _run(runtime, number, made)
            await asyncio.sleep(SETTLE_S)
            before = Taken.of(daemon.pid)
            await asyncio.sleep(REST_S)
            return Taken.of(daemon.pid).since(before)
        finally:
            await runtime.stop()


async def _run(runtime: FakeRuntime, number: int, made: ExitStack) -> None:
    """A container that exists, with a process."""
    qos = (GUARANTEED, BURSTABLE, BEST_EFFORT)[number % 3]
    pod = make_pod(f"rest-{number}", qos=qos)
    if qos == GUARANTEED:
        one = make_container(
            pod, memory_limit_bytes=MIB, cpu_shares=10, cpu_quota_us=1000, oom_score_adj=-997
        )
    else:
        one = make_container(
            pod,
            cpu_shares=2,
            memory_limit_bytes=MIB if qos == BURSTABLE else None,
            oom_score_adj=999 if qos == BURSTABLE else 1000,
        )
    process = _started(["sleep", "infinity"])
    made.callback(process.wait)
    made.callback(process.kill)
    cgroup = container_path(one.linux.cgroups_path)
    await runtime.create_container(pod, one)
    made.enter_context(_cgroups(cgroup, process.pid))
    await runtime.start_container(one.id, process.pid)


def _started(argv: Sequence[str], log: IO[bytes] | None = None) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(argv, stderr=log, stdout=log)


@contextmanager
def _cgroups(cgroup: str, pid: int) -> Iterator[None]:
    """*cgroup* with a process in each hierarchy that counts. Those above it stay until the last one goes."""
    hierarchy, made = Hierarchy.detect(), list[Path]()
    for mount in {Path(hierarchy.mounts[one]) for one in (CPUSET, MEMORY)}:
        below = mount
        for part in cgroup.strip("/").split("/"):
            if (control := below / "cgroup.subtree_control").exists():
                control.write_text("+cpuset +memory")
            parent, below = below, below / part
            if not below.exists():
                below.mkdir()
                made.append(below)
            for name in ("cpuset.cpus", "cpuset.mems"):
                if (parent / name).exists() and not (below / name).read_text().strip():
                    (below / name).write_text((parent / name).read_text())
        (below / "cgroup.procs").write_text(str(pid))
        made.append(below)
    try:
        yield
    finally:
        for mount in {Path(hierarchy.mounts[one]) for one in (CPUSET, MEMORY)}:
            (mount / "cgroup.procs").write_text(str(pid))
        for one in dict.fromkeys(reversed(made)):
            one.rmdir()
