"""Pods and containers as a runtime would describe them over NRI, in the shape that kubelet gives them."""

from collections.abc import Mapping
from typing import Final
from uuid import NAMESPACE_DNS, uuid5

from bayplan._proto.nri import api_pb2 as pb

GUARANTEED: Final = "guaranteed"
BURSTABLE: Final = "burstable"
BEST_EFFORT: Final = "besteffort"


def make_pod(
    name: str = "web",
    *,
    namespace: str = "default",
    qos: str = BURSTABLE,
    annotations: Mapping[str, str] | None = None,
    cgroup_parent: str | None = None,
) -> pb.PodSandbox:
    """A pod of kubelet with the systemd cgroup driver; *cgroup_parent* of ``""`` makes it one of crictl."""
    uid = str(uuid5(NAMESPACE_DNS, f"{name}.{namespace}"))
    if cgroup_parent is None:
        below = "kubepods.slice" if qos == GUARANTEED else f"kubepods.slice/kubepods-{qos}.slice"
        prefix = "kubepods" if qos == GUARANTEED else f"kubepods-{qos}"
        cgroup_parent = f"/{below}/{prefix}-pod{uid.replace('-', '_')}.slice"
    pod = pb.PodSandbox(
        id=f"sandbox-{namespace}-{name}", name=name, namespace=namespace, uid=uid, annotations=annotations
    )
    pod.linux.cgroup_parent = cgroup_parent
    # kubelet sends the wrappers also when there is nothing in them.
    resources = pod.linux.pod_resources
    resources.memory.limit.value = 0
    resources.cpu.shares.value = 2
    resources.cpu.quota.value = 0
    resources.cpu.period.value = 100_000
    return pod


def make_container(
    pod: pb.PodSandbox,
    name: str = "main",
    *,
    memory_limit_bytes: int | None = None,
    cpu_shares: int | None = None,
    cpu_quota_us: int | None = None,
    oom_score_adj: int | None = None,
    hugepages_bytes: Mapping[str, int] | None = None,
    ballast_bytes: int = 0,
) -> pb.Container:
    """A container of *pod*; *ballast_bytes* of environment, mounts and seccomp policy make it as large as
    real ones are."""
    identity = f"{pod.id}-{name}"
    container = pb.Container(
        id=identity,
        pod_sandbox_id=pod.id,
        name=name,
        labels={
            "io.kubernetes.container.name": name,
            "io.kubernetes.pod.name": pod.name,
            "io.kubernetes.pod.namespace": pod.namespace,
            "io.kubernetes.pod.uid": pod.uid,
        },
        annotations={
            "io.kubernetes.container.hash": "5d3f2a1c",
            "io.kubernetes.container.restartCount": "0",
            "io.kubernetes.cri.container-type": "container",
            "io.kubernetes.cri.sandbox-id": pod.id,
        },
        args=["/bin/server", "--listen", ":8080"],
    )
    resources = container.linux.resources
    if memory_limit_bytes is not None:
        resources.memory.limit.value = memory_limit_bytes
    if cpu_shares is not None:
        resources.cpu.shares.value = cpu_shares
    if cpu_quota_us is not None:
        resources.cpu.quota.value = cpu_quota_us
        resources.cpu.period.value = 100_000
    for page_size, limit_bytes in (hugepages_bytes or {}).items():
        resources.hugepage_limits.add(page_size=page_size, limit=limit_bytes)
    if oom_score_adj is not None:
        container.linux.oom_score_adj.value = oom_score_adj
    container.linux.cgroups_path = f"{pod.linux.cgroup_parent.rpartition('/')[2]}:cri-containerd:{identity}"
    _load(container, ballast_bytes)
    return container


def _load(container: pb.Container, size_bytes: int) -> None:
    """A third each in variables, mounts and system calls."""
    number = 0
    while container.ByteSize() < size_bytes:
        container.env.append(f"SERVICE_{number}_PORT_8080_TCP_ADDR=10.96.{number % 256}.{number % 251}")
        container.mounts.add(
            destination=f"/var/run/secrets/volume-{number}",
            type="bind",
            source=f"/var/lib/kubelet/pods/{container.pod_sandbox_id}/volumes/{number}",
            options=["rbind", "rprivate", "ro"],
        )
        container.linux.seccomp_policy.syscalls.add(
            names=[f"call_{number}_{part}" for part in range(8)], action="SCMP_ACT_ALLOW"
        )
        number += 1
