"""A pod manifest as pods and containers: with the values that kubelet would give to a runtime.

Read are names, labels, annotations, ``resources``, init containers and sidecars, ``overhead``,
``priorityClassName`` and ``status.qosClass``; the rest of a manifest does not matter for placement. Pods
are found in objects of any kind: a pod template is what has ``spec.containers`` below a key ``template``
or ``...Template``. The values are kubelet's own (`bayplan.kubelet.qos`), so that what
kubelet loses on the way (the exact memory request of a Burstable container) is lost here too.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from bayplan.errors import ConfigError, ParseError, Problem, excerpt
from bayplan.kubelet.pod import CPU, ContainerSpec, FeatureGates, PodLevelResources, PodSpec, is_memory
from bayplan.kubelet.qos import (
    ContainerValues,
    NodeSettings,
    PodValues,
    container_values,
    pod_values,
    qos_class,
)
from bayplan.model.decision import QosClass
from bayplan.model.kubelet_version import NEWEST, KubeletRules
from bayplan.model.machine import Machine
from bayplan.model.resources import Resources
from bayplan.model.workload import Container, Pod
from bayplan.printable import pattern
from bayplan.quantity import parse_bytes, parse_milli_cpus

_TREES: Final = {
    QosClass.GUARANTEED: "/kubepods",
    QosClass.BURSTABLE: "/kubepods/burstable",
    QosClass.BEST_EFFORT: "/kubepods/besteffort",
}
_WORKLOADS: Final = frozenset(
    {
        "CronJob",
        "DaemonSet",
        "Deployment",
        "Job",
        "PodTemplate",
        "ReplicaSet",
        "ReplicationController",
        "StatefulSet",
    }
)
"""Kubernetes' own kinds with a pod template; one without containers is a mistake."""
_UNSAFE: Final = pattern(r"[^0-9A-Za-z_-]")


class PlannedContainer(Struct, frozen=True):
    """A container of a manifest; ``ends``: an init container, which ends before the next one starts."""

    container: Container
    ends: bool = False


class PlannedPod(Struct, frozen=True):
    """A pod of a manifest, as a runtime sees it, with its containers in the order in which kubelet creates
    them; ``spec`` is what kubelet knows of it."""

    pod: Pod
    containers: tuple[PlannedContainer, ...]
    spec: PodSpec

    @property
    def name(self) -> str:
        """``namespace/pod``."""
        return f"{self.pod.namespace}/{self.pod.name}"


