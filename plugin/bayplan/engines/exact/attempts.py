"""One attempt to place a container, and the sentences that say what came of it.

An attempt has candidate nodes and the sets of them that the policy allows. Where none of these fits, the
refusal says what could never fit, or else which smallest set of nodes is short (the minimum cut).
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache, partial
from heapq import nlargest
from itertools import islice
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from bayplan.engines.exact.claiming import (
    CandidateNodes,
    fewest_near,
    most_on_empty,
    widest_allowed,
)
from bayplan.engines.exact.flow import bits
from bayplan.engines.exact.question import Question, StepBudget
from bayplan.engines.exact.resources import Cut, ResourceFlows, shortage
from bayplan.engines.exact.search import Area, Branching
from bayplan.engines.interface import WISH_NOT_GRANTED
from bayplan.model.claims import Amounts
from bayplan.model.decision import (
    Decision,
    DeviceHint,
    EvenHugepagesWish,
    Outcome,
    Placement,
    Reason,
    Request,
)
from bayplan.model.machine import MEMORY
from bayplan.model.sentences import verb_after
from bayplan.quantity import counted, format_bytes
from bayplan.sets import NodeSet, nodes_text

SEARCH_ENDED: Final = "search-ended"
"""Code of the reason that a search was given up before every set of nodes was ruled out."""

UNCHANGED: Final = Reason("unchanged", "it keeps what it has")
"""What a refusal says of a container that runs."""

MAX_TARGETS: Final = 16
"""For how many sets of nodes moves are worked out, and how many are compared in a refusal."""

_STEPS_OF_A_TARGET: Final = 6
_SETS_OF_A_REFUSAL: Final = 3000
"""So many claimed sets are read for the cuts of a refusal."""
_MAX_SETS_OF_A_REFUSAL: Final = 1000
"""Of so many sets that the policy allows the least lacking ones are compared."""


class Attempt(Struct, frozen=True):
    """Candidate nodes with the sets of them that the policy allows, and what they are wanted for: by the
    container, or ``of_whole_pod``, with what the rest of its pod asks for."""

    candidates: CandidateNodes
    area: Area
    question: Question
    of_whole_pod: bool = False

    def targets(self, *, widest_first: bool = False) -> Iterator[int]:
        """The sets of nodes that the container may end up on, as masks, whether or not they have room: the
        narrowest first (the widest with *widest_first*), and of equally wide ones the nearest."""
        area, bare = self.area, replace(self.question, amounts={})
        if area.exactly:
            if bare.plausible(area.allowed):
                yield area.allowed
            return
        widths = range(area.narrowest, min(area.widest, area.allowed.bit_count()) + 1)
        for width in reversed(widths) if widest_first else widths:
            for nodes in bare.topology.ranked(area.allowed, width, {}):
                if bare.plausible(nodes):
                    yield nodes

    def reachable(self, relaxed: ResourceFlows, budget: StepBudget) -> Iterator[int]:
        """The `targets` with room on *relaxed*, the flows as if every other container had become as wide as
        it may. Where the targets are too many to look at each, and none of those that were looked at has
        room, branch and bound looks for one more."""
        question, area, any_fits = replace(self.question.on(relaxed), budget=budget), self.area, False
        counted = question.counted
        for nodes in self.targets():
            before = counted.steps
            fits = question.has_room(nodes)
            budget.spent += _STEPS_OF_A_TARGET + counted.steps - before
            if fits:
                any_fits = True
                yield nodes
            if budget.exhausted:
                budget.ended = True
                return
        width = min(area.widest, area.allowed.bit_count())
        if any_fits or area.exactly or not question.topology.too_many(area.allowed, width):
            return
        nodes = Branching(question, area.allowed, 0, width).any_set(at_all=True)
        if nodes:
            yield nodes


def area_of(question: Question, candidates: CandidateNodes, wish: EvenHugepagesWish | None) -> Area:
    """Where to look among *candidates*. A set has as many nodes as the policy allows. It has all of them if
    they were named by a wish, or chosen for the pod; with *wish*, as many as huge pages are wished on."""
    nodes, narrowest = candidates.nodes, 1 if wish is None else wish.node_count
    widest = widest_allowed(
        question.counted.flows,
        nodes,
        question.amounts,
        question.cpus_on_empty,
        question.cpus,
        question.required_hints,
        narrowest,
    )
    if wish is not None:
        widest = narrowest if candidates.of_pod else min(widest, narrowest)
        return Area(nodes.mask, widest, narrowest=narrowest)
    exactly = candidates.exactly and (candidates.of_pod or widest >= len(nodes))
    return Area(nodes.mask, len(nodes) if exactly else widest, exactly=exactly)


def refused(
    attempt: Attempt,
    request: Request,
    current: Placement | None,
    no_cpus: Reason | None = None,
) -> Decision:
    """The refusal of *request* after its last *attempt*. It says the first of these that is true: what no set
    could hold if the machine were empty; *no_cpus*, the reason why no nodes have CPUs for it; the minimum cut
    of the set that lacks least. For the cut only the widest sets are compared, since all others lie within
    them."""
    candidates, question, lacking = attempt.candidates, attempt.question, None
    reasons = [Reason("no-room", _what_and_where(attempt))]
    most = max(1, min(MAX_TARGETS, _SETS_OF_A_REFUSAL // (1 + len(question.counted.claimed.sets))))
    many = islice(attempt.targets(widest_first=True), _MAX_SETS_OF_A_REFUSAL)
    targets = nlargest(most, many, key=partial(_likelihood, question))
    never = _too_large(question, attempt.area) if candidates.nodes else ""
    if not candidates.nodes:
        reasons = [Reason("no-such-nodes", f"{candidates.why}, {candidates.obstacle}")]
    elif never:
        reasons.append(Reason("too-large", never))
    elif no_cpus is not None:
        reasons.append(no_cpus)
    elif not targets:
        reasons.append(_cpus_or_devices(question, attempt.area, request.hints))
    else:
        cut = _least_short(question, targets)
        lacking = None if cut is None else shortage(question.counted.flows, cut)
    if lacking is not None:
        reasons.append(Reason("shortage", lacking.sentence()))
    if current is not None:
        reasons.append(UNCHANGED)
    if question.budget.ended:
        reasons.append(unproven_refusal(question.budget))
    return Decision(request, Outcome.REFUSED, reasons=tuple(reasons), shortage=lacking)


def _likelihood(question: Question, nodes: int) -> tuple[bool, int]:
    """Whether *nodes* could hold the request if they were empty, and how much room they have at best."""
    flows, amounts = question.counted.flows, question.amounts
    could = all(flows.flow(resource).capacity_of(nodes) >= amount for resource, amount in amounts.items())
    first = next(iter(amounts), None)
    rooms = question.free_cpus if first is None else question.rooms[first]
    return could, sum(rooms.get(node, 0) for node in bits(nodes))


def _least_short(question: Question, targets: Iterable[int]) -> Cut | None:
    """Of the minimum cuts of *targets*, the best one: a cut that could hold the request if it were empty
    comes before one that could not, then the one with the most bytes left, then the first. A cut takes a
    flow, so that a target whose bound is no better than the best cut is passed over."""
    flows, amounts = question.counted.flows, question.amounts
    best, most = None, (False, 0)
    for nodes in targets:
        if best is not None and (True, max(flows.bound(nodes, amounts).values())) <= most:
            continue
        cut = flows.cut(question.parts(nodes))
        if cut is None:
            continue
        flow, mask = flows.flow(cut.resource), cut.nodes.mask
        capacity_bytes = flow.capacity_of(mask)
        left = capacity_bytes >= cut.asked_bytes, capacity_bytes - flow.claimed_within(mask)
        if best is None or left > most:
            best, most = cut, left
    return best


def not_granted(attempt: Attempt) -> Reason:
    """Why preferred nodes were not taken."""
    why = attempt.candidates.why
    if not attempt.candidates.nodes:
        return Reason(WISH_NOT_GRANTED, f"{why}, {attempt.candidates.obstacle}")
    question = attempt.question
    cut = question.counted.flows.cut([(attempt.area.allowed, question.amounts)])
    text = shortage(question.counted.flows, cut).sentence() if cut else "no set of them will do"
    return Reason(WISH_NOT_GRANTED, f"{why}: {text}")


def _what_and_where(attempt: Attempt) -> str:
    amounts = attempt.question.amounts
    asked = amounts_text(amounts, attempt.question.cpus)
    if attempt.of_whole_pod:
        asked += " with the rest of its pod"
    if attempt.question.even:
        asked += ", its huge pages evenly,"
    width, policy = attempt.area.widest, attempt.question.counted.flows.policy.topology.value
    allowed = f" on {node_count_text(width)} under {policy}"
    if not attempt.candidates.why:
        return f"asks for {asked}{allowed}"
    if attempt.area.exactly or width >= len(attempt.candidates.nodes):
        allowed = ""
    return f"asks for {asked}{allowed} and {attempt.candidates.why}"


def node_count_text(count: int) -> str:
    """``one node``, ``3 nodes``."""
    return "one node" if count == 1 else counted(count, "node")


@lru_cache(1024)
def chosen(mask: int) -> Reason:
    """The reason that says that the nodes *mask* are the best set; the decision's `Advantage` says what made
    them better than the next one. Kept by mask, because a machine has the same few sets in most decisions."""
    nodes = NodeSet.of_mask(mask)
    return Reason("best-set", f"{nodes_text(nodes)} {verb_after(nodes, 'is')} the best set with room")


def overlap(nodes: NodeSet, count: int) -> Reason:
    """The reason that says that *nodes* cross *count* sets with promises."""
    verb = verb_after(nodes, "crosses")
    text = f"{nodes_text(nodes)} {verb} {counted(count, 'other set')} with promises, as nothing else fits"
    return Reason("overlap", text)


def unproven_best(budget: StepBudget) -> Reason:
    """The reason that says that a better set may exist: the search ended at its *budget*."""
    after = f"the search ended after {counted(budget.spent, 'step')}"
    text = f"{after}: a narrower, nearer or less crossing set may exist"
    return Reason(SEARCH_ENDED, text)


def unproven_refusal(budget: StepBudget) -> Reason:
    """The reason that says that a set with room may exist: the search ended at its *budget*."""
    after = f"the search ended after {counted(budget.spent, 'step')}"
    text = f"{after}: a set with room that was not looked at may exist"
    return Reason(SEARCH_ENDED, text)


def amounts_text(amounts: Amounts, cpus: int) -> str:
    """``2Gi and 64Mi of hugepages-2Mi and 3 CPUs``."""
    parts = [
        format_bytes(amount) if resource == MEMORY else f"{format_bytes(amount)} of {resource}"
        for resource, amount in amounts.items()
    ]
    if cpus:
        parts.append(counted(cpus, "CPU"))
    return " and ".join(parts) or "nothing"


def _too_large(question: Question, area: Area) -> str:
    """That no set of *area* could have what is asked for, were the machine empty; empty if one could."""
    allowed, flows = NodeSet.of_mask(area.allowed), question.counted.flows
    width = min(area.widest, len(allowed))
    if width < area.narrowest:
        return f"its huge pages are to lie on {counted(area.narrowest, 'node')}, and it may have {width}"
    for resource, amount_bytes in question.even.items():
        each_bytes, capacity = amount_bytes // area.narrowest, flows.capacity.get(resource, {})
        able = NodeSet.of_mask(
            sum(node for node in bits(area.allowed) if capacity.get(node, 0) >= each_bytes)
        )
        if len(able) < area.narrowest:
            who = f"only {nodes_text(able)} {verb_after(able, 'holds')}" if able else "no node holds"
            many = counted(area.narrowest, "node")
            each = f"each of {many} is to hold {format_bytes(each_bytes)} of {resource}"
            return f"{each}, and {who} as much"
    for resource, amount_bytes in question.amounts.items():
        held_bytes, nodes = most_on_empty(flows.capacity.get(resource, {}), allowed, area.widest)
        if held_bytes < amount_bytes:
            what = "" if resource == MEMORY else f" of {resource}"
            short = f", {format_bytes(amount_bytes - held_bytes)} too little"
            hidden = format_bytes(held_bytes) == format_bytes(amount_bytes)
            held = f"{format_bytes(held_bytes)}{what}{short if hidden else ''}"
            return _most_of_all("holds", nodes, held, allowed)
    if question.cpus:
        count, nodes = most_on_empty(question.cpus_on_empty(), allowed, area.widest)
        if count < question.cpus:
            return _most_of_all("has", nodes, f"{counted(count, 'CPU')} for containers of their own", allowed)
    return ""


def _most_of_all(verb: str, nodes: NodeSet, held: str, allowed: NodeSet) -> str:
    names, verb = nodes_text(nodes), verb_after(nodes, verb)
    if nodes == allowed:
        return f"{names} {verb} {held} in all"
    largest = "no node is" if len(nodes) == 1 else f"no {counted(len(nodes), 'node')} are"
    return f"{largest} that large: {names} {verb} the most, {held}"


def _cpus_or_devices(question: Question, area: Area, hints: Sequence[DeviceHint]) -> Reason:
    """Why no set of *area* can be taken, however much memory it has: too few nodes are close to the
    container's devices, or too few CPUs are on one set, or on one that is close to the devices."""
    widest = min(area.widest, area.allowed.bit_count())
    where = " or ".join(sorted({nodes_text(hint.nodes) for hint in hints}))
    near = question.required_hints
    if near and fewest_near(area.allowed, near) > widest:
        needed = nodes_text(NodeSet.of_mask(area.allowed)) if area.exactly else node_count_text(widest)
        return Reason("devices-apart", f"its devices are not all close to {needed}")
    free = ", ".join(
        f"{question.cpus_on(node)} on node {node.bit_length() - 1}" for node in bits(area.allowed)
    )
    enough = sum(sorted([question.cpus_on(node) for node in bits(area.allowed)])[-widest:])
    beside = f"; its devices are close to {where}" if near and enough >= question.cpus else ""
    return Reason("cpus-taken", f"free CPUs: {free}{beside}")
