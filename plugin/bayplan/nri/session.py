"""Connect to the runtime, register, serve, and when the connection ends, start again.

Never two connections at once: a runtime keeps both, and two plugins of the same name conflict in every
container. The next attempt begins when the socket of the last one is closed.

A connection answers at once what needs no decision; everything else waits for its turn in the queue.
Reading never waits for any of it.
"""

import asyncio
import logging
import os
from collections.abc import Callable
from functools import partial
from typing import Final

from google.protobuf.message import DecodeError

from bayplan._proto.nri import api_pb2 as pb
from bayplan.backoff import Backoff
from bayplan.errors import UnavailableError
from bayplan.nri.handler import EndlessListError, Handler, PayloadError
from bayplan.nri.request_queue import Clock, RequestQueue, Timeouts, Timer, wait
from bayplan.nri.translate import METHODS, Inventory, Synchronize, decode, runtime_from
from bayplan.nri.transport import Endpoint, Identity, Link
from bayplan.nri.versions import SPOKEN, Runtime, events_of
from bayplan.nri.wire import Code, Role, TtrpcRequest, TtrpcResponse
from bayplan.printable import printable

logger = logging.getLogger(__name__)

PLUGIN_SERVICE: Final = "nri.pkg.api.v1alpha1.Plugin"
RUNTIME_SERVICE: Final = "nri.pkg.api.v1alpha1.Runtime"


class RuntimeConnection(Link):
    """One connection. ``ended`` is done, with the reason, when the socket is closed; *notify* is called with
    the outcome of each Synchronize, while the connection is open."""

    def __init__(
        self,
        handler: Handler,
        identity: Identity,
        queue: RequestQueue,
        clock: Clock,
        registration_timeout_s: float,
        notify: Callable[[bool], None],
    ) -> None:
        super().__init__(Role.PLUGIN, self._receive_message, self._lost)
        self._handler = handler
        self._identity = identity
        self._queue = queue
        self._clock = clock
        self._registration_timeout_s = registration_timeout_s
        self._notify = notify
        self._inventory = Inventory()
        self._registered = False
        self._timer: Timer | None = None
        self.runtime: Runtime | None = None
        self.synchronized = False
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    # ---- Registration --------------------------------------------------------------------------------

    def register(self) -> None:
        """Ask the runtime to take us. Once per connection: it accepts a second time silently and hangs at the
        third. Should the connection be gone already, ``ended`` says so."""
        if not self.open:
            return
        message = pb.RegisterPluginRequest(
            plugin_name=self._identity.name, plugin_idx=self._identity.index, NRI_version=SPOKEN
        )
        deadline = self._clock.time() + self._registration_timeout_s
        self._timer = self._clock.call_at(deadline, self._not_accepted)
        self.send(self.wire.request(RUNTIME_SERVICE, "RegisterPlugin", message.SerializeToString()))

    def _accepted(self, response: TtrpcResponse) -> None:
        if response.code is not Code.OK:
            # The runtime leaves the connection open and would wait for ever.
            self.abort(f"registration refused: {response.code.name}: {response.message}")
            return
        self._registered = True
        self._check_accepted()

    def _check_accepted(self) -> None:
        # Configure comes from another thread of the runtime, often before the reply to the registration.
        if self._registered and self.runtime is not None and self._timer is not None:
            self._timer.cancel()

    def _not_accepted(self) -> None:
        self.abort(f"not registered within {self._registration_timeout_s:g} s")

    # ---- What the runtime says -----------------------------------------------------------------------

    def _receive_message(self, message: TtrpcRequest | TtrpcResponse) -> None:
        if isinstance(message, TtrpcResponse):
            self._accepted(message)  # to the registration: we make no other call
            return
        try:
            self._route(message)
        except PayloadError as error:
            # An error status would stop a container; to Configure and Synchronize it is the right answer.
            logger.error("unreadable request", extra={"problem": str(error)})  # noqa: TRY400 - expected, so that a traceback says nothing
            code = Code.OK if message.method in METHODS else Code.INVALID_ARGUMENT
            self.send(TtrpcResponse(message.stream_id, code, printable(str(error))))
            if isinstance(error, EndlessListError):
                self.close(str(error))

    def _route(self, request: TtrpcRequest) -> None:
        method = request.method
        if request.service != PLUGIN_SERVICE:
            self._decline(request, f"service {request.service}")
        elif method in METHODS:
            operation = decode(method, request.payload)
            if operation is None:
                self.send(TtrpcResponse(request.stream_id))
            else:
                self._queue.put(operation, self, request.stream_id, request.timeout_ns)
        elif method == "Synchronize":
            self._synchronize(request)
        elif method == "Configure":
            self._configure(request)
        elif method == "ValidateContainerAdjustment":
            # We never subscribe to it; should it come, any other answer stops the container.
            self.send(TtrpcResponse(request.stream_id))
        elif method == "Shutdown":
            self.send(TtrpcResponse(request.stream_id))
            self.close("the runtime shuts down")
        else:
            self._decline(request, f"method {method}")

    def _decline(self, request: TtrpcRequest, what: str) -> None:
        logger.warning("unknown request", extra={"what": what})
        self.send(TtrpcResponse(request.stream_id, Code.UNIMPLEMENTED, printable(what)))

    def _configure(self, request: TtrpcRequest) -> None:
        try:
            runtime = runtime_from(pb.ConfigureRequest.FromString(request.payload))
        except DecodeError as error:
            raise PayloadError("Configure", f"cannot be decoded: {error}") from error
        mask = runtime.mask(self._handler.events(runtime))
        answer = pb.ConfigureResponse(events=mask)
        if self._handler.refuses_undecided():
            # After a timeout we go on: what was missed is undone, and the next request gets its answer.
            answer.failure_policy.CopyFrom(pb.FailurePolicy(fail_request=True, keep_connected=True))
        self.send(TtrpcResponse(request.stream_id, payload=answer.SerializeToString()))
        self.runtime = runtime
        self._check_accepted()
        logger.info("connected to the container runtime", extra=_description(runtime, mask))
        self._handler.connected(runtime)

    def _synchronize(self, request: TtrpcRequest) -> None:
        if self.runtime is None:
            raise PayloadError("Synchronize", "came before Configure")
        # One that cannot be read ends what was begun: the next message begins another.
        inventory, self._inventory = self._inventory, Inventory()
        if inventory.add(request.payload):
            self._inventory = inventory
            self.send(
                TtrpcResponse(
                    request.stream_id, payload=pb.SynchronizeResponse(more=True).SerializeToString()
                )
            )
            return
        operation = Synchronize(inventory.pods, inventory.containers)
        self._queue.put(operation, self, request.stream_id, request.timeout_ns)

    def synchronization_ended(self, *, succeeded: bool) -> None:
        """The handler has ended with the Synchronize; called by the queue."""
        self.synchronized = succeeded
        if self.open:
            self._notify(succeeded)

    def _lost(self, why: str) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self.ended.set_result(why)


