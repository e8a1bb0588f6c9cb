"""Views say what the ledger says, in plain values, and nothing that JSON cannot hold."""

import json
from functools import partial

import pytest
from msgspec.structs import replace

from bayplan import __version__
from bayplan.model.basis import Basis
from bayplan.model.decision import CpuUse, CpuWish
from bayplan.model.ledger import Entry, Ledger
from bayplan.model.machine import Machine, Node, Performance
from bayplan.model.policy import CpuPool, PlacementPolicy, PoolBounds
from bayplan.placement.page_placement import ContainerPages, LivePages, NodeMemory, Plan
from bayplan.sets import CpuSet, NodeSet
from bayplan.views.attention import cpus_text
from bayplan.views.metrics import metrics_view
from bayplan.views.node_room import l3_caches
from bayplan.views.snapshot import MemoryReservation, Snapshot
from bayplan.views.status import nodes_view, ping_view, status_view
from support.layouts import Layout

GIB, MIB = 1 << 30, 1 << 20


def test_every_view_is_versioned_plain_json(snapshot: Snapshot) -> None:
    for view, kind in ((ping_view, "Pong"), (status_view, "Status"), (nodes_view, "Nodes")):
        shown = view(snapshot)
        assert (shown["apiVersion"], shown["kind"]) == ("bayplan/v1", kind)
        assert json.loads(json.dumps(shown)) == shown
        assert shown["daemon"]["version"] == __version__
        assert shown["daemon"]["startedAt"] == "2023-11-14T22:13:20Z"
        assert shown["daemon"]["uptimeSeconds"] == 100


def test_status_of_a_guaranteed_container(snapshot: Snapshot) -> None:
    container = {one["id"]: one for one in status_view(snapshot)["containers"]}["aaa"]
    assert container == {
        "id": "aaa",
        "podId": "pod-a",
        "name": "default/web-0/nginx",
        "qosClass": "Guaranteed",
        "qosSource": "cgroup parent",
        "qosInferred": False,
        "outcome": "placed",
        "origin": "nri",
        "mems": "0",
        "memsPinnedByOthers": False,
        "cpus": "2-3",
        "cpusExclusive": True,
        "exclusiveCpus": "2-3",
        "cpuPartition": None,
        "cpuPartitionWanted": None,
        "irqs": None,
        "cpuPool": None,
        "cpusAlsoOf": [],
        "cpusPinnedByOthers": False,
        "cpuMilli": 2000,
        "memory": {
            "requestLowBytes": GIB,
            "requestUsualLowBytes": GIB,
            "requestHighBytes": GIB,
            "requestExact": True,
            "requestSource": "limit",
            "limitBytes": GIB,
        },
        "hugepagesBytes": {"hugepages-2Mi": 4 * MIB},
        "bookedBytes": {"0": {"memory": GIB, "hugepages-2Mi": 4 * MIB}},
        "shortBytes": {},
        "deviceHints": [{"device": "/dev/vdb", "nodes": "0"}],
        "placementFile": False,
        "oomScoreAdj": -997,
        "oomScoreAdjWanted": -997,
        "reasons": [{"code": "best-set", "text": "one node has room for all of it"}],
    }


def test_oom_score_adj_is_the_kernels_beside_what_it_was_to_be(snapshot: Snapshot) -> None:
    refused = replace(snapshot, kernel_oom_score_adj={"aaa": 0, "bbb": 985})
    containers = {one["id"]: one for one in status_view(refused)["containers"]}
    scores = {key: (one["oomScoreAdj"], one["oomScoreAdjWanted"]) for key, one in containers.items()}
    assert (scores["aaa"], scores["bbb"]) == ((0, -997), (985, None))


