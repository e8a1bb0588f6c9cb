"""What the history keeps, and what is sent of changes: in what two ledgers differ, which containers were
evicted and by which numbers, and what became of pages that were to be moved. Values only.

Invariant: whoever applies to *before* what differs in *after* has the promises of *after*.
"""

from collections.abc import Collection, Iterable, Iterator

from msgspec import Struct

from bayplan.model.decision import QosClass
from bayplan.model.ledger import Entry, Ledger
from bayplan.quantity import format_bytes, format_count
from bayplan.sets import NodeSet, nodes_text


def changed_ids(before: Ledger, after: Ledger) -> set[str]:
    """The ids of the containers about which the two say different things."""
    ids = after.entries.differing_keys(before.entries)
    if after.retained is before.retained:
        return ids
    forgotten, kept = retained_changes(before, after)
    return ids.union(forgotten, [entry.container_id for entry in kept])


def changed_entries(before: Ledger, after: Ledger) -> dict[str, Entry | None]:
    """What *after* has of the containers about which the two say different things, by id, in the order of
    `entries_of`; None of those that are gone."""
    entries = after.entries.unlike(before.entries)
    if len(entries) == 1 and after.retained is before.retained:
        return entries
    ids, found = changed_ids(before, after), dict[str, Entry | None]()
    for entry in entries_of(after, ids):
        found.setdefault(entry.decision.request.container_id, entry)
    return found if len(found) == len(ids) else {**found, **dict.fromkeys(sorted(ids - found.keys()))}


def retained_changes(before: Ledger, after: Ledger) -> tuple[tuple[str, ...], tuple[Entry, ...]]:
    """The difference in ``retained``: the ids of the entries to remove, and the entries to record."""
    old, new = before.retained, after.retained
    gone = tuple(one.container_id for key, one in old.items() if new.get(key) != one)
    return gone, tuple(one for key, one in new.items() if old.get(key) != one)


def entries_of(ledger: Ledger, ids: Collection[str]) -> Iterator[Entry]:
    """What *ledger* has of the containers *ids*, those of a pod in its order, and of those that are gone and
    whose pod keeps their room."""
    found = [entry for key in ids if (entry := ledger.entries.get(key)) is not None]
    if len(found) > 1:
        pods = sorted({entry.decision.request.pod_id for entry in found})
        found = [ledger.entries[key] for pod_id in pods for key in ledger.ids_by_pod[pod_id] if key in ids]
    yield from found
    yield from (one for one in ledger.retained.values() if one.container_id in ids)


def with_changes(ledger: Ledger, entries: Iterable[Entry], gone: Iterable[str]) -> Ledger:
    """*ledger* without the containers *gone*, and without the room that a pod keeps after one of them, and
    with *entries*."""
    for container_id in gone:
        ledger = _without(ledger, container_id)
    for entry in entries:
        ledger = ledger.with_entry(entry)
    return ledger


def _without(ledger: Ledger, container_id: str) -> Ledger:
    for pod_id, last in ledger.retained.items():
        if last.container_id == container_id:
            return ledger.without_retained(pod_id)
    return ledger.without(container_id)


class EvictionRecord(Struct, frozen=True):
    """One container of a pod that was evicted at ``at_us`` (since the epoch), because less than
    ``threshold`` was available of ``signal``. ``used`` is what the pod used of it (of memory the working set)
    and ``request`` what it requests: bytes, inodes or process ids, as the signal. ``message`` is kubelet's.
    ``obstacle`` says why the pod was not ended, empty if it was to be."""

    at_us: int
    container_id: str
    name: str
    signal: str
    qos: QosClass
    threshold: int
    available: int
    used: int
    request: int
    priority: int
    message: str
    obstacle: str = ""
    in_bytes: bool = True

    def __str__(self) -> str:
        text = (
            f"{self.signal}: {self.message.strip()} The pod, {self.qos.value} with priority {self.priority}, "
        )
        used, request = map(format_bytes if self.in_bytes else format_count, (self.used, self.request))
        text += f"was using {used} and requests {request}"
        return f"{text}; it was not ended: {self.obstacle}" if self.obstacle else text


class PageMoveRecord(Struct, frozen=True):
    """Pages of one container that were to go from one node to another, over ``duration_ms``. ``at_us`` (since
    the epoch) is when it ended; ``obstacle`` says why the rest was not moved, empty if all was. ``at_risk``
    are the nodes for whose sake it was done."""

    at_us: int
    container_id: str
    name: str
    source: int
    target: int
    wanted_bytes: int
    moved_bytes: int
    duration_ms: int
    at_risk: NodeSet
    obstacle: str = ""

    @property
    def is_done(self) -> bool:
        """Whether all was moved: what counters, report and history count as a move; the rest has failed."""
        return not self.obstacle

    def __str__(self) -> str:
        text = f"{format_bytes(self.moved_bytes)} moved from node {self.source} to node {self.target}"
        text += (
            f" in {self.duration_ms} ms, as memory on {nodes_text(self.at_risk)} was outstanding to others"
        )
        if not self.obstacle:
            return text
        left_bytes = self.wanted_bytes - self.moved_bytes
        return f"{text}; {format_bytes(left_bytes)} more could not be moved: {self.obstacle}"
