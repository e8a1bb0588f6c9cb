"""Decisions on a ledger of their own: nothing in the daemon or the kernel changes.

What-if and the simulator use this. The rules are those of the daemon (`bayplan.placement.decide`), and so is
the order: decide, apply the moves to the ledger, add the entry. The daemon is asked by a runtime, container
by container, and so is its rehearsal; a simulation of the engine `kubelet` admits pods as a whole
(`bayplan.simulate.kubelet_rehearsal`). Requests, annotations and reasons come the same way in both.
"""

from collections.abc import Callable, Sequence
from functools import partial

from msgspec import Struct, field
from msgspec.structs import replace

from bayplan.engines.interface import Engine
from bayplan.kubelet.pod import PodSpec, has_pod_level, most_exclusive_cpus
from bayplan.model.basis import Basis, SeenRequests, SeenSize
from bayplan.model.decision import Decision, Move, Outcome, QosClass, Reason, Request
from bayplan.model.ledger import Entry, Ledger
from bayplan.model.machine import Machine
from bayplan.model.policy import KeepWhole, PlacementPolicy
from bayplan.model.resources import Resources, changed_resources
from bayplan.model.workload import Container, Pod
from bayplan.placement.changed_promises import after_removal
from bayplan.placement.decide import (
    ExactRequest,
    as_derived,
    decide_change,
    decide_creation,
    only_planning,
    read_annotations,
    with_moves_waiting,
)
from bayplan.placement.hugepage_pools import Decide, decide_with_pools, grown, with_growth, with_pools
from bayplan.placement.memory_policy import MemoryPolicyAbility
from bayplan.simulate.manifest import PlannedPod

MovesObstacle = Callable[[Sequence[Move], int], str]
"""Why moves may not be made now, "" where they may, if so many containers have gone to other nodes before."""


def may_move(_: Sequence[Move], __: int) -> str:
    """Nothing is in the way."""
    return ""


