"""What the engines leave in a spec, as recorded from real ones, becomes the pod and the container it is."""

import json
from typing import Any

import pytest

from bayplan.model.decision import MemoryPolicyMode, MemoryPolicySetting
from bayplan.model.resources import Resources
from bayplan.oci.documents import OciError, Spec, parse_spec
from bayplan.oci.workloads import (
    container_engine_of,
    container_from,
    id_in_cgroups_path,
    is_sandbox,
    pod_from,
    sandbox_id,
)
from bayplan.quantity import GIB, MIB
from bayplan.sets import CpuSet, NodeSet

CONTAINER, SANDBOX = "6d" * 32, "f0" * 32
UID = "4a7cfb2c-8d2e-4a43-bd12-0a4f1c1b3a55"

CRIO_CONTAINER = {
    "io.container.manager": "cri-o",
    "io.kubernetes.container.hash": "5c1a2f1b",
    "io.kubernetes.container.name": "main",
    "io.kubernetes.container.restartCount": "0",
    "io.kubernetes.cri-o.Annotations": '{"io.kubernetes.container.hash":"5c1a2f1b"}',
    "io.kubernetes.cri-o.ContainerID": CONTAINER,
    "io.kubernetes.cri-o.ContainerType": "container",
    "io.kubernetes.cri-o.Labels": json.dumps(
        {"io.kubernetes.container.name": "main", "io.kubernetes.pod.name": "p1", "io.kubernetes.pod.uid": UID}
    ),
    "io.kubernetes.cri-o.Metadata": '{"name":"main"}',
    "io.kubernetes.cri-o.Name": f"k8s_main_p1_default_{UID}_0",
    "io.kubernetes.cri-o.SandboxID": SANDBOX,
    "io.kubernetes.cri-o.SandboxName": f"k8s_p1_default_{UID}_0",
    "io.kubernetes.pod.name": "p1",
    "io.kubernetes.pod.namespace": "default",
    "io.kubernetes.pod.uid": UID,
    "kubernetes.io/config.source": "api",
    "bayplan.dev/memory-limit": "64Mi",
}
CRIO_SANDBOX = {
    "io.container.manager": "cri-o",
    "io.kubernetes.cri-o.Annotations": '{"kubernetes.io/config.source":"api","bayplan.dev/nodes":"1"}',
    "io.kubernetes.cri-o.CgroupParent": "kubepods-burstable-pod4a7c.slice",
    "io.kubernetes.cri-o.ContainerType": "sandbox",
    "io.kubernetes.cri-o.Labels": '{"app":"web","io.kubernetes.pod.name":"p1"}',
    "io.kubernetes.cri-o.Metadata": json.dumps({"name": "p1", "uid": UID, "namespace": "default"}),
    "io.kubernetes.cri-o.NamespaceOptions": '{"pid":1}',
    "pod-linux-overhead.crio.io": "null",
    "pod-linux-resources.crio.io": '{"cpu_period":100000,"cpu_quota":50000,"cpu_shares":256,'
    '"memory_limit_in_bytes":134217728}',
}
CONTAINERD_CONTAINER = {
    "io.kubernetes.cri.container-name": "main",
    "io.kubernetes.cri.container-type": "container",
    "io.kubernetes.cri.image-name": "docker.io/library/busybox:1",
    "io.kubernetes.cri.sandbox-id": SANDBOX,
    "io.kubernetes.cri.sandbox-name": "p1",
    "io.kubernetes.cri.sandbox-namespace": "default",
    "io.kubernetes.cri.sandbox-uid": UID,
}
CONTAINERD_SANDBOX = {
    "io.kubernetes.cri.container-type": "sandbox",
    "io.kubernetes.cri.sandbox-cpu-period": "100000",
    "io.kubernetes.cri.sandbox-cpu-quota": "50000",
    "io.kubernetes.cri.sandbox-cpu-shares": "256",
    "io.kubernetes.cri.sandbox-id": SANDBOX,
    "io.kubernetes.cri.sandbox-memory": "134217728",
}
PODMAN = {
    "io.container.manager": "libpod",
    "io.podman.annotations.autoremove": "TRUE",
    "org.opencontainers.image.stopSignal": "15",
    "bayplan.dev/memory-limit": "64Mi",
}
PODMAN_IN_POD = {
    **PODMAN,
    "io.kubernetes.cri-o.ContainerType": "container",
    "io.kubernetes.cri-o.SandboxID": SANDBOX,
}
POD_RESOURCES = Resources(
    memory_limit_bytes=128 * MIB, cpu_shares=256, cpu_quota_us=50_000, cpu_period_us=100_000
)


def read(annotations: dict[str, str], cgroups_path: str = "", **linux: Any) -> Spec:
    document = {
        "annotations": annotations,
        "process": {"oomScoreAdj": 987},
        "linux": {"cgroupsPath": cgroups_path, **linux},
    }
    return parse_spec(json.dumps(document).encode(), "config.json")


