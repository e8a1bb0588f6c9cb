"""Admission by the Topology Manager: scopes, order, what stays allocated, and the words of a refusal."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from bayplan.engines.kubelet.topology_hints import NO_HINT, Hint, HintSet, NodeAmounts, OfSize, Region
from bayplan.engines.kubelet.topology_manager import TopologyManager, single_node
from bayplan.errors import BayplanError
from bayplan.kubelet.manager_options import (
    ManagerConfigError,
    TopologyOptions,
)
from bayplan.kubelet.pod import ContainerSpec, FeatureGates, PodLevelResources, PodSpec
from bayplan.model.machine import Machine, Node
from bayplan.model.policy import TopologyPolicy, TopologyScope
from bayplan.sets import CpuSet, NodeSet

NODES = NodeSet([0, 1])
POD = PodSpec("pod", (ContainerSpec("app"), ContainerSpec("log")), (ContainerSpec("init"),))


def prefers(*nodes, wider=True):
    hints = tuple(Hint(NodeSet([node]), preferred=True) for node in nodes)
    return {"thing": HintSet((*hints, Hint(NODES, preferred=False)) if wider else hints)}


class FullError(BayplanError):
    reason = "UnexpectedAdmissionError"

    def __str__(self):
        return "nothing is left"


class OddError(FullError):
    reason = "OddError"


@dataclass(frozen=True)
class Books:
    given: tuple[tuple[str, str, Hint], ...] = ()


@dataclass(frozen=True)
class Giver:
    """A provider that notes what it gives. ``answers`` by container; ``fails`` for one container."""

    name: str
    answers: dict = field(default_factory=dict)
    whole: object = None
    fails: str = ""
    error: BayplanError = field(default_factory=FullError)

    def hints(self, state, pod, container):
        return self.answers.get(container.name)

    def pod_hints(self, state, pod):
        return self.whole

    def allocate(self, state, pod, container, hint):
        if container.name == self.fails:
            raise self.error
        return Books((*state.given, (self.name, container.name, hint)))

    def allocate_pod(self, state, pod, hint):
        return self.allocate(state, pod, ContainerSpec("*"), hint)


def manager(policy, scope=TopologyScope.CONTAINER, gates=None):
    return TopologyManager(policy, NODES, scope, gates=gates or FeatureGates())


def test_each_container_is_merged_and_allocated_in_the_order_of_the_spec():
    one = Giver("one", {"init": prefers(1), "app": prefers(0, 1)})
    two = Giver("two", {"app": prefers(1)})
    admission = manager(TopologyPolicy.RESTRICTED).admit(Books(), POD, (one, two))
    first, second = Hint(NodeSet([1]), preferred=True), Hint(NODES, preferred=True)
    assert admission.admitted
    assert admission.hints == {"init": first, "app": first, "log": second}
    assert [(who, name) for who, name, _ in admission.state.given] == [
        (who, name) for name in ("init", "app", "log") for who in ("one", "two")
    ]


def test_a_refused_container_leaves_what_the_earlier_ones_got():
    one, two = Giver("one", {"app": prefers(0)}), Giver("two", {"app": prefers(1)})
    admission = manager(TopologyPolicy.RESTRICTED).admit(Books(), POD, (one, two))
    assert not admission.admitted
    assert (admission.reason, admission.message) == (
        "TopologyAffinityError",
        "Resources cannot be allocated with Topology locality",
    )
    assert admission.refused == POD.containers[0]
    assert admission.hint("app") == NO_HINT
    assert {name for _, name, _ in admission.state.given} == {"init"}


@pytest.mark.parametrize(
    ("error", "reason", "message"),
    [
        (
            FullError(),
            "UnexpectedAdmissionError",
            "Allocate failed due to nothing is left, which is unexpected",
        ),
        (OddError(), "OddError", "nothing is left"),
    ],
)
@pytest.mark.parametrize("scope", TopologyScope)
@pytest.mark.parametrize("policy", TopologyPolicy)
def test_a_failed_allocation_ends_admission(policy, scope, error, reason, message):
    providers = (Giver("one"), Giver("two", fails="app", error=error))
    admission = manager(policy, scope).admit(Books(), POD, providers)
    assert (admission.admitted, admission.reason, admission.message) == (False, reason, message)
    assert [entry[:2] for entry in admission.state.given] == [
        ("one", "init"),
        ("two", "init"),
        ("one", "app"),
    ]


def test_pod_scope_merges_once_and_stores_the_hint_for_every_container():
    one, two = Giver("one", whole=prefers(0, 1)), Giver("two", whole=prefers(1))
    admission = manager(TopologyPolicy.SINGLE_NUMA_NODE, TopologyScope.POD).admit(Books(), POD, (one, two))
    assert admission.hints == dict.fromkeys(("init", "app", "log"), Hint(NodeSet([1]), preferred=True))


def test_pod_scope_refuses_before_anything_is_allocated():
    one, two = Giver("one", whole=prefers(0)), Giver("two", whole=prefers(1))
    admission = manager(TopologyPolicy.SINGLE_NUMA_NODE, TopologyScope.POD).admit(Books(), POD, (one, two))
    assert not admission.admitted
    assert admission.state == Books()
    assert admission.refused is None


def test_none_asks_nobody_and_allocates_without_a_hint():
    one = Giver("one", {"app": prefers(0)}, whole=prefers(0))
    admission = manager(TopologyPolicy.NONE, TopologyScope.POD).admit(Books(), POD, (one,))
    assert admission.admitted
    assert {hint for _, _, hint in admission.state.given} == {NO_HINT}


@pytest.mark.parametrize(
    ("scope", "words"),
    [
        (TopologyScope.POD, "under pod-scope topology manager"),
        (TopologyScope.CONTAINER, "with a container-level topology manager"),
    ],
)
def test_pods_with_resources_of_their_own_are_refused_in_other_words(scope, words):
    whole = replace(POD, resources=PodLevelResources({"memory": 1}))
    gates = FeatureGates(pod_level_resource_managers=True)
    providers = [Giver(name, {"init": prefers(n)}, prefers(n)) for n, name in enumerate(("one", "two"))]
    admission = manager(TopologyPolicy.RESTRICTED, scope, gates).admit(Books(), whole, providers)
    assert admission.message == f"Pod Scope pod with pod-level resources failed admission {words}"


def test_a_pod_with_resources_of_its_own_is_allocated_as_a_whole():
    whole = replace(POD, resources=PodLevelResources({"memory": 1}))
    gates = FeatureGates(pod_level_resource_managers=True)
    providers = (Giver("one", whole=prefers(1)), Giver("two", fails="*"))
    admission = manager(TopologyPolicy.RESTRICTED, TopologyScope.POD, gates).admit(Books(), whole, providers)
    assert not admission.admitted
    assert admission.state.given == (("one", "*", Hint(NodeSet([1]), preferred=True)),)


def test_best_effort_admits_what_cannot_be_aligned():
    one, two = Giver("one", {"app": prefers(0)}), Giver("two", {"app": prefers(1)})
    admission = manager(TopologyPolicy.BEST_EFFORT).admit(Books(), POD, (one, two))
    assert admission.admitted
    assert admission.hint("app") == Hint(NodeSet([0]), preferred=False)


@given(
    st.dictionaries(st.integers(0, 3), st.integers(0, 3), min_size=1),
    st.integers(0, 6),
    st.integers(1, 2),
    st.sets(st.integers(0, 3)),
)
def test_single_node_keeps_the_preferred_single_nodes_of_a_region(amounts, needed, size, must):
    region = Region(NodeSet(amounts), (NodeAmounts(amounts, needed),), OfSize(size), NodeSet(must))
    hints = HintSet((Hint(None, preferred=True), Hint(NodeSet([7]), preferred=False)), (region,))
    kept = {
        hint for hint in hints.listed() if hint.preferred and (hint.nodes is None or len(hint.nodes) == 1)
    }
    assert set(single_node(hints).hints) == kept


def machine(*distances):
    return Machine(
        tuple(Node(node, CpuSet(), 1, distances=dict(enumerate(row))) for node, row in enumerate(distances)),
        (),
    )


def test_closest_nodes_need_distances():
    options = TopologyOptions(prefer_closest=True)
    with pytest.raises(ManagerConfigError, match="error getting NUMA distances from cadvisor"):
        TopologyManager.of(machine([10, 20], []), TopologyPolicy.RESTRICTED, options=options)
    assert TopologyManager.of(machine([], []), TopologyPolicy.NONE, options=options).distances is None
    near = TopologyManager.of(machine([10, 21], [21, 10]), TopologyPolicy.RESTRICTED, options=options)
    assert near.distances.total(0b11) == 62