class Rehearsal(Struct):
    """The *ledger* is replaced by each step; the values in it are immutable.

    ``returned`` are the containers that went back to fewer nodes, and ``promised`` the names of those that
    were promised more; the caller empties both lists after each step. ``requests`` are those that ``seen``
    follows from, as in a daemon; None where it stays as it is. ``relocated`` counts those that went to
    other nodes for others."""

    machine: Machine
    policy: PlacementPolicy
    engine: Engine
    ledger: Ledger = Ledger()
    ability: MemoryPolicyAbility = MemoryPolicyAbility()
    containers: dict[str, Container] = field(default_factory=dict)
    returned: list[Move] = field(default_factory=list)
    promised: list[str] = field(default_factory=list)
    seen: tuple[SeenSize, ...] = ()
    requests: SeenRequests | None = None
    moves_obstacle: MovesObstacle = may_move
    relocated: int = 0

    @property
    def basis(self) -> Basis:
        """What the next decision depends on."""
        return Basis(self.machine, self.policy, self.ledger, self.seen)

    def admit(self, planned: PlannedPod) -> list[Decision]:
        """Create a pod's containers, one after the other; init containers that end are released before the
        next.

        After a refusal no further container of the pod is tried, and those before it are released.
        """
        known = known_of(planned.spec)
        decisions: list[Decision] = []
        kept: list[str] = []
        ended: str | None = None
        for one in planned.containers:
            if ended is not None:
                self.release(ended, pod_stays=True)
            decision = self.create(planned.pod, one.container, known)
            decisions.append(decision)
            if decision.outcome is Outcome.REFUSED:
                for container_id in kept:
                    self.release(container_id)
                self.ledger = self.ledger.without_retained(planned.pod.id)
                return decisions
            ended = one.container.id if one.ends else None
            kept.append(one.container.id)
        return decisions

    def create(self, pod: Pod, container: Container, known: ExactRequest = as_derived) -> Decision:
        """Decide about a new container, and add it to the ledger unless it was refused. *known* is what
        somebody knows of it beside its spec."""
        base = self.ledger.without(container.id)
        annotated = read_annotations(self.basis, pod, container)
        decide = partial(
            decide_creation,
            pod=pod,
            container=container,
            annotated=annotated,
            ability=self.ability,
            exact=known,
        )
        decision = self._decided(base, decide)
        if obstacle := self.moves_obstacle(decision.moves, self.relocated):
            decision = with_moves_waiting(self._decided(base, decide, relocating=False), obstacle)
        self._saw(decision.request)
        if decision.outcome is not Outcome.REFUSED:
            self.ledger = applied(base, Entry(decision))
            self.containers[container.id] = container
            self.relocated += sum(move.relocates for move in decision.moves)
        return decision

    def _decided(self, base: Ledger, decide: Decide, *, relocating: bool = True) -> Decision:
        """What *decide* says of a new container beside *base*, once pools of huge pages have grown for it if
        that helps. Without *relocating* other containers stay where they are. The order is the daemon's: what
        is decided after a growth may relocate, too."""

        def beside() -> Basis:
            basis = self.basis.with_ledger(base)
            return basis if relocating else only_planning(basis)

        basis = beside()
        decision = decide(basis, self.engine)
        decision, added = decide_with_pools(basis, self.engine, decide=decide, decision=decision)
        if not added:
            return decision
        self.machine = with_pools(self.machine, grown(self.machine, added))
        return with_growth(decide(beside(), self.engine), added, added)

    def resize(self, container_id: str, change: Resources) -> Decision | None:
        """Decide again about a container; refused, it stays as it was. None if nothing changes."""
        entry, container = self.ledger.entries[container_id], self.containers[container_id]
        base = self.ledger.without(container_id)
        decision = decide_change(
            self.basis.with_ledger(base), self.engine, entry.decision, container.resources, change
        )
        if decision is not None:
            self._saw(decision.request)
        if decision is not None and decision.outcome is not Outcome.REFUSED:
            resized = applied(base, replace(entry, decision=decision))
            self._relieve(resized)
            self.containers[container_id] = replace(
                container, resources=changed_resources(container.resources, change)
            )
        return decision

    def release(self, container_id: str, *, pod_stays: bool = False) -> None:
        """A container is gone, and others go back; one that is not there is no error. *pod_stays*: more
        containers of its pod are to come, for which it keeps what it has as a whole."""
        left = self.ledger.after_end_of(container_id, pod_stays=pod_stays)
        self._relieve(left)
        self.containers.pop(container_id, None)

    def _saw(self, request: Request) -> None:
        learns = self.policy.keep_whole is KeepWhole.NODE
        if learns and self.requests is not None and self.requests.see(request):
            self.seen = self.requests.sizes()

    def _relieve(self, left: Ledger) -> None:
        self.ledger, moves, promised = after_removal(self.basis.with_ledger(left), self.engine)
        self.returned += moves
        self.promised += [self.ledger.entries[one].decision.request.name for one in promised]


def applied(ledger: Ledger, entry: Entry) -> Ledger:
    """*ledger* with *entry*, and with the containers that its decision moves on their new nodes."""
    return ledger.moved(entry.decision.moves).with_entry(entry)


def known_of(spec: PodSpec) -> ExactRequest:
    """What the manifest of a pod says of it as a whole, beside the sums that a runtime shows: whether it has
    resources as a whole, and how many CPUs its containers have to themselves."""
    level, count = has_pod_level(spec), most_exclusive_cpus(spec)

    def known(request: Request) -> tuple[Request, tuple[Reason, ...]]:
        totals = request.pod_totals
        if level:
            request = replace(request, pod_level=True)
        elif totals is not None and request.qos is QosClass.GUARANTEED:
            request = replace(request, pod_totals=replace(totals, exclusive_cpus=count))
        return request, ()

    return known
