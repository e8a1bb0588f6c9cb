"""The sentences of the `exact` engine's decisions."""

from bayplan.domain.decision import Reason
from bayplan.domain.exact.books import Amounts
from bayplan.domain.exact.criteria import ROOM_TAKEN, Question
from bayplan.domain.exact.flow import bits
from bayplan.domain.exact.search import Area, Found
from bayplan.domain.topology import MEMORY
from bayplan.quantity import format_bytes
from bayplan.sets import NodeSet


def chosen(nodes: NodeSet, found: Found) -> Reason:
    """That *nodes* are the best set, and by what they beat the next."""
    text = f"node {nodes} is the best set with room"
    won = found.advantage
    if won is None:
        return Reason("best-set", text)
    if won.criterion == "id":
        return Reason("best-set", f"{text}; node {won.runner_up_nodes} is as good and has higher ids")
    mine, other = (
        (format_bytes(won.winner), format_bytes(won.runner_up))
        if won.criterion == ROOM_TAKEN
        else (str(won.winner), str(won.runner_up))
    )
    against = f"{won.criterion} {mine} against {other} of node {won.runner_up_nodes}"
    return Reason("best-set", f"{text}: {against}")


def overlap(nodes: NodeSet, count: int) -> Reason:
    """That *nodes* cross sets with other promises."""
    text = f"node {nodes} crosses {count} other sets with promises, as nothing else fits"
    return Reason("overlap", text)


def amounts_text(amounts: Amounts, cpus: int) -> str:
    """``2Gi and 64Mi of hugepages-2Mi and 3 CPUs``."""
    parts = [
        format_bytes(amount) if resource == MEMORY else f"{format_bytes(amount)} of {resource}"
        for resource, amount in amounts.items()
    ]
    if cpus:
        parts.append(f"{cpus} CPUs")
    return " and ".join(parts) or "nothing"


def cpus_text(question: Question, area: Area) -> str:
    """Why no set of *area* has the CPUs and devices."""
    if question.cpus:
        free = ", ".join(
            f"node {node.bit_length() - 1} {question.cpus_on(node)}" for node in bits(area.ground)
        )
        return f"free CPUs are {free}"
    return "its devices are not together on so few nodes"
