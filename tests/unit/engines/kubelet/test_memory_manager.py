"""Who takes part, what is refused and why, and how a pod's memory is shared out."""

import pytest
from msgspec.structs import replace

from bayplan.engines.kubelet.memory_manager import (
    MemoryManager,
    check_shared_pool,
    container_wants,
    pod_wants,
    shared_out,
    takes_part,
)
from bayplan.engines.kubelet.memory_state import (
    Block,
    EmptyPodSharedPoolError,
    MemoryAllocationError,
    Refusal,
)
from bayplan.engines.kubelet.state_files import start
from bayplan.engines.kubelet.topology_hints import NO_HINT, Hint, HintSet
from bayplan.kubelet.manager_options import MemoryManagerPolicy
from bayplan.kubelet.pod import ContainerSpec, FeatureGates, PodLevelResources, PodSpec
from bayplan.model.decision import QosClass
from bayplan.model.kubelet_version import rules_of
from bayplan.model.machine import Machine, Node
from bayplan.sets import CpuSet, NodeSet
from conformance.endings import memory_after_start, memory_without
from support.kubelet_start import without_stale

PLAIN = FeatureGates()
WHOLE = FeatureGates(pod_level_resource_managers=True)


def guaranteed(name, memory, *, sidecar=False, **others):
    sizes = {"cpu": 1000, "memory": memory} | {key.replace("_", "-"): size for key, size in others.items()}
    return ContainerSpec(name, sizes, sizes, restartable=sidecar)


def pod(uid, *sizes):
    return PodSpec(uid, tuple(guaranteed(f"c{index}", size) for index, size in enumerate(sizes)), name=uid)


def whole(memory, containers, inits=()):
    sizes = {"cpu": 9000, "memory": memory}
    return PodSpec("w", tuple(containers), tuple(inits), PodLevelResources(sizes, sizes), name="w")


def machine(*memory):
    nodes = tuple(Node(index, CpuSet(), size + (index == 0)) for index, size in enumerate(memory))
    return Machine(nodes, ())


def started(*memory, gates=PLAIN):
    return start(MemoryManagerPolicy.STATIC, machine(*memory), {0: {"memory": 1}}, gates)


def placed(manager, uid, size, *nodes):
    one = pod(uid, size)
    return manager.allocate(one, one.containers[0], Hint(NodeSet(nodes), preferred=True))


@pytest.mark.parametrize(
    ("resources", "qos", "gates", "expected"),
    [
        (None, None, PLAIN, True),
        (None, QosClass.BURSTABLE, PLAIN, False),
        ({"memory": 8}, QosClass.GUARANTEED, PLAIN, False),
        ({"memory": 8}, QosClass.GUARANTEED, WHOLE, True),
        ({"memory": 8}, None, WHOLE, False),
        ({"cpu": 1, "memory": 8}, None, WHOLE, True),
        (
            {"cpu": 1, "memory": 8},
            None,
            FeatureGates(pod_level_resources=False, pod_level_resource_managers=True),
            False,
        ),
        ({"example.com/x": 1}, QosClass.GUARANTEED, PLAIN, True),
    ],
)
def test_who_takes_part(resources, qos, gates, expected):
    level = None if resources is None else PodLevelResources(resources, resources)
    assert takes_part(PodSpec("p", (guaranteed("c", 4),), resources=level, qos=qos), gates) is expected


def test_what_a_pod_wants_at_its_worst_moment():
    found = PodSpec(
        "p",
        (guaranteed("a", 3), guaranteed("b", 4)),
        (
            guaranteed("i", 6, hugepages_1Gi=5),
            guaranteed("s", 2, sidecar=True),
            guaranteed("j", 8),
        ),
    )
    assert pod_wants(found, PLAIN) == {"memory": 10}


def test_what_a_pod_with_pod_level_resources_wants():
    found = whole(9, [guaranteed("a", 3), ContainerSpec("b", {"memory": 2})])
    assert pod_wants(found, WHOLE) == {"memory": 9}
    assert pod_wants(found, PLAIN) == {"memory": 5}
    assert container_wants(found, found.containers[0], WHOLE) == {"memory": 3}
    assert container_wants(found, found.containers[1], WHOLE) == {}


def test_default_nodes_are_the_narrowest_that_hold_enough():
    one = pod("p", 12)
    manager = started(10, 10, 10).allocate(one, one.containers[0])
    both = NodeSet([0, 1])
    assert manager.state.assignments == {"p": {"c0": (Block(both, "memory", 12),)}}
    assert [node.tables["memory"].reserved for node in manager.state.nodes.values()] == [10, 2, 0]
    assert manager.mems("p", "c0") == both
    assert manager.mems("p", "other") is None