def _description(runtime: Runtime, mask: int) -> dict[str, object]:
    """What the log says of a runtime, once per connection."""
    able = runtime.capabilities
    return {
        "runtime": runtime.name,
        "runtime_version": runtime.version,
        "nri_version": runtime.nri_version,
        "events": sorted(event.name for event in events_of(mask)),
        "capabilities": {name: getattr(able, name) for name in able.__struct_fields__},
        "request_timeout_ms": runtime.request_timeout_ms,
    }


_TIMEOUTS = Timeouts()

_RESYNCHRONIZE_FIRST_S: Final = 1.0
_RESYNCHRONIZE_LIMIT_S: Final = 60.0
"""Each attempt takes us out of the runtime's list for a moment."""

_LASTING_S: Final = 10.0
"""A connection that was of use for so long starts the delays from the beginning; a runtime that drops us at
the first event does not."""


def _random() -> float:
    """From 0 to 1. The standard library's takes a hash that nobody else has loaded."""
    return int.from_bytes(os.urandom(4), "big") / (1 << 32)


class Session:
    """Serves one runtime with one handler. Create it and use it within one event loop.

    *clock* is the loop's own unless a test moves the time itself; *jitter* gives numbers from 0 to below 1.
    *replied* is called with the seconds from the arrival of each request to its answer.
    """

    def __init__(
        self,
        handler: Handler,
        identity: Identity,
        endpoint: Endpoint,
        *,
        timeouts: Timeouts = _TIMEOUTS,
        clock: Clock | None = None,
        jitter: Callable[[], float] = _random,
        replied: Callable[[float], None] = lambda _: None,
    ) -> None:
        self._handler = handler
        self._identity = identity
        self._endpoint = endpoint
        self._timeouts = timeouts
        self._clock: Clock = clock if clock is not None else asyncio.get_running_loop()
        self._queue = RequestQueue(handler, self._clock, timeouts, replied)
        self._backoff = Backoff(jitter)
        self._resynchronize = Backoff(jitter, _RESYNCHRONIZE_FIRST_S, _RESYNCHRONIZE_LIMIT_S)
        self._connection: RuntimeConnection | None = None
        self._synchronized_at: float | None = None
        self._pause: asyncio.Future[None] | None = None
        self._closing = asyncio.Event()
        self._retry: Timer | None = None
        self._last_failure = ""

    @property
    def runtime(self) -> Runtime | None:
        """The runtime that we are connected to."""
        return self._connection.runtime if self._connection is not None else None

    @property
    def synchronized(self) -> bool:
        """Whether the handler knows what the runtime has, so that its decisions are asked for."""
        return self._connection is not None and self._connection.synchronized

    async def run(self) -> None:
        """Serve until `close`; with an endpoint that is good once, until its connection ends."""
        while not self._closing.is_set():
            why = await self._serve_connection()
            if self._closing.is_set():
                return
            if not self._endpoint.again:
                extra = {"endpoint": str(self._endpoint), "why": why}
                logger.warning("the only connection to the container runtime has ended", extra=extra)
                return
            await self._wait_to_reconnect(why)

    async def close(self) -> None:
        """End the session: answer what has been asked, then close the connection and let `run` return.

        Containers stay as they are. It takes no longer than a deadline.
        """
        self._closing.set()
        if self._pause is not None and not self._pause.done():
            self._pause.set_result(None)
        await wait(self._queue.when_idle(), self._timeouts.answer_s, self._clock)
        connection = self._connection
        if connection is not None:
            connection.close("we end the session")
            if not await wait(connection.ended, self._timeouts.answer_s, self._clock):
                connection.abort("the runtime does not read")

    def reconnect(self, why: str) -> None:
        """Give the connection up and get another, with a fresh Synchronize."""
        if self._connection is not None:
            self._connection.abort(why)

    async def _wait_to_reconnect(self, why: str) -> None:
        """Wait before the next attempt; a reason is logged once, however often it repeats."""
        delay_s = self._backoff.next_s()
        if why != self._last_failure:
            self._last_failure = why
            extra = {"endpoint": str(self._endpoint), "why": why, "next_attempt_ms": int(delay_s * 1000)}
            logger.warning("no connection to the container runtime", extra=extra)
        self._pause = asyncio.get_running_loop().create_future()
        await wait(self._pause, delay_s, self._clock)
        self._pause = None

    async def _serve_connection(self) -> str:
        """One connection from its beginning to its end; why it ended."""
        connection = RuntimeConnection(
            self._handler,
            self._identity,
            self._queue,
            self._clock,
            self._timeouts.registration_s,
            self._synchronization_ended,
        )
        try:
            await self._endpoint.connect(connection)
        except UnavailableError as error:
            return str(error)
        self._connection = connection
        self._synchronized_at = None
        try:
            if not self._closing.is_set():
                connection.register()
                await asyncio.shield(connection.ended)
        finally:
            connection.abort("we end the session")
            why = await connection.ended
            await self._leave(connection, why)
        return why

    async def _leave(self, connection: RuntimeConnection, why: str) -> None:
        """End what was begun on a connection that has ended."""
        if self._retry is not None:
            self._retry.cancel()
        self._queue.abandon("the connection ended")
        if not await wait(self._queue.when_idle(), self._timeouts.answer_s, self._clock):
            logger.error("a handler continues although it was cancelled")
        self._connection = None
        if self._synchronized_at is not None:
            self._last_failure = ""
            if self._clock.time() - self._synchronized_at >= _LASTING_S:
                self._backoff.reset()
        if connection.runtime is not None:
            try:
                self._handler.disconnected(why)
            except Exception:
                logger.exception("handler failed", extra={"event": "disconnected"})

    def _synchronization_ended(self, succeeded: bool) -> None:
        """A Synchronize of the current connection has ended; after one that failed, connect again."""
        if self._retry is not None:
            self._retry.cancel()
        if succeeded:
            self._synchronized_at = self._clock.time()
            self._resynchronize.reset()
            return
        delay_s = self._resynchronize.next_s()
        logger.error(
            "could not synchronize: all requests are answered by default",
            extra={"next_attempt_ms": int(delay_s * 1000)},
        )
        again = partial(self.reconnect, "to synchronize again")
        self._retry = self._clock.call_at(self._clock.time() + delay_s, again)
