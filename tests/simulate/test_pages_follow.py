"""Pages of containers lie where nothing is promised to these: the daemon was killed while it moved somebody,
or before its answer reached the runtime. They come to the nodes of the promise, or it is said why they do
not, however often the daemon is killed.

The node is simulated: bytes of each container on each node, which go where there is room for them, also by
the kernel itself when a cpuset changes.
"""

import asyncio
import math
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from bayplan.config.settings import MemoryPressure
from bayplan.daemon.memory_pressure import PressureWatch
from bayplan.daemon.page_relief import PageRelief
from bayplan.errors import PlacementError
from bayplan.host.page_moves import PagesMoved
from bayplan.model.decision import PAGES_ASTRAY, STAYS_WIDE, QosClass
from bayplan.model.policy import Defragment, PlacementPolicy, TopologyPolicy
from bayplan.model.resources import Resources
from bayplan.model.workload import Container, ContainerState, Pod
from bayplan.nri import Event
from bayplan.placement.page_placement import REST_BYTES
from bayplan.placement.shortfall import overclaims
from bayplan.quantity import GIB, MIB
from bayplan.sets import CpuSet, NodeSet
from support.controllers import Controlled, controlled, here
from support.live_nodes import LiveNodes
from support.machines import container, machine, pod
from support.oci_node import OciNode
from support.places import IN_MEMORY

MOVING = PlacementPolicy(topology=TopologyPolicy.SINGLE_NUMA_NODE, defragment=Defragment.MOVE)
SAID = {STAYS_WIDE, PAGES_ASTRAY}
ENOUGH_S = 150.0
MODES = [MemoryPressure.OFF, MemoryPressure.OBSERVE, MemoryPressure.RELIEVE]


@dataclass
class SimulatedNode:
    """What stays when the daemon is killed: the disk, the kernel, what the runtime has, and the time."""

    directory: Path
    live: LiveNodes
    mode: MemoryPressure
    now_s: float = 1000.0
    made: dict[str, tuple[Pod, Container]] = field(default_factory=dict)
    locked: set[str] = field(default_factory=set)
    """The cgroups of containers whose pages the kernel does not move."""
    known_mems: dict[str, str] = field(default_factory=dict)
    most_bytes: int = GIB
    """So much is moved at once at most."""
    runtime_takes_s: float = 0.0
    """So long after its list a runtime has carried out the updates that it got."""

    @asynccontextmanager
    async def daemon(self) -> AsyncIterator["Daemon"]:
        """A daemon that has read the disk, and that the runtime has told what runs."""
        on = machine(len(self.live.total_bytes), 2, self.live.total_bytes[0])
        async with controlled(self.directory / "state", MOVING, on=on) as one:
            hierarchy = self.live.node.hierarchy
            promised = one.promised_nodes(hierarchy, lambda: self.now_s)
            relief = PageRelief(hierarchy, GIB, move=self.move, clock_s=lambda: self.now_s)
            watch = PressureWatch(
                one.controller.state,
                hierarchy,
                here,
                self.mode,
                relief,
                promised,
                clock_s=lambda: self.now_s,
            )
            daemon = Daemon(self, one, watch)
            if self.made:
                pods, containers = zip(*self.made.values(), strict=True)
                await one.controller.synchronize(pods, containers)
                daemon.updated_s = self.now_s + self.runtime_takes_s
                await promised.use_freed_memory()
                daemon.run_runtime()
            yield daemon

    def runtime_has(self, one: Controlled, name: str) -> None:
        """The runtime has the container as the ledger says, and so has the kernel."""
        owner, known = self.made[name]
        decision = one.controller.state.ledger.entries[name].decision
        placement, spec = decision.placement, known.resources
        if decision.request.pinned_mems is None:
            cpus = placement.exclusive_cpus or one.controller.state.basis.shared_cpus
            spec = replace(spec, cpuset_cpus=cpus, cpuset_mems=placement.mems)
        self.made[name] = owner, replace(known, state=ContainerState.RUNNING, resources=spec)
        file = self.live.node.directory(known.cgroups_path) / "cpuset.mems"
        file.write_text(f"{spec.cpuset_mems}\n")
        self.migrate()

    def migrate(self) -> None:
        """The kernel moves what is on nodes that a changed cpuset does not have any more, as far as there is
        room."""
        for _, one in self.made.values():
            path = one.cgroups_path
            mems = (self.live.node.directory(path) / "cpuset.mems").read_text().strip()
            if mems == self.known_mems.get(path):
                continue
            self.known_mems[path] = mems
            nodes = NodeSet.parse(mems)
            for source in [node for node in self.live.held[path] if node not in nodes]:
                for target in nodes:
                    self.moved(path, source, target, self.live.held[path][source])

    def moved(self, path: str, source: int, target: int, wanted_bytes: int) -> int:
        wanted_bytes = min(wanted_bytes, self.most_bytes)
        allowed = target in NodeSet.parse(self.known_mems.get(path, ""))
        return (
            self.live.move(path, source, target, wanted_bytes) if allowed and path not in self.locked else 0
        )

    def move(
        self, cgroup: str, source: int, target: int, wanted: int, go_on: Callable[[int], bool]
    ) -> PagesMoved:
        part = self.moved(cgroup, source, target, wanted) if go_on(0) else 0
        if part == self.most_bytes:
            return PagesMoved(part)
        problem = "" if part == wanted else "the kernel refuses it" if cgroup in self.locked else "no room"
        return PagesMoved(part, wanted - part, problem, exhausted=True, passing=cgroup not in self.locked)

    def held(self, name: str) -> dict[int, int]:
        """What it has, by node, without nodes where it has nothing."""
        row = self.live.held[self.made[name][1].cgroups_path]
        return {node: amount for node, amount in row.items() if amount}


