"""The static policy: who gets CPUs, which, and that none is ever given away twice."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from bayplan.engines.kubelet.cpu_checkpoint import format_checkpoint
from bayplan.engines.kubelet.cpu_manager import StaticCpuPolicy, cpu_policy
from bayplan.engines.kubelet.cpu_state import (
    CpuManagerError,
    CpuShortageError,
    CpuState,
    CpuStateError,
    EmptySharedPoolError,
    SmtAlignmentError,
)
from bayplan.engines.kubelet.cpu_topology import CpuTopology, LogicalCpu
from bayplan.engines.kubelet.topology_hints import HintSet
from bayplan.kubelet.manager_options import CpuOptions, ManagerConfigError
from bayplan.kubelet.pod import CPU, ContainerSpec, FeatureGates, PodLevelResources, PodSpec
from bayplan.model.kubelet_version import rules_of
from bayplan.sets import CpuSet, NodeSet
from conformance.cpu_reconciliation import Reconciled, Running, UpdateNeed, reconcile_cpus
from conformance.endings import cpus_without
from support.kubelet_start import restore_checkpoint

GIB = 1 << 30

TOPOLOGY = CpuTopology.of_cpus(
    LogicalCpu(id=cpu, core=cpu % 8, node=cpu % 8 // 4, socket=cpu % 8 // 4, uncore=cpu % 8 // 2)
    for cpu in range(16)
)
"""Two nodes of four cores with two threads: 0-3,8-11 and 4-7,12-15."""


def container(name, milli, *, sidecar=False):
    amounts = {CPU: milli, "memory": GIB}
    return ContainerSpec(name, amounts, amounts, restartable=sidecar)


def pod(*containers, init=(), uid="pod", own_milli=None):
    level = None if own_milli is None else {CPU: own_milli, "memory": GIB}
    return PodSpec(
        uid,
        tuple(containers),
        tuple(init),
        resources=None if level is None else PodLevelResources(level, level),
    )


def sharing(name, *, sidecar=False):
    return ContainerSpec(name, {"memory": GIB}, {"memory": GIB}, restartable=sidecar)


def policy(options=None, reserved=CpuSet([0]), managers=False):
    gates = FeatureGates(pod_level_resource_managers=managers)
    return StaticCpuPolicy(TOPOLOGY, options or CpuOptions(), reserved, gates)


def started(static):
    return static.start(CpuState())


def allocated(static, state, asked, nodes=None):
    for each in asked.all_containers:
        state = static.allocate(state, asked, each, nodes)
    return state


options = st.sampled_from(
    [
        CpuOptions(),
        CpuOptions(full_pcpus_only=True),
        CpuOptions(distribute_cpus_across_numa=True),
        CpuOptions(distribute_cpus_across_numa=True, full_pcpus_only=True),
        CpuOptions(align_by_socket=True),
        CpuOptions(distribute_cpus_across_cores=True),
        CpuOptions(strict_cpu_reservation=True),
        CpuOptions(prefer_align_cpus_by_uncorecache=True, full_pcpus_only=True),
    ]
)
requests = st.sampled_from([500, 1000, 2000, 3000, 4000, 6000])


@st.composite
def pods(draw, uid):
    init = [
        container(f"i{number}", draw(requests), sidecar=draw(st.booleans()))
        for number in range(draw(st.integers(0, 2)))
    ]
    apps = [container(f"c{number}", draw(requests)) for number in range(draw(st.integers(1, 2)))]
    return pod(*apps, init=init, uid=uid)


@given(options, st.data())
def test_no_cpu_is_given_away_twice_or_lost(chosen, data):
    static = policy(chosen, CpuSet([0, 8]))
    state = started(static)
    live = {}
    for number in range(data.draw(st.integers(1, 8))):
        if live and data.draw(st.booleans()):
            gone = live.pop(data.draw(st.sampled_from(sorted(live))))
            for each in gone.all_containers:
                state = cpus_without(state, gone.uid, each.name)
        else:
            asked = data.draw(pods(f"pod-{number}"))
            nodes = data.draw(st.sampled_from([None, NodeSet([0]), NodeSet([1]), NodeSet([0, 1])]))
            live[asked.uid] = asked
            for each in asked.all_containers:
                try:
                    state = static.allocate(state, asked, each, nodes)
                except CpuManagerError:
                    break
        check(static, state, live)


def check(static, state, live):
    held = state.shared
    by_pod = {}
    for uid, name, cpus in state.items():
        asked = live[uid]
        spec = next(each for each in asked.all_containers if each.name == name)
        assert len(cpus) * 1000 == spec.requests[CPU]
        assert cpus.isdisjoint(state.shared)
        assert cpus.isdisjoint(static.reserved)
        by_pod[uid] = by_pod.get(uid, CpuSet()) | cpus
        held |= cpus
    assert held == static.managed
    assert all(one.isdisjoint(other) for one, other in combinations(by_pod.values(), 2))
    for asked in live.values():
        lasting = [each for each in asked.all_containers if not asked.is_regular_init(each.name)]
        given = [state.of(asked.uid, each.name) or CpuSet() for each in lasting]
        assert all(one.isdisjoint(other) for one, other in combinations(given, 2))
    if state.shared:
        read = restore_checkpoint(format_checkpoint(state, "static"), "static")
        assert static.start(read) == read


def test_only_whole_cpus_of_guaranteed_pods_are_exclusive():
    static = policy()
    state = started(static)
    burstable = PodSpec("b", (ContainerSpec("c", {CPU: 2000, "memory": GIB}, {CPU: 4000, "memory": GIB}),))

    after = allocated(static, state, pod(container("whole", 2000), container("part", 1500)))

    assert list(after.assignments["pod"]) == ["whole"]
    assert allocated(static, state, burstable) is state


def test_hinted_nodes_come_first_and_the_rest_from_elsewhere():
    static = policy()

    state = allocated(static, started(static), pod(container("c", 10_000)), NodeSet([1]))

    assert CpuSet.parse("4-7,12-15") <= state.of("pod", "c")
    assert len(state.of("pod", "c")) == 10


def test_whole_cores_only():
    static = policy(CpuOptions(full_pcpus_only=True))
    state = started(static)

    with pytest.raises(SmtAlignmentError, match="requested 3 cpus not multiple cpus per core = 2"):
        allocated(static, state, pod(container("c", 3000)))
    with pytest.raises(
        SmtAlignmentError, match="available physical CPUs = 14, requested CPUs = 16"
    ) as raised:
        allocated(static, state, pod(container("c", 16_000)))
    assert raised.value.reason == "SMTAlignmentError"


def test_init_containers_leave_their_cpus_and_sidecars_do_not():
    static = policy()
    init = (container("init", 4000), container("sidecar", 2000, sidecar=True))

    state = allocated(static, started(static), pod(container("app", 4000), init=init))

    sidecar, app = state.of("pod", "sidecar"), state.of("pod", "app")
    assert sidecar <= state.of("pod", "init")
    assert sidecar.isdisjoint(app)
    assert len(state.of("pod", "init") & app) == 2


def test_removal_keeps_what_a_later_container_took_over():
    static = policy()
    before = started(static)
    state = allocated(static, before, pod(container("app", 2000), init=(container("init", 4000),)))

    state = cpus_without(state, "pod", "init")

    assert state.of("pod", "app").isdisjoint(state.shared)
    assert len(state.shared) == 14
    assert cpus_without(state, "pod", "init") is state
    assert cpus_without(state, "pod", "app").shared == before.shared


def test_another_pod_forgets_what_could_be_reused():
    static = policy()
    first = pod(container("app", 2000), init=[container("i", 2000)])
    state = static.allocate(started(static), first, first.init_containers[0], None)
    assert state.reusable["pod"] == state.of("pod", "i")

    state = allocated(static, state, pod(container("c", 1000), uid="other"))

    assert list(state.reusable) == ["other"]
    after = static.allocate(state, first, first.containers[0], None)
    assert after.of("pod", "app").isdisjoint(state.of("pod", "i"))


def test_a_container_that_has_its_cpus_keeps_them():
    static = policy()
    asked = pod(container("c", 2000))
    state = allocated(static, started(static), asked)

    assert allocated(static, state, asked, NodeSet([1])).assignments == state.assignments


def test_split_cores_are_kept_under_full_pcpus_only_since_1_37():
    asked = pod(container("c", 3000))
    state = allocated(policy(), started(policy()), asked)
    static = policy(CpuOptions(full_pcpus_only=True))
    assert allocated(static, state, asked).assignments == state.assignments
    with pytest.raises(SmtAlignmentError):
        allocated(replace(static, gates=FeatureGates(rules=rules_of(36))), state, asked)


def test_hints_of_a_container_that_has_cpus_are_where_they_are():
    static = policy()
    asked = pod(container("c", 2000))
    state = allocated(static, started(static), asked, NodeSet([1]))

    hints = static.hints(state, asked, asked.containers[0])[CPU]

    assert [(str(hint.nodes), hint.preferred) for hint in hints.listed()] == [("1", True), ("0-1", False)]
    assert static.pod_hints(state, asked) == {CPU: hints}
    other = pod(container("c", 3000))
    assert static.hints(state, other, other.containers[0]) == {CPU: HintSet()}
    assert static.pod_hints(state, other) == {CPU: HintSet()}


def test_pod_hints_include_the_nodes_where_the_pod_is_already():
    static = policy()
    asked = pod(container("one", 1000), container("two", 1000))
    state = static.allocate(started(static), asked, asked.containers[0], NodeSet([1]))

    listed = static.pod_hints(state, asked)[CPU].listed()

    assert [str(hint.nodes) for hint in listed] == ["1", "0-1"]
    assert static.pod_hints(state, pod(container("c", 1500))) is None


def test_a_pod_with_its_own_budget_is_left_alone_unless_the_gate_is_on():
    asked = pod(container("c", 2000), own_milli=4000)
    static = policy()
    state = started(static)

    assert static.hints(state, asked, asked.containers[0]) is None
    assert static.pod_hints(state, asked) is None
    assert allocated(static, state, asked) is state
    assert static.allocate_pod(state, asked, None) is state
    assert policy(managers=True).hints(state, asked, asked.containers[0]) is not None


def test_a_budget_is_divided_and_comes_back_with_the_last_container():
    static = policy(managers=True)
    before = started(static)
    asked = pod(
        container("own", 2000),
        sharing("rest"),
        init=(sharing("first"), container("sidecar", 1000, sidecar=True), container("init", 3000)),
        own_milli=4000,
    )

    state = static.allocate_pod(before, asked, NodeSet([1]))

    budget = state.budgets["pod"]
    given = state.assignments["pod"]
    assert budget <= CpuSet.parse("4-7,12-15")
    assert given["first"] == budget
    assert given["init"] == budget - given["sidecar"]
    assert given["sidecar"] | given["own"] | given["rest"] == budget
    assert [len(given[name]) for name in ("sidecar", "own", "rest")] == [1, 2, 1]
    assert static.allocate_pod(state, asked, None) is state
    assert static.start(state) is state
    for name in ("first", "sidecar", "init", "own"):
        state = cpus_without(state, "pod", name)
        assert state.shared == before.shared - budget
    assert cpus_without(state, "pod", "rest").shared == before.shared


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        (
            pod(container("own", 2000), sharing("rest"), own_milli=2000),
            "sum of exclusive container cpu requests equals pod budget",
        ),
        (
            pod(
                container("own", 1000),
                init=(container("s", 2000, sidecar=True), sharing("i")),
                own_milli=2000,
            ),
            "pod has shared init containers but no cpus available for them",
        ),
    ],
)
def test_a_budget_must_leave_something_to_those_who_share(asked, text):
    static = policy(managers=True)

    with pytest.raises(EmptySharedPoolError, match=text) as raised:
        static.allocate_pod(started(static), asked, None)

    assert raised.value.reason == "EmptyPodSharedPoolError"
    assert static.pod_hints(started(static), asked) == {CPU: HintSet()}


def test_a_budget_too_small_for_its_containers_is_refused():
    static = policy(managers=True)
    asked = pod(container("one", 2000), container("two", 2000), own_milli=3000)

    with pytest.raises(CpuShortageError):
        static.allocate_pod(started(static), asked, None)


@pytest.mark.parametrize(
    ("state", "text"),
    [
        (CpuState(assignments={"p": {"c": CpuSet([1])}}), "default cpuset cannot be empty"),
        (CpuState(CpuSet.parse("1-15")), 'not all reserved cpus: "0" are present in defaultCpuSet: "1-15"'),
        (
            CpuState(CpuSet.parse("0-15"), {"p": {"c": CpuSet([1])}}),
            'pod: p, container: c cpuset: "1" overlaps with default cpuset "0-15"',
        ),
        (
            CpuState(CpuSet.parse("0-14")),
            'current set of available CPUs "0-15" doesn\'t match with CPUs in state "0-14"',
        ),
    ],
)
def test_a_state_that_cannot_be_is_refused(state, text):
    with pytest.raises(CpuStateError) as raised:
        policy().start(state)

    assert str(raised.value) == text


def test_strict_reservation_keeps_reserved_cpus_from_everybody():
    static = policy(CpuOptions(strict_cpu_reservation=True))

    assert started(static).shared == CpuSet.parse("1-15")
    with pytest.raises(
        CpuStateError, match='strictly reserved cpus: "0" are present in defaultCpuSet: "0-15"'
    ):
        static.start(CpuState(CpuSet.parse("0-15")))


def configured(**changes):
    arguments = {"reserved_milli_cpus": 1500, **changes}
    return cpu_policy("static", TOPOLOGY, CpuOptions(), **arguments)


def test_reservation_is_rounded_up_and_taken_as_a_container_would():
    assert configured().reserved == CpuSet([0, 8])
    assert configured().allocatable == CpuSet.parse("1-7,9-15")
    assert configured(reserved_cpus=CpuSet([3, 4])).reserved == CpuSet([3, 4])
    assert cpu_policy("none", TOPOLOGY, CpuOptions(), reserved_milli_cpus=None) is None


@pytest.mark.parametrize(
    ("configure", "text"),
    [
        (lambda: configured(reserved_milli_cpus=None), "unable to determine reserved CPU resources"),
        (lambda: configured(reserved_milli_cpus=0), "to be greater than zero"),
        (lambda: configured(reserved_cpus=CpuSet([3])), "(size of 3 did not equal 2)"),
        (
            lambda: cpu_policy("dynamic", TOPOLOGY, CpuOptions(), reserved_milli_cpus=1000),
            'unknown policy: "dynamic"',
        ),
        (
            lambda: cpu_policy("static", CpuTopology.of_cpus(()), CpuOptions(), reserved_milli_cpus=1000),
            "could not detect number of cpus",
        ),
    ],
)
def test_a_configuration_that_cannot_work_is_refused(configure, text):
    with pytest.raises(ManagerConfigError) as raised:
        configure()

    assert text in str(raised.value)


def test_reconciliation_tells_only_what_changed():
    told = CpuState(CpuSet.parse("0-3"))
    state = CpuState(CpuSet.parse("0-2"), {"p": {"own": CpuSet([3]), "none": CpuSet()}})
    known = [
        ("p", "own", Running.RUNNING),
        ("p", "shared", Running.RUNNING),
        ("p", "none", Running.RUNNING),
        ("p", "waiting", Running.WAITING),
        ("p", "unknown", Running.UNKNOWN),
        ("p", "ended", Running.TERMINATED),
    ]

    assert list(reconcile_cpus(state, told, known)) == [
        Reconciled("p", "own", UpdateNeed.DUE, CpuSet([3])),
        Reconciled("p", "shared", UpdateNeed.DUE, CpuSet.parse("0-2")),
        Reconciled("p", "none", UpdateNeed.FAILED),
        Reconciled("p", "waiting", UpdateNeed.FAILED),
        Reconciled("p", "unknown", UpdateNeed.FAILED),
    ]
    assert [found.need for found in reconcile_cpus(state, state, known[:2])] == [UpdateNeed.CURRENT] * 2
