"""A pod manifest as pods and containers: with the values that kubelet would give to a runtime.

Read are names, annotations, ``resources``, init containers and sidecars, ``overhead``, ``priorityClassName``
and ``status.qosClass``; the rest of a manifest does not matter for placement. The values are kubelet's own
(`bayplan.engines.kubelet.qos.cgroup_values`), so that what kubelet loses on the way (the exact memory request
of a Burstable container) is lost here too.
"""

import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from bayplan.engines.kubelet.pod import CPU, ContainerSpec, FeatureGates, PodLevelResources, PodSpec
from bayplan.engines.kubelet.qos.cgroup_values import (
    ContainerValues,
    NodeSettings,
    PodValues,
    container_values,
    pod_values,
)
from bayplan.engines.kubelet.qos.classes import qos_class
from bayplan.engines.kubelet.resources import is_memory
from bayplan.errors import ConfigError, ParseError, Problem, excerpt
from bayplan.model.decision import QosClass
from bayplan.model.machine import Machine
from bayplan.model.workload import Container, Pod, Resources
from bayplan.quantity import parse_bytes, parse_milli_cpus

_GATES: Final = FeatureGates()
_TREES: Final = {
    QosClass.GUARANTEED: "/kubepods",
    QosClass.BURSTABLE: "/kubepods/burstable",
    QosClass.BEST_EFFORT: "/kubepods/besteffort",
}
_OF_PODS: Final = frozenset({"containers", "template", "jobTemplate"})
_UNSAFE: Final = re.compile(r"[^0-9A-Za-z_-]")


class PlannedContainer(Struct, frozen=True):
    """A container of a manifest; ``ends``: an init container, which ends before the next one starts."""

    container: Container
    ends: bool = False


class PlannedPod(Struct, frozen=True):
    """A pod of a manifest, and its containers in the order in which kubelet creates them."""

    pod: Pod
    containers: tuple[PlannedContainer, ...]

    @property
    def name(self) -> str:
        """``namespace/pod``."""
        return f"{self.pod.namespace}/{self.pod.name}"


def plan_manifest(
    manifest: object, machine: Machine, id_prefix: str = "", *, most_replicas: int | None = None
) -> list[PlannedPod]:
    """The pods of *manifest* on *machine*: a Pod, anything with a pod template, or a List with such among its
    items. Ids are the names after *id_prefix*. A Deployment is planned as one of its pods, unless
    *most_replicas* allows as many as it wants.

    Raises:
        ConfigError: everything that is wrong with it.
    """
    if isinstance(manifest, Mapping) and isinstance(manifest.get("items"), list):
        items = [item for item in manifest["items"] if describes_pods(item)]
        return [
            pod
            for item in items
            for pod in plan_manifest(item, machine, id_prefix, most_replicas=most_replicas)
        ]
    if isinstance(manifest, Mapping) and not describes_pods(manifest):
        problem = Problem("kind", repr(manifest["kind"]), "Pod, or a kind with a pod template")
        raise ConfigError("manifest", (problem,))
    reader = _Reader()
    spec = reader.pod(manifest)
    replicas = None if most_replicas is None else reader.replicas(manifest, most_replicas)
    if reader.problems:
        raise ConfigError(f"pod {spec.name or 'without a name'}", tuple(reader.problems))
    if replicas is None:
        return [_planned(spec, machine, id_prefix)]
    return [
        _planned(replace(spec, name=f"{spec.name}-{number}", uid=f"{spec.uid}-{number}"), machine, id_prefix)
        for number in range(1, replicas + 1)
    ]


def describes_pods(manifest: object) -> bool:
    """Whether *manifest* is not plainly something else, such as the Service in the file of a Deployment."""
    if not isinstance(manifest, Mapping) or isinstance(manifest.get("items"), list):
        return True
    kind, spec = manifest.get("kind"), manifest.get("spec")
    if not isinstance(kind, str) or kind == "Pod":
        return True
    return isinstance(spec, Mapping) and not _OF_PODS.isdisjoint(spec)


