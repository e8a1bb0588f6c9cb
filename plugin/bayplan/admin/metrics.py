"""The daemon's state in Prometheus' text format, version 0.0.4, for node_exporter's textfile collector.

Made of the same views as `bayplan status` and `bayplan nodes`. A name, once published, keeps its meaning.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

from bayplan.admin_protocol import API_VERSION
from bayplan.printable import printable
from bayplan.views.snapshot import Snapshot
from bayplan.views.status import View, nodes_view, spreads_of, status_view

_ESCAPES: Final = str.maketrans({"\\": r"\\", '"': r"\""})
_STATES: Final = ("total", "reserved", "booked", "free")

_LIVE_STATES: Final = {
    "free": "freeBytes",
    "reclaimable": "reclaimableBytes",
    "outstanding": "outstandingBytes",
    "used_by_owners": "usedByOwnersBytes",
    "movable": "movableBytes",
    "held_outside": "heldOutsideBytes",
}

Sample = tuple[Mapping[str, str], float]


def metrics_view(snapshot: Snapshot) -> View:
    """All metrics as one text."""
    spreads = spreads_of(snapshot)
    status, nodes = status_view(snapshot, spreads), nodes_view(snapshot, spreads)
    daemon = status["daemon"]
    about = {"version": daemon["version"], "engine": daemon["engine"]}
    policy = status["policy"]["topologyManagerPolicy"]
    containers = Counter((one["qosClass"], one["outcome"]) for one in status["containers"])
    families = (
        _family("bayplan_info", "gauge", "What runs.", [({**about, "policy": policy}, 1)]),
        _family("bayplan_uptime_seconds", "gauge", "Since its start.", [({}, daemon["uptimeSeconds"])]),
        _family(
            "bayplan_runtime_connected",
            "gauge",
            "Whether a container runtime is connected over NRI.",
            [({}, int(status["runtime"]["connected"]))],
        ),
        _family(
            "bayplan_events_total",
            "counter",
            "What bayplan status counts since the daemon's start.",
            [({"event": name}, number) for name, number in status["counters"].items()],
        ),
        _family(
            "bayplan_containers",
            "gauge",
            "Containers in the ledger.",
            [({"qos": qos, "outcome": outcome}, n) for (qos, outcome), n in sorted(containers.items())],
        ),
        _family(
            "bayplan_attention",
            "gauge",
            "What bayplan status lists as not as it should be.",
            [({"kind": kind}, len(status[kind])) for kind in ("unmanaged", "drift", "problems")],
        ),
        _family("bayplan_node_bytes", "gauge", "Memory and huge pages.", _of_nodes(nodes["nodes"])),
        _family(
            "bayplan_node_live_bytes",
            "gauge",
            "Memory as it was seen last; outstanding: promised and not used yet.",
            _live_of_nodes(nodes["nodes"]),
        ),
    )
    return {"apiVersion": API_VERSION, "kind": "Metrics", "text": "".join(families)}


def _of_nodes(nodes: Iterable[dict[str, Any]]) -> list[Sample]:
    return [
        ({"node": str(node["id"]), "resource": resource, "state": state}, amounts[f"{state}Bytes"])
        for node in nodes
        for resource, amounts in node["resources"].items()
        for state in _STATES
    ]


def _live_of_nodes(nodes: Iterable[dict[str, Any]]) -> list[Sample]:
    return [
        ({"node": str(node["id"]), "state": state}, node["live"][key])
        for node in nodes
        if node["live"] is not None
        for state, key in _LIVE_STATES.items()
    ]


def _family(name: str, kind: str, text: str, samples: Iterable[Sample]) -> str:
    lines = [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
    for labels, number in samples:
        pairs = ",".join(f'{key}="{printable(label).translate(_ESCAPES)}"' for key, label in labels.items())
        lines.append(f"{name}{{{pairs}}} {number}" if pairs else f"{name} {number}")
    return "\n".join(lines) + "\n"
