"""One decision about a container from beginning to end: wishes, request, engine, memory policy.

The daemon decides by this and then records; a rehearsal decides by this and then throws it away.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, NamedTuple

from msgspec.structs import replace

from bayplan.engines.device_hints import NOTHING_FOUND, Findings, device_reasons, effective_hints
from bayplan.engines.interface import WISH_NOT_GRANTED, Engine, also_pinned
from bayplan.errors import ConfigError, Problem
from bayplan.model.basis import Basis
from bayplan.model.decision import (
    MOVES_WAIT,
    Decision,
    DeviceHint,
    Interval,
    Outcome,
    QosSource,
    Reason,
    Request,
)
from bayplan.model.kubelet_requests import BY_KUBELET
from bayplan.model.ledger import Ledger
from bayplan.model.machine import Machine
from bayplan.model.pod_as_a_whole import with_pod_known
from bayplan.model.policy import Defragment, PlacementFiles, PlacementPolicy
from bayplan.model.request import BY_ANNOTATION, changed_request, derive_request
from bayplan.model.resources import Resources, limiting_nothing, most_bytes, overridden
from bayplan.model.sentences import annotations_forbidden, memory_text
from bayplan.model.wishes import (
    NO_WISHES,
    PREFIX,
    Wishes,
    forbidden_annotations,
    read_wishes,
    ruled_wishes,
    without_cpu_wishes,
    wrong_cpu_wish,
)
from bayplan.model.workload import Container, Pod
from bayplan.placement.adjustment import own_cpu_notes
from bayplan.placement.hugepage_pools import at_greatest
from bayplan.placement.memory_policy import (
    MemoryPolicyAbility,
    decide_again,
    decide_by_given_policy,
    with_policies,
)
from bayplan.placement.placement_file import wished_file
from bayplan.placement.resource_claims import on_claimed_cpus, with_resource_claims
from bayplan.quantity import format_bytes
from bayplan.sets import CpuSet, NodeSet, cpus_text, nodes_text

ExactRequest = Callable[[Request], tuple[Request, tuple[Reason, ...]]]
"""Gives the request with numbers that are better known elsewhere (from kubelet or the API server), and the
reasons why some of these do not count."""

WRONG_ANNOTATION: Final = "wrong-annotation"
"""Code of the reason that names what is wrong with a pod's annotations."""


RULE_NOT_USED: Final = "cpu-rule-not-used"
"""Code of the reason that a rule about CPUs gives a container what it cannot have."""

RELEASED: Final = Reason("released", "given back by bayplan release; it has its parent's CPUs and nodes")

FORBIDDEN_ANNOTATION: Final = "forbidden-annotation"
"""Code of the reason that names annotations which the operator forbids; others count beside them."""


class Annotated(NamedTuple):
    """What the annotations of a container ask for, and what is wrong with them: where one cannot be read,
    they ask for nothing. ``ruled``: how it uses CPUs is not from an annotation, but from a rule of the
    operator."""

    wishes: Wishes
    complaints: tuple[Reason, ...] = ()
    ruled: bool = False


def read_annotations(basis: Basis, pod: Pod, container: Container) -> Annotated:
    """What the annotations of *pod* ask for *container*, and for its CPUs the operator's rules where these
    say nothing."""
    machine, policy = basis.machine, basis.policy
    forbidden = policy.forbidden_annotations
    wishes, complaints = NO_WISHES, list[Reason]()
    names = forbidden_annotations(pod.annotations, container.name, forbidden) if forbidden else ()
    if names:
        complaints.append(_complaint(policy, FORBIDDEN_ANNOTATION, annotations_forbidden(names)))
    if any(PREFIX in key for key in pod.annotations):
        try:
            limits_bytes = container.resources.hugepage_limits_bytes
            wishes = read_wishes(pod.annotations, container.name, machine, limits_bytes, forbidden)
        except ConfigError as error:
            complaints.append(_complaint(policy, WRONG_ANNOTATION, error.on_one_line()))
    if not policy.cpu_rules:
        return Annotated(wishes, tuple(complaints))
    ruled = ruled_wishes(policy.cpu_rules, pod, container.name, machine, wishes)
    return Annotated(ruled, tuple(complaints), ruled.cpus != wishes.cpus)


def _complaint(policy: PlacementPolicy, code: str, text: str) -> Reason:
    return Reason(code, text if policy.refuse_wrong_annotations else f"ignored: {text}")


def _effective(
    basis: Basis, engine: Engine, wishes: Wishes, findings: Findings
) -> tuple[Wishes, tuple[DeviceHint, ...], tuple[Reason, ...]]:
    """*wishes* as far as they are granted, the device hints that count, and what is to be said of both."""
    hints, notes = effective_hints(findings, wishes, basis.machine)
    wishes, without = wished_file(basis.policy, wishes)
    notes = (*notes, *without)
    if engine.kind.is_kubelets and wishes != without_cpu_wishes(wishes):
        wishes = without_cpu_wishes(wishes)
        notes = (*notes, Reason(WISH_NOT_GRANTED, "wishes for CPUs count with the engine exact alone"))
    return wishes, hints, notes


