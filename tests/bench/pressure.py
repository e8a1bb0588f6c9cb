"""What it costs to know whether every node can give what was promised on it: CPU time of a minute at rest.

`make bench` prints the table. 250 containers on 8 nodes, as files of a temporary directory: the daemon's own
part, its reading and working out. What the kernel takes to make the real files is added from this machine's.
"""

import asyncio
import sys
import tempfile
import time
from pathlib import Path

from bayplan.config.settings import MemoryPressure
from bayplan.daemon.memory_pressure import LOOK_S, PressureWatch
from bayplan.daemon.page_relief import PageRelief
from bayplan.model.decision import QosClass
from bayplan.model.workload import Resources
from bayplan.quantity import GIB, MIB
from support.controllers import controlled, here
from support.live_nodes import LiveNodes
from support.machines import container, machine, pod
from support.oci_node import OciNode

NODES, CONTAINERS, SECONDS = 8, 250, 60
MOST_SHARE = 0.005


async def measure(directory: Path) -> None:
    """Measure everything and print it."""
    live = LiveNodes(OciNode(directory / "root"), dict.fromkeys(range(NODES), 64 * GIB))
    now_s = 0.0
    async with controlled(directory / "state", on=machine(NODES, 16, 64 * GIB)) as one:
        watch = PressureWatch(
            one.controller,
            live.node.hierarchy,
            here,
            MemoryPressure.RELIEVE,
            PageRelief(live.node.hierarchy, GIB),
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
            mems = one.controller.ledger.entries[made.id].decision.placement.mems
            # Where nothing is promised to anybody else, so that nothing has to be moved.
            there = {4 + number % 4: 300 * MIB, 4 + (number + 1) % 4: 20 * MIB}
            if confined and mems is not None:
                there = {next(iter(mems)): 300 * MIB}
            directory_of = f"{owner.cgroup_parent}/c{number}"
            live.held[directory_of] = there
            live.node.make_cgroup(directory_of)
        live.write()
        first_ms = await _cpu_ms(watch)
        looks_ms = []
        for _ in range(int(SECONDS / LOOK_S)):
            now_s += LOOK_S
            looks_ms.append(await _cpu_ms(watch))
    kernel_ms = _kernel_ms() * NODES
    total_ms = sum(looks_ms) + len(looks_ms) * kernel_ms
    share = total_ms / 1000 / SECONDS
    rows = {
        f"the first look, {CONTAINERS} containers on {NODES} nodes": first_ms,
        "a look at the nodes (median)": sorted(looks_ms)[len(looks_ms) // 2],
        "a look that counts what containers hold (slowest)": max(looks_ms),
        f"the kernel's part of a look at {NODES} nodes, by this machine": kernel_ms,
        f"{SECONDS} s at rest": total_ms,
    }
    width = max(map(len, rows))
    for name, amount_ms in rows.items():
        print(f"{name:{width}}  {amount_ms:8.2f} ms of CPU")
    print(f"{share:.2%} of one CPU at rest; at most {MOST_SHARE:.1%} is allowed")
    if share > MOST_SHARE:
        sys.exit("more than is allowed")


async def _cpu_ms(watch: PressureWatch) -> float:
    begun = time.process_time()
    await watch.look()
    return (time.process_time() - begun) * 1000


def _kernel_ms() -> float:
    """What it takes to read the real meminfo of a node."""
    path = Path("/sys/devices/system/node/node0/meminfo")
    if not path.exists():
        return 0.0
    begun = time.process_time()
    for _ in range(200):
        path.read_bytes()
    return (time.process_time() - begun) * 1000 / 200


def main() -> int:
    """Run in a directory of its own."""
    with tempfile.TemporaryDirectory() as scratch:
        asyncio.run(measure(Path(scratch)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