@pytest.mark.parametrize(
    ("request_of_other", "others"),
    [
        ({"pinned_cpus": CpuSet([3, 4])}, ["default/other/main"]),
        ({"pinned_cpus": CpuSet([4, 5])}, []),
        ({"opted_out": True}, ["default/other/main"]),
        ({}, []),
    ],
)
def test_exclusive_cpus_that_somebody_elses_cpuset_has_are_not_alone(
    snapshot: Snapshot, request_of_other: dict[str, object], others: list[str]
) -> None:
    (shared,) = (one for key, one in snapshot.ledger.entries.items() if key == "bbb")
    request = replace(
        shared.decision.request, container_id="other", name="default/other/main", **request_of_other
    )
    entry = Entry(replace(shared.decision, request=request))
    beside = replace(snapshot, ledger=snapshot.ledger.with_entry(entry))
    containers = {one["id"]: one for one in status_view(beside)["containers"]}
    assert (containers["aaa"]["cpusAlsoOf"], containers["other"]["cpusAlsoOf"]) == (others, [])


def test_own_cpus_and_a_share_of_the_others_are_told_apart(snapshot: Snapshot) -> None:
    decision = snapshot.ledger.entries["aaa"].decision
    placement = replace(decision.placement, beside_cpus=CpuSet.parse("0-5"))
    both = Entry(replace(decision, placement=placement))
    view = status_view(replace(snapshot, ledger=snapshot.ledger.with_entry(both)))
    (one,) = (one for one in view["containers"] if one["id"] == "aaa")
    assert one["exclusiveCpus"] == "2-3"
    assert set(CpuSet.parse(one["cpus"])) > {2, 3}
    assert cpus_text(one) == "2-3 alone, rest shared"


def test_status_of_a_shared_container_with_an_inferred_class(snapshot: Snapshot) -> None:
    container = {one["id"]: one for one in status_view(snapshot)["containers"]}["bbb"]
    assert (container["qosClass"], container["qosInferred"]) == ("Burstable", True)
    assert (container["cpus"], container["cpusExclusive"]) == ("0-1,4-7", False)
    assert container["mems"] is None
    assert container["oomScoreAdj"] is None
    assert container["memory"]["requestExact"] is False
    assert container["outcome"] == "degraded"


def test_status_of_a_container_pinned_by_others(snapshot: Snapshot) -> None:
    container = {one["id"]: one for one in status_view(snapshot)["containers"]}["ccc"]
    assert (container["cpus"], container["cpusPinnedByOthers"]) == ("7", True)
    assert (container["mems"], container["memsPinnedByOthers"]) == ("1", True)


def test_status_of_a_container_that_opted_out_has_no_cpus_of_ours(snapshot: Snapshot) -> None:
    entries = snapshot.ledger.entries
    request = replace(entries["bbb"].decision.request, opted_out=True)
    left_alone = replace(entries["bbb"], decision=replace(entries["bbb"].decision, request=request))
    status = status_view(replace(snapshot, ledger=snapshot.ledger.with_entry(left_alone)))
    assert {one["id"]: one["cpus"] for one in status["containers"]} == {"aaa": "2-3", "bbb": None, "ccc": "7"}


def test_status_is_ordered_by_name_whatever_the_order_of_the_ledger(snapshot: Snapshot) -> None:
    other = replace(snapshot, ledger=Ledger.of(reversed(list(snapshot.ledger.entries.values()))))
    assert status_view(other) == status_view(snapshot)
    assert [one["name"] for one in status_view(snapshot)["containers"]] == [
        "default/job/worker",
        "default/web-0/nginx",
        "kube-system/agent/agent",
    ]


def test_status_of_everything_around(snapshot: Snapshot) -> None:
    status = status_view(snapshot)
    assert status["sharedCpus"] == "0-1,4-7"
    assert status["runtime"] == {
        "connected": True,
        "name": "containerd",
        "version": "v2.1.0",
        "nriVersion": "0.8.0",
        "capabilities": {"memory_policy": False, "oom_score_adj": True},
    }
    assert status["policy"]["topologyManagerPolicy"] == "best-effort"
    assert status["policy"]["memoryQoS"] == {"memoryThrottlingFactor": 0.9, "memoryReservationPolicy": "None"}
    assert status["unmanaged"] == [{"id": "ccc", "name": "kube-system/agent/agent"}]
    assert status["drift"][0]["difference"] == "mems is 0-1, decided was 0"
    assert status["problems"] == ["the state store cannot record"]
    assert status["counters"] == {"connections": 1, "decisions_placed": 3}
    assert status_view(replace(snapshot, runtime=None))["runtime"] == {"connected": False}


