"""Each event of a runtime becomes a decision, a record and a reply, in the turn of whoever brings it.

Order in every handler: decide, commit, answer. A handler that fails or is cancelled before its commit is
done leaves the ledger as it was. Methods that take a `Transaction` are for those who decide about several
things in one turn; all others take a turn of their own. No IO but through the recorder and the host calls
handed in.
"""

import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Final, NoReturn, Protocol, TypeVar

from msgspec.structs import replace

from bayplan.control.decision_log import DecisionLog
from bayplan.control.device_search import DeviceSearch
from bayplan.control.expectations import Expectation, expectations
from bayplan.control.known_containers import KnownContainers, without_cpus
from bayplan.control.notified import KNOWN_SINCE, Notifications, SyncCpusets
from bayplan.control.recorder import Recorder
from bayplan.control.transactions import Basis, Transaction, Transactions
from bayplan.engines.device_hints import NOTHING_FOUND, Findings, has_devices, looks_at_devices
from bayplan.engines.interface import Engine
from bayplan.model.decision import Decision, Move, Outcome
from bayplan.model.ledger import Entry, Ledger
from bayplan.model.machine import Machine
from bayplan.model.origin import Form, Origin
from bayplan.model.policy import PlacementPolicy
from bayplan.model.qos import OOM_GROUP
from bayplan.model.sentences import refusal
from bayplan.model.wishes import readable_wishes
from bayplan.model.workload import Adjustment, Container, Pod, Resources, Update
from bayplan.nri import Clock, Event, Runtime
from bayplan.placement.adjustment import (
    Ability,
    adjustment_for,
    cpus_for,
    merged,
    nodes_updates,
    resized,
    shared_pool_updates,
    wanted_for,
    wanted_oom_score_adj,
)
from bayplan.placement.after_removal import with_topped_up_claims
from bayplan.placement.decide import decide_change, decide_creation
from bayplan.placement.found_containers import adopt
from bayplan.placement.memory_policy import PolicyAbility
from bayplan.placement.reconcile import reconcile
from bayplan.state import annotations_of, entries_in

logger = logging.getLogger(__name__)

_EVENTS = frozenset(
    {
        Event.CREATE_CONTAINER,
        *KNOWN_SINCE,
        Event.UPDATE_CONTAINER,
        Event.POST_UPDATE_CONTAINER,
        Event.STOP_CONTAINER,
        Event.REMOVE_CONTAINER,
        Event.RUN_POD_SANDBOX,
        Event.STOP_POD_SANDBOX,
        Event.REMOVE_POD_SANDBOX,
    }
)


_REPLIES = frozenset(
    {Event.SYNCHRONIZE, Event.CREATE_CONTAINER, Event.UPDATE_CONTAINER, Event.STOP_CONTAINER}
)
"""The events whose answers have updates."""

_FEW_NODES: Final = 8
"""Decisions on so many nodes take 10 ms at most (tests/bench/worst.py)."""

Answer = TypeVar("Answer", bound=Decision | None)


class DecideInThread(Protocol):
    """Has something done in a thread for decisions."""

    def __call__(self, work: Callable[[], Answer], /) -> Awaitable[Answer]:
        """What *work* returns."""


