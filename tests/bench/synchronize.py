"""What a Synchronize and a decision cost: the real daemon as its own process, a fake runtime speaking NRI.

`make bench` prints the table. Every number is of one run, so only compare numbers of the same run. What the
creation of a container costs is measured with the Go side of NRI: tests/bench/creation.py.
"""

import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from bayplan._proto.nri import api_pb2 as pb
from bayplan.engines.exact.engine import ExactEngine
from bayplan.model.decision import NodeWish, Outcome, QosClass
from bayplan.model.ledger import Entry, Ledger
from bayplan.model.policy import PlacementPolicy
from bayplan.model.request import derive_request
from bayplan.quantity import GIB
from bayplan.sets import NodeSet
from support.flavors import CONTAINERD_2_3
from support.machines import container, machine, pod
from support.runtime import FakeRuntime
from support.workloads import BEST_EFFORT, make_container, make_pod

SYNCHRONIZED_CONTAINERS: Final = 1000
CONTAINER_BYTES: Final = 10_000
DECISIONS: Final = 300

Row = tuple[str, str, str]


def main() -> int:
    """Run everything and print it."""
    rows = asyncio.run(_synchronization()) + _decisions()
    width = max(len(row[0]) for row in rows)
    print(f"{'':{width}}  {'median':>12}  {'p99':>12}")
    for name, median, p99 in rows:
        print(f"{name:{width}}  {median:>12}  {p99:>12}")
    return 0


@asynccontextmanager
async def _daemon(runtime: FakeRuntime, directory: Path) -> AsyncIterator[subprocess.Popen[bytes]]:
    """A baypland process that is connected to *runtime*."""
    await runtime.listen(directory / "nri.sock")
    argv = [sys.executable, "-m", "bayplan.daemon.main", "--nri-socket", directory / "nri.sock"]
    argv += ["--state-dir", directory / "state", "--admin-socket", directory / "admin.sock"]
    argv += ["--oci-socket", "none"]
    log = (directory / "log").open("wb")
    process = subprocess.Popen([*map(str, argv), "--log-format", "json"], stderr=log)  # noqa: ASYNC220 - to start it takes no time
    try:
        await asyncio.wait_for(runtime.synchronized(), 30)
        yield process
    finally:
        await runtime.stop()
        process.terminate()
        process.wait(30)
        log.close()


async def _synchronization() -> list[Row]:
    """A runtime with many large containers: Synchronize after each of five reconnections."""
    times_ms = []
    with tempfile.TemporaryDirectory() as scratch:
        runtime = FakeRuntime(CONTAINERD_2_3)
        for number in range(SYNCHRONIZED_CONTAINERS):
            owner = make_pod(f"pod-{number}", qos=BEST_EFFORT)
            runtime.pods[owner.id] = owner
            one = make_container(owner, oom_score_adj=1000, ballast_bytes=CONTAINER_BYTES)
            one.state = pb.CONTAINER_RUNNING
            runtime.containers[one.id] = one
        async with _daemon(runtime, Path(scratch)) as process:
            for number in range(2, 7):
                before = runtime.plugins[0]
                before.drop("measured")
                await runtime.abandoned(number - 1)
                while not runtime.plugins or runtime.plugins[0] is before:  # noqa: ASYNC110 - seen from outside
                    await asyncio.sleep(0.001)
                times_ms.append(runtime.synchronize_s[-1] * 1000)
            resident_mib = _resident_mib(process.pid)
            log = [json.loads(line) for line in (Path(scratch) / "log").read_text().splitlines()]
    assert sum(line["msg"] == "synchronized" for line in log) >= len(times_ms)
    name = f"Synchronize, {SYNCHRONIZED_CONTAINERS} containers of {CONTAINER_BYTES // 1000} kB"
    return [(name, *_milliseconds(times_ms)), ("resident memory afterwards", f"{resident_mib:.1f} MiB", "")]


def _decisions() -> list[Row]:
    """The engine alone on machines that are in use: one container comes and another goes each time, so that
    no decision is about a ledger that was seen before."""
    rows = []
    for nodes, population in ((2, 100), (8, 400), (64, 1000)):
        rows.append(_decision(nodes, population))
    rows.append(_decision(8, 400, crossing=True))
    return rows


def _decision(nodes: int, population: int, *, crossing: bool = False) -> Row:
    """With *crossing* every container wishes a pair of neighbours, so that all sets with promises cross
    others and the search has to solve flows."""
    hardware = machine(nodes, cpus_per_node=8, memory_bytes=64 * GIB)
    owner = pod("p", QosClass.GUARANTEED)
    engine, policy, ledger = ExactEngine(), PlacementPolicy(), Ledger()
    times_ms = []
    for number in range(population + DECISIONS):
        one = container(f"c{number}", owner, memory_bytes=nodes * 40 * GIB // population, milli_cpus=500)
        request = derive_request(owner, one, hardware.memory_bytes)
        if crossing and number < population:
            pair = NodeSet([number % nodes, (number + 1) % nodes])
            request = replace(request, nodes=NodeWish(pair, required=True))
        started = time.perf_counter()
        decision = engine.decide(hardware, policy, ledger, request)
        times_ms.append((time.perf_counter() - started) * 1000)
        assert decision.outcome is Outcome.PLACED
        ledger = ledger.with_entry(Entry(decision))
        if number >= population:
            ledger = ledger.without(f"c{number - population}")
    name = f"decision alone, {nodes} nodes, {population} containers{', crossing sets' if crossing else ''}"
    return name, *_milliseconds(times_ms[population:])


def _milliseconds(times_ms: list[float]) -> tuple[str, str]:
    p99 = sorted(times_ms)[min(len(times_ms) - 1, len(times_ms) * 99 // 100)]
    return f"{statistics.median(times_ms):.3f} ms", f"{p99:.3f} ms"


def _resident_mib(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise AssertionError("no VmRSS in /proc/PID/status")


if __name__ == "__main__":
    sys.exit(main())
