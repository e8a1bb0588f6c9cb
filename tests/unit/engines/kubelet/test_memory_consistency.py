"""The state stays right, and restorable, whatever happens: also when hints put single nodes into groups."""

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from bayplan.engines.kubelet.memory_checkpoint import checkpoint_of, format_checkpoint
from bayplan.engines.kubelet.memory_state import Block, MemoryManagerError, MemoryState
from bayplan.engines.kubelet.state_files import start
from bayplan.engines.kubelet.topology_hints import NO_HINT, Hint
from bayplan.kubelet.manager_options import MemoryManagerPolicy
from bayplan.kubelet.pod import ContainerSpec, FeatureGates, PodLevelResources, PodSpec
from bayplan.model.machine import Machine, Node
from bayplan.sets import CpuSet, NodeSet
from conformance.endings import memory_after_start, memory_without
from support.kubelet_start import restored, without_stale

MIB = 1 << 20
GATES = FeatureGates(pod_level_resource_managers=True)
RESERVED = {0: {"memory": 1}}


def machine(*nodes):
    """Nodes of (ordinary memory, 2 MiB pages) in MiB and pages; node 0 keeps a byte for the system."""
    return Machine(
        tuple(
            Node(index, CpuSet(), (memory + 2 * pages) * MIB + (index == 0), {2 * MIB: 2 * pages * MIB})
            for index, (memory, pages) in enumerate(nodes)
        ),
        (),
    )


def guaranteed(name, memory=1, pages=0, *, sidecar=False):
    sizes = {"cpu": 1000, "memory": memory} | ({"hugepages-2Mi": pages * 2 * MIB} if pages else {})
    return ContainerSpec(name, sizes, sizes, restartable=sidecar)


def started(*nodes, policy=MemoryManagerPolicy.STATIC):
    return start(policy, machine(*nodes), RESERVED, GATES)


def check(state: MemoryState):
    """Tables add up, and what is bound to one node is booked on that node."""
    for memory in state.nodes.values():
        for table in memory.tables.values():
            assert table.reserved >= 0
            assert table.free >= 0
            assert table.reserved + table.free == table.allocatable
    blocks = [block for _, _, each in state.booked() for block in each]
    names = {name for memory in state.nodes.values() for name in memory.tables}
    for name in names:
        own = [block for block in blocks if block.resource == name]
        booked = sum(memory.tables[name].reserved for memory in state.nodes.values())
        assert booked == sum(block.size_bytes for block in own)
        for node, memory in state.nodes.items():
            alone = sum(block.size_bytes for block in own if block.nodes == NodeSet([node]))
            assert memory.tables[name].reserved >= alone
    for node, memory in state.nodes.items():
        assert memory.assignments == sum(node in block.nodes for block in blocks)
        sets = {block.nodes for block in blocks if node in block.nodes} or {NodeSet([node])}
        assert memory.group in sets


def restart(manager, *nodes):
    """The manager after a restart from its file."""
    text = format_checkpoint(checkpoint_of("Static", manager.state), 2)
    return start(
        MemoryManagerPolicy.STATIC, machine(*nodes), RESERVED, GATES, restored(text, "f", "Static", GATES)
    )


@st.composite
def pods(draw, uid):
    def some(prefix, most, *, sidecars=False):
        return tuple(
            guaranteed(
                f"{prefix}{index}",
                draw(st.integers(1, 9)) * MIB,
                draw(st.integers(0, 2)),
                sidecar=sidecars and draw(st.booleans()),
            )
            for index in range(draw(st.integers(0, most)))
        )

    inits = some("i", 3, sidecars=True)
    apps = (guaranteed("first", draw(st.integers(1, 9)) * MIB), *some("a", 2))
    level = None
    if draw(st.integers(0, 3)) == 0:
        sizes = {"cpu": 4000, "memory": draw(st.integers(1, 30)) * MIB}
        level = PodLevelResources(sizes, sizes)
        apps += (ContainerSpec("rest"),)
    return PodSpec(uid, apps, inits, resources=level)


def hints(count):
    nodes = st.none() | st.sets(st.integers(0, count - 1), min_size=1).map(NodeSet)
    return st.builds(Hint, nodes, preferred=st.booleans())


def admitted(manager, pod, hint):
    """The manager after kubelet tried to admit the pod; *hint* makes the Topology Manager's hints up."""
    try:
        if pod.resources is not None:
            return manager.allocate_pod(pod, hint())
        for each in pod.all_containers:
            manager = manager.allocate(pod, each, hint())
    except MemoryManagerError:
        pass
    return manager


def changed(manager, pod, action, others):
    """The manager after something else happened to the pod."""
    if action == "stale":
        return without_stale(manager, others)
    for each in pod.all_containers if action != "container" else pod.all_containers[-1:]:
        manager = (
            memory_after_start(manager, pod, each)
            if action == "start"
            else memory_without(manager, pod.uid, each.name)
        )
    return manager


@given(st.data())
def test_books_are_right_after_anything(data):
    shape = data.draw(st.lists(st.tuples(st.integers(3, 20), st.integers(0, 4)), min_size=1, max_size=4))
    manager = empty = started(*shape)
    present: list[PodSpec] = []
    for step in range(data.draw(st.integers(1, 12))):
        action = data.draw(st.sampled_from(["admit", "admit", "remove", "start", "container", "stale"]))
        if action == "admit":
            present.append(data.draw(pods(f"p{step}")))
            manager = admitted(manager, present[-1], lambda: data.draw(hints(len(shape))))
        elif present:
            pod = data.draw(st.sampled_from(present))
            manager = changed(manager, pod, action, [each for each in present if each != pod])
        check(manager.state)
        assert restart(manager, *shape).state.nodes == manager.state.nodes
    assert without_stale(manager, ()).state.nodes == empty.state.nodes


