"""What kubelet asks of the driver about claims, from the API server's object to the daemon's promise; and the
two sockets that kubelet finds it at.

kubelet's request only names a claim, so that its allocation is read from the API server. Nothing is kept
here: the daemon holds the claims, and the same request has the same answer again, of this agent or the next
one. A claim that nobody needs any more is released although kubelet did not ask: the API server says so.

kubelet looks through the directory of its plugins' sockets and all below. So the first socket is in a
directory of the driver's own there, which is all that an agent without privileges needs to be given. A
socket that is gone means for kubelet that the driver is gone, and half a minute later its slices are.
"""

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar
from weakref import WeakValueDictionary

import grpc
import msgspec
from msgspec import Struct

from bayplan._proto.dra import api_pb2 as pb
from bayplan._proto.dra import health_pb2
from bayplan._proto.plugin_registration import api_pb2 as registration
from bayplan.agent.cluster.api import Api, ApiError
from bayplan.agent.dra.slices import API_GROUP, API_VERSION, CPU, device_name, node_of_device, resource_of_key
from bayplan.agent.grpc_sockets import for_owner_and_group, make_place, unary_method
from bayplan.agent.mirror import DaemonLink, Mirror
from bayplan.agent_protocol import PREPARE_CLAIM, UNPREPARE_CLAIM
from bayplan.backoff import drawn
from bayplan.errors import BayplanError, HostError, ParseError, UnavailableError
from bayplan.logs import Condition
from bayplan.model.claims import DRIVER, AllocatedDevice, HeldClaim, ResourceClaim, claim_key
from bayplan.placement.shortfall import lost_cpus, overclaims
from bayplan.quantity import parse_bytes
from bayplan.sets import NodeSet
from bayplan.views.snapshot import Snapshot

logger = logging.getLogger(__name__)

LOOK_INTERVAL_S: Final = 300.0
"""Between two looks whether held claims are still needed, at most, at least half of it: kubelet releases them
itself, mostly."""

PREPARED: Final = "Prepared"
"""The type of the condition in the status of each device of a claim."""

MOST_MESSAGE: Final = 1024
_POD: Final = "pods"
Answer = TypeVar("Answer", pb.NodePrepareResourceResponse, pb.NodeUnprepareResourceResponse)


class _Metadata(Struct, frozen=True):
    uid: str = ""


class _Consumer(Struct, frozen=True):
    uid: str = ""
    resource: str = ""


class _Result(Struct, frozen=True, rename="camel"):
    request: str
    driver: str
    pool: str
    device: str
    share_id: str | None = msgspec.field(default=None, name="shareID")
    consumed_capacity: dict[str, str] = {}
    admin_access: bool | None = None


class _Devices(Struct, frozen=True):
    results: tuple[_Result, ...] = ()


class _Allocation(Struct, frozen=True):
    devices: _Devices = _Devices()


class _Condition(Struct, frozen=True):
    type: str = ""
    status: str = ""
    message: str = ""


class _DeviceStatus(Struct, frozen=True):
    driver: str = ""
    conditions: tuple[_Condition, ...] | None = None


class _Status(Struct, frozen=True, rename="camel"):
    allocation: _Allocation | None = None
    reserved_for: tuple[_Consumer, ...] = ()
    devices: tuple[_DeviceStatus, ...] | None = None

    @property
    def said(self) -> str:
        """What was written there last: why it was not prepared; empty if it was, or nothing was."""
        own = (one for one in self.devices or () if one.driver == DRIVER)
        conditions = (each for one in own for each in one.conditions or ())
        return next((one.message for one in conditions if (one.type, one.status) == (PREPARED, "False")), "")


class ClaimObject(Struct, frozen=True):
    """A ResourceClaim, as far as it is used."""

    metadata: _Metadata
    status: _Status = _Status()

    @property
    def results(self) -> tuple[_Result, ...]:
        """All that is allocated to the claim."""
        return () if self.status.allocation is None else self.status.allocation.devices.results

    @property
    def own(self) -> list[_Result]:
        """What of this driver is allocated to the claim."""
        return [one for one in self.results if one.driver == DRIVER]


class ClaimError(BayplanError):
    """A claim cannot be prepared: *problem* is what kubelet puts into an event of its pod."""

    def __init__(self, namespace: str, name: str, problem: str) -> None:
        super().__init__(namespace, name, problem)
        self.namespace = namespace
        self.name = name
        self.problem = problem

    def __str__(self) -> str:
        return f"resource claim {self.namespace}/{self.name}: {self.problem}"