def sizes_manifest(
    name: str,
    *,
    memory: str | None = None,
    memory_limit: str | None = None,
    cpus: str | None = None,
    hugepages: Mapping[str, str] = MappingProxyType({}),
    qos: str | None = None,
    annotations: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Any]:
    """The manifest of a pod with one container from sizes alone, amounts as texts; *hugepages* maps sizes.

    *name* is ``[NAMESPACE/]POD[/CONTAINER]``, two parts being namespace and pod. With *memory* and *cpus* and
    no *memory_limit* it is Guaranteed, unless *qos* says otherwise; else the class follows kubelet's rules.
    """
    if qos is None and memory and cpus and not memory_limit:
        qos = QosClass.GUARANTEED.value
    requests = {"memory": memory, "cpu": cpus}
    limits = {"memory": memory_limit}
    if qos == QosClass.GUARANTEED.value:
        limits = {"memory": memory_limit or memory, "cpu": cpus}
    pages = {f"hugepages-{size}": amount for size, amount in hugepages.items()}
    resources = {
        kind: {key: text for key, text in amounts.items() if text} | pages
        for kind, amounts in (("requests", requests), ("limits", limits))
    }
    parts = name.split("/")
    namespace, pod = parts[:2] if len(parts) > 1 else ("default", name)
    container = "/".join(parts[2:]) or "main"
    return {
        "metadata": {"name": pod, "namespace": namespace, "annotations": dict(annotations)},
        "spec": {"containers": [{"name": container, "resources": resources}]},
        **({} if qos is None else {"status": {"qosClass": qos}}),
    }


def _planned(spec: PodSpec, machine: Machine, id_prefix: str) -> PlannedPod:
    node = NodeSettings(machine.memory_bytes)
    values = pod_values(spec, node, _GATES)
    pod = Pod(
        id=f"{id_prefix}{spec.namespace}/{spec.name}",
        name=spec.name,
        namespace=spec.namespace,
        uid=spec.uid,
        annotations=spec.annotations,
        cgroup_parent=f"{_TREES[qos_class(spec, _GATES)]}/pod{_UNSAFE.sub('-', spec.uid)}",
        resources=_resources(values),
    )
    return PlannedPod(
        pod,
        tuple(
            PlannedContainer(_container(spec, one, pod, node), spec.is_regular_init(one.name))
            for one in spec.all_containers
        ),
    )


def _resources(values: PodValues | ContainerValues) -> Resources:
    return Resources(
        memory_limit_bytes=values.memory_limit_bytes or None,
        cpu_shares=values.cpu_shares,
        cpu_quota_us=values.cpu_quota_us or None,
        cpu_period_us=values.cpu_period_us,
        hugepage_limits_bytes=values.hugepage_limits_bytes,
    )


def _container(spec: PodSpec, one: ContainerSpec, pod: Pod, node: NodeSettings) -> Container:
    page_sizes = tuple(sorted(pod.resources.hugepage_limits_bytes))
    sized = NodeSettings(node.capacity_bytes, huge_page_sizes_bytes=page_sizes)
    values = container_values(spec, one, sized, _GATES)
    return Container(
        id=f"{pod.id}/{one.name}",
        pod_id=pod.id,
        name=one.name,
        resources=_resources(values),
        oom_score_adj=values.oom_score_adj,
    )


