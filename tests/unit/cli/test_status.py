"""What status, refused, history, nodes and top show: rows, columns and commands, not how they are worded."""

import json
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from bayplan.agent.http import page
from bayplan.cli import claims, nodes, status
from bayplan.cli.bayplan import main
from bayplan.cli.layout import Block, Output, Table, rendered, table_lines
from bayplan.engines.exact.engine import ExactEngine
from bayplan.model.basis import Basis
from bayplan.model.claims import ClaimShare
from bayplan.model.decision import (
    Affinity,
    Claim,
    Decision,
    Interval,
    Outcome,
    Placement,
    PodTotals,
    QosClass,
    Reason,
)
from bayplan.model.ledger import Entry, Ledger
from bayplan.model.machine import Node
from bayplan.model.policy import PlacementPolicy
from bayplan.model.request import derive_request
from bayplan.placement.resource_claims import decide_claim
from bayplan.quantity import GIB, MIB
from bayplan.sets import CpuSet, NodeSet
from bayplan.views.attention import MOST_OF_A_KIND
from bayplan.views.metrics import METRICS, Facts
from bayplan.views.snapshot import Unmanaged
from bayplan.views.status import nodes_view, status_view
from support.crowded import crowded, crowded_machine
from support.layouts import Layout
from support.machines import container, machine, pod
from support.resource_claims import claim, device
from support.snapshots import BURSTABLE, GUARANTEED, make_snapshot

if TYPE_CHECKING:
    from conftest import Daemon

Capture = pytest.CaptureFixture[str]
REFUSED = Decision(
    replace(GUARANTEED.request, name="shop/web-0/main", container_id="refused"),
    Outcome.REFUSED,
    reasons=(Reason("no-room", "there is no room"),),
)


def tables(blocks: list[Block]) -> list[Table]:
    return [one for one in blocks if isinstance(one, Table)]


def rows(table: Table) -> list[dict[str, str]]:
    """The rows by the headings of their columns."""
    headings = [column.heading for column in table.columns]
    return [dict(zip(headings, row, strict=True)) for row in table.rows if not isinstance(row, str)]


def parts(texts: Iterable[str]) -> set[str]:
    """What a fold may stand between."""
    return {part for text in texts for part in re.split(r"[ /,;:=.-]", text)}


def asked(daemon: "Daemon", capsys: Capture, *words: str) -> Any:
    assert main([*words, "--json", "--admin-socket", str(daemon.path)]) == 0
    return json.loads(capsys.readouterr().out)


def test_attention_comes_first_then_the_pods_by_namespace(daemon: "Daemon", capsys: Capture) -> None:
    daemon.refuse(REFUSED, times=3)
    said = asked(daemon, capsys, "status")
    above, below = tables(status.blocks(said))
    assert [(row["NEEDS ATTENTION"], row["CONTAINER"]) for row in rows(above)] == [
        ("problem", "-"),
        ("refused", "shop/web-0/main"),
        ("differs", "default/web-0/nginx"),
        ("unmanaged", "kube-system/agent/agent"),
        ("degraded", "default/job/worker"),
    ]
    assert rows(above)[1]["WHAT"].startswith("3 times")
    assert rows(above)[1]["WHAT"].endswith("there is no room")
    assert [row.partition(":")[0] for row in below.rows if isinstance(row, str)] == [
        "namespace default",
        "namespace kube-system",
    ]
    assert [row["CONTAINER"] for row in rows(below)] == ["job/worker", "web-0/nginx", "agent/agent"]
    assert rows(below)[1] == {
        "CONTAINER": "web-0/nginx",
        "OUTCOME": "placed",
        "NODES": "0",
        "CPUS": "2-3 alone",
        "MEMORY": "1024Mi, 4Mi hugepages-2Mi",
        "QOS": "Guaranteed",
    }
    assert (rows(below)[0]["NODES"], rows(below)[0]["CPUS"]) == ("any", "shared")
    assert rows(below)[2]["CPUS"] == "7 (set by others)"


def test_wide_has_the_reasons_the_scores_and_the_ids(daemon: "Daemon", capsys: Capture) -> None:
    daemon.snapshot = replace(daemon.snapshot, kernel_oom_score_adj={"aaa": 0})
    said = asked(daemon, capsys, "status")
    nginx = rows(tables(status.wide_blocks(said))[1])[1]
    assert (nginx["OOM"], nginx["ID"]) == ("0 (not -997)", "aaa")
    assert nginx["WHY"] == GUARANTEED.explanation()
    assert ("differs", "default/web-0/nginx") in [
        (row["NEEDS ATTENTION"], row["CONTAINER"]) for row in rows(tables(status.attention_blocks(said))[0])
    ]