class ClaimDriver:
    """Has the daemon behind *link* hold the claims of the node *node_name*. The claims are worked on one at a
    time, and what is done about a claim follows the look at the API server without anything in between, so
    that nothing is held or released by what an earlier look found."""

    def __init__(
        self,
        api: Api,
        link: DaemonLink,
        mirror: Mirror,
        node_name: str,
        look_interval_s: float = LOOK_INTERVAL_S,
    ) -> None:
        self._api = api
        self._link = link
        self._mirror = mirror
        self._node_name = node_name
        self._look_interval_s = look_interval_s
        self._one_question = asyncio.Lock()
        self._by_uid: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._unsaid = Condition(
            "the status of claims does not say why they are not prepared",
            "the status of claims says why they are not prepared again",
        )

    async def prepare(self, claim: pb.Claim) -> pb.NodePrepareResourceResponse:
        """As of `Claims`: held by the daemon, which the claim's status says then, or why it is not."""
        async with self._alone(claim.uid):
            found = None
            try:
                found = await self._found(claim)
                described = allocated_here(claim, found, self._node_name)
                answer = await self._ask(PREPARE_CLAIM, claim=msgspec.to_builtins(described))
            except BayplanError as error:
                if found is not None:
                    await self._say(claim, found, error.on_one_line()[:MOST_MESSAGE])
                raise
            await self._say(claim, found, "")
            return _answered(found.own, answer["cdiDevices"])

    async def unprepare(self, claim: pb.Claim) -> str:
        """As of `Claims`."""
        async with self._alone(claim.uid):
            return await self._released(claim.uid)

    def _alone(self, uid: str) -> asyncio.Lock:
        return self._by_uid.setdefault(uid, asyncio.Lock())

    async def _ask(self, verb: str, **request: Any) -> dict[str, Any]:
        async with self._one_question:
            return await self._link.ask(verb, **request)

    async def run(self) -> None:
        """Release claims that are held and no longer needed, until cancelled. Of claims that containers run
        on, which are most, the API server is not asked: they cannot be released."""
        while True:
            await asyncio.sleep(drawn(random.random, self._look_interval_s / 2, self._look_interval_s))
            snapshot = self._mirror.snapshot
            if snapshot is None or not self._mirror.connected:
                continue
            ledger = snapshot.ledger
            shares = (entry.decision.request.claimed for entry in ledger.entries.values())
            used = {uid for share in shares if share is not None for uid in share.uids}
            for held in ledger.resource_claims.values():
                if held.claim.uid not in used:
                    await self._release_if_needless(held)

    async def _release_if_needless(self, held: HeldClaim) -> None:
        claim = held.claim
        # As a whole before or after a preparation: a pod that gets the claim now has to find it held.
        async with self._alone(claim.uid):
            if await self._is_needed(held):
                return
            problem = await self._released(claim.uid)
        fields = {"claim": f"{claim.namespace}/{claim.name}", "problem": problem}
        logger.warning("a resource claim was held, and nobody needs it", extra=fields)

    async def _say(self, claim: pb.Claim, claim_object: ClaimObject, problem: str) -> None:
        """Write into the claim's status that it is prepared, or the *problem*: kubelet's event on the pod has
        it too, and goes after an hour. Nothing is written where it says so."""
        if claim_object.status.said == problem:
            return
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        condition = {
            "type": PREPARED,
            "status": "False" if problem else "True",
            "reason": "NotPrepared" if problem else "Prepared",
            "message": problem,
            "lastTransitionTime": now,
        }
        devices = [
            {
                "driver": one.driver,
                "pool": one.pool,
                "device": one.device,
                **({} if one.share_id is None else {"shareID": one.share_id}),
                "conditions": [condition],
            }
            for one in claim_object.own
        ]
        applied = {
            "apiVersion": f"{API_GROUP}/{API_VERSION}",
            "kind": "ResourceClaim",
            "metadata": {"name": claim.name, "namespace": claim.namespace, "uid": claim.uid},
            "status": {"devices": devices},
        }
        try:
            await self._api.apply(f"{claim_path(claim.namespace, claim.name)}/status", applied, ClaimObject)
        except (ApiError, UnavailableError) as error:
            self._unsaid.holds(str(error))
        else:
            self._unsaid.over()

    async def _found(self, claim: pb.Claim) -> ClaimObject:
        """*claim* as the API server has it, with something that was allocated here.

        Raises:
            ClaimError: it is another one, or is not allocated.
            BayplanError: it cannot be read.
        """
        found = await self._api.get(claim_path(claim.namespace, claim.name), ClaimObject)
        if found.metadata.uid != claim.uid:
            problem = f"its uid is {found.metadata.uid} now, and kubelet asks for {claim.uid}"
            raise ClaimError(claim.namespace, claim.name, problem)
        if not found.own:
            raise ClaimError(claim.namespace, claim.name, f"nothing of {DRIVER} is allocated to it")
        return found

    async def _released(self, uid: str) -> str:
        """Why the claim *uid* is still held; empty if it is not."""
        try:
            await self._ask(UNPREPARE_CLAIM, uid=uid)
        except BayplanError as error:
            return error.on_one_line()
        return ""

    async def _is_needed(self, held: HeldClaim) -> bool:
        """Whether a claim is still allocated on this node, and reserved for a pod; also if that cannot be
        seen. For which pod it is held says nothing: the next one may have it already."""
        claim, adopted = held.claim, held.adopted
        try:
            found = await self._api.get(claim_path(claim.namespace, claim.name), ClaimObject)
        except ApiError as error:
            return error.status != HTTPStatus.NOT_FOUND
        except BayplanError:
            return True
        pools = {self._node_name} if adopted is None else {one.pool for one in adopted.devices}
        driver = DRIVER if adopted is None else adopted.driver
        here = any(one.driver == driver and one.pool in pools for one in found.results)
        return found.metadata.uid == claim.uid and here and bool(found.status.reserved_for)