def test_nodes(snapshot: Snapshot) -> None:
    first, second = nodes_view(snapshot)["nodes"]
    assert first["id"] == 0
    assert first["memTotalBytes"] == 4 * GIB
    assert first["resources"] == {
        "memory": {
            "totalBytes": 4 * GIB - 64 * MIB,
            "reservedBytes": GIB,
            "allocatableBytes": 3 * GIB - 64 * MIB,
            "bookedBytes": GIB,
            "freeBytes": 2 * GIB - 64 * MIB,
            "safeBytes": 2 * GIB - 64 * MIB,
        },
        "hugepages-2Mi": {
            "totalBytes": 64 * MIB,
            "reservedBytes": 0,
            "allocatableBytes": 64 * MIB,
            "bookedBytes": 4 * MIB,
            "freeBytes": 60 * MIB,
            "safeBytes": 60 * MIB,
        },
    }
    assert next(iter(first["resources"])) == "memory"
    assert first["cpus"] == {
        "all": "0-3",
        "sockets": [0],
        "l3Caches": ["0-3"],
        "l3CacheUse": [{"cpus": "0-3", "cores": 4, "wholeCores": 1, "owners": ["default/web-0/nginx"]}],
        "cores": ["0", "1", "2", "3"],
        "wholeCores": 1,
        "brokenCores": [],
        "exclusive": "2-3",
        "contested": "",
        "shared": "0-1",
        "reserved": "0",
        "isolated": "",
        "nohzFull": "",
        "kinds": {},
        "pools": {},
    }
    assert first["distances"] == {"0": 10, "1": 21}
    assert [one["id"] for one in first["containers"]] == ["aaa"]
    assert first["containers"][0]["exclusiveCpus"] == "2-3"
    assert first["containers"][0]["devices"] == ["/dev/vdb"]
    assert second["distances"] == {"0": 31, "1": 10}
    assert [one["id"] for one in second["containers"]] == ["ccc"]
    assert second["resources"]["memory"]["freeBytes"] == 4 * GIB


def test_what_is_safe_to_ask_for_leaves_room_for_the_next_rise(snapshot: Snapshot) -> None:
    measured = {
        0: MemoryReservation(0, 1, 1, margin_bytes=100 * MIB + 1),
        1: MemoryReservation(margin_bytes=9 * GIB),
    }
    first, second = nodes_view(replace(snapshot, reservations=measured))["nodes"]
    assert first["resources"]["memory"]["safeBytes"] == (2 * 1024 - 64 - 101) * MIB  # whole MiB
    assert first["resources"]["hugepages-2Mi"]["safeBytes"] == 60 * MIB
    assert second["resources"]["memory"]["safeBytes"] == 0


def test_kinds_of_memory_and_how_a_reservation_is_known(snapshot: Snapshot) -> None:
    performance = Performance(250, 260, 30_000, 20_000)
    fast, slow = snapshot.machine.nodes
    nodes = (
        replace(fast, tier=0, initiators=NodeSet([0])),
        replace(slow, cpus=CpuSet(), tier=1, performance=performance),
        Node(9, CpuSet(), GIB, owner="0009:01:00.0"),
    )
    held = MemoryReservation(512 * MIB, 900 * MIB, 1_700_000_050_000_000)
    shown = nodes_view(
        replace(snapshot, machine=Machine(nodes, snapshot.machine.cpus), reservations={0: held})
    )["nodes"]
    assert [one["kind"]["ordinary"] for one in shown] == [True, False, False]
    assert [one["kind"]["tierNames"] for one in shown] == [["0", "dram"], ["1", "slow", "cxl"], []]
    assert [one["kind"]["owner"] for one in shown] == [None, None, "0009:01:00.0"]
    assert shown[0]["kind"]["initiators"] == "0"
    assert shown[1]["kind"]["rated"] == {
        "readLatencyNs": 250,
        "writeLatencyNs": 260,
        "readBandwidthMiBPerSecond": 30_000,
        "writeBandwidthMiBPerSecond": 20_000,
    }
    assert shown[0]["reservation"] == {
        "source": "measured",
        "configuredBytes": 512 * MIB,
        "heldOutsideBytes": 900 * MIB,
        "measuredAt": "2023-11-14T22:14:10Z",
    }
    assert shown[1]["reservation"] == {
        "source": "configured",
        "configuredBytes": 0,
        "heldOutsideBytes": None,
        "measuredAt": None,
    }