def test_what_was_not_promised_is_named_with_its_amount(daemon: "Daemon", capsys: Capture) -> None:
    short = replace(BURSTABLE, placement=Placement(claim=Claim(NodeSet([0]), short_bytes={"memory": GIB})))
    daemon.snapshot = make_snapshot(ledger=Ledger.of([Entry(short)]))
    (row,) = [
        one
        for one in rows(tables(status.attention_blocks(asked(daemon, capsys, "status")))[0])
        if one["CONTAINER"] == short.request.name
    ]
    assert row["NEEDS ATTENTION"] == "not promised"
    assert row["WHAT"].startswith("1Gi")


def test_a_namespace_and_an_outcome_narrow_it_down(daemon: "Daemon", capsys: Capture) -> None:
    daemon.refuse(REFUSED)
    said = asked(daemon, capsys, "status", "-n", "default")
    assert {one["name"].split("/")[0] for one in said["containers"]} == {"default"}
    assert said["unmanaged"] == said["refusals"] == []
    assert len(said["drift"]) == 1
    said = asked(daemon, capsys, "status", "--outcome", "adopted")
    assert [one["outcome"] for one in said["containers"]] == ["adopted"]


def test_many_of_a_kind_are_counted_and_the_command_for_all_is_named(
    daemon: "Daemon", capsys: Capture
) -> None:
    many = tuple(Unmanaged(str(number), f"a/b/{number}") for number in range(MOST_OF_A_KIND + 3))
    daemon.snapshot = make_snapshot(unmanaged=many)
    unmanaged = [
        row
        for row in rows(tables(status.attention_blocks(asked(daemon, capsys, "status")))[0])
        if row["NEEDS ATTENTION"] == "unmanaged"
    ]
    assert len(unmanaged) == MOST_OF_A_KIND + 1
    assert unmanaged[-1]["CONTAINER"] == "and 3 more"
    assert unmanaged[-1]["WHAT"].startswith("bayplan ")


def test_an_idle_daemon_has_nothing_that_needs_attention(daemon: "Daemon", capsys: Capture) -> None:
    daemon.snapshot = make_snapshot(
        ledger=Ledger(), runtime=None, unmanaged=(), drift=(), problems=(), counters={}
    )
    shown = status.blocks(asked(daemon, capsys, "status"))
    assert tables(shown) == []
    assert "no container runtime is connected" in str(shown[0])
    assert shown[-1] == "No containers."


def test_cpus_that_are_nobodys_business_are_as_in_the_spec(daemon: "Daemon", capsys: Capture) -> None:
    entry = daemon.snapshot.ledger.entries["bbb"]
    decision = replace(entry.decision, request=replace(entry.decision.request, opted_out=True))
    ledger = daemon.snapshot.ledger.with_entry(replace(entry, decision=decision))
    daemon.snapshot = replace(daemon.snapshot, ledger=ledger)
    (_, below) = tables(status.blocks(asked(daemon, capsys, "status")))
    assert rows(below)[0]["CPUS"] == "as in its spec"


def test_what_is_kept_for_pods_is_shown_beside_their_engine(daemon: "Daemon", capsys: Capture) -> None:
    """The nodes' columns do not know of it, and others are refused because of it."""
    totals = PodTotals(900 * MIB, 3000, {"hugepages-2Mi": 4 * MIB})
    affinity = Affinity(NodeSet([1]), preferred=True, whole=True, mems=NodeSet([1]), cpus=CpuSet([4, 5, 6]))
    home = pod("team", QosClass.GUARANTEED)
    request = derive_request(home, container("i", home, memory_bytes=MIB, milli_cpus=1000), machine(1))
    init = Decision(replace(request, pod_totals=totals), Outcome.PLACED, Placement(affinity=affinity))
    ledger = Ledger().with_entry(Entry(init)).after_end_of("i")
    kept = "  default/team: 4Mi hugepages-2Mi, 900Mi memory on node 1 and CPUs 4-6"
    for engine, expected in (("kubelet", True), ("exact", False)):
        daemon.snapshot = replace(make_snapshot(), ledger=ledger, engine=engine)
        for shown in (
            status.blocks(asked(daemon, capsys, "status")),
            nodes.blocks(asked(daemon, capsys, "nodes")),
        ):
            assert any(kept in one for one in shown if isinstance(one, str)) is expected


