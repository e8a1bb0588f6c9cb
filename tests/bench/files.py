"""What it costs to tell 4000 containers what they were given."""

import asyncio
import resource
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path

from msgspec.structs import replace
from table import Row

from bayplan.control.container_files import PlacementFileWriter
from bayplan.control.state import Current
from bayplan.control.threads import WorkThread
from bayplan.engines.exact.engine import ExactEngine
from bayplan.host.placement_files import PlacementDirectory
from bayplan.model.decision import Claim, Decision, Outcome, Placement
from bayplan.model.ledger import Entry, Ledger
from bayplan.model.policy import PlacementPolicy
from bayplan.sets import CpuSet, NodeSet
from support.machines import machine
from support.requests import guaranteed_request

CONTAINERS = 4000
MACHINE = machine(4, cpus_per_node=32)


def entry(number: int, cpus: CpuSet = CpuSet()) -> Entry:
    request = replace(guaranteed_request(f"{number:064x}"), placement_file=True)
    claim = Claim(NodeSet([number % 4]), {"memory": 1 << 20})
    return Entry(Decision(request, Outcome.PLACED, Placement(claim.nodes, cpus, claim=claim)))


def rows() -> Iterator[Row]:
    """Creation, a change of the shared CPUs, a change that concerns nobody, a look at all directories."""
    yield from asyncio.run(_measured())


async def _measured() -> list[Row]:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as root:
        thread = WorkThread("files")
        basis = Current(
            MACHINE, PlacementPolicy(), Ledger.of(entry(one) for one in range(CONTAINERS)), ExactEngine()
        )
        files = PlacementFileWriter(
            PlacementDirectory(Path(root)), thread.do, lambda: basis, lambda _: False, lambda: True,
            Counter(),
        )  # fmt: skip
        before_mib = _resident_mib()
        made = await _ms(files.update)
        resident_mib = _resident_mib() - before_mib
        creations, changes, waits = list[float](), list[float](), list[float]()
        for number in range(100):
            new = entry(CONTAINERS + number)
            creations.append(await _ms(partial(files.prepare, MACHINE, basis.shared_cpus, new)))
        beside = asyncio.create_task(_wait(waits))
        for number in range(5):
            owner = entry(2 * CONTAINERS, CpuSet([7 + number]))
            basis = basis.with_ledger(basis.ledger.with_entry(owner))
            changes.append(await _ms(files.update))
        beside.cancel()
        found = [
            Row("placement file of a new container", creations),
            Row(f"the files of {CONTAINERS} containers", [made]),
            Row("all of them replaced", changes),
            Row("the event loop's waiting meanwhile", waits),
            Row("a change that concerns none of them", [await _ms(files.update) for _ in range(9)]),
            Row("a look at all directories", [await _ms(files.sweep) for _ in range(9)]),
            Row("memory of the files", [_size_mib(Path(root))], unit="MiB"),
            Row("inodes of files and directories", [_inodes(Path(root))], unit=""),
            Row("memory of the process for them", [resident_mib], unit="MiB"),
        ]
        thread.end()
        return found


async def _ms(work: Callable[[], Awaitable[object]]) -> float:
    begun_s = time.perf_counter()
    await work()
    return (time.perf_counter() - begun_s) * 1000


async def _wait(waits: list[float]) -> None:
    while True:
        waits.append(await _ms(partial(asyncio.sleep, 0.001)) - 1)


def _resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / (1 << 20)


def _inodes(root: Path) -> int:
    return sum(1 for _ in root.rglob("*"))


def _size_mib(root: Path) -> float:
    return sum(one.stat().st_blocks * 512 for one in root.glob("*/*")) / (1 << 20)