def allocated_here(claim: pb.Claim, found: ClaimObject, node_name: str) -> ResourceClaim:
    """What of the node *node_name* was allocated to *claim*, which the API server has as *found*; raises
    ClaimError if that cannot be held."""
    try:
        devices = tuple(_device(one, node_name) for one in found.own)
    except ParseError as error:
        raise ClaimError(claim.namespace, claim.name, str(error)) from error
    pods = tuple(one.uid for one in found.status.reserved_for if one.resource == _POD)
    return ResourceClaim(claim.namespace, claim.name, claim.uid, pods, devices)


def _device(result: _Result, node_name: str) -> AllocatedDevice:
    node = node_of_device(result.device)
    if node is None or result.pool != node_name:
        expected = f"numa-NODE of the pool {node_name}"
        raise ParseError("device", f"{result.device} of the pool {result.pool}", expected)
    # An administrator's access takes nothing of a device: the scheduler does not count it either.
    consumed = {} if result.admin_access else result.consumed_capacity
    amounts = {resource_of_key(key): _amount(key, text) for key, text in consumed.items()}
    cpus = amounts.pop(CPU, 0)
    held = {resource: amount for resource, amount in sorted(amounts.items()) if amount}
    return AllocatedDevice(_request_name(result), node, held, cpus)


def _amount(key: str, text: str) -> int:
    try:
        return parse_bytes(text)
    except ParseError as error:
        raise ParseError(f"consumed capacity {key}", text, "a quantity of 0 or more") from error


def claim_path(namespace: str, name: str) -> str:
    """Where the API server has a claim."""
    return f"/apis/{API_GROUP}/{API_VERSION}/namespaces/{namespace}/resourceclaims/{name}"


def _request_name(result: _Result) -> str:
    """The name of the request: of one of several alternatives, what stands before the slash."""
    return result.request.partition("/")[0]


def _answered(results: Iterable[_Result], cdi_devices: Mapping[str, Any]) -> pb.NodePrepareResourceResponse:
    """The devices of a claim. The CDI device of a request is named with the first of its devices: kubelet
    hands on all of them."""
    answer, named = pb.NodePrepareResourceResponse(), set[str]()
    for result in results:
        request = _request_name(result)
        ids = [] if request in named else [str(cdi_devices[request])]
        named.add(request)
        answer.devices.add(
            request_names=[request],
            pool_name=result.pool,
            device_name=result.device,
            cdi_device_ids=ids,
            share_id=result.share_id,
        )
    return answer


PLUGIN: Final = "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"
HEALTH: Final = "v1.DRAResourceHealth"
REGISTRATION: Final = "pluginregistration.Registration"
VERSIONS: Final = ("v1.DRAPlugin", "v1.DRAResourceHealth")

