"""The `kubelet` engine on a ledger: kubelet's placements and refusals, nothing lost or promised twice."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from bayplan.engines.exact.engine import ExactEngine
from bayplan.engines.interface import Engine
from bayplan.engines.kubelet.cpu_manager import StaticCpuPolicy
from bayplan.engines.kubelet.cpu_state import CpuState
from bayplan.engines.kubelet.cpu_topology import CpuTopology
from bayplan.engines.kubelet.engine import KubeletEngine
from bayplan.engines.kubelet.managers import KubeletManagers, ManagersState, managers_state
from bayplan.engines.kubelet.memory_manager import MemoryManager
from bayplan.engines.kubelet.memory_state import MemoryState, empty_nodes
from bayplan.engines.kubelet.state_files import same_state
from bayplan.engines.kubelet.topology_manager import TopologyManager
from bayplan.kubelet.manager_options import CpuOptions, ManagerOptions, MemoryManagerPolicy
from bayplan.kubelet.pod import ContainerSpec, PodSpec
from bayplan.model.basis import Allocatable, Basis
from bayplan.model.decision import Decision, NodeWish, Outcome, Placement, PodTotals, QosClass, Request
from bayplan.model.ledger import Entry, Ledger
from bayplan.model.machine import MEMORY, Machine
from bayplan.model.policy import PlacementPolicy, TopologyPolicy, TopologyScope
from bayplan.model.request import changed_request, derive_request
from bayplan.model.resources import Resources
from bayplan.model.workload import Pod
from bayplan.placement.reconcile import adopt
from bayplan.quantity import GIB, MIB
from bayplan.sets import CpuSet, NodeSet
from bayplan.state.record import decode_entry, encode
from conformance.endings import without_container
from support.machines import container, machine, pod

RESTRICTED = PlacementPolicy(topology=TopologyPolicy.RESTRICTED, reserved_cpus=CpuSet([0]))
SINGLE = replace(RESTRICTED, topology=TopologyPolicy.SINGLE_NUMA_NODE)
BEST_EFFORT = replace(RESTRICTED, topology=TopologyPolicy.BEST_EFFORT)
PAGES = "hugepages-2Mi"


class Node:
    """A machine under a policy with what was placed on it so far."""

    def __init__(
        self, hardware: Machine, policy: PlacementPolicy = RESTRICTED, managers: ManagerOptions | None = None
    ) -> None:
        self.machine, self.policy, self.ledger = hardware, policy, Ledger()
        self.engine: Engine = KubeletEngine(managers)

    def request(
        self,
        container_id: str,
        memory_bytes: int,
        milli_cpus: int = 500,
        *,
        owner: str = "",
        qos: QosClass = QosClass.GUARANTEED,
        totals: Resources | None = None,
        **spec: object,
    ) -> Request:
        home: Pod = pod(owner or f"pod-of-{container_id}", qos)
        if totals is not None:
            home = replace(home, resources=totals)
        one = container(container_id, home, memory_bytes=memory_bytes, milli_cpus=milli_cpus)
        one = replace(one, resources=replace(one.resources, **spec))  # type: ignore[arg-type]  # keywords of several types
        return derive_request(home, one, self.machine)

    def decide(self, request: Request, current: Placement | None = None) -> Decision:
        base = self.ledger.without(request.container_id)
        decision = self.engine.decide(Basis(self.machine, self.policy, base), request, current)
        if decision.outcome is not Outcome.REFUSED:
            self.ledger = base.with_entry(Entry(decision))
        return decision

    def place(self, container_id: str, memory_bytes: int, milli_cpus: int = 500, **more: object) -> Decision:
        return self.decide(self.request(container_id, memory_bytes, milli_cpus, **more))  # type: ignore[arg-type]  # keywords of several types

    def mems(self, container_id: str, memory_bytes: int, milli_cpus: int = 500) -> str:
        return str(self.place(container_id, memory_bytes, milli_cpus).placement.mems)


# --- placements and refusals ---


def test_one_container_per_node_until_full_then_kubelets_refusal() -> None:
    node = Node(machine(4, memory_bytes=GIB))
    assert [node.mems(f"c{i}", 600 * MIB) for i in range(4)] == ["0", "1", "2", "3"]
    refused = node.place("c4", 600 * MIB)
    assert (refused.outcome, refused.refused_as) == (Outcome.REFUSED, "UnexpectedAdmissionError")
    assert refused.placement == Placement()
    assert (
        "[memorymanager] preferred hint violates NUMA node allocation, which is unexpected "
        "(default/pod-of-c4/c4-name requests 600Mi memory on nodes 0-3"
    ) in refused.explanation()
    node.ledger = node.ledger.without("c1")
    assert node.mems("c5", 600 * MIB) == "1"


def test_what_is_booked_is_the_claim_on_the_nodes_that_hold_it() -> None:
    node = Node(machine(4, memory_bytes=GIB), BEST_EFFORT)
    wide = node.place("wide", 1200 * MIB).placement
    assert str(wide.mems) == "0-1"
    assert wide.booked_bytes == {0: {MEMORY: GIB}, 1: {MEMORY: 176 * MIB}}


def test_a_group_of_nodes_bars_single_nodes_and_the_refusal_says_that_there_is_room() -> None:
    node = Node(machine(2, memory_bytes=GIB))
    assert node.mems("wide", 1200 * MIB) == "0-1"
    refused = node.place("small", 100 * MIB)
    assert refused.refused_as == "TopologyAffinityError"
    assert refused.reasons[-1].code == "room-elsewhere"


def test_single_numa_node_refuses_what_needs_two() -> None:
    node = Node(machine(2, memory_bytes=GIB), SINGLE)
    refused = node.place("wide", 1200 * MIB)
    assert refused.refused_as == "TopologyAffinityError"
    assert Node(machine(2, memory_bytes=GIB)).mems("wide", 1200 * MIB) == "0-1"


def test_best_effort_places_what_is_not_preferred_and_says_so() -> None:
    node = Node(machine(2, 2, memory_bytes=GIB), BEST_EFFORT)
    node.place("the-cpu-of-node-0", 100 * MIB, 1000)
    node.place("the-memory-of-node-1", 950 * MIB)
    apart = node.place("apart", 500 * MIB, 1000)
    assert (apart.outcome, str(apart.placement.exclusive_cpus)) == (Outcome.DEGRADED, "2")
    assert str(apart.placement.mems) == "0"
    assert "not preferred" in apart.explanation()


def test_cpus_and_memory_and_huge_pages_come_from_one_node() -> None:
    node = Node(machine(2, 4, memory_bytes=GIB, hugepages_bytes={2 * MIB: 64 * MIB}))
    sizes = {2 * MIB: 64 * MIB}
    first = node.place("a", 100 * MIB, 2000, hugepage_limits_bytes=sizes).placement
    second = node.place("b", 100 * MIB, 2000, hugepage_limits_bytes=sizes).placement
    assert (str(first.mems), str(first.exclusive_cpus)) == ("0", "1-2")
    assert (str(second.mems), str(second.exclusive_cpus)) == ("1", "4-5")
    assert first.booked_bytes == {0: {MEMORY: 100 * MIB, PAGES: 64 * MIB}}
    assert node.place("c", 100 * MIB, 500, hugepage_limits_bytes=sizes).outcome is Outcome.REFUSED


def test_full_cores_only() -> None:
    managers = ManagerOptions(cpu_options=CpuOptions(full_pcpus_only=True))
    node = Node(machine(2, 4, threads_per_core=2), managers=managers)
    assert str(node.place("a", MIB, 2000).placement.exclusive_cpus) == "2-3"
    odd = node.place("odd", MIB, 1000)
    assert odd.refused_as == "SMTAlignmentError"
    assert "requested 1 cpus " in odd.explanation()


@pytest.mark.parametrize(("minor", "cpus"), [(36, "4-6,8-10"), (37, "8-10,12-14")])
def test_cpus_are_chosen_as_by_the_kubelet_of_that_version(minor: int, cpus: str) -> None:
    hardware = machine(4)
    sockets = tuple(replace(cpu, socket_id=cpu.node_id // 2) for cpu in hardware.cpus)
    hardware = replace(hardware, cpus=sockets)
    options = CpuOptions(distribute_cpus_across_numa=True, align_by_socket=True)
    policy = replace(RESTRICTED, topology=TopologyPolicy.NONE, kubelet_minor=minor)
    node = Node(hardware, policy, ManagerOptions(MemoryManagerPolicy.NONE, cpu_options=options))
    assert str(node.place("wide", GIB, 6_000).placement.exclusive_cpus) == cpus


def test_without_managers_nothing_is_bound_or_booked() -> None:
    node = Node(machine(2), managers=ManagerOptions(memory=MemoryManagerPolicy.NONE, static_cpus=False))
    assert node.place("a", 100 * GIB, 2000).placement == Placement()


def test_best_effort_memory_is_counted_and_not_bound() -> None:
    node = Node(
        machine(2, memory_bytes=GIB), BEST_EFFORT, ManagerOptions(memory=MemoryManagerPolicy.BEST_EFFORT)
    )
    wide = node.place("wide", 1500 * MIB).placement
    assert wide.mems is None
    assert wide.booked_bytes == {0: {MEMORY: GIB}, 1: {MEMORY: 476 * MIB}}
    assert node.place("more", GIB).outcome is Outcome.DEGRADED


@pytest.mark.parametrize("qos", [QosClass.BURSTABLE, QosClass.BEST_EFFORT])
def test_other_classes_share(qos: QosClass) -> None:
    decision = Node(machine(2)).place("a", 100 * GIB, 2000, qos=qos)
    assert decision.placement == Placement()
    assert decision.reasons[0].code == "shared-pool"


def test_what_somebody_pinned_stays_and_is_not_promised_again() -> None:
    node = Node(machine(2, 2, memory_bytes=GIB))
    pinned = node.place("pinned", 900 * MIB, 500, cpuset_mems=NodeSet([0]), cpuset_cpus=CpuSet([1]))
    assert (pinned.reasons[0].code, pinned.placement.mems) == ("pinned", None)
    placed = node.place("next", 600 * MIB, 1000).placement
    assert (str(placed.mems), str(placed.exclusive_cpus)) == ("1", "2")


def test_an_adopted_container_takes_room_and_binds_no_nodes() -> None:
    node = Node(machine(2, memory_bytes=GIB))
    home = pod("g", QosClass.GUARANTEED)
    found = container("found", home, memory_bytes=1200 * MIB, milli_cpus=500)
    node.ledger = node.ledger.with_entry(
        adopt(Basis(node.machine, node.policy, node.ledger), node.engine, home, found)
    )
    assert node.mems("next", 600 * MIB) == "1"
    assert node.place("none-left", 600 * MIB).outcome is Outcome.REFUSED


def test_a_guaranteed_container_without_a_visible_limit_gets_its_cpus() -> None:
    node = Node(machine(2))
    request = replace(node.request("a", 0, 2000), qos=QosClass.GUARANTEED)
    assert len(node.decide(request).placement.exclusive_cpus) == 2


# --- pod by pod ---


POD_SCOPE = ManagerOptions(scope=TopologyScope.POD)


def _sums(memory_bytes: int, milli_cpus: int) -> Resources:
    return Resources(memory_limit_bytes=memory_bytes, cpu_quota_us=milli_cpus * 100, cpu_period_us=100_000)


def test_a_pod_is_aligned_as_a_whole() -> None:
    node = Node(machine(2, memory_bytes=GIB), managers=POD_SCOPE)
    node.place("resident", 500 * MIB)
    sums = _sums(900 * MIB, 1000)
    first = node.place("one", 300 * MIB, owner="team", totals=sums)
    second = node.place("two", 600 * MIB, owner="team", totals=sums)
    assert first.request.pod_totals == PodTotals(900 * MIB, 1000)
    assert [str(each.placement.mems) for each in (first, second)] == ["1", "1"]
    alone = Node(machine(2, memory_bytes=GIB))
    alone.place("resident", 500 * MIB)
    assert alone.mems("one", 300 * MIB) == "0"


def test_a_pod_that_fits_nowhere_as_a_whole_is_refused_at_its_first_container() -> None:
    node = Node(machine(2, memory_bytes=GIB), SINGLE, POD_SCOPE)
    refused = node.place("one", 300 * MIB, owner="team", totals=_sums(1200 * MIB, 1000))
    assert refused.refused_as == "TopologyAffinityError"
    assert node.place("one", 300 * MIB, owner="team").outcome is Outcome.PLACED


def test_the_room_of_a_later_container_is_kept() -> None:
    node = Node(machine(2, memory_bytes=GIB), SINGLE, POD_SCOPE)
    sums = _sums(900 * MIB, 3000)
    first = node.place("one", 300 * MIB, 1000, owner="team", totals=sums)
    assert first.reasons[-1].text == "kept for the rest of its pod: 600Mi memory on node 0 and CPUs 2-3"
    assert str(node.place("thief", 600 * MIB, 2000).placement.mems) == "1"
    assert node.place("second-thief", 600 * MIB).outcome is Outcome.REFUSED
    second = node.place("two", 600 * MIB, 2000, owner="team", totals=sums)
    assert (str(second.placement.mems), str(second.placement.exclusive_cpus)) == ("0", "2-3")
    assert second.reasons[-1].code != "kept-for-pod"


def test_the_room_of_a_container_that_starts_again_is_kept_and_goes_with_the_pod() -> None:
    node = Node(machine(2, memory_bytes=GIB), SINGLE, POD_SCOPE)
    sums = _sums(900 * MIB, 1000)
    for name, size in (("one", 300), ("two", 600)):
        node.place(name, size * MIB, owner="team", totals=sums)
    node.ledger = node.ledger.without("two")
    assert str(node.place("other", 600 * MIB).placement.mems) == "1"
    assert str(node.place("two-again", 600 * MIB, owner="team", totals=sums).placement.mems) == "0"
    for name in ("one", "two-again"):
        node.ledger = node.ledger.without(name)
    assert str(node.place("next", 1000 * MIB).placement.mems) == "0"


def test_the_room_of_a_pod_is_kept_between_its_containers() -> None:
    """An init container has ended, and the next container is not there yet."""
    node = Node(machine(2, memory_bytes=GIB), SINGLE, POD_SCOPE)
    sums = _sums(900 * MIB, 3000)
    node.place("init", 900 * MIB, 3000, owner="team", totals=sums)
    node.ledger = node.ledger.after_end_of("init")
    assert (node.ledger.entries, list(node.ledger.retained)) == ({}, ["team-sandbox"])
    assert str(node.place("other", 600 * MIB, 3000).placement.mems) == "1"
    assert node.place("thief", 600 * MIB).outcome is Outcome.REFUSED
    later = node.place("app", 900 * MIB, 3000, owner="team", totals=sums).placement
    assert (str(later.mems), str(later.exclusive_cpus)) == ("0", "1-3")
    assert node.ledger.retained == {}


def test_the_cpus_of_an_ended_init_container_are_kept_beside_a_shared_part_of_the_sums() -> None:
    node = Node(machine(1, 4, memory_bytes=GIB), SINGLE, POD_SCOPE)
    sums = _sums(900 * MIB, 2500)
    node.place("init", 300 * MIB, 2000, owner="team", totals=sums)
    node.ledger = node.ledger.after_end_of("init")
    assert node.place("thief", 10 * MIB, 2000).outcome is Outcome.REFUSED
    assert (
        str(node.place("app", 300 * MIB, 2000, owner="team", totals=sums).placement.exclusive_cpus) == "1-2"
    )


def test_nothing_is_kept_for_a_pod_that_is_gone_or_whose_sums_are_unknown() -> None:
    node = Node(machine(2, memory_bytes=GIB), SINGLE, POD_SCOPE)
    node.place("one", 300 * MIB, owner="team", totals=_sums(900 * MIB, 1000))
    ended = node.ledger.after_end_of("one")
    assert list(ended.retained) == ["team-sandbox"]
    assert ended.without_retained("another") == ended
    nothing = node.ledger.without("one")
    assert ended.without_retained("team-sandbox") == nothing
    assert node.ledger.after_end_of("one", pod_stays=False) == nothing
    node.place("alone", 300 * MIB)
    assert node.ledger.after_end_of("alone").retained == {}


def test_what_a_resized_pod_needs_is_not_known_and_so_not_kept() -> None:
    node = Node(machine(2, memory_bytes=GIB), SINGLE, POD_SCOPE)
    sums = _sums(900 * MIB, 1000)
    node.place("one", 300 * MIB, owner="team", totals=sums)
    node.place("two", 600 * MIB, owner="team", totals=sums)
    assert _resized(node, "two", memory_limit_bytes=100 * MIB).outcome is Outcome.PLACED
    assert [str(node.place(f"c{i}", 600 * MIB).placement.mems) for i in range(2)] == ["0", "1"]


@given(
    st.sampled_from([RESTRICTED, SINGLE, BEST_EFFORT]),
    st.integers(1, 4),
    st.lists(
        st.tuples(
            st.booleans(),
            st.lists(st.tuples(st.integers(1, 5), st.integers(1, 2)), min_size=2, max_size=3),
        ),
        min_size=4,
        max_size=6,
    ),
    st.lists(
        st.tuples(st.integers(0, 7), st.sampled_from(["next", "next", "next", "again", "end"])), max_size=40
    ),
)
def test_no_container_of_an_admitted_pod_finds_its_room_taken(
    policy: PlacementPolicy,
    nodes: int,
    plans: list[tuple[bool, list[tuple[int, int]]]],
    turns: list[tuple[int, str]],
) -> None:
    """Pods of several containers come, start containers again and go, in any order, with restarts between."""
    node = Node(_hardware(nodes), policy, POD_SCOPE)
    running: dict[int, list[int]] = {}
    for which, what in turns:
        number = which % len(plans)
        whole_cpus, plan = plans[number]
        milli = [cpus * 1000 if whole_cpus else 500 for _, cpus in plan]
        sums = _sums(sum(tenths for tenths, _ in plan) * GIB // 10, sum(milli))
        here = running.setdefault(number, [])
        if what == "end":
            for index in here:
                node.ledger = node.ledger.without(f"p{number}-{index}")
            node.ledger = node.ledger.without_retained(f"p{number}-sandbox")
            running[number] = []
            continue
        if what == "again" and here:
            node.ledger = node.ledger.after_end_of(f"p{number}-{here.pop()}")
            continue
        left = [index for index in range(len(plan)) if index not in here]
        if not left:
            continue
        index, admitted = left[0], bool(here) or f"p{number}-sandbox" in node.ledger.retained
        size = plan[index][0] * GIB // 10
        decision = node.place(f"p{number}-{index}", size, milli[index], owner=f"p{number}", totals=sums)
        if admitted:
            assert decision.outcome is not Outcome.REFUSED, decision.explanation()
        if decision.outcome is not Outcome.REFUSED:
            here.append(index)
            assert len(decision.placement.exclusive_cpus) == (milli[index] // 1000 if whole_cpus else 0)
        _check_promises(node)
        entries = (*node.ledger.entries.values(), *node.ledger.retained.values())
        node.ledger = Ledger.of(decode_entry(encode(entry)) for entry in entries)


def test_the_affinity_of_a_pod_survives_the_store() -> None:
    node = Node(machine(2, memory_bytes=GIB), managers=POD_SCOPE)
    node.place("resident", 500 * MIB)
    node.place("one", 300 * MIB, owner="team", totals=_sums(900 * MIB, 1000))
    node.ledger = Ledger.of([decode_entry(encode(entry)) for entry in node.ledger.entries.values()])
    assert str(node.place("two", 100 * MIB, owner="team").placement.mems) == "1"


# --- resizes ---


def _resized(node: Node, container_id: str, **change: int) -> Decision:
    old = node.ledger.entries[container_id].decision
    milli = old.request.cpu_milli
    spec = Resources(old.request.memory_limit_bytes, cpu_quota_us=milli * 100, cpu_period_us=100_000)
    request = changed_request(old.request, spec, Resources(**change), node.machine)  # type: ignore[arg-type]  # keywords of several types
    return node.decide(request, old.placement)


def test_a_resize_is_granted_where_the_container_is() -> None:
    node = Node(machine(2, memory_bytes=GIB))
    node.place("a", 300 * MIB, 2000)
    granted = _resized(node, "a", memory_limit_bytes=900 * MIB)
    assert (granted.outcome, str(granted.placement.mems)) == (Outcome.PLACED, "0")
    assert granted.placement.booked_bytes == {0: {MEMORY: 900 * MIB}}
    assert len(granted.placement.exclusive_cpus) == 2


def test_a_resize_beyond_its_nodes_is_infeasible_as_in_kubelet() -> None:
    node = Node(machine(2, memory_bytes=GIB))
    node.place("a", 300 * MIB)
    refused = _resized(node, "a", memory_limit_bytes=1100 * MIB)
    assert refused.refused_as == "Infeasible"
    assert 'infeasible for Guaranteed Pods alongside Memory Manager policy "Static"' in refused.explanation()
    assert node.ledger.booked_bytes[0][MEMORY] == 300 * MIB


def test_another_number_of_exclusive_cpus_is_infeasible() -> None:
    node = Node(machine(2, memory_bytes=GIB))
    node.place("a", 300 * MIB, 1000)
    refused = _resized(node, "a", cpu_quota_us=200_000)
    assert refused.refused_as == "Infeasible"
    assert 'CPU Manager policy "static" (it has 1 CPU of its own' in refused.explanation()


# --- the same as kubelet's managers with books of their own; the ledger loses nothing ---


class Facade:
    """The managers with their own books, as kubelet keeps them."""

    def __init__(self, hardware: Machine, policy: PlacementPolicy) -> None:
        cpus = StaticCpuPolicy(CpuTopology.of_machine(hardware), CpuOptions(), policy.reserved_cpus)
        self.engine = KubeletManagers(TopologyManager.of(hardware, policy.topology), cpus)
        self.empty = empty_nodes(hardware, policy.reserved_bytes)
        memory = MemoryManager(MemoryManagerPolicy.STATIC, MemoryState(self.empty))
        self.state = ManagersState(cpus.start(CpuState()), memory)

    def admit(self, request: Request) -> Placement | None:
        amounts = {"cpu": request.cpu_milli, MEMORY: request.memory.high_bytes, **request.hugepages_bytes}
        one = ContainerSpec(request.container_id, amounts, amounts)
        spec = PodSpec(request.pod_id, (one,))
        admission = self.engine.admit(self.state, spec)
        if not admission.admitted:
            return None
        self.state = admission.state
        uid, name = request.pod_id, request.container_id
        return Placement(self.state.memory.mems(uid, name), self.state.cpus.of(uid, name) or CpuSet())

    def remove(self, request: Request) -> None:
        self.state = without_container(self.state, request.pod_id, request.container_id)


Step = tuple[str, int, int, int, int]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["place", "place", "remove"]),
        st.integers(1, 14),
        st.sampled_from([100, 500, 1000, 2000, 3000]),
        st.sampled_from([0, 0, 32]),
        st.integers(0, 30),
    ),
    max_size=25,
)
POLICIES = st.sampled_from(
    [RESTRICTED, SINGLE, BEST_EFFORT, replace(RESTRICTED, topology=TopologyPolicy.NONE)]
)


def _hardware(nodes: int) -> Machine:
    return machine(nodes, 4, threads_per_core=2, hugepages_bytes={2 * MIB: 64 * MIB})


def _check_promises(node: Node) -> None:
    allocatable = Allocatable(node.machine, node.policy).bytes_by_node
    for place, row in node.ledger.booked_bytes.items():
        assert all(0 <= amount <= allocatable[place][resource] for resource, amount in row.items())
    given_away = [entry.decision.placement.exclusive_cpus for entry in node.ledger.entries.values()]
    assert sum(map(len, given_away)) == len(node.ledger.exclusive_cpus)
    assert node.ledger.exclusive_cpus.isdisjoint(node.policy.reserved_cpus)
    for entry in node.ledger.entries.values():
        placed, request = entry.decision.placement, entry.decision.request
        claim = {MEMORY: request.memory.high_bytes, **request.hugepages_bytes}
        for resource, amount in claim.items():
            assert sum(row.get(resource, 0) for row in placed.booked_bytes.values()) == amount
        assert placed.mems is not None
        assert NodeSet(placed.booked_bytes) <= placed.mems


def _walk(node: Node, facade: Facade | None, steps: Sequence[Step], *, whole_cpus: bool) -> None:
    """Do *steps* on the ledger, and on the managers' own books if there are any, and compare."""
    placed: list[Request] = []
    for number, (what, tenths, milli_cpus, pages, which) in enumerate(steps):
        if what == "remove":
            if placed:
                gone = placed.pop(which % len(placed))
                node.ledger = node.ledger.without(gone.container_id)
                if facade is not None:
                    facade.remove(gone)
        else:
            request = node.request(
                f"c{number}",
                tenths * GIB // 10,
                milli_cpus if whole_cpus else 500,
                hugepage_limits_bytes={2 * MIB: pages * MIB} if pages else {},
            )
            decision = node.decide(request)
            admitted = decision.outcome is not Outcome.REFUSED
            if admitted:
                placed.append(request)
            if facade is not None:
                before = facade.state
                expected = facade.admit(request)
                if expected is None:
                    facade.state = before
                assert admitted == (expected is not None)
                if expected is not None:
                    assert decision.placement.mems == expected.mems
                    assert decision.placement.exclusive_cpus == expected.exclusive_cpus
        _check_promises(node)


