"""A simulated machine on which containers touch memory while pages move, and where the kernel kills.

The daemon's own code looks at it, plans, moves, widens and slows down; what the kernel would do is simulated
in short steps: pages move at one rate, each container touches at another one, who is above its memory.high
waits, and where nothing is left on the nodes that somebody may use, somebody is killed. Time is simulated.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from msgspec.structs import replace

from bayplan.config.settings import MemoryPressure
from bayplan.control.promised_nodes import PromisedNodes
from bayplan.daemon.brakes import Brakes
from bayplan.daemon.memory_pressure import PressureWatch
from bayplan.daemon.page_relief import PageRelief
from bayplan.host.hierarchy import Layout
from bayplan.host.page_moves import PagesMoved
from bayplan.model.decision import Outcome, QosClass
from bayplan.model.machine import Machine
from bayplan.model.resources import Resources
from bayplan.placement.page_owners import allowed_nodes
from bayplan.placement.page_placement import CRUMB_BYTES
from bayplan.quantity import MIB
from bayplan.sets import NodeSet
from support.controllers import Controlled, controlled, here
from support.live_nodes import PAGE_BYTES, LiveNodes
from support.machines import container, machine, pod
from support.oci_node import OciNode


class MarksInMemory:
    """The marks of cgroups where the file system may have no attributes."""

    def __init__(self) -> None:
        self.marks: dict[str, str] = {}

    def read(self, directory: str) -> str | None:
        return self.marks.get(directory)

    def write(self, directory: str, text: str) -> None:
        self.marks[directory] = text

    def remove(self, directory: str) -> None:
        self.marks.pop(directory, None)


STEP_S = 0.02
LOOK_S = 0.02
"""What a look takes."""
LISTED_S = 1.0
"""So long after its start a daemon knows the containers."""
OVER = 80
"""The kernel lets somebody use this part more than its memory.high without a delay."""


def unequal(sizes_bytes: Sequence[int]) -> Machine:
    """A machine with a node of each size."""
    equal = machine(len(sizes_bytes), 2)
    nodes = (replace(one, memory_bytes=size) for one, size in zip(equal.nodes, sizes_bytes, strict=True))
    return replace(equal, nodes=tuple(nodes))


@dataclass
class Toucher:
    """A container: it touches memory up to ``goal_bytes`` once it runs, at ``rate_bytes`` a second, on the
    first of ``order`` that has some. ``claims``: it was promised all of that. ``slowed_s``: so long it
    waited."""

    container_id: str
    path: str
    goal_bytes: int
    rate_bytes: int
    order: Sequence[int]
    claims: bool = True
    runs: bool = False
    slowed_s: float = 0.0


@dataclass
class Racing:
    """See the module. ``killed`` are those who were promised what they used; ``hogs`` the others. A daemon
    that starts gets its watch from *watching*. Each look takes what ``look_s`` says."""

    one: Controlled
    live: LiveNodes
    watching: Callable[["Racing"], PressureWatch]
    promised: PromisedNodes
    move_rate_bytes: int
    watch: PressureWatch = field(init=False)
    now_s: float = 1000.0
    touchers: dict[str, Toucher] = field(default_factory=dict)
    killed: list[str] = field(default_factory=list)
    hogs: int = 0
    moved_bytes: int = 0
    look_s: Callable[[], float] = lambda: LOOK_S

    def __post_init__(self) -> None:
        self.watch = self.watching(self)

    def kill_and_start(self, down_s: float) -> None:
        """The daemon is killed, and another one starts after so long; who waited for it starts."""
        for one in self.touchers.values():
            one.runs = one.runs or one.goal_bytes > 0
        self.advance(down_s)
        self.live.write()
        self.watch = self.watching(self)
        self.watch.take_over()
        self.advance(LISTED_S)

    async def create(
        self,
        name: str,
        qos: QosClass,
        promised_bytes: int,
        *,
        node: int | None = None,
        limit_bytes: int | None = None,
    ) -> Outcome:
        """Create a container over NRI, on one node if that is named."""
        annotations = {} if node is None else {"bayplan.dev/required-nodes": str(node)}
        owner = pod(name, qos, annotations)
        if qos is QosClass.GUARANTEED:
            made = container(name, owner, memory_bytes=promised_bytes, milli_cpus=100)
        else:
            total = self.one.controller.state.machine.memory_bytes
            score = 1000 if qos is QosClass.BEST_EFFORT else max(3, 1000 - 1000 * promised_bytes // total)
            resources = Resources(cpu_shares=2, memory_limit_bytes=limit_bytes)
            made = container(name, owner, resources=resources, oom_score_adj=score)
        path = f"{owner.cgroup_parent}/{name}"
        await self.one.controller.create_container(owner, replace(made, cgroups_path=path))
        self.live.hold(path, {})
        self.touchers[name] = Toucher(name, path, 0, 0, sorted(self.live.total_bytes))
        return self.one.controller.state.ledger.entries[name].decision.outcome

    def has(
        self, name: str, amounts_bytes: Mapping[int, int], unmapped_bytes: Mapping[int, int] = {}
    ) -> None:
        """Have a container hold so much by node, some of it in files of a tmpfs."""
        self.live.unmapped[self.touchers[name].path] = dict(unmapped_bytes)
        self.live.hold(self.touchers[name].path, amounts_bytes)

    async def start(self, name: str, goal_bytes: int, rate_bytes: int, order: Sequence[int] = ()) -> float:
        """Start it, as far as the daemon lets it; how long that held it back."""
        one, begun_s = self.touchers[name], self.now_s
        one.goal_bytes, one.rate_bytes, one.order = goal_bytes, rate_bytes, order or one.order
        self.live.write()
        await self.watch.before_start(name)
        one.runs = True
        return self.now_s - begun_s

    async def pass_by(self, seconds: float, until: Callable[[], bool] = lambda: False) -> None:
        """Let so much time pass, or less, if *until* is true before."""
        end_s, tick_s = self.now_s + seconds, self.now_s
        while self.now_s < end_s and not until():
            # A start that waits goes on.
            for _ in range(8):
                await asyncio.sleep(0)
            if self.now_s >= tick_s or self.watch.brakes.is_urgent:
                tick_s = self.now_s + 1.0
                while await self._look() >= CRUMB_BYTES and not until():
                    continue
            self.advance(0.1)

    async def _look(self) -> int:
        self.advance(self.look_s())
        self.live.write()
        moved_bytes = await self.watch.look()
        for _ in range(8):
            await asyncio.sleep(0)
        return moved_bytes

    def holds(self, name: str) -> int:
        """How much it has."""
        return sum(self.live.held[self.touchers[name].path].values())

    def all_touched(self) -> bool:
        """Whether everybody that runs has what it wanted."""
        return all(
            self.holds(one.container_id) >= one.goal_bytes for one in self.touchers.values() if one.runs
        )

    def advance(self, seconds: float) -> None:
        """Have everybody touch memory for so long."""
        while seconds > 0:
            part_s = min(seconds, STEP_S)
            seconds -= part_s
            self.now_s += part_s
            for one in list(self.touchers.values()):
                if one.runs:
                    self._touch(one, part_s)

    def move(
        self, cgroup: str, source: int, target: int, wanted: int, go_on: Callable[[int], bool]
    ) -> PagesMoved:
        """Move pages as the kernel would, while everybody goes on."""
        moved = last = 0
        # To look for them.
        self.advance(0.01)
        while moved < wanted and go_on(last):
            part = min(
                wanted - moved, max(MIB, int(self.move_rate_bytes * STEP_S) // PAGE_BYTES * PAGE_BYTES)
            )
            last = self.live.move(cgroup, source, target, part, write=False)
            moved += last
            self.advance(last / self.move_rate_bytes)
            if last < part:
                self.live.write()
                there = self.live.held[cgroup].get(source, 0)
                full = self.live.free(target) <= 0 and there > 0
                self.moved_bytes += moved
                return PagesMoved(moved, 0, "no room" if full else "", exhausted=True, passing=full)
        self.moved_bytes += moved
        return PagesMoved(moved)

    def _touch(self, one: Toucher, seconds: float) -> None:
        held = self.live.held[one.path]
        has = sum(held.values())
        wanted = max(0, min(one.goal_bytes - has, int(one.rate_bytes * seconds) // PAGE_BYTES * PAGE_BYTES))
        high = (self.live.node.directory(one.path) / "memory.high").read_text().strip()
        if wanted and high != "max":
            allowed = max(0, int(high) * (OVER + 1) // OVER - has) // PAGE_BYTES * PAGE_BYTES
            if allowed < wanted:
                one.slowed_s += seconds
            wanted = min(wanted, allowed)
        entry = self.one.controller.state.ledger.entries[one.container_id]
        allowed_there = allowed_nodes(self.one.controller.state.machine, entry.decision)
        order = [node for node in one.order if node in allowed_there]
        while wanted > 0:
            node = next((node for node in order if self.live.free(node) > 0), None)
            if node is None:
                if not self._kill(one, allowed_there):
                    return
                continue
            part = min(wanted, self.live.free(node))
            held[node] = held.get(node, 0) + part
            wanted -= part

    def _kill(self, one: Toucher, there: NodeSet) -> bool:
        """Have somebody killed for lack of memory; whether that is somebody else."""
        hogs = [other for other in self.touchers.values() if not other.claims]
        with_pages = [other for other in hogs if any(self.live.held[other.path].get(node) for node in there)]
        victim = max(with_pages, key=lambda other: self.holds(other.container_id), default=one)
        if victim.claims:
            self.killed.append(victim.container_id)
        else:
            self.hogs += 1
        # What is in a tmpfs stays.
        self.live.held[victim.path] = dict(self.live.unmapped.get(victim.path, {}))
        victim.runs = False
        return victim is not one and any(self.live.free(node) > 0 for node in there)


@asynccontextmanager
async def racing(
    directory: Path,
    sizes_bytes: Sequence[int],
    move_rate_bytes: int,
    layout: Layout = Layout.UNIFIED,
) -> AsyncIterator[Racing]:
    """A machine with such nodes, and the daemon's parts that look after it."""
    live = LiveNodes(OciNode(directory / "root", layout), dict(enumerate(sizes_bytes)))
    unified = layout is Layout.UNIFIED
    async with controlled(directory / "state", on=unequal(sizes_bytes), cgroup_v2=unified) as one:
        hierarchy = live.node.hierarchy
        promised = one.promised_nodes(hierarchy, lambda: made.now_s)
        marks = MarksInMemory()

        def watching(it: Racing) -> PressureWatch:
            def clock_s() -> float:
                return it.now_s

            relief = PageRelief(hierarchy, 1 << 50, move=it.move, clock_s=clock_s)
            watch = PressureWatch(
                one.controller.state,
                hierarchy,
                here,
                MemoryPressure.RELIEVE,
                relief,
                promised,
                clock_s=clock_s,
            )
            watch.brakes = Brakes(one.controller.state, hierarchy, watch.read_nodes, clock_s, marks)
            return watch

        made = Racing(one, live, watching, promised, move_rate_bytes)
        yield made


def split(draw: Random, amount_bytes: int, room_bytes: Mapping[int, int]) -> dict[int, int]:
    """*amount_bytes* on nodes in random order, as far as there is room."""
    found, nodes = {}, list(room_bytes)
    draw.shuffle(nodes)
    for node in nodes:
        part = min(amount_bytes, room_bytes[node])
        if part > 0:
            found[node] = part
            amount_bytes -= part
    return found