def test_a_narrow_hint_is_extended():
    one = pod("p", 12)
    manager = started(10, 10, 10).allocate(one, one.containers[0], Hint(NodeSet([2]), preferred=False))
    assert manager.mems("p", "c0") == NodeSet([0, 2])


@pytest.mark.parametrize(
    ("size", "hint", "refusal", "nodes"),
    [
        (40, NO_HINT, Refusal.NO_NODES, None),
        (19, Hint(None, preferred=True), Refusal.NOT_PREFERRED, [1, 2, 3]),
        (19, Hint(NodeSet([0]), preferred=False), Refusal.NOT_EXTENDABLE, [0]),
        (19, Hint(NodeSet([1]), preferred=True), Refusal.NOT_PREFERRED_EXTENDED, [1, 2, 3]),
        (12, Hint(NodeSet([0, 1]), preferred=True), Refusal.GROUP, [0, 1]),
    ],
)
def test_refusals(size, hint, refusal, nodes):
    """Node 0 is in use by itself, so that it takes three of the others to hold what two could if empty."""
    manager = placed(started(10, 9, 9, 9), "q", 1, 0)
    one = pod("p", size)
    with pytest.raises(MemoryAllocationError) as raised:
        manager.allocate(one, one.containers[0], hint)
    error = raised.value
    assert (error.refusal, error.nodes) == (refusal, None if nodes is None else NodeSet(nodes))
    assert str(error) == f"[memorymanager] {refusal.value}"
    assert error.reason == "UnexpectedAdmissionError"


def test_a_refusal_can_be_explained():
    one = pod("p", 40)
    with pytest.raises(MemoryAllocationError) as raised:
        started(10).allocate(one, one.containers[0], Hint(NodeSet([0]), preferred=True))
    assert raised.value.explanation() == (
        "p/c0 requests 40 memory on node 0: failed to find NUMA nodes to extend the current topology hint"
    )


def test_no_room_anywhere_is_no_preference():
    manager, one = started(10), pod("p", 11)
    assert manager.hints(one, one.containers[0]) is None
    assert manager.pod_hints(one) is None


def test_a_container_that_has_its_memory_keeps_it():
    manager = placed(started(10, 10), "p", 4, 1)
    one = pod("p", 4)
    hint = Hint(NodeSet([1]), preferred=True)
    assert manager.hints(one, one.containers[0]) == {"memory": HintSet((hint,))}
    assert manager.pod_hints(one) == {"memory": HintSet((hint,))}
    assert manager.hints(pod("p", 5), one.containers[0]) == {"memory": HintSet((hint,))}
    assert manager.hints(one, pod("p", 5).containers[0]) is None
    assert manager.allocate(one, one.containers[0], NO_HINT) is manager


def test_containers_release_what_finished_init_containers_left():
    found = PodSpec(
        "p", (guaranteed("c", 2),), (guaranteed("i", 5), guaranteed("s", 1, sidecar=True), guaranteed("j", 3))
    )
    manager = started(10)
    for each in found.all_containers:
        manager = manager.allocate(found, each)
    assert {name: blocks[0].size_bytes for name, blocks in manager.state.assignments["p"].items()} == {
        "i": 0,
        "s": 1,
        "j": 2,
        "c": 2,
    }
    assert manager.state.nodes[0].tables["memory"].reserved == 5
    sidecar_started = memory_after_start(manager, found, found.init_containers[1])
    assert [*sidecar_started.state.assignments["p"]] == ["s", "j", "c"]
    manager = memory_after_start(sidecar_started, found, found.containers[0])
    assert [*manager.state.assignments["p"]] == ["s", "c"]
    assert manager.state.nodes[0].tables["memory"].reserved == 3


def test_stale_pods_are_released():
    manager = placed(placed(started(10, 10), "p", 4, 0), "q", 5, 1)
    assert without_stale(manager, [pod("p", 4), pod("q", 5)]) is manager
    assert [*without_stale(manager, [pod("q", 5)]).state.assignments] == ["q"]
    assert memory_without(manager, "p", "nobody") is manager


def test_allocatable_does_not_depend_on_use():
    manager = started(10, 0, 7)
    expected = (Block(NodeSet([0]), "memory", 10), Block(NodeSet([2]), "memory", 7))
    assert manager.allocatable() == expected
    assert placed(manager, "p", 4, 0).allocatable() == expected


