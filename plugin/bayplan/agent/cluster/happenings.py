"""What events say: on pods that containers were refused, placed less well than asked, or moved, and that the
pod is evicted; on the Node that its room is not published as it should be. Pure."""

from collections.abc import Iterator, Mapping
from typing import Final

from msgspec import Struct

from bayplan.agent_protocol import Evicted
from bayplan.model.container_names import parts_in_pod
from bayplan.model.decision import MOVED_OVER, RELOCATED, Decision, Outcome
from bayplan.model.ledger import Ledger
from bayplan.model.sentences import summary

REFUSED: Final = "PlacementRefused"
DEGRADED: Final = "PlacementDegraded"
MOVED: Final = "PlacementMoved"
EVICTED: Final = "Evicted"
"""kubelet's own word."""
NOT_PUBLISHED: Final = "TopologyNotPublished"
OVERWRITTEN: Final = "TopologyOverwritten"


class Happening(Struct, frozen=True):
    """What happened to the container *container* of the pod *name*, or to all of the pod if that is empty, or
    to the Node *name* if *namespace* is, too: *reason* is a word for programs, *note* a sentence, of pods the
    one that `bayplan explain` has for it."""

    namespace: str
    name: str
    container: str
    reason: str
    note: str
    annotations: Mapping[str, str] = {}


def refused(decision: Decision) -> Iterator[Happening]:
    """A container was refused by *decision*."""
    yield from _of(decision, REFUSED, summary(decision))


def evicted(message: Evicted) -> Iterator[Happening]:
    """A pod is evicted, in kubelet's words."""
    parts = parts_in_pod(message.record.name)
    if parts is not None:
        namespace, pod, _ = parts
        yield Happening(namespace, pod, "", EVICTED, message.record.message.strip(), message.annotations)


def on_node(node_name: str, reason: str, note: str) -> Happening:
    """It concerns all of a node."""
    return Happening("", node_name, "", reason, note)


def between(before: Ledger, after: Ledger) -> Iterator[Happening]:
    """What happened to containers when *before* became *after*."""
    for container_id, entry in after.entries.items():
        former = before.entries.get(container_id)
        if former is entry:
            continue
        decision, earlier = entry.decision, None if former is None else former.decision
        if decision.outcome is Outcome.DEGRADED and (
            earlier is None or earlier.outcome is not decision.outcome
        ):
            yield from _of(decision, DEGRADED, summary(decision))
        moved = _moved(decision)
        if moved and (earlier is None or _moved(earlier) != moved):
            yield from _of(decision, MOVED, moved)


def _moved(decision: Decision) -> str:
    return next((reason.text for reason in decision.reasons if reason.code in (MOVED_OVER, RELOCATED)), "")


def _of(decision: Decision, reason: str, sentence: str) -> Iterator[Happening]:
    """Nothing of a container that is in no pod."""
    parts = parts_in_pod(decision.request.name)
    if parts is not None:
        namespace, pod, container = parts
        yield Happening(namespace, pod, container, reason, f"container {container}: {sentence}")
