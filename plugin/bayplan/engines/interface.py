"""The interface of a decision engine, and what every engine needs to know of a machine under a policy.

An engine is a pure function of immutable values. It never changes a ledger; the daemon records the
decision and then makes the next ledger from it.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Final, NamedTuple, Protocol

from msgspec.structs import replace

from bayplan.model.decision import Claim, Decision, Move, Placement, QosSource, Reason, Request
from bayplan.model.ledger import Ledger
from bayplan.model.machine import Machine
from bayplan.model.memory_kinds import tier_nodes, usable_nodes
from bayplan.model.policy import PlacementPolicy
from bayplan.quantity import MILLI_PER_CPU, counted
from bayplan.sets import CpuSet, NodeSet, nodes_text

EXACT: Final = "exact"
KUBELET: Final = "kubelet"
"""Names of the engines: what the configuration, the log and the record have."""

PINNED: Final = "pinned"
"""Code of the reason that somebody else set the cpusets."""

OPTED_OUT: Final = Reason("opted-out", "opted out by annotation; left as it is")

AS_WISHED: Final = "as-wished"
"""Code of the reason that a container has the nodes that it wishes."""

WISH_NOT_GRANTED: Final = "wish-not-granted"
"""Code of the reason why a container does not have what it wishes."""


class Engine(Protocol):
    """Decides where a container goes."""

    @property
    def name(self) -> str:
        """The engine's name in the configuration."""
        ...

    def separate_copy(self) -> "Engine":
        """An engine that answers the same and shares nothing with this one, for another thread."""
        ...

    def decide(
        self,
        machine: Machine,
        policy: PlacementPolicy,
        ledger: Ledger,
        request: Request,
        current: Placement | None = None,
    ) -> Decision:
        """Answer *request*, given that everything in *ledger* is promised already.

        *current* is the placement of a running container whose request changed; it is not in *ledger*, and
        it is kept if the changed request fits there. Raises nothing: a refusal is a Decision.
        """
        ...

    def adopt(
        self,
        machine: Machine,
        policy: PlacementPolicy,
        ledger: Ledger,
        request: Request,
        mems: NodeSet | None,
    ) -> Placement:
        """What is promised from now on to a container that exists without a decision of ours and may use
        *mems*, None for all nodes. Nothing is changed about it: the placement binds it to nothing."""
        ...

    def moves_back(
        self, machine: Machine, policy: PlacementPolicy, ledger: Ledger, staying: Collection[str] = ()
    ) -> tuple[Move, ...]:
        """A few of the containers that once became wider, for others or for more memory, and for which there
        is room again on the nodes they were placed on; without those whose ids are in *staying*."""
        ...

    def widened_placements(
        self, machine: Machine, policy: PlacementPolicy, ledger: Ledger
    ) -> Mapping[str, Placement]:
        """What becomes of containers that may use all ordinary memory, where there is more of it than when
        they were placed: their placements, by container id."""
        ...

    def completed_claims(
        self, machine: Machine, policy: PlacementPolicy, ledger: Ledger
    ) -> Mapping[str, Claim]:
        """The claims of containers that were promised less than they asked for and can be promised more, now
        that a container is gone, by container id."""
        ...

    def converted(self, machine: Machine, policy: PlacementPolicy, ledger: Ledger) -> Ledger:
        """*ledger*, which another engine may have made, in the form that this one keeps promises in."""
        ...


class UnmetWish(NamedTuple):
    """That a container does not have the nodes that it wishes; ``required``: it wishes no others."""

    reason: Reason
    required: bool


def unmet_wish(machine: Machine, request: Request, mems: NodeSet | None, has: str) -> UnmetWish | None:
    """What *request* wishes of its nodes and does not have where it may use *mems*, None for all nodes; *has*
    says for people why these. None where it has all that it wishes."""
    unmet: list[tuple[bool, str]] = []
    nodes, tier, even = request.nodes, request.tier, request.even_hugepages
    if nodes is not None:
        alone = replace(request, nodes=replace(nodes, required=True), tier=None)
        if mems is None or not mems <= usable_nodes(machine, alone):
            unmet.append((nodes.required, nodes_text(nodes.nodes)))
    if tier is not None and (mems is None or not mems <= tier_nodes(machine, tier.tier)):
        unmet.append((tier.required, f"memory tier {tier.tier}"))
    if even is not None and (mems is None or len(mems) != even.node_count):
        unmet.append((True, f"its huge pages evenly on {counted(even.node_count, 'node')}"))
    if not unmet:
        return None
    required = any(is_required for is_required, _ in unmet)
    wishes = " and ".join(text for _, text in unmet)
    text = f"{'requires' if required else 'prefers'} {wishes}, and {has}"
    return UnmetWish(Reason(WISH_NOT_GRANTED, text), required)


def pinned_text(request: Request) -> str:
    """What somebody else set, and where."""
    whose = " and ".join(
        f"{name} {pinned or 'that cannot be read'}"
        for name, pinned in (("cpuset.cpus", request.pinned_cpus), ("cpuset.mems", request.pinned_mems))
        if pinned is not None
    )
    return f"{'an update set' if request.pinned_by_update else 'the spec already had'} {whose}"