def _with_wrong_wish(
    policy: PlacementPolicy,
    container: Container,
    wrong: Problem,
    notes: tuple[Reason, ...],
    complaints: tuple[Reason, ...],
    *,
    ruled: bool,
) -> tuple[tuple[Reason, ...], tuple[Reason, ...]]:
    """*notes* and *complaints* with what is *wrong* with how CPUs are to be used: that is the operator's, if
    a rule said so, else the pod's."""
    if ruled:
        text = f"cpuRules gives it {wrong.found}, which is for {wrong.expected}"
        return (*notes, Reason(RULE_NOT_USED, text)), complaints
    error = ConfigError(f"annotations for container {container.name}", (wrong,))
    return notes, (*complaints, _complaint(policy, WRONG_ANNOTATION, error.on_one_line()))


def as_derived(request: Request) -> tuple[Request, tuple[Reason, ...]]:
    """*request* as it is: nothing better is known of it."""
    return request, ()


def decide_creation(
    basis: Basis,
    engine: Engine,
    pod: Pod,
    container: Container,
    *,
    annotated: Annotated,
    ability: MemoryPolicyAbility,
    findings: Findings = NOTHING_FOUND,
    exact: ExactRequest = as_derived,
) -> Decision:
    """Where *container*, which is about to be created and is not in the ledger, goes. *annotated* is what
    `read_annotations` returns for it, *findings* are those about its devices, *exact* knows more of requests
    than the spec shows."""
    machine, policy, ledger = basis.machine, basis.policy, basis.ledger
    wishes, complaints, ruled = annotated
    hints, notes = tuple[DeviceHint, ...](), tuple[Reason, ...]()
    asks = wishes is not NO_WISHES or findings is not NOTHING_FOUND
    if asks or policy.placement_files is PlacementFiles.ALL:
        wishes, hints, notes = _effective(basis, engine, wishes, findings)
    # Of huge pages it is asked for what pools may grow to, not for what they have.
    whole = at_greatest(basis) if policy.hugepage_pools else machine
    derive = partial(
        derive_request,
        pod,
        container,
        whole,
        default_limit_bytes=policy.default_memory_limit_bytes,
        hints=hints,
        outside=policy.outside_requests,
    )
    request = derive(wishes=wishes)
    if wishes.cpus is not None and (wrong := wrong_cpu_wish(request, machine, policy.cpu_pools)) is not None:
        request = derive(wishes=without_cpu_wishes(wishes))
        notes, complaints = _with_wrong_wish(policy, container, wrong, notes, complaints, ruled=ruled)
    request, disbelief = (request, ()) if exact is as_derived else exact(request)
    if request.pod_totals is not None:
        request = with_pod_known(request, (one.decision.request for one in ledger.of_pod(request.pod_id)))
    if complaints and policy.refuse_wrong_annotations:
        return Decision(request, Outcome.REFUSED, reasons=complaints)
    if container.resource_claims:
        with_claims = with_resource_claims(ledger, engine, pod, container, request)
        if isinstance(with_claims, Decision):
            return with_claims
        request = with_claims
    given = request.given_policy is not None
    decision = decide_by_given_policy(basis, engine, request) if given else engine.decide(basis, request)
    if request.claimed is not None:
        decision = on_claimed_cpus(ledger, decision)
    given = given or request.memory_policy is not None or decision.placement.memory_policy is not None
    decision = with_policies(machine, ability, decision) if given or machine.movable_nodes.mask else decision
    crowded = tuple(_crowded(ledger, container, decision)) if ledger.pinned_ids or container.exec_cpus else ()
    if crowded and decision.outcome is Outcome.PLACED:
        decision = replace(decision, outcome=Outcome.DEGRADED)
    if wishes is not NO_WISHES:
        disbelief = (*_not_had(wishes, decision), *disbelief)
    notes = (*notes, *disbelief, *_readings(whole, request, container), *crowded)
    of_devices = device_reasons(decision) if request.hints else ()
    added = (*of_devices, *notes, *complaints)
    return replace(decision, reasons=(*decision.reasons, *added)) if added else decision


def only_planning(basis: Basis) -> Basis:
    """*basis* with a policy under which no container is moved for others, but the decision says which would
    have to be."""
    return replace(basis, policy=replace(basis.policy, defragment=Defragment.PLAN))


def with_moves_waiting(decision: Decision, why: str) -> Decision:
    """*decision* by a basis that is `only_planning`, with the reason for that."""
    return replace(decision, reasons=(*decision.reasons, Reason(MOVES_WAIT, why)))