@dataclass
class Daemon:
    """One run of the daemon on *node*."""

    node: SimulatedNode
    one: Controlled
    watch: PressureWatch
    updated_s: float = math.inf

    def run_runtime(self) -> None:
        """It carries out the updates once it has come so far."""
        if self.node.now_s >= self.updated_s:
            self.updated_s = math.inf
            for name in self.node.made:
                self.node.runtime_has(self.one, name)

    async def create(self, name: str, memory_bytes: int, cpus: int, on: int | None = None) -> bool:
        """Create and start it, unless it is refused; whether it was not."""
        wish = {} if on is None else {"bayplan.dev/required-nodes": str(on)}
        owner = pod(name, QosClass.GUARANTEED, wish)
        made = container(name, owner, memory_bytes=memory_bytes, milli_cpus=cpus * 1000 or 100)
        made = replace(made, cgroups_path=f"/kubepods/pod{name}/{name}")
        try:
            await self.one.controller.create_container(owner, made)
        except PlacementError:
            return False
        self.node.made[name] = owner, made
        self.node.live.hold(made.cgroups_path, {})
        return True

    async def start(self, name: str, held_bytes: Mapping[int, int]) -> None:
        """It runs, with so much on each node, wherever that is."""
        self.node.live.hold(self.node.made[name][1].cgroups_path, held_bytes)
        await self.one.controller.state_changed(Event.POST_START_CONTAINER, *self.node.made[name])

    async def pass_by(self, seconds: float) -> None:
        """Let so much time pass."""
        end_s = self.node.now_s + seconds
        while self.node.now_s < end_s:
            self.node.now_s += 1.0
            self.run_runtime()
            if self.one.room_due.is_set():
                self.one.room_due.clear()
                await self.watch._promised.use_freed_memory()
            if self.watch.is_look_due():
                await self.watch.look()
                self.node.migrate()

    def at_home(self, name: str) -> bool:
        """Whether its pages are where it is promised memory, and it may have them nowhere else."""
        placement = self.one.controller.state.ledger.entries[name].decision.placement
        away = sum(size for at, size in self.node.held(name).items() if at not in placement.claimed.nodes)
        return placement.leaving is None and away <= REST_BYTES

    def codes(self, name: str) -> set[str]:
        """The codes of the reasons of its decision."""
        return {reason.code for reason in self.one.controller.state.ledger.entries[name].decision.reasons}


def simulated(directory: Path, mode: MemoryPressure, nodes: int = 4, size_mib: int = 850) -> SimulatedNode:
    live = LiveNodes(OciNode(directory / "root"), dict.fromkeys(range(nodes), size_mib * MIB))
    return SimulatedNode(directory, live, mode)


async def in_pieces(node: SimulatedNode, taken_mib: int = 0) -> str:
    """A node in pieces, on which "late" fits once "db" is elsewhere. The daemon is killed between its record
    and its reply, so that "late" begins without an answer: it takes memory where "db" is to go. Somebody else
    has *taken_mib* there."""
    async with node.daemon() as daemon:
        for name, mib, cpus, on, held in [
            ("first", 100, 0, 0, {0: 80}),
            ("db", 300, 1, None, {0: 200}),
            ("holder1", 400, 1, 1, {1: 350}),
            ("holder2", 400, 1, 2, {2: 350}),
            ("holder3", 400, 1, 3, {3: 350}),
        ]:
            assert await daemon.create(name, mib * MIB, cpus, on)
            node.runtime_has(daemon.one, name)
            await daemon.start(name, {at: amount * MIB for at, amount in held.items()})
        assert await daemon.create("late", 550 * MIB, 1)
        placement = daemon.one.controller.state.ledger.entries["db"].decision.placement
    (home,) = placement.claimed.nodes
    room = node.live.free(home) - taken_mib * MIB
    node.live.outside_bytes[home] = taken_mib * MIB
    node.live.hold("/kubepods/podlate/late", {home: min(500 * MIB, room)})
    # Its cpuset has all nodes until somebody says otherwise, and so does no update.
    (node.live.node.directory("/kubepods/podlate/late") / "cpuset.mems").write_text("0-3\n")
    node.known_mems["/kubepods/podlate/late"] = "0-3"
    return str(home)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kills", [0, 3])
