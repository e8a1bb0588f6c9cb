"""From a pod to what a runtime is told, and back: the class, and an interval with the true request in it."""

from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec.structs import replace

from bayplan.kubelet.pod import ContainerSpec, FeatureGates, PodLevelResources, PodSpec
from bayplan.kubelet.qos import (
    NodeSettings,
    container_oom_score_adj,
    container_values,
    is_node_critical,
    qos_class,
    scored_request_bytes,
)
from bayplan.model.decision import QosClass
from bayplan.model.kubelet_version import rules_of
from bayplan.model.policy import MemoryQos, MemoryReservationPolicy
from bayplan.model.qos import oom_score_adj, request_from_oom_score_adj
from bayplan.model.request import derive_request
from bayplan.model.resources import Resources
from bayplan.model.workload import Container, Pod
from support.machines import machine

GATES = FeatureGates()
PARENTS = {
    QosClass.GUARANTEED: "/kubepods.slice/kubepods-pod1.slice",
    QosClass.BURSTABLE: "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1.slice",
    QosClass.BEST_EFFORT: "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod1.slice",
}

capacities = st.integers(1 << 28, 1 << 43)


@st.composite
def containers(draw, capacity, name, *, sidecar=False):
    """What the API server lets through: no request above its limit or the machine, requests follow limits."""
    requests, limits = {}, {}
    for resource, most in (("cpu", 64_000), ("memory", capacity)):
        limit = draw(st.none() | st.integers(1, most))
        request = draw(st.none() | st.integers(0, limit or most))
        if limit is not None:
            limits[resource] = limit
        if request is not None or limit is not None:
            requests[resource] = limit if request is None else request
    return ContainerSpec(name, requests, limits, restartable=sidecar)


@st.composite
def pods(draw, *, simple):
    """Simple pods have no sidecars and no pod-level requests."""
    capacity = draw(capacities)
    apps = tuple(draw(containers(capacity, f"a{index}")) for index in range(draw(st.integers(1, 3))))
    inits = tuple(
        draw(containers(capacity, f"i{index}", sidecar=not simple and draw(st.booleans())))
        for index in range(draw(st.integers(0, 2)))
    )
    level = None
    if not simple and draw(st.booleans()):
        least = sum(each.requests.get("memory", 0) for each in (*apps, *inits))
        assume(least <= capacity)
        level = _pod_level(draw, (*apps, *inits), draw(st.integers(least, capacity)))
    critical = draw(st.booleans())
    found = PodSpec(
        "1",
        apps,
        inits,
        resources=level,
        priority=2_000_001_000 if critical else None,
        priority_class_name="system-node-critical" if critical else "",
    )
    return found, capacity


def _pod_level(draw, all_containers, memory_bytes):
    """Pod-level resources that the API server lets through: no container has more than the pod."""
    milli = sum(each.requests.get("cpu", 0) for each in all_containers) + draw(st.integers(1, 4000))
    requests = {"cpu": milli, "memory": memory_bytes}
    tops = {name: max((each.limits.get(name, 0) for each in all_containers), default=0) for name in requests}
    if draw(st.booleans()) and all(tops[name] <= requests[name] for name in requests):
        return PodLevelResources(requests, requests)
    if draw(st.booleans()):
        return PodLevelResources(requests, {name: max(tops[name], requests[name]) for name in requests})
    return PodLevelResources(requests)


nodes = (
    st.builds(
        MemoryQos,
        throttling_factor=st.none() | st.just(0.9),
        reservation=st.sampled_from(MemoryReservationPolicy),
    )
    | st.none()
)