def decide_change(
    basis: Basis,
    engine: Engine,
    old: Decision,
    spec: Resources,
    change: Resources,
    *,
    exact: ExactRequest = as_derived,
) -> Decision | None:
    """What becomes of a container that the ledger no longer has, its spec being *spec* until *change*; None
    if it asks for the same as before. *exact* as for `decide_creation`; it may not know of the change yet."""
    machine, policy = basis.machine, basis.policy
    whole = at_greatest(basis) if policy.hugepage_pools else machine
    request = changed_request(old.request, spec, change, whole, policy.outside_requests)
    if request == old.request:
        return None
    request, _ = exact(request)
    current = old.placement
    decision = decide_again(basis, engine, request, current)
    if decision.outcome is Outcome.REFUSED:
        return decision
    # The policy of processes that run cannot be changed. What is by resource claims stays.
    placement = replace(
        decision.placement, memory_policy=current.memory_policy, claimed_cpus=current.claimed_cpus
    )
    if current.mems is not None and placement.mems is None and request.pinned_mems is None:
        # An empty cpuset means "unchanged" in an update: "all nodes" needs a value.
        placement = replace(placement, mems=machine.memory_nodes)
    # What was given back stays so: a later release has to know it, because the change may narrow it again.
    released = () if RELEASED not in old.reasons else (RELEASED,)
    return replace(decision, placement=placement, reasons=(*decision.reasons, *released))


def _readings(machine: Machine, request: Request, container: Container) -> Iterator[Reason]:
    """What of the container's resources is not taken at its word."""
    resources = container.resources
    for path, problem in resources.unreadable.items():
        yield Reason("unreadable", f"its spec's linux.resources.{path} cannot be read: {problem}")
    if resources.fields is not None:
        for text in overridden(resources, resources.fields):
            yield Reason("overridden", text)
    if request.pinned_cpus is not None or request.pinned_mems is not None:
        yield from _absent_ids(machine, request)
    if request.qos_source is QosSource.CGROUP_PARENT:
        return
    for text in limiting_nothing(resources, machine):
        yield Reason("limits-nothing", text)
    limit_bytes, most = request.memory_limit_bytes, most_bytes(machine)
    if request.memory.high_bytes == most and (limit_bytes or machine.memory_bytes) > most:
        text = f"outside of kubelet's tree no more than half of the machine is promised: {format_bytes(most)}"
        yield Reason("promised-in-part", text)


def _absent_ids(machine: Machine, request: Request) -> Iterator[Reason]:
    """What the cpusets of others have and *machine* has not."""
    cpus = (request.pinned_cpus or CpuSet()) - CpuSet(machine.cpu_by_id)
    nodes = (request.pinned_mems or NodeSet()) - machine.memory_nodes
    absent = " and ".join([*([cpus_text(cpus)] if cpus else []), *([nodes_text(nodes)] if nodes else [])])
    if absent:
        or_no_memory = ", or no memory there" if nodes else ""
        yield Reason("absent-ids", f"its cpusets have {absent}: the machine has none{or_no_memory}")


def _crowded(ledger: Ledger, container: Container, decision: Decision) -> Iterator[Reason]:
    """Why the CPUs of *container* are not alone its own, or not those of processes that enter it later."""
    placement = decision.placement
    yield from also_pinned(ledger, placement.exclusive_cpus)
    if container.exec_cpus:
        yield from _apart_from_exec(container.exec_cpus, decision.request.pinned_cpus or placement.own_cpus)


def _apart_from_exec(wanted: CpuSet, own: CpuSet) -> Iterator[Reason]:
    """That processes which enter a container later are to run on CPUs, *wanted* by its spec, that are none of
    its *own*, which the kernel refuses."""
    if own and wanted.isdisjoint(own):
        text = f"its spec has exec run on {cpus_text(wanted)} (execCPUAffinity), and it has {cpus_text(own)}"
        yield Reason("exec-apart", f"{text}: the kernel refuses that")


def _not_had(wishes: Wishes, decision: Decision) -> tuple[Reason, ...]:
    """What of *wishes* came to nothing by what the container asks for."""
    wanted, lacking = wishes.memory_request_bytes, own_cpu_notes(decision)
    return lacking if wanted is None else (*_unused_request(wanted, decision.request.memory), *lacking)


def _unused_request(wanted: int, known: Interval) -> tuple[Reason, ...]:
    """What came of an annotated memory request, of which so much is *wanted*, that is not the one that is
    *known* and counts."""
    if known.exact and known.high_bytes == wanted:
        return ()
    counts = memory_text(replace(known, source="its spec") if known.source == BY_ANNOTATION else known)
    against = "what kubelet knows" if known.source == BY_KUBELET else "its spec"
    text = f"the annotated memory request of {format_bytes(wanted)} contradicts {against}; counts: {counts}"
    return (Reason("memory-request-not-used", text),)