@given(st.integers(1, 4), POLICIES, STEPS)
def test_memory_goes_where_kubelets_own_books_would_put_it(
    nodes: int, policy: PlacementPolicy, steps: list[Step]
) -> None:
    hardware = _hardware(nodes)
    node, facade = Node(hardware, policy), Facade(hardware, policy)
    _walk(node, facade, steps, whole_cpus=False)
    ours = managers_state(MemoryManagerPolicy.STATIC, facade.empty, facade.engine.cpus, node.ledger)
    kubelets = facade.state.memory.state
    assert same_state(kubelets, facade.empty, ours.memory.state.nodes)
    assert ours.cpus.shared == facade.state.cpus.shared


@given(st.integers(1, 4), POLICIES, STEPS)
def test_cpus_and_memory_go_where_kubelets_own_books_would_put_them_until_somebody_leaves(
    nodes: int, policy: PlacementPolicy, steps: list[Step]
) -> None:
    hardware = _hardware(nodes)
    arrivals = [step for step in steps if step[0] == "place"]
    _walk(Node(hardware, policy), Facade(hardware, policy), arrivals, whole_cpus=True)


@given(st.integers(1, 4), POLICIES, STEPS)
def test_nothing_is_promised_twice_and_the_order_of_the_ledger_means_nothing(
    nodes: int, policy: PlacementPolicy, steps: list[Step]
) -> None:
    hardware = _hardware(nodes)
    node = Node(hardware, policy)
    _walk(node, None, steps, whole_cpus=True)
    empty = empty_nodes(hardware, policy.reserved_bytes)
    cpus = StaticCpuPolicy(CpuTopology.of_machine(hardware), CpuOptions(), policy.reserved_cpus)
    stored = sorted(node.ledger.entries.values(), key=lambda entry: entry.container_id, reverse=True)
    again = Ledger.of(decode_entry(encode(entry)) for entry in stored)
    before = managers_state(MemoryManagerPolicy.STATIC, empty, cpus, node.ledger)
    after = managers_state(MemoryManagerPolicy.STATIC, empty, cpus, again)
    assert before == after


