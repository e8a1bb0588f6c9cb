"""What agents cost the API server: ``python tests/bench/api_server_load.py [--agents N] ...``.

Kubernetes' API server and etcd run on this machine, and N agents in this process: the agent's whole code,
each beside a daemon's controller with a real ledger. Counted is by the API server's audit log and metrics, so
that it does not depend on how fast this machine is; rows for more nodes are these counts times as many.
"""

import argparse
import asyncio
import json
import logging
import random
import sys
import tempfile
import time
from collections.abc import Awaitable, Sequence
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).parents[1] / "e2e"))

from testbed import kubernetes

from support.agent_fleet import SLICES, Asked, Fleet, Metrics, counted, first_by_node, fleet, most_in_a_second
from support.cluster_agents import TOPOLOGIES
from support.control_plane import running_control_plane

NODES: Final = (1_000, 5_000, 10_000)
PODS_PER_S: Final = 100
"""That start, and as many that end, in all of a cluster: what one scheduler does when it is busy."""
LINGER_S: Final = 4.0
_SETTLE_S: Final = 3.0
_RESIDENT: Final = "process_resident_memory_bytes"


async def measure(agents: Fleet, options: argparse.Namespace) -> None:
    """Print what each phase costs."""
    count, began_s, empty = len(agents.members), time.monotonic(), agents.metrics()
    await agents.published()
    await asyncio.sleep(_SETTLE_S)
    _show(f"start of {count} agents, {time.monotonic() - began_s:.0f} s", agents.asked(), count, "agent")
    _show_objects(agents)

    rest = await _during(agents, asyncio.sleep(options.rest_s))
    _show(f"at rest, {options.rest_s:g} s", rest, count, "agent")
    metrics = agents.metrics()
    open_watches = metrics.sum("apiserver_longrunning_requests", 'verb="WATCH"', 'resource="pods"')
    open_watches += metrics.sum("apiserver_longrunning_requests", 'verb="WATCH"', 'resource="resourceslices"')
    more_bytes = metrics.sum(_RESIDENT) - empty.sum(_RESIDENT)
    print(f"  watches open: {open_watches / count:.2f} per agent")
    print(f"  the API server's memory: {more_bytes / count / 1024:.0f} KiB more per agent")

    lives = await _during(agents, _lives(agents, options.lives))
    _show(f"{options.lives} pods that come, run for {LINGER_S:g} s and go", lives, options.lives, "pod")
    written_bytes = _written_bytes(agents.metrics()) - _written_bytes(metrics)
    print(f"  sent of both objects: {written_bytes / options.lives / 1024:.1f} KiB per pod")

    refusals = [agents.refuse(member, options.refused) for member in agents.members]
    refused = await _during(agents, asyncio.gather(*refusals), options.refused_s)
    events = [one for one in refused if one.resource == "events"]
    print(f"\n{options.refused} pods refused on each node at once, then {options.refused_s:g} s")
    print(f"  events: {len(events) / count:.1f} per agent")

    back = await _killed(agents, options.down_s)
    rest_per_s = len(rest) / options.rest_s / count
    writes_per_life = sum(one.writes for one in lives) / options.lives
    busy = f"writes/s with {PODS_PER_S} pods/s"
    print(f"\n{'nodes':>8} {'requests/s at rest':>20} {'watches':>8} {busy:>26}")
    for nodes in NODES:
        print(
            f"{nodes:8} {rest_per_s * nodes:20.0f} {open_watches / count * nodes:8.0f} "
            f"{min(writes_per_life * PODS_PER_S, nodes):26.0f}"
        )
    print("agents in the busiest second after the API server was killed: ", end="")
    print(", ".join(f"{back / count * nodes:.0f} of {nodes}" for nodes in NODES))


async def _during(agents: Fleet, work: Awaitable[object], settle_s: float = _SETTLE_S) -> list[Asked]:
    """What was asked for during *work*, and until it has settled."""
    before = len(agents.asked())
    await work
    await asyncio.sleep(settle_s)
    return agents.asked()[before:]


async def _lives(agents: Fleet, lives: int) -> None:
    """So many, one half second after the other."""
    draw = random.Random(1)
    async with asyncio.TaskGroup() as going:
        for _ in range(lives):
            going.create_task(agents.live(draw.choice(agents.members), LINGER_S))
            await asyncio.sleep(0.5)


async def _killed(agents: Fleet, down_s: float) -> int:
    """Kill the API server; how many agents came back within one second, at most."""
    agents.plane.kill_api_server()
    await asyncio.sleep(down_s)
    before, restarted_s = len(agents.asked()), time.time()
    await asyncio.to_thread(agents.plane.start_api_server)
    took_s = time.time() - restarted_s
    await asyncio.sleep(60)
    asked = agents.asked()[before:]
    first = first_by_node(asked)
    busiest = most_in_a_second([one.at_s for one in asked])
    count = len(agents.members)
    print(f"\nAPI server killed, {down_s:g} s later started again, ready after {took_s:.0f} s")
    print(f"  {len(first)} of {count} agents are back, within {max(first) - min(first):.1f} s")
    print(f"  in the busiest second {most_in_a_second(first)} agents, {busiest} requests")
    _show("until a minute later", asked, count, "agent")
    return most_in_a_second(first)


def _show(title: str, asked: Sequence[Asked], count: int, each: str) -> None:
    print(f"\n{title}: {len(asked)} requests, {sum(one.writes for one in asked)} writes")
    for (verb, resource), times in sorted(counted(asked).items(), key=lambda item: -item[1]):
        print(f"  {verb:8} {resource:28} {times:7} {times / count:8.2f} per {each}")


def _show_objects(agents: Fleet) -> None:
    for path in (TOPOLOGIES, SLICES):
        sizes = [len(json.dumps(one)) for one in agents.items(path)]
        own = [len(json.dumps(one | {"metadata": {}})) for one in agents.items(path)]
        name, count = path.rpartition("/")[2], len(agents.members)
        print(
            f"  {name}: {len(sizes) / count:.2f} per agent, {sum(sizes) / count / 1024:.1f} KiB per agent, "
            f"{sum(own) / count / 1024:.1f} without metadata"
        )


def _written_bytes(metrics: Metrics) -> float:
    resources = [path.rpartition("/")[2] for path in (TOPOLOGIES, SLICES)]
    return sum(metrics.sum("apiserver_request_body_size_bytes_sum", f'resource="{one}"') for one in resources)


async def _main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--agents", type=int, default=150, metavar="N", help="agents (default: %(default)s)")
    parser.add_argument("--rest-s", type=float, default=330, help="seconds at rest (default: %(default)s)")
    parser.add_argument("--lives", type=int, default=100, help="pods that come and go (default: %(default)s)")
    parser.add_argument(
        "--refused", type=int, default=30, help="pods refused on each node (default: %(default)s)"
    )
    parser.add_argument(
        "--refused-s", type=float, default=60, help="for so many seconds (default: %(default)s)"
    )
    parser.add_argument(
        "--down-s", type=float, default=5, help="the API server is away (default: %(default)s)"
    )
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    with running_control_plane(kubernetes.api_server()) as plane, tempfile.TemporaryDirectory() as directory:
        plane.define(kubernetes.topology_crd())
        plane.wait_for(TOPOLOGIES, bool)
        async with fleet(plane, Path(directory), options.agents) as agents:
            await measure(agents, options)


if __name__ == "__main__":
    asyncio.run(_main())