REPEAT_S: Final = 10.0
"""Health that kubelet has not heard of for three times as long is unknown to it."""
_MAX_REQUEST_BYTES: Final = 1 << 20
_MAX_CALLS: Final = 256
"""kubelet asks for each pod by itself."""
_GRACE_S: Final = 1.0


class Claims(Protocol):
    """Answers kubelet's questions about claims."""

    async def prepare(self, claim: pb.Claim) -> pb.NodePrepareResourceResponse:
        """The devices of *claim*, which is held from now on; raises BayplanError if it is not."""
        ...

    async def unprepare(self, claim: pb.Claim) -> str:
        """Why *claim* is still held; empty if it is not, also where nobody knows it."""
        ...


class DraService:
    """Serves kubelet from `start` to `close` as the driver *name*: registration below *registry*, the driver
    below *plugins*, in our own directories both. The health of devices is told of our own ones."""

    def __init__(
        self,
        plugins: Path,
        registry: Path,
        node_name: str,
        driver: Claims,
        mirror: Mirror,
        repeat_s: float = REPEAT_S,
        name: str = DRIVER,
    ) -> None:
        self.endpoint = plugins / DRIVER / ("dra.sock" if name == DRIVER else f"{name}.sock")
        self.registrar = registry / DRIVER / f"{name}-reg.sock"
        self._name = name
        self._node_name = node_name
        self._driver = driver
        self._mirror = mirror
        self._repeat_s = repeat_s
        self._condition = Condition(
            "kubelet does not take the DRA driver", "kubelet takes the DRA driver again"
        )
        self._servers: list[Any] = []

    async def start(self) -> None:
        """Make the sockets and serve: first what kubelet connects to when it finds the other.

        Raises:
            UnavailableError: another process serves there, or a path is a file that is not a socket.
            HostError: a socket cannot be made.
        """
        services = {
            PLUGIN: {
                "NodePrepareResources": unary_method(self._prepare, pb.NodePrepareResourcesRequest),
                "NodeUnprepareResources": unary_method(self._unprepare, pb.NodeUnprepareResourcesRequest),
            },
        }
        if self._name == DRIVER:
            services[HEALTH] = {"NodeWatchResources": _stream(self._health)}
        try:
            await self._serve(self.endpoint, services)
            await self._serve(self.registrar, {REGISTRATION: self._registrar()})
        except BayplanError:
            await self.close()
            raise

    def _registrar(self) -> dict[str, Any]:
        return {
            "GetInfo": unary_method(self._info, registration.InfoRequest),
            "NotifyRegistrationStatus": unary_method(self._registered, registration.RegistrationStatus),
        }

    async def close(self) -> None:
        """Finish the calls under way, or give them up after a second; remove the sockets."""
        while self._servers:
            await self._servers.pop().stop(_GRACE_S)

    async def _serve(self, path: Path, services: dict[str, dict[str, Any]]) -> None:
        make_place(path)
        options = (("grpc.max_receive_message_length", _MAX_REQUEST_BYTES), ("grpc.so_reuseport", 0))
        server = grpc.aio.server(options=options, maximum_concurrent_rpcs=_MAX_CALLS)
        self._servers.append(server)
        handlers = (grpc.method_handlers_generic_handler(name, one) for name, one in services.items())
        server.add_generic_rpc_handlers(tuple(handlers))
        try:
            with for_owner_and_group():
                server.add_insecure_port(f"unix:{path}")
        except RuntimeError as error:
            raise HostError(str(path), f"the DRA driver's socket cannot be made: {error}") from error
        await server.start()

    async def _info(self, _: registration.InfoRequest, __: Any) -> registration.PluginInfo:
        return registration.PluginInfo(
            type="DRAPlugin",
            name=self._name,
            endpoint=str(self.endpoint),
            supported_versions=VERSIONS if self._name == DRIVER else VERSIONS[:1],
        )

    async def _registered(
        self, status: registration.RegistrationStatus, _: Any
    ) -> registration.RegistrationStatusResponse:
        if status.plugin_registered:
            logger.info("kubelet has registered the DRA driver")
            self._condition.over()
        else:
            self._condition.holds(status.error)
        return registration.RegistrationStatusResponse()

    async def _prepare(
        self, asked: pb.NodePrepareResourcesRequest, _: Any
    ) -> pb.NodePrepareResourcesResponse:
        answer = pb.NodePrepareResourcesResponse()
        for claim in asked.claims:
            answer.claims[claim.uid].CopyFrom(await self._prepared(claim))
        return answer

    async def _prepared(self, claim: pb.Claim) -> pb.NodePrepareResourceResponse:
        try:
            return await self._driver.prepare(claim)
        except BayplanError as error:
            problem = error.on_one_line()
            logger.warning("a resource claim is not prepared", extra=_fields(claim, problem))
            return pb.NodePrepareResourceResponse(error=problem)

    async def _unprepare(
        self, asked: pb.NodeUnprepareResourcesRequest, _: Any
    ) -> pb.NodeUnprepareResourcesResponse:
        answer = pb.NodeUnprepareResourcesResponse()
        for claim in asked.claims:
            problem = await self._driver.unprepare(claim)
            if problem:
                logger.warning("a resource claim is not released", extra=_fields(claim, problem))
            answer.claims[claim.uid].error = problem
        return answer

    async def _health(self) -> AsyncIterator[health_pb2.NodeWatchResourcesResponse]:
        """All devices, whenever something is new, and now and then again however often the mirror changes."""
        loop = asyncio.get_running_loop()
        said: dict[str, str] | None = None
        due_s = 0.0
        while True:
            seen, snapshot = self._mirror.revision, self._mirror.snapshot
            if snapshot is not None and self._mirror.connected:
                problems = await asyncio.to_thread(device_problems, snapshot)
                if problems != said or loop.time() >= due_s:
                    said, due_s = problems, loop.time() + self._repeat_s
                    yield _health_answer(self._node_name, problems)
            left_s = due_s - loop.time()
            with suppress(TimeoutError):
                async with asyncio.timeout(left_s if left_s > 0 else self._repeat_s):
                    await self._mirror.wait_for_change(seen)


