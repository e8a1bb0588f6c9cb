"""A decision with everything in it, as JSON and as text: one object, the same sentences everywhere."""

# ruff: noqa: E501 - tables are as wide as they are

import io
import json

from msgspec.structs import replace

from bayplan.cli.decisions import decision_blocks
from bayplan.cli.layout import show
from bayplan.model import sentences
from bayplan.model.decision import (
    Advantage,
    Candidate,
    Claim,
    Decision,
    DeviceHint,
    Holder,
    Interval,
    MemoryPolicyMode,
    MemoryPolicySetting,
    MemoryPolicyWish,
    Move,
    NodeWish,
    Outcome,
    Placement,
    QosClass,
    QosSource,
    Reason,
    Relocation,
    RelocationPlan,
    Request,
    Shortage,
    TierWish,
)
from bayplan.quantity import GIB, MIB
from bayplan.sets import CpuSet, NodeSet
from bayplan.views.decision_view import decision_view

REQUEST = Request(
    container_id="aaa",
    pod_id="pod-a",
    name="default/db/main",
    qos=QosClass.BURSTABLE,
    qos_source=QosSource.OOM_SCORE_ADJ,
    memory=Interval(0, GIB + 256 * MIB, "oom_score_adj", GIB),
    memory_limit_bytes=2 * GIB,
    cpu_milli=1500,
    hugepages_bytes={"hugepages-2Mi": 64 * MIB},
    nodes=NodeWish(NodeSet([0, 1]), required=True),
    tier=TierWish(0),
    memory_policy=MemoryPolicyWish(MemoryPolicyMode.INTERLEAVE, NodeSet([0, 1]), ("static_nodes",)),
    hints=(DeviceHint("nic0", NodeSet([1])),),
    pinned_cpus=CpuSet([3]),
)
PLACED = Decision(
    REQUEST,
    Outcome.PLACED,
    Placement(
        NodeSet([0, 1]),
        booked_bytes={0: {"memory": GIB}, 1: {"memory": 256 * MIB, "hugepages-2Mi": 64 * MIB}},
        claim=Claim(NodeSet([0, 1]), {"memory": 1280 * MIB}, flexible=True, short_bytes={"memory": 32 * MIB}),
        overlapping=True,
        original_nodes=NodeSet([0]),
        memory_policy=MemoryPolicySetting(MemoryPolicyMode.INTERLEAVE, NodeSet([0, 1])),
    ),
    (Reason("fits", "nodes 0-1 have room"), Reason("moves", "default/web/a moves over")),
    moves=(Move("bbb", "default/web/a", NodeSet([0]), NodeSet([0, 2]), 64 * MIB), Move("c", "d/e/f", None, NodeSet([3]))),
    candidates=(
        Candidate(NodeSet([0, 1]), {"width": 2, "distance": 42, "room taken": 3 * GIB}),
        Candidate(NodeSet([0, 2]), {"width": 2, "distance": 62}),
        Candidate(NodeSet([3]), {"width": 1}, "node 3 holds 1Gi"),
    ),
    advantage=Advantage("distance", 42, NodeSet([0, 2]), 62),
)  # fmt: skip
SHORT = Shortage(
    "memory", NodeSet([1, 2]), 64 * GIB, 58 * GIB, 10 * GIB, (Holder("a", "d/p/a", 40 * GIB), Holder("b", "d/p/b", 18 * GIB)), 3
)  # fmt: skip
REFUSED = Decision(REQUEST, Outcome.REFUSED, reasons=(Reason("no-room", SHORT.sentence()),), shortage=SHORT)


def shown(decision: Decision) -> str:
    """What `bayplan` prints of it."""
    stream = io.StringIO()
    view = json.loads(json.dumps({**decision_view(decision), "state": "current"}))
    show(decision_blocks(view), stream)
    return stream.getvalue()


def test_a_placed_decision_as_text() -> None:
    assert (
        shown(PLACED)
        == """\
default/db/main (current)
  asked:      Burstable, known from its oom_score_adj
              memory: 1Gi to 1280Mi (less only if it is a sidecar or its pod has requests of its own), known from its oom_score_adj; limited to 2Gi
              hugepages-2Mi: 64Mi
              CPUs: 1.5, shared
              wish: nodes 0-1 (required)
              wish: memory tier 0 (preferred)
              wish: memory policy interleave=static:0-1
              wish: near nic0 on node 1 (preferred)
              set by somebody else: cpuset.cpus 3
  outcome:    placed
  placed:     memory: nodes 0-1 (1Gi on node 0, 256Mi and 64Mi of hugepages-2Mi on node 1); shared in part with other sets of nodes
              placed on node 0 at first, on others since
              promised: 1280Mi on nodes 0-1, and may move over for others
              not promised: 32Mi
              CPUs: 3, set by somebody else
              memory policy: interleave:0-1
  why:        nodes 0-1 have room
              default/web/a moves over
  won:        nodes 0-1 beat nodes 0,2 by distance: 42 against 62
  moved:      default/web/a from node 0 to nodes 0,2, at most 64Mi of it moved
              d/e/f from any node to node 3

CANDIDATE  WIDTH  DISTANCE  ROOM TAKEN  OBSTACLE
0-1            2        42         3Gi  -
0,2            2        62           -  -
3              1         -           -  node 3 holds 1Gi
"""
    )


