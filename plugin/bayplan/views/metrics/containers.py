"""Measured locality: where the memory of containers that are bound to nodes lies.

Names of containers are without end, so that their number is limited, and this can be switched off.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Final

from bayplan.views.metrics.metric import Facts, Kind, Metric, Sample

_LOCAL: Final = "local"
_REMOTE: Final = "remote"


def _memory(facts: Facts) -> Iterable[Sample]:
    """Containers of the same name, of which one is about to end, are one."""
    live, entries = facts.snapshot.live, facts.snapshot.ledger.entries
    if live is None or not facts.most_containers:
        return ()
    local: Counter[str] = Counter()
    remote: Counter[str] = Counter()
    for container_id, pages in live.containers.items():
        entry = entries.get(container_id)
        if entry is None or entry.decision.placement.mems is None:
            continue
        name = entry.decision.request.name
        for node, held_bytes in pages.held_bytes.items():
            (local if node in pages.nodes else remote)[name] += held_bytes
    names = sorted(local.keys() | remote.keys(), key=lambda name: (-remote[name], -local[name], name))
    found: list[Sample] = []
    for name in sorted(names[: facts.most_containers]):
        namespace, pod, container = name.split("/", 2)
        found.append(((namespace, pod, container, _LOCAL), local[name]))
        found.append(((namespace, pod, container, _REMOTE), remote[name]))
    return found


METRICS: Final = (
    Metric(
        "bayplan_container_memory_bytes",
        Kind.GAUGE,
        "Memory of containers that are bound to nodes, from memory.numa_stat, as far as it cannot be "
        "reclaimed: local on their nodes, remote on others. Of as many containers as the agent was told to "
        "name, those with the most remote memory first.",
        _memory,
        ("namespace", "pod", "container", "place"),
    ),
)