def test_refusals_are_grouped_by_container_the_latest_first(daemon: "Daemon", capsys: Capture) -> None:
    other = replace(REFUSED, request=replace(REFUSED.request, name="shop/db-0/main", container_id="x"))
    daemon.refuse(REFUSED, times=2)
    daemon.refuse(other)
    daemon.refuse(replace(REFUSED, reasons=(Reason("no-room", "still none"),)))
    said = asked(daemon, capsys, "refused")
    assert [(one["name"], one["times"], one["reasons"][0]["text"]) for one in said["refusals"]] == [
        ("shop/web-0/main", 3, "still none"),
        ("shop/db-0/main", 1, "there is no room"),
    ]
    assert asked(daemon, capsys, "refused", "-n", "elsewhere")["refusals"] == []
    before = daemon.snapshot
    daemon.snapshot = replace(before, taken_us=before.taken_us + 7200 * 1_000_000)
    assert asked(daemon, capsys, "refused")["refusals"] == []
    assert len(asked(daemon, capsys, "refused", "--since", "3h")["refusals"]) == 2


def test_a_refusal_says_whether_the_container_was_placed_since(daemon: "Daemon", capsys: Capture) -> None:
    daemon.refuse(replace(REFUSED, request=GUARANTEED.request))
    (one,) = asked(daemon, capsys, "refused")["refusals"]
    assert one["placedSince"] is True


@pytest.mark.parametrize("since", ["soon", "0", "-1h", "", "3w"])
def test_a_wrong_duration_is_wrong_usage(since: str) -> None:
    with pytest.raises(SystemExit) as raised:
        main(["refused", f"--since={since}"])
    assert raised.value.code == 2


def test_history_is_in_the_order_in_which_it_happened(daemon: "Daemon", capsys: Capture) -> None:
    for text in ("first", "second"):
        daemon.refuse(replace(REFUSED, reasons=(Reason("no-room", text),)))
    said = asked(daemon, capsys, "history", "shop/web-0")
    assert [(one["event"], one["text"]) for one in said["events"]] == [
        ("refused", "first"),
        ("refused", "second"),
    ]
    assert said["complete"] is True


@pytest.mark.parametrize("verb", ["explain", "history"])
def test_a_part_of_a_name_is_enough_where_only_one_pod_has_it(
    daemon: "Daemon", capsys: Capture, verb: str
) -> None:
    daemon.refuse(REFUSED)
    assert asked(daemon, capsys, verb, "web-0/ma")["subject"] == "shop/web-0"
    other = replace(REFUSED, request=replace(REFUSED.request, name="shop/web-1/main", container_id="x"))
    daemon.refuse(other)
    assert main([verb, "web", "--admin-socket", str(daemon.path)]) == 1
    choices = capsys.readouterr().err.splitlines()[1:]
    assert sorted(one.strip() for one in choices) == ["default/web-0", "shop/web-0", "shop/web-1"]


def test_a_refusal_is_explained_with_what_each_node_has(daemon: "Daemon", capsys: Capture) -> None:
    memory = Interval(3 * GIB, 3 * GIB, "limit")
    wanted = replace(
        REFUSED.request, memory=memory, memory_limit_bytes=3 * GIB, exclusive_cpus=2, hugepages_bytes={}
    )
    daemon.refuse(replace(REFUSED, request=wanted))
    (one,) = asked(daemon, capsys, "explain", "shop/web-0")["containers"]
    rooms = {room["id"]: room for room in one["nodes"]}
    assert rooms[0]["resources"]["memory"] == {
        "allocatableBytes": 3 * GIB - 64 * MIB,
        "promisedBytes": GIB,
        "freeBytes": 2 * GIB - 64 * MIB,
    }
    assert rooms[0]["short"] == {"bytes": {"memory": GIB + 64 * MIB}, "cpus": 1}
    assert rooms[0]["freeCpus"] == 1
    assert rooms[1]["short"] == {"bytes": {}, "cpus": 0}


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_columns_are_left_out_before_a_word_is_broken(daemon: "Daemon", capsys: Capture, width: int) -> None:
    daemon.snapshot = crowded(4, 14)
    shown = [
        *nodes.blocks(asked(daemon, capsys, "nodes")),
        *status.blocks(asked(daemon, capsys, "status")),
    ]
    for table in tables(shown):
        lines = table_lines(table, width, lambda *_, **__: "")
        assert max(map(len, lines)) <= width
        cells = [column.heading for column in table.columns]
        cells += [cell for row in table.rows for cell in ([row] if isinstance(row, str) else row)]
        assert parts(lines) <= parts(cells) | {""}  # between columns