def _in_disguise(pod, container, capacity, memory_qos):
    """Whether a runtime is told the same of a container which requests all that this one is limited to, if
    kubelet's memoryReservationPolicy is not known."""
    if pod.resources is None or qos_class(pod, GATES) is not QosClass.GUARANTEED:
        return False
    values = container_values(pod, container, NodeSettings(capacity, capacity, memory_qos=memory_qos), GATES)
    settings = [memory_qos]
    if memory_qos is not None:
        settings.append(replace(memory_qos, reservation=MemoryReservationPolicy.NONE))
    nodes = [NodeSettings(capacity, capacity, memory_qos=each) for each in settings]
    # Up to 10 thousandths of a CPU have the same quota.
    limits = {name: container.limits.get(name, 0) or pod.resources.limits[name] for name in ("cpu", "memory")}
    for milli in (limits["cpu"], *range(1, 10)):
        amounts = {"cpu": milli, "memory": limits["memory"]}
        twin = ContainerSpec("twin", amounts, amounts)
        ordinary = PodSpec("1", (twin,), priority=pod.priority, priority_class_name=pod.priority_class_name)
        twins = (container_values(ordinary, twin, node, GATES) for node in nodes)
        if any(_without_lone_protection(each) == _without_lone_protection(values) for each in twins):
            return True
    return False


def _without_lone_protection(values):
    """A memory.min without a memory.high may be anybody's."""
    if "memory.high" in values.unified:
        return values
    unified = {key: text for key, text in values.unified.items() if key != "memory.min"}
    return replace(values, unified=unified)


def told(pod, container, capacity, memory_qos):
    """The container as a runtime gets it from kubelet."""
    node = NodeSettings(capacity, capacity, memory_qos=memory_qos)
    values = container_values(pod, container, node, GATES)
    resources = Resources(
        memory_limit_bytes=values.memory_limit_bytes or None,
        cpu_shares=values.cpu_shares,
        cpu_quota_us=values.cpu_quota_us or None,
        cpu_period_us=values.cpu_period_us,
        unified=values.unified,
    )
    sandbox = Pod("s", cgroup_parent=PARENTS[qos_class(pod, GATES)])
    return derive_request(
        sandbox,
        Container("c", "s", resources=resources, oom_score_adj=values.oom_score_adj),
        machine(1, 64, capacity),
    )


@given(pods(simple=True), nodes)
def test_the_true_request_of_an_ordinary_container_is_in_the_usual_interval(drawn, memory_qos):
    pod, capacity = drawn
    for container in pod.all_containers:
        request = told(pod, container, capacity, memory_qos)
        assert request.qos is qos_class(pod, GATES)
        true_bytes = container.requests.get("memory", 0)
        assert request.memory.low_bytes <= request.memory.likely_low_bytes
        assert request.memory.likely_low_bytes <= true_bytes <= request.memory.high_bytes


@given(pods(simple=False), nodes)
def test_the_true_request_of_any_container_is_in_the_interval(drawn, memory_qos):
    """Sidecars, pod-level resources, critical pods, clamps. One kind of container cannot be told: that of a
    Guaranteed pod with pod-level resources which looks like one that requests its limits itself."""
    pod, capacity = drawn
    for container in pod.all_containers:
        request = told(pod, container, capacity, memory_qos)
        assert request.qos is qos_class(pod, GATES)
        true_bytes = container.requests.get("memory", 0)
        if _in_disguise(pod, container, capacity, memory_qos):
            # It claims its limit, as its class says.
            assert request.memory.exact
            assert true_bytes <= request.memory.high_bytes
        else:
            assert request.memory.low_bytes <= true_bytes <= request.memory.high_bytes


@given(pods(simple=False), nodes)
def test_only_pods_with_pod_level_resources_are_taken_for_such(drawn, memory_qos):
    pod, capacity = drawn
    for container in pod.all_containers:
        request = told(pod, container, capacity, memory_qos)
        if request.pod_level:
            assert pod.resources is not None
            assert request.exclusive_cpus == 0


