"""Metrics of the nodes: what each has, promised, uses, and what lies where it was not promised."""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

from bayplan.model.decision import QosClass
from bayplan.sets import CpuSet
from bayplan.views.metrics.metric import Facts, Kind, Metric, Sample

_STATES: Final = ("total", "reserved", "booked", "free")
_CPU_STATES: Final = ("all", "exclusive", "contested", "shared", "reserved")
_LIVE_STATES: Final = {
    "free": "freeBytes",
    "reclaimable": "reclaimableBytes",
    "outstanding": "outstandingBytes",
    "used_by_owners": "usedByOwnersBytes",
    "movable": "movableBytes",
    "held_outside": "heldOutsideBytes",
}


def _amounts(facts: Facts) -> Iterator[Sample]:
    for node in facts.nodes:
        for resource, amounts in node["resources"].items():
            for state in _STATES:
                yield (str(node["id"]), resource, state), amounts[f"{state}Bytes"]


def _live(facts: Facts) -> Iterator[Sample]:
    for node in facts.nodes:
        if node["live"] is not None:
            for state, key in _LIVE_STATES.items():
                yield (str(node["id"]), state), node["live"][key]


def _cpus(facts: Facts) -> Iterator[Sample]:
    for node in facts.nodes:
        for state in _CPU_STATES:
            yield (str(node["id"]), state), len(CpuSet.parse(node["cpus"][state]))


def _promised(facts: Facts) -> Iterable[Sample]:
    """By class, and 0 where nothing is promised to one."""
    found: Counter[tuple[str, ...]] = Counter()
    for node in facts.nodes:
        for resource in node["resources"]:
            found.update({(str(node["id"]), resource, qos.value): 0 for qos in QosClass})
    for container_id, entry in facts.snapshot.ledger.entries.items():
        for node_id, row in facts.spreads[container_id].items():
            for resource, amount_bytes in row.items():
                found[str(node_id), resource, entry.decision.request.qos.value] += amount_bytes
    return found.items()


def _used(facts: Facts) -> Iterable[Sample]:
    live, entries = facts.snapshot.live, facts.snapshot.ledger.entries
    if live is None:
        return ()
    found: Counter[tuple[str, ...]] = Counter()
    found.update({(str(node), qos.value): 0 for node in live.nodes for qos in QosClass})
    for container_id, pages in live.containers.items():
        if container_id in entries:
            for node, held_bytes in pages.held_bytes.items():
                found[str(node), entries[container_id].decision.request.qos.value] += held_bytes
    return found.items()


def _misplaced(facts: Facts) -> Iterable[Sample]:
    live = facts.snapshot.live
    if live is None:
        return ()
    found: Counter[tuple[str, ...]] = Counter({(str(node),): 0 for node in live.nodes})
    for pages in live.containers.values():
        for node, held_bytes in pages.held_bytes.items():
            if node not in pages.nodes:
                found[str(node),] += held_bytes
    return found.items()


METRICS: Final = (
    Metric(
        "bayplan_node_bytes",
        Kind.GAUGE,
        "Memory and huge pages; booked: promised.",
        _amounts,
        ("node", "resource", "state"),
    ),
    Metric(
        "bayplan_node_promised_bytes",
        Kind.GAUGE,
        "What is promised to containers of each class; of a promise on several nodes, what is to lie here.",
        _promised,
        ("node", "resource", "qos"),
    ),
    Metric(
        "bayplan_node_live_bytes",
        Kind.GAUGE,
        "Memory as it was seen last; outstanding: promised and not used yet.",
        _live,
        ("node", "state"),
    ),
    Metric(
        "bayplan_node_used_bytes",
        Kind.GAUGE,
        "Memory that containers of each class use and that cannot be reclaimed, as it was seen last.",
        _used,
        ("node", "qos"),
    ),
    Metric(
        "bayplan_node_misplaced_bytes",
        Kind.GAUGE,
        "Of that, what lies here and belongs to containers that are bound to other nodes.",
        _misplaced,
        ("node",),
    ),
    Metric(
        "bayplan_node_cpus",
        Kind.GAUGE,
        "CPUs; exclusive: one pod's own, which no other pod's cpuset has; contested: own, and in the cpusets "
        "of others too.",
        _cpus,
        ("node", "state"),
    ),
)
