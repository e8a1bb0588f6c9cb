"""PodResources, version 1, on a unix socket of the agent: the ledger, and what kubelet's own service says.

* Memory and CPUs are those that bayplan assigned; where it assigned none, kubelet's managers may have.
  Devices and dynamic resources are kubelet's alone. As in kubelet's answers, memory that a container has
  on several nodes is one block with all of them (huge pages that lie evenly on them are a block for
  each), and only what is bound is listed: exclusive CPUs, and memory of containers that are bound to
  nodes.
* kubelet is asked for what only it knows. All who ask at the same moment get the same answer of kubelet,
  which limits how often it is asked. A failure holds for a moment too, so that not each of many clients
  waits for the deadline.
* The service is made for a handful of readers that ask every few seconds. Whoever sends something else
  than HTTP/2, or nothing, is disconnected; calls beyond the limit are answered with RESOURCE_EXHAUSTED at
  once. Who may connect is decided by the socket's mode and directory.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any, Final, NoReturn

import grpc

from bayplan._proto.podresources import api_pb2 as pb
from bayplan.agent.grpc_sockets import decoded, for_owner_and_group, make_place, unary_method
from bayplan.errors import HostError, ParseError, UnavailableError
from bayplan.logs import Condition
from bayplan.model.basis import Allocatable
from bayplan.model.claims import Parts
from bayplan.model.decision import Decision, Placement
from bayplan.model.ledger import Ledger
from bayplan.model.workload import parts_in_pod
from bayplan.sets import CpuSet, NodeSet
from bayplan.views.snapshot import Snapshot

PodName = tuple[str, str]
"""Namespace and name."""


def list_answer(ledger: Ledger, kubelet: pb.ListPodResourcesResponse) -> pb.ListPodResourcesResponse:
    """Every pod that bayplan or *kubelet* knows, by namespace and name, with what its containers have."""
    pods: dict[PodName, pb.PodResources] = {}
    for (namespace, name), containers in _by_pod(ledger):
        pods[namespace, name] = pb.PodResources(namespace=namespace, name=name, containers=containers)
    for theirs in kubelet.pod_resources:
        ours = pods.setdefault(
            (theirs.namespace, theirs.name), pb.PodResources(namespace=theirs.namespace, name=theirs.name)
        )
        _add_kubelets(ours, theirs)
    return pb.ListPodResourcesResponse(pod_resources=[pods[key] for key in sorted(pods)])


def get_answer(listed: pb.ListPodResourcesResponse, pod: PodName) -> pb.GetPodResourcesResponse | None:
    """The one pod of a list; None if it is not there."""
    for one in listed.pod_resources:
        if (one.namespace, one.name) == pod:
            return pb.GetPodResourcesResponse(pod_resources=one)
    return None


def allocatable_answer(
    allocatable: Allocatable, kubelet: pb.AllocatableResourcesResponse
) -> pb.AllocatableResourcesResponse:
    """What containers can be assigned in all: a block for each node and resource that is not 0, all CPUs but
    the reserved and the isolated ones, and kubelet's devices."""
    return pb.AllocatableResourcesResponse(
        devices=kubelet.devices,
        cpu_ids=allocatable.exclusive_cpus,
        memory=[
            _block(resource, amount_bytes, NodeSet([node]))
            for node, resources in sorted(allocatable.bytes_by_node.items())
            for resource, amount_bytes in sorted(resources.items())
            if amount_bytes
        ],
    )


def _by_pod(ledger: Ledger) -> Iterator[tuple[PodName, list[pb.ContainerResources]]]:
    named = (
        (parts_in_pod(entry.decision.request.name), entry.container_id, entry.decision)
        for entry in ledger.entries.values()
    )
    in_pods = sorted(
        ((parts, container_id, decision) for parts, container_id, decision in named if parts is not None),
        key=lambda one: one[:2],
    )
    for (namespace, pod), containers in groupby(in_pods, key=lambda one: one[0][:2]):
        yield (namespace, pod), list(_containers((name[2], decision) for name, _, decision in containers))


def _containers(decisions: Iterable[tuple[str, Decision]]) -> Iterator[pb.ContainerResources]:
    """The containers of one pod. What several share, because the pod has it as a whole or through a resource
    claim, is that of the first: who counts it is not to find it twice."""
    listed, claims = CpuSet(), set[str]()
    for name, decision in decisions:
        cpus, share = decision.placement.own_cpus - listed, decision.request.claimed
        listed |= cpus
        is_new = share is not None and claims.isdisjoint(share.uids)
        claims.update(() if share is None else share.uids)
        memory = _assigned_memory(decision.placement, decision.promises if is_new else ())
        yield pb.ContainerResources(name=name, cpu_ids=cpus, memory=memory)


