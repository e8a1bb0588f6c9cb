"""Metrics say what status and nodes say, in a form that Prometheus reads."""

import re

from msgspec.structs import replace

from bayplan.model.decision import Claim, Placement
from bayplan.model.ledger import Ledger
from bayplan.quantity import GIB
from bayplan.sets import NodeSet
from bayplan.views.metrics import metrics_view
from bayplan.views.snapshot import Snapshot
from bayplan.views.status import nodes_view, spreads_of, status_view

SAMPLE = re.compile(r'([a-z_]+)(?:\{((?:[a-z_]+="(?:[^"\\\n]|\\["\\n])*",?)*)\})? (-?[0-9.]+)')


def samples(snapshot: Snapshot) -> dict[tuple[str, str], float]:
    found = {}
    announced = ""
    for line in metrics_view(snapshot)["text"].splitlines():
        if line.startswith("# TYPE "):
            announced = line.split()[2]
        elif not line.startswith("# HELP "):
            match = SAMPLE.fullmatch(line)
            assert match, line
            assert match[1] in (announced, *(f"{announced}_{part}" for part in ("bucket", "sum", "count")))
            assert (match[1], match[2] or "") not in found
            found[match[1], match[2] or ""] = float(match[3])
    return found


def test_amounts_and_counts_are_those_of_nodes_and_status(snapshot: Snapshot) -> None:
    found, status = samples(snapshot), status_view(snapshot)
    for node in nodes_view(snapshot)["nodes"]:
        for resource, amounts in node["resources"].items():
            for state in ("total", "reserved", "booked", "free"):
                labels = f'node="{node["id"]}",resource="{resource}",state="{state}"'
                assert found["bayplan_node_bytes", labels] == amounts[f"{state}Bytes"]
    assert sum(n for (name, _), n in found.items() if name == "bayplan_containers") == len(
        status["containers"]
    )
    for event, number in status["counters"].items():
        assert found["bayplan_events_total", f'event="{event}"'] == number
    for kind in ("unmanaged", "drift", "problems"):
        assert found["bayplan_attention", f'kind="{kind}"'] == len(status[kind])


def test_what_is_promised_on_several_nodes_is_counted_where_its_witness_has_it(snapshot: Snapshot) -> None:
    claim = Claim(NodeSet([0, 1]), {"memory": 5 * GIB})
    (entry, *others) = snapshot.ledger.entries.values()
    wide = replace(entry.decision, placement=Placement(claim.nodes, claim=claim))
    promised = replace(snapshot, ledger=Ledger.of([replace(entry, decision=wide), *others]))
    found, nodes = samples(promised), nodes_view(promised, spreads_of(promised))
    assert nodes == nodes_view(promised)
    booked = [found["bayplan_node_bytes", f'node="{n}",resource="memory",state="booked"'] for n in (0, 1)]
    assert booked == [node["resources"]["memory"]["bookedBytes"] for node in nodes["nodes"]]
    assert sum(booked) == 5 * GIB


def test_a_lost_runtime_and_odd_names_are_shown(snapshot: Snapshot) -> None:
    odd = replace(snapshot, runtime=None, engine='a"b\\c\nd')
    found = samples(odd)
    assert found["bayplan_runtime_connected", ""] == 0
    (labels,) = (labels for name, labels in found if name == "bayplan_info")
    assert r'engine="a\"b\\c\\nd"' in labels