def test_a_nodes_memory_as_it_was_seen_last(snapshot: Snapshot) -> None:
    (bound, *_) = snapshot.ledger.entries
    live = LivePages(
        1_700_000_000_000_000,
        {0: NodeMemory(5 * MIB, 6 * MIB, 40 * MIB, low=True)},
        {
            bound: ContainerPages(bound, "a", NodeSet([0]), GIB, {0: 10 * MIB}),
            "free": ContainerPages("free", "b", NodeSet([0, 1]), 0, {0: 9 * MIB, 1: MIB}, {0: 8 * MIB}),
        },
        Plan(expected_bytes={0: 3 * MIB}),
    )
    first, second = nodes_view(replace(snapshot, live=live))["nodes"]
    assert first["live"] == {
        "measuredAt": "2023-11-14T22:13:20Z",
        "freeBytes": 5 * MIB,
        "reclaimableBytes": 6 * MIB,
        "outstandingBytes": 3 * MIB,
        "usedByOwnersBytes": 11 * MIB,
        "movableBytes": 8 * MIB,
        "heldOutsideBytes": 21 * MIB,
        "belowLowWatermark": True,
    }
    assert second["live"] is None
    assert {one["id"]: one["heldBytes"] for one in first["containers"]}[bound] == 10 * MIB
    assert nodes_view(snapshot)["nodes"][0]["live"] is None
    assert (
        'bayplan_node_live_bytes{node="0",state="outstanding"} 3145728'
        in metrics_view(replace(snapshot, live=live))["text"]
    )


def test_named_pools_and_their_members(snapshot: Snapshot) -> None:
    shared = snapshot.ledger.entries["bbb"]
    request = replace(shared.decision.request, cpus=CpuWish(CpuUse.POOL, pool="db"), cpu_milli=1500)
    placement = replace(shared.decision.placement, pool_cpus=CpuSet([1, 4]))
    decision = replace(shared.decision, request=request, placement=placement)
    pools = {"db": CpuPool(1, 4), "web": CpuPool(2, 2)}
    with_pool = replace(
        snapshot,
        ledger=snapshot.ledger.with_entry(replace(shared, decision=decision)),
        policy=replace(snapshot.policy, cpu_pools=pools),
        unmatched_cpu_rules=("a sentence",),
    )
    status, nodes = status_view(with_pool), nodes_view(with_pool)
    assert [(one["name"], one["cpus"], one["containers"]) for one in status["cpuPools"]] == [
        ("db", "1,4", [request.name]),
        ("web", "", []),
    ]
    assert (status["cpuPools"][0]["requestedMilli"], status["cpuPools"][0]["maximum"]) == (1500, 4)
    assert status["unmatchedCpuRules"] == ["a sentence"]
    assert [one["cpus"]["pools"] for one in nodes["nodes"]] == [{"db": "1"}, {"db": "4"}]
    assert nodes["nodes"][0]["cpus"]["exclusive"] == "2-3"
    shown = {one["id"]: (one["cpus"], one["cpuPool"], one["cpusExclusive"]) for one in status["containers"]}
    assert shown["bbb"] == ("1,4", "db", False)
    assert {one["id"] for node in nodes["nodes"] for one in node["containers"]} >= {"bbb"}


