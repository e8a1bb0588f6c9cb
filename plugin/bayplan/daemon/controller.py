"""The single writer of the ledger: each event of the runtime becomes a decision, a record and a reply.

Order in every handler: decide, commit, make the new ledger current, answer. A handler that fails or is
cancelled before the commit leaves the ledger as it was. No IO but through the recorder and the host calls
handed in.
"""

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import replace

from bayplan.daemon.device_search import DeviceSearch
from bayplan.daemon.journal import Journal
from bayplan.daemon.recorder import Recorder
from bayplan.daemon.residents import Residents
from bayplan.domain.deciding import decide_change, decide_creation
from bayplan.domain.decision import Decision, Move, Outcome
from bayplan.domain.device_hints import NOTHING_FOUND, Findings, has_devices, looks_at_devices
from bayplan.domain.engine import Engine
from bayplan.domain.kubelet.cgroup_values import OOM_GROUP
from bayplan.domain.ledger import Entry, Ledger
from bayplan.domain.memory_policy import PolicyAbility
from bayplan.domain.origin import Form, Origin
from bayplan.domain.policy import Policy
from bayplan.domain.reconcile import adopt, reconcile
from bayplan.domain.relief import topped_up
from bayplan.domain.rewrite import (
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
from bayplan.domain.sentences import refusal
from bayplan.domain.topology import Machine
from bayplan.domain.wishes import readable_wishes
from bayplan.domain.workload import Adjustment, Container, Pod, Resources, Update
from bayplan.nri import Event, Runtime

logger = logging.getLogger(__name__)

_EVENTS = frozenset(
    {
        Event.CREATE_CONTAINER,
        Event.START_CONTAINER,
        Event.POST_START_CONTAINER,
        Event.UPDATE_CONTAINER,
        Event.STOP_CONTAINER,
        Event.REMOVE_CONTAINER,
        Event.RUN_POD_SANDBOX,
        Event.STOP_POD_SANDBOX,
        Event.REMOVE_POD_SANDBOX,
    }
)


class Controller:
    """The handler of the NRI session. Handlers run one at a time, in the order of the events."""

    def __init__(
        self,
        machine: Machine,
        policy: Policy,
        engine: Engine,
        recorder: Recorder,
        *,
        cgroup_v2: bool,
        write_oom_score_adj: Callable[[Pod, Container, int], Awaitable[None]],
        verify_soon: Callable[[], None],
        weighted_interleave: bool = True,
        devices: DeviceSearch | None = None,
        room_soon: Callable[[], None] = lambda: None,
    ) -> None:
        self.machine = machine
        self.policy = policy
        self.engine = engine
        self.ledger = Ledger()
        self.residents = Residents()
        self.runtime: Runtime | None = None
        self.counters: Counter[str] = Counter()
        self.journal = Journal(self.counters)
        self.recorder = recorder
        self._cgroup_v2 = cgroup_v2
        self._write_oom_score_adj = write_oom_score_adj
        self._verify_soon = verify_soon
        self.room_soon = room_soon
        """To be called when there may be room for those who lack some, or had to become wider."""
        self.untold: set[str] = set()
        """Who went back to fewer nodes, by the kernel's cgroup: its runtime is told with the next reply."""
        self._weighted_interleave = weighted_interleave
        self._devices = devices
        self._stopped_pods: set[str] = set()

    async def restore(self) -> None:
        """Rebuild the ledger from the store, before the first contact with a runtime."""
        recorded = Ledger.of(await self.recorder.entries())
        self.ledger = self.engine.restored(self.machine, self.policy, recorded)
        self.residents.see_recorded(self.ledger.entries)

    def take_engine(self, engine: Engine) -> None:
        """Decide by *engine* from now on; what was promised stays promised."""
        self.engine = engine
        self.ledger = engine.restored(self.machine, self.policy, self.ledger)

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
        by_id = {pod.id: pod for pod in pods}
        result = reconcile(
            self.machine,
            self.policy,
            self.engine,
            self.ledger,
            by_id,
            containers,
            kubelet_pins_cpus=self.journal.pins.kubelet_pins_cpus(self.ledger),
        )
        await self.recorder.record((), gone=result.gone, told=result.changed)
        self.ledger = result.ledger
        self.untold.clear()
        self.room_soon()
        found = {entry.container_id: entry.decision.request.name for entry in result.found}
        kept = {key: name for key, name in self.residents.found.items() if key in result.ledger.entries}
        self.residents = Residents(found=kept | found)
        for container in containers:
            self.residents.see(by_id.get(container.pod_id, Pod(container.pod_id)), container)
        self.residents.see_recorded(self.ledger.entries, seen={container.id for container in containers})
        self._stopped_pods &= by_id.keys()
        if self._devices is not None:
            self._devices.keep(by_id)
        self.journal.synchronized(result)
        return result.updates

    async def create_container(
        self, pod: Pod, container: Container, origin: Origin | None = None
    ) -> tuple[Adjustment, Sequence[Update]]:
        """Place a container that is about to be created; *origin* says how it came, if not over NRI.

        Raises:
            PlacementError: a strict policy does not allow any placement that is left.
        """
        findings = await self._findings(pod, container)
        base, settable = self.ledger.without(container.id), self.policy_ability(origin)
        decision = decide_creation(
            self.machine, self.policy, self.engine, base, pod, container, settable, findings
        )
        if decision.outcome is Outcome.REFUSED:
            await self._refuse(decision)
        shared = base.shared_cpus(self.machine, self.policy.withheld_cpus, decision.placement.exclusive_cpus)
        cpus = cpus_for(decision, shared)
        ability = Ability(self._cgroup_v2, origin is not None or self._can_adjust_oom_score())
        adjustment = adjustment_for(self.machine, self.policy, ability, shared, decision, container)
        entry = Entry(
            decision,
            cpus,  # The adjustment tells them, so that no update of the container itself is due.
            None if origin is None else replace(origin, applied=adjustment),
            oom_group=origin is None and OOM_GROUP in adjustment.unified,
        )
        ledger = base.moved(decision.moves).with_entry(entry)
        updates = await self._commit(ledger, decided=container.id, moves=decision.moves)
        self.residents.see(pod, container)
        self.residents.found.pop(container.id, None)
        self.journal.decided("placed", decision)
        if adjustment.oom_score_adj is not None:
            self.residents.oom_score_adj[container.id] = adjustment.oom_score_adj
        return adjustment, updates

    async def update_container(
        self, pod: Pod, container: Container, resources: Resources
    ) -> Sequence[Update]:
        """Decide again about a container whose resources change; refused, everything stays as it was.

        Raises:
            PlacementError: a strict policy does not allow the changed request.
        """
        entry = self.ledger.entries.get(container.id)
        if entry is None:
            return await self.enter(pod, container)
        old = entry.decision
        base = self.ledger.without(container.id)
        decision = decide_change(
            self.machine, self.policy, self.engine, base, old, container.resources, resources
        )
        if decision is None:
            return ()
        if decision.outcome is Outcome.REFUSED:
            await self._refuse(decision)
        changed, ability = replace(entry, decision=decision), Ability(self._cgroup_v2)
        shared = self.ledger.shared_cpus(self.machine, self.policy.withheld_cpus)
        changed = resized(self.machine, self.policy, ability, shared, changed, resources)
        after = base.moved(decision.moves).with_entry(changed)
        updates = await self._commit(after, decided=container.id, moves=decision.moves)
        self.residents.see(pod, container)
        self.journal.decided("placed again", decision)
        self.room_soon()
        mems = decision.placement.mems
        if mems is None or mems == old.placement.mems:
            return updates
        own = next((one for one in updates if one.container_id == container.id), Update(container.id))
        others = [one for one in updates if one.container_id != container.id]
        return (*others, replace(own, cpuset_mems=mems))

    async def stop_container(self, pod: Pod, container: Container) -> Sequence[Update]:  # noqa: ARG002
        """Release what a container held; its exclusive CPUs go back to the shared pool."""
        self.residents.drop(container.id)
        if container.id not in self.ledger.entries:
            return ()
        entry = self.ledger.entries[container.id]
        pod_id = entry.decision.request.pod_id
        if self._devices is not None and entry.origin is not None:
            self._devices.pod_gone(pod_id)  # no event tells of its end without NRI
        left = self.ledger.after_end_of(container.id, pod_stays=pod_id not in self._stopped_pods)
        left, promised = topped_up(self.machine, self.policy, self.engine, left)
        updates = await self._commit(left, gone=container.id, promised=promised)
        self.journal.released(entry.decision.request.name, container.id)
        self.room_soon()
        return updates

    async def enter(self, pod: Pod, container: Container, origin: Origin | None = None) -> Sequence[Update]:
        """Enter a container that runs without a decision of ours, as it is; for *origin* see above."""
        entry = adopt(self.machine, self.policy, self.engine, self.ledger, pod, container)
        entry = replace(entry, origin=origin)
        if origin is None:
            self.residents.unrecorded[container.id] = (pod, container)
        updates = await self._commit(self.ledger.with_entry(entry), decided=container.id)
        self.residents.unrecorded.pop(container.id, None)
        self.residents.see(pod, container)
        self.residents.found[container.id] = entry.decision.request.name
        self.journal.found(entry.decision)
        return updates

    def wanted(self, container_id: str) -> Adjustment:
        """What is to be set now for a container that came without NRI; nothing of what others pinned."""
        shared = self.ledger.shared_cpus(self.machine, self.policy.withheld_cpus)
        return wanted_for(self.ledger.entries[container_id], shared)

    async def amend(self, entry: Entry) -> None:
        """Record what became known of a container that came without NRI; its promises stay the same."""
        await self.take_over(self.ledger.with_entry(entry), [entry.container_id])
        self.residents.see_recorded({entry.container_id: entry})

    async def take_over(self, ledger: Ledger, changed: Iterable[str]) -> None:
        """Record those entries of *ledger* that *changed*, by their ids, and make it current."""
        await self.recorder.record((), told=[ledger.entries[key] for key in changed])
        self.ledger = ledger

    async def state_changed(self, event: Event, pod: Pod, container: Container | None) -> None:
        """Every other event. No update can be sent from here; what is due is written to the kernel."""
        if container is None:
            await self._pod_changed(event, pod)
        elif event is Event.REMOVE_CONTAINER:
            if container.id in self.ledger.entries:
                await self.stop_container(pod, container)
                self._verify_soon()
            self.residents.drop(container.id)
        elif event in (Event.START_CONTAINER, Event.POST_START_CONTAINER):
            await self._started(event, pod, container)

    def fallback_adjustment(self, pod: Pod, container: Container) -> Adjustment:
        """The safe answer when there is no time or no way to decide: nobody's exclusive CPUs."""
        opted_out = readable_wishes(pod.annotations, container.name, self.machine).opted_out
        if opted_out or container.resources.cpuset_cpus is not None:
            return Adjustment()
        shared = self.ledger.shared_cpus(self.machine, self.policy.withheld_cpus)
        self.residents.defaulted[container.id] = shared
        return Adjustment(cpuset_cpus=shared)

    def missed(self, event: Event, container_id: str, why: str) -> None:
        """The runtime went on without our answer.

        A decision that it never heard of is undone: the container is found when it starts. A container that
        stopped holds nothing, whether or not that could be recorded in time.
        """
        self.counters["missed"] += 1
        logger.error("answered by default", extra={"event": event.name, "id": container_id, "why": why})
        entry = self.ledger.entries.get(container_id)
        if event is Event.CREATE_CONTAINER and entry is not None and entry.origin is not None:
            return  # Decided since, on another way.
        if event in (Event.CREATE_CONTAINER, Event.STOP_CONTAINER):
            self.ledger = self.ledger.without(container_id)
            self.recorder.forget_soon(container_id)
            self._verify_soon()
            self.room_soon()

    async def _findings(self, pod: Pod, container: Container) -> Findings:
        """What the devices of a new container say, unless it has none or its annotations make that moot."""
        if self._devices is None or not (pod.network_namespace or has_devices(container)):
            return NOTHING_FOUND
        if not looks_at_devices(readable_wishes(pod.annotations, container.name, self.machine)):
            return NOTHING_FOUND
        return await self._devices.find(pod, container)

    async def _pod_changed(self, event: Event, pod: Pod) -> None:
        if event is Event.RUN_POD_SANDBOX and self._devices is not None:
            self._devices.pod_started(pod)
        if event in (Event.STOP_POD_SANDBOX, Event.REMOVE_POD_SANDBOX):
            self._stopped_pods.add(pod.id)
            if pod.id in self.ledger.between:
                await self._commit(self.ledger.without_pod_between(pod.id))
        if event is not Event.REMOVE_POD_SANDBOX:
            return
        if self._devices is not None:
            self._devices.pod_gone(pod.id)
        left = [key for key, one in self.ledger.entries.items() if one.decision.request.pod_id == pod.id]
        for container_id in left:
            await self.stop_container(pod, Container(container_id, pod.id))
        self._stopped_pods.discard(pod.id)
        if left:
            self._verify_soon()

    async def _started(self, event: Event, pod: Pod, container: Container) -> None:
        self.residents.see(pod, container)
        entry = self.ledger.entries.get(container.id)
        if entry is None:
            await self.enter(pod, container)
            self._verify_soon()
        elif event is Event.START_CONTAINER and not self._can_adjust_oom_score():
            wanted = wanted_oom_score_adj(entry.decision.request, container, self.machine)
            if wanted is not None and self.policy.set_oom_score_adj:
                await self._write_oom_score_adj(pod, container, wanted)
                self.residents.oom_score_adj[container.id] = wanted

    async def _commit(
        self,
        ledger: Ledger,
        decided: str | None = None,
        gone: str | None = None,
        moves: Collection[Move] = (),
        promised: Collection[str] = (),
    ) -> Sequence[Update]:
        """Record the step to *ledger*, make it current, and return the updates that it makes due.

        *decided* and *gone* are the id of the container that the step is about, *moves* what it does to
        others, and *promised* the ids of those who are promised more than before.
        """
        pool = shared_pool_updates(ledger, self.machine, self.policy.withheld_cpus)
        nodes = {move.container_id for move in moves} | self.untold
        updates = merged(nodes_updates(ledger, nodes), pool) if nodes else pool
        ledger = ledger.telling({one.container_id: one.cpuset_cpus for one in pool if one.cpuset_cpus})
        told = {one.container_id for one in updates} | set(promised)
        told |= ledger.scored_with(decided) if decided is not None else frozenset()
        forgotten, kept = ledger.between_since(self.ledger)
        await self.recorder.record(
            [ledger.entries[decided]] if decided is not None else (),
            gone=[*([gone] if gone is not None else ()), *forgotten],
            told=[*(ledger.entries[key] for key in sorted(told) if key != decided), *kept],
        )
        self.ledger = ledger
        self.untold.clear()
        for one in moves:
            self.journal.moved(one)
        return updates

    async def _refuse(self, decision: Decision) -> None:
        await self.recorder.refused(decision)
        self.journal.decided("refused", decision)
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