@given(st.integers(2, 4), st.sampled_from([RESTRICTED, SINGLE]), STEPS)
def test_where_only_kubelets_rules_refuse_the_exact_engine_does_not(
    nodes: int, policy: PlacementPolicy, steps: list[Step]
) -> None:
    """That is what such a refusal says, about exactly this ledger."""
    node, exact = Node(_hardware(nodes), policy), ExactEngine()
    for number, (what, tenths, milli_cpus, _pages, which) in enumerate(steps):
        if what == "remove":
            keys = sorted(node.ledger.entries)
            node.ledger = node.ledger.without(keys[which % len(keys)]) if keys else node.ledger
            continue
        request = node.request(f"c{number}", tenths * GIB // 10, milli_cpus)
        before = node.ledger
        refused = node.decide(request)
        if "room-elsewhere" in {reason.code for reason in refused.reasons}:
            assert exact.decide(Basis(node.machine, policy, before), request).outcome is Outcome.PLACED


def test_wishes_that_kubelet_does_not_know_degrade_what_does_not_meet_them() -> None:
    node = Node(machine(2))
    placed = node.place("c", 100 * MIB, 1000)
    assert placed.placement.mems == NodeSet([0])

    def decide(request: Request) -> Decision:
        return node.engine.decide(Basis(node.machine, node.policy, Ledger()), request)

    met = replace(placed.request, nodes=NodeWish(NodeSet([0]), required=True))
    assert decide(met).outcome is Outcome.PLACED
    other = replace(met, nodes=NodeWish(NodeSet([1]), required=True))
    for request in (other, replace(other, pinned_cpus=CpuSet([1])), replace(other, pinned_mems=NodeSet([0]))):
        decision = decide(request)
        assert decision.outcome is Outcome.DEGRADED
        assert decision.reasons[-1].code == "wish-not-granted"
