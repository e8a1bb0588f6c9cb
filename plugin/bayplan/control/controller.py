"""The events of the NRI runtime: each becomes a transaction with a step of `placements`, and a reply.

Order in every handler: decide, commit, answer. `bayplan.nri.handler` has the contract of the handlers (one at
a time, late, missed). No IO but through the recorder and the host calls given to it.
"""

import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from bayplan.control.device_search import DeviceSearch
from bayplan.control.known_containers import KnownContainers
from bayplan.control.lives import KNOWN_SINCE, KernelCpusets, listed_as, updates_over_nri
from bayplan.control.placements import Placements
from bayplan.control.state import NodeState, Transaction
from bayplan.errors import BayplanError
from bayplan.host.container_processes import Place
from bayplan.model.decision import Outcome
from bayplan.model.life import Action, LifeStep, Phase, Report
from bayplan.model.origin import NRI
from bayplan.model.resources import Resources
from bayplan.model.sentences import undecided
from bayplan.model.wishes import readable_wishes
from bayplan.model.workload import Adjustment, Container, ContainerState, Pod, Update, container_name
from bayplan.nri import Event, Runtime
from bayplan.placement.adjustment import wanted_oom_score_adj
from bayplan.placement.reconcile import reconcile
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

_REPLIES = {Event.SYNCHRONIZE, Event.CREATE_CONTAINER, Event.UPDATE_CONTAINER, Event.STOP_CONTAINER}
"""The events whose answers have updates."""


