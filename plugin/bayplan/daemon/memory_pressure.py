"""Sees that the nodes can give what was promised on them, before the kernel has to kill for it.

Each second it is asked whether a look is due, which costs one number of each node and does not wake the event
loop: that would take ten times as long as the question. What each container holds on the nodes, two hundred
files on a full node, is read only when nodes lost so much that it matters, when the ledger is another one, or
after a while. Everything blocks in threads of its own. Nothing is decided here: `page_placement` says what is
at risk, and which pages would have to lie elsewhere, be it for a promise or because a container goes back to
its own nodes; `page_relief` moves them, and `promised_nodes` has in the ledger what follows for the nodes of
promises. All go by the ledger as it was at the look, an immutable value; the kernel holds each page against
the cpuset of that moment.

On a full node a risk comes and goes every few seconds. It is logged when it begins, and when all are over.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final, NamedTuple

from msgspec.structs import replace

from bayplan.config.settings import MemoryPressure
from bayplan.control.placements import Creation
from bayplan.control.promised_nodes import PromisedNodes
from bayplan.control.state import NodeState
from bayplan.control.threads import InThread
from bayplan.daemon.brakes import Brakes
from bayplan.daemon.page_relief import STEP_S, PageRelief
from bayplan.errors import BayplanError
from bayplan.host.hierarchy import Hierarchy
from bayplan.host.kernelfs import AbsentError
from bayplan.host.libc import use_every_cpu
from bayplan.host.live_memory import ContainerMemory, FreeMemory, read_held, read_nodes
from bayplan.host.memory_statistics import NO_ZONES, HeldPages, NodeZones, read_zones
from bayplan.host.reclaim import missing_abilities
from bayplan.model.decision import Decision, Move, PageMoveRecord
from bayplan.model.ledger import Entry, Ledger
from bayplan.model.machine import Machine
from bayplan.placement.brakes import allowed_growth
from bayplan.placement.changed_promises import Gathering, Left
from bayplan.placement.page_owners import (
    StartingRoom,
    container_pages,
    goal_bytes,
    outside_pages,
    pages_in_the_way,
    start_bytes,
    with_claims_shared_out,
    with_pods_shared_out,
    with_starting_nodes,
)
from bayplan.placement.page_placement import (
    CRUMB_BYTES,
    LEAD_S,
    ContainerPages,
    LivePages,
    NodeMemory,
    PageMove,
    Plan,
    Risk,
    enough_free_bytes,
    have_lost_much,
    have_to_reclaim,
    plan,
    soon_lost_bytes,
    widened,
)
from bayplan.sets import NodeSet


class CgroupLookup(NamedTuple):
    """A container, and where its cgroup is looked for."""

    container_id: str
    cgroups_path: str
    cgroup_parent: str
    cgroups: Mapping[str, str]


def lookups_of(state: NodeState) -> list[CgroupLookup]:
    """The containers that are known to run, with where the cgroup of each is looked for; in any thread."""
    known, lookups = state.known, []
    for container in list(known.containers.values()):
        pod = known.pods.get(container.pod_id)
        entry = state.ledger.entries.get(container.id)
        lookups.append(
            CgroupLookup(
                container.id,
                container.cgroups_path,
                "" if pod is None else pod.cgroup_parent,
                {} if entry is None else entry.origin.cgroups,
            )
        )
    return lookups


logger = logging.getLogger(__name__)


@contextmanager
def ticking(is_due: Callable[[], bool], pause_s: float) -> Iterator[asyncio.Event]:
    """Ask *is_due* every *pause_s* in a thread of its own; the event is set each time that it says yes, or
    fails. For the event loop that runs."""
    loop, due, ended = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

    def ask() -> None:
        use_every_cpu()
        while not ended.is_set():
            # Half as dear as an Event with a timeout. Nothing waits for this thread to end.
            time.sleep(pause_s)
            try:
                if not is_due():
                    continue
            except Exception:
                logger.exception("the check whether something is due failed")
            try:
                loop.call_soon_threadsafe(due.set)
            except RuntimeError:
                return  # The loop was closed meanwhile.

    threading.Thread(target=ask, name="ticks", daemon=True).start()
    try:
        yield due
    finally:
        ended.set()


QUIET_S: Final = 60.0
"""A set of nodes was not at risk for so long when it is logged that it is, or that nothing is any more."""


Unmoved = Callable[[LivePages, Risk, Sequence[PageMove]], Sequence[PageMoveRecord]]


class RiskLog:
    """See the module. *unmoved* is `PageRelief.unmoved`."""

    def __init__(self, state: NodeState, unmoved: Unmoved, clock_s: Callable[[], float]) -> None:
        self._state = state
        self._unmoved = unmoved
        self._clock_s = clock_s
        self._at_risk_at_s: dict[NodeSet, float] = {}

    def report(self, seen: LivePages, mode: MemoryPressure) -> None:
        """Log what is new in *seen*; *mode* says what is done about it."""
        now_s = self._clock_s()
        for risk in seen.plan.risks:
            last_s = self._at_risk_at_s.get(risk.nodes, -QUIET_S)
            self._at_risk_at_s[risk.nodes] = now_s
            if now_s - last_s >= QUIET_S:
                self._begun(seen, risk, mode)
        if self._at_risk_at_s and now_s - max(self._at_risk_at_s.values()) >= QUIET_S:
            logger.info("nodes can give what is outstanding again")
            self._at_risk_at_s.clear()

    def _begun(self, seen: LivePages, risk: Risk, mode: MemoryPressure) -> None:
        self._state.counters["memory_at_risk"] += 1
        moves = [move for move in seen.plan.moves if move.source in risk.nodes]
        logger.warning(
            "less memory than is outstanding",
            extra={
                "problem": str(risk),
                "mode": mode.value,
                "to_move_bytes": sum(move.amount_bytes for move in moves),
                "to_move": sorted({move.container_id for move in moves}),
            },
        )
        if records := self._unmoved(seen, risk, moves):
            self._state.recorder.pages_moved(records)


LOOK_S: Final = 1.0
ZONES_S: Final = 300.0
COUNT_S: Final = 30.0
"""What containers hold is counted at least as often."""
AT_RISK_S: Final = 3.0
"""And at least as often as this while something is at risk."""
BRAKED_S: Final = 0.1
"""So often it is looked while a container is slowed down, which then gets what has been freed."""
BRAKED_STEP_S: Final = 0.2
"""For so long pages are moved in between."""
HELD_SHARE: Final = 0.5
"""Of the deadline of a reply: so long a start waits for memory at most."""
_THRESHOLD: Final = "an eviction threshold"
"""The holder to which is promised what is to be kept available."""


def pause_after_s(spent_s: float) -> float:
    """How long to wait after a look that took *spent_s* while somebody is slowed down: on a busy machine
    others have half of the time, but for no longer than at rest, however long a look took."""
    return min(LOOK_S, max(BRAKED_S, spent_s))


class Look(NamedTuple):
    """The values that a full look goes by."""

    machine: Machine
    ledger: Ledger


class _Counted(NamedTuple):
    """What a container holds, and what follows from it."""

    machine: Machine
    entry: Entry
    held: HeldPages
    pages: ContainerPages

    def is_of(self, machine: Machine, entry: Entry, held: HeldPages) -> bool:
        """Whether it follows from the same objects."""
        return self.machine is machine and self.entry is entry and self.held is held


class PressureWatch:
    """See the module. ``mode`` may be changed at any time; ``latest`` is what was seen last, None before;
    ``looked`` is set at each look. *promised* says which containers can go back, and gives a promise more
    nodes where moving pages does not suffice. *memory* is the one that all have who count what containers
    hold. *in_start_thread* runs what must not wait for pages that are being moved; a start waits for a part
    of *deadline_s* at most."""

    def __init__(
        self,
        state: NodeState,
        hierarchy: Hierarchy,
        in_thread: InThread,
        mode: MemoryPressure,
        relief: PageRelief,
        promised: PromisedNodes,
        *,
        memory: ContainerMemory | None = None,
        clock_s: Callable[[], float] = time.monotonic,
        in_start_thread: InThread | None = None,
        deadline_s: float = 1.0,
    ) -> None:
        self.mode = mode
        self.relief = relief
        self.latest: LivePages | None = None
        self.looked = asyncio.Event()
        self._starting_room: tuple[Machine, LivePages, StartingRoom] | None = None
        self._kept_bytes: Mapping[int, int] = {}
        self._kept_seen_bytes: Mapping[int, int] = {}
        """What the latest plan leaves available."""
        self._state = state
        self._hierarchy = hierarchy
        self._in_thread = in_thread
        self._clock_s = clock_s
        self._promised = promised
        self.memory = memory or ContainerMemory(hierarchy, clock_s)
        """What containers hold, and where their cgroups are."""
        self._free = FreeMemory(hierarchy.root)
        self._zones: Mapping[int, NodeZones] = {}
        self._zones_at_s = -ZONES_S
        self._known: dict[str, _Counted] = {}
        self._counted_at_s = -COUNT_S
        self._seen_at_s = 0.0
        self._counted_for: Look | None = None
        self._enough_bytes: Mapping[int, int] = {}
        """By node, the MemFree with which nothing has to be looked at, by what was counted."""
        self._problem = ""
        self._risks = RiskLog(state, relief.unmoved, clock_s)
        self.brakes = Brakes(state, hierarchy, self.read_nodes, clock_s, applies=relief.applies)
        self._in_start_thread = in_start_thread or in_thread
        self._most_held_s = HELD_SHARE * deadline_s
        self._look_now, self._adjusted = asyncio.Event(), asyncio.Event()

    async def follow(self, pause_s: float = LOOK_S) -> None:
        """Look for ever, until cancelled."""
        if problem := missing_abilities(self._hierarchy, self._state.machine.nodes[0].id):
            logger.info("nodes are watched as far as this kernel allows", extra={"problem": problem})
        with ticking(self.is_look_due, pause_s) as due:
            self._look_now = due
            due.set()  # What is asked of a daemon that has just started has numbers, too.
            while True:
                await due.wait()
                due.clear()
                try:
                    # What is moved is looked at again at once: others go on meanwhile.
                    begun_s = self._clock_s()
                    while (moved_bytes := await self.look()) >= CRUMB_BYTES or self.brakes.is_urgent:
                        if moved_bytes < CRUMB_BYTES:
                            await asyncio.sleep(pause_after_s(self._clock_s() - begun_s))
                        begun_s = self._clock_s()
                except Exception:
                    # Placing containers does not depend on it.
                    logger.exception("the memory of the nodes could not be compared with the promises")

    def is_look_due(self) -> bool:
        """Whether a look may find something else than the latest one. Blocks, and may be asked in any thread.

        What is free on a node is enough to tell as long as the node could spare all else that it had.
        """
        before = self.latest
        if self.mode is MemoryPressure.OFF:
            promised = self._promised
            return before is not None or promised.is_due or promised.has_to_try_again() or bool(self.brakes)
        look = Look(self._state.machine, self._state.ledger)
        unfinished = self._problem or self.relief.has_unrecorded or self.brakes.is_look_due()
        if before is None or unfinished or self._is_recount_due(look, before):
            return True
        try:
            if all(self._free.read(node) >= least for node, least in self._enough_bytes.items()):
                return False
            nodes = self.read_nodes()
        except BayplanError:
            return True  # The look says what is wrong.
        return any(one.low for one in nodes.values()) or self._is_count_due(look, nodes)

    def completed(self, creation: Creation, decision: Decision) -> Decision:
        """*decision* about a new container with what there is to say by what was seen last, and with the
        nodes on which its pages should begin to lie."""
        if not self.mode.relieves or self.latest is None:
            return decision
        machine = self._state.machine
        if (reason := pages_in_the_way(machine, self.latest, decision)) is not None:
            decision = replace(decision, reasons=(*decision.reasons, reason))
        room = self._room_for_starts(machine, self.latest)
        return with_starting_nodes(machine, room, creation.ability, decision)

    async def before_start(self, container_id: str) -> None:
        """Have the memory there that a container was promised before it starts, as far as a runtime waits for
        it; the container gets the rest as it is freed."""
        entry = self._state.ledger.entries.get(container_id)
        if not self.mode.relieves or not self.brakes.is_possible or entry is None:
            return
        if not container_pages(self._state.machine, entry, {}, {}, {}).promised_bytes:
            return
        begun_s = self._clock_s()
        look = Look(self._state.machine, self._state.ledger)
        try:
            # The thread goes on with it also if the start does not wait any longer.
            work = self._in_start_thread(partial(self._brake_new, look, container_id))
            await asyncio.wait_for(asyncio.shield(asyncio.ensure_future(work)), self._most_held_s)
        except TimeoutError:
            return
        except BayplanError as error:
            logger.warning("a start does not wait for its memory", extra={"problem": str(error)})
            return
        if container_id not in self.brakes.unbacked:
            return
        self._look_now.set()
        while container_id in self.brakes.unbacked:
            left_s = begun_s + self._most_held_s - self._clock_s()
            self._adjusted.clear()
            try:
                await asyncio.wait_for(self._adjusted.wait(), max(0.0, left_s))
            except TimeoutError:
                break
        held_ms = round((self._clock_s() - begun_s) * 1000)
        self._state.counters["starts_held"] += 1
        self._state.counters["starts_held_ms"] += held_ms
        extra = {"container_id": container_id, "held_ms": held_ms, "slowed_down": container_id in self.brakes}
        logger.info("a start waited for its memory", extra=extra)

    def _brake_new(self, look: Look, container_id: str) -> None:
        """Slow down a container that is about to start if what it was promised is not there. Blocks."""
        before, nodes = self.latest, self.read_nodes()
        if before is not None:
            known = {
                key: before.containers.get(key) or container_pages(look.machine, entry, {}, {}, {})
                for key, entry in look.ledger.entries.items()
            }
            live = LivePages(before.measured_us, nodes, known, before.plan)
            if container_id not in allowed_growth(live, {}, (container_id,)):
                return
        # By what was counted up to half a minute ago it is not; some of that may have been used meanwhile.
        counted, _ = self._containers(look, lookups_of(self._state))
        plan_before = Plan() if before is None else before.plan
        live = LivePages(time.time_ns() // 1000, nodes, counted, plan_before)
        self.brakes.adjust(live, dict(self.memory.cgroups), (container_id,))

    def _room_for_starts(self, machine: Machine, live: LivePages) -> StartingRoom:
        """Worked out once for each look: beside 250 containers it takes as long as the decision."""
        known = self._starting_room
        if known is None or known[0] is not machine or known[1] is not live:
            known = self._starting_room = machine, live, StartingRoom.of(machine, live)
        return known[2]

    def keep_available(self, kept_bytes: Mapping[int, int]) -> None:
        """Keep so many bytes available on nodes beside what is outstanding there, by node, from the next look
        on."""
        if kept_bytes != self._kept_bytes:
            self._kept_bytes, self._counted_at_s = dict(kept_bytes), -COUNT_S

    def is_exhausted(self, node: int) -> bool:
        """Whether nothing more can be moved off *node* for what is to be kept available there."""
        if not self.mode.relieves:
            return True
        if self.latest is None or self._kept_seen_bytes != self._kept_bytes:
            return False
        return all(move.source != node for move in self.latest.plan.moves)

    def take_over(self) -> None:
        """Go on with the containers that an earlier daemon left slowed down, or release them. Blocks."""
        self.brakes.take_over()
        if not self.mode.relieves:
            self.brakes.release_all()

    def stop(self) -> None:
        """Begin no further move, and record those that were made."""
        self.relief.stopping.set()
        self.brakes.release_all(ended=True)
        self._record(all_of_them=True)

    async def look(self) -> int:
        """Look once, at the nodes and, where that is due, at what containers hold; and do for a moment what
        follows. The bytes that were moved."""
        seen = await self._look()
        moved_bytes, relieves = 0, self.mode.relieves
        if not relieves and self.brakes:
            await self._in_thread(self.brakes.release_all)
        if seen is not None:
            if relieves:
                await self._in_start_thread(partial(self.brakes.adjust, seen, dict(self.memory.cgroups)))
                self._adjusted.set()
            if await self._promised.look(seen, relieves=relieves):
                # What it gets by that is not in the latest plan.
                self._counted_at_s, self._kept_seen_bytes = -COUNT_S, {}
                seen = replace(seen, plan=replace(seen.plan, moves=()), back=None) if seen.back else seen
            moved_bytes = await self._carried_out(seen)
        self._record()
        return moved_bytes

    async def _carried_out(self, seen: LivePages) -> int:
        """Do for a moment what the plan of *seen* says; where nothing is relieved, only what brings a
        container back. The bytes that were moved."""
        if not self.mode.relieves:
            seen = replace(seen, plan=Plan(moves=seen.plan.moves if seen.back else ()))
        if not (seen.plan.moves or seen.plan.reclaim_bytes or seen.plan.risks):
            return 0
        cgroups = {**self.memory.cgroups, **{path: path for path in seen.outside}}
        step_s, begun_s = BRAKED_STEP_S if self.brakes else STEP_S, self._clock_s()
        moved_bytes = await self._in_thread(partial(self.relief.carry_out, seen, cgroups, step_s))
        if moved_bytes:
            self._counted_at_s = -COUNT_S
        if seen.back:
            waited_s = moved_bytes / self.relief.rate_bytes
            self._promised.went(moved_bytes, max(0.0, self._clock_s() - begun_s - waited_s))
        return moved_bytes

    async def _look(self) -> LivePages | None:
        """What is there now; None if nothing was counted, because all is as it was."""
        self.looked.set()
        state = self._state
        is_off, returns = self.mode is MemoryPressure.OFF, tuple[Move, ...]()
        if is_off and not (returns := self._promised.candidates()) and not self._promised.is_due:
            self.latest, self._problem = None, ""
            return None
        try:
            nodes, waits = await self._in_thread(lambda: (self.read_nodes(), self.brakes.is_look_due()))
            look = Look(state.machine, state.ledger)
            if low := sum(one.low for one in nodes.values()):
                state.counters["looks_below_low_watermark"] += low
            if not waits and not self._is_count_due(look, nodes):
                return None
            lookups, kept_bytes = lookups_of(state), self._kept_bytes
            returns = returns or self._promised.candidates()
            seen = await self._in_thread(partial(self._seen, look, nodes, lookups, returns, kept_bytes))
        except BayplanError as error:
            if str(error) != self._problem:
                logger.warning("memory in use cannot be read", extra={"problem": str(error)})
            self._problem = str(error)
            return None
        self._problem = ""
        if is_off and not (returns or seen.back or seen.waiting):
            self.latest, self._promised.is_due = None, False
            return None
        self._enough_bytes = {
            node: least_bytes + self._zones.get(node, NO_ZONES).reserve_bytes
            for node, least_bytes in enough_free_bytes(seen, start_bytes(look.machine)).items()
        }
        self.latest, self._kept_seen_bytes = seen, kept_bytes
        self._counted_at_s, self._counted_for = self._clock_s(), look
        self._risks.report(seen, self.mode)
        return seen

    def _record(self, *, all_of_them: bool = False) -> None:
        """Have recorded, counted and logged what was moved."""
        records = self.relief.records(all_of_them=all_of_them)
        if not records:
            return
        self._state.recorder.pages_moved(records)
        for record in records:
            self._state.counters["relieved_bytes"] += record.moved_bytes
            self._state.counters["relief_done" if record.is_done else "relief_failed"] += 1
            logger.info(
                "pages moved to keep promises",
                extra={
                    "container": record.name,
                    "container_id": record.container_id,
                    "move": str(record),
                    "slowest_call_ms": round(self.relief.pace.slowest_s * 1000, 1),
                },
            )

    def problems(self) -> tuple[str, ...]:
        """What lasts and an operator should know, each a sentence."""
        if self._problem:
            return (f"memory in use cannot be read: {self._problem}",)
        if self.latest is None or not self.latest.plan.unmet_bytes:
            return self.brakes.problems()
        return (*(str(risk) for risk in self.latest.plan.risks), *self.brakes.problems())

    def read_nodes(self) -> dict[int, NodeMemory]:
        """What the nodes have now. Blocks.

        Raises:
            HostError: it cannot be read.
        """
        machine, now_s, root = self._state.machine, self._clock_s(), self._hierarchy.root
        if now_s - self._zones_at_s >= ZONES_S:
            self._zones, self._zones_at_s = read_zones(root), now_s
        pools = {
            node: sum(machine.node_by_id[node].hugepages_bytes.values()) for node in machine.memory_nodes
        }
        return read_nodes(pools, self._zones, root)

    def _seen(
        self,
        look: Look,
        nodes: Mapping[int, NodeMemory],
        lookups: Sequence[CgroupLookup],
        returns: Sequence[Move],
        kept_bytes: Mapping[int, int],
    ) -> LivePages:
        """What each container holds on *nodes*, and what follows; *returns* are the moves by which containers
        could go back, *kept_bytes* what is to be kept available by node. Blocks."""
        machine = look.machine
        known = {one.container_id for one in lookups}
        self.memory.keep(known)
        containers, idle = self._containers(look, lookups, regular=self._is_regular(look, nodes))
        # As long as somebody's cgroup is not known, a slice may have a container in it.
        all_known = look.ledger.entries.keys() <= containers.keys()
        outside = self.memory.outside() if all_known else {}
        services = {
            path: outside_pages(
                machine,
                path,
                mems,
                held.unreclaimable_bytes,
                self.relief.movable(path, held.movable_bytes),
                held.of_files_bytes,
            )
            for path, (mems, held) in outside.items()
        }
        self.relief.keep(known | services.keys())
        kept = tuple(
            ContainerPages(_THRESHOLD, _THRESHOLD, NodeSet([node]), amount)
            for node, amount in kept_bytes.items()
            if node in nodes
        )
        kept = (*kept, *idle)
        everybody = (*containers.values(), *services.values(), *kept)
        bands = start_bytes(machine), goal_bytes(machine)
        found = plan(nodes, everybody, *bands, machine.distance)
        soon_lost = self._soon_lost_bytes(nodes, found.expected_bytes)
        if any(amount > bands[0].get(node, 0) for node, amount in soon_lost.items()):
            found = plan(nodes, everybody, *widened(*bands, soon_lost), machine.distance)
        if self.mode is MemoryPressure.OFF:
            found = Plan(expected_bytes=found.expected_bytes)
        seen = LivePages(time.time_ns() // 1000, nodes, containers, found, services, kept)
        # No container goes back while pages are moved off a node that is short of what was promised: that
        # comes first, and what goes back meanwhile may be what has to leave next.
        waits = found.moves and self.mode.relieves
        gathering = Gathering(seen, look.ledger, bands[1], machine.distance, self._left_of)
        return gathering.next_of(self._promised.stray(seen), returns, short_first=bool(waits))

    def _left_of(self, move: Move) -> Left:
        """What the container of *move* has on the nodes that it leaves. Blocks."""
        key, leave = move.container_id, move.before - move.after
        try:
            held = read_held(self._hierarchy, self.memory.cgroups[key])
        except (AbsentError, KeyError):
            held = HeldPages()
        there_bytes = {node: amount for node, amount in held.movable_bytes.items() if node in leave}
        left_bytes = sum(amount for node, amount in held.of_processes_bytes.items() if node in leave)
        return Left(self.relief.movable(key, there_bytes), left_bytes, self.relief.obstacle(key))

    def _soon_lost_bytes(
        self, nodes: Mapping[int, NodeMemory], expected_bytes: Mapping[int, int]
    ) -> dict[int, int]:
        """What *nodes* lose until something can be done about it."""
        now_s, before, passed_s = self._clock_s(), self.latest, self._clock_s() - self._seen_at_s
        self._seen_at_s = now_s
        if before is None:
            return {}
        most_bytes = round(self.relief.rate_bytes * LEAD_S)
        return soon_lost_bytes(before, nodes, expected_bytes, passed_s, most_bytes)

    def _is_recount_due(self, look: Look, before: LivePages) -> bool:
        """Whether it is time to count, or what was counted for is another machine or ledger."""
        since_s = self._clock_s() - self._counted_at_s
        counted = self._counted_for
        return (
            since_s >= (AT_RISK_S if before.plan.risks or before.back else COUNT_S)
            or self._promised.is_due
            or counted is None
            or counted.machine is not look.machine
            or counted.ledger is not look.ledger
        )

    def _is_count_due(self, look: Look, nodes: Mapping[int, NodeMemory]) -> bool:
        before = self.latest
        if before is None or self._is_recount_due(look, before):
            return True
        if nodes.keys() != before.nodes.keys():
            return True
        bands = start_bytes(look.machine)
        may_reclaim = self.mode.relieves and self._clock_s() - self._counted_at_s >= AT_RISK_S
        return have_lost_much(before, nodes, bands) or (may_reclaim and have_to_reclaim(before, nodes, bands))

    def _is_regular(self, look: Look, nodes: Mapping[int, NodeMemory]) -> bool:
        """Whether there is no other reason to count than that it was long ago, so that what can hardly be
        otherwise need not be read."""
        before = self.latest
        return (
            before is not None
            and not before.plan.risks
            and before.back is None
            and not self._promised.is_due
            and nodes.keys() == before.nodes.keys()
            and not have_lost_much(before, nodes, start_bytes(look.machine))
        )

    def _containers(
        self, look: Look, lookups: Sequence[CgroupLookup], *, regular: bool = False
    ) -> tuple[dict[str, ContainerPages], tuple[ContainerPages, ...]]:
        """The containers, and what resource claims hold that none of them can use yet; *regular*: see
        `_is_regular`. Blocks."""
        containers, read = {}, self.memory.recent if regular else self.memory.read
        known, self._known = self._known, dict[str, _Counted]()
        for lookup in lookups:
            entry = look.ledger.entries.get(lookup.container_id)
            if entry is None:
                continue
            try:
                held = read(*lookup)
            except AbsentError:
                held = HeldPages()  # It does not run yet: all of its promise is outstanding.
            before = known.get(lookup.container_id)
            if regular and before is not None and before.is_of(look.machine, entry, held):
                pages = before.pages
            else:
                movable_bytes = self.relief.movable(lookup.container_id, held.movable_bytes)
                pages = container_pages(
                    look.machine,
                    entry,
                    held.unreclaimable_bytes,
                    movable_bytes,
                    held.of_files_bytes,
                    held.of_processes_bytes,
                )
            self._known[lookup.container_id] = _Counted(look.machine, entry, held, pages)
            containers[lookup.container_id] = pages
        shared_out, idle = with_claims_shared_out(look.ledger, containers)
        return with_pods_shared_out(look.ledger, shared_out), idle
