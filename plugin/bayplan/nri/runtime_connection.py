"""One connection to a runtime, from registration to its end.

Answers at once what needs no decision; everything else waits for its turn in the queue. Reading never waits
for any of it.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from google.protobuf.message import DecodeError

from bayplan._proto.nri import api_pb2 as pb
from bayplan.nri.clock import Clock, Timer
from bayplan.nri.errors import EndlessListError, PayloadError
from bayplan.nri.events import events_of
from bayplan.nri.handler import Handler
from bayplan.nri.inventory import Inventory
from bayplan.nri.link import Link
from bayplan.nri.operations import METHODS, Synchronize, decode
from bayplan.nri.request_queue import RequestQueue
from bayplan.nri.translate import runtime_from
from bayplan.nri.transport import Identity
from bayplan.nri.versions import SPOKEN, Runtime
from bayplan.nri.wire import Code, Request, Response, Role
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

    def _accepted(self, response: Response) -> None:
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

    def _receive_message(self, message: Request | Response) -> None:
        if isinstance(message, Response):
            self._accepted(message)  # to the registration: we make no other call
            return
        try:
            self._route(message)
        except PayloadError as error:
            # An error status would stop a container; to Configure and Synchronize it is the right answer.
            logger.error("unreadable request", extra={"problem": str(error)})  # noqa: TRY400 - expected, so that a traceback says nothing
            code = Code.OK if message.method in METHODS else Code.INVALID_ARGUMENT
            self.send(Response(message.stream_id, code, printable(str(error))))
            if isinstance(error, EndlessListError):
                self.close(str(error))

    def _route(self, request: Request) -> None:
        method = request.method
        if request.service != PLUGIN_SERVICE:
            self._decline(request, f"service {request.service}")
        elif method in METHODS:
            operation = decode(method, request.payload)
            if operation is None:
                self.send(Response(request.stream_id))
            else:
                self._queue.put(operation, self, request.stream_id, request.timeout_ns)
        elif method == "Synchronize":
            self._synchronize(request)
        elif method == "Configure":
            self._configure(request)
        elif method == "ValidateContainerAdjustment":
            # We never subscribe to it; should it come, any other answer stops the container.
            self.send(Response(request.stream_id))
        elif method == "Shutdown":
            self.send(Response(request.stream_id))
            self.close("the runtime shuts down")
        else:
            self._decline(request, f"method {method}")

    def _decline(self, request: Request, what: str) -> None:
        logger.warning("unknown request", extra={"what": what})
        self.send(Response(request.stream_id, Code.UNIMPLEMENTED, printable(what)))

    def _configure(self, request: Request) -> None:
        try:
            runtime = runtime_from(pb.ConfigureRequest.FromString(request.payload))
        except DecodeError as error:
            raise PayloadError("Configure", f"cannot be decoded: {error}") from error
        mask = runtime.mask(self._handler.events(runtime))
        answer = pb.ConfigureResponse(events=mask)
        if self._handler.refuses_undecided():
            # After a timeout we go on: what was missed is undone, and the next request gets its answer.
            answer.failure_policy.CopyFrom(pb.FailurePolicy(fail_request=True, keep_connected=True))
        self.send(Response(request.stream_id, payload=answer.SerializeToString()))
        self.runtime = runtime
        self._check_accepted()
        logger.info("connected to the container runtime", extra=_description(runtime, mask))
        self._handler.connected(runtime)

    def _synchronize(self, request: Request) -> None:
        if self.runtime is None:
            raise PayloadError("Synchronize", "came before Configure")
        # One that cannot be read ends what was begun: the next message begins another.
        inventory, self._inventory = self._inventory, Inventory()
        if inventory.add(request.payload):
            self._inventory = inventory
            self.send(
                Response(request.stream_id, payload=pb.SynchronizeResponse(more=True).SerializeToString())
            )
            return
        operation = Synchronize(inventory.pods, inventory.containers)
        self._queue.put(operation, self, request.stream_id, request.timeout_ns)

    def synchronization_ended(self, *, succeeded: bool) -> None:
        """Called by the queue when the handler has ended with the Synchronize."""
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
