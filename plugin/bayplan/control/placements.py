"""What the creation, the change, the end and the discovery of a container do to the ledger, and what kubelet
says of its requests later.

Each step is one function from the request to the updates that follow from it: decide, record, answer. A step
takes the open `Transaction`; the receiver of the event (NRI's controller, the OCI socket) opens it. A step
that fails or is cancelled before its commit leaves the ledger as it was.

A correction by what kubelet says is a transaction like every other change of a promise. It moves nothing and
ends nothing. Creations never wait for it: what is known before them is used there.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple, NoReturn

from msgspec.structs import replace

from bayplan.control.device_search import DeviceSearch
from bayplan.control.known_containers import without_cpus
from bayplan.control.lives import KernelCpusets
from bayplan.control.state import Current, NodeState, Transaction
from bayplan.control.threads import EngineThread, InThread
from bayplan.engines.device_hints import NOTHING_FOUND, Findings, looks_at_devices
from bayplan.engines.interface import Engine
from bayplan.errors import HostError, StateError
from bayplan.model.basis import Basis
from bayplan.model.claims import Parts
from bayplan.model.decision import Decision, Move, Outcome, Request
from bayplan.model.ledger import Entry, Ledger
from bayplan.model.life import LifeStep, Phase, Report
from bayplan.model.machine import Machine
from bayplan.model.origin import NRI, Origin
from bayplan.model.pod_as_a_whole import held_cpus
from bayplan.model.policy import KeepWhole
from bayplan.model.qos import OOM_GROUP
from bayplan.model.resources import Resources
from bayplan.model.sentences import being_changed, memory_text, moved_enough, refusal
from bayplan.model.wishes import Wishes
from bayplan.model.workload import Adjustment, Container, Pod, Update
from bayplan.placement.adjustment import (
    MOST_UPDATES,
    Ability,
    adjustment_for,
    changed_memory_qos,
    cpus_updates,
    exec_notes,
    isolation_notes,
    merged,
    nodes_updates,
    resized,
)
from bayplan.placement.changed_promises import (
    with_completed_claims,
    with_corrected_requests,
    with_resized_pools,
)
from bayplan.placement.decide import (
    as_derived,
    decide_change,
    decide_creation,
    only_planning,
    read_annotations,
    with_moves_waiting,
)
from bayplan.placement.hugepage_pools import Decide, Pools, decide_with_pools, lacks_pages, with_growth
from bayplan.placement.memory_policy import MemoryPolicyAbility
from bayplan.placement.placement_file import as_far_as_possible, without_file
from bayplan.placement.reconcile import adopt, found_after_its_end
from bayplan.sets import CpuSet, NodeSet
from bayplan.state import annotations_of, entries_in


class Creation(NamedTuple):
    """A container that is about to be created, and what is known of it before it is decided about."""

    basis: Basis
    pod: Pod
    container: Container
    origin: Origin
    ability: MemoryPolicyAbility


AdmissionStep = Callable[[Creation, Decision], Decision]
"""Takes the decision of the engine about a new container, and returns what becomes of it. A refusal goes
through no further step."""

GrowPools = Callable[[Transaction, Pools], Awaitable[Pools]]
"""Makes pools of huge pages larger, in the open transaction; by how many bytes they grew."""

PrepareFile = Callable[[Machine, CpuSet, Entry], Awaitable[str]]
"""Makes the placement file of a container that is about to be created, from the machine, the CPUs that are
shared beside it, and its entry; its directory, "" where containers get no file. Raises HostError."""


class Placements:
    """The steps that change *state*. *admission* are those of a creation after the engine has decided.
    *runs_if_refused*: a container that is refused is created all the same. *relocations_per_hour* says how
    many containers go to other nodes for others in an hour at most; None for any number.
    """

    def __init__(
        self,
        state: NodeState,
        *,
        cgroup_v2: bool,
        weighted_interleave: bool = True,
        devices: DeviceSearch | None = None,
        cpusets: KernelCpusets,
        decide_in_thread: InThread | None = None,
        runs_if_refused: bool = False,
        grow_pools: GrowPools | None = None,
        admission: Sequence[AdmissionStep] = (),
        prepare_file: PrepareFile | None = None,
        relocations_per_hour: Callable[[], int | None] = lambda: None,
    ) -> None:
        self._state = state
        self._cgroup_v2 = cgroup_v2
        self._weighted_interleave = weighted_interleave
        self._devices = devices
        self._cpusets = cpusets
        self._runs_if_refused = runs_if_refused
        self._engine_thread = EngineThread(decide_in_thread, state.latency.decision)
        self._grow_pools = grow_pools or _no_growth
        self._admission = (*admission, self._as_far_as_possible)
        self._prepare_file = prepare_file or _no_file
        self._relocations_per_hour = relocations_per_hour

    async def place(
        self, transaction: Transaction, pod: Pod, container: Container, origin: Origin = NRI
    ) -> tuple[Adjustment, Sequence[Update]]:
        """Place a container that is about to be created; *origin* says how it came.

        Returns:
            What to change in its spec, and the updates of other containers.

        Raises:
            PlacementError: a strict policy does not allow any placement that is left.
            StateError: it could not be recorded.
        """
        basis, kubelet_pods = self._state.basis, self._state.kubelet_pods
        machine = basis.machine
        ability, base = self.policy_ability(origin), basis.ledger.without(container.id)
        annotated = read_annotations(basis, pod, container)
        devices, wishes = self._devices, annotated.wishes
        findings = NOTHING_FOUND if devices is None else await self._findings(devices, pod, container, wishes)
        kubelet_says = kubelet_pods.get(pod.uid) is not None
        decide = partial(
            decide_creation,
            pod=pod,
            container=container,
            annotated=annotated,
            ability=ability,
            findings=findings,
            exact=partial(kubelet_pods.for_creation, pod, container.name, machine.memory_bytes)
            if kubelet_says
            else as_derived,
        )
        decision = await self._decided(transaction, basis, base, decide)
        if obstacle := self.moves_obstacle(decision.moves):
            now = transaction.basis
            decision = await self._decided(transaction, now, base, decide, relocating=False)
            decision = with_moves_waiting(decision, obstacle)
        # Pools of huge pages may have grown for it.
        basis = self._state.basis
        creation = Creation(basis, pod, container, origin, ability)
        if basis.policy.keep_whole is KeepWhole.NODE:
            transaction.saw(decision.request)
        for step in self._admission:
            if decision.outcome is not Outcome.REFUSED:
                decision = step(creation, decision)
        if kubelet_says:
            kubelet_pods.decided(pod, container.name, decision.reasons)
        if decision.outcome is Outcome.REFUSED:
            self.refuse(decision, runs=self._runs_if_refused)
        moved = base.moved(decision.moves) if decision.moves else base
        shared, source = _left_shared(basis, moved, decision), ""
        if decision.request.placement_file:
            decision, source = await self._with_file(basis.machine, shared, decision)
        with_reply = origin.runtime_applies
        settable = Ability(self._cgroup_v2, not with_reply or self.runtime_sets_oom_score_adj)
        adjustment = adjustment_for(basis, settable, shared, decision, container)
        adjustment = replace(adjustment, placement_source=source) if source else adjustment
        entry = Entry(
            decision,
            # The adjustment carries them, so that no update of the container itself is due.
            notified_cpus=adjustment.cpuset_cpus,
            recorded_origin=None if origin.recorded is None else origin.recorded.with_applied(adjustment),
            oom_group=with_reply and OOM_GROUP in adjustment.unified,
        )
        after = moved.with_entry(entry)
        annotations: Mapping[str, str] = {}
        if with_reply and not decision.request.opted_out:
            annotations = annotations_of(entry, time.time_ns() // 1000)
        # A start waits for this reply, and not for the end of a container or a change.
        most, moves = 0 if with_reply else None, decision.moves
        updates = await self._commit(
            transaction, after, shared, container.id, moves, most, carried=bool(annotations)
        )
        self._state.lives.begin(container.id, origin.phase, had_process=origin.had_process)
        self._state.known.add(pod, container)
        if adjustment.oom_score_adj is not None:
            self._state.known.oom_score_adj[container.id] = adjustment.oom_score_adj
        self._state.decision_log.decided("placed", decision)
        return replace(adjustment, annotations=annotations), updates

    async def change(
        self, transaction: Transaction, pod: Pod, container: Container, resources: Resources
    ) -> Sequence[Update]:
        """Decide again about a container whose resources change; refused, everything stays as it was.

        Returns:
            The updates of other containers, and of this one what it lacks.

        Raises:
            PlacementError: a strict policy does not allow the changed request.
            StateError: it could not be recorded.
        """
        basis = transaction.basis
        machine, ledger = basis.machine, basis.ledger
        entry = ledger.entries[container.id]
        old, base = entry.decision, ledger.without(container.id)
        exact = partial(self._state.kubelet_pods.for_change, pod, container.name, machine.memory_bytes)
        decide = partial(decide_change, old=old, spec=container.resources, change=resources, exact=exact)
        run = self._engine_thread.run
        decision = await run(basis.engine, machine, partial(decide, basis.with_ledger(base)))
        self._state.kubelet_pods.expect(pod)
        most = MOST_UPDATES if entry.origin.runtime_applies else None
        if decision is None:
            # The runtime sets all that it has for the container, also what is out of date.
            updates = self._accept(transaction, ledger, None, most, answered=container.id)
            own = self._state.notifications.update_answered(container.id, updates)
            return _with_own(updates, own, None, self._unified(basis, entry, old, container, resources))
        if basis.policy.hugepage_pools:

            def again(basis: Basis, engine: Engine) -> Decision:
                changed = decide(basis, engine)
                assert changed is not None, "it asks for something else than before"
                return changed

            beside = partial(Current.with_ledger, ledger=base)
            decision = await self.once_pools_grew(transaction, beside, again, decision)
            basis = transaction.basis
        if basis.policy.keep_whole is KeepWhole.NODE:
            transaction.saw(decision.request)
        if decision.outcome is Outcome.REFUSED:
            self.refuse(decision)
        shared = _left_shared(basis, base, decision)
        changed = replace(entry, decision=decision)
        changed = resized(basis, Ability(self._cgroup_v2), shared, changed, resources)
        # In place of what it was, so that it does not become the newest of its pod.
        after = ledger.moved(decision.moves).with_entry(changed)
        updates = await self._commit(transaction, after, shared, container.id, decision.moves, most)
        self._state.known.add(pod, container)
        self._state.decision_log.decided("placed again", decision)
        self._state.capacity_freed()
        own = self._state.notifications.update_answered(container.id, updates)
        mems = decision.placement.mems
        unified = self._unified(basis, entry, decision, container, resources)
        return _with_own(updates, own, None if mems == old.placement.mems else mems, unified)

    def _unified(
        self, basis: Basis, entry: Entry, decision: Decision, container: Container, change: Resources
    ) -> Mapping[str, str]:
        """What else is to be set with the *change* of a container of *entry* that the runtime applies."""
        if not (self._cgroup_v2 and entry.origin.runtime_applies):
            return {}
        before = entry.decision.request
        return changed_memory_qos(basis, before, decision.request, container.resources, change)

    def release(
        self, transaction: Transaction, container_id: str, why: Report, *, replied: bool = False
    ) -> Sequence[Update]:
        """Release what a container held, which has ended for *why*; its exclusive CPUs go back to the shared
        pool. *replied*: the updates go to the NRI runtime, which waits for them."""
        self._state.known.forget(container_id)
        self._state.notifications.forget(container_id)
        basis = transaction.basis
        entry = basis.ledger.entries.get(container_id)
        self._state.lives.end(container_id, why, entry)
        if entry is None:
            return ()
        pod_id = entry.decision.request.pod_id
        if self._devices is not None and not entry.origin.reports_end_of_pod:
            self._devices.pod_gone(pod_id)
        left = basis.ledger.after_end_of(container_id, pod_stays=pod_id not in self._state.stopped_pods)
        left, _ = with_completed_claims(basis.with_ledger(left), basis.engine)
        updates = self._accept(transaction, left, None, MOST_UPDATES if replied else None)
        self._state.decision_log.released(entry.decision.request.name, container_id, why)
        self._state.capacity_freed()
        return updates

    def enter(
        self,
        transaction: Transaction,
        pod: Pod,
        container: Container,
        phase: Phase,
        origin: Origin = NRI,
        *,
        replied: bool = False,
    ) -> Sequence[Update]:
        """Enter a container that exists without a decision of ours, as it is, and is in *phase*. *origin* as
        for `place`, *replied* as for `release`."""
        basis = transaction.basis
        chosen = self._state.known.without_default_cpus(container)
        entry = adopt(basis, basis.engine, pod, chosen)
        decided = _has_decided_cpus(container) or self._state.lives.has_cpus_from_before(container)
        if entry.decision.request.pinned_cpus is not None and decided:
            # What it was given while it was being created, or before its end, has gone to others since.
            entry = adopt(basis, basis.engine, pod, without_cpus(container))
        if self._state.lives.phase(container.id) is Phase.ENDED:
            reason = found_after_its_end(self._state.lives.ended_by(container.id))
            entry = replace(entry, decision=replace(entry.decision, reasons=(reason,)))
        entry = replace(entry, notified_cpus=container.resources.cpuset_cpus, recorded_origin=origin.recorded)
        most = MOST_UPDATES if replied else None
        self._state.lives.begin(container.id, phase, had_process=origin.had_process)
        ledger = with_resized_pools(basis.with_ledger(basis.ledger.with_entry(entry)), basis.engine)
        updates = self._accept(transaction, ledger, container.id, most)
        if entry.decision.request.pool:
            # No reply has the CPUs of what came without NRI, also where the pool stays as it is.
            self._cpusets.sync_soon()
        self._state.known.add(pod, container)
        self._state.kubelet_pods.expect(pod)
        self._state.decision_log.found(entry.decision)
        return updates

    def take_over(self, transaction: Transaction, ledger: Ledger) -> None:
        """Make the *ledger* current in which is promised what kubelet's managers had given away. No reply
        waits for it: where our shared CPUs are others than kubelet's, they are written to the kernel."""
        self._accept(transaction, ledger)
        self._state.capacity_freed()

    async def hold(self, transaction: Transaction, entry: Entry) -> None:
        """Record what is promised to a holder that is no container.

        Raises:
            StateError: it could not be recorded.
        """
        basis = transaction.basis
        ledger = basis.ledger.with_entry(entry)
        shared = basis.with_ledger(ledger).shared_cpus
        await self._commit(transaction, ledger, shared, entry.container_id, (), None)
        self._state.decision_log.decided("promised", entry.decision)

    async def hold_no_longer(self, transaction: Transaction, key: str) -> None:
        """Record that a holder that is no container holds nothing any more.

        Raises:
            StateError: it could not be recorded.
        """
        basis = transaction.basis
        left, _ = with_completed_claims(basis.with_ledger(basis.ledger.without_retained(key)), basis.engine)
        shared = basis.with_ledger(left).shared_cpus
        await self._commit(transaction, left, shared, key, (), None)
        self._state.capacity_freed()

    def undo(self, transaction: Transaction, container_id: str, *, forget: bool) -> None:
        """Undo what a lost reply to the NRI runtime contained: its updates are due again. *forget*: it was
        about a creation or an end, and the container holds nothing."""
        notifications, ledger = self._state.notifications, transaction.basis.ledger
        ledger = ledger.with_notified_cpus(
            {one.container_id: None for one in notifications.last_reply if one.container_id in ledger.entries}
        )
        if forget:
            notifications.forget(container_id)
            ledger = ledger.without(container_id)
            self._state.capacity_freed()
        transaction.accept(ledger=ledger)

    def keep(self, report: Report, step: LifeStep, pod: Pod, container: Container) -> None:
        """Note *report* about a container, which goes on holding what it was promised."""
        if report in (Report.POST_CREATED, Report.STARTING, Report.STARTED):
            self._state.known.add(pod, container)
        self._state.lives.go_on(container.id, step.phase)

    def ignore(self, report: Report, container_id: str, step: LifeStep) -> None:
        """Note *report* about a container that holds nothing, and gets nothing by it."""
        self._state.decision_log.ignored(report, self._state.lives.phase(container_id), container_id)
        if step.phase is Phase.ENDED:
            self._state.lives.end(container_id, report)

    def amend(self, transaction: Transaction, entry: Entry) -> None:
        """Record what became known of a container that came without NRI; its promises stay the same."""
        transaction.accept(ledger=transaction.basis.ledger.with_entry(entry))
        self._state.lives.go_on(entry.container_id, entry.origin.phase)
        self._state.known.add_recorded({entry.container_id: entry})

    def policy_ability(self, origin: Origin = NRI) -> MemoryPolicyAbility:
        """Which memory policies can be set for a container that comes as *origin* says."""
        able = origin.changes_spec
        if origin.runtime_applies:
            runtime = self._state.runtime
            able = runtime is not None and runtime.capabilities.memory_policy
        seen = origin.runtime_applies or origin.asks_at_start
        return MemoryPolicyAbility(able, self._weighted_interleave, seen)

    @property
    def runtime_sets_oom_score_adj(self) -> bool:
        """Whether the connected runtime carries out an adjustment of oom_score_adj."""
        return self._state.runtime is not None and self._state.runtime.capabilities.oom_score_adj

    def _as_far_as_possible(self, creation: Creation, decision: Decision) -> Decision:
        """*decision* without what a container that comes so cannot have, and why."""
        origin, request = creation.origin, decision.request
        if request.placement_file or request.environment:
            decision = as_far_as_possible(creation.basis.machine, decision, creation.container, origin)
        notes = () if request.exec_cpus is None else exec_notes(decision, origin)
        if request.partition:
            notes += isolation_notes(decision, cgroup_v2=self._cgroup_v2)
        return replace(decision, reasons=(*decision.reasons, *notes)) if notes else decision

    async def _decided(
        self, transaction: Transaction, now: Current, base: Ledger, decide: Decide, *, relocating: bool = True
    ) -> Decision:
        """What *decide* says of a new container beside *base*, once pools of huge pages have grown for it if
        that helps; *now* is all that holds. Without *relocating* other containers stay where they are."""

        def beside(now: Current) -> Basis:
            basis = now if base is now.ledger else now.with_ledger(base)
            return basis if relocating else only_planning(basis)

        basis = beside(now)
        decision = await self._engine_thread.run(now.engine, basis.machine, partial(decide, basis))
        if not basis.policy.hugepage_pools:
            return decision
        return await self.once_pools_grew(transaction, beside, decide, decision)

    async def once_pools_grew(
        self,
        transaction: Transaction,
        beside: Callable[[Current], Basis],
        decide: Decide,
        decision: Decision,
        parts: Parts = (),
    ) -> Decision:
        """*decision*, which is what *decide* says of a holder, or what it says once pools of huge pages have
        grown, if that helps. *beside* is what is promised to all others; *parts* as for
        `decide_with_pools`."""
        now = transaction.basis
        run, engine, basis = self._engine_thread.run, now.engine, beside(now)
        if not lacks_pages(decision, basis.policy):
            return decision
        with_growth_of = partial(
            decide_with_pools, basis, decide=decide, decision=decision, held=now.ledger, parts=parts
        )
        decision, wanted = await run(engine, basis.machine, with_growth_of)
        if not wanted:
            return decision
        came = await self._grow_pools(transaction, wanted)
        basis = beside(transaction.basis)
        return with_growth(await run(engine, basis.machine, partial(decide, basis)), wanted, came)

    async def _with_file(self, machine: Machine, shared: CpuSet, decision: Decision) -> tuple[Decision, str]:
        """*decision* about a new container, and the directory of its placement file; "" and a reason in the
        decision where it cannot be made. *shared* are the CPUs that are shared beside the container."""
        try:
            return decision, await self._prepare_file(machine, shared, Entry(decision))
        except HostError as error:
            return without_file(decision, f"its placement file cannot be made: {error}"), ""

    async def _findings(
        self, devices: DeviceSearch, pod: Pod, container: Container, wishes: Wishes
    ) -> Findings:
        """What the devices of a new container say, if it has any and its annotations do not overrule them."""
        if not devices.may_have(pod, container):
            return NOTHING_FOUND
        return await devices.find(pod, container) if looks_at_devices(wishes) else NOTHING_FOUND

    def moves_obstacle(self, moves: Iterable[Move], before: int = 0) -> str:
        """Why those of *moves* that relocate a container may not be made now, "" where they may: all of them
        run, none of them is being changed, and no more go in an hour than may, of whom so many would have
        gone *before*. Any thread."""
        relocating = [one for one in moves if one.relocates]
        for one in relocating:
            key = one.container_id
            running = self._state.lives.phase(key) is Phase.RUNNING
            if not running or self._state.notifications.is_updating(key):
                return being_changed(one.name)
        most, count = self._relocations_per_hour(), self._state.relocations_within_hour() + before
        if relocating and most is not None and count + len(relocating) > most:
            return moved_enough(count, most)
        return ""

    def refuse(self, decision: Decision, *, runs: bool = False) -> NoReturn:
        """Record a refusal, and raise it as a PlacementError; *runs*: the container is created all the
        same."""
        if runs:
            self._state.lives.begin(decision.request.container_id, Phase.REFUSED)
        self._state.recorder.record_refusal(decision)
        self._state.changes.refused(decision)
        self._state.decision_log.decided("refused", decision)
        raise refusal(decision)

    async def _commit(
        self,
        transaction: Transaction,
        ledger: Ledger,
        shared: CpuSet,
        decided: str,
        moves: Collection[Move],
        most_running: int | None,
        *,
        carried: bool = False,
    ) -> Sequence[Update]:
        """Record *ledger*, then make it current.

        *decided* is the id of the container that was decided about, *moves* what the decision does to others,
        *shared* the CPUs of those without exclusive CPUs in *ledger*, *most_running* as for `_with_updates`,
        and *carried* as for `Transaction.commit`.

        Returns:
            The updates for the reply to the NRI runtime; without one, of nodes, for the kernel.
        """
        before = self._state.basis
        # A creation's own adjustment has its CPUs.
        answered = None if most_running == 0 else decided
        ledger, updates, nodes_due = self._with_updates(ledger, shared, answered, moves, most_running)
        begun_s = time.perf_counter()
        try:
            await transaction.commit(ledger, decided, carried=carried)
        finally:
            self._state.latency.commit.observe(time.perf_counter() - begun_s)
        self._state.notifications.sent(None if most_running is None else updates, nodes_due)
        for one in moves:
            self._state.decision_log.moved(one)
        relocated = [one for one in moves if one.relocates]
        if relocated:
            self._state.relocated(len(relocated))
            self._state.counters["relocated"] += len(relocated)
            # Their pages are to follow.
            self._state.capacity_freed()
        if relocated or _changes_sets(before, ledger, shared):
            self._cpusets.sync_soon()
        if any(one.cpus for one in relocated):
            # They run: the others leave their new CPUs before the runtime gives them these.
            entries = ledger.entries.items()
            await self._cpusets.sync([key for key, one in entries if one.decision.shares_cpus])
        return updates

    def _accept(
        self,
        transaction: Transaction,
        ledger: Ledger,
        decided: str | None = None,
        most_running: int | None = None,
        *,
        answered: str | None = None,
    ) -> Sequence[Update]:
        """Make *ledger*, which has what happened already, current at once. The rest as for `_commit`;
        *answered* is the id of the container that the reply is about if nothing was decided about it."""
        before = transaction.basis
        shared = before.with_ledger(ledger).shared_cpus
        ledger, updates, nodes_due = self._with_updates(ledger, shared, decided or answered, (), most_running)
        transaction.accept(ledger=ledger, decided=decided)
        self._state.notifications.sent(None if most_running is None else updates, nodes_due)
        if _changes_sets(before, ledger, shared):
            self._cpusets.sync_soon()
        return updates

    def _with_updates(
        self,
        ledger: Ledger,
        shared: CpuSet,
        answered: str | None,
        moves: Collection[Move],
        most_running: int | None,
    ) -> tuple[Ledger, Sequence[Update], set[str]]:
        """The updates that *ledger* makes due. The reply takes those of *most_running* running containers;
        None: the runtime gets no reply. What it does not take stays due, and the kernel has it from us.

        Example: *a* gets exclusive CPUs while the creation of *b* is answered and *b* is not stored by the
        runtime yet, and 200 containers run on the CPUs that are left. An update of *b* would be lost, and 200
        would take the runtime seconds. The next replies have that of *b*, and some of the others.

        Returns:
            *ledger* as it is once the updates are sent; the updates for the reply, without one those of
            nodes; and the ids of the containers whose nodes are still to be sent.
        """
        notifications, moved, due = self._state.notifications, list[Update](), set[str]()
        if moves or notifications.nodes_due:
            moved = nodes_updates(ledger, {move.container_id for move in moves} | notifications.nodes_due)
            entries = ledger.entries
            due = {one.container_id for one in moved if entries[one.container_id].origin.runtime_applies}
        if most_running is None:
            return ledger, moved, due
        # The others' would not go out, and of 4000 they take ten milliseconds to make.
        if most_running == 0 and not due and not self._state.lives.starting:
            return ledger, (), due
        first = notifications.first_updated(answered) | due
        cpus = cpus_updates(ledger, shared, first, most_running)
        if not moved and not cpus:
            return ledger, (), due
        updates = notifications.for_reply(merged(moved, cpus) if moved else cpus, answered, most_running)
        sent = {one.container_id: one.cpuset_cpus for one in updates if one.cpuset_cpus is not None}
        return ledger.with_notified_cpus(sent), updates, due.difference(one.container_id for one in updates)