@pytest.mark.parametrize(
    ("own", "sandbox", "manager"),
    [
        (CRIO_CONTAINER, CRIO_SANDBOX, "cri-o"),
        (CONTAINERD_CONTAINER, CONTAINERD_SANDBOX, "containerd"),
    ],
)
def test_a_pod_of_kubernetes(own: dict[str, str], sandbox: dict[str, str], manager: str) -> None:
    spec = read(own, f"kubepods-burstable-pod4a7c.slice:crio:{CONTAINER}")
    pod, container = pod_from(spec, CONTAINER, sandbox), container_from(spec, CONTAINER, 77)
    assert (pod.id, pod.name, pod.namespace, pod.uid) == (SANDBOX, "p1", "default", UID)
    assert pod.cgroup_parent == "kubepods-burstable-pod4a7c.slice"
    assert pod.resources == POD_RESOURCES
    assert (container.id, container.pod_id, container.name, container.pid) == (CONTAINER, SANDBOX, "main", 77)
    assert container.oom_score_adj == 987
    assert container_engine_of(spec) == manager
    assert not is_sandbox(spec)
    assert is_sandbox(read(sandbox))
    # Without the sandbox, everything but the sums is still known.
    alone = pod_from(spec, CONTAINER, {})
    assert (alone.name, alone.cgroup_parent) == ("p1", "kubepods-burstable-pod4a7c.slice")
    assert alone.resources == Resources()


def test_crio_has_the_pods_annotations_and_labels() -> None:
    pod = pod_from(read(CRIO_CONTAINER), CONTAINER, CRIO_SANDBOX)
    assert pod.annotations["bayplan.dev/memory-limit"] == "64Mi"
    assert pod.annotations["bayplan.dev/nodes"] == "1"
    assert pod.labels["app"] == "web"


def test_a_pod_made_with_crictl_has_its_names_in_metadata_only() -> None:
    own = {key: value for key, value in CRIO_CONTAINER.items() if not key.startswith("io.kubernetes.pod")}
    own = {key: value for key, value in own.items() if key != "io.kubernetes.container.name"}
    own["io.kubernetes.cri-o.Labels"] = "{}"
    spec = read(own)
    pod, container = pod_from(spec, CONTAINER, CRIO_SANDBOX), container_from(spec, CONTAINER)
    assert (pod.name, pod.namespace, container.name) == ("p1", "default", "main")


@pytest.mark.parametrize(
    ("annotations", "pod_id"), [(PODMAN, CONTAINER), (PODMAN_IN_POD, SANDBOX), ({}, CONTAINER)]
)
def test_podman_and_docker_outside_and_inside_of_pods(annotations: dict[str, str], pod_id: str) -> None:
    spec = read(annotations, f"machine.slice:libpod:{CONTAINER}")
    pod, container = pod_from(spec, CONTAINER, {}), container_from(spec, CONTAINER)
    assert (pod.id, container.pod_id, pod.cgroup_parent) == (pod_id, pod_id, "machine.slice")
    assert pod.annotations == annotations
    assert sandbox_id(spec) == (SANDBOX if pod_id == SANDBOX else "")
    assert container_engine_of(spec) == ("libpod" if annotations else "")


@pytest.mark.parametrize(
    "path",
    [
        f"machine-libpod_pod_{SANDBOX}.slice:libpod:{CONTAINER}",
        f"/libpod_parent/{SANDBOX}/libpod-{CONTAINER}",
    ],
)
def test_a_pods_own_container_of_podmans_is_the_one_without_the_pods_id(path: str) -> None:
    assert is_sandbox(read({"io.container.manager": "libpod"}, path))
    assert not is_sandbox(read(PODMAN_IN_POD, path))
    assert not is_sandbox(read({}, path))
    assert not is_sandbox(read(PODMAN, f"machine.slice:libpod:{CONTAINER}"))
    assert not is_sandbox(read(PODMAN, f"/libpod_parent/libpod-{CONTAINER}"))


@pytest.mark.parametrize(
    ("path", "expected", "parent"),
    [
        (f"machine.slice:libpod:{CONTAINER}", CONTAINER, "machine.slice"),
        (f"/libpod_parent/libpod-{CONTAINER}", CONTAINER, "/libpod_parent"),
        (f"/system.slice/x.service/libpod-payload-{CONTAINER}", CONTAINER, "/system.slice/x.service"),
        (f"/kubepods/burstable/pod1/{CONTAINER}", CONTAINER, "/kubepods/burstable/pod1"),
        (f"/kubepods/pod1/crio-{CONTAINER}", CONTAINER, "/kubepods/pod1"),
        ("/kubepods/pod1/name", None, "/kubepods/pod1"),
        ("machine.slice:libpod:short", None, "machine.slice"),
        ("", None, ""),
    ],
)
def test_the_id_and_the_parent_in_the_path_of_a_cgroup(path: str, expected: str | None, parent: str) -> None:
    spec = read({}, path)
    assert id_in_cgroups_path(spec) == expected
    assert pod_from(spec, "x", {}).cgroup_parent == parent


