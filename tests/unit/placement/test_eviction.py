"""Whom to evict: kubelet's order, and everybody who must not be evicted."""

from collections.abc import Mapping

import pytest
from msgspec.structs import replace

from bayplan.kubelet.eviction_manager import EPHEMERAL_STORAGE, INODES, PIDS
from bayplan.model.decision import Decision, Interval, Outcome, QosClass, QosSource, Request
from bayplan.model.kubelet_requests import (
    BY_KUBELET,
    Amounts,
    ContainerFacts,
    ContainerKind,
    ContainerResources,
    PodFacts,
)
from bayplan.model.ledger import Entry
from bayplan.model.workload import Container, Pod
from bayplan.placement.eviction import (
    CRITICAL_PRIORITY,
    HELPFUL_BYTES,
    EvictablePod,
    PodMemory,
    RunningContainer,
    candidates,
    evictable,
    victim,
)
from bayplan.quantity import GIB, MIB

BEST_EFFORT, BURSTABLE = QosClass.BEST_EFFORT, QosClass.BURSTABLE


def running(
    pod: Pod,
    used_bytes: int | None,
    qos: QosClass = BEST_EFFORT,
    request_bytes: int | None = 0,
    held: Mapping[int, int] | None = None,
    score: int | None = 1000,
    name: str = "main",
) -> RunningContainer:
    """*request_bytes* None: all that is known is that it is between nothing and 4 GiB."""
    memory = (
        Interval(0, 4 * GIB, "oom_score_adj")
        if request_bytes is None
        else Interval(request_bytes, request_bytes, BY_KUBELET)
    )
    key = f"{pod.name}-{name}"
    request = Request(key, pod.id, f"{pod.namespace}/{pod.name}/{name}", qos, QosSource.CGROUP_PARENT, memory)
    container = Container(key, pod.id, name, oom_score_adj=score)
    return RunningContainer(Entry(Decision(request, Outcome.PLACED)), container, used_bytes, held or {})


def pod(name: str, annotations: Mapping[str, str] | None = None) -> Pod:
    return Pod(f"sandbox-{name}", name, "shop", f"uid-{name}", annotations or {})


def facts(name: str, request_bytes: int, priority: int | None = 0, qos: QosClass = BURSTABLE) -> PodFacts:
    resources = ContainerResources(Amounts(memory_bytes=request_bytes) if request_bytes else Amounts())
    one = ContainerFacts("main", ContainerKind.MAIN, resources)
    return PodFacts(f"uid-{name}", "shop", name, qos, (one,), priority=priority)


def offered(name: str, used_bytes: int, request_bytes: int, priority: int = 0, **held: int) -> EvictablePod:
    owner = pod(name)
    nodes = {int(node[1:]): amount for node, amount in held.items()}
    one = running(owner, used_bytes, BURSTABLE, request_bytes, nodes)
    found = evictable(owner, [one], facts(name, request_bytes, priority))
    assert isinstance(found, EvictablePod), found
    return found


def chosen(*pods: EvictablePod, node: int | None = None, lacking_bytes: int = GIB) -> str | None:
    found = victim(pods, node, lacking_bytes)
    return None if found is None else found.pod.name


def test_the_lower_priority_goes_first_and_then_who_is_furthest_above_its_request() -> None:
    low = offered("low", 110 * MIB, 100 * MIB, priority=-5)
    large, small = offered("large", 3 * GIB, GIB), offered("small", 2 * GIB, GIB)
    assert chosen(small, large, low) == "low"
    assert chosen(small, large) == "large"
    assert chosen() is None


def test_what_runs_short_makes_the_order() -> None:
    def of(name: str, used: int, resource: str, of_disk_bytes: int, priority: int = 0) -> EvictablePod | str:
        resources = ContainerResources(Amounts(ephemeral_storage_bytes=of_disk_bytes))
        one = ContainerFacts("main", ContainerKind.MAIN, resources)
        known = replace(facts(name, 0, priority, BEST_EFFORT), containers=(one,))
        return evictable(pod(name), [running(pod(name), used)], known, resource)

    def pods(resource: str, of_disk_bytes: int) -> list[EvictablePod]:
        offered = (
            of("few", 10, resource, 0, 1),
            of("many", 30, resource, of_disk_bytes),
            of("some", 20, resource, 0),
        )
        return [one for one in offered if not isinstance(one, str)]

    assert chosen(*pods(PIDS, 25)) == "many"
    assert chosen(*pods(EPHEMERAL_STORAGE, 25)) == "some"
    assert chosen(*pods(EPHEMERAL_STORAGE, 5)) == "many"
    # kubelet deducts bytes from inodes; nobody requests inodes, so that nobody is within them.
    assert chosen(*pods(INODES, 25)) == "some"
    assert of("within", 20, EPHEMERAL_STORAGE, 20) == "it uses no more than it requests"


