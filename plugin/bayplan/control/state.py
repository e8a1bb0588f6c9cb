"""The one owner of the node's state: what decisions depend on (machine, policy, engine and ledger), the
ledger's record, and what is kept beside it of the containers that run.

Everybody may read it. What decisions depend on is changed by a `Transaction` alone, and only one is open at a
time: the others wait. A promise is on the disk before it counts, or in the container itself
(`Transaction.commit`). What has happened already, such as the end of a container, counts at once, and is
recorded as soon as the disk takes it (`Transaction.accept`). What is kept beside the ledger is changed by
`placements` and the controller.
Invariant: the disk has what the ledger has, except about the containers in ``_unrecorded``, and each write
includes those. Whatever becomes current is noted in ``changes``, in order.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from typing import Final, TypeAlias

from msgspec import Struct

from bayplan.control.commit_listeners import ChangeLog, DecisionLog
from bayplan.control.expectations import Expectation, expectations
from bayplan.control.known_containers import KnownContainers, KubeletPods
from bayplan.control.lives import REMEMBERED, Lives, Notifications
from bayplan.control.recorder import Recorder
from bayplan.control.threads import Job, Latency
from bayplan.engines.interface import Engine
from bayplan.errors import StateError
from bayplan.model.basis import MOST_READ, Basis, SeenRequests, SeenSize
from bayplan.model.decision import Request
from bayplan.model.ledger import Entry, Ledger, changed_entries
from bayplan.model.machine import Machine
from bayplan.model.policy import KeepWhole, PlacementPolicy
from bayplan.model.workload import Adjustment
from bayplan.nri import Clock, Runtime, Timer
from bayplan.placement.adjustment import isolated_cpus, wanted_for
from bayplan.placement.ledger_check import Fault, check, mended, unlike_record
from bayplan.quantity import US_PER_S
from bayplan.sets import CpuSet
from bayplan.state import Step

logger = logging.getLogger(__name__)

HOUR_S: Final = 3600
_CREATION_US: Final = 10_000_000
"""So long a creation may be under way: an emulated `runc create` takes seconds, and six are made at a
time."""

RETRY_S: Final = 3.0
"""After a write that failed: a disk that is full is asked again as often."""


class Current(Basis, frozen=True, dict=True, kw_only=True):
    """What decisions depend on between two transactions, and the engine that decides."""

    engine: Engine


_HAS_ENDED: Final = "the transaction has ended"

Changed: TypeAlias = Mapping[str, Entry | None]
"""What a ledger says otherwise than the one before, see `changed_entries`."""
_NOTHING_CHANGED: Final[Changed] = {}


class _Write(Struct):
    """The last write that a container was part of. ``decision``: the write that it was decided with, if the
    history is to list that decision."""

    number: int
    decision: int | None = None


class Transaction(Struct, eq=False):
    """The right to change the basis. Made by `NodeState`; of no use once it was closed."""

    owner: "NodeState | None"

    @property
    def basis(self) -> Current:
        """What the next decision depends on."""
        assert self.owner is not None, _HAS_ENDED
        return self.owner.basis

    async def commit(self, ledger: Ledger, decided: str | None = None, *, carried: bool = False) -> None:
        """Record *ledger*, then make it current; *decided* is the id of a container that was decided about.

        It is done whole or not at all: if this fails or is cancelled, the ledger is as it was, and what may
        have reached the disk is taken back there. *carried*: the runtime gets the entry of that container
        with it, and has it as long as the container exists. So a decision that changes nobody else's promise
        counts also where the disk does not take it, and is recorded when it does.

        Raises:
            StateError: the disk does not take it.
        """
        assert self.owner is not None, _HAS_ENDED
        await self.owner._commit(ledger, decided, carried=carried)  # noqa: SLF001 - the two classes are one unit

    def accept(
        self,
        *,
        ledger: Ledger | None = None,
        decided: str | None = None,
        machine: Machine | None = None,
        policy: PlacementPolicy | None = None,
        engine: Engine | None = None,
        replace_all: bool = False,
    ) -> None:
        """Make current what cannot be refused any more, and record it as soon as the disk takes it.

        A new *engine* gets the promises in its own form. *replace_all*: the disk is to hold nothing but
        this ledger.
        """
        owner = self._open
        basis = owner.basis
        after = basis if ledger is None else basis.with_ledger(ledger)
        if machine is not None or policy is not None or engine is not None:
            after = Current(
                machine or basis.machine,
                policy or basis.policy,
                after.ledger,
                seen=owner.seen_by(policy or basis.policy),
                engine=engine or basis.engine,
            )
        if engine is not None:
            after = after.with_ledger(engine.converted(after))
        owner._accept(after, decided, replace_all=replace_all)  # noqa: SLF001 - the two classes are one unit

    def saw(self, request: Request) -> None:
        """Note a *request*, whatever becomes of it: later decisions depend on what was asked for lately."""
        owner = self._open
        if owner.seen.see(request):
            owner.learn()

    def check(self, recorded: Ledger | None = None) -> tuple[Fault, ...]:
        """Hold the ledger against itself and the machine, and against what is *recorded*, if that is known.

        What is wrong is logged. Where the truth is known it is put right: what is derived follows from the
        entries again, and the disk gets the ledger.
        """
        basis = self._open.basis
        ledger, faults = basis.ledger, check(basis)
        if recorded is not None:
            faults = (*faults, *unlike_record(ledger, recorded, self._open.unrecorded))
        ours = [fault for fault in faults if fault.is_ours]
        for fault in ours:
            logger.critical("the ledger is put right", extra={"code": fault.code, "problem": fault.text})
        if ours:
            self.accept(ledger=mended(ledger))
            self._open._write_all()  # noqa: SLF001 - the two classes are one unit
        return faults

    def close(self) -> None:
        """The transaction has ended."""
        self.owner = None

    @property
    def _open(self) -> "NodeState":
        assert self.owner is not None, _HAS_ENDED
        return self.owner


class NodeState:
    """See the module. *clock* is the loop's own unless a test moves the time itself; *became* is called with
    each basis that becomes current, before anybody else knows of it. *has_partitions*: the host has them.

    ``basis`` is what decisions depend on now; an open transaction may be about to change it.
    ``known`` are the containers as their runtimes described them, ``lives`` their phases, ``kubelet_pods``
    the pods as kubelet describes them, where an agent says so. ``notifications`` is what the NRI runtime was
    sent, ``runtime`` that runtime while it is connected, and ``stopped_pods`` are the ids of pods that have
    stopped and are not removed yet. ``capacity_freed`` is to be called when there may be room for containers
    that lack some, or that were moved. ``synchronized`` is set each time that a runtime has listed what runs.
    ``seen`` are the requests that were decided about lately, while decisions depend on them.
    """

    def __init__(
        self,
        basis: Current,
        recorder: Recorder,
        *,
        has_partitions: bool = True,
        capacity_freed: Callable[[], None] = lambda: None,
        clock: Clock | None = None,
        became: Callable[[Current], None] | None = None,
    ) -> None:
        self.recorder = recorder
        self.capacity_freed = capacity_freed
        self.changes = ChangeLog()
        """Everything that became different lately, in order, refusals too."""
        self.counters: Counter[str] = Counter()
        self.known = KnownContainers()
        self.lives = Lives()
        self.notifications = Notifications(self.lives)
        self.runtime: Runtime | None = None
        self.stopped_pods: set[str] = set()
        self.kubelet_pods = KubeletPods(lambda: {pod.uid for pod in self.known.pods.values()}, self.counters)
        self.latency = Latency()
        self.decision_log = DecisionLog(self.counters)
        self.seen = SeenRequests()
        self.synchronized = asyncio.Event()
        self.was_synchronized = False
        """Whether a runtime has listed what runs since the start."""
        self._has_partitions = has_partitions
        self.basis = basis
        self._clock = clock
        self._became = became
        self._lock = asyncio.Lock()
        self._postponed: list[Callable[[Transaction], None]] = []
        self._unrecorded: dict[str, _Write] = {}
        self._number = 0
        self._times_emptied = recorder.store.times_emptied
        self._replacing_since: int | None = None
        """The write from which on the disk is to hold nothing that the ledger has not."""
        self._retry: Timer | None = None
        self._writing: set[asyncio.Task[None]] = set()
        self._relocated_s: list[float] = []

    @property
    def machine(self) -> Machine:
        """The machine by which it is decided."""
        return self.basis.machine

    @property
    def policy(self) -> PlacementPolicy:
        """The policy by which it is decided."""
        return self.basis.policy

    @property
    def engine(self) -> Engine:
        """The engine that decides."""
        return self.basis.engine

    @property
    def ledger(self) -> Ledger:
        """What is promised."""
        return self.basis.ledger

    @property
    def unrecorded(self) -> Collection[str]:
        """The ids of the containers of which the disk may say something else than the ledger."""
        return self._unrecorded.keys()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        """The next transaction, once all that were asked for before have ended."""
        await self._lock.acquire()
        transaction = Transaction(self)
        try:
            yield transaction
        finally:
            transaction.owner = None
            if self._postponed:
                self._run_postponed()
            self._lock.release()

    def schedule(self, change: Callable[[Transaction], None]) -> None:
        """Run *change* now, or when the open transaction ends: for callers that cannot await."""
        self._postponed.append(change)
        if not self._lock.locked():
            self._run_postponed()

    async def wait_written(self) -> None:
        """Wait until what was accepted is on the disk, or has failed to get there."""
        if self._writing:
            await asyncio.wait(tuple(self._writing))

    async def follow_record(self) -> None:
        """See that what is recorded stays where it is, until cancelled."""
        problem = ""
        while True:
            await asyncio.sleep(RETRY_S)
            try:
                made_again = await self.recorder.ensure_in_place()
            except StateError as error:
                if problem != str(error):
                    problem = str(error)
                    logger.critical("%s", problem)
                continue
            problem = ""
            if made_again:
                self.schedule(lambda transaction: transaction.accept(replace_all=True))

    async def restore(self) -> None:
        """Take over what is recorded, the ledger in the form of the engine, before the first contact with a
        runtime. What was relocated in the last hour counts: a restart is no new hour."""
        recorded = await self.recorder.ledger()
        async with self.transaction() as transaction:
            self._become(self.basis.with_ledger(recorded), changed_entries(self.basis.ledger, recorded))
            transaction.accept(engine=self.basis.engine)
        async with self.transaction() as transaction:
            self.check(transaction)
        names = await self.recorder.names(REMEMBERED)
        now_s, now_us = time.monotonic(), time.time_ns() // 1000
        decided = await self.recorder.decided(now_us - HOUR_S * US_PER_S)
        self.lives.restore(
            self.ledger.entries,
            [container_id for _, container_id in names],
            {one.request.container_id for at_us, one in decided if at_us >= now_us - _CREATION_US},
        )
        self.known.add_recorded(self.ledger.entries)
        self._relocated_s = [
            now_s - max(0, now_us - at_us) / US_PER_S
            for at_us, decision in decided
            for move in decision.moves
            if move.relocates
        ]
        if self.policy.keep_whole is KeepWhole.NODE:
            await self.remember()

    async def remember(self) -> None:
        """Learn from the record what was asked for here lately, also before the start."""
        try:
            items = await self.recorder.history(MOST_READ)
        except StateError as error:
            logger.warning("what was asked for before is not known", extra={"problem": str(error)})
            return
        self.seen = SeenRequests.of(decision.request for _, decision in reversed(items))
        self.learn()

    def learn(self) -> None:
        """Have decisions depend on the requests that were seen."""
        self._become(self.basis.with_seen(self.seen_by(self.policy)), _NOTHING_CHANGED)

    def seen_by(self, policy: PlacementPolicy) -> tuple[SeenSize, ...]:
        """The requests that were seen, as far as decisions by *policy* depend on them."""
        return self.seen.sizes() if policy.keep_whole is KeepWhole.NODE else ()

    def relocations_within_hour(self) -> int:
        """How many containers were relocated for others in the last hour."""
        now_s = time.monotonic()
        return sum(now_s - at_s < HOUR_S for at_s in self._relocated_s)

    def relocated(self, count: int) -> None:
        """Note that *count* containers were relocated for another one."""
        now_s = time.monotonic()
        still = [at_s for at_s in self._relocated_s if now_s - at_s < HOUR_S]
        self._relocated_s = [*still, *[now_s] * count]

    def take_engine(self, engine: Engine) -> None:
        """Decide by *engine* from the next transaction on; what was promised stays promised."""
        self.schedule(lambda transaction: transaction.accept(engine=engine))

    async def check_ledger(self) -> tuple[Fault, ...]:
        """What does not hold of the ledger and its record, after it was put right where it could be."""
        async with self.transaction() as transaction:
            await self.wait_written()
            faults = self.check(transaction, await self.recorder.ledger())
        await self.wait_written()
        return faults

    def check(self, transaction: Transaction, recorded: Ledger | None = None) -> tuple[Fault, ...]:
        """`Transaction.check`; what it finds is counted."""
        faults = transaction.check(recorded)
        for fault in faults:
            if fault.is_ours:
                self.counters["ledger_faults"] += 1
        return faults

    def wanted(self, entry: Entry) -> Adjustment:
        """What is to be set now for a container that came without NRI; nothing of what others pinned."""
        return wanted_for(entry, self.basis.shared_cpus)

    def expectations(self, container_ids: Collection[str] | None = None) -> list[Expectation]:
        """What the kernel should have now of those containers, of all if none are named. Any thread."""
        basis, known = self.basis, self.known
        containers = (
            list(known.containers.values())
            if container_ids is None
            else [known.containers[key] for key in container_ids if key in known.containers]
        )
        return expectations(
            basis,
            known.pods,
            containers,
            self.lives.starting,
            partitions=self._has_partitions,
        )

    def isolated_cpus(self) -> dict[str, CpuSet]:
        """The CPUs that are to be partitions, by container. Any thread."""
        machine, ledger = self.basis.machine, self.basis.ledger
        return {
            key: cpus
            for key in (ledger.followed_ids if self._has_partitions else ())
            if (cpus := isolated_cpus(ledger.entries[key].decision) & machine.online_cpus)
        }

    def _run_postponed(self) -> None:
        while self._postponed:
            change, transaction = self._postponed.pop(0), Transaction(self)
            try:
                change(transaction)
            except Exception:
                # The caller whose transaction ends now did not ask for this change.
                logger.exception("scheduled change failed")
            finally:
                transaction.close()

    async def _commit(self, ledger: Ledger, decided: str | None, *, carried: bool) -> None:
        changed = changed_entries(self.basis.ledger, ledger)
        unrecorded = self._unrecorded.get(decided or "")
        earlier_decision = unrecorded.decision if unrecorded else None
        number, write = self._begin(ledger, changed, decided)
        try:
            if not write.done:
                await write.finished()
            self.recorder.check_commit(write)
        except BaseException as error:
            if isinstance(error, StateError) and carried and self._leaves_others(ledger, changed, decided):
                self._become(self.basis.with_ledger(ledger), changed)
                self._not_recorded(error)
                return
            # It may be on the disk all the same, now or later.
            if decided in self._unrecorded:
                self._unrecorded[decided].decision = earlier_decision
            if isinstance(error, StateError):
                self._retry_later()
            else:
                self._write(self.basis.ledger)
            raise
        self._become(self.basis.with_ledger(ledger), changed)
        self._recorded(number)

    def _accept(self, after: Current, decided: str | None, *, replace_all: bool) -> None:
        before = self.basis.ledger
        changed = changed_entries(before, after.ledger)
        self._become(after, changed)
        if changed or replace_all or self._unrecorded:
            self._write(after.ledger, changed, decided, replace_all=replace_all)

    def _become(self, after: Current, changed: Changed) -> None:
        """Make *after* current; its ledger says something else about the containers *changed*."""
        if self._became is not None:
            self._became(after)
        before, self.basis = self.basis, after
        self.changes.note(
            changed,
            machine=None if after.machine is before.machine else after.machine,
            policy=None if after.policy is before.policy else after.policy,
            engine=None if after.engine is before.engine else after.engine.name,
        )

    def _write(
        self,
        ledger: Ledger,
        changed: Changed = _NOTHING_CHANGED,
        decided: str | None = None,
        *,
        replace_all: bool = False,
    ) -> None:
        """Record *ledger* without waiting for it."""
        number, write = self._begin(ledger, changed, decided, replace_all=replace_all)
        if write.done:
            self._finish(number, write)
            return

        async def finish() -> None:
            await write.finished()
            self._finish(number, write)

        task = asyncio.get_running_loop().create_task(finish())
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)

    def _write_all(self) -> None:
        """Record every entry of the ledger, whatever the disk has."""
        ledger = self.basis.ledger
        retained = {one.container_id: one for one in ledger.retained.values()}
        self._write(ledger, {**retained, **dict(ledger.entries.items())}, replace_all=True)

    def _finish(self, number: int, write: Job[bool]) -> None:
        try:
            self.recorder.check_commit(write)
        except StateError as error:
            self._not_recorded(error)
        else:
            self._recorded(number)

    def _not_recorded(self, error: StateError) -> None:
        """Note that what is current is not on the disk, because of *error*."""
        logger.error("changes not recorded; trying again", extra={"problem": str(error)})
        self._retry_later()

    def _leaves_others(self, ledger: Ledger, changed: Changed, decided: str | None) -> bool:
        """Whether *ledger*, which says something else about the containers *changed*, promises the same to
        all others than *decided*."""
        before = self.basis.ledger
        if before.retained != ledger.retained:
            return False
        others = [container_id for container_id in changed if container_id != decided]
        both = [(before.entries.get(one), ledger.entries.get(one)) for one in others]
        return all(old and new and old.decision is new.decision for old, new in both)

    def _begin(
        self, ledger: Ledger, changed: Changed, decided: str | None, *, replace_all: bool = False
    ) -> tuple[int, Job[bool]]:
        """Submit what *ledger* says about the containers *changed*, and about those that are unrecorded."""
        self._number += 1
        for container_id in changed:
            write = self._unrecorded.setdefault(container_id, _Write(self._number))
            if container_id == decided:
                write.decision = self._number
        retained = {entry.container_id: entry for entry in ledger.retained.values()}
        gone, unlisted, listed = [], list[Entry](), list[Entry]()
        decisions = {}
        for container_id, one in sorted(self._unrecorded.items()):
            one.number = self._number
            entry = changed.get(container_id)
            if container_id not in changed:
                entry = ledger.entries.get(container_id) or retained.get(container_id)
            if entry is None:
                gone.append(container_id)
            elif one.decision is None:
                unlisted.append(entry)
            else:
                listed.append(entry)
                decisions[container_id] = one.decision
        if replace_all:
            self._replacing_since = self._number
        kept = frozenset(ledger.entries) | retained.keys() if self._replacing_since is not None else None
        return self._number, self.recorder.submit(Step.of(listed, gone, unlisted, kept, decisions))

    def _recorded(self, number: int) -> None:
        if self._replacing_since is not None and number >= self._replacing_since:
            self._replacing_since = None
        self._unrecorded = {key: one for key, one in self._unrecorded.items() if one.number != number}
        times_emptied = self.recorder.store.times_emptied
        if self._times_emptied != times_emptied:
            self._times_emptied = times_emptied
            self._write_all()

    def _retry_later(self) -> None:
        if self._retry is None:
            clock = self._clock or asyncio.get_running_loop()
            self._retry = clock.call_at(clock.time() + RETRY_S, self._write_again)

    def _write_again(self) -> None:
        self._retry = None
        self.schedule(lambda transaction: transaction.accept())