async def test_who_moves_and_the_newcomer_come_to_their_nodes_after_a_kill_before_the_reply(
    tmp_path: Path, mode: MemoryPressure, kills: int
) -> None:
    node = simulated(tmp_path, mode)
    home = await in_pieces(node)
    for seconds in [*range(1, 1 + kills), ENOUGH_S]:
        async with node.daemon() as daemon:
            await daemon.pass_by(seconds)
            assert all(daemon.at_home(name) for name in node.made) == (seconds == ENOUGH_S) or kills
    assert node.held("db") == {int(home): 200 * MIB}
    assert node.held("late") == {0: 500 * MIB}


@pytest.mark.parametrize("mode", MODES)
async def test_a_runtime_that_writes_the_new_nodes_late_keeps_nobody_where_he_is(
    tmp_path: Path, mode: MemoryPressure
) -> None:
    """Until then the kernel refuses to move pages there."""
    node = simulated(tmp_path, mode)
    await in_pieces(node)
    node.runtime_takes_s = 20.0
    async with node.daemon() as daemon:
        await daemon.pass_by(15)
        assert not daemon.at_home("db")
        await daemon.pass_by(ENOUGH_S)
        assert [name for name in node.made if not daemon.at_home(name)] == []
        assert SAID.isdisjoint(daemon.codes("db") | daemon.codes("late"))


@pytest.mark.parametrize("mode", MODES)
async def test_pages_that_two_have_on_each_others_nodes_come_through_little_room(
    tmp_path: Path, mode: MemoryPressure
) -> None:
    """The kernel itself cannot move all of one while the other has its pages there."""
    node = simulated(tmp_path, mode)
    home = int(await in_pieces(node))
    node.live.outside_bytes[0] = 160 * MIB
    node.live.write()
    async with node.daemon() as daemon:
        assert node.held("late")[home] > REST_BYTES
        await daemon.pass_by(ENOUGH_S)
        assert [name for name in node.made if not daemon.at_home(name)] == []


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("what", ["full", "locked"])
async def test_where_pages_do_not_follow_the_decision_says_why_until_they_do(
    tmp_path: Path, mode: MemoryPressure, what: str
) -> None:
    node = simulated(tmp_path, mode)
    home = int(await in_pieces(node))
    if what == "locked":
        node.locked = {"/kubepods/podlate/late", "/kubepods/poddb/db"}
    else:
        for number in (0, home):
            node.live.outside_bytes[number] = 0
            node.live.outside_bytes[number] = node.live.free(number)
        node.live.write()
    async with node.daemon() as daemon:
        await daemon.pass_by(ENOUGH_S)
    async with node.daemon() as daemon:
        assert STAYS_WIDE in daemon.codes("db")
        assert PAGES_ASTRAY in daemon.codes("late")
        node.locked.clear()
        node.live.outside_bytes = dict.fromkeys(node.live.outside_bytes, 0)
        node.live.write()
        await daemon.pass_by(700)
        assert [name for name in node.made if not daemon.at_home(name)] == []
        assert SAID.isdisjoint(daemon.codes("db") | daemon.codes("late"))


WHILE_UNDER_WAY = ["exits", "newcomer exits", "holder exits", "pins itself", "grows", "shrinks", "another"]


@pytest.mark.parametrize(("mode", "killed"), [(MemoryPressure.OFF, False), (MemoryPressure.RELIEVE, True)])
@pytest.mark.parametrize("what", WHILE_UNDER_WAY)
async def test_a_plan_that_others_make_stale_while_pages_are_under_way_takes_nothing_from_anybody(
    tmp_path: Path, mode: MemoryPressure, what: str, *, killed: bool
) -> None:
    """It can end by itself, and be killed right after it knows."""
    node = simulated(tmp_path, mode)
    home = int(await in_pieces(node))
    node.most_bytes = 30 * MIB
    async with node.daemon() as daemon:
        while not node.held("db").get(home):
            await daemon.pass_by(1)
        assert node.held("db")[0]
        await changed(daemon, what, home)
        if not killed:
            await settled(daemon, what)
    async with node.daemon() as daemon:
        await settled(daemon, what)