def test_for_a_node_only_who_holds_enough_there() -> None:
    elsewhere = offered("elsewhere", 4 * GIB, 0, priority=-5, n1=4 * GIB, n0=HELPFUL_BYTES - 1)
    there = offered("there", GIB, 0, priority=5, n0=HELPFUL_BYTES)
    assert chosen(elsewhere, there) == "elsewhere"
    assert chosen(elsewhere, there, node=0) == "there"
    assert chosen(elsewhere, node=0) is None
    # Where less lacks than that, less is enough.
    assert chosen(elsewhere, there, node=0, lacking_bytes=MIB) == "elsewhere"


@pytest.mark.parametrize(
    ("one", "known", "why"),
    [
        (
            running(pod("a"), 100 * MIB, BURSTABLE, 100 * MIB),
            facts("a", 100 * MIB),
            "no more than it requests",
        ),
        (running(pod("a"), GIB, BURSTABLE, 0), None, "nobody said for certain"),
        (running(pod("a"), 5 * GIB, BURSTABLE, None), None, "nobody said for certain"),
        (running(pod("a"), 5 * GIB, BURSTABLE, None), facts("a", 1), "nobody said for certain"),
        # The ledger does not have what is said: the spec disproves it.
        (running(pod("a"), 5 * GIB, BURSTABLE, GIB), facts("a", 1, -9), "nobody said for certain"),
        (running(pod("a"), 5 * GIB, BURSTABLE, 0), facts("a", 0, qos=BEST_EFFORT), "nobody said for certain"),
        (running(pod("a"), GIB, BURSTABLE, 0), facts("a", 0, CRITICAL_PRIORITY), "it is critical"),
        (running(pod("a"), GIB, score=-997), None, "by its oom_score_adj it is critical"),
        (running(pod("a"), None), None, "not known what it uses"),
        (running(pod("a"), 0), None, "no more than it requests"),
        (running(pod("a", {"kubernetes.io/config.source": "file"}), GIB), None, "static"),
    ],
)
def test_who_is_never_evicted(one: RunningContainer, known: PodFacts | None, why: str) -> None:
    annotations = {"kubernetes.io/config.source": "file"} if why == "static" else None
    found = evictable(pod("a", annotations), [one], known)
    assert isinstance(found, str)
    assert why in found


def test_what_is_said_of_a_pod_as_a_whole_makes_no_less_of_what_its_containers_prove() -> None:
    lie = ContainerResources(Amounts(memory_bytes=1))
    within = running(pod("a"), 90 * MIB, BURSTABLE, 100 * MIB)
    known = replace(facts("a", 100 * MIB), pod_level=lie)
    assert evictable(pod("a"), [within], known) == "it uses no more than it requests"


def test_that_a_container_is_a_sidecar_counts_once_another_one_has_its_score() -> None:
    def of(name: str, memory: Interval, used_bytes: int) -> RunningContainer:
        one = running(pod("a"), used_bytes, BURSTABLE, 0, name=name)
        spec = Interval(0, 110, "oom_score_adj", usual_low_bytes=100)
        request = replace(one.entry.decision.request, memory=memory, spec_memory=spec, score=900)
        return replace(one, entry=Entry(replace(one.entry.decision, request=request)))

    proxy = of("proxy", Interval(1, 1, BY_KUBELET), 50)
    app = of("app", Interval(105, 105, BY_KUBELET), 60)
    amounts = [("proxy", ContainerKind.SIDECAR, 1), ("app", ContainerKind.MAIN, 105)]
    containers = tuple(
        ContainerFacts(name, kind, ContainerResources(Amounts(memory_bytes=amount)))
        for name, kind, amount in amounts
    )
    known = replace(facts("a", 0), containers=containers)
    alone = replace(known, pod_level=ContainerResources(Amounts(memory_bytes=1)))
    assert evictable(pod("a"), [proxy], alone) == "it uses no more than it requests"
    both = evictable(pod("a"), [proxy, app], known)
    assert isinstance(both, EvictablePod)
    assert (both.used, both.request) == (110, 106)


