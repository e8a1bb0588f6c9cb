"""The sentences of the `exact` engine's decisions."""

from typing import Final

from bayplan.engines.exact.books import Amounts
from bayplan.engines.exact.criteria import Question
from bayplan.engines.exact.effort import Effort
from bayplan.engines.exact.flow import bits
from bayplan.engines.exact.search import Area
from bayplan.engines.exact.widths import most_on_empty, unreserved_cpus
from bayplan.model.decision import Reason
from bayplan.model.machine import MEMORY
from bayplan.quantity import format_bytes
from bayplan.sets import NodeSet

SEARCH_ENDED: Final = "search-ended"
"""Code of the reason that a search was given up before every set of nodes was ruled out."""


def chosen(nodes: NodeSet) -> Reason:
    """That *nodes* are the best set; by what they beat the next is in the decision's `Advantage`."""
    return Reason("best-set", f"node {nodes} is the best set with room")


def overlap(nodes: NodeSet, count: int) -> Reason:
    """That *nodes* cross sets with other promises."""
    text = f"node {nodes} crosses {count} other sets with promises, as nothing else fits"
    return Reason("overlap", text)


def unproven_best(effort: Effort) -> Reason:
    """That the search was given up before all other sets were ruled out."""
    text = f"the search ended after {effort.spent} steps: a narrower, nearer or less crossing set may exist"
    return Reason(SEARCH_ENDED, text)


def unproven_refusal(effort: Effort) -> Reason:
    """That the search was given up before every set was ruled out."""
    text = f"the search ended after {effort.spent} steps: a set with room that was not looked at may exist"
    return Reason(SEARCH_ENDED, text)


def amounts_text(amounts: Amounts, cpus: int) -> str:
    """``2Gi and 64Mi of hugepages-2Mi and 3 CPUs``."""
    parts = [
        format_bytes(amount) if resource == MEMORY else f"{format_bytes(amount)} of {resource}"
        for resource, amount in amounts.items()
    ]
    if cpus:
        parts.append(f"{cpus} CPU{'' if cpus == 1 else 's'}")
    return " and ".join(parts) or "nothing"


def too_large(question: Question, area: Area) -> str:
    """That no set of *area* could have what is asked for, were the machine empty; empty if one could."""
    ground, site, books = NodeSet.of_mask(area.ground), question.site, question.books
    for resource, amount_bytes in question.amounts.items():
        held_bytes, nodes = most_on_empty(books.capacity.get(resource, {}), ground, area.widest)
        if held_bytes < amount_bytes:
            what = "" if resource == MEMORY else f" of {resource}"
            short = f", {format_bytes(amount_bytes - held_bytes)} too little"
            hidden = format_bytes(held_bytes) == format_bytes(amount_bytes)
            held = f"{format_bytes(held_bytes)}{what}{short if hidden else ''}"
            return _most_of_all("hold", nodes, held, ground)
    if question.cpus:
        count, nodes = most_on_empty(unreserved_cpus(site, books), ground, area.widest)
        if count < question.cpus:
            return _most_of_all("have", nodes, f"{count} CPUs for containers of their own", ground)
    return ""


def _most_of_all(verb: str, nodes: NodeSet, held: str, ground: NodeSet) -> str:
    if len(nodes) == 1:
        verb = {"hold": "holds", "have": "has"}[verb]
    names = f"node{'' if len(nodes) == 1 else 's'} {nodes}"
    if nodes == ground:
        return f"{names} {verb} {held} in all"
    largest = "no node is" if len(nodes) == 1 else f"no {len(nodes)} nodes are"
    return f"{largest} that large: {names} {verb} the most, {held}"


def cpus_text(question: Question, area: Area) -> str:
    """Why no set of *area* has the CPUs and devices."""
    if question.cpus:
        free = ", ".join(
            f"{question.cpus_on(node)} on node {node.bit_length() - 1}" for node in bits(area.ground)
        )
        return f"free CPUs: {free}"
    return "its devices are not together on so few nodes"