def test_a_guaranteed_pod_with_pod_level_resources_shows_by_the_shares():
    level = PodLevelResources({"cpu": 4000, "memory": 400}, {"cpu": 4000, "memory": 400})
    own, rest = (
        ContainerSpec("a", {"cpu": 1000, "memory": 100}, {"cpu": 1000, "memory": 100}),
        ContainerSpec("b"),
    )
    partly = ContainerSpec("c", {"cpu": 500, "memory": 100})
    pod = PodSpec("p", (own, rest, partly), resources=level)
    assert qos_class(pod, GATES) is QosClass.GUARANTEED
    requests = [told(pod, container, 1 << 30, None) for container in pod.containers]
    assert [request.pod_level for request in requests] == [False, False, True]
    assert [(one.memory.low_bytes, one.memory.high_bytes) for one in requests] == [
        (100, 100),
        (400, 400),
        (0, 400),
    ]
    assert [request.exclusive_cpus for request in requests] == [1, 4, 0]


def test_a_sidecar_counts_for_more_than_it_requests():
    capacity = 1 << 30
    sidecar = ContainerSpec("s", {"memory": capacity // 100}, restartable=True)
    app = ContainerSpec("a", {"memory": capacity // 4})
    pod = PodSpec("p", (app,), (sidecar,))
    memory = told(pod, sidecar, capacity, None).memory
    assert memory.low_bytes == 0
    assert memory.likely_low_bytes > sidecar.requests["memory"]
    assert memory == told(pod, app, capacity, None).memory


def test_throttling_begins_above_the_request():
    pod = PodSpec("p", (ContainerSpec("a", {"memory": 500 << 20}, {"memory": 600 << 20}),))
    qos = MemoryQos(throttling_factor=0.1, reservation=MemoryReservationPolicy.NONE)
    (container,) = pod.containers
    without, memory = (told(pod, container, 1 << 40, one).memory for one in (None, qos))
    assert (without.high_bytes, memory.high_bytes) == (600 << 20, (510 << 20) - 1)
    assert memory.low_bytes <= 500 << 20 <= memory.high_bytes


@given(pods(simple=False))
def test_the_usual_interval_holds_what_a_container_counts_for(drawn):
    pod, capacity = drawn
    assume(qos_class(pod, GATES) is QosClass.BURSTABLE)
    assume(not is_node_critical(pod))
    for container in pod.all_containers:
        adjustment = container_oom_score_adj(pod, container, capacity, GATES)
        interval = request_from_oom_score_adj(adjustment, capacity)
        counted_bytes = scored_request_bytes(pod, container, GATES)
        assert interval.likely_low_bytes <= counted_bytes <= interval.high_bytes
        assert interval.low_bytes <= container.requests.get("memory", 0) <= interval.high_bytes


@given(capacities, st.data())
def test_the_interval_is_as_narrow_as_it_can_be(capacity, data):
    request = data.draw(st.integers(0, capacity))
    adjustment = oom_score_adj(QosClass.BURSTABLE, request, capacity)
    interval = request_from_oom_score_adj(adjustment, capacity)
    low_bytes = interval.likely_low_bytes
    assert low_bytes <= request <= interval.high_bytes
    for edge in (low_bytes, min(interval.high_bytes, capacity)):
        assert oom_score_adj(QosClass.BURSTABLE, edge, capacity) == adjustment
    if low_bytes:
        assert oom_score_adj(QosClass.BURSTABLE, low_bytes - 1, capacity) != adjustment
    if interval.high_bytes < capacity:
        assert oom_score_adj(QosClass.BURSTABLE, interval.high_bytes + 1, capacity) != adjustment


def test_before_1_37_a_negative_score_request_gives_more_than_a_thousand():
    app = ContainerSpec("a", {"memory": 600})
    pod = PodSpec("p", (app, ContainerSpec("b")), resources=PodLevelResources({"memory": 99}))
    older = FeatureGates(rules=rules_of(36))
    assert scored_request_bytes(pod, pod.containers[1], older) == -250
    assert container_oom_score_adj(pod, pod.containers[1], 1000, older) == 1250
    assert scored_request_bytes(pod, pod.containers[1], GATES) == 0
    assert container_oom_score_adj(pod, pod.containers[1], 1000, GATES) == 999