def pinned_reason(request: Request) -> Reason:
    """That what somebody else set stays."""
    return Reason(PINNED, f"{pinned_text(request)}; left as it is")


def allocatable_bytes(machine: Machine, policy: PlacementPolicy) -> dict[int, dict[str, int]]:
    """Bytes that containers may have: node id -> resource -> capacity less the reservation, never below 0."""
    return {
        node.id: {
            resource: max(0, amount - policy.reserved_bytes.get(node.id, {}).get(resource, 0))
            for resource, amount in node.capacity_bytes().items()
        }
        for node in machine.nodes
    }


def free_bytes(machine: Machine, policy: PlacementPolicy, ledger: Ledger) -> dict[int, dict[str, int]]:
    """Allocatable bytes that are not promised by node: node id -> resource -> bytes, never below 0.

    Claims on sets of nodes are not among these promises.
    """
    return _less(allocatable_bytes(machine, policy), ledger.booked_bytes)


def reserved_cpus(machine: Machine, policy: PlacementPolicy) -> CpuSet:
    """The CPUs that never become exclusive: the configured ones, else the lowest one, because the shared
    pool must not run empty (an empty cpuset.cpus cannot be written)."""
    configured = policy.reserved_cpus & machine.online_cpus
    if configured or not machine.online_cpus:
        return configured
    return CpuSet([next(iter(machine.online_cpus - policy.isolated_cpus or machine.online_cpus))])


def assignable_cpus(machine: Machine, policy: PlacementPolicy, *, isolated: bool = False) -> CpuSet:
    """The CPUs that could become exclusive were there no containers: all but the reserved and the isolated
    ones; *isolated*: to a container that wishes these."""
    kept = reserved_cpus(machine, policy)
    if isolated:
        return (policy.isolated_cpus & machine.online_cpus) - kept
    return machine.online_cpus - kept - policy.isolated_cpus


def exclusive_candidates(
    machine: Machine, policy: PlacementPolicy, ledger: Ledger, *, isolated: bool = False
) -> CpuSet:
    """The CPUs that could become exclusive now: those of `assignable_cpus` that are not exclusive to another
    container, and not kept by the cpuset of another container that somebody else chose."""
    free = assignable_cpus(machine, policy, isolated=isolated) - ledger.exclusive_cpus
    for container_id in ledger.pinned_ids:
        free -= kept_by_pin(ledger.entries[container_id].decision.request, machine.online_cpus)
    return free


def kept_by_pin(request: Request, all_cpus: CpuSet) -> CpuSet:
    """The CPUs that a container keeps from being exclusive to others because somebody chose them for it.

    A cpuset of more than half of the CPUs chooses none in particular. Outside of kubelet's tree such a one
    keeps none, or one container could keep out all pods of kubelet that are to have CPUs of their own.
    """
    pinned = request.pinned_cpus or CpuSet()
    wide = 2 * len(pinned & all_cpus) > len(all_cpus) and request.qos_source is not QosSource.CGROUP_PARENT
    return CpuSet() if wide else pinned


def also_pinned(ledger: Ledger, cpus: CpuSet) -> Iterator[Reason]:
    """For whom somebody chose some of the exclusive *cpus* of a new container too."""
    if not cpus:
        return
    for container_id in sorted(ledger.pinned_ids):
        request = ledger.entries[container_id].decision.request
        pinned = request.pinned_cpus or CpuSet()
        if not pinned.isdisjoint(cpus):
            text = f"{request.name} may run on CPUs {pinned & cpus} too: somebody chose CPUs {pinned} for it"
            yield Reason("not-alone", text)


def shared_cpus_minimum(policy: PlacementPolicy, ledger: Ledger, more_milli: int = 0) -> int:
    """How many CPUs are to stay in the shared pool: as configured, else as many as those of its containers
    that are kubelet's request together, with *more_milli* of one that is about to come.

    kubelet admits no pod whose requests do not fit beside those of others, and exclusive CPUs are whole ones:
    by its arithmetic these are always left. What others write as shares is a weight, and promises nothing.
    """
    if policy.shared_cpus_minimum is not None:
        return policy.shared_cpus_minimum
    return -(-(ledger.shared_milli.get(QosSource.CGROUP_PARENT, 0) + more_milli) // MILLI_PER_CPU)


def exclusive_room(machine: Machine, policy: PlacementPolicy, ledger: Ledger, more_milli: int = 0) -> int:
    """How many CPUs of the shared pool may become exclusive, whichever they are, so that as many as must stay
    do, with *more_milli* as for `shared_cpus_minimum`; below 0 where there are fewer already."""
    shared = ledger.shared_cpus(machine, policy.withheld_cpus)
    return len(shared) - shared_cpus_minimum(policy, ledger, more_milli)


def _less(
    minuends: Mapping[int, Mapping[str, int]], subtrahends: Mapping[int, Mapping[str, int]]
) -> dict[int, dict[str, int]]:
    return {
        node: {
            resource: max(0, amount - subtrahends.get(node, {}).get(resource, 0))
            for resource, amount in resources.items()
        }
        for node, resources in minuends.items()
    }
