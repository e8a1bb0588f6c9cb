"""What becomes of a resource claim, and of the containers that have it. Pure.

A claim gets on each node what the scheduler allocated there, or is refused: the scheduler worked with what
was published a moment ago. Its containers run on its nodes and its CPUs. Several of them share what their
claims hold; what they ask for themselves is promised beside it as far as it is more: with a limit that is no
higher, they cannot use more.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from bayplan.engines.exact.claiming import asked_amounts
from bayplan.engines.exact.exclusive_cpus import best_cpus, kept_shared
from bayplan.engines.exact.resources import ResourceFlows, parts_of, shortage
from bayplan.engines.exact.topology import NodeTopology
from bayplan.engines.interface import EXACT, Engine
from bayplan.model.basis import Basis
from bayplan.model.claims import (
    BY_CLAIM,
    ClaimShare,
    HeldClaim,
    ResourceClaim,
    by_page_size,
    claim_key,
    sum_of,
)
from bayplan.model.decision import (
    Claim,
    Decision,
    Interval,
    NodeWish,
    Outcome,
    Placement,
    QosClass,
    QosSource,
    Reason,
    Request,
)
from bayplan.model.ledger import Entry, Ledger
from bayplan.model.machine import MEMORY, union
from bayplan.model.workload import Container, Pod, container_name
from bayplan.quantity import counted
from bayplan.sets import CpuSet, NodeSet, cpus_text, nodes_text

CLAIMED: Final = "resource-claim"
NOT_CLAIMABLE: Final = "resource-claim-refused"
NOT_HELD: Final = "resource-claim-not-held"
"""Codes of the reasons: what is by a claim; why one cannot be had; that a container has one that is not held
for its pod."""

MOST_CLAIMS: Final = 4096
"""Of a node. A node has some hundreds of pods."""


def decide_claim(basis: Basis, engine: Engine, claim: ResourceClaim, had: Sequence[CpuSet] = ()) -> Entry:
    """The entry of *claim*: what it holds from now on, or a decision that refuses it. What it holds by the
    same allocation already it keeps; the CPUs that it *had* by devices, of which nothing is recorded, it gets
    again if it can."""
    before = basis.ledger.retained.get(claim.key)
    if before is not None and (held := before.resource_claim) is not None:
        if held.claim.devices == claim.devices:
            return _kept(before, held, claim)
        if held.adopted is not None:
            return _refused(request_of(claim), f"it is held as {held.adopted.driver} has prepared it")
        if users := users_of(basis.ledger, claim.uid):
            names = ", ".join(sorted(one.decision.request.name for one in users))
            why = f"containers run on what it had by another allocation: {names}"
            return _refused(request_of(claim), why)
        basis = basis.with_ledger(basis.ledger.without_retained(claim.key))
    request = request_of(claim)
    refused = _why_not(basis, engine, claim)
    if refused is not None:
        return _refused(request, refused)
    flows = ResourceFlows(basis)
    by_node = HeldClaim(claim, (CpuSet(),) * len(claim.devices)).by_node()
    promise = Claim(
        NodeSet(device.node for device in claim.devices), sum_of(by_node.values()), by_node=by_node
    )
    cut = flows.cut(parts_of(promise)) if by_node else None
    if cut is not None:
        lacking = shortage(flows, cut)
        decision = _refused(request, lacking.sentence()).decision
        return Entry(replace(decision, shortage=lacking), ended=True)
    cpus, few = _cpus_of(basis, claim, had)
    if few is not None:
        return _refused(request, few)
    held = HeldClaim(claim, cpus)
    text = f"resource claim {claim.namespace}/{claim.name}: {nodes_text(promise.nodes)}, as allocated"
    if own := held.cpus_of():
        text += f", with {cpus_text(own)}"
    placement = Placement(exclusive_cpus=own, claim=promise if by_node else None)
    decision = Decision(request, Outcome.PLACED, placement, (Reason(CLAIMED, text),))
    return Entry(decision, ended=True, resource_claim=held)


def _kept(before: Entry, held: HeldClaim, claim: ResourceClaim) -> Entry:
    """*before* with the pod that *claim* is reserved for now; with the first one where there are others
    beside it."""
    if set(held.claim.pod_uids) < set(claim.pod_uids):
        return before
    if (shared := _why_not_one_pods(claim)) is not None:
        return _refused(request_of(claim), shared)
    return replace(before, resource_claim=replace(held, claim=claim))


def is_void(ledger: Ledger, claim: ResourceClaim) -> bool:
    """Whether *claim* was allocated anew, and no container uses what is held for its former allocation."""
    before = ledger.resource_claims.get(claim.key)
    if before is None or before.adopted is not None or users_of(ledger, claim.uid):
        return False
    return before.claim.devices != claim.devices


def with_resource_claims(
    ledger: Ledger, engine: Engine, pod: Pod, container: Container, request: Request
) -> Request | Decision:
    """*request* of a new container with what it has through resource claims of its pod. It is refused if one
    of them is not held, or not for this pod: whoever writes a pod can write the variables that name claims.
    CPUs and nodes that somebody else chose stay."""
    if request.opted_out:
        return request
    wanted: dict[str, list[str]] = {}
    for each in container.resource_claims:
        uid, _, name = each.partition("/")
        wanted.setdefault(uid, []).append(name)
    claims = ledger.resource_claims
    had: list[str] = []
    rows: list[Mapping[int, Mapping[str, int]]] = []
    cpus = CpuSet()
    for uid, names in wanted.items():
        held = claims.get(claim_key(uid))
        if names == [""] and (held is None or held.adopted is None):
            continue  # A variable of another driver, which has not prepared it here.
        if held is None or pod.uid not in held.claim.pod_uids:
            whose = "is not held on this node" if held is None else "is not held for its pod"
            text = f"{container_name(pod, container)} has resource claim {uid}, which {whose}"
            return Decision(request, Outcome.REFUSED, reasons=(Reason(NOT_HELD, text),))
        had.append(uid)
        requests = names if held.adopted is None else None
        rows.append(held.by_node(requests))
        cpus |= held.cpus_of(requests)
    if not had:
        return request
    nodes = NodeSet(node for row in rows for node in row)
    amounts = sum_of(row for by_node in rows for row in by_node.values())
    share = ClaimShare(tuple(had), nodes, _left_of(ledger, had, amounts), cpus)
    request = replace(request, claimed=share)
    if cpus:
        request = replace(request, exclusive_cpus=0, cpus=None)
    if nodes and not engine.kind.is_kubelets:
        request = replace(request, nodes=NodeWish(nodes, required=True), tier=None)
    return request


def on_claimed_cpus(ledger: Ledger, decision: Decision) -> Decision:
    """*decision* about a container, on the CPUs of its resource claims as well, which *ledger* has, unless
    somebody else chose others."""
    share = decision.request.claimed
    if share is None or decision.outcome is Outcome.REFUSED:
        return decision
    where = [nodes_text(share.nodes)] if share.nodes else []
    where += [cpus_text(share.cpus)] if share.cpus else []
    of = claims_text(
        held.claim for key in map(claim_key, share.uids) if (held := ledger.resource_claims.get(key))
    )
    reasons = (*decision.reasons, Reason(CLAIMED, f"by {of}: {' and '.join(where) or 'nothing'}"))
    decision = replace(decision, reasons=reasons)
    if decision.request.cpus_chosen_by_others:
        return decision
    return replace(decision, placement=replace(decision.placement, claimed_cpus=share.cpus or None))


def claims_text(claims: Iterable[ResourceClaim]) -> str:
    """The names of *claims*, for sentences."""
    names = [f"{one.namespace}/{one.name}" for one in claims]
    return f"resource {'claim' if len(names) == 1 else 'claims'} {', '.join(names)}"


def users_of(ledger: Ledger, uid: str) -> list[Entry]:
    """The containers that have the resource claim *uid*."""
    return [
        entry
        for entry in ledger.entries.values()
        if (share := entry.decision.request.claimed) is not None and uid in share.uids
    ]


def pod_hugepages(ledger: Ledger, pod_uid: str) -> dict[int, int]:
    """The huge pages that the containers of a pod with resource claims may use together, by their size: what
    the claims hold, and what each container is promised itself. Empty without claims of huge pages."""
    claims = [one.claim for one in ledger.resource_claims.values() if pod_uid in one.claim.pod_uids]
    claimed = by_page_size(sum_of(one.amounts_bytes for one in claims))
    users = {entry.container_id: entry for one in claims for entry in users_of(ledger, one.uid)}
    pods = {entry.decision.request.pod_id for entry in users.values()}
    own = [entry.decision.placement.promise.parts for pod_id in pods for entry in ledger.of_pod(pod_id)]
    beside = by_page_size(sum_of(row for parts in own for _, row in parts))
    return {size: amount + beside.get(size, 0) for size, amount in claimed.items()}


def all_hugepages(ledger: Ledger) -> dict[int, int]:
    """The huge pages that all containers, claims and pods as a whole are promised together, by their size."""
    return by_page_size(sum_of([*ledger.booked_bytes.values(), *ledger.claimed_bytes.values()]))


def _left_of(ledger: Ledger, wanted: Iterable[str], amounts: Mapping[str, int]) -> dict[str, int]:
    """What of *amounts* is left for a container: what no other container of these claims counts on. Together
    they may use no more than is promised to the claims and to themselves."""
    left = dict(amounts)
    users = {entry.container_id: entry for uid in wanted for entry in users_of(ledger, uid)}
    for entry in users.values():
        request = entry.decision.request
        share = request.claimed
        for resource, amount in asked_amounts(request).items():
            counted_on = min(amount, share.amounts_bytes.get(resource, 0)) if share is not None else 0
            left[resource] = max(0, left.get(resource, 0) - counted_on)
    return {resource: amount for resource, amount in left.items() if amount}


def request_of(claim: ResourceClaim) -> Request:
    """The request that the entry of *claim* shows."""
    amounts = claim.amounts_bytes
    memory_bytes = amounts.pop(MEMORY, 0)
    return Request(
        container_id=claim.key,
        pod_id=claim.key,
        name=f"{claim.namespace}/{claim.name}",
        qos=QosClass.GUARANTEED,
        qos_source=QosSource.CGROUP_PARENT,
        memory=Interval(memory_bytes, memory_bytes, BY_CLAIM),
        memory_limit_bytes=memory_bytes or None,
        exclusive_cpus=sum(device.cpus for device in claim.devices),
        hugepages_bytes=amounts,
    )


def _why_not(basis: Basis, engine: Engine, claim: ResourceClaim) -> str | None:
    """What rules *claim* out whatever room there is."""
    machine, ledger = basis.machine, basis.ledger
    if engine.kind.is_kubelets:
        return f"engine: found {engine.name}, expected {EXACT}, which alone keeps promises to claims"
    absent = NodeSet(device.node for device in claim.devices) - machine.node_ids
    if absent:
        return f"this machine has no {nodes_text(absent)}"
    if (shared := _why_not_one_pods(claim)) is not None:
        return shared
    if claim.key not in ledger.retained and len(ledger.resource_claims) >= MOST_CLAIMS:
        return f"{MOST_CLAIMS} claims are held already"
    return None


def _why_not_one_pods(claim: ResourceClaim) -> str | None:
    if len(claim.pod_uids) == 1:
        return None
    return f"reserved for {counted(len(claim.pod_uids), 'pod')}, expected one: a claim is one pod's"


def _refused(request: Request, why: str) -> Entry:
    return Entry(Decision(request, Outcome.REFUSED, reasons=(Reason(NOT_CLAIMABLE, why),)), ended=True)


def _cpus_of(
    basis: Basis, claim: ResourceClaim, had: Sequence[CpuSet]
) -> tuple[tuple[CpuSet, ...], str | None]:
    """The CPUs for each device of *claim*, or why there are too few. Those that it *had* come first, and then
    those that its containers run on: the record of the claim may have been lost."""
    wanted = sum(device.cpus for device in claim.devices)
    none = (CpuSet(),) * len(claim.devices)
    if not wanted:
        return none, None
    few = kept_shared(wanted, basis)
    if few is not None:
        return none, few.text
    machine, policy = basis.machine, basis.policy
    topology, free = NodeTopology(machine), basis.exclusive_candidates()
    rows = [(device.cpus, machine.node_by_id[device.node].cpus & free) for device in claim.devices]
    apart = len(union(had)) == wanted
    if had and apart and all(map(_could_have, had, rows)):
        return tuple(had), None
    used = CpuSet()
    for entry in users_of(basis.ledger, claim.uid):
        used |= entry.decision.placement.claimed_cpus or CpuSet()
    by_device = []
    for device in claim.devices:
        here = machine.node_by_id[device.node].cpus & free
        nodes = NodeSet([device.node])
        cpus = best_cpus(topology, policy, here & used, device.cpus, nodes)
        cpus |= best_cpus(topology, policy, here - cpus, device.cpus - len(cpus), nodes)
        if len(cpus) < device.cpus:
            asked = counted(device.cpus, "CPU")
            return none, f"{asked} asked for on {nodes_text(nodes)}; {len(here)} can become exclusive there"
        free -= cpus
        by_device.append(cpus)
    return tuple(by_device), None


def _could_have(cpus: CpuSet, row: tuple[int, CpuSet]) -> bool:
    count, here = row
    return len(cpus) == count and cpus <= here