def test_shares_of_a_pod_as_a_whole():
    found = whole(
        20,
        [guaranteed("own", 4), ContainerSpec("rest"), ContainerSpec("more", {"memory": 1})],
        [
            ContainerSpec("early"),
            guaranteed("s", 3, sidecar=True),
            ContainerSpec("side", restartable=True),
            ContainerSpec("late"),
            guaranteed("exact", 5),
        ],
    )
    assert {name: sizes["memory"] for name, sizes in shared_out(found, {"memory": 20}, WHOLE).items()} == {
        "early": 20,
        "s": 3,
        "side": 13,
        "late": 17,
        "exact": 5,
        "own": 4,
        "rest": 13,
        "more": 13,
    }


def test_pod_hints_of_a_pod_as_a_whole():
    hints = started(10, 10, gates=WHOLE).pod_hints(whole(12, [ContainerSpec("c")]))
    assert hints is not None
    assert hints["memory"].listed() == (Hint(NodeSet([0, 1]), preferred=True),)


@pytest.mark.parametrize(
    ("containers", "inits", "message"),
    [
        (
            [guaranteed("a", 9), ContainerSpec("b")],
            [],
            (
                "pod rejected, sum of exclusive container memory requests equals pod budget, "
                "leaving no memory for shared containers"
            ),
        ),
        (
            [guaranteed("a", 1)],
            [guaranteed("s", 9, sidecar=True), ContainerSpec("i")],
            "pod rejected, pod has shared init containers but no memory available for them",
        ),
    ],
)
def test_a_pod_that_leaves_nothing_to_share_is_refused(containers, inits, message):
    found, manager = whole(9, containers, inits), started(10, gates=WHOLE)
    with pytest.raises(EmptyPodSharedPoolError) as raised:
        check_shared_pool(found, {"memory": 9}, WHOLE)
    assert str(raised.value) == message
    assert raised.value.reason == "EmptyPodSharedPoolError"
    assert manager.pod_hints(found) == {"memory": HintSet()}
    with pytest.raises(EmptyPodSharedPoolError):
        manager.allocate_pod(found)
    unenforced = MemoryManager(MemoryManagerPolicy.BEST_EFFORT, manager.state, WHOLE)
    assert unenforced.allocate_pod(found) is unenforced


def test_an_init_container_may_ask_for_more_than_the_sidecars_leave():
    """kubelet looks only at what is left for those who share; the API server refuses such pods before."""
    found = whole(9, [guaranteed("a", 1)], [guaranteed("s", 5, sidecar=True), guaranteed("i", 5)])
    manager = started(10, gates=WHOLE).allocate_pod(found)
    blocks = manager.state.assignments["w"]
    assert {name: each[0].size_bytes for name, each in blocks.items()} == {"s": 5, "i": 5, "a": 1}


def test_a_pod_as_a_whole_is_placed_by_the_hint_of_its_first_container():
    found = whole(4, [ContainerSpec("c")])
    manager = started(10, 10, gates=WHOLE).allocate_pod(found, Hint(NodeSet([1]), preferred=True))
    assert manager.mems("w", "c") == NodeSet([1])
    with pytest.raises(MemoryAllocationError, match="failed to find NUMA nodes to extend"):
        started(3, gates=WHOLE).allocate_pod(found, Hint(NodeSet([0]), preferred=True))


def test_in_container_scope_those_who_share_get_nothing_of_their_own():
    """As in kubelet up to 1.36, such a container is refused if the Topology Manager has no nodes for it."""
    found, manager = whole(4, [ContainerSpec("c")]), started(10, gates=WHOLE)
    assert manager.hints(found, found.containers[0]) is None
    assert manager.allocate(found, found.containers[0], Hint(NodeSet([0]), preferred=True)) is manager
    assert manager.allocate(found, found.containers[0], NO_HINT) is manager
    manager = started(10, gates=replace(WHOLE, rules=rules_of(36)))
    with pytest.raises(MemoryAllocationError) as raised:
        manager.allocate(found, found.containers[0], NO_HINT)
    assert raised.value.refusal is Refusal.NO_NODES


def test_pods_that_take_no_part_are_left_alone():
    manager, found = started(10), PodSpec("p", (ContainerSpec("c", {"memory": 4}),))
    assert manager.hints(found, found.containers[0]) is None
    assert manager.pod_hints(found) is None
    assert manager.allocate(found, found.containers[0]) is manager
    assert manager.allocate_pod(found) is manager
