"""Pods and containers as values, in CRI's own terms, and the shapes that kubelet gives them per QoS class.

`guaranteed`, `burstable` and `best_effort` make what kubelet would ask a runtime for: shares, quota, limit,
oom_score_adj and the cgroup parent of the class. For a plain crictl user's pod, build the values directly.
"""

import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from testbed.oci import WORKLOAD_IMAGE

PERIOD_US = 100_000
GUARANTEED_OOM_SCORE_ADJ = -997
BEST_EFFORT_OOM_SCORE_ADJ = 1000
MIB = 1 << 20
_UNITS = {"": 1, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30}
_numbers = itertools.count(1)


def size(text: str | int) -> int:
    """Bytes of "512Mi"; a number is bytes already."""
    found = re.fullmatch(r"(\d+)(|Ki|Mi|Gi)", str(text))
    if found is None:
        raise ValueError(f"{text!r} is not a size like 512Mi")
    return int(found[1]) * _UNITS[found[2]]


@dataclass(frozen=True, slots=True)
class Container:
    """What CRI's ContainerConfig says; None and empty mean that the field is not sent. `devices` maps paths
    in the container to device nodes of the host, `mounts` to its files and directories; `cdi_devices` are
    names.
    """

    name: str = "main"
    command: tuple[str, ...] = ("/bin/workload", "pause")
    image: str = WORKLOAD_IMAGE
    memory_limit_bytes: int | None = None
    cpu_quota_us: int | None = None
    cpu_period_us: int | None = None
    cpu_shares: int | None = None
    oom_score_adj: int | None = None
    cpuset_cpus: str = ""
    cpuset_mems: str = ""
    hugepage_limits: Mapping[str, int] = field(default_factory=dict)
    unified: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    user_id: int | None = None
    read_only_root: bool = False
    devices: Mapping[str, str] = field(default_factory=dict)
    mounts: Mapping[str, str] = field(default_factory=dict)
    cdi_devices: tuple[str, ...] = ()

    def touching(self, amount: str | int, *, hugepages: str = "") -> "Container":
        """The same container, whose program fills so much memory and says "touched"."""
        words = ("/bin/workload", "touch", str(size(amount)), *((hugepages,) if hugepages else ()))
        return replace(self, command=words)

    def config(self) -> dict[str, object]:
        """CRI's ContainerConfig as crictl reads it."""
        return {
            "metadata": {"name": self.name, "attempt": 0},
            "image": {"image": self.image},
            "command": list(self.command),
            "log_path": f"{self.name}.log",
            "annotations": dict(self.annotations),
            "labels": {"io.kubernetes.container.name": self.name, **self.labels},
            "linux": {"resources": self.resources(), **self._security()},
            "devices": [
                {"container_path": inside, "host_path": outside, "permissions": "rwm"}
                for inside, outside in self.devices.items()
            ],
            "mounts": [
                {"container_path": inside, "host_path": outside} for inside, outside in self.mounts.items()
            ],
            "CDI_devices": [{"name": name} for name in self.cdi_devices],
        }

    def _security(self) -> dict[str, object]:
        """CRI's LinuxContainerSecurityContext, where it says anything."""
        user = {} if self.user_id is None else {"run_as_user": {"value": self.user_id}}
        root = {"readonly_rootfs": True} if self.read_only_root else {}
        return {"security_context": {**user, **root}} if user or root else {}

    def resources(self) -> dict[str, object]:
        """CRI's LinuxContainerResources."""
        fields = {
            "memory_limit_in_bytes": self.memory_limit_bytes,
            "cpu_quota": self.cpu_quota_us,
            "cpu_period": self.cpu_period_us,
            "cpu_shares": self.cpu_shares,
            "oom_score_adj": self.oom_score_adj,
            "cpuset_cpus": self.cpuset_cpus or None,
            "cpuset_mems": self.cpuset_mems or None,
            "unified": dict(self.unified) or None,
            "hugepage_limits": [{"page_size": s, "limit": n} for s, n in self.hugepage_limits.items()]
            or None,
        }
        return {name: value for name, value in fields.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Pod:
    """What CRI's PodSandboxConfig says, and its containers. On the host's network unless told otherwise."""

    name: str
    containers: tuple[Container, ...] = (Container(),)
    namespace: str = "default"
    uid: str = ""
    cgroup_parent: str = ""
    host_network: bool = True
    annotations: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    sandbox_resources: Mapping[str, int] = field(default_factory=dict)

    def config(self) -> dict[str, object]:
        """CRI's PodSandboxConfig as crictl reads it."""
        linux: dict[str, object] = {"cgroup_parent": self.cgroup_parent}
        if self.host_network:
            linux["security_context"] = {"namespace_options": {"network": 2}}
        if self.sandbox_resources:
            linux["resources"] = dict(self.sandbox_resources)
        uid = self.uid or f"uid-{self.name}"
        names = {"name": self.name, "namespace": self.namespace, "uid": uid}
        return {
            "metadata": {**names, "attempt": 1},
            # A pod on the host's network shares the host's name as well.
            "hostname": "" if self.host_network else self.name,
            "log_directory": f"/var/log/pods/{self.name}",
            "annotations": dict(self.annotations),
            "labels": {**{f"io.kubernetes.pod.{key}": value for key, value in names.items()}, **self.labels},
            "linux": linux,
        }

    def with_containers(self, *containers: Container) -> "Pod":
        return replace(self, containers=containers)

    def with_devices(self, devices: Mapping[str, str]) -> "Pod":
        """The same pod, whose first container has these devices."""
        first, *others = self.containers
        return replace(self, containers=(replace(first, devices=devices), *others))

    def touching(self, amount: str | int, *, hugepages: str = "") -> "Pod":
        """The same pod, whose first container fills so much memory."""
        first, *others = self.containers
        return replace(self, containers=(first.touching(amount, hugepages=hugepages), *others))


def new_uid() -> str:
    """A pod uid in kubelet's form, never twice in a run."""
    return f"00000000-0000-4000-8000-{next(_numbers):012x}"


def cgroup_parent(qos: str, uid: str) -> str:
    """Kubelet's path for a pod with the cgroupfs driver."""
    tree = {
        "Guaranteed": "/kubepods",
        "Burstable": "/kubepods/burstable",
        "BestEffort": "/kubepods/besteffort",
    }[qos]
    return f"{tree}/pod{uid}"


def guaranteed(
    name: str,
    cpus: float,
    memory: str | int,
    *,
    hugepages: Mapping[str, int] | None = None,
    annotations: Mapping[str, str] | None = None,
) -> Pod:
    """A Guaranteed pod with one container, as kubelet asks for it."""
    quota, shares, limit = int(cpus * PERIOD_US), int(cpus * 1024), size(memory)
    container = Container(
        memory_limit_bytes=limit,
        cpu_quota_us=quota,
        cpu_period_us=PERIOD_US,
        cpu_shares=shares,
        oom_score_adj=GUARANTEED_OOM_SCORE_ADJ,
        hugepage_limits=hugepages or {},
    )
    sums = {"cpu_quota": quota, "cpu_period": PERIOD_US, "cpu_shares": shares, "memory_limit_in_bytes": limit}
    return _kubelet_pod(name, "Guaranteed", container, sums, annotations)


def burstable(
    name: str,
    *,
    node_memory_bytes: int,
    cpus: float = 0.1,
    memory: str | int = "64Mi",
    memory_limit: str | int | None = None,
    annotations: Mapping[str, str] | None = None,
) -> Pod:
    """A Burstable pod with requests; oom_score_adj by kubelet's formula from the node's MemTotal."""
    score = 1000 - 1000 * size(memory) // node_memory_bytes
    container = Container(
        memory_limit_bytes=size(memory_limit) if memory_limit is not None else None,
        cpu_period_us=PERIOD_US,
        cpu_shares=max(2, int(cpus * 1024)),
        oom_score_adj=min(max(score, 3), 999),
    )
    return _kubelet_pod(name, "Burstable", container, {"cpu_shares": max(2, int(cpus * 1024))}, annotations)


def best_effort(name: str, *, annotations: Mapping[str, str] | None = None) -> Pod:
    """A BestEffort pod as kubelet asks for it."""
    container = Container(cpu_shares=2, cpu_period_us=PERIOD_US, oom_score_adj=BEST_EFFORT_OOM_SCORE_ADJ)
    return _kubelet_pod(name, "BestEffort", container, {"cpu_shares": 2}, annotations)


def _kubelet_pod(
    name: str, qos: str, container: Container, sums: Mapping[str, int], annotations: Mapping[str, str] | None
) -> Pod:
    uid = new_uid()
    return Pod(
        name=name,
        containers=(container,),
        uid=uid,
        cgroup_parent=cgroup_parent(qos, uid),
        annotations=annotations or {},
        sandbox_resources=sums,
    )
