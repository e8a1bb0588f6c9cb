"""The interface of a decision engine, and what every engine needs to know of a machine under a policy.

An engine is a pure function of immutable values. It never changes a ledger; the daemon records the
decision and then makes the next ledger from it.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Final, NamedTuple, Protocol, Self

from msgspec import Struct
from msgspec.structs import replace

from bayplan.model.basis import Basis
from bayplan.model.decision import Claim, Decision, Move, Placement, Reason, Request
from bayplan.model.ledger import Ledger
from bayplan.model.machine import Machine
from bayplan.model.memory_kinds import tier_nodes, usable_nodes
from bayplan.quantity import counted
from bayplan.sets import CpuSet, NodeSet, cpus_text, nodes_text

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


class EngineKind(Struct, frozen=True):
    """What is known of an engine by its name, before it is loaded. ``is_kubelets``: it answers as kubelet's
    managers do, which know nothing of bayplan's own rules: wishes for CPUs, named pools, claims."""

    name: str
    is_kubelets: bool

    @classmethod
    def of(cls, name: str) -> Self:
        """The kind of the engine *name*."""
        return cls(name, name == KUBELET)


class Engine(Protocol):
    """Decides where a container goes."""

    @property
    def name(self) -> str:
        """The engine's name in the configuration."""
        ...

    @property
    def kind(self) -> "EngineKind":
        """What is known of it without loading it."""
        ...

    def separate_copy(self) -> "Engine":
        """An engine that answers the same and shares nothing with this one, for another thread."""
        ...

    def decide(
        self,
        basis: Basis,
        request: Request,
        current: Placement | None = None,
    ) -> Decision:
        """Answer *request*, given that everything in its ledger is promised already.

        *current* is the placement of a running container whose request changed; it is not in that, and
        it is kept if the changed request fits there. Raises nothing: a refusal is a Decision.
        """
        ...

    def adopt(
        self,
        basis: Basis,
        request: Request,
        mems: NodeSet | None,
    ) -> Placement:
        """What is promised from now on to a container that exists without a decision of ours and may use
        *mems*, None for all nodes. Nothing is changed about it: the placement binds it to nothing."""
        ...

    def moves_back(self, basis: Basis, staying: Collection[str] = ()) -> tuple[Move, ...]:
        """A few of the containers that once became wider, for others or for more memory, and for which there
        is room again on the nodes they were placed on; without those whose ids are in *staying*."""
        ...

    def widened_placements(self, basis: Basis) -> Mapping[str, Placement]:
        """What becomes of containers that may use all ordinary memory, where there is more of it than when
        they were placed: their placements, by container id."""
        ...

    def completed_claims(self, basis: Basis) -> Mapping[str, Claim]:
        """The claims of containers that were promised less than they asked for and can be promised more, now
        that a container is gone, by container id."""
        ...

    def resized_pools(self, basis: Basis) -> Mapping[str, CpuSet]:
        """The CPUs of those named pools that are to have others, now that their members, the room or the
        policy have changed, by name."""
        ...

    def converted(self, basis: Basis) -> Ledger:
        """The ledger, which another engine may have made, in the form that this one keeps promises in."""
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


def also_pinned(ledger: Ledger, cpus: CpuSet) -> Iterator[Reason]:
    """A reason for each container that somebody pinned to some of the exclusive *cpus* of a new one."""
    if not cpus:
        return
    for container_id in sorted(ledger.pinned_ids):
        request = ledger.entries[container_id].decision.request
        pinned = request.pinned_cpus or CpuSet()
        if not pinned.isdisjoint(cpus):
            too = f"{request.name} may run on {cpus_text(pinned & cpus)} too"
            yield Reason("not-alone", f"{too}: somebody chose {cpus_text(pinned)} for it")
