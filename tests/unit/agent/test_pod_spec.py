"""Pods as Kubernetes writes them, in protobuf and JSON: the same from both, and nothing from garbage."""

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayplan.agent.kubelet_pods import pod_of_bytes, pod_of_object, pods_of_json
from bayplan.errors import ParseError
from bayplan.model.decision import QosClass
from bayplan.model.kubelet_requests import (
    Amounts,
    ContainerKind,
    ContainerResources,
    promised_bytes,
    requested_bytes,
)
from bayplan.quantity import GIB, MIB
from support.fake_kubelet import RECORDED, recorded

NAMES = ["burstable", "as-a-whole", "resizing", "guaranteed", "best-effort", "critical"]
PODS = {name: pod_of_bytes(recorded(name)) for name in NAMES}


def test_what_is_asked_of_the_disk() -> None:
    requests = {"ephemeral-storage": "1Gi"}
    facts = pod_of_object(
        {
            "metadata": {"uid": "u", "namespace": "shop", "name": "web"},
            "spec": {"containers": [{"name": "main", "resources": {"requests": requests}}]},
        }
    )
    (main,) = facts.containers
    assert main.allocated.requests == Amounts(ephemeral_storage_bytes=GIB)
    # It makes no class: kubelet's classes are of memory and CPUs.
    assert facts.qos is QosClass.BEST_EFFORT


def test_protobuf_and_json_say_the_same() -> None:
    assert pods_of_json((RECORDED / "pods.json").read_bytes()) == (list(PODS.values()), [])


def test_a_burstable_pod_with_init_container_and_sidecar() -> None:
    pod = PODS["burstable"]
    assert (pod.uid, pod.namespace, pod.name) == ("uid-burstable", "default", "burstable")
    assert (pod.qos, pod.priority, pod.resized) == (QosClass.BURSTABLE, 1000, False)
    kinds = {one.name: one.kind for one in pod.containers}
    assert kinds == {
        "setup": ContainerKind.INIT,
        "sidecar": ContainerKind.SIDECAR,
        "main": ContainerKind.MAIN,
        "small": ContainerKind.MAIN,
    }
    main = pod.container("main")
    assert main is not None
    assert main.allocated.requests == Amounts(1500, 300 * MIB, {"hugepages-2Mi": 64 * MIB})
    assert main.allocated.limits == Amounts(None, GIB, {"hugepages-2Mi": 64 * MIB})
    assert main.desired is None
    small = pod.container("small")
    assert small is not None
    assert small.allocated.requests == Amounts(100, 1_000_000)


def test_a_pod_with_resources_as_a_whole() -> None:
    pod = PODS["as-a-whole"]
    assert pod.pod_level == ContainerResources(Amounts(2000, 4 * GIB), Amounts(None, 8 * GIB))
    assert [one.allocated.requests for one in pod.containers] == [Amounts(1000, GIB), Amounts()]


def test_a_limit_of_the_pod_that_kubelet_reports_of_a_container_is_not_its_request() -> None:
    """Of a running container kubelet reports the limit of its cgroup (kubelet_pods.go,
    convertContainerStatusResources): where it has none of its own, with an empty table, that of the pod."""
    limit = {"limits": {"memory": "301Mi"}}
    facts = pod_of_object(
        {
            "metadata": {"uid": "u", "namespace": "shop", "name": "web"},
            "spec": {
                "containers": [
                    {"name": "some", "resources": {"requests": {"memory": "47Mi"}, "limits": {}}},
                    {"name": "none", "resources": {"requests": {}, "limits": {}}},
                ],
                "resources": {"requests": {"memory": "203Mi"}, **limit},
            },
            "status": {
                "qosClass": "Burstable",
                "containerStatuses": [
                    {"name": "some", "allocatedResources": {"memory": "47Mi"}, "resources": limit},
                    {"name": "none", "resources": limit},
                ],
            },
        }
    )
    assert [requested_bytes(one.allocated) for one in facts.containers] == [47 * MIB, 0]
    assert [promised_bytes(facts, one, one.allocated) for one in facts.containers] == [125 * MIB, 78 * MIB]


def test_a_resize_under_way_has_what_is_allocated_and_what_is_desired() -> None:
    (one,) = PODS["resizing"].containers
    assert PODS["resizing"].resized
    assert one.allocated == ContainerResources(Amounts(100, 300 * MIB), Amounts(None, GIB))
    assert one.desired == ContainerResources(Amounts(200, 500 * MIB), Amounts(None, 2 * GIB))


def test_a_class_that_is_not_told_yet_follows_from_the_resources() -> None:
    classes = {name: pod.qos for name, pod in PODS.items()}
    assert classes["guaranteed"] is QosClass.GUARANTEED
    assert classes["best-effort"] is QosClass.BEST_EFFORT
    assert classes["critical"] is QosClass.BURSTABLE


def requesting(memory: str) -> dict[str, object]:
    """The specification of a pod that requests so much."""
    return {"containers": [{"name": "d", "resources": {"requests": {"memory": memory}}}]}


@pytest.mark.parametrize(
    ("text", "word"),
    [
        (b"", "PodList"),
        (b"\xff", "PodList"),
        (b"[]", "PodList"),
        (b'{"items":[1]}', "PodList"),
        (b"[" * 100_000, "PodList"),
    ],
)
def test_what_is_no_list_of_pods_is_one_error(text: bytes, word: str) -> None:
    with pytest.raises(ParseError, match=word):
        pods_of_json(text)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        pytest.param({"metadata": {"name": "a", "namespace": "b"}}, "length", id="without a uid"),
        pytest.param({"metadata": {"name": "a" * 300, "namespace": "b", "uid": "c"}}, "253", id="long name"),
        pytest.param({"spec": {"containers": "none"}}, "v1.Pod", id="another shape"),
        pytest.param({"spec": requesting("much")}, "quantity", id="no quantity"),
        pytest.param({"spec": requesting("-1")}, "memory", id="negative"),
        pytest.param({"spec": {"containers": [{"name": str(n)} for n in range(600)]}}, "512", id="too many"),
        pytest.param({"status": {"qosClass": "Platinum"}}, "Platinum", id="unknown class"),
    ],
)
def test_an_odd_pod_is_reported_and_hides_no_other(changes: dict[str, object], word: str) -> None:
    good = {"metadata": {"name": "a", "namespace": "b", "uid": "c"}, "spec": {"containers": [{"name": "d"}]}}
    (pod,), (problem,) = pods_of_json(json.dumps({"items": [good | changes, good]}).encode())
    assert pod.uid == "c"
    assert word in str(problem)


def test_no_pods_are_no_error() -> None:
    assert pods_of_json(b'{"kind":"PodList","items":null}') == ([], [])


@given(st.binary(max_size=200))
def test_garbage_is_an_error_and_nothing_worse(garbage: bytes) -> None:
    for read in (pod_of_bytes, pods_of_json):
        try:
            read(garbage)
        except ParseError:
            continue


@given(st.integers(0, 1 << 32))
def test_a_damaged_pod_is_an_error_or_a_pod(seed: int) -> None:
    damage = random.Random(seed)
    encoded = bytearray(recorded("burstable"))
    for _ in range(damage.randint(1, 5)):
        encoded[damage.randrange(len(encoded))] = damage.randrange(256)
    try:
        pod_of_bytes(bytes(encoded))
    except ParseError:
        return