def _assigned_memory(placement: Placement, promises: Parts) -> list[pb.ContainerMemory]:
    """A block for each resource and set of nodes that a claim has a part on; of bookings, on the nodes of the
    container. *promises* are those of a container whose resource claims are listed with it."""
    if placement.mems is None:
        return []
    promise = placement.promise
    parts = promises or promise.claimed_parts or ((placement.mems, promise.amounts_bytes),)
    rows = [(resource, amount, nodes) for nodes, amounts in parts for resource, amount in amounts.items()]
    rows.sort(key=lambda row: (row[0], row[2].mask))
    return [_block(resource, amount, nodes) for resource, amount, nodes in rows if amount]


def _block(resource: str, amount_bytes: int, nodes: NodeSet) -> pb.ContainerMemory:
    topology = pb.TopologyInfo(nodes=[pb.NUMANode(ID=node) for node in nodes])
    return pb.ContainerMemory(memory_type=resource, size=amount_bytes, topology=topology)


def _add_kubelets(ours: pb.PodResources, theirs: pb.PodResources) -> None:
    """Add to the pod what kubelet says of it. A container of a name that occurs twice, because the one before
    has not ended yet, is listed once. What kubelet (1.37) assigned to a pod as a whole is the pod's unless
    bayplan assigned something to a container of it."""
    if not any(one.cpu_ids for one in ours.containers):
        ours.cpu_ids.extend(theirs.cpu_ids)
    if not any(one.memory for one in ours.containers):
        ours.memory.extend(theirs.memory)
    containers = {one.name: one for one in ours.containers}
    for container in theirs.containers:
        name = container.name
        one = containers[name] if name in containers else ours.containers.add(name=name)
        one.devices.extend(container.devices)
        one.dynamic_resources.extend(container.dynamic_resources)
        if not one.cpu_ids:
            one.cpu_ids.extend(container.cpu_ids)
        if not one.memory:
            one.memory.extend(container.memory)


DEADLINE_S: Final = 2.0
FAILURE_HOLDS_S: Final = 1.0
MAX_ANSWER_BYTES: Final = 16 << 20
"""What kubelet's clients allow; grpc's own limit is 4 MiB."""

_LIST: Final = "/v1.PodResourcesLister/List"
_ALLOCATABLE: Final = "/v1.PodResourcesLister/GetAllocatableResources"


class KubeletPodResources:
    """The client of the service at *socket*. Without one, where nobody serves there, or where this user may
    not connect, the answers are empty. A kubelet that is there and does not answer is an error: without its
    devices an answer would say that they are free."""

    def __init__(
        self,
        socket: Path | None,
        deadline_s: float = DEADLINE_S,
        failure_holds_s: float = FAILURE_HOLDS_S,
    ) -> None:
        self._socket = socket
        self._deadline_s = deadline_s
        self._failure_holds_s = failure_holds_s
        self._channel: Any = None
        self._calls: dict[str, asyncio.Task[Any]] = {}
        self._failure: UnavailableError | None = None
        self._failed_at_s = 0.0
        self._condition = Condition(
            "kubelet's PodResources are missing", "kubelet's PodResources are there again"
        )

    async def pods(self) -> pb.ListPodResourcesResponse:
        """What the containers of all pods have.

        Raises:
            UnavailableError: kubelet is there and does not answer.
        """
        if not self._reachable():
            return pb.ListPodResourcesResponse()
        answer: pb.ListPodResourcesResponse = await self._shared_call(
            _LIST, pb.ListPodResourcesRequest(), pb.ListPodResourcesResponse
        )
        return answer

    async def allocatable(self) -> pb.AllocatableResourcesResponse:
        """What containers can be assigned; raises like `pods`."""
        if not self._reachable():
            return pb.AllocatableResourcesResponse()
        answer: pb.AllocatableResourcesResponse = await self._shared_call(
            _ALLOCATABLE, pb.AllocatableResourcesRequest(), pb.AllocatableResourcesResponse
        )
        return answer

    async def close(self) -> None:
        """Give up what is under way, and disconnect."""
        calls = list(self._calls.values())
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        if self._channel is not None:
            await self._channel.close()
            self._channel = None

    def _reachable(self) -> bool:
        if self._socket is None:
            return False
        if os.access(self._socket, os.R_OK | os.W_OK):
            return True
        self._condition.holds(f"{self._socket}: not there, or not for this user; devices are not passed on")
        return False

    async def _shared_call(self, method: str, request: Any, answer_type: Any) -> Any:
        """The answer to the call under way, or to a new one. It goes on for the others if one caller is
        gone."""
        loop = asyncio.get_running_loop()
        if self._failure is not None and loop.time() < self._failed_at_s + self._failure_holds_s:
            raise UnavailableError(self._failure.subject, self._failure.problem)
        call = self._calls.get(method)
        if call is None:
            call = self._calls[method] = loop.create_task(self._call(method, request, answer_type))
            call.add_done_callback(lambda done: self._ended(method, done))
        return await asyncio.shield(call)

    def _ended(self, method: str, call: asyncio.Task[Any]) -> None:
        del self._calls[method]
        if not call.cancelled():
            call.exception()  # read here too, as perhaps nobody waits for it any more

    async def _call(self, method: str, request: Any, answer_type: Any) -> Any:
        if self._channel is None:
            options = [("grpc.max_receive_message_length", MAX_ANSWER_BYTES), ("grpc.enable_http_proxy", 0)]
            self._channel = grpc.aio.insecure_channel(f"unix:{self._socket}", options=options)
        call = self._channel.unary_unary(method, request_serializer=type(request).SerializeToString)
        try:
            answer = decoded(answer_type, await call(request, timeout=self._deadline_s))
        except grpc.aio.AioRpcError as error:
            self._failure = self._failed(f"kubelet does not answer: {error.code().name}: {error.details()}")
            raise self._failure from error
        except ParseError as error:
            self._failure = self._failed(f"kubelet's answer cannot be read: {error}")
            raise self._failure from error
        self._failure = None
        self._condition.over()
        return answer

    def _failed(self, problem: str) -> UnavailableError:
        failure = UnavailableError(str(self._socket), problem)
        self._failed_at_s = asyncio.get_running_loop().time()
        self._condition.holds(str(failure))
        return failure