def _left_shared(basis: Basis, base: Ledger, decision: Decision) -> CpuSet:
    """The shared CPUs once what is decided holds, where *base* has all others."""
    placement = decision.placement
    holds = placement.exclusive_cpus.mask or placement.pool_cpus.mask or placement.affinity is not None
    if not holds and base is basis.ledger:
        return basis.shared_cpus
    if decision.request.cpus is not None and (pool := decision.request.pool):
        base = base.with_pool_cpus(pool, placement.pool_cpus)
    return base.shared_cpus(basis.machine, basis.policy.withheld_cpus, held_cpus(placement))


def _changes_sets(before: Basis, ledger: Ledger, shared: CpuSet) -> bool:
    """Whether *ledger*, with these *shared* CPUs, gives these or a named pool other CPUs than *before*."""
    if shared.mask != before.shared_cpus.mask:
        return True
    pooled = ledger.pool_ids or before.ledger.pool_ids
    return bool(pooled) and ledger.cpus_of_pools != before.ledger.cpus_of_pools


async def _no_growth(_: Transaction, __: Pools) -> Pools:
    return {}


async def _no_file(_: Machine, __: CpuSet, entry: Entry) -> str:
    raise HostError(entry.container_id, "nobody makes placement files here")


def _has_decided_cpus(container: Container) -> bool:
    """Whether the CPUs of *container* are those of our decision that its annotation carries."""
    carried = entries_in([container]).get(container.id)
    return carried is not None and carried.notified_cpus == container.resources.cpuset_cpus