def test_who_opted_out_is_left_alone() -> None:
    one = running(pod("a"), GIB)
    request = replace(one.entry.decision.request, opted_out=True)
    one = replace(one, entry=Entry(replace(one.entry.decision, request=request)))
    assert evictable(pod("a"), [one], None) == "it opted out"


def test_without_an_agent_only_best_effort_is_left() -> None:
    pods = {one.id: one for one in (pod("best"), pod("burst"))}
    both = [running(pod("best"), GIB), running(pod("burst"), 3 * GIB, BURSTABLE, GIB)]
    found, kept = candidates(both, pods, lambda _: None)
    assert [(one.name, one.qos) for one in found] == [("shop/best", BEST_EFFORT)]
    assert kept == ["shop/burst: nobody said for certain what it requests, and with which priority"]
    known = {"uid-burst": facts("burst", GIB, -1)}
    found, kept = candidates(both, pods, known.get)
    assert (chosen(*found), kept) == ("burst", [])


def test_a_pod_is_ranked_by_its_own_cgroup_with_what_ended_containers_left_in_memory() -> None:
    small, large = pod("small"), pod("large")
    both = [running(small, 300 * MIB, held={0: MIB}), running(large, 400 * MIB, held={0: 400 * MIB})]
    left = {small.id: PodMemory(900 * MIB, {0: 601 * MIB})}
    pods = {one.id: one for one in (small, large)}
    found, _ = candidates(both, pods, lambda _: None)
    assert chosen(*found) == "large"
    found, _ = candidates(both, pods, lambda _: None, memory=left)
    assert chosen(*found) == chosen(*found, node=0) == "small"
    assert {one.pod.name: one.used for one in found} == {"small": 900 * MIB, "large": 400 * MIB}
    # Its containers are within its request, and the pod is not.
    one = running(small, 300 * MIB, BURSTABLE, 400 * MIB)
    known = facts("small", 400 * MIB)
    assert evictable(small, [one], known) == "it uses no more than it requests"
    assert isinstance(evictable(small, [one], known, memory=left[small.id]), EvictablePod)


def test_without_an_agent_pods_of_the_system_are_kept() -> None:
    system = replace(pod("dns"), namespace="kube-system", cgroup_parent="/kubepods/besteffort/poddns")
    one = running(system, GIB)
    assert isinstance(kept := evictable(system, [one], None), str)
    assert "kube-system" in kept
    known = replace(facts("dns", 0, 0, BEST_EFFORT), namespace="kube-system")
    assert isinstance(evictable(system, [one], known), EvictablePod)
    # A namespace of that name outside of kubelet's tree says nothing.
    assert isinstance(evictable(replace(system, cgroup_parent="/pods"), [one], None), EvictablePod)


def test_a_pod_counts_as_a_whole_with_its_init_containers() -> None:
    owner = pod("a")
    both = [
        running(owner, 900 * MIB, BURSTABLE, 512 * MIB),
        running(owner, 10 * MIB, BURSTABLE, 512 * MIB, name="sidecar"),
    ]
    half = ContainerResources(Amounts(memory_bytes=512 * MIB))
    said = replace(
        facts("a", 512 * MIB),
        containers=(
            ContainerFacts("main", ContainerKind.MAIN, half),
            ContainerFacts("sidecar", ContainerKind.SIDECAR, half),
        ),
    )
    assert evictable(owner, both, said) == "it uses no more than it requests"
    more = [replace(both[0], used=1100 * MIB), both[1]]
    found = evictable(owner, more, said)
    assert isinstance(found, EvictablePod)
    assert (found.used, found.request) == (1110 * MIB, GIB)
    first = ContainerFacts("first", ContainerKind.INIT, ContainerResources(Amounts(memory_bytes=2 * GIB)))
    large = replace(said, containers=(first, *said.containers))
    assert evictable(owner, more, large) == "it uses no more than it requests"


def test_what_resource_claims_hold_counts_as_requested() -> None:
    web, greedy = pod("web"), pod("greedy")
    one, other = running(web, 2 * GIB), running(greedy, GIB)
    found, kept = candidates(
        [one, other],
        {each.id: each for each in (web, greedy)},
        lambda _: None,
        claimed_bytes={web.uid: 2 * GIB},
    )
    assert [each.pod.name for each in found] == ["greedy"]
    assert len(kept) == 1
    over = evictable(web, [replace(one, used=3 * GIB)], None, claimed_bytes=2 * GIB)
    assert isinstance(over, EvictablePod)
    assert over.request == 2 * GIB