class Controller:
    """The handlers, one at a time. ``state`` is what they decide by and change; ``placements`` are the steps,
    also for those who open a transaction of their own.

    *before_promises* is awaited in the transaction in which a runtime has listed what runs, before anything
    is promised. *before_start* are awaited in their order, with the container's id, before a container starts
    that has its cgroup.
    """

    def __init__(
        self,
        state: NodeState,
        placements: Placements,
        *,
        write_oom_score_adj: Callable[[Pod, Container, int], Awaitable[None]],
        cpusets: KernelCpusets,
        verify_soon: Callable[[], None],
        has_process: Callable[[Place], Awaitable[bool]],
        devices: DeviceSearch | None = None,
        before_promises: Callable[[], Awaitable[None]] | None = None,
        before_start: Sequence[Callable[[str], Awaitable[None]]] = (),
    ) -> None:
        self.state = state
        self.placements = placements
        self._before_promises = before_promises
        self._before_start = before_start
        self._write_oom_score_adj = write_oom_score_adj
        self._cpusets = cpusets
        self._verify_soon = verify_soon
        self._has_process = has_process
        self._doubtful: dict[str, tuple[Report, Pod, Container]] = {}
        """What was missed of containers that are known to have ended, by id."""
        self._devices = devices

    def events(self, runtime: Runtime) -> frozenset[Event]:  # noqa: ARG002 - the session masks what it lacks
        """The events that decisions need; each one costs the runtime a round trip per operation."""
        return _EVENTS

    def connected(self, runtime: Runtime) -> None:
        """The runtime has accepted us. What it read from its own directory for plugins is not for us to
        apply."""
        if runtime.config.strip():
            logger.warning("the runtime's file for this plugin is not read; keys belong into /etc/bayplan")
        self.state.runtime = runtime
        self.state.counters["connections"] += 1

    def disconnected(self, why: str) -> None:
        """The connection to the runtime has ended; what it runs stays as it is."""
        self.state.runtime = None
        logger.warning("disconnected from the runtime", extra={"why": why})

    async def synchronize(self, pods: Sequence[Pod], containers: Sequence[Container]) -> Sequence[Update]:
        """Make ledger and runtime agree on what exists."""
        by_id = {pod.id: pod for pod in pods}
        async with self.state.transaction() as transaction:
            listed = [await self._as_it_is(by_id, one) for one in containers]
            updates = self._synchronize(transaction, by_id, listed)
            self.state.check(transaction)
            if self._before_promises is not None:
                await self._before_promises()
        await self.state.wait_written()
        self.state.synchronized.set()
        self.state.was_synchronized = True
        return self._for_runtime(updates, {container.id for container in containers})

    async def enter_listed(self, pod: Pod, container: Container) -> None:
        """Enter a container that exists and of which the runtime has told nothing, neither by NRI's list nor
        by an event; do nothing if something was heard of it meanwhile."""
        async with self.state.transaction() as transaction:
            if self.state.lives.is_unheard_of(container.id):
                await self._report(transaction, listed_as(container), pod, container)
        await self.state.wait_written()

    async def _as_it_is(self, pods: Mapping[str, Pod], container: Container) -> Container:
        """*container* as the runtime lists it, or as one that has ended if the kernel shows its end and the
        runtime has not reported it yet."""
        pod = pods.get(container.pod_id, Pod(container.pod_id))
        step = await self._step(listed_as(container), pod, container)
        if step.action is not Action.IGNORE or step.phase is not Phase.ENDED:
            return container
        self.placements.ignore(listed_as(container), container.id, step)
        return replace(container, state=ContainerState.STOPPED)

    async def _step(self, report: Report, pod: Pod, container: Container) -> LifeStep:
        """What is to be done about *report*, in an open transaction. Where that depends on the container's
        processes, the kernel is asked."""
        lives = self.state.lives
        phase, step = lives.phase(container.id), lives.step(report, container.id)
        if not step.depends_on_process:
            return step
        entry = self.state.ledger.entries.get(container.id)
        place = Place.of(pod, container, NRI if entry is None else entry.origin)
        ends = step.action is Action.RELEASE_IF_DEAD
        return step.settled(phase, has_process=await self._shows_process(place, otherwise=ends))

    def _synchronize(
        self, transaction: Transaction, pods: Mapping[str, Pod], containers: Sequence[Container]
    ) -> Sequence[Update]:
        basis = transaction.basis
        recorded, known = basis.ledger.entries, self.state.known
        refused = self.state.lives.refused
        decided = [one for one in containers if one.id not in refused]
        result = reconcile(
            basis,
            basis.engine,
            pods,
            [one if one.id in recorded else known.without_default_cpus(one) for one in decided],
            carried=entries_in(one for one in containers if one.id not in recorded),
            kubelet_pins_cpus=self.state.decision_log.pins.kubelet_pins_cpus(basis.ledger),
        )
        transaction.accept(ledger=result.ledger, replace_all=True)
        state, entries = self.state, result.ledger.entries
        state.notifications.synchronized(result.updates)
        state.lives.synchronized(entries, containers)
        self.state.capacity_freed()
        state.known = KnownContainers()
        for container in containers:
            self.state.known.add(pods.get(container.pod_id, Pod(container.pod_id)), container)
        self.state.known.add_recorded(entries, seen={container.id for container in containers})
        for pod in self.state.known.pods.values():
            state.kubelet_pods.expect(pod)
        state.stopped_pods &= pods.keys()
        if self._devices is not None:
            self._devices.keep(pods)
        self.state.decision_log.synchronized(result)
        # An earlier daemon may have died between a commit and the kernel.
        self._cpusets.sync_soon()
        return result.updates

    async def create_container(self, pod: Pod, container: Container) -> tuple[Adjustment, Sequence[Update]]:
        """Place a container that is about to be created.

        Raises:
            PlacementError: a strict policy does not allow any placement that is left.
        """
        async with self.state.transaction() as transaction:
            if pod.id in self.state.known.ids_by_pod:
                await self._release_replaced(transaction, pod, container)
            adjustment, updates = await self.placements.place(transaction, pod, container)
        return adjustment, self._for_runtime(updates) if updates else []

    async def _release_replaced(self, transaction: Transaction, pod: Pod, container: Container) -> None:
        """Release the containers of the same name in its pod that never had a process, and never will."""
        starting, known = self.state.lives.starting, self.state.known
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
        before = self.state.ledger.exclusive_cpus
        async with self.state.transaction() as transaction:
            report = _report_of(Event.UPDATE_CONTAINER, container)
            step = await self._step(report, pod, container)
            if step.action is Action.CHANGE:
                self.state.lives.go_on(container.id, step.phase)
                updates = await self.placements.change(transaction, pod, container, resources)
            else:
                updates = self._take(transaction, report, step, pod, container, replied=True)
        if not self.state.ledger.exclusive_cpus <= before:
            # It runs already: others must have left its new exclusive CPUs before it is answered.
            await self._cpusets.sync()
        return self._for_runtime(updates, {container.id})

    async def stop_container(self, pod: Pod, container: Container) -> Sequence[Update]:
        """Release what a container held; its exclusive CPUs go back to the shared pool."""
        async with self.state.transaction() as transaction:
            updates = await self._report(transaction, Report.STOPPED, pod, container, replied=True)
        await self.state.wait_written()
        return self._for_runtime(updates)

    def _for_runtime(self, updates: Sequence[Update], listed: Collection[str] = ()) -> Sequence[Update]:
        """The *updates* that the runtime can carry out; the others are written to the kernel."""
        own = updates_over_nri(updates, self.state.ledger, listed) if updates else []
        if len(own) < len(updates):
            self._verify_soon()
        return own

    async def state_changed(self, event: Event, pod: Pod, container: Container | None) -> None:
        """Every other event. Its answer has no updates; what is due is written to the kernel."""
        async with self.state.transaction() as transaction:
            if container is None:
                await self._pod_changed(transaction, event, pod)
            elif event in _REPORTS:
                if event is Event.POST_UPDATE_CONTAINER:
                    self._update_completed(transaction, container.id)
                await self._report(transaction, _report_of(event, container), pod, container)
        await self.state.wait_written()
        if container is None or container.id not in self.state.ledger.entries:
            return
        if event is Event.START_CONTAINER:
            await self._see_process(pod, container)
            await self._set_oom_score_adj(pod, container)
            await self.sync_before_start(container.id)
        elif self.state.notifications.may_differ(event, self.state.basis, container.id):
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

    async def report(self, transaction: Transaction, report: Report, container_id: str) -> LifeStep:
        """Do what follows from *report* about a container whose description does not come with it; the step
        that was taken."""
        container = self.state.known.containers.get(container_id, Container(container_id, ""))
        pod = self.state.known.pods.get(container.pod_id, Pod(container.pod_id))
        step = await self._step(report, pod, container)
        self._take(transaction, report, step, pod, container)
        return step

    def _take(
        self,
        transaction: Transaction,
        report: Report,
        step: LifeStep,
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
        life, entry = self.state.lives.of(container.id), self.state.ledger.entries.get(container.id)
        place = Place.of(pod, container, NRI if entry is None else entry.origin)
        if life is not None and not life.had_process:
            life.had_process = await self._shows_process(place, otherwise=False)

    async def _shows_process(self, place: Place, *, otherwise: bool) -> bool:
        """Whether the kernel shows a process of a container; *otherwise* where the kernel does not say."""
        try:
            return await self._has_process(place)
        except BayplanError as error:
            extra = {"container_id": place.container_id, "problem": str(error)}
            logger.warning("cannot see whether a container has ended", extra=extra)
            return otherwise

    async def _pod_changed(self, transaction: Transaction, event: Event, pod: Pod) -> None:
        if event is Event.RUN_POD_SANDBOX:
            self.state.kubelet_pods.expect(pod)
            if self._devices is not None:
                self._devices.pod_started(pod)
        if event in (Event.STOP_POD_SANDBOX, Event.REMOVE_POD_SANDBOX):
            self.state.stopped_pods.add(pod.id)
            transaction.accept(ledger=transaction.basis.ledger.without_retained(pod.id))
            await self._pod_ended(transaction, event, pod)
        if event is Event.REMOVE_POD_SANDBOX:
            if self._devices is not None:
                self._devices.pod_gone(pod.id)
            self.state.stopped_pods.discard(pod.id)

    async def _pod_ended(self, transaction: Transaction, event: Event, pod: Pod) -> None:
        """Release what its containers hold: all when it is removed, and those without a process before."""
        report = Report.REMOVED if event is Event.REMOVE_POD_SANDBOX else Report.POD_STOPPED
        for container_id in transaction.basis.ledger.ids_by_pod.get(pod.id, ()):
            await self.report(transaction, report, container_id)

    def _update_completed(self, transaction: Transaction, container_id: str) -> None:
        """The runtime has carried out the answer to an update of the container itself, perhaps after a later
        update: the CPUs of that answer are those that the container has."""
        answered, cpus = self.state.notifications.update_completed(container_id)
        entry = transaction.basis.ledger.entries.get(container_id)
        if entry is not None and entry.origin.runtime_applies and (cpus is not None or not answered):
            ledger = transaction.basis.ledger.with_notified_cpus({container_id: cpus}, carried_out=answered)
            transaction.accept(ledger=ledger)

    async def _set_oom_score_adj(self, pod: Pod, container: Container) -> None:
        """Write the oom_score_adj that the runtime cannot set. A container that was found is left alone."""
        entry = self.state.ledger.entries.get(container.id)
        if entry is None or entry.decision.outcome is Outcome.ADOPTED:
            return
        if self.placements.runtime_sets_oom_score_adj or not self.state.policy.set_oom_score_adj:
            return
        wanted = wanted_oom_score_adj(
            entry.decision.request, container, self.state.machine, self.state.policy.outside_requests
        )
        if wanted is not None:
            await self._write_oom_score_adj(pod, container, wanted)
            self.state.known.oom_score_adj[container.id] = wanted

    async def sync_before_start(self, container_id: str) -> None:
        """Have the kernel's cpusets right for a container that has its cgroup, before its first instruction.

        What was decided since its creation did not reach it: containerd does not change the cgroup of a
        container that does not run yet, and a spec that was rewritten stays as it is. A container with
        exclusive CPUs does not start before all others have left them either.
        """
        await self._cpusets.sync((container_id,), mems=True)
        entry = self.state.ledger.entries.get(container_id)
        if entry is not None and entry.decision.placement.apart_cpus:
            await self._cpusets.sync()
        for awaited in self._before_start:
            await awaited(container_id)

    def refuses_undecided(self) -> bool:
        """Whether the runtime should fail a request that we do not answer."""
        return self.state.policy.refuse_undecided

    def fallback_adjustment(self, pod: Pod, container: Container) -> Adjustment:
        """The safe answer when there is no time or no way to decide: CPUs that are exclusive to no container.

        Raises:
            PlacementError: the operator has it refused.
        """
        policy = self.state.policy
        forbidden = policy.forbidden_annotations
        opted_out = readable_wishes(pod.annotations, container.name, self.state.machine, forbidden).opted_out
        if policy.refuse_undecided and not opted_out and pod.namespace not in policy.undecided_namespaces:
            raise undecided(container_name(pod, container))
        free = not opted_out and container.resources.cpuset_cpus is None
        return (
            self.state.known.default_adjustment(container, self.state.basis.shared_cpus)
            if free
            else Adjustment()
        )

    def missed(
        self, event: Event, container_id: str, why: str, described: tuple[Pod, Container] | None = None
    ) -> None:
        """The runtime went on without our answer.

        A decision that did not reach it is undone: the container is found when it starts. A container that
        stopped holds nothing, whether or not that could be recorded in time.
        """
        self.state.counters["missed"] += 1
        extra = {"event": event.name, "id": container_id, "why": why}
        logger.error("the runtime went on without a decision", extra=extra)
        if event in _REPLIES:
            self.state.schedule(lambda transaction: self._undo(transaction, event, container_id))
        elif container_id:
            self.state.schedule(lambda transaction: self._apply_missed(transaction, event, described))
            self._verify_soon()

    def _undo(self, transaction: Transaction, event: Event, container_id: str) -> None:
        """Undo what a lost reply contained."""
        entry, lives = transaction.basis.ledger.entries.get(container_id), self.state.lives
        ended = event is Event.STOP_CONTAINER
        # Unless it was decided since, on another way.
        decided = event is Event.CREATE_CONTAINER and (entry is None or entry.origin.runtime_applies)
        if ended:
            self.state.known.forget(container_id)
            lives.end(container_id, Report.STOPPED, entry)
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
        step = self.state.lives.step(report, container.id)
        if step.depends_on_process:
            self._doubtful[container.id] = report, pod, container
        else:
            self._take(transaction, report, step, pod, container)

    async def settle_doubts(self) -> None:
        """Apply the missed events that depend on what the kernel shows."""
        while self._doubtful:
            _, (report, pod, container) = self._doubtful.popitem()
            async with self.state.transaction() as transaction:
                await self._report(transaction, report, pod, container)


def _report_of(event: Event, container: Container) -> Report:
    """What *event* reports. A container that is described as one that has ended has, whatever else it
    says."""
    ended = container.state is ContainerState.STOPPED and event is not Event.REMOVE_CONTAINER
    return Report.STOPPED if ended else _REPORTS[event]