class GeneratedNames:
    """Names for objects with ``generateName``: numbers behind it, where the API server has random letters."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def name(self, metadata: Mapping[Any, Any]) -> object:
        """The name that an object has by its *metadata*; whatever stands there, if it is none."""
        name, prefix = metadata.get("name"), metadata.get("generateName")
        if name or not isinstance(prefix, str) or not prefix:
            return name
        self._counts[prefix] += 1
        return f"{prefix}{self._counts[prefix]}"


class _Template(Struct, frozen=True):
    """A pod within an object. ``path`` is where it is, ``label`` tells it from others in the same object, and
    ``counts`` are the numbers that are to be multiplied for how many there are, by their paths."""

    path: str
    pod: Mapping[Any, Any]
    label: str = ""
    counts: Mapping[str, object] = MappingProxyType({})


def plan_manifest(
    manifest: object,
    machine: Machine,
    id_prefix: str = "",
    *,
    most_replicas: int | None = None,
    names: GeneratedNames | None = None,
    kubelet: KubeletRules = NEWEST,
) -> list[PlannedPod]:
    """The pods of *manifest* on *machine*: a Pod, anything with pod templates, or a List with such among its
    items. Ids are the names after *id_prefix*. A Deployment is planned as one of its pods, unless
    *most_replicas* allows as many as it wants. *names* are to be those of all manifests that come together,
    *kubelet* has the rules of the kubelet that would create them.

    Raises:
        ConfigError: everything that is wrong with it.
    """
    names = names or GeneratedNames()
    if isinstance(manifest, Mapping) and isinstance(manifest.get("items"), list):
        return [
            pod
            for item in manifest["items"]
            if describes_pods(item)
            for pod in plan_manifest(
                item, machine, id_prefix, most_replicas=most_replicas, names=names, kubelet=kubelet
            )
        ]
    if isinstance(manifest, Mapping) and not describes_pods(manifest):
        problem = Problem("kind", repr(manifest["kind"]), "Pod, or a kind with a pod template")
        raise ConfigError("manifest", (problem,))
    reader = _Reader()
    pods = reader.pods(manifest, names, most_replicas)
    if reader.problems:
        raise ConfigError(f"pod {reader.name or 'without a name'}", tuple(reader.problems))
    gates = FeatureGates(rules=kubelet)
    return [_planned(spec, machine, id_prefix, gates) for pod in pods for spec in _replicas(*pod)]


def _replicas(spec: PodSpec, count: int | None) -> Iterator[PodSpec]:
    """So many pods like *spec*, numbered; None: it is the pod."""
    if count is None:
        yield spec
    for number in range(1, (count or 0) + 1):
        yield replace(spec, name=f"{spec.name}-{number}", uid=f"{spec.uid}-{number}")


def describes_pods(manifest: object) -> bool:
    """Whether *manifest* is not plainly something else, such as the Service in the file of a Deployment."""
    if not isinstance(manifest, Mapping) or isinstance(manifest.get("items"), list):
        return True
    kind = manifest.get("kind")
    if not isinstance(kind, str) or kind == "Pod" or kind in _WORKLOADS:
        return True
    return _has_containers(manifest) or bool(_templates(manifest))


def _has_containers(value: object) -> bool:
    """Whether *value* has containers in its ``spec``, as pods and their templates do."""
    spec = value.get("spec") if isinstance(value, Mapping) else None
    return isinstance(spec, Mapping) and "containers" in spec


def _templates(manifest: Mapping[Any, Any]) -> list[_Template]:
    """The pod templates in *manifest*."""
    found = [*_templates_below("", manifest, "", {})]
    if not found and manifest.get("kind") in _WORKLOADS:
        inner = manifest.get("spec")
        template = inner.get("template") if isinstance(inner, Mapping) else None
        return [_Template("spec.template", template if isinstance(template, Mapping) else {})]
    return found


def _templates_below(
    path: str, value: object, label: str, counts: Mapping[str, object]
) -> Iterator[_Template]:
    """Those in *value*, which is at *path*; *label* and *counts* are those of what is around it."""
    if isinstance(value, list):
        for number, item in enumerate(value):
            yield from _templates_below(f"{path}[{number}]", item, label, counts)
    if not isinstance(value, Mapping):
        return
    own = next((value[key] for key in ("name", "groupName") if isinstance(value.get(key), str)), label)
    counts = {
        **counts,
        **{f"{path}.{key}": value[key] for key in ("replicas", "parallelism") if value.get(key) is not None},
    }
    for key, item in value.items():
        here = f"{path}.{key}" if path else str(key)
        if str(key).lower().endswith("template") and _has_containers(item):
            yield _Template(here, item, own or path.rpartition(".")[2].lower(), counts)
        elif key not in ("metadata", "status"):
            yield from _templates_below(here, item, own, counts)


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


def _planned(spec: PodSpec, machine: Machine, id_prefix: str, gates: FeatureGates) -> PlannedPod:
    node = NodeSettings(machine.memory_bytes)
    values = pod_values(spec, node, gates)
    pod = Pod(
        id=f"{id_prefix}{spec.namespace}/{spec.name}",
        name=spec.name,
        namespace=spec.namespace,
        uid=spec.uid,
        annotations=spec.annotations,
        labels=spec.labels,
        cgroup_parent=f"{_TREES[qos_class(spec, gates)]}/pod{_UNSAFE.sub('-', spec.uid)}",
        resources=_resources(values),
    )
    return PlannedPod(
        pod,
        tuple(
            PlannedContainer(_container(spec, one, pod, node, gates), spec.is_regular_init(one.name))
            for one in spec.all_containers
        ),
        spec,
    )


def _resources(values: PodValues | ContainerValues) -> Resources:
    return Resources(
        memory_limit_bytes=values.memory_limit_bytes or None,
        cpu_shares=values.cpu_shares,
        cpu_quota_us=values.cpu_quota_us or None,
        cpu_period_us=values.cpu_period_us,
        hugepage_limits_bytes=values.hugepage_limits_bytes,
    )


def _container(
    spec: PodSpec, one: ContainerSpec, pod: Pod, node: NodeSettings, gates: FeatureGates
) -> Container:
    page_sizes = tuple(sorted(pod.resources.hugepage_limits_bytes))
    sized = NodeSettings(node.capacity_bytes, huge_page_sizes_bytes=page_sizes)
    values = container_values(spec, one, sized, gates)
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
        self.name = ""

    def pods(
        self, manifest: object, names: GeneratedNames, most_replicas: int | None
    ) -> list[tuple[PodSpec, int | None]]:
        """The pods of an object, each with how many of it there are; None where that is not asked or said."""
        top = self._table("manifest", manifest)
        metadata = self._table("metadata", top.get("metadata", {}))
        templates = [] if _has_containers(top) else _templates(top)
        if not templates:
            templates = [_Template("", {**top, "metadata": metadata})]
        self.name = self._text("metadata.name", names.name(metadata))
        namespace = self._text("metadata.namespace", metadata.get("namespace") or "default")
        found = []
        labels: Counter[str] = Counter()
        for template in templates:
            labels[template.label] += 1
            again = f"-{labels[template.label]}" if labels[template.label] > 1 else ""
            name = f"{self.name}-{template.label}{again}" if len(templates) > 1 else self.name
            count = None if most_replicas is None else self._count(template.counts, most_replicas)
            found.append((self._pod(name, namespace, template), count))
        return found

    def _pod(self, name: str, namespace: str, template: _Template) -> PodSpec:
        within = f"{template.path}." if template.path else ""
        spec = self._table(f"{within}spec", template.pod.get("spec"))
        inner = self._table(f"{within}metadata", template.pod.get("metadata"))
        containers = tuple(self._containers(f"{within}spec.containers", spec.get("containers")))
        if not containers:
            self._wrong(f"{within}spec.containers", "none", "at least one container")
        resources = spec.get("resources")
        inits = self._containers(f"{within}spec.initContainers", spec.get("initContainers"))
        annotations = self._table(f"{within}metadata.annotations", inner.get("annotations"))
        return PodSpec(
            uid=self._text(f"{within}metadata.uid", inner.get("uid") or f"{namespace}-{name}"),
            containers=containers,
            init_containers=tuple(inits),
            resources=None if resources is None else self._pod_level(f"{within}spec.resources", resources),
            overhead=self._amounts(f"{within}spec.overhead", spec.get("overhead")),
            priority_class_name=str(spec.get("priorityClassName") or ""),
            labels={
                str(key): self._text(f"{within}metadata.labels.{key}", text, empty=True)
                for key, text in self._table(f"{within}metadata.labels", inner.get("labels")).items()
            },
            annotations={
                str(key): self._text(f"{within}metadata.annotations.{key}", text, empty=True)
                for key, text in annotations.items()
            },
            qos=self._qos(self._table("status", template.pod.get("status")).get("qosClass")),
            name=name,
            namespace=namespace,
        )

    def _count(self, counts: Mapping[str, object], most: int) -> int | None:
        """How many pods the controllers of a template want at once; None where none of them says."""
        total = 1
        for path, wanted in counts.items():
            if not isinstance(wanted, int) or isinstance(wanted, bool) or not 0 <= wanted <= most:
                self._wrong(path, repr(wanted), f"a number from 0 to {most}")
                return None
            total *= wanted
        if total > most:
            self._wrong(" * ".join(counts), str(total), f"a number from 0 to {most}")
            return None
        return total if counts else None

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