def held_by(snapshot: Snapshot, name: str, *cpus: int) -> Entry:
    """A container with these CPUs to itself."""
    entry = snapshot.ledger.entries["aaa"]
    request = replace(entry.decision.request, container_id=name, pod_id=name, name=f"ns/{name}/main")
    placement = replace(entry.decision.placement, exclusive_cpus=CpuSet(cpus))
    return replace(entry, decision=replace(entry.decision, request=request, placement=placement))


def test_which_caches_are_free_and_who_would_have_to_go(snapshot: Snapshot) -> None:
    """Of four caches of two cores one has the reserved CPU, and the others are taken one after the other."""
    hardware = Layout(caches=4, cores=2, threads=1).machine()
    basis = Basis(hardware, PlacementPolicy(), Ledger())
    assert l3_caches(basis)["free"] == ["2-3", "4-5", "6-7"]
    held = partial(held_by, snapshot)
    few = l3_caches(basis.with_ledger(Ledger.of([held("a", 2, 3), held("b", 4)])))
    assert few == {"free": ["6-7"], "nearest": {"cpus": "4-5", "containers": ["ns/b/main"]}}
    full = Ledger.of([held("a", 2, 3), held("b", 4), held("c", 5), held("d", 6, 7)])
    assert l3_caches(basis.with_ledger(full)) == {
        "free": [],
        "nearest": {"cpus": "2-3", "containers": ["ns/a/main"]},
    }


def test_which_cores_are_whole_and_who_has_a_part_of_the_others(snapshot: Snapshot) -> None:
    hardware = Layout(caches=2, cores=3).machine()  # CPUs 0-2,6-8 and 3-5,9-11
    pooled = held_by(snapshot, "d", 5)
    pool = replace(pooled.decision.request, cpus=CpuWish(CpuUse.POOL, pool="db"))
    placement = replace(pooled.decision.placement, exclusive_cpus=CpuSet(), pool_cpus=CpuSet([5]))
    pooled = replace(pooled, decision=replace(pooled.decision, request=pool, placement=placement))
    owners = [held_by(snapshot, "a", 1), held_by(snapshot, "b", 7, 3), held_by(snapshot, "c", 4, 10)]
    changed = replace(
        snapshot, machine=hardware, policy=PlacementPolicy(), ledger=Ledger.of([*owners, pooled])
    )
    (node,) = nodes_view(changed)["nodes"]
    cpus = node["cpus"]
    assert cpus["wholeCores"] == 1
    assert cpus["l3CacheUse"] == [
        {"cpus": "0-2,6-8", "cores": 3, "wholeCores": 1, "owners": ["ns/a/main", "ns/b/main"]},
        {
            "cpus": "3-5,9-11",
            "cores": 3,
            "wholeCores": 0,
            "owners": ["ns/b/main", "ns/c/main", "the pool db"],
        },
    ]
    assert {
        core["cpus"]: {part["cpus"]: part["owners"] for part in core["parts"]} for core in cpus["brokenCores"]
    } == {
        "0,6": {"0": [], "6": []},
        "1,7": {"1": ["ns/a/main"], "7": ["ns/b/main"]},
        "3,9": {"3": ["ns/b/main"], "9": []},
        "5,11": {"5": ["the pool db"], "11": []},
    }
    assert [part["reserved"] for part in cpus["brokenCores"][0]["parts"]] == [True, False]


def test_between_which_sizes_pools_of_huge_pages_grow(snapshot: Snapshot) -> None:
    bounds = {0: {2 * MIB: PoolBounds(0, GIB)}}
    configured = replace(snapshot, policy=replace(snapshot.policy, hugepage_pools=bounds))
    first, *others = (node["resources"]["hugepages-2Mi"] for node in nodes_view(configured)["nodes"])
    assert (first["minimumBytes"], first["maximumBytes"]) == (0, GIB)
    assert not any("maximumBytes" in one for one in others)
    assert (
        'bayplan_hugepage_pool_bytes{node="0",resource="hugepages-2Mi",bound="maximum"} 1073741824'
        in (metrics_view(configured)["text"])
    )