def test_a_refusal_says_the_cut_once_and_the_word_that_kubelet_shows() -> None:
    sentence = "nodes 1-2 hold 64Gi; 58Gi are promised to d/p/a, d/p/b and 3 more; you asked for 10Gi there"
    assert (
        shown(REFUSED).partition("  outcome:")[2]
        == f"""\
    refused
  why:        {sentence}
  error:      TopologyAffinityError, with the reason above
"""
    )
    assert str(sentences.refusal(REFUSED)) == f"TopologyAffinityError: default/db/main: {sentence}"
    assert sentences.summary(REFUSED) == f"refused: {sentence}"


def test_a_shortage_that_no_reason_tells_has_its_own_line() -> None:
    degraded = Decision(REQUEST, Outcome.DEGRADED, reasons=(Reason("x", "elsewhere"),), shortage=SHORT)
    assert f"  short:      {SHORT.sentence()}\n" in shown(degraded)


def test_the_json_has_every_number_of_the_shortage() -> None:
    view = decision_view(REFUSED)
    assert view["placement"] is None
    assert view["shortage"] == {
        "resource": "memory",
        "nodes": "1-2",
        "capacityBytes": 64 * GIB,
        "promisedBytes": 58 * GIB,
        "askedBytes": 10 * GIB,
        "holders": [
            {"id": "a", "name": "d/p/a", "heldBytes": 40 * GIB},
            {"id": "b", "name": "d/p/b", "heldBytes": 18 * GIB},
        ],
        "moreHolders": 3,
        "text": SHORT.sentence(),
    }


DB = Relocation("a", "d/p/db", NodeSet([1]), NodeSet([2]), CpuSet([4, 5]), CpuSet([8, 9]), 12 * GIB)
WEB = Relocation("b", "d/p/web", NodeSet([0, 1]), NodeSet([0, 1]), CpuSet([1]), CpuSet([6]))


def test_what_would_have_to_move_in_words() -> None:
    alone = RelocationPlan(NodeSet([1]), (replace(DB, cpus_before=CpuSet(), cpus_after=CpuSet()),))
    assert sentences.relocation_plan(alone, 3 * GIB, Outcome.REFUSED) == (
        "fits on node 1 if d/p/db moves from node 1 to node 2: 12Gi, some 4 s"
    )
    both = RelocationPlan(NodeSet([1]), (DB, WEB), proven=False)
    assert sentences.relocation_plan(both, GIB, Outcome.DEGRADED) == (
        "would be as asked on node 1 if d/p/db moves from node 1 to node 2 (CPUs 4-5 to 8-9) and "
        "d/p/web moves on nodes 0-1 from CPU 1 to 6: 12Gi, some 12 s; the search ended: less may do"
    )
    assert sentences.relocation_plan(RelocationPlan(NodeSet([1]), (WEB,)), GIB, Outcome.REFUSED).endswith(
        ": no memory"
    )
    assert sentences.too_large_to_move(both, GIB) == "not moved: d/p/db has 12Gi, and returnMaxMove is 1Gi"
    assert sentences.moved_enough(1, 1) == (
        "not moved now: 1 container moved for others within the last hour, and relocationsPerHour is 1"
    )
    assert sentences.being_changed("d/p/db") == ("not moved now: d/p/db is being started, changed or ended")


def test_the_json_has_every_number_of_the_plan() -> None:
    view = decision_view(replace(REFUSED, plan=RelocationPlan(NodeSet([1]), (DB,))))
    assert decision_view(REFUSED)["plan"] is None
    assert view["plan"] == {
        "nodes": "1",
        "proven": True,
        "movedBytes": 12 * GIB,
        "moves": [
            {
                "id": "a",
                "name": "d/p/db",
                "before": "1",
                "after": "2",
                "cpusBefore": "4-5",
                "cpusAfter": "8-9",
                "movedBytes": 12 * GIB,
                "text": sentences.relocation(DB),
            }
        ],
    }


def test_what_is_inferred_says_from_what_and_why() -> None:
    for qos, why in (
        (QosClass.GUARANTEED, "a memory limit and a CPU quota"),
        (QosClass.BURSTABLE, "what it reserves, its shares or limits"),
        (QosClass.BEST_EFFORT, "nothing that counts as a request"),
    ):
        inferred = replace(REQUEST, qos=qos, qos_source=QosSource.INFERRED)
        first = sentences.asked(inferred)[0]
        assert first == f"{qos.value}, inferred from {why}, as it is outside of kubelet's cgroup tree"
    reserved = Interval(GIB, GIB, "memory.reservation")
    assert sentences.memory_text(reserved) == "1Gi, known from its memory reservation"


def test_a_memory_policy_of_the_spec_is_shown_as_such() -> None:
    policy = MemoryPolicySetting(MemoryPolicyMode.BIND, NodeSet([1]))
    request = replace(REQUEST, given_policy=policy, pinned_mems=NodeSet([1]), pinned_cpus=None)
    assert "set by somebody else: memory policy bind on 1" in sentences.asked(request)
    shown_lines = sentences.placed(Decision(request, Outcome.PLACED))
    assert shown_lines[-1] == "memory policy: bind:1, as in its spec"
