"""Pod manifests as kubelet would hand them to a runtime."""

from typing import Any

import pytest

from bayplan.errors import ConfigError
from bayplan.model.decision import QosClass, QosSource
from bayplan.model.kubelet_version import rules_of
from bayplan.model.request import derive_request
from bayplan.model.resources import Resources
from bayplan.quantity import GIB, MIB
from bayplan.simulate.manifest import GeneratedNames, describes_pods, plan_manifest, sizes_manifest
from support.machines import machine

MACHINE = machine(4, memory_bytes=64 * GIB)


def test_a_guaranteed_pod_with_init_containers_a_sidecar_and_huge_pages() -> None:
    resources = {"cpu": 2, "memory": "4Gi", "hugepages-2Mi": "64Mi"}
    small = {"cpu": "500m", "memory": "1Gi", "example.com/nic": 1}
    manifest = {
        "kind": "Pod",
        "metadata": {
            "name": "db",
            "namespace": "prod",
            "uid": "1-2",
            "annotations": {"a": ""},
            "labels": {"app": "db"},
        },
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
    assert planned.pod.labels == {"app": "db"}
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
    request = derive_request(planned.pod, planned.containers[2].container, MACHINE)
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
    request = derive_request(web.pod, web.containers[0].container, MACHINE)
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


@pytest.mark.parametrize(
    "manifest",
    [
        {"kind": "Pod", "metadata": {"name": "p"}},
        {"kind": "Pod", "metadata": "x", "spec": {"containers": []}},
        {
            "kind": "JobSet",
            "metadata": {"name": "p", "namespace": 3},
            "spec": [{"template": {"spec": {"containers": [{"name": "c"}]}}} for _ in range(2)],
        },
    ],
)
def test_no_mistake_is_named_twice(manifest: object) -> None:
    with pytest.raises(ConfigError) as caught:
        plan_manifest(manifest, MACHINE)
    assert len(set(caught.value.problems)) == len(caught.value.problems)


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
    request = derive_request(planned.pod, planned.containers[0].container, MACHINE)
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
    request = derive_request(planned.pod, planned.containers[0].container, MACHINE)
    assert request.qos is qos


# --- names that the API server would generate, and templates of any kind ---


def template(*names: str, **metadata: object) -> dict[str, Any]:
    containers = [{"name": name, "resources": {"limits": {"cpu": 1, "memory": "1Gi"}}} for name in names]
    return {"metadata": metadata, "spec": {"containers": containers or [{"name": "c"}]}}


def names_of(manifest: object, most_replicas: int | None = None) -> list[str]:
    return [pod.name for pod in plan_manifest(manifest, MACHINE, most_replicas=most_replicas)]


@pytest.mark.parametrize("kind", ["Pod", "Job", "Deployment", "ReplicaSet", "StatefulSet", "DaemonSet"])
def test_a_name_may_be_left_to_the_api_server(kind: str) -> None:
    inner = template("c", labels={"a": "b"})
    spec = inner["spec"] if kind == "Pod" else {"template": inner}
    manifest = {"kind": kind, "metadata": {"generateName": "run-", "namespace": "ci"}, "spec": spec}
    names = GeneratedNames()
    planned = [pod for _ in range(2) for pod in plan_manifest(manifest, MACHINE, names=names)]
    assert [pod.name for pod in planned] == ["ci/run-1", "ci/run-2"]
    assert len({pod.pod.uid for pod in planned}) == 2
    assert names_of({"kind": "List", "items": [manifest, manifest]}) == ["ci/run-1", "ci/run-2"]
    with pytest.raises(ConfigError, match=r"metadata\.name"):
        plan_manifest({**manifest, "metadata": {"generateName": ""}}, MACHINE)


@pytest.mark.parametrize(
    ("kind", "spec", "pods"),
    [
        ("ReplicationController", {"replicas": 2, "template": template()}, ["x-1", "x-2"]),
        ("Job", {"parallelism": 3, "completions": 9, "template": template()}, ["x-1", "x-2", "x-3"]),
        ("CronJob", {"jobTemplate": {"spec": {"parallelism": 2, "template": template()}}}, ["x-1", "x-2"]),
        ("Rollout", {"replicas": 1, "template": template()}, ["x-1"]),
        (
            "JobSet",
            {"replicatedJobs": [
                {"name": "driver", "template": {"spec": {"template": template()}}},
                {"name": "workers", "replicas": 2,
                 "template": {"spec": {"parallelism": 2, "template": template()}}},
            ]},
            ["x-driver", "x-workers-1", "x-workers-2", "x-workers-3", "x-workers-4"],
        ),
        (
            "MPIJob",
            {"mpiReplicaSpecs": {"Launcher": {"replicas": 1, "template": template()},
                                 "Worker": {"replicas": 2, "template": template()}}},
            ["x-launcher-1", "x-worker-1", "x-worker-2"],
        ),
        (
            "RayCluster",
            {"headGroupSpec": {"template": template()},
             "workerGroupSpecs": [{"groupName": "gpu", "replicas": 1, "template": template()},
                                  {"groupName": "gpu", "replicas": 1, "template": template()}]},
            ["x-headgroupspec", "x-gpu-1", "x-gpu-2-1"],
        ),
        ("LeaderWorkerSet",
         {"leaderWorkerTemplate": {"leaderTemplate": template(), "workerTemplate": template()}},
         ["x-leaderworkertemplate", "x-leaderworkertemplate-2"]),
    ],
)  # fmt: skip
def test_pod_templates_are_found_in_objects_of_any_kind(kind: str, spec: object, pods: list[str]) -> None:
    manifest = {"kind": kind, "metadata": {"name": "x"}, "spec": spec}
    assert [name.removeprefix("default/") for name in names_of(manifest, 10)] == pods
    assert describes_pods(manifest)


def test_a_pod_template_and_lists_of_the_api_without_kinds() -> None:
    assert names_of({"kind": "PodTemplate", "metadata": {"name": "t"}, "template": template()}) == [
        "default/t"
    ]
    pod = {"metadata": {"name": "p"}, "spec": template()["spec"]}
    assert names_of({"kind": "PodList", "items": [pod]}) == ["default/p"]
    deployment = {"metadata": {"name": "d"}, "spec": {"template": template()}}
    assert names_of({"kind": "DeploymentList", "items": [deployment]}) == ["default/d"]


def test_the_annotations_of_a_template_are_those_of_its_pods() -> None:
    spec = {"template": template("c", annotations={"bayplan.dev/opt-out": "true"}, name="ignored")}
    (planned,) = plan_manifest({"kind": "Job", "metadata": {"name": "j"}, "spec": spec}, MACHINE)
    assert planned.name == "default/j"
    assert planned.pod.annotations == {"bayplan.dev/opt-out": "true"}


def test_what_is_wrong_with_a_template_is_named_by_its_path() -> None:
    job = {"kind": "Job", "metadata": {"name": "j"}, "spec": {"template": {"spec": {}}}}
    jobs = [{"replicas": "two", "template": {"spec": {"template": {"spec": {"containers": [{}]}}}}}]
    several = {"kind": "JobSet", "metadata": {"name": "s"}, "spec": {"replicatedJobs": jobs}}
    for manifest, path in (
        (job, "spec.template.spec.containers"),
        (several, "spec.replicatedJobs[0].template.spec.template.spec.containers[0].name"),
        (several, "spec.replicatedJobs[0].replicas"),
    ):
        with pytest.raises(ConfigError) as caught:
            plan_manifest(manifest, MACHINE, most_replicas=10)
        assert path in [problem.path for problem in caught.value.problems]


def test_templates_without_containers_are_none() -> None:
    secret = {"kind": "ExternalSecret", "spec": {"target": {"template": {"metadata": {}, "spec": {}}}}}
    machine_set = {"kind": "MachineSet", "spec": {"template": {"spec": {"providerSpec": {}}}}}
    assert not describes_pods(secret)
    assert not describes_pods(machine_set)


def test_the_class_of_a_pod_is_that_of_its_kubelet() -> None:
    """``resources: {}`` of a pod made it BestEffort before 1.37."""
    manifest = sizes_manifest("p", memory="1Gi", cpus="1")
    manifest["spec"]["resources"] = {}
    del manifest["status"]
    parents = [
        plan_manifest(manifest, MACHINE, kubelet=rules_of(minor))[0].pod.cgroup_parent.split("/")[:3]
        for minor in (36, 37)
    ]
    assert [parts[2] for parts in parents] == ["besteffort", parents[1][2]]
    assert parents[1][2].startswith("pod")