def _fields(claim: pb.Claim, problem: str) -> dict[str, str]:
    """What a line of the log says of *claim*."""
    return {"claim": f"{claim.namespace}/{claim.name}", "uid": claim.uid, "problem": problem}


def device_problems(snapshot: Snapshot) -> dict[str, str]:
    """What is wrong with each device of *snapshot*, and of those that claims hold something of; empty for
    nothing. Its node is gone, or was promised more than it has; CPUs of a claim there are offline; or a
    container is not where its claims have it."""
    machine, ledger = snapshot.machine, snapshot.ledger
    held = {node for claim in ledger.resource_claims.values() for node in claim.by_node()}
    problems = dict.fromkeys(sorted({*machine.node_ids, *held}), "")
    for nodes, problem in _problems(snapshot):
        for node in problems.keys() & set(nodes):
            problems[node] = problems[node] or problem
    for node in problems.keys() - set(machine.node_ids):
        problems[node] = problems[node] or f"node {node} is gone"
    return {device_name(node): problem for node, problem in problems.items()}


def _problems(snapshot: Snapshot) -> Iterator[tuple[NodeSet, str]]:
    """Nodes, and what is wrong there, the worst first."""
    ledger = snapshot.ledger
    yield from ((one.shortage.nodes, str(one)) for one in overclaims(snapshot.basis))
    for one in lost_cpus(snapshot.basis):
        if (held := ledger.resource_claims.get(one.container_id)) is not None:
            yield held.nodes_of(one.lost), str(one)
    for drifted in snapshot.drift:
        entry = ledger.entries.get(drifted.container_id)
        share = None if entry is None else entry.decision.request.claimed
        if share is not None:
            its = (held for uid in share.uids if (held := ledger.resource_claims.get(claim_key(uid))))
            nodes = NodeSet(node for held in its for node in held.nodes_of(share.cpus))
            yield share.nodes | nodes, drifted.difference


def _health_answer(pool: str, problems: dict[str, str]) -> health_pb2.NodeWatchResourcesResponse:
    answer, now_s = health_pb2.NodeWatchResourcesResponse(), int(time.time())
    for name, problem in problems.items():
        one = answer.devices.add(
            health=health_pb2.UNHEALTHY if problem else health_pb2.HEALTHY,
            last_updated_time=now_s,
            message=problem[:MOST_MESSAGE],
        )
        one.device.pool_name, one.device.device_name = pool, name
    return answer


def _stream(answers: Any) -> Any:
    async def answer_bytes(_: bytes, __: Any) -> AsyncIterator[Any]:
        async for one in answers():
            yield one

    return grpc.unary_stream_rpc_method_handler(
        answer_bytes, response_serializer=lambda message: message.SerializeToString()
    )