async def changed(daemon: Daemon, what: str, home: int) -> None:
    """Have that happen, as the runtime would say it."""
    controller, made = daemon.one.controller, daemon.node.made
    gone = {"exits": "db", "newcomer exits": "late", "holder exits": f"holder{home}"}.get(what)
    if gone is not None:
        owner, one = made.pop(gone)
        await controller.stop_container(owner, one)
        daemon.node.live.hold(one.cgroups_path, {})
    elif what == "another":
        # Memory that pages have left already, and those that come count for, is nobody's.
        assert not await daemon.create("more", 300 * MIB, 0, 0)
        assert not await daemon.create("more", 200 * MIB, 0, home)
    else:
        owner, one = made["db"]
        change = {
            "pins itself": Resources(cpuset_cpus=CpuSet([1]), cpuset_mems=NodeSet([0])),
            "grows": Resources(memory_limit_bytes=400 * MIB),
            "shrinks": Resources(memory_limit_bytes=240 * MIB),
        }[what]
        await controller.update_container(owner, one, change)
        spec = one.resources
        if what == "pins itself":
            spec = replace(spec, cpuset_cpus=change.cpuset_cpus, cpuset_mems=change.cpuset_mems)
        else:
            spec = replace(spec, memory_limit_bytes=change.memory_limit_bytes)
        made["db"] = owner, replace(one, resources=spec)
        daemon.node.runtime_has(daemon.one, "db")


async def settled(daemon: Daemon, what: str) -> None:
    """All that is promised fits and is where it was promised, but for what somebody else pinned."""
    await daemon.pass_by(ENOUGH_S)
    faults = await daemon.one.controller.state.check_ledger()
    assert [fault for fault in faults if fault.is_ours] == []
    pinned = {"db"} if what == "pins itself" else set()
    assert bool(tuple(overclaims(daemon.one.controller.state.basis))) == bool(pinned)
    away = {name for name in daemon.node.made if not daemon.at_home(name)}
    # Where "db" stays on node 0, there may be no room for all of "late".
    assert away <= pinned | ({"late"} if pinned else set())
    assert [name for name in away - pinned if not daemon.codes(name) & SAID] == []


@given(st.integers(0, 1 << 32), st.sampled_from(MODES))
def test_whatever_lies_wherever_it_comes_home_or_it_is_said_why(seed: int, mode: MemoryPressure) -> None:
    draw = Random(seed)
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as name:
        asyncio.run(_anything(draw, simulated(Path(name), mode, nodes=draw.randint(2, 4))))


async def _anything(draw: Random, node: SimulatedNode) -> None:
    async with node.daemon() as daemon:
        for number in range(draw.randint(2, 9)):
            name, on = f"c{number}", draw.choice([None, None, draw.randrange(len(node.live.total_bytes))])
            mib = draw.choice([60, 100, 200, 300, 400, 550])
            if not await daemon.create(name, mib * MIB, draw.randint(0, 1), on):
                continue
            unadjusted = draw.random() < 0.3
            if not unadjusted:
                node.runtime_has(daemon.one, name)
            held_bytes = mib * MIB * draw.randint(0, 4) // 4
            await daemon.start(name, _somewhere(draw, node, held_bytes, name, unadjusted=unadjusted))
            await daemon.pass_by(draw.choice([0, 0, 1, 5]))
    sums = {name: sum(node.held(name).values()) for name in node.made}
    for seconds in [draw.uniform(0, 40) for _ in range(draw.randint(0, 3))] + [ENOUGH_S]:
        async with node.daemon() as daemon:
            await daemon.pass_by(seconds)
            if seconds == ENOUGH_S:
                said = {name for name in node.made if daemon.codes(name) & SAID}
                assert said == {name for name in node.made if not daemon.at_home(name)}
    assert {name: sum(node.held(name).values()) for name in node.made} == sums
    assert min(node.live.free(number) for number in node.live.total_bytes) >= 0


def _somewhere(
    draw: Random, node: SimulatedNode, amount: int, name: str, *, unadjusted: bool
) -> dict[int, int]:
    """So much memory, where it may be and there is room."""
    path = node.made[name][1].cgroups_path
    every = list(node.live.total_bytes)
    file = node.live.node.directory(path) / "cpuset.mems"
    if unadjusted:
        file.write_text(f"0-{every[-1]}\n")
        node.known_mems[path] = f"0-{every[-1]}"
    nodes = [at for at in every if at in NodeSet.parse(file.read_text().strip())]
    draw.shuffle(nodes)
    found = {}
    for at in nodes:
        part = min(amount, node.live.free(at)) // MIB * MIB
        if part > 0:
            found[at] = part
            amount -= part
    return found
