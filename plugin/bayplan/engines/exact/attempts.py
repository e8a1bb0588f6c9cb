"""One attempt to place a container: a ground with the sets on it that the policy allows; why it failed."""

from collections.abc import Iterator
from functools import partial
from heapq import nlargest
from itertools import islice
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from bayplan.engines.exact.books import Amounts, Books, shortage
from bayplan.engines.exact.branching import Branching
from bayplan.engines.exact.claiming import Ground, claimed_amounts
from bayplan.engines.exact.criteria import Question
from bayplan.engines.exact.effort import Effort
from bayplan.engines.exact.flow import bits
from bayplan.engines.exact.reasons import amounts_text, cpus_text, too_large, unproven_refusal
from bayplan.engines.exact.search import Area
from bayplan.model.decision import Decision, Outcome, Placement, Reason, Request, Shortage
from bayplan.model.ledger import Ledger

MAX_TARGETS: Final = 16
"""For how many sets of nodes moves are worked out, and how many are held against each other in a refusal."""

_STEPS_OF_A_TARGET: Final = 6
_SETS_OF_A_REFUSAL: Final = 3000
"""So many sets with promises are gone through for the cuts of a refusal."""
_MAX_SETS_OF_A_REFUSAL: Final = 1000
"""Of so many sets that the policy allows those are looked for that lack least."""


class Attempt(Struct, frozen=True):
    """A ground with the sets on it that the policy allows, and what they are wanted for."""

    ground: Ground
    area: Area
    question: Question

    def targets(self, *, widest_first: bool = False) -> Iterator[int]:
        """The sets that it may end on, whether or not there is room: the narrowest first, or the widest, and
        among them the nearest."""
        area, bare = self.area, replace(self.question, amounts={})
        if area.exactly:
            if bare.plausible(area.ground):
                yield area.ground
            return
        widths = range(1, min(area.widest, area.ground.bit_count()) + 1)
        for width in reversed(widths) if widest_first else widths:
            for nodes in bare.site.ranked(area.ground, width, {}):
                if bare.plausible(nodes):
                    yield nodes

    def reachable(self, loose: Books, effort: Effort) -> Iterator[int]:
        """Those with room on *loose*, the books as if all others had moved over as far as they may; if there
        are too many to look at each, one of the others as well if none of the good ones has room."""
        question, area, found = replace(self.question.on(loose), effort=effort), self.area, False
        lookup = question.lookup
        for nodes in self.targets():
            before = lookup.steps
            fits = question.plausible(nodes) and lookup.fits(nodes, question.amounts)
            effort.spent += _STEPS_OF_A_TARGET + lookup.steps - before
            if fits:
                found = True
                yield nodes
            if effort.exhausted:
                effort.ended = True
                return
        width = min(area.widest, area.ground.bit_count())
        if found or area.exactly or not question.site.too_many(area.ground, width):
            return
        nodes = Branching(question, area.ground, 0, width).any_set(at_all=True)
        if nodes:
            yield nodes


def refused(attempt: Attempt, ledger: Ledger, request: Request, current: Placement | None) -> Decision:
    """The refusal of *request* after its last *attempt*: what could never fit, else the minimum cut of the
    set that lacks least, among the widest ones, within which all the others are."""
    ground, question, lacking = attempt.ground, attempt.question, None
    text = _what_and_where(attempt, request)
    most = max(1, min(MAX_TARGETS, _SETS_OF_A_REFUSAL // (1 + len(question.lookup.claimed))))
    many = islice(attempt.targets(widest_first=True), _MAX_SETS_OF_A_REFUSAL)
    targets = nlargest(most, many, key=partial(_likelihood, question))
    never = too_large(question, attempt.area) if ground.nodes else ""
    if not ground.nodes:
        text = f"{ground.why}, {ground.obstacle}"
    elif never:
        text = f"{text}; {never}"
    elif not targets:
        text = f"{text}; {cpus_text(question, attempt.area)}"
    else:
        lacking = max(
            (found for nodes in targets if (found := _lacking(question, ledger, nodes, question.amounts))),
            key=lambda one: (one.capacity_bytes >= one.asked_bytes, one.capacity_bytes - one.promised_bytes),
            default=None,
        )
    if lacking is not None:
        text = f"{text}; {lacking.sentence()}"
    if current is not None:
        text = f"{text}; it keeps what it has"
    reasons = [Reason("no-room", text)]
    if question.effort.ended:
        reasons.append(unproven_refusal(question.effort))
    return Decision(request, Outcome.REFUSED, reasons=tuple(reasons), shortage=lacking)


def _likelihood(question: Question, nodes: int) -> tuple[bool, int]:
    """Whether *nodes* could hold the request if they were empty, and how much room they have at best."""
    books, amounts = question.books, question.amounts
    could = all(books.flow(resource).capacity_of(nodes) >= amount for resource, amount in amounts.items())
    first = next(iter(amounts), None)
    rooms = question.free_cpus if first is None else question.rooms[first]
    return could, sum(rooms.get(node, 0) for node in bits(nodes))


def not_granted(attempt: Attempt, ledger: Ledger) -> Reason:
    """Why a preferred ground was left."""
    why = attempt.ground.why
    if not attempt.ground.nodes:
        return Reason("wish-not-granted", f"{why}, {attempt.ground.obstacle}")
    question = attempt.question
    lacking = _lacking(question, ledger, attempt.area.ground, question.amounts)
    text = lacking.sentence() if lacking else "no set of them will do"
    return Reason("wish-not-granted", f"{why}: {text}")


def _what_and_where(attempt: Attempt, request: Request) -> str:
    amounts = attempt.question.amounts
    asked = amounts_text(amounts, attempt.question.cpus)
    if amounts and amounts != claimed_amounts(request):
        asked += " with the rest of its pod"
    width, policy = attempt.area.widest, attempt.question.books.policy.topology.value
    allowed = f" on {'one node' if width == 1 else f'{width} nodes'} under {policy}"
    if not attempt.ground.why:
        return f"asks for {asked}{allowed}"
    if attempt.area.exactly or width >= len(attempt.ground.nodes):
        allowed = ""
    return f"asks for {asked}{allowed} and {attempt.ground.why}"


def _lacking(question: Question, ledger: Ledger, nodes: int, amounts: Amounts) -> Shortage | None:
    cut = question.books.cut(nodes, amounts)
    return None if cut is None else shortage(question.books, ledger, cut, amounts[cut.resource])