def test_a_node_goes_back_to_its_group_when_a_narrower_allocation_leaves_it():
    """Kubelet leaves the node bound to itself, and does not start again on that state."""
    nodes = ((10, 0), (10, 0))
    wide, narrow = PodSpec("wide", (guaranteed("c", 12 * MIB),)), PodSpec("narrow", (guaranteed("c", MIB),))
    both, one = NodeSet([0, 1]), NodeSet([1])
    manager = started(*nodes).allocate(wide, wide.containers[0], Hint(both, preferred=True))
    manager = manager.allocate(narrow, narrow.containers[0], Hint(one, preferred=True))
    assert [memory.group for memory in manager.state.nodes.values()] == [both, one]
    manager = memory_without(manager, "narrow", "c")
    assert [memory.group for memory in manager.state.nodes.values()] == [both, both]
    assert restart(manager, *nodes).state == manager.state


def test_a_release_leaves_what_a_narrower_allocation_holds():
    """Releasing lowest node first, as kubelet does, would free memory on node 0 that is in use there."""
    nodes = ((10, 0), (10, 0))
    both, zero = Hint(NodeSet([0, 1]), preferred=True), Hint(NodeSet([0]), preferred=True)
    manager = started(*nodes)
    for uid, size, hint in (("a", 8, both), ("b", 5, both)):
        pod = PodSpec(uid, (guaranteed("c", size * MIB),))
        manager = manager.allocate(pod, pod.containers[0], hint)
    manager = memory_without(manager, "a", "c")
    pod = PodSpec("c", (guaranteed("c", 4 * MIB),))
    manager = memory_without(manager.allocate(pod, pod.containers[0], zero), "b", "c")
    assert [m.tables["memory"].reserved for m in manager.state.nodes.values()] == [4 * MIB, 0]
    check(manager.state)


def test_a_pod_as_a_whole_is_booked_once_and_released_with_its_last_container():
    sizes = {"cpu": 3000, "memory": 6 * MIB}
    pod = PodSpec(
        "p", (guaranteed("own", 2 * MIB), ContainerSpec("rest")), resources=PodLevelResources(sizes, sizes)
    )
    empty = started((10, 0))
    manager = empty.allocate_pod(pod)
    assert manager.allocate_pod(pod) is manager
    assert manager.allocate(pod, pod.containers[1]) is manager
    zero = NodeSet([0])
    assert manager.state.assignments == {
        "p": {"own": (Block(zero, "memory", 2 * MIB),), "rest": (Block(zero, "memory", 4 * MIB),)}
    }
    assert manager.state.nodes[0].tables["memory"].reserved == 6 * MIB
    one_left = memory_without(manager, "p", "rest")
    assert one_left.state.nodes == manager.state.nodes
    assert memory_without(one_left, "p", "own").state == empty.state


def test_what_an_init_container_left_is_still_known_after_a_restart():
    nodes = ((10, 0),)
    pod = PodSpec(
        "p",
        (guaranteed("a", 4 * MIB), guaranteed("b", 3 * MIB)),
        (guaranteed("i", 5 * MIB), guaranteed("j", 3 * MIB)),
    )
    manager = started(*nodes)
    for each in pod.init_containers:
        manager = manager.allocate(pod, each)
    again = restart(manager, *nodes)
    for each in pod.containers:
        manager, again = manager.allocate(pod, each), again.allocate(pod, each)
    assert again.state == manager.state
    assert again.state.nodes[0].tables["memory"].reserved == 7 * MIB


def test_more_reserved_than_there_is_leaves_nothing():
    """Kubelet's unsigned arithmetic wraps around to almost 2^64 free bytes."""
    manager = start(MemoryManagerPolicy.STATIC, machine((4, 1)), {0: {"memory": 99 * MIB}}, GATES)
    assert manager.state.nodes[0].tables["memory"].free == 0


def test_nothing_is_booked_under_policy_none():
    pod = PodSpec("p", (guaranteed("c"),))
    manager = started((4, 0), policy=MemoryManagerPolicy.NONE)
    assert manager.allocate(pod, pod.containers[0], NO_HINT) is manager
    assert manager.hints(pod, pod.containers[0]) is None
    assert manager.mems("p", "c") is None
    assert manager.allocatable() == ()


def test_best_effort_books_and_prefers_but_neither_binds_nor_refuses():
    fits, huge = PodSpec("p", (guaranteed("c", MIB),)), PodSpec("q", (guaranteed("c", 99 * MIB),))
    manager = started((4, 0), (4, 0), policy=MemoryManagerPolicy.BEST_EFFORT)
    assert manager.hints(fits, fits.containers[0])
    manager = manager.allocate(fits, fits.containers[0]).allocate(huge, huge.containers[0])
    assert manager.state.assignments == {"p": {"c": (Block(NodeSet([0]), "memory", MIB),)}}
    assert manager.mems("p", "c") is None
    assert replace(manager, policy=MemoryManagerPolicy.STATIC).mems("p", "c") == NodeSet([0])