def test_nodes_show_what_is_promised_beside_what_is_used(daemon: "Daemon", capsys: Capture) -> None:
    memory, cpus, distances, residents = tables(nodes.blocks(asked(daemon, capsys, "nodes")))
    assert [(row["NODE"], row["RESOURCE"], row["PROMISED"], row["STILL FITS"]) for row in rows(memory)] == [
        ("0", "memory", "1024Mi", "1984Mi"),
        ("", "hugepages-2Mi", "4Mi", "60Mi"),
        ("1", "memory", "0", "4096Mi"),
    ]
    assert rows(cpus)[0] == {
        "NODE": "0",
        "SOCKET": "0",
        "SHARED CPUS": "0-1",
        "EXCLUSIVE CPUS": "2-3",
        "WHOLE CORES LEFT": "1 of 4",
    }
    assert rows(distances)[0] == {"NODE": "0", "TO 0": "10", "TO 1": "21"}
    assert [row["CONTAINER"] for row in rows(residents)] == ["default/web-0/nginx"]
    assert status_view(daemon.snapshot)["containers"][1]["name"] == rows(residents)[0]["CONTAINER"]


def test_nodes_show_whose_caches_and_cores_are() -> None:
    """Of three caches one is broken by a container of one CPU beside the reserved one, and two are whole."""
    snapshot, hardware = make_snapshot(), Layout(caches=3, cores=2).machine()
    entry = snapshot.ledger.entries["aaa"]
    placement = replace(entry.decision.placement, exclusive_cpus=CpuSet([6]))
    ledger = Ledger.of([replace(entry, decision=replace(entry.decision, placement=placement))])
    view = nodes_view(replace(snapshot, machine=hardware, policy=PlacementPolicy(), ledger=ledger))
    found = {table.columns[1].heading: table.rows for table in tables(nodes.blocks(view))}
    name = entry.decision.request.name
    assert found["L3 CACHE"] == (
        ("0", "0-1,6-7", "1 of 2", name),
        ("0", "2-3,8-9; 4-5,10-11", "all: 2 whole caches", "-"),
    )
    assert found["BROKEN CORE"] == (("0", "0,6", f"0 reserved; 6 {name}"),)


@pytest.mark.parametrize(
    ("count", "cpus_per_node"), [(1, 512), (2, 256), (4, 128), (12, 16), (36, 14), (64, 8)]
)
@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_nodes_fit_and_are_not_much_longer_than_there_is_to_say(
    count: int, cpus_per_node: int, width: int
) -> None:
    machine = crowded_machine(count, cpus_per_node)
    without = tuple(Node(count + number, CpuSet(), 0) for number in range(8))
    machine = replace(machine, nodes=machine.nodes + without)
    snapshot = replace(make_snapshot(), machine=machine, ledger=Ledger())
    shown = rendered(nodes.wide_blocks(nodes_view(snapshot)), Output(width))
    lines = [line for block in shown for line in block.split("\n")]
    assert max(map(len, lines)) <= width
    # Memory and huge pages, CPUs, distances, the kind of memory, the reservation.
    assert len(lines) <= 20 + 14 * count
    assert f"8 nodes with neither memory nor CPUs: {count}-{count + 7}" in lines
    for table in tables(nodes.blocks(nodes_view(snapshot))):
        for row in rows(table):
            assert set(row.values()) - {"-", "0", "", row["NODE"], row.get("RESOURCE")} or len(row) == 2, row


def test_containers_that_have_nothing_on_nodes_are_counted() -> None:
    snapshot = crowded(4, 14)
    view = nodes_view(replace(snapshot, live=None))
    idle = {**view["nodes"][0]["containers"][0], "id": "z", "name": "idle/pod/c", "bookedBytes": {}}
    for node in view["nodes"]:
        node["containers"].append({**idle, "exclusiveCpus": "", "devices": [], "heldBytes": MIB - 1})
    *_, table, sentence = nodes.blocks(view)
    assert isinstance(table, Table)
    assert "idle/pod/c" not in [row[1] for row in table.rows]
    assert isinstance(sentence, str)


