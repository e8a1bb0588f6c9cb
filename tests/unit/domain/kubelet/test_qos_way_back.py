"""From a pod to what a runtime is told, and back: the class, and an interval with the true request in it."""

from hypothesis import assume, given
from hypothesis import strategies as st

from bayplan.domain.decision import QosClass
from bayplan.domain.kubelet.cgroup_values import NodeSettings, container_values
from bayplan.domain.kubelet.pod import ContainerSpec, FeatureGates, PodLevelResources, PodSpec
from bayplan.domain.kubelet.pod_qos import (
    container_oom_score_adj,
    is_node_critical,
    qos_class,
    scored_request_bytes,
)
from bayplan.domain.policy import MemoryQos, MemoryReservationPolicy
from bayplan.domain.qos import oom_score_adj, request_from_oom_score_adj
from bayplan.domain.request import derive_request
from bayplan.domain.workload import Container, Pod, Resources

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
        level = PodLevelResources({"cpu": 10, "memory": draw(st.integers(least, capacity))})
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


nodes = (
    st.builds(
        MemoryQos,
        throttling_factor=st.none() | st.just(0.9),
        reservation=st.sampled_from(MemoryReservationPolicy),
    )
    | st.none()
)


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
        sandbox, Container("c", "s", resources=resources, oom_score_adj=values.oom_score_adj), capacity
    )


@given(pods(simple=True), nodes)
def test_the_true_request_is_always_in_the_interval(drawn, memory_qos):
    pod, capacity = drawn
    for container in pod.all_containers:
        request = told(pod, container, capacity, memory_qos)
        assert request.qos is qos_class(pod, GATES)
        true_bytes = container.requests.get("memory", 0)
        assert request.memory.low_bytes <= true_bytes <= request.memory.high_bytes


@given(pods(simple=False), nodes)
def test_no_container_requests_more_than_the_interval_says(drawn, memory_qos):
    pod, capacity = drawn
    for container in pod.all_containers:
        request = told(pod, container, capacity, memory_qos)
        assert request.qos is qos_class(pod, GATES)
        assert container.requests.get("memory", 0) <= request.memory.high_bytes


@given(pods(simple=False))
def test_a_sidecar_or_a_share_of_the_pods_memory_is_never_above_the_interval(drawn):
    """kubelet scores these containers by more than their own request, which a runtime can't know."""
    pod, capacity = drawn
    assume(qos_class(pod, GATES) is QosClass.BURSTABLE)
    assume(not is_node_critical(pod))
    for container in pod.all_containers:
        adjustment = container_oom_score_adj(pod, container, capacity, GATES)
        interval = request_from_oom_score_adj(adjustment, capacity)
        whole = request_from_oom_score_adj(adjustment, capacity, own_request=False)
        assert interval.low_bytes <= scored_request_bytes(pod, container, GATES) <= interval.high_bytes
        assert whole.low_bytes <= container.requests.get("memory", 0) <= whole.high_bytes


@given(capacities, st.data())
def test_the_interval_is_as_narrow_as_it_can_be(capacity, data):
    request = data.draw(st.integers(0, capacity))
    adjustment = oom_score_adj(QosClass.BURSTABLE, request, capacity)
    interval = request_from_oom_score_adj(adjustment, capacity)
    assert interval.low_bytes <= request <= interval.high_bytes
    for edge in (interval.low_bytes, min(interval.high_bytes, capacity)):
        assert oom_score_adj(QosClass.BURSTABLE, edge, capacity) == adjustment
    if interval.low_bytes:
        assert oom_score_adj(QosClass.BURSTABLE, interval.low_bytes - 1, capacity) != adjustment
    if interval.high_bytes < capacity:
        assert oom_score_adj(QosClass.BURSTABLE, interval.high_bytes + 1, capacity) != adjustment


def test_a_negative_score_request_gives_more_than_a_thousand_as_in_kubelet():
    app = ContainerSpec("a", {"memory": 600})
    pod = PodSpec("p", (app, ContainerSpec("b")), resources=PodLevelResources({"memory": 99}))
    assert scored_request_bytes(pod, pod.containers[1], GATES) == -250
    assert container_oom_score_adj(pod, pod.containers[1], 1000, GATES) == 1250
