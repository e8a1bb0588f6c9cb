"""Requests and decisions as people read them. One place, so that logs, `bayplan explain`, what-if, the
simulator and refusals say the same of the same decision.

The reasons, and the sentence of a shortage, are part of the decision itself; here is what stands around them.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized

from bayplan.errors import PlacementError
from bayplan.model.basis import SeenSize, sizes_text
from bayplan.model.decision import (
    ROOM_TAKEN,
    SHARE_TAKEN,
    Advantage,
    Claim,
    Decision,
    DeviceHint,
    Interval,
    MemoryPolicyMode,
    MemoryPolicySetting,
    MemoryPolicyWish,
    Move,
    Outcome,
    QosClass,
    QosSource,
    Relocation,
    RelocationPlan,
    Request,
)
from bayplan.model.kubelet_requests import BY_KUBELET
from bayplan.model.life import Report
from bayplan.model.machine import MEMORY
from bayplan.model.qos import BY_SCORE
from bayplan.model.request import BY_ANNOTATION, NO_SIGNAL
from bayplan.model.resources import RESERVATION
from bayplan.model.wishes import MEMORY_POLICY_FLAGS
from bayplan.quantity import counted, first_of_many, format_bytes
from bayplan.sets import CpuSet, NodeSet, cpus_text, nodes_text

_MOST_NUMBERS = 8
"""Of what there may be hundreds of, in a sentence."""

_PLURALS = {"is": "are", "has": "have", "holds": "hold", "crosses": "cross"}
_FLAG_WORDS = {name: word for word, name in MEMORY_POLICY_FLAGS.items()}

_HOW_KNOWN = {
    "limit": "known from its limit",
    BY_SCORE: "known from its oom_score_adj",
    BY_ANNOTATION: "given by annotation",
    BY_KUBELET: "known from kubelet",
    "QoS class": "as its class asks for none",
    "no limit": "as it has no limit",
    RESERVATION: "known from its memory reservation",
    NO_SIGNAL: "as nothing says how much",
}
"""The sources of a memory request, as they stand after the amount."""


FOUND = "container was created without a decision of bayplan"
FOUND_AFTER_ITS_END = "container has a process after its end was reported"


def kubelet_unknown(version: str, depends: Sequence[str]) -> str:
    """The remark that it is not known which kubelet the node has, so that *version* was assumed."""
    assumed = f"which kubelet this node has is not known, {version} is assumed (kubeletVersion)"
    return f"{assumed}; on it depend: {'; '.join(depends)}"


def left_out(problem: str, others: int) -> str:
    """The remark about a file that only orders and was left out, as *others* of its kind."""
    return f"{problem}; left out{f', as {others} more' if others else ''}"


def shared_cpus(nodes: NodeSet) -> str:
    """The remark about *nodes* with CPUs that the kernel lists on an earlier node too."""
    return (
        f"the kernel lists CPUs on {nodes_text(nodes)} that an earlier node has too (numa=fake): "
        "they count there, and what is left is memory near them"
    )


def pools_grown(resource: str, node: int, wanted_bytes: int, came_bytes: int) -> str:
    """By how much the pool of *resource* of *node* grew for a container."""
    text = f"the pool of {resource} on node {node} grew by {format_bytes(came_bytes)} for it"
    if came_bytes == wanted_bytes:
        return text
    return f"{text}, of {format_bytes(wanted_bytes)}: the kernel gave no more in time"


def pages_to_be_had(
    by_resource: Mapping[str, Mapping[int, int]], in_all_bytes: Mapping[str, int] = {}
) -> str:
    """How much of huge pages each node could give with all that its pool may grow by, and all together where
    that is less than the sum."""
    texts = []
    for resource, by_node in by_resource.items():
        amounts = sorted(set(by_node.values()) - {0}, reverse=True)
        there = [(one, NodeSet(node for node, has in by_node.items() if has == one)) for one in amounts]
        had = " and ".join(
            f"{format_bytes(one)} on {'each of ' if len(nodes) > 1 else ''}{nodes_text(nodes)}"
            for one, nodes in there
        )
        together_bytes = in_all_bytes.get(resource, sum(by_node.values()))
        less = f", {format_bytes(together_bytes)} in all" if together_bytes < sum(by_node.values()) else ""
        texts.append(f"{had or 'nothing'} of {resource}{less}")
    return f"with all that pools may grow by it could have {', '.join(texts)}"


def after_its_end(report: Report) -> str:
    """What is logged of a container that has ended, and of which something was reported after that."""
    return f"container was reported as {report.value} after its end was reported"


def refusal(decision: Decision) -> PlacementError:
    """The error for a refused decision; the runtime, and so the user, is given its text."""
    return PlacementError(decision.request.name, decision.explanation(), decision.refused_as)


def annotations_forbidden(names: Iterable[str]) -> str:
    """That annotations of a pod do not count, by their *names*."""
    return f"forbiddenAnnotations of this node has {', '.join(names)}"


def undecided(name: str) -> PlacementError:
    """The error for a container that must not start without a decision, and about which there is none."""
    text = (
        "bayplan could not decide in time, and whenDown is refuse; it is tried again with the next creation"
    )
    return PlacementError(name, text, "UnexpectedAdmissionError")


def ignores_silence(runtime: str, nri_version: str) -> str:
    """That a runtime does not do all that ``whenDown: refuse`` asks for."""
    return (
        f"whenDown is refuse, but {runtime} with NRI {nri_version} goes on where the daemon hangs, and with "
        "every version where none is connected: have the runtime require the plugin (docs/operations.md)"
    )


def placement_file_problem(problem: str) -> str:
    """The sentence that a container is not told what it has."""
    return f"a placement file is not as the ledger says, and is tried again: {problem}"


def irqs_stay(cpus: CpuSet, irqs: Sequence[int], problem: str) -> str:
    """That interrupts are still handled on CPUs which they were to leave, and what the kernel says."""
    numbers = first_of_many(irqs, ", ", _MOST_NUMBERS)
    which = f"{numbers} {'stay' if len(irqs) > 1 else 'stays'} on {cpus_text(cpus)}"
    return f"interrupt{'s' if len(irqs) > 1 else ''} {which}: {problem}"


def asked(request: Request) -> list[str]:
    """What a container asks for and how that is known, a line for each thing."""
    lines = [f"{request.qos.value}, {_source(request)}"]
    lines.append(f"memory: {memory_text(request.memory)}")
    if request.memory_limit_bytes is not None and not _is_limit(request):
        lines[-1] += f"; limited to {format_bytes(request.memory_limit_bytes)}"
    if request.memory_waits_for_proof:
        lines[-1] += (
            f"; {format_bytes(request.shown_memory.high_bytes)} are promised unless another container"
        )
        lines[-1] += " of its pod has the same oom_score_adj"
    lines += [f"{resource}: {format_bytes(amount)}" for resource, amount in request.hugepages_bytes.items()]
    if request.exclusive_cpus:
        rest = request.pool_milli(request.exclusive_cpus) if request.shares_rest else 0
        beside = f", and {rest / 1000:g} shared on the same nodes" if rest else ""
        lines.append(f"CPUs: {request.exclusive_cpus} of its own{beside}")
    elif request.cpu_weighed and request.cpu_milli:
        lines.append(f"CPUs: shared, with the weight of {request.cpu_milli / 1000:g}")
    elif request.cpu_milli:
        where = f"in the pool {request.pool}" if request.pool else "shared"
        lines.append(f"CPUs: {request.cpu_milli / 1000:g}, {where}")
    lines += [f"wish: {text}" for text in wishes(request)]
    if request.pinned_mems is not None or request.pinned_cpus is not None:
        given = request.given_policy
        bound = (
            given is not None and given.mode is MemoryPolicyMode.BIND and request.pinned_mems == given.nodes
        )
        mems = "memory policy bind on" if bound else "cpuset.mems"
        pins = {"cpuset.cpus": request.pinned_cpus, mems: request.pinned_mems}
        lines.append("set by somebody else: " + ", ".join(f"{key} {ids}" for key, ids in pins.items() if ids))
    return lines


def wishes(request: Request) -> list[str]:
    """What a container wishes beside the amounts, each wish as a few words."""
    words = []
    if request.opted_out:
        words.append("to be left alone")
    if request.nodes is not None:
        words.append(f"{nodes_text(request.nodes.nodes)} {_firmness(required=request.nodes.required)}")
    if request.tier is not None:
        words.append(f"memory tier {request.tier.tier} {_firmness(required=request.tier.required)}")
    if request.memory_policy is not None:
        words.append(f"memory policy {policy_text(request.memory_policy)}")
    if request.cpus is not None:
        words.append(
            f"CPUs of the pool {request.cpus.pool}"
            if request.cpus.pool
            else f"CPUs {request.cpus.use.value}"
            + (f", {request.cpus.count} of them" if request.cpus.count else "")
        )
    if request.cpu_kind:
        words.append(f"its own CPUs of the kind {request.cpu_kind}")
    if request.even_hugepages is not None:
        nodes = counted(request.even_hugepages.node_count, "node")
        words.append(f"huge pages evenly on {nodes} (required)")
    if request.strategy is not None:
        words.append(f"placement strategy {request.strategy.value}")
    return [*words, *_told(request), *map(_hint, request.hints)]


def _told(request: Request) -> Iterator[str]:
    if request.placement_file:
        yield "a file that says what it was given"
    if request.exec_cpus is not None:
        yield f"processes that enter it later on CPUs: {request.exec_cpus.value}"
    if request.partition:
        yield "its own CPUs as an isolated partition"
    if request.irqs_away:
        yield "interrupts away from its own CPUs"
    if request.environment:
        yield f"variables of the environment for {', '.join(request.environment)}"


def memory_text(memory: Interval) -> str:
    """A memory request with its source, as an interval where it is not known exactly."""
    low, high = format_bytes(memory.likely_low_bytes), format_bytes(memory.high_bytes)
    amount = high if memory.exact or low == high else f"{low} to {high}"
    if memory.likely_low_bytes != memory.low_bytes:
        amount += " (less only if it is a sidecar or its pod has requests of its own)"
    return f"{amount}, {_HOW_KNOWN.get(memory.source, f'known from {memory.source}')}"


def policy_text(policy: MemoryPolicyWish | MemoryPolicySetting) -> str:
    """A memory policy as it is written in an annotation: ``interleave=static:0-1``."""
    flags = "".join(f"={_FLAG_WORDS.get(flag, flag)}" for flag in policy.flags)
    return f"{policy.mode.value}{flags}{f':{policy.nodes}' if policy.nodes else ''}"


def placed(decision: Decision, also_of: Sequence[str] = ()) -> list[str]:
    """Where a container is, a line for memory, CPUs and memory policy. *also_of* are the names of the others
    whose cpusets have some of its own CPUs."""
    request, placement = decision.request, decision.placement
    mems = placement.mems if request.pinned_mems is None else request.pinned_mems
    lines = [f"memory: {_anywhere(mems)}{_witness(placement.booked_bytes)}"]
    if placement.overlapping:
        lines[-1] += "; shared in part with other sets of nodes"
    if placement.original_nodes is not None:
        lines.append(f"placed on {nodes_text(placement.original_nodes)} at first, on others since")
    if placement.leaving is not None:
        lines.append(f"leaves {nodes_text(placement.leaving)} as soon as its pages have")
    claim = placement.promise
    if isinstance(claim, Claim) and claim.amounts_bytes and _is_beside(claim, placement.mems):
        how = ", and may move over for others" if claim.flexible else ""
        how += ", its huge pages evenly" if claim.even_hugepages else ""
        lines.append(f"promised: {_amounts(claim.amounts_bytes)} on {nodes_text(claim.nodes)}{how}")
    if claim.short_bytes:
        lines.append(f"not promised: {_amounts(claim.short_bytes)}")
    if claim.explained_bytes:
        lines.append(
            f"not claimed: {format_bytes(claim.explained_bytes)}, as another container of its pod has the "
            "same oom_score_adj, which kubelet also gives to sidecars"
        )
    lines.append(f"CPUs: {_cpus(decision, also_of)}")
    if placement.memory_policy is not None:
        lines.append(f"memory policy: {policy_text(placement.memory_policy)}")
    elif request.given_policy is not None:
        lines.append(f"memory policy: {policy_text(request.given_policy)}, as in its spec")
    return lines


def advantage(winner: NodeSet | None, found: Advantage) -> str:
    """Why the winner is better than the runner-up."""
    mine, other = _anywhere(winner), nodes_text(found.runner_up_nodes)
    if found.criterion == "id":
        return f"{mine} before {other}, which would do as well, by the lower id"
    won = "beat" if winner is not None and len(winner) > 1 else "beats"
    values = (criterion(found.criterion, value) for value in (found.winner, found.runner_up))
    return f"{mine} {won} {other} by {found.criterion}: {' against '.join(values)}"


def keeps_room(won: Advantage, seen: Sequence[SeenSize]) -> str:
    """Why a set was taken beside which more requests like those of late would fit."""
    more, every = won.runner_up - won.winner, sum(one.count for one in seen)
    text = (
        f"on {nodes_text(won.runner_up_nodes)} it would leave no room for {more} more of {every} like those"
    )
    return f"{text} seen lately: {sizes_text(seen)}"


def criterion(name: str, value: int) -> str:
    """A value by which candidates were compared."""
    if name == SHARE_TAKEN:
        return f"{value / 10:g} %"
    return format_bytes(value) if name == ROOM_TAKEN else str(value)


def move(one: Move) -> str:
    """The sentence about another container that had to move over."""
    moved = f", at most {format_bytes(one.moved_bytes)} of it moved" if one.moved_bytes else ""
    moved += f", on {cpus_text(one.cpus)}" if one.cpus else ""
    return f"{one.name} from {_anywhere(one.before)} to {_anywhere(one.after)}{moved}"


def relocation(one: Relocation) -> str:
    """The sentence about another container that would have to go elsewhere."""
    cpus = ""
    if one.cpus_before != one.cpus_after:
        cpus = f"{cpus_text(one.cpus_before)} to {one.cpus_after}"
    if one.before == one.after:
        return f"{one.name} moves on {nodes_text(one.before)} from {cpus}"
    text = f"{one.name} moves from {nodes_text(one.before)} to {nodes_text(one.after)}"
    return f"{text} ({cpus})" if cpus else text


def relocation_plan(plan: RelocationPlan, rate_bytes: int, outcome: Outcome) -> str:
    """What would have to move so that a request fits as it was asked, and how long that takes if
    *rate_bytes* are moved in a second."""
    fits = "fits" if outcome is Outcome.REFUSED else "would be as asked"
    beside = "" if plan.proven else "; the search ended: less may do"
    return f"{fits} on {nodes_text(plan.nodes)} if {_relocations(plan, rate_bytes)}{beside}"


def relocated(plan: RelocationPlan, rate_bytes: int) -> str:
    """The sentence that *plan* is carried out."""
    return f"fits because {_relocations(plan, rate_bytes)}"


def stays_scattered(node: int) -> str:
    """That pools of a node grow no further than there are large free blocks."""
    return (
        f"pools of huge pages on node {node} grow by large free blocks alone: the kernel cannot move pages "
        "together (CONFIG_COMPACTION)"
    )


def too_large_to_move(plan: RelocationPlan, most_bytes: int) -> str:
    """The sentence that *plan* is not carried out, as one of its containers has more than *most_bytes*."""
    large = max(plan.relocations, key=lambda one: one.moved_bytes)
    has = f"{large.name} has {format_bytes(large.moved_bytes)}"
    return f"not moved: {has}, and returnMaxMove is {format_bytes(most_bytes)}"


def moved_enough(count: int, most: int) -> str:
    """That *count* containers moved for others within the hour, of *most* that may."""
    moved = f"{counted(count, 'container')} moved for others within the last hour"
    return f"not moved now: {moved}, and relocationsPerHour is {most}"


def being_changed(name: str) -> str:
    """That a container does not move, as something else is under way with it."""
    return f"not moved now: {name} is being started, changed or ended"


def _relocations(plan: RelocationPlan, rate_bytes: int) -> str:
    moves = " and ".join(map(relocation, plan.relocations))
    seconds = -(-plan.moved_bytes // rate_bytes)
    cost = f"{format_bytes(plan.moved_bytes)}, some {seconds} s" if seconds else "no memory"
    return f"{moves}: {cost}"


def slowed_down(name: str, seconds: float) -> str:
    """The sentence that a container waits for memory."""
    return f"{name} is slowed down for {seconds:.0f} s by now: what it takes is promised, and not free yet"


def summary(decision: Decision) -> str:
    """A decision in one line: the outcome, the place, and the reasons."""
    placement = decision.placement
    if decision.outcome is Outcome.REFUSED:
        return f"refused: {decision.explanation()}"
    mems = decision.request.pinned_mems if placement.mems is None else placement.mems
    cpus = f", {cpus_text(placement.apart_cpus)}" if placement.apart_cpus else ""
    return f"{decision.outcome.value} on {_anywhere(mems)}{cpus}: {decision.explanation()}"


def not_repaired(difference: str, times: int, problem: str) -> str:
    """That a container's cgroup stays as it should not be: *difference*, and what the kernel says of it, ""
    where it took the values."""
    often = "" if times == 1 else f" ({times} times)"
    why = problem or "the kernel took it, and uses what the cgroups above leave of it"
    return f"cannot be repaired{often}: {difference}: {why}"


def verb_after(ids: Sized, verb: str) -> str:
    """*verb*, given as a singular, as it stands after `nodes_text` or `cpus_text`."""
    return verb if len(ids) == 1 else _PLURALS[verb]


def _anywhere(nodes: NodeSet | None) -> str:
    return "any node" if nodes is None else nodes_text(nodes)


def _cpus(decision: Decision, also_of: Sequence[str]) -> str:
    request, own = decision.request, decision.placement.own_cpus
    if request.pinned_cpus is not None:
        return f"{request.pinned_cpus}, set by somebody else"
    if request.opted_out:
        return "as in its spec"
    if pooled := decision.placement.pool_cpus:
        return f"{pooled}, those of the pool {request.pool}"
    if not own:
        return "the shared ones"
    return f"{own}, its own" + (f", but not alone: {', '.join(also_of)} may run there too" if also_of else "")


def _source(request: Request) -> str:
    if request.qos_source is not QosSource.INFERRED:
        known = {QosSource.CGROUP_PARENT: "its cgroup parent", QosSource.OOM_SCORE_ADJ: "its oom_score_adj"}
        return f"known from {known[request.qos_source]}"
    why = {
        QosClass.GUARANTEED: "a memory limit and a CPU quota",
        QosClass.BURSTABLE: "what it reserves, its shares or limits",
        QosClass.BEST_EFFORT: "nothing that counts as a request",
    }
    return f"inferred from {why[request.qos]}, as it is outside of kubelet's cgroup tree"


def _is_limit(request: Request) -> bool:
    return request.memory.exact and request.memory.high_bytes == request.memory_limit_bytes


def _firmness(*, required: bool) -> str:
    return "(required)" if required else "(preferred)"


def _hint(hint: DeviceHint) -> str:
    return f"near {hint.device} on {nodes_text(hint.nodes)} {_firmness(required=hint.required)}"


def _is_beside(claim: Claim, mems: NodeSet | None) -> bool:
    """Whether *claim* says something beside the nodes *mems* of the placement."""
    return claim.flexible or claim.even_hugepages or claim.nodes != mems


def _witness(booked_bytes: Mapping[int, Mapping[str, int]]) -> str:
    rows = (
        (node, {name: amount for name, amount in row.items() if amount}) for node, row in booked_bytes.items()
    )
    text = ", ".join(f"{_amounts(row)} on node {node}" for node, row in sorted(rows) if row)
    return f" ({text})" if text else ""


def _amounts(amounts_bytes: Mapping[str, int]) -> str:
    """``2Gi and 64Mi of hugepages-2Mi``."""
    return " and ".join(
        format_bytes(amount) + ("" if resource == MEMORY else f" of {resource}")
        for resource, amount in amounts_bytes.items()
    )
