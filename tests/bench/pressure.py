"""What it costs to know whether every node can give what was promised on it: CPU time of a minute at rest.

250 containers on 8 nodes, as files of a temporary directory: the daemon's own
part, its reading and working out. What the kernel takes to make the real files is added from this machine's.
"""

import asyncio
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from table import Row

from bayplan.config.settings import MemoryPressure
from bayplan.daemon.memory_pressure import LOOK_S, PressureWatch
from bayplan.daemon.page_relief import PageRelief
from bayplan.model.decision import QosClass
from bayplan.model.resources import Resources
from bayplan.quantity import GIB, MIB
from support.controllers import controlled, here
from support.live_nodes import LiveNodes
from support.machines import container, machine, pod
from support.oci_node import OciNode

NODES, CONTAINERS, SECONDS = 8, 250, 60
MOST_SHARE = 0.005


def rows() -> Iterator[Row]:
    """A minute at rest."""
    with tempfile.TemporaryDirectory() as scratch:
        total_ms = asyncio.run(measure(Path(scratch)))
    name = f"CPU of {SECONDS} s of looks at {NODES} nodes, {CONTAINERS} containers"
    yield Row(name, [total_ms], most=MOST_SHARE * SECONDS * 1000)


async def measure(directory: Path) -> float:
    """Milliseconds of CPU of a minute at rest."""
    live = LiveNodes(OciNode(directory / "root"), dict.fromkeys(range(NODES), 64 * GIB))
    now_s = 0.0
    async with controlled(directory / "state", on=machine(NODES, 16, 64 * GIB), became=None) as one:
        watch = PressureWatch(
            one.controller.state,
            live.node.hierarchy,
            here,
            MemoryPressure.RELIEVE,
            PageRelief(live.node.hierarchy, GIB),
            one.promised_nodes(live.node.hierarchy, lambda: now_s),
            clock_s=lambda: now_s,
        )
        for number in range(CONTAINERS):
            confined = number % 3 == 0
            owner = pod(f"p{number}", QosClass.GUARANTEED if confined else QosClass.BURSTABLE)
            if confined:
                made = container(f"c{number}", owner, memory_bytes=GIB, milli_cpus=500)
            else:
                made = container(f"c{number}", owner, resources=Resources(cpu_shares=512), oom_score_adj=998)
            await one.controller.create_container(owner, made)
            mems = one.controller.state.ledger.entries[made.id].decision.placement.mems
            # Where nothing is promised to anybody else, so that nothing has to be moved.
            there = {4 + number % 4: 300 * MIB, 4 + (number + 1) % 4: 20 * MIB}
            if confined and mems is not None:
                there = {next(iter(mems)): 300 * MIB}
            directory_of = f"{owner.cgroup_parent}/c{number}"
            live.held[directory_of] = there
            live.node.make_cgroup(directory_of)
        live.write()
        await watch.look()
        looks_ms = []
        for _ in range(int(SECONDS / LOOK_S)):
            now_s += LOOK_S
            looks_ms.append(await _cpu_ms(watch))
    return sum(looks_ms) + len(looks_ms) * _kernel_ms() * NODES


async def _cpu_ms(watch: PressureWatch) -> float:
    begun = time.process_time()
    if watch.is_look_due():
        await watch.look()
    return (time.process_time() - begun) * 1000


def _kernel_ms() -> float:
    """What it takes to read the real meminfo of a node."""
    path = Path("/sys/devices/system/node/node0/meminfo")
    if not path.exists():
        return 0.0
    descriptor = os.open(path, os.O_RDONLY)
    begun = time.process_time()
    for _ in range(200):
        os.pread(descriptor, 4096, 0)
    taken_s = time.process_time() - begun
    os.close(descriptor)
    return taken_s * 1000 / 200
