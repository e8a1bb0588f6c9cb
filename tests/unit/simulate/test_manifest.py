"""Pod manifests as kubelet would hand them to a runtime."""

import pytest

from bayplan.errors import ConfigError
from bayplan.model.decision import QosClass, QosSource
from bayplan.model.request import derive_request
from bayplan.model.workload import Resources
from bayplan.quantity import GIB, MIB
from bayplan.simulate.manifest import plan_manifest, sizes_manifest
from support.machines import machine

MACHINE = machine(4, memory_bytes=64 * GIB)


def test_a_guaranteed_pod_with_init_containers_a_sidecar_and_huge_pages() -> None:
    resources = {"cpu": 2, "memory": "4Gi", "hugepages-2Mi": "64Mi"}
    small = {"cpu": "500m", "memory": "1Gi", "example.com/nic": 1}
    manifest = {
        "kind": "Pod",
        "metadata": {"name": "db", "namespace": "prod", "uid": "1-2", "annotations": {"a": ""}},
        "spec": {
            "initContainers": [
                {"name": "prepare", "resources": {"limits": small}},
                {"name": "proxy", "restartPolicy": "Always", "resources": {"limits": small}},
            ],
            "containers": [{"name": "db", "resources": {"requests": resources, "limits": resources}}],
        },
    }
    (planned,) = plan_manifest(manifest, MACHINE, "x:")
    assert planned.name == "prod/db"
    assert planned.pod.cgroup_parent == "/kubepods/pod1-2"
    assert planned.pod.annotations == {"a": ""}
    assert [(one.container.id, one.ends) for one in planned.containers] == [
        ("x:prod/db/prepare", True),
        ("x:prod/db/proxy", False),
        ("x:prod/db/db", False),
    ]
    assert planned.containers[2].container.resources == Resources(
        memory_limit_bytes=4 * GIB,
        cpu_shares=2048,
        cpu_quota_us=200_000,
        cpu_period_us=100_000,
        hugepage_limits_bytes={2 * MIB: 64 * MIB},
    )
    request = derive_request(planned.pod, planned.containers[2].container, MACHINE.memory_bytes)
    assert (request.qos, request.qos_source) == (QosClass.GUARANTEED, QosSource.CGROUP_PARENT)
    assert (request.exclusive_cpus, request.hugepages_bytes) == (2, {"hugepages-2Mi": 64 * MIB})
    assert request.pod_totals is not None
    assert request.pod_totals.memory_bytes == 5 * GIB


def test_a_deployment_is_one_of_its_pods_and_a_list_all_of_them() -> None:
    deployment = {
        "kind": "Deployment",
        "metadata": {"name": "web"},
        "spec": {
            "template": {
                "spec": {"containers": [{"name": "c", "resources": {"requests": {"memory": "2Gi"}}}]}
            }
        },
    }
    cron = {
        "kind": "CronJob",
        "metadata": {"name": "night"},
        "spec": {"jobTemplate": {"spec": {"template": {"spec": {"containers": [{"name": "c"}]}}}}},
    }
    web, night = plan_manifest({"kind": "List", "items": [deployment, cron]}, MACHINE)
    request = derive_request(web.pod, web.containers[0].container, MACHINE.memory_bytes)
    assert (web.name, request.qos) == ("default/web", QosClass.BURSTABLE)
    assert not request.memory.exact
    assert request.memory.low_bytes <= 2 * GIB <= request.memory.high_bytes
    assert night.pod.cgroup_parent == "/kubepods/besteffort/poddefault-night"


def test_every_mistake_is_named_by_its_path() -> None:
    manifest = {
        "metadata": {"name": "p", "annotations": {"a": 1}},
        "spec": {
            "containers": [{"resources": {"limits": {"memory": "lots", "cpu": -1}}}],
            "initContainers": {"name": "x"},
        },
        "status": {"qosClass": "Best"},
    }
    with pytest.raises(ConfigError) as caught:
        plan_manifest(manifest, MACHINE)
    assert [problem.path for problem in caught.value.problems] == [
        "spec.containers[0].resources.limits.memory",
        "spec.containers[0].resources.limits.cpu",
        "spec.containers[0].name",
        "spec.initContainers",
        "metadata.annotations.a",
        "status.qosClass",
    ]


@pytest.mark.parametrize(("manifest", "path"), [("text", "manifest"), ({"metadata": {}}, "spec")])
def test_what_is_no_manifest_is_said_to_be_none(manifest: object, path: str) -> None:
    with pytest.raises(ConfigError) as caught:
        plan_manifest(manifest, MACHINE)
    assert path in [problem.path for problem in caught.value.problems]


def test_what_has_no_pods_is_passed_over_in_a_list_and_named_alone() -> None:
    service = {"kind": "Service", "metadata": {"name": "web"}, "spec": {"ports": [{"port": 80}]}}
    pod = {"kind": "Pod", **sizes_manifest("web", memory="1Gi")}
    settings = {"kind": "ConfigMap", "metadata": {"name": "web"}}
    (planned,) = plan_manifest({"kind": "List", "items": [service, pod, settings]}, MACHINE)
    assert planned.name == "default/web"
    with pytest.raises(
        ConfigError, match="kind: found 'Service', expected Pod, or a kind with a pod template"
    ):
        plan_manifest(service, MACHINE)


@pytest.mark.parametrize(
    ("name", "full"),
    [("p", "default/p/main"), ("n/p", "n/p/main"), ("n/p/c", "n/p/c")],
)
def test_sizes_make_a_pod_of_one_container(name: str, full: str) -> None:
    manifest = sizes_manifest(name, memory="1Gi", cpus="2", annotations={"bayplan.dev/opt-out": "true"})
    (planned,) = plan_manifest(manifest, MACHINE)
    request = derive_request(planned.pod, planned.containers[0].container, MACHINE.memory_bytes)
    assert (request.name, request.qos, request.exclusive_cpus) == (full, QosClass.GUARANTEED, 2)
    assert planned.pod.annotations == {"bayplan.dev/opt-out": "true"}


@pytest.mark.parametrize(
    ("sizes", "qos"),
    [
        ({"memory": "1Gi", "cpus": "1"}, QosClass.GUARANTEED),
        ({"memory": "1Gi", "cpus": "1", "memory_limit": "2Gi"}, QosClass.BURSTABLE),
        ({"memory": "1Gi"}, QosClass.BURSTABLE),
        ({"memory_limit": "1Gi"}, QosClass.BURSTABLE),
        ({"memory": "1Gi", "qos": "Guaranteed"}, QosClass.GUARANTEED),
        ({"qos": "BestEffort"}, QosClass.BEST_EFFORT),
        ({"memory": "1Gi", "cpus": "1", "qos": "Burstable"}, QosClass.BURSTABLE),
    ],
)
def test_the_class_of_sizes(sizes: dict[str, str], qos: QosClass) -> None:
    (planned,) = plan_manifest(sizes_manifest("p", **sizes), MACHINE)
    request = derive_request(planned.pod, planned.containers[0].container, MACHINE.memory_bytes)
    assert request.qos is qos
