"""One container, described as an OCI document and as NRI's messages."""

import json
from typing import Any

from bayplan._proto.nri import api_pb2 as pb
from bayplan.model.workload import Container, Pod
from bayplan.nri import translate
from bayplan.oci import workloads
from bayplan.oci.documents import parse_spec


def described_by_nri(document: dict[str, Any]) -> tuple[Pod, Container]:
    """As containerd translates an OCI spec for plugins (NRI pkg/api/resources.go)."""
    written = document["linux"].get("resources") or {}
    container = pb.Container(id="c", pod_sandbox_id="c", annotations=document.get("annotations"))
    container.linux.cgroups_path = document["linux"]["cgroupsPath"]
    score = (document.get("process") or {}).get("oomScoreAdj")
    if score is not None:
        container.linux.oom_score_adj.value = score
    message = container.linux.resources
    memory, cpu = written.get("memory") or {}, written.get("cpu") or {}
    for key in ("limit", "reservation", "swap", "kernel", "swappiness"):
        if key in memory:
            getattr(message.memory, key).value = memory[key]
    for key in ("shares", "quota", "period"):
        if key in cpu:
            getattr(message.cpu, key).value = cpu[key]
    message.cpu.cpus, message.cpu.mems = cpu.get("cpus", ""), cpu.get("mems", "")
    for limit in written.get("hugepageLimits") or ():
        message.hugepage_limits.add(page_size=limit["pageSize"], limit=limit["limit"])
    message.unified.update(written.get("unified") or {})
    pod = pb.PodSandbox(id="c", annotations=document.get("annotations"))
    pod.linux.cgroup_parent = document["linux"]["cgroupsPath"].rpartition(":")[0].partition(":")[0]
    if container.linux.cgroups_path.startswith("/"):
        pod.linux.cgroup_parent = container.linux.cgroups_path.rpartition("/")[0]
    return translate.pod_from(pod), translate.container_from(container)


def described_by_oci(document: dict[str, Any]) -> tuple[Pod, Container]:
    spec = parse_spec(json.dumps(document).encode(), "config.json")
    return workloads.pod_from(spec, "c", {}), workloads.container_from(spec, "c")
