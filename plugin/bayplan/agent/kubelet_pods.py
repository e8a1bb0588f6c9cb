"""What kubelet says of its pods: from its Pods service where that is on, else from its HTTP endpoint
`/pods`. kubelet away, or refusing: what it said last stays known.

* A v1.Pod comes as protobuf or JSON. Allocated is what kubelet has admitted (``status``), desired what
  the specification asks for. While no status is there yet, both are the specification.
* The Pods service (KEP-4188, feature gate PodsAPI) says all pods, then each change of one as it comes.
  kubelet ends the stream of a client that is slow, and of every client when it stops; it is opened again.
  A pod that cannot be read is reported and passed over: one odd pod must not hide all others.
* The endpoint is asked when a pod starts or changes, and now and then: over HTTPS with a bearer token and
  kubelet's CA, or on the read-only port where that is open. The token is read each time, because it is
  renewed in its file. What does not answer is asked again soon, and then less and less often.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Protocol

import grpc
import msgspec
from google.protobuf.json_format import ParseDict
from google.protobuf.json_format import ParseError as JsonError

from bayplan._proto.pods import api_pb2 as pods_pb
from bayplan._proto.pods import core_pb2 as pb
from bayplan.agent.grpc_sockets import decoded
from bayplan.agent.http_client import OK, SentRequest, Server, ask
from bayplan.backoff import Backoff
from bayplan.errors import ParseError, UnavailableError
from bayplan.logs import Condition
from bayplan.model.decision import QosClass
from bayplan.model.kubelet_requests import (
    Amounts,
    ContainerFacts,
    ContainerKind,
    ContainerResources,
    PodFacts,
)
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
    # Of a container without a limit of its own kubelet reports the one that its cgroup has: its pod's.
    limits = {
        name: amount for name, amount in status.resources.limits.items() if name in one.resources.limits
    }
    allocated = ContainerResources(
        _amounts(status.allocatedResources) if status.allocatedResources else desired.requests,
        _amounts(limits) if limits else desired.limits,
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


logger = logging.getLogger(__name__)

MAX_EVENT_BYTES: Final = 4 << 20
"""etcd takes no pod of more than 1.5 MiB."""

RETRY_LIMIT_S: Final = 10.0
_KEEPALIVE_MS: Final = 30_000
_WATCH: Final = "/v1alpha1.Pods/WatchPods"


class PodKeeper(Protocol):
    """Receives what kubelet says of pods."""

    def know(self, pod: PodFacts) -> None:
        """Kubelet says this of *pod* now."""

    def forget(self, uid: str) -> None:
        """Kubelet does not have that pod any more."""

    def keep(self, pods: dict[str, PodFacts]) -> None:
        """*pods*, by uid, are all pods that kubelet has."""


class PodWatch:
    """Follows the service at *socket* into *keeper*. ``in_sync``: all pods are known, and every change
    comes."""

    def __init__(self, socket: Path, keeper: PodKeeper, backoff: Backoff | None = None) -> None:
        self.in_sync = False
        self._socket = socket
        self._keeper = keeper
        self._backoff = backoff or Backoff(random.random, limit_s=RETRY_LIMIT_S)
        self._noted = ""

    async def run(self) -> None:
        """Follow until cancelled."""
        while True:
            try:
                await self._follow()
                self._note("kubelet ended the stream")
            except grpc.aio.AioRpcError as error:
                self._note(f"{error.code().name}: {error.details()}")
            except ParseError as error:
                self._note(f"an event cannot be read: {error}")
            finally:
                self.in_sync = False
            await asyncio.sleep(self._backoff.next_s())

    async def _follow(self) -> None:
        options = [
            ("grpc.max_receive_message_length", MAX_EVENT_BYTES),
            ("grpc.enable_http_proxy", 0),
            ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
        ]
        async with grpc.aio.insecure_channel(f"unix:{self._socket}", options=options) as channel:
            request = pods_pb.WatchPodsRequest
            watch = channel.unary_stream(_WATCH, request_serializer=request.SerializeToString)
            await self._take(watch(request()))

    async def _take(self, events: Any) -> None:
        facts: dict[str, PodFacts] | None = {}
        """All pods of the first list, until that is complete."""
        async for encoded in events:
            event = decoded(pods_pb.WatchPodsEvent, encoded)
            if event.type == pods_pb.INITIAL_SYNC_COMPLETE:
                self._keeper.keep(facts or {})
                facts, self.in_sync, self._noted = None, True, ""
                self._backoff.reset()
                logger.info("following kubelet's pods", extra={"socket": str(self._socket)})
                continue
            try:
                pod = pod_of_bytes(event.pod)
            except ParseError as error:
                logger.warning("a pod cannot be read", extra={"problem": str(error)})
                continue
            if event.type == pods_pb.DELETED:
                self._keeper.forget(pod.uid)
            else:
                self._keeper.know(pod)
                if facts is not None:
                    facts[pod.uid] = pod

    def _note(self, problem: str) -> None:
        """Log *problem*, unless it is the last one again."""
        if problem != self._noted:
            self._noted = problem
            logger.info("kubelet's Pods API is not there", extra={"problem": problem})


LEAST_INTERVAL_S: Final = 3.0
MOST_INTERVAL_S: Final = 60.0
"""What was changed without the runtime, such as a memory request alone, is known after this
time."""


class PodEndpoint:
    """Asks *kubelet* for *keeper*, unless that is *needless*, as another source knows more.
    ``in_sync``: kubelet has answered, the last time it was asked."""

    def __init__(
        self,
        kubelet: Server,
        keeper: PodKeeper,
        needless: Callable[[], bool] = lambda: False,
        least_interval_s: float = LEAST_INTERVAL_S,
        most_interval_s: float = MOST_INTERVAL_S,
    ) -> None:
        self.in_sync = False
        self._kubelet = kubelet
        self._keeper = keeper
        self._needless = needless
        self._least_interval_s = least_interval_s
        self._most_interval_s = most_interval_s
        # What was asked for because of a pod that starts is due until kubelet has answered.
        self._again = Backoff(random.random, first_s=2 * least_interval_s, limit_s=most_interval_s)
        self._wanted = asyncio.Event()
        self._condition = Condition("kubelet's pods are not known", "kubelet's pods are known again")

    def ask_soon(self) -> None:
        """Ask as soon as kubelet may be asked again."""
        self._wanted.set()

    async def run(self) -> None:
        """Ask whenever that is due, until cancelled."""
        while True:
            self._wanted.clear()
            next_s = self._most_interval_s
            if self._needless() or await self._ask():
                self._again.reset()
            else:
                next_s = self._again.next_s()
            await asyncio.sleep(self._least_interval_s)
            try:
                async with asyncio.timeout(next_s - self._least_interval_s):
                    await self._wanted.wait()
            except TimeoutError:
                continue

    async def _ask(self) -> bool:
        """Ask once; whether kubelet has answered."""
        try:
            pods, problems = pods_of_json(await self._answer())
        except (UnavailableError, ParseError) as error:
            self.in_sync = False
            self._condition.holds(str(error))
            return False
        for problem in problems:
            logger.warning("a pod cannot be read", extra={"problem": str(problem)})
        self._condition.over()
        self.in_sync = True
        self._keeper.keep({pod.uid: pod for pod in pods})
        return True

    async def _answer(self) -> bytes:
        answer = await ask(self._kubelet, SentRequest())
        if answer.status != OK:
            raise UnavailableError(self._kubelet.url, f"kubelet answers {answer.status} {answer.reason}")
        return answer.body
