"""The promises of a ledger on a machine: one flow for each resource, kept in step with the ledger's totals.

What is asked of them depends on machine, policy and ledger alone; keeping the flows of the last ledger only
saves time. A node whose capacity fell below its claims has unmet claims, and takes nothing new.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct

from bayplan.engines.exact.flow import Flow
from bayplan.model.basis import Allocatable, Basis
from bayplan.model.claims import Amounts
from bayplan.model.decision import OVERCOMMITTED, Claim, Holder, Placement, Reason, Shortage
from bayplan.model.ledger import Ledger, holds_alone
from bayplan.model.machine import MEMORY
from bayplan.quantity import counted
from bayplan.sets import NodeSet, nodes_text

NAMED_HOLDERS: Final = 5
"""How many containers a shortage names; a decision is a row on the disk, within a budget of 1 ms."""

Totals = Mapping[NodeSet, Amounts]
Parts = Sequence[tuple[int, Amounts]]
"""`bayplan.model.claims.Parts`, with sets of nodes as masks."""


class OvercommitError(AssertionError):
    """A decision of ours would have promised more than a set of nodes holds: a defect, never an answer."""


class Cut(Struct, frozen=True):
    """The resource that is short, the smallest set of nodes that is, and what is asked for within it."""

    resource: str
    nodes: NodeSet
    asked_bytes: int = 0


class ResourceFlows:
    """All promises of the ledger of ``basis``, which is the one that was followed last."""

    def __init__(self, basis: Basis) -> None:
        self.basis, self.ledger = basis, basis.ledger
        self.machine, self.policy = basis.machine, basis.policy
        self.capacity = capacity_by_resource(basis.allocatable)
        self.largest_node_bytes = max(self.capacity.get(MEMORY, {}).values(), default=0)
        self.by_resource: dict[str, Flow] = {}
        self._totals: dict[int, Amounts] = {}
        self.follow(basis)

    def follow(self, basis: Basis) -> None:
        """Bring the flows in step with the ledger of *basis*, whose machine and policy are the same: claims
        that became smaller first, so that room is there."""
        ledger, self.basis, self.ledger = basis.ledger, basis, basis.ledger
        claimed = totals(ledger) if ledger.booked_bytes else ledger.claimed_bytes
        wanted = {nodes.mask: row for nodes, row in claimed.items()}
        changes: list[tuple[int, str, int]] = []
        for nodes, row in wanted.items():
            before = self._totals.get(nodes)
            if before is not row:
                changes += _differences(nodes, before or {}, row)
        for nodes, row in self._totals.items():
            if nodes not in wanted:
                changes += _differences(nodes, row, {})
        for difference, resource, mask in sorted(changes):
            self.flow(resource).change(mask, difference)
        self._totals = wanted

    def flow(self, resource: str) -> Flow:
        """The flow of *resource*; without capacity where the machine has none of it."""
        found = self.by_resource.get(resource)
        if found is None:
            found = self.by_resource[resource] = Flow(self.capacity.get(resource, {}))
        return found

    def claimed_sets(self) -> tuple[int, ...]:
        """The sets of several nodes with promises of any resource: those that a set can cross."""
        return tuple(set().union(*[flow.wide for flow in self.by_resource.values()]))

    def fits(self, parts: Parts) -> bool:
        """Whether all *parts*, bytes of each resource on sets of nodes, can be claimed beside everything that
        is claimed."""
        if len(parts) == 1:
            ((nodes, amounts),) = parts
            return all(self.flow(one).room(nodes, amount) >= amount for one, amount in amounts.items())
        return all(self.flow(resource).fits(claims) for resource, claims in by_resource(parts).items())

    def room(self, nodes: int, amounts: Amounts) -> dict[str, int]:
        """How much of *amounts* can be claimed on *nodes*."""
        rooms = {resource: self.flow(resource).room(nodes, amount) for resource, amount in amounts.items()}
        return {resource: amount for resource, amount in rooms.items() if amount}

    def bound(self, nodes: int, amounts: Amounts) -> dict[str, int]:
        """What `room` is at most, without a flow."""
        return {resource: self.flow(resource).bound(nodes, amount) for resource, amount in amounts.items()}

    def rooms_by_node(self, resource: str) -> dict[int, int]:
        """For each node alone an upper bound of what could still be claimed on it, exact where all sets are
        nested or disjoint and nothing is unmet."""
        flow = self.flow(resource)
        rooms = {node: max(0, flow.slack[node]) for node in flow.capacity}
        if flow.unmet:
            # The slack of a set counts what is unmet within it, which takes nothing from its other nodes.
            return rooms
        for watched, left in flow.slack.items():
            if watched & (watched - 1):
                for node, room in rooms.items():
                    if node & watched and room > left:
                        rooms[node] = max(0, left)
        return rooms

    def cut(self, parts: Parts) -> Cut | None:
        """What keeps *parts* from being claimed; None if nothing does."""
        for resource, claims in by_resource(parts).items():
            cut = self.flow(resource).cut(claims)
            if cut:
                asked_bytes = sum(amount for nodes, amount in claims if not nodes & ~cut)
                return Cut(resource, NodeSet.of_mask(cut), asked_bytes)
        return None

    def copy(self) -> "ResourceFlows":
        """Independent flows with the same promises."""
        twin = ResourceFlows.__new__(ResourceFlows)
        twin.basis, twin.ledger, twin.capacity = self.basis, self.ledger, self.capacity
        twin.machine, twin.policy = self.machine, self.policy
        twin.largest_node_bytes = self.largest_node_bytes
        twin.by_resource = {resource: flow.copy() for resource, flow in self.by_resource.items()}
        twin._totals = self._totals  # noqa: SLF001 - of its own class
        return twin

    def empty(self) -> "ResourceFlows":
        """ResourceFlows without promises."""
        twin = self.copy()
        twin.by_resource, twin._totals = {}, {}  # noqa: SLF001 - of its own class
        return twin

    def change(self, claim: Claim, sign: int = 1) -> None:
        """Add (or with -1 remove) *claim*. For copies only: the totals of a ledger do not follow."""
        for nodes, amounts in claim.parts:
            for resource, amount_bytes in amounts.items():
                self.flow(resource).change(nodes.mask, sign * amount_bytes)

    def carry(self, parts: Parts) -> bool:
        """Have the flows carry *parts* too; whether they can carry all of them. Only for copies that are
        asked nothing else: claims and totals stay as they were."""
        return all(
            self.flow(resource).carry(nodes, amount)
            for nodes, amounts in parts
            for resource, amount in amounts.items()
        )

    def release(self, claim: Claim) -> None:
        """Have the flows carry *claim* no longer. Only for copies that are asked to `carry` other claims."""
        for nodes, amounts in claim.parts:
            for resource, amount_bytes in amounts.items():
                self.flow(resource).release(nodes.mask, amount_bytes)

    def check(self, claim: Claim) -> None:
        """Hold the sets around *claim* against Hall's condition, independently of the flow.

        Raises:
            OvercommitError: one of them would be promised more than it holds by this claim.
        """
        for resource, claims in by_resource(parts_of(claim)).items():
            flow = self.flow(resource)
            if flow.unmet:
                continue
            for watched in {*[nodes for nodes, _ in claims], *flow.slack}:
                amount_bytes = sum([amount for nodes, amount in claims if not nodes & ~watched])
                if not amount_bytes:
                    continue
                left = flow.left_within(watched)
                if amount_bytes > left:
                    nodes = NodeSet.of_mask(watched)
                    raise OvercommitError(
                        f"{resource} on {nodes_text(nodes)}: {amount_bytes} of {counted(left, 'byte')} left"
                    )


def capacity_by_resource(allocatable: Allocatable) -> dict[str, dict[int, int]]:
    """What containers may have of each resource, by node as a mask."""
    capacity: dict[str, dict[int, int]] = {}
    for node, amounts in allocatable.bytes_by_node.items():
        for resource, amount_bytes in amounts.items():
            capacity.setdefault(resource, {})[1 << node] = amount_bytes
    return capacity


def totals(ledger: Ledger) -> Totals:
    """What is claimed on each set of nodes; what was booked node by node counts as claims on single nodes."""
    if not ledger.booked_bytes:
        return ledger.claimed_bytes
    merged = {nodes: dict(row) for nodes, row in ledger.claimed_bytes.items()}
    for node, booked in ledger.booked_bytes.items():
        row = merged.setdefault(NodeSet([node]), {})
        for resource, amount_bytes in booked.items():
            row[resource] = row.get(resource, 0) + amount_bytes
    return merged


def parts_of(claim: Claim) -> Parts:
    """What *claim* promises on each set by itself."""
    if not (claim.even_hugepages or claim.shares or claim.by_node):
        return ((claim.nodes.mask, claim.amounts_bytes),)
    return [(nodes.mask, amounts) for nodes, amounts in claim.parts]


def by_resource(parts: Parts) -> dict[str, list[tuple[int, int]]]:
    """*parts* as sets and bytes of each resource."""
    found: dict[str, list[tuple[int, int]]] = {}
    for nodes, amounts in parts:
        for resource, amount_bytes in amounts.items():
            found.setdefault(resource, []).append((nodes, amount_bytes))
    return found


def shortage(flows: ResourceFlows, cut: Cut) -> Shortage:
    """*cut* as the value that is shown, with the containers that hold what was promised there."""
    flow, ledger = flows.flow(cut.resource), flows.ledger
    holders = []
    for entry in (*ledger.entries.values(), *filter(holds_alone, ledger.retained.values())):
        held_bytes = _held_within(entry.decision.placement, cut)
        if held_bytes:
            holders.append(Holder(entry.container_id, entry.decision.request.name, held_bytes))
    holders.sort(key=lambda holder: (-holder.held_bytes, holder.container_id))
    return Shortage(
        cut.resource,
        cut.nodes,
        flow.capacity_of(cut.nodes.mask),
        flow.claimed_within(cut.nodes.mask),
        cut.asked_bytes,
        tuple(holders[:NAMED_HOLDERS]),
        max(0, len(holders) - NAMED_HOLDERS),
    )


def overcommitted(lacking: Shortage) -> Reason:
    """The reason that says that a running container's claim counts although it does not fit."""
    return Reason(OVERCOMMITTED, f"{lacking.sentence()}; nothing new is placed there")


def _held_within(placement: Placement, cut: Cut) -> int:
    parts = placement.promise.parts
    return sum(amounts.get(cut.resource, 0) for nodes, amounts in parts if nodes <= cut.nodes)


def _differences(mask: int, before: Amounts, after: Amounts) -> list[tuple[int, str, int]]:
    found = []
    for resource in before.keys() | after.keys():
        difference = after.get(resource, 0) - before.get(resource, 0)
        if difference:
            found.append((difference, resource, mask))
    return found