class _Reader:
    """Reads one pod; what is wrong is collected, not raised."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []

    def pod(self, manifest: object) -> PodSpec:
        top = self._table("manifest", manifest)
        metadata = self._table("metadata", top.get("metadata", {}))
        spec, path = self._table("spec", top.get("spec")), "spec"
        template = spec.get("template")
        if "containers" not in spec and template is None and "jobTemplate" in spec:
            job = self._table("spec.jobTemplate", spec["jobTemplate"])
            path = "spec.jobTemplate.spec"
            spec = self._table(path, job.get("spec"))
            template = spec.get("template")
        if "containers" not in spec and template is not None:
            path = f"{path}.template"
            inner = self._table(path, template)
            inherited = self._table(f"{path}.metadata", inner.get("metadata", {}))
            metadata = {"name": metadata.get("name"), "namespace": metadata.get("namespace"), **inherited}
            path = f"{path}.spec"
            spec = self._table(path, inner.get("spec"))
        name = self._text("metadata.name", metadata.get("name") or metadata.get("generateName"))
        namespace = self._text("metadata.namespace", metadata.get("namespace") or "default")
        containers = tuple(self._containers(f"{path}.containers", spec.get("containers")))
        if not containers:
            self._wrong(f"{path}.containers", "none", "at least one container")
        resources = spec.get("resources")
        return PodSpec(
            uid=self._text("metadata.uid", metadata.get("uid") or f"{namespace}-{name}"),
            containers=containers,
            init_containers=tuple(self._containers(f"{path}.initContainers", spec.get("initContainers"))),
            resources=None if resources is None else self._pod_level(f"{path}.resources", resources),
            overhead=self._amounts(f"{path}.overhead", spec.get("overhead")),
            priority_class_name=str(spec.get("priorityClassName") or ""),
            annotations={
                str(key): self._text(f"metadata.annotations.{key}", text, empty=True)
                for key, text in self._table("metadata.annotations", metadata.get("annotations")).items()
            },
            qos=self._qos(self._table("status", top.get("status")).get("qosClass")),
            name=name,
            namespace=namespace,
        )

    def replicas(self, manifest: object, most: int) -> int | None:
        """How many pods the controller of a template wants at once; None where it does not say."""
        spec = self._table("spec", self._table("manifest", manifest).get("spec"))
        for key in ("replicas", "parallelism") if "template" in spec else ():
            wanted = spec.get(key)
            if isinstance(wanted, int) and not isinstance(wanted, bool) and 0 <= wanted <= most:
                return wanted
            if wanted is not None:
                self._wrong(f"spec.{key}", repr(wanted), f"a number from 0 to {most}")
        return None

    def _containers(self, path: str, value: object) -> Iterator[ContainerSpec]:
        if value is not None and not isinstance(value, list):
            self._wrong(path, repr(value), "a list of containers")
            return
        for number, item in enumerate(value or ()):
            one, where = self._table(f"{path}[{number}]", item), f"{path}[{number}]"
            requests, limits = self._resources(f"{where}.resources", one.get("resources"))
            restartable = one.get("restartPolicy") == "Always"
            yield ContainerSpec(self._text(f"{where}.name", one.get("name")), requests, limits, restartable)

    def _pod_level(self, path: str, value: object) -> PodLevelResources:
        return PodLevelResources(*self._resources(path, value))

    def _resources(self, path: str, value: object) -> tuple[dict[str, int], dict[str, int]]:
        """Requests and limits; a request that is missing is the limit, as the API server writes it."""
        both = self._table(path, value)
        limits = self._amounts(f"{path}.limits", both.get("limits"))
        return {**limits, **self._amounts(f"{path}.requests", both.get("requests"))}, limits

    def _amounts(self, path: str, value: object) -> dict[str, int]:
        amounts: dict[str, int] = {}
        for name, text in self._table(path, value).items():
            resource = str(name)
            if resource != CPU and not is_memory(resource):
                continue
            try:
                read = parse_milli_cpus if resource == CPU else parse_bytes
                amounts[resource] = read(str(text))
            except ParseError as error:
                self._wrong(f"{path}.{resource}", repr(text), error.expected)
        return amounts

    def _qos(self, value: object) -> QosClass | None:
        names = [one.value for one in QosClass]
        if value is not None and value not in names:
            self._wrong("status.qosClass", repr(value), f"one of {', '.join(names)}")
            return None
        return None if value is None else QosClass(value)

    def _table(self, path: str, value: object) -> Mapping[Any, Any]:
        if value is None and path not in ("manifest", "spec"):
            return {}
        if not isinstance(value, Mapping):
            self._wrong(path, "nothing" if value is None else repr(value), "a table")
            return {}
        return value

    def _text(self, path: str, value: object, *, empty: bool = False) -> str:
        if not isinstance(value, str) or not (value or empty):
            self._wrong(path, "nothing" if value is None else repr(value), "a text")
            return ""
        return value

    def _wrong(self, path: str, found: str, expected: str) -> None:
        self.problems.append(Problem(path, excerpt(found), expected))