class Controller:
    """The handlers, one at a time. What they decide by can be read at any time; it changes in a turn."""

    def __init__(
        self,
        machine: Machine,
        policy: PlacementPolicy,
        engine: Engine,
        recorder: Recorder,
        *,
        cgroup_v2: bool,
        write_oom_score_adj: Callable[[Pod, Container, int], Awaitable[None]],
        sync_cpusets: SyncCpusets,
        verify_soon: Callable[[], None],
        weighted_interleave: bool = True,
        devices: DeviceSearch | None = None,
        capacity_freed: Callable[[], None] = lambda: None,
        clock: Clock | None = None,
        decide_in_thread: DecideInThread | None = None,
    ) -> None:
        self._transactions = Transactions(Basis(machine, policy, engine, Ledger()), recorder, clock)
        self.known = KnownContainers()
        self.runtime: Runtime | None = None
        self.counters: Counter[str] = Counter()
        self.decision_log = DecisionLog(self.counters)
        self.recorder = recorder
        self._cgroup_v2 = cgroup_v2
        self._write_oom_score_adj = write_oom_score_adj
        self._sync_cpusets = sync_cpusets
        self._verify_soon = verify_soon
        self.capacity_freed = capacity_freed
        """To be called when there may be room for those who lack some, or had to become wider."""
        self.before_promises: Callable[[], Awaitable[None]] = _at_once
        """Awaited in the turn in which a runtime listed what runs, before anything is promised."""
        self.notifications = Notifications()
        self._weighted_interleave = weighted_interleave
        self._devices = devices
        self._decide_in_thread = decide_in_thread
        self._thread_engine: tuple[Engine, Engine] | None = None
        """The engine, and the one that answers for it in the other thread."""
        self._stopped_pods: set[str] = set()
        self._missed_ends: set[str] = set()
        """Containers whose end was missed. That they exist may be heard later, of an event before it."""

    @property
    def basis(self) -> Basis:
        """What decisions depend on, as it is now."""
        return self._transactions.basis

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

    def transaction(self) -> AbstractAsyncContextManager[Transaction]:
        """Everything that reads, decides and changes does so within one turn."""
        return self._transactions.transaction()

    def schedule(self, change: Callable[[Transaction], None]) -> None:
        """Make a *change* that cannot wait by itself: now, or at the end of the present turn."""
        self._transactions.schedule(change)

    async def wait_written(self) -> None:
        """Wait until what has happened is on the disk, or could not be recorded for now."""
        await self._transactions.wait_written()

    async def restore(self) -> None:
        """Rebuild the ledger from the store, before the first contact with a runtime."""
        await self._transactions.restore()
        self.known.add_recorded(self.ledger.entries)

    def take_engine(self, engine: Engine) -> None:
        """Decide by *engine* from the next turn on; what was promised stays promised."""
        self.schedule(lambda transaction: transaction.accept(engine=engine))

    def events(self, runtime: Runtime) -> frozenset[Event]:  # noqa: ARG002 - the session masks what it lacks
        """The events that decisions need; each one costs the runtime a round trip per operation."""
        return _EVENTS

    def connected(self, runtime: Runtime) -> None:
        """The runtime accepted us."""
        self.runtime = runtime
        self.counters["connections"] += 1

    def disconnected(self, why: str) -> None:
        """The runtime went away, or dropped us; what it runs stays as it is."""
        self.runtime = None
        logger.warning("disconnected from the runtime", extra={"why": why})

    async def synchronize(self, pods: Sequence[Pod], containers: Sequence[Container]) -> Sequence[Update]:
        """Make ledger and runtime agree on what exists."""
        async with self.transaction() as transaction:
            updates = self._synchronize(transaction, pods, containers)
            await self.before_promises()
        await self.wait_written()
        return updates

    def _synchronize(
        self, transaction: Transaction, pods: Sequence[Pod], containers: Sequence[Container]
    ) -> Sequence[Update]:
        by_id = {pod.id: pod for pod in pods}
        basis = transaction.basis
        result = reconcile(
            basis.machine,
            basis.policy,
            basis.engine,
            basis.ledger,
            by_id,
            [
                one if one.id in basis.ledger.entries else self.known.without_default_cpus(one)
                for one in containers
            ],
            carried=entries_in(one for one in containers if one.id not in basis.ledger.entries),
            kubelet_pins_cpus=self.decision_log.pins.kubelet_pins_cpus(basis.ledger),
        )
        transaction.accept(ledger=result.ledger, alone=True)
        self.notifications.synchronized(containers, result.updates)
        self.capacity_freed()
        found = {entry.container_id: entry.decision.request.name for entry in result.found}
        kept = {key: name for key, name in self.known.unmanaged.items() if key in result.ledger.entries}
        self.known = KnownContainers(unmanaged=kept | found)
        for container in containers:
            self.known.add(by_id.get(container.pod_id, Pod(container.pod_id)), container)
        self.known.add_recorded(self.ledger.entries, seen={container.id for container in containers})
        self._stopped_pods &= by_id.keys()
        self._missed_ends.clear()
        if self._devices is not None:
            self._devices.keep(by_id)
        self.decision_log.synchronized(result)
        return result.updates

    async def create_container(
        self, pod: Pod, container: Container, origin: Origin | None = None
    ) -> tuple[Adjustment, Sequence[Update]]:
        """Place a container that is about to be created; *origin* says how it came, if not over NRI.

        Raises:
            PlacementError: a strict policy does not allow any placement that is left.
        """
        async with self.transaction() as transaction:
            return await self.place(transaction, pod, container, origin)

    async def place(
        self, transaction: Transaction, pod: Pod, container: Container, origin: Origin | None = None
    ) -> tuple[Adjustment, Sequence[Update]]:
        """`create_container`, in a turn."""
        findings = await self._findings(pod, container)
        machine, policy, _, ledger = transaction.basis
        base, settable = ledger.without(container.id), self.policy_ability(origin)
        decision = await self._decided(
            transaction.basis,
            lambda engine: decide_creation(machine, policy, engine, base, pod, container, settable, findings),
        )
        if decision.outcome is Outcome.REFUSED:
            self._refuse(decision)
        shared = base.shared_cpus(machine, policy.withheld_cpus, decision.placement.exclusive_cpus)
        cpus = cpus_for(decision, shared)
        ability = Ability(self._cgroup_v2, origin is not None or self._can_adjust_oom_score())
        adjustment = adjustment_for(machine, policy, ability, shared, decision, container)
        entry = Entry(
            decision,
            cpus,  # The adjustment tells them, so that no update of the container itself is due.
            None if origin is None else replace(origin, applied=adjustment),
            oom_group=origin is None and OOM_GROUP in adjustment.unified,
        )
        after, replied = base.moved(decision.moves).with_entry(entry), origin is None
        updates = await self._commit(transaction, after, container.id, decision.moves, replied=replied)
        if replied:
            self.notifications.decided(container.id)
        self.known.add(pod, container)
        self.known.unmanaged.pop(container.id, None)
        self.decision_log.decided("placed", decision)
        if adjustment.oom_score_adj is not None:
            self.known.oom_score_adj[container.id] = adjustment.oom_score_adj
        if origin is None and not decision.request.opted_out:
            adjustment = replace(adjustment, annotations=annotations_of(entry, time.time_ns() // 1000))
        return adjustment, updates

    async def update_container(
        self, pod: Pod, container: Container, resources: Resources
    ) -> Sequence[Update]:
        """Decide again about a container whose resources change; refused, everything stays as it was.

        Raises:
            PlacementError: a strict policy does not allow the changed request.
        """
        self.notifications.heard(Event.UPDATE_CONTAINER, container.id)
        before = self.ledger.exclusive_cpus
        async with self.transaction() as transaction:
            updates = await self.change(transaction, pod, container, resources)
        if not self.ledger.exclusive_cpus <= before:
            # It runs already: others must have left before it has them to itself.
            await self._sync_cpusets()
        return updates

    async def change(
        self, transaction: Transaction, pod: Pod, container: Container, resources: Resources
    ) -> Sequence[Update]:
        """`update_container`, in a turn."""
        machine, policy, _, ledger = transaction.basis
        entry = ledger.entries.get(container.id)
        if entry is None:
            return self.enter(transaction, pod, container, replied=True)
        old, base = entry.decision, ledger.without(container.id)
        decision = await self._decided(
            transaction.basis,
            lambda engine: decide_change(machine, policy, engine, base, old, container.resources, resources),
        )
        if decision is None:
            return ()
        if decision.outcome is Outcome.REFUSED:
            self._refuse(decision)
        changed, ability = replace(entry, decision=decision), Ability(self._cgroup_v2)
        shared = transaction.basis.shared_cpus
        changed = resized(machine, policy, ability, shared, changed, resources)
        after = base.moved(decision.moves).with_entry(changed)
        replied = entry.origin is None
        updates = await self._commit(transaction, after, container.id, decision.moves, replied=replied)
        self.known.add(pod, container)
        self.decision_log.decided("placed again", decision)
        self.capacity_freed()
        mems = decision.placement.mems
        own = next((one for one in updates if one.container_id == container.id), Update(container.id))
        if replied:
            self.notifications.answering(own)
        if mems is None or mems == old.placement.mems:
            return updates
        others = [one for one in updates if one.container_id != container.id]
        return (*others, replace(own, cpuset_mems=mems))

    async def stop_container(self, pod: Pod, container: Container) -> Sequence[Update]:  # noqa: ARG002 - the signature is the interface's
        """Release what a container held; its exclusive CPUs go back to the shared pool."""
        async with self.transaction() as transaction:
            updates = self.release(transaction, container.id, replied=True)
        await self.wait_written()
        return updates

    def release(
        self, transaction: Transaction, container_id: str, *, replied: bool = False
    ) -> Sequence[Update]:
        """`stop_container`, in a turn. *replied*: the updates go to the runtime, which waits for them."""
        self.known.forget(container_id)
        self.notifications.gone(container_id)
        machine, policy, engine, ledger = transaction.basis
        entry = ledger.entries.get(container_id)
        if entry is None:
            return ()
        pod_id = entry.decision.request.pod_id
        if self._devices is not None and entry.origin is not None:
            self._devices.pod_gone(pod_id)  # no event tells of its end without NRI
        left = ledger.after_end_of(container_id, pod_stays=pod_id not in self._stopped_pods)
        left, _ = with_topped_up_claims(machine, policy, engine, left)
        updates = self._accept(transaction, left, replied=replied)
        self.decision_log.released(entry.decision.request.name, container_id)
        self.capacity_freed()
        return updates

    def enter(
        self,
        transaction: Transaction,
        pod: Pod,
        container: Container,
        origin: Origin | None = None,
        *,
        replied: bool = False,
    ) -> Sequence[Update]:
        """Enter a container that exists without a decision of ours, as it is; for *origin* and *replied* see
        above."""
        machine, policy, engine, ledger = transaction.basis
        chosen = self.known.without_default_cpus(container)
        entry = adopt(machine, policy, engine, ledger, pod, chosen)
        if entry.decision.request.pinned_cpus is not None and _has_ours(container):
            # What it was given while it was being created has gone to others since.
            entry = adopt(machine, policy, engine, ledger, pod, without_cpus(container))
        entry = replace(entry, notified_cpus=container.resources.cpuset_cpus, origin=origin)
        updates = self._accept(transaction, ledger.with_entry(entry), container.id, replied=replied)
        self.known.add(pod, container)
        self.known.unmanaged[container.id] = entry.decision.request.name
        self.decision_log.found(entry.decision)
        return updates

    def wanted(self, entry: Entry) -> Adjustment:
        """What is to be set now for a container that came without NRI; nothing of what others pinned."""
        return wanted_for(entry, self.basis.shared_cpus)

    def expectations(self, container_ids: Collection[str] | None = None) -> list[Expectation]:
        """What the kernel should have now of those containers, of all if none are named. Threads may ask."""
        basis, known = self.basis, self.known.containers
        containers = (
            list(known.values())
            if container_ids is None
            else [known[key] for key in container_ids if key in known]
        )
        withheld, stages = basis.policy.withheld_cpus, self.notifications.stages
        return expectations(basis.machine, withheld, basis.ledger, self.known.pods, containers, stages)

    def amend(self, transaction: Transaction, entry: Entry) -> None:
        """Note what became known of a container that came without NRI; its promises stay the same."""
        transaction.accept(ledger=transaction.basis.ledger.with_entry(entry))
        self.known.add_recorded({entry.container_id: entry})

    async def state_changed(self, event: Event, pod: Pod, container: Container | None) -> None:
        """Every other event. No update can be sent from here; what is due is written to the kernel."""
        async with self.transaction() as transaction:
            if container is None:
                self._pod_changed(transaction, event, pod)
            elif event is Event.REMOVE_CONTAINER:
                known = container.id in transaction.basis.ledger.entries
                self.release(transaction, container.id)
                if known:
                    self._verify_soon()
            elif event is Event.POST_UPDATE_CONTAINER:
                self._updated(transaction, container.id)
            elif event in KNOWN_SINCE:
                self._seen(transaction, event, pod, container)
        await self.wait_written()
        if container is None:
            return
        if event is Event.START_CONTAINER:
            await self._set_oom_score_adj(pod, container)
        if event in KNOWN_SINCE or event is Event.POST_UPDATE_CONTAINER:
            if event is Event.START_CONTAINER:
                await self.sync_before_start(container.id)
            else:
                await self._sync_cpusets((container.id,), mems=True)

    def fallback_adjustment(self, pod: Pod, container: Container) -> Adjustment:
        """The safe answer when there is no time or no way to decide: nobody's exclusive CPUs."""
        opted_out = readable_wishes(pod.annotations, container.name, self.machine).opted_out
        free = not opted_out and container.resources.cpuset_cpus is None
        return self.known.default_adjustment(container, self.basis.shared_cpus) if free else Adjustment()

    def missed(
        self, event: Event, container_id: str, why: str, news: tuple[Pod, Container] | None = None
    ) -> None:
        """The runtime went on without our answer.

        A decision that it never heard of is undone: the container is found when it starts. A container that
        stopped holds nothing, whether or not that could be recorded in time.
        """
        self.counters["missed"] += 1
        logger.error("answered by default", extra={"event": event.name, "id": container_id, "why": why})
        self.notifications.heard(event, container_id)
        if event in (Event.STOP_CONTAINER, Event.REMOVE_CONTAINER):
            self._missed_ends.add(container_id)
        if event in _REPLIES:
            self.schedule(lambda transaction: self._undo(transaction, event, container_id))
        elif container_id:
            self.schedule(lambda transaction: self._missed_news(transaction, event, news))
            self._verify_soon()

    def _undo(self, transaction: Transaction, event: Event, container_id: str) -> None:
        ledger = transaction.basis.ledger
        entry, lost = ledger.entries.get(container_id), self.notifications.lost_reply()
        ledger = ledger.with_notified_cpus({key: None for key in lost if key in ledger.entries})
        # Unless it was decided since, on another way.
        decided = event is Event.CREATE_CONTAINER and (entry is None or entry.origin is None)
        if event is Event.STOP_CONTAINER:
            self.known.forget(container_id)
        if event is Event.STOP_CONTAINER or decided:
            self.notifications.gone(container_id)
            ledger = ledger.without(container_id)
            self.capacity_freed()
        transaction.accept(ledger=ledger)
        # The answer may have been for others too.
        self._verify_soon()

    async def _decided(self, basis: Basis, decide: Callable[[Engine], Answer]) -> Answer:
        """What *decide* says by the engine: on machines of many nodes in another thread, so that the timer
        that answers by default runs meanwhile. As it has the turn, the basis stays as it is."""
        if self._decide_in_thread is None or len(basis.machine.nodes) <= _FEW_NODES:
            return decide(basis.engine)
        if self._thread_engine is None or self._thread_engine[0] is not basis.engine:
            self._thread_engine = basis.engine, basis.engine.another()
        return await self._decide_in_thread(partial(decide, self._thread_engine[1]))

    def _missed_news(
        self, transaction: Transaction, event: Event, news: tuple[Pod, Container] | None
    ) -> None:
        """Take in what a missed event said: the end of a container, or that it exists."""
        if news is None:
            return
        pod, container = news
        if event is Event.REMOVE_CONTAINER:
            self.release(transaction, container.id)
        elif event in KNOWN_SINCE and container.id not in self._missed_ends:
            self._seen(transaction, event, pod, container)

    async def _findings(self, pod: Pod, container: Container) -> Findings:
        """What the devices of a new container say, unless it has none or its annotations make that moot."""
        if self._devices is None or not (pod.network_namespace or has_devices(container)):
            return NOTHING_FOUND
        if not looks_at_devices(readable_wishes(pod.annotations, container.name, self.machine)):
            return NOTHING_FOUND
        return await self._devices.find(pod, container)

    def _pod_changed(self, transaction: Transaction, event: Event, pod: Pod) -> None:
        if event is Event.RUN_POD_SANDBOX and self._devices is not None:
            self._devices.pod_started(pod)
        if event in (Event.STOP_POD_SANDBOX, Event.REMOVE_POD_SANDBOX):
            self._stopped_pods.add(pod.id)
            transaction.accept(ledger=transaction.basis.ledger.without_retained(pod.id))
        if event is not Event.REMOVE_POD_SANDBOX:
            return
        if self._devices is not None:
            self._devices.pod_gone(pod.id)
        entries = transaction.basis.ledger.entries
        left = [key for key, one in entries.items() if one.decision.request.pod_id == pod.id]
        for container_id in left:
            self.release(transaction, container_id)
        self._stopped_pods.discard(pod.id)
        if left:
            self._verify_soon()

    def _seen(self, transaction: Transaction, event: Event, pod: Pod, container: Container) -> None:
        """The runtime knows a container: it was created, is about to start, or has started."""
        self.known.add(pod, container)
        self.notifications.heard(event, container.id)
        if container.id not in transaction.basis.ledger.entries:
            self.enter(transaction, pod, container)
            self._verify_soon()

    def _updated(self, transaction: Transaction, container_id: str) -> None:
        """The runtime has carried out the answer to an update of the container itself, perhaps after what it
        was told of it since."""
        cpus, ledger = self.notifications.carried_out(container_id), transaction.basis.ledger
        if cpus is not None and container_id in ledger.entries:
            transaction.accept(ledger=ledger.with_notified_cpus({container_id: cpus}))

    async def sync_before_start(self, container_id: str) -> None:
        """Have the kernel's cpusets right for a container that has its cgroup, before its first instruction.

        What was decided since its creation did not reach it: containerd does not change the cgroup of a
        container that does not run yet, and nobody changes a spec that was rewritten. Nor does the owner of
        CPUs start before all others have left them.
        """
        await self._sync_cpusets((container_id,), mems=True)
        entry = self.ledger.entries.get(container_id)
        if entry is not None and entry.decision.placement.exclusive_cpus:
            await self._sync_cpusets()

    async def _set_oom_score_adj(self, pod: Pod, container: Container) -> None:
        """Set what the runtime could not be told. Who was found running is left alone."""
        entry = self.ledger.entries.get(container.id)
        if entry is None or entry.decision.outcome is Outcome.ADOPTED or self._can_adjust_oom_score():
            return
        wanted = wanted_oom_score_adj(entry.decision.request, container, self.machine)
        if wanted is not None and self.policy.set_oom_score_adj:
            await self._write_oom_score_adj(pod, container, wanted)
            self.known.oom_score_adj[container.id] = wanted

    async def _commit(
        self,
        transaction: Transaction,
        ledger: Ledger,
        decided: str,
        moves: Collection[Move],
        *,
        replied: bool,
    ) -> Sequence[Update]:
        """Record *ledger* and make it current; the updates that it makes due. *decided* is the id of the
        container that was decided about, *moves* what that does to others. *replied*: they go to the runtime.
        """
        ledger, updates, nodes_due = self._with_updates(transaction.basis, ledger, moves, replied=replied)
        await transaction.commit(ledger, decided)
        self.notifications.sent(updates, nodes_due, replied=replied)
        for one in moves:
            self.decision_log.moved(one)
        return updates

    def _accept(
        self, transaction: Transaction, ledger: Ledger, decided: str | None = None, *, replied: bool
    ) -> Sequence[Update]:
        """Make *ledger* current, which says what has happened; the updates that it makes due. *replied*: they
        go to the runtime."""
        ledger, updates, nodes_due = self._with_updates(transaction.basis, ledger, replied=replied)
        transaction.accept(ledger=ledger, decided=decided)
        self.notifications.sent(updates, nodes_due, replied=replied)
        return updates

    def _with_updates(
        self, basis: Basis, ledger: Ledger, moves: Collection[Move] = (), *, replied: bool
    ) -> tuple[Ledger, Sequence[Update], set[str]]:
        """How *ledger* is once the updates are told that it makes due; these, all of them if they are not for
        a reply; and who is still to be told of its nodes. What the runtime cannot take stays due."""
        pool = shared_pool_updates(ledger, basis.machine, basis.policy.withheld_cpus)
        nodes = {move.container_id for move in moves} | self.notifications.nodes_due
        updates = merged(nodes_updates(ledger, nodes), pool) if nodes else pool
        lost = self.notifications.unreachable(ledger, updates, replied=replied)
        # The kernel has it from us: who could not be told is due also if what it was told last becomes right.
        ledger = ledger.with_notified_cpus(
            {one.container_id: None if one.container_id in lost else one.cpuset_cpus for one in pool}
        )
        reply = [one for one in updates if one.container_id not in lost] if replied and lost else updates
        return ledger, reply, {key for key in nodes if key in lost}

    def _refuse(self, decision: Decision) -> NoReturn:
        self.recorder.refused(decision)
        self.decision_log.decided("refused", decision)
        raise refusal(decision)

    def policy_ability(self, origin: Origin | None = None) -> PolicyAbility:
        """Which memory policies can be set for a container that comes over NRI, or by *origin*."""
        if origin is not None:
            # Only a spec that is still to be read can have one.
            able = origin.form is not Form.HOOK
        else:
            able = self.runtime is not None and self.runtime.capabilities.memory_policy
        return PolicyAbility(able, self._weighted_interleave)

    def _can_adjust_oom_score(self) -> bool:
        return self.runtime is not None and self.runtime.capabilities.oom_score_adj


async def _at_once() -> None:
    """There is nothing to wait for."""


def _has_ours(container: Container) -> bool:
    """Whether the CPUs of *container* are those that a decision of ours, written into it, gave to it."""
    carried = entries_in([container]).get(container.id)
    return carried is not None and carried.notified_cpus == container.resources.cpuset_cpus
