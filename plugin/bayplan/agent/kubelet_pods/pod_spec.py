"""A v1.Pod, as protobuf or JSON, to what is used of it. Pure.

Allocated is what kubelet has admitted (``status``), desired what the specification asks for. While no status
is there yet, both are the specification.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from google.protobuf.json_format import ParseDict
from google.protobuf.json_format import ParseError as JsonError

from bayplan._proto.pods import core_pb2 as pb
from bayplan.agent.protobuf import decoded
from bayplan.errors import ParseError
from bayplan.model.decision import QosClass
from bayplan.model.pod_facts import Amounts, ContainerFacts, ContainerKind, ContainerResources, PodFacts
from bayplan.quantity import parse_bytes, parse_milli_cpus

_CPU = "cpu"
_MEMORY = "memory"
_HUGEPAGES = "hugepages-"
_EPHEMERAL_STORAGE = "ephemeral-storage"
_NO_STATUS = pb.ContainerStatus()
_FIRST_GENERATION = 1

Quantities = Mapping[str, pb.Quantity]


def pod_of_bytes(encoded: bytes) -> PodFacts:
    """What the protobuf *encoded* says.

    Raises:
        ParseError: it is no pod, or one without a uid, name or namespace.
    """
    return pod_facts(decoded(pb.Pod, encoded, "pod"))


def pods_of_json(text: bytes) -> tuple[list[PodFacts], list[ParseError]]:
    """What the v1.PodList *text* says, and what is wrong with the pods in it that cannot be read.

    Raises:
        ParseError: it is no such list.
    """
    try:
        items = msgspec.json.decode(text, type=_PodList).items or ()
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ParseError("pods", repr(text[:100]), f"a v1.PodList in JSON ({error})") from error
    pods, problems = [], []
    for item in items:
        try:
            pods.append(pod_of_object(item))
        except ParseError as error:
            problems.append(error)
    return pods, problems


class _PodList(msgspec.Struct):
    items: list[dict[str, Any]] | None = None


def pod_of_object(item: dict[str, Any]) -> PodFacts:
    """What the v1.Pod *item* says.

    Raises:
        ParseError: it is no pod, or one without a uid, name or namespace.
    """
    try:
        pod = ParseDict(_with_quantities(item), pb.Pod(), ignore_unknown_fields=True)
    except (JsonError, RecursionError) as error:
        raise ParseError("pod", repr(item)[:100], f"a v1.Pod in JSON ({error})") from error
    return pod_facts(pod)


def _with_quantities(value: Any, key: str = "") -> Any:
    """*value* with each quantity as a message: JSON has its text alone."""
    if isinstance(value, dict):
        if key in ("requests", "limits", "allocatedResources"):
            return {name: {"string": str(amount)} for name, amount in value.items()}
        return {name: _with_quantities(item, name) for name, item in value.items()}
    if isinstance(value, list):
        return [_with_quantities(item, key) for item in value]
    return value


def pod_facts(pod: pb.Pod) -> PodFacts:
    """What *pod* says.

    Raises:
        ParseError: something in it cannot be.
    """
    containers = tuple(_containers(pod))
    pod_level = _resources(pod.spec.resources) if pod.spec.HasField("resources") else None
    pod_level = None if pod_level == ContainerResources() else pod_level
    facts = PodFacts(
        pod.metadata.uid,
        pod.metadata.namespace,
        pod.metadata.name,
        _qos_class(pod.status.qosClass, containers, pod_level),
        containers,
        pod.spec.priority if pod.spec.HasField("priority") else None,
        pod_level,
        pod.metadata.generation > _FIRST_GENERATION,
    )
    try:
        # The bounds that the daemon has: what breaks them never gets that far.
        return msgspec.convert(msgspec.to_builtins(facts), PodFacts)
    except msgspec.ValidationError as error:
        raise ParseError("pod", f"{pod.metadata.namespace}/{pod.metadata.name}", str(error)) from error


def _containers(pod: pb.Pod) -> Iterator[ContainerFacts]:
    statuses = {one.name: one for one in (*pod.status.initContainerStatuses, *pod.status.containerStatuses)}
    for one in pod.spec.initContainers:
        kind = ContainerKind.SIDECAR if one.restartPolicy == "Always" else ContainerKind.INIT
        yield _container(one, kind, statuses.get(one.name, _NO_STATUS))
    for one in pod.spec.containers:
        yield _container(one, ContainerKind.MAIN, statuses.get(one.name, _NO_STATUS))


def _container(one: pb.Container, kind: ContainerKind, status: pb.ContainerStatus) -> ContainerFacts:
    desired = _resources(one.resources)
    allocated = ContainerResources(
        _amounts(status.allocatedResources) if status.allocatedResources else desired.requests,
        _amounts(status.resources.limits) if status.resources.limits else desired.limits,
    )
    return ContainerFacts(one.name, kind, allocated, None if allocated == desired else desired)


def _resources(given: pb.ResourceRequirements) -> ContainerResources:
    return ContainerResources(_amounts(given.requests), _amounts(given.limits))


def _amounts(given: Quantities) -> Amounts:
    texts = {name: quantity.string for name, quantity in given.items()}
    return Amounts(
        parse_milli_cpus(texts[_CPU]) if _CPU in texts else None,
        parse_bytes(texts[_MEMORY]) if _MEMORY in texts else None,
        {name: parse_bytes(text) for name, text in sorted(texts.items()) if name.startswith(_HUGEPAGES)},
        parse_bytes(texts[_EPHEMERAL_STORAGE]) if _EPHEMERAL_STORAGE in texts else None,
    )


def _qos_class(
    reported: str, containers: tuple[ContainerFacts, ...], pod_level: ContainerResources | None
) -> QosClass:
    """The class that kubelet reports, else by its own rule: all limits are there and equal the requests;
    nothing is there; everything else. Source: GetPodQOS, pkg/apis/core/v1/helper/qos."""
    if reported:
        try:
            return QosClass(reported)
        except ValueError as error:
            raise ParseError("QoS class", reported, "one of Kubernetes'") from error
    asked = [pod_level] if pod_level is not None else [one.desired or one.allocated for one in containers]
    if all(_nothing(one.requests) and _nothing(one.limits) for one in asked):
        return QosClass.BEST_EFFORT
    full = all(one.limits.cpu_milli and one.limits.memory_bytes and _same(one) for one in asked)
    return QosClass.GUARANTEED if full else QosClass.BURSTABLE


def _nothing(amounts: Amounts) -> bool:
    return not amounts.cpu_milli and not amounts.memory_bytes


def _same(one: ContainerResources) -> bool:
    requests, limits = one.requests, one.limits
    return requests.cpu_milli in (None, limits.cpu_milli) and requests.memory_bytes in (
        None,
        limits.memory_bytes,
    )