logger = logging.getLogger(__name__)

PODS_AT_ONCE: Final = 4
"""In one transaction, which a creation may have to wait for: a millisecond for each container."""

PAUSE_S: Final = 0.5
"""Between two rounds: where many pods come at once one write to the disk is enough."""


class ExactRequests:
    """Follows what becomes known of pods and corrects the claims of their containers."""

    def __init__(self, state: NodeState) -> None:
        self._state = state
        self._pods = state.kubelet_pods
        self._due = asyncio.Event()
        self._pods.became_due = self._due.set

    async def follow(self, pause_s: float = PAUSE_S) -> None:
        """Correct claims whenever something is known that was not, until cancelled."""
        while True:
            await self._due.wait()
            await asyncio.sleep(pause_s)
            self._due.clear()
            try:
                await self.correct()
            except StateError as error:
                logger.warning("requests not corrected yet", extra={"problem": str(error)})
                self._due.set()
            except Exception:
                # Placing containers does not depend on it.
                logger.exception("requests could not be corrected")

    async def correct(self) -> None:
        """Correct the claims of all containers whose pods are due, of a few pods at a time: whoever waits for
        the ledger has it in between.

        Raises:
            StateError: it could not be recorded; they stay due.
        """
        while due := self._pods.take_due(PODS_AT_ONCE):
            try:
                await self._correct(due)
            except BaseException:
                self._pods.put_back(due)
                raise

    async def _correct(self, due: Mapping[str, bool]) -> None:
        async with self._state.transaction() as transaction:
            basis = transaction.basis
            requests = dict(self._found(basis, due))
            if not requests:
                return
            corrected = with_corrected_requests(basis, basis.engine, requests)
            await transaction.commit(corrected)
        for container_id, request in requests.items():
            fields = {"container": request.name, "container_id": container_id}
            logger.info("request corrected", extra={**fields, "memory": memory_text(request.memory)})
        self._state.counters["requests_corrected"] += len(requests)
        self._state.capacity_freed()

    def _found(self, basis: Basis, due: Mapping[str, bool]) -> Iterator[tuple[str, Request]]:
        """The containers of the pods *due* that request something else than the ledger has, by their ids."""
        known = self._state.known
        for container in known.containers.values():
            pod, entry = known.pods.get(container.pod_id), basis.ledger.entries.get(container.id)
            if pod is None or entry is None or pod.uid not in due:
                continue
            before = entry.decision.request
            request = self._pods.corrected(
                pod, container.name, basis.machine.memory_bytes, before, new=due[pod.uid]
            )
            if request != before:
                yield container.id, request


def _with_own(
    updates: Sequence[Update], own: Update, mems: NodeSet | None, unified: Mapping[str, str]
) -> Sequence[Update]:
    """*updates* with that of the container itself, which also gets *mems* and *unified*."""
    if mems is None and not unified:
        return updates
    others = [one for one in updates if one.container_id != own.container_id]
    return (*others, replace(own, cpuset_mems=mems or own.cpuset_mems, unified=unified))