def test_resources_with_zero_and_empty_as_unset() -> None:
    spec = read(
        {},
        resources={
            "cpu": {"shares": 512, "quota": -1, "period": 0, "cpus": "0-1", "mems": ""},
            "memory": {"limit": GIB, "swap": GIB},
            "hugepageLimits": [
                {"pageSize": "2MB", "limit": 4 * MIB},
                {"pageSize": "1GB", "limit": 2**64 - 4096},
            ],
            "unified": {"memory.high": "5"},
        },
    )
    resources = container_from(spec, CONTAINER).resources
    assert resources == Resources(
        memory_limit_bytes=GIB,
        cpu_shares=512,
        cpu_quota_us=-1,
        cpuset_cpus=CpuSet([0, 1]),
        hugepage_limits_bytes={2 * MIB: 4 * MIB},
        unified={"memory.high": "5"},
        memory_swap_bytes=GIB,
    )
    unlimited = read({}, resources={"memory": {"limit": -1}, "cpu": None, "unified": None})
    assert container_from(unlimited, CONTAINER).resources == Resources(memory_limit_bytes=-1)
    both = read({}, resources={"cpu": {"cpus": "3", "mems": "1"}})
    assert container_from(both, CONTAINER).resources.cpuset_mems == NodeSet([1])


@pytest.mark.parametrize(
    ("resources", "field"),
    [
        ({"cpu": {"cpus": "a"}}, "linux.resources.cpu.cpus"),
        ({"cpu": {"mems": "3-1"}}, "linux.resources.cpu.mems"),
        ({"hugepageLimits": [{"pageSize": "2 apples"}]}, "linux.resources.hugepageLimits[0].pageSize"),
        ({"unified": {"cpuset.cpus": "3-1"}}, "linux.resources.unified[cpuset.cpus]"),
        ({"unified": {"memory.max": "8 GB"}}, "linux.resources.unified[memory.max]"),
        ({"unified": {"cpu.max": "all"}}, "linux.resources.unified[cpu.max]"),
        ({"unified": {"cpu.weight": "0"}}, "linux.resources.unified[cpu.weight]"),
        ({"unified": {"hugetlb.2MB.max": "some"}}, "linux.resources.unified[hugetlb.2MB.max]"),
    ],
)
def test_a_field_that_cannot_be_read_is_named(resources: dict[str, Any], field: str) -> None:
    with pytest.raises(OciError) as caught:
        container_from(read({}, resources=resources), CONTAINER)
    assert caught.value.subject == field


@pytest.mark.parametrize(
    ("linux", "path"),
    [
        ({"resources": 1}, "$.linux.resources"),
        ({"resources": {"memory": {"limit": "1"}}}, "$.linux.resources.memory.limit"),
        ({"resources": {"unified": {"memory.high": 5}}}, "$.linux.resources.unified[memory.high]"),
        ({"resources": {"hugepageLimits": [{}]}}, "$.linux.resources.hugepageLimits[0]"),
        ({"cgroupsPath": 5}, "$.linux.cgroupsPath"),
        ({"namespaces": [{}]}, "$.linux.namespaces[0]"),
        ({"devices": [{"major": "8"}]}, "$.linux.devices[0].major"),
    ],
)
def test_a_field_of_another_type_is_named(linux: dict[str, Any], path: str) -> None:
    with pytest.raises(OciError) as caught:
        parse_spec(json.dumps({"linux": linux}).encode(), "config.json")
    assert caught.value.subject == "config.json"
    assert path in caught.value.problem


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ({"mode": "MPOL_DEFAULT"}, MemoryPolicySetting(MemoryPolicyMode.DEFAULT)),
        ({"mode": "MPOL_LOCAL", "nodes": ""}, MemoryPolicySetting(MemoryPolicyMode.LOCAL)),
        (
            {"mode": "MPOL_BIND", "nodes": "0", "flags": ["MPOL_F_NUMA_BALANCING", "MPOL_F_RELATIVE_NODES"]},
            MemoryPolicySetting(MemoryPolicyMode.BIND, NodeSet([0]), ("numa_balancing", "relative_nodes")),
        ),
        (
            {"mode": "MPOL_INTERLEAVE", "nodes": "2-3", "flags": ["MPOL_F_STATIC_NODES"]},
            MemoryPolicySetting(MemoryPolicyMode.INTERLEAVE, NodeSet([2, 3]), ("static_nodes",)),
        ),
        (None, None),
    ],
)
def test_memory_policies_as_the_specification_and_the_runtimes_tests_have_them(
    written: dict[str, Any] | None, expected: MemoryPolicySetting | None
) -> None:
    document = json.dumps({"linux": {"memoryPolicy": written}}).encode()
    assert container_from(parse_spec(document, "config.json"), CONTAINER).memory_policy == expected
