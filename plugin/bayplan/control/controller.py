"""The events of the NRI runtime: each becomes a transaction with a step of `placements`, and a reply.

Order in every handler: decide, commit, answer. `bayplan.nri.handler` has the contract of the handlers (one at
a time, late, missed). No IO but through the recorder and the host calls given to it.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final

from msgspec.structs import replace

from bayplan.control.device_search import DeviceSearch
from bayplan.control.expectations import Expectation, expectations
from bayplan.control.known_containers import KnownContainers
from bayplan.control.lives import REMEMBERED, listed_as
from bayplan.control.notified import KNOWN_SINCE, KernelCpusets, updates_over_nri
from bayplan.control.placements import HOUR_S, Placements
from bayplan.control.recorder import Recorder
from bayplan.control.threads import InThread
from bayplan.control.transactions import Current, Transaction, Transactions
from bayplan.engines.interface import Engine
from bayplan.errors import BayplanError
from bayplan.host.occupancy import Place
from bayplan.model.container_names import container_name
from bayplan.model.decision import Outcome
from bayplan.model.ledger import Entry, Ledger
from bayplan.model.life import Action, Phase, Report, Step
from bayplan.model.machine import Machine
from bayplan.model.origin import NRI
from bayplan.model.policy import PlacementPolicy
from bayplan.model.resources import Resources
from bayplan.model.sentences import undecided
from bayplan.model.wishes import readable_wishes
from bayplan.model.workload import Adjustment, Container, ContainerState, Pod, Update
from bayplan.nri import Clock, Event, Runtime
from bayplan.placement.adjustment import isolated_cpus, wanted_for, wanted_oom_score_adj
from bayplan.placement.ledger_check import Fault
from bayplan.placement.reconcile import reconcile
from bayplan.quantity import US_PER_S
from bayplan.sets import CpuSet
from bayplan.state import entries_in

logger = logging.getLogger(__name__)

_EVENTS = KNOWN_SINCE | {
    Event.CREATE_CONTAINER,
    Event.UPDATE_CONTAINER,
    Event.POST_UPDATE_CONTAINER,
    Event.STOP_CONTAINER,
    Event.REMOVE_CONTAINER,
    Event.RUN_POD_SANDBOX,
    Event.STOP_POD_SANDBOX,
    Event.REMOVE_POD_SANDBOX,
}
_REPORTS: Final = {
    Event.POST_CREATE_CONTAINER: Report.POST_CREATED,
    Event.START_CONTAINER: Report.STARTING,
    Event.POST_START_CONTAINER: Report.STARTED,
    Event.UPDATE_CONTAINER: Report.UPDATE_ASKED,
    Event.POST_UPDATE_CONTAINER: Report.UPDATED,
    Event.STOP_CONTAINER: Report.STOPPED,
    Event.REMOVE_CONTAINER: Report.REMOVED,
}
"""What the events of containers report; a creation reports nothing of a container that there is."""

_CREATION_US: Final = 10_000_000
"""So long a creation may be under way: an emulated `runc create` takes seconds, six at a time."""

_REPLIES = {Event.SYNCHRONIZE, Event.CREATE_CONTAINER, Event.UPDATE_CONTAINER, Event.STOP_CONTAINER}
"""The events whose answers have updates."""


class Controller:
    """The handlers, one at a time. What they decide by can be read at any time; it changes in transactions.

    ``placements`` are the steps for those who open a transaction of their own. *became* is called with each
    basis that becomes current.
    """

    def __init__(
        self,
        machine: Machine,
        policy: PlacementPolicy,
        engine: Engine,
        recorder: Recorder,
        *,
        cgroup_v2: bool,
        write_oom_score_adj: Callable[[Pod, Container, int], Awaitable[None]],
        cpusets: KernelCpusets,
        verify_soon: Callable[[], None],
        has_process: Callable[[Place], Awaitable[bool]],
        weighted_interleave: bool = True,
        devices: DeviceSearch | None = None,
        capacity_freed: Callable[[], None] = lambda: None,
        clock: Clock | None = None,
        decide_in_thread: InThread | None = None,
        became: Callable[[Current], None] | None = None,
        runs_if_refused: bool = False,
    ) -> None:
        self._transactions = Transactions(Current(machine, policy, Ledger(), engine), recorder, clock, became)
        self.changes = self._transactions.changes
        """Everything that became different lately, in order, refusals too."""
        self.placements = Placements(
            recorder,
            self.changes,
            cgroup_v2=cgroup_v2,
            weighted_interleave=weighted_interleave,
            devices=devices,
            capacity_freed=capacity_freed,
            cpusets=cpusets,
            decide_in_thread=decide_in_thread,
            runs_if_refused=runs_if_refused,
        )
        self.counters = self.placements.counters
        self.recorder = recorder
        self.capacity_freed = capacity_freed
        """To be called when there may be room for containers that lack some, or that were moved."""
        self.before_promises: Callable[[], Awaitable[None]] = _nothing_to_await
        """Awaited in the transaction in which a runtime listed what runs, before anything is promised."""
        self.before_start: Callable[[str], Awaitable[None]] = _nothing_before_start
        """Awaited before a container starts that has its cgroup, by its id."""
        self.synchronized = asyncio.Event()
        """Set each time that a runtime has listed what runs."""
        self.was_synchronized = False
        """Whether a runtime has listed what runs since the start."""
        self._write_oom_score_adj = write_oom_score_adj
        self._cpusets = cpusets
        self._verify_soon = verify_soon
        self._has_process = has_process
        self._has_partitions = cgroup_v2
        self._doubtful: dict[str, tuple[Report, Pod, Container]] = {}
        """What was missed of containers that had ended as far as is known, by id."""
        self._devices = devices

    @property
    def basis(self) -> Current:
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

    @property
    def known(self) -> KnownContainers:
        """The containers as their runtimes described them."""
        return self.placements.known

    @property
    def runtime(self) -> Runtime | None:
        """The NRI runtime, while it is connected."""
        return self.placements.runtime

    def transaction(self) -> AbstractAsyncContextManager[Transaction]:
        """The next transaction, once all that were asked for before have ended."""
        return self._transactions.transaction()

    def schedule(self, change: Callable[[Transaction], None]) -> None:
        """Run *change* now, or when the open transaction ends."""
        self._transactions.schedule(change)

    async def wait_written(self) -> None:
        """Wait until what has happened is on the disk, or could not be recorded for now."""
        await self._transactions.wait_written()

    async def follow_record(self) -> None:
        """See that what is recorded stays where it is, until cancelled."""
        await self._transactions.follow_record()

    async def check_ledger(self) -> tuple[Fault, ...]:
        """What does not hold of the ledger and its record, after it was put right where it could be."""
        async with self.transaction() as transaction:
            await self.wait_written()
            faults = self._check(transaction, await self.recorder.ledger())
        await self.wait_written()
        return faults

    def _check(self, transaction: Transaction, recorded: Ledger | None = None) -> tuple[Fault, ...]:
        faults = transaction.check(recorded)
        for fault in faults:
            if fault.is_ours:
                self.counters["ledger_faults"] += 1
        return faults

    async def restore(self) -> None:
        """Rebuild the ledger from the store, before the first contact with a runtime."""
        await self._transactions.restore()
        async with self.transaction() as transaction:
            self._check(transaction)
        names = await self.recorder.names(REMEMBERED)
        now_us = time.time_ns() // 1000
        recorded = await self.recorder.decided(now_us - HOUR_S * US_PER_S)
        self.placements.lives.restore(
            self.ledger.entries,
            [container_id for _, container_id in names],
            {one.request.container_id for at_us, one in recorded if at_us >= now_us - _CREATION_US},
        )
        self.placements.relocated_before(recorded, now_us)
        self.known.add_recorded(self.ledger.entries)

    def take_engine(self, engine: Engine) -> None:
        """Decide by *engine* from the next transaction on; what was promised stays promised."""
        self.schedule(lambda transaction: transaction.accept(engine=engine))

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
        withheld, starting = basis.policy.withheld_cpus, self.placements.lives.starting
        return expectations(
            basis.machine,
            withheld,
            basis.ledger,
            known.pods,
            containers,
            starting,
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

    def events(self, runtime: Runtime) -> frozenset[Event]:  # noqa: ARG002 - the session masks what it lacks
        """The events that decisions need; each one costs the runtime a round trip per operation."""
        return _EVENTS

    def connected(self, runtime: Runtime) -> None:
        """The runtime accepted us. What it read from its own directory for plugins is not ours to apply."""
        if runtime.config.strip():
            logger.warning("the runtime's file for this plugin is not read; keys belong into /etc/bayplan")
        self.placements.runtime = runtime
        self.counters["connections"] += 1

    def disconnected(self, why: str) -> None:
        """The runtime went away, or dropped us; what it runs stays as it is."""
        self.placements.runtime = None
        logger.warning("disconnected from the runtime", extra={"why": why})

    async def synchronize(self, pods: Sequence[Pod], containers: Sequence[Container]) -> Sequence[Update]:
        """Make ledger and runtime agree on what exists."""
        by_id = {pod.id: pod for pod in pods}
        async with self.transaction() as transaction:
            listed = [await self._as_it_is(by_id, one) for one in containers]
            updates = self._synchronize(transaction, by_id, listed)
            self._check(transaction)
            await self.before_promises()
        await self.wait_written()
        self.synchronized.set()
        self.was_synchronized = True
        return self._for_runtime(updates, {container.id for container in containers})

    async def enter_listed(self, pod: Pod, container: Container) -> None:
        """Enter a container that exists and that the runtime has not told of, neither by NRI's list nor by an
        event; nothing of one that was heard of meanwhile."""
        async with self.transaction() as transaction:
            if self.placements.lives.is_unheard_of(container.id):
                await self._report(transaction, listed_as(container), pod, container)
        await self.wait_written()

    async def _as_it_is(self, pods: Mapping[str, Pod], container: Container) -> Container:
        """*container* as the runtime lists it; as one that has ended if it did, and the runtime has not dealt
        with that yet."""
        pod = pods.get(container.pod_id, Pod(container.pod_id))
        step = await self._step(listed_as(container), pod, container)
        if step.action is not Action.IGNORE or step.phase is not Phase.ENDED:
            return container
        self.placements.ignore(listed_as(container), container.id, step)
        return replace(container, state=ContainerState.STOPPED)

    async def _step(self, report: Report, pod: Pod, container: Container) -> Step:
        """What is to be done about *report*, in an open transaction. Where that depends on the container's
        processes, the kernel is asked."""
        lives = self.placements.lives
        phase, step = lives.phase(container.id), lives.step(report, container.id)
        if not step.depends_on_process:
            return step
        entry = self.ledger.entries.get(container.id)
        place = Place.of(pod, container, NRI if entry is None else entry.origin)
        ends = step.action is Action.RELEASE_IF_DEAD
        return step.settled(phase, has_process=await self._shows_process(place, otherwise=ends))

    def _synchronize(
        self, transaction: Transaction, pods: Mapping[str, Pod], containers: Sequence[Container]
    ) -> Sequence[Update]:
        basis = transaction.basis
        recorded, known = basis.ledger.entries, self.known
        refused = self.placements.lives.refused
        decided = [one for one in containers if one.id not in refused]
        result = reconcile(
            basis,
            basis.engine,
            pods,
            [one if one.id in recorded else known.without_default_cpus(one) for one in decided],
            carried=entries_in(one for one in containers if one.id not in recorded),
            kubelet_pins_cpus=self.placements.decision_log.pins.kubelet_pins_cpus(basis.ledger),
        )
        transaction.accept(ledger=result.ledger, replace_all=True)
        placements, entries = self.placements, result.ledger.entries
        placements.notifications.synchronized(result.updates)
        placements.lives.synchronized(entries, containers)
        self.capacity_freed()
        placements.known = KnownContainers()
        for container in containers:
            self.known.add(pods.get(container.pod_id, Pod(container.pod_id)), container)
        self.known.add_recorded(entries, seen={container.id for container in containers})
        for pod in self.known.pods.values():
            placements.kubelet_pods.expect(pod)
        placements.stopped_pods &= pods.keys()
        if self._devices is not None:
            self._devices.keep(pods)
        self.placements.decision_log.synchronized(result)
        # An earlier daemon may have died between a commit and the kernel.
        self._cpusets.sync_soon()
        return result.updates

    async def create_container(self, pod: Pod, container: Container) -> tuple[Adjustment, Sequence[Update]]:
        """Place a container that is about to be created.

        Raises:
            PlacementError: a strict policy does not allow any placement that is left.
        """
        async with self.transaction() as transaction:
            await self._release_replaced(transaction, pod, container)
            adjustment, updates = await self.placements.place(transaction, pod, container)
        return adjustment, self._for_runtime(updates)

    async def _release_replaced(self, transaction: Transaction, pod: Pod, container: Container) -> None:
        """Release those of the same name in its pod that never got a process, and never will."""
        starting, known = self.placements.lives.starting, self.known
        for container_id in sorted(known.ids_by_pod.get(pod.id, set()) & starting.keys() - {container.id}):
            # CRI-O up to 1.36 describes those without kubelet's labels without their names.
            if container.name and known.containers[container_id].name == container.name:
                await self.report(transaction, Report.REPLACED, container_id)

    async def update_container(
        self, pod: Pod, container: Container, resources: Resources
    ) -> Sequence[Update]:
        """Decide again about a container whose resources change; refused, everything stays as it was.

        Raises:
            PlacementError: a strict policy does not allow the changed request.
        """
        before = self.ledger.exclusive_cpus
        async with self.transaction() as transaction:
            report = _report_of(Event.UPDATE_CONTAINER, container)
            step = await self._step(report, pod, container)
            if step.action is Action.CHANGE:
                self.placements.lives.go_on(container.id, step.phase)
                updates = await self.placements.change(transaction, pod, container, resources)
            else:
                updates = self._take(transaction, report, step, pod, container, replied=True)
        if not self.ledger.exclusive_cpus <= before:
            # It runs already: others must have left its new exclusive CPUs before it is answered.
            await self._cpusets.sync()
        return self._for_runtime(updates, {container.id})

    async def stop_container(self, pod: Pod, container: Container) -> Sequence[Update]:
        """Release what a container held; its exclusive CPUs go back to the shared pool."""
        async with self.transaction() as transaction:
            updates = await self._report(transaction, Report.STOPPED, pod, container, replied=True)
        await self.wait_written()
        return self._for_runtime(updates)

    def _for_runtime(self, updates: Sequence[Update], listed: Collection[str] = ()) -> Sequence[Update]:
        """The *updates* that the runtime can carry out; the others are written to the kernel."""
        own = updates_over_nri(updates, self.ledger, listed) if updates else []
        if len(own) < len(updates):
            self._verify_soon()
        return own

    async def state_changed(self, event: Event, pod: Pod, container: Container | None) -> None:
        """Every other event. Its answer has no updates; what is due is written to the kernel."""
        async with self.transaction() as transaction:
            if container is None:
                await self._pod_changed(transaction, event, pod)
            elif event in _REPORTS:
                if event is Event.POST_UPDATE_CONTAINER:
                    self._update_completed(transaction, container.id)
                await self._report(transaction, _report_of(event, container), pod, container)
        await self.wait_written()
        if container is None or container.id not in self.ledger.entries:
            return
        if event is Event.START_CONTAINER:
            await self._see_process(pod, container)
            await self._set_oom_score_adj(pod, container)
            await self.sync_before_start(container.id)
        elif self.placements.notifications.may_differ(event, self.basis, container.id):
            await self._cpusets.sync((container.id,), mems=True)

    async def _report(
        self,
        transaction: Transaction,
        report: Report,
        pod: Pod,
        container: Container,
        *,
        replied: bool = False,
    ) -> Sequence[Update]:
        """Do what is to be done about *report*; *replied* as for `Placements.release`."""
        step = await self._step(report, pod, container)
        return self._take(transaction, report, step, pod, container, replied=replied)

    async def report(self, transaction: Transaction, report: Report, container_id: str) -> Step:
        """Do what is to be done about *report* of a container that is not described with it; what that
        was."""
        container = self.known.containers.get(container_id, Container(container_id, ""))
        pod = self.known.pods.get(container.pod_id, Pod(container.pod_id))
        step = await self._step(report, pod, container)
        self._take(transaction, report, step, pod, container)
        return step

    def _take(
        self,
        transaction: Transaction,
        report: Report,
        step: Step,
        pod: Pod,
        container: Container,
        *,
        replied: bool = False,
    ) -> Sequence[Update]:
        placements = self.placements
        match step.action:
            case Action.RELEASE:
                return placements.release(transaction, container.id, report, replied=replied)
            case Action.ENTER:
                self._verify_soon()
                return placements.enter(transaction, pod, container, step.phase, replied=replied)
            case Action.KEEP:
                placements.keep(report, step, pod, container)
            case _:
                placements.ignore(report, container.id, step)
        return ()

    async def _see_process(self, pod: Pod, container: Container) -> None:
        """Note that a container that is about to start has a process. Where the kernel shows it, it also
        shows its end: whether or not the runtime reports that."""
        life, entry = self.placements.lives.of(container.id), self.ledger.entries.get(container.id)
        place = Place.of(pod, container, NRI if entry is None else entry.origin)
        if life is not None and not life.had_process:
            life.had_process = await self._shows_process(place, otherwise=False)

    async def _shows_process(self, place: Place, *, otherwise: bool) -> bool:
        """Whether the kernel shows a process of a container; *otherwise*: if it does not say."""
        try:
            return await self._has_process(place)
        except BayplanError as error:
            extra = {"container_id": place.container_id, "problem": str(error)}
            logger.warning("cannot see whether a container has ended", extra=extra)
            return otherwise

    async def _pod_changed(self, transaction: Transaction, event: Event, pod: Pod) -> None:
        if event is Event.RUN_POD_SANDBOX:
            self.placements.kubelet_pods.expect(pod)
            if self._devices is not None:
                self._devices.pod_started(pod)
        if event in (Event.STOP_POD_SANDBOX, Event.REMOVE_POD_SANDBOX):
            self.placements.stopped_pods.add(pod.id)
            transaction.accept(ledger=transaction.basis.ledger.without_retained(pod.id))
            await self._pod_ended(transaction, event, pod)
        if event is Event.REMOVE_POD_SANDBOX:
            if self._devices is not None:
                self._devices.pod_gone(pod.id)
            self.placements.stopped_pods.discard(pod.id)

    async def _pod_ended(self, transaction: Transaction, event: Event, pod: Pod) -> None:
        """Release what its containers hold: all when it is removed, and those without a process before."""
        report = Report.REMOVED if event is Event.REMOVE_POD_SANDBOX else Report.POD_STOPPED
        entries = transaction.basis.ledger.entries
        for container_id in [key for key, one in entries.items() if one.decision.request.pod_id == pod.id]:
            await self.report(transaction, report, container_id)

    def _update_completed(self, transaction: Transaction, container_id: str) -> None:
        """The runtime has carried out the answer to an update of the container itself, perhaps after a later
        update: the CPUs of that answer are those that the container has."""
        answered, cpus = self.placements.notifications.update_completed(container_id)
        entry = transaction.basis.ledger.entries.get(container_id)
        if entry is not None and entry.origin.runtime_applies and (cpus is not None or not answered):
            ledger = transaction.basis.ledger.with_notified_cpus({container_id: cpus}, carried_out=answered)
            transaction.accept(ledger=ledger)

    async def _set_oom_score_adj(self, pod: Pod, container: Container) -> None:
        """Write the oom_score_adj that the runtime cannot set. A container that was found is left alone."""
        entry = self.ledger.entries.get(container.id)
        if entry is None or entry.decision.outcome is Outcome.ADOPTED:
            return
        if self.placements.runtime_sets_oom_score_adj or not self.policy.set_oom_score_adj:
            return
        wanted = wanted_oom_score_adj(
            entry.decision.request, container, self.machine, self.policy.outside_requests
        )
        if wanted is not None:
            await self._write_oom_score_adj(pod, container, wanted)
            self.known.oom_score_adj[container.id] = wanted

    async def sync_before_start(self, container_id: str) -> None:
        """Have the kernel's cpusets right for a container that has its cgroup, before its first instruction.

        What was decided since its creation did not reach it: containerd does not change the cgroup of a
        container that does not run yet, and nobody changes a spec that was rewritten. Nor does the owner of
        exclusive CPUs start before all others have left them.
        """
        await self._cpusets.sync((container_id,), mems=True)
        entry = self.ledger.entries.get(container_id)
        if entry is not None and entry.decision.placement.apart_cpus:
            await self._cpusets.sync()
        await self.before_start(container_id)

    def refuses_undecided(self) -> bool:
        """Whether the runtime should fail a request that we do not answer."""
        return self.policy.refuse_undecided

    def fallback_adjustment(self, pod: Pod, container: Container) -> Adjustment:
        """The safe answer when there is no time or no way to decide: nobody's exclusive CPUs.

        Raises:
            PlacementError: the operator has it refused.
        """
        policy = self.policy
        forbidden = policy.forbidden_annotations
        opted_out = readable_wishes(pod.annotations, container.name, self.machine, forbidden).opted_out
        if policy.refuse_undecided and not opted_out and pod.namespace not in policy.undecided_namespaces:
            raise undecided(container_name(pod, container))
        free = not opted_out and container.resources.cpuset_cpus is None
        return self.known.default_adjustment(container, self.basis.shared_cpus) if free else Adjustment()

    def missed(
        self, event: Event, container_id: str, why: str, described: tuple[Pod, Container] | None = None
    ) -> None:
        """The runtime went on without our answer.

        A decision that did not reach it is undone: the container is found when it starts. A container that
        stopped holds nothing, whether or not that could be recorded in time.
        """
        self.counters["missed"] += 1
        extra = {"event": event.name, "id": container_id, "why": why}
        logger.error("the runtime went on without a decision", extra=extra)
        if event in _REPLIES:
            self.schedule(lambda transaction: self._undo(transaction, event, container_id))
        elif container_id:
            self.schedule(lambda transaction: self._apply_missed(transaction, event, described))
            self._verify_soon()

    def _undo(self, transaction: Transaction, event: Event, container_id: str) -> None:
        """Undo what a lost reply contained."""
        entry, lives = transaction.basis.ledger.entries.get(container_id), self.placements.lives
        ended = event is Event.STOP_CONTAINER
        # Unless it was decided since, on another way.
        decided = event is Event.CREATE_CONTAINER and (entry is None or entry.origin.runtime_applies)
        if ended:
            self.known.forget(container_id)
            lives.end(container_id, Report.STOPPED)
        elif decided:
            lives.begin(container_id, Phase.UNDECIDED)
        elif event is Event.UPDATE_CONTAINER and entry is not None:
            lives.go_on(container_id, lives.step(Report.UPDATE_ASKED, container_id).phase)
        self.placements.undo(transaction, container_id, forget=ended or decided)
        # The answer may have been for others too.
        self._verify_soon()

    def _apply_missed(
        self, transaction: Transaction, event: Event, described: tuple[Pod, Container] | None
    ) -> None:
        """Apply a missed event: the end of a container, or that it exists. Where that depends on what the
        kernel shows, it is asked with the next verification."""
        if described is None or event not in _REPORTS:
            return
        pod, container = described
        report = _report_of(event, container)
        step = self.placements.lives.step(report, container.id)
        if step.depends_on_process:
            self._doubtful[container.id] = report, pod, container
        else:
            self._take(transaction, report, step, pod, container)

    async def settle_doubts(self) -> None:
        """Apply the missed events that depend on what the kernel shows."""
        while self._doubtful:
            _, (report, pod, container) = self._doubtful.popitem()
            async with self.transaction() as transaction:
                await self._report(transaction, report, pod, container)


def _report_of(event: Event, container: Container) -> Report:
    """What *event* reports. A container that is described as one that has ended has, whatever else it
    says."""
    ended = container.state is ContainerState.STOPPED and event is not Event.REMOVE_CONTAINER
    return Report.STOPPED if ended else _REPORTS[event]


async def _nothing_to_await() -> None:
    """For a controller without a measurement."""


async def _nothing_before_start(container_id: str) -> None:
    """For a controller whose nodes nobody watches."""