def activity(at_us: int, faults: int, missed: int) -> dict[str, Any]:
    one = {
        "id": "aaa",
        "name": "default/web-0/nginx",
        "nodes": "0",
        "promisedBytes": GIB,
        "usedHereBytes": MIB,
        "usedElsewhereBytes": 2 * MIB,
        "pageFaults": faults,
        "majorPageFaults": 0,
        "memoryStallPercent": None,
        "cpuStallPercent": 1.5,
    }
    other = {**one, "id": "bbb", "name": "other/b/c", "usedElsewhereBytes": 3 * MIB, "pageFaults": 0}
    node = {
        f"{key}Bytes": GIB for key in ("total", "promised", "used", "usedByContainers", "free", "reclaimable")
    }
    return {
        "apiVersion": "bayplan/v1",
        "kind": "Top",
        "atMicroseconds": at_us,
        "nodes": [{"id": 0, "missedPages": missed, **node}],
        "containers": [one, other],
    }


def test_top_shows_rates_between_two_looks_and_sorts(daemon: "Daemon", capsys: Capture) -> None:
    def looks() -> Any:
        while True:
            yield activity(0, 100, 10)
            yield activity(2_000_000, 300, 11)

    daemon.activity = looks()
    said = asked(daemon, capsys, "top", "--interval", "0.01")
    assert [(one["name"], one["pageFaultsPerSecond"]) for one in said["containers"]] == [
        ("other/b/c", 0),
        ("default/web-0/nginx", 100),
    ]
    assert said["nodes"][0]["missedPagesPerSecond"] == 0.5
    said = asked(daemon, capsys, "top", "--interval", "0.01", "--sort", "faults", "-n", "default")
    assert [one["name"] for one in said["containers"]] == ["default/web-0/nginx"]


def test_resource_claims_are_shown_with_who_has_them(daemon: "Daemon", capsys: Capture) -> None:
    one = claim(device(0, 64, 2), device(1, 32, request="far"), uid="u-1")
    idle = claim(device(1, hugepages_2Mi=4), uid="u-2", name="pages", namespace="shop")
    ledger, engine = Ledger(), ExactEngine()
    on = machine(2, hugepages_bytes={2 * MIB: 8 * MIB})
    for each in (one, idle):
        ledger = ledger.with_entry(decide_claim(Basis(on, PlacementPolicy(), ledger), engine, each))
    request = GUARANTEED.request
    share = ClaimShare(("u-1",), NodeSet([0, 1]), {"memory": 96 * MIB})
    ledger = ledger.with_entry(Entry(Decision(replace(request, claimed=share), Outcome.PLACED)))
    daemon.snapshot = replace(make_snapshot(), machine=on, policy=PlacementPolicy(), ledger=ledger)
    shown = asked(daemon, capsys, "claims")
    assert [item["name"] for item in shown["claims"]] == ["default/memory", "shop/pages"]
    assert shown["claims"][0]["containers"] == [request.name]
    assert shown["claims"][0]["devices"][0] == {
        "request": "near",
        "node": 0,
        "bytes": {"memory": 64 * MIB},
        "cpus": str(ledger.exclusive_cpus),
    }
    assert claims.names(shown) == ["default/memory", "shop/pages"]
    for blocks in (claims.blocks(shown), status.blocks(asked(daemon, capsys, "status"))):
        (*_, table) = tables(blocks)
        assert [row["NODES"] for row in rows(table)] == ["0-1", "1"]
        assert rows(table)[0]["CONTAINERS"] == request.name
    (wide,) = tables(claims.wide_blocks(shown))
    assert [(row["REQUEST"], row["NODE"]) for row in rows(wide)] == [
        ("near", "0"),
        ("far", "1"),
        ("near", "1"),
    ]
    assert len(asked(daemon, capsys, "claims", "--namespace", "shop")["claims"]) == 1
    # What they hold is promised on the nodes, and explained like what a container got.
    booked = [node["resources"]["memory"]["bookedBytes"] for node in asked(daemon, capsys, "nodes")["nodes"]]
    assert booked == [64 * MIB, 32 * MIB]
    (explained,) = asked(daemon, capsys, "explain", "default/memory")["containers"]
    assert (explained["name"], explained["outcome"]) == ("default/memory", "placed")
    facts = Facts.of(daemon.snapshot)
    samples = {metric.name: dict(metric.samples(facts)) for metric in METRICS}
    assert samples["bayplan_resource_claims"] == {("used",): 1, ("idle",): 1}
    assert samples["bayplan_node_claimed_bytes"]["1", "hugepages-2Mi"] == 4 * MIB
    assert samples["bayplan_node_claimed_cpus"]["0",] == 2
    assert "shop/pages" in page.claims(status_view(daemon.snapshot))