logger = logging.getLogger(__name__)

SERVICE: Final = "v1.PodResourcesLister"

MAX_CALLS: Final = 64
MAX_REQUEST_BYTES: Final = 4096
"""A request names one pod at most."""

_OPTIONS: Final = (
    ("grpc.max_receive_message_length", MAX_REQUEST_BYTES),
    ("grpc.max_metadata_size", MAX_REQUEST_BYTES),
    ("grpc.server_handshake_timeout_ms", 5_000),
    # Clients connect again by themselves when they have something to ask.
    ("grpc.max_connection_idle_ms", 60_000),
    ("grpc.max_concurrent_streams", 16),
    ("grpc.so_reuseport", 0),
)
_GRACE_S: Final = 1.0


class PodResourcesService:
    """Serves `v1.PodResourcesLister` at *path* from `start` to `close`.

    *snapshot* gives the daemon's state as it is known, None while it is not. *kubelet* adds what only kubelet
    knows.
    """

    def __init__(
        self, path: Path, snapshot: Callable[[], Snapshot | None], kubelet: KubeletPodResources
    ) -> None:
        self._path = path
        self._snapshot = snapshot
        self._kubelet = kubelet
        self._server: Any = None

    async def start(self) -> None:
        """Make the socket and serve.

        Raises:
            UnavailableError: another process serves there, or the path is a file that is not a socket.
            HostError: the socket cannot be made.
        """
        make_place(self._path)
        server = grpc.aio.server(options=_OPTIONS, maximum_concurrent_rpcs=MAX_CALLS)
        server.add_generic_rpc_handlers((self._handlers(),))
        try:
            with for_owner_and_group():
                server.add_insecure_port(f"unix:{self._path}")
        except RuntimeError as error:
            raise HostError(str(self._path), f"the PodResources socket cannot be made: {error}") from error
        await server.start()
        self._server = server

    async def close(self) -> None:
        """Finish the calls under way, or give them up after a second; remove the socket."""
        if self._server is not None:
            await self._server.stop(_GRACE_S)
            self._server = None
        await self._kubelet.close()

    def _handlers(self) -> Any:
        handlers = {
            "List": unary_method(self._list, pb.ListPodResourcesRequest),
            "Get": unary_method(self._get, pb.GetPodResourcesRequest),
            "GetAllocatableResources": unary_method(self._allocatable, pb.AllocatableResourcesRequest),
        }
        return grpc.method_handlers_generic_handler(SERVICE, handlers)

    async def _list(self, _: pb.ListPodResourcesRequest, context: Any) -> pb.ListPodResourcesResponse:
        snapshot = await self._known(context)
        try:
            return list_answer(snapshot.ledger, await self._kubelet.pods())
        except UnavailableError as error:
            await _unavailable(context, str(error))

    async def _get(self, request: pb.GetPodResourcesRequest, context: Any) -> pb.GetPodResourcesResponse:
        pod = request.pod_namespace, request.pod_name
        found = get_answer(await self._list(pb.ListPodResourcesRequest(), context), pod)
        if found is None:
            text = f"pod {request.pod_name} in namespace {request.pod_namespace} not found"
            await context.abort(grpc.StatusCode.NOT_FOUND, text)
            raise AssertionError(text)
        return found

    async def _allocatable(
        self, _: pb.AllocatableResourcesRequest, context: Any
    ) -> pb.AllocatableResourcesResponse:
        snapshot = await self._known(context)
        try:
            kubelet = await self._kubelet.allocatable()
        except UnavailableError as error:
            await _unavailable(context, str(error))
        return allocatable_answer(Allocatable(snapshot.machine, snapshot.policy), kubelet)

    async def _known(self, context: Any) -> Snapshot:
        snapshot = self._snapshot()
        if snapshot is None:
            await _unavailable(context, "baypland has not said yet what it promised")
        return snapshot


async def _unavailable(context: Any, text: str) -> NoReturn:
    await context.abort(grpc.StatusCode.UNAVAILABLE, text)
    raise AssertionError(text)  # abort() raises
