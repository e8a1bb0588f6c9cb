"""One connection to a runtime, from registration to its end.

Answers at once what needs no decision; everything else becomes an exchange and waits its turn in the lane.
Reading never waits for any of it.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from google.protobuf.message import DecodeError
from msgspec import Struct

from bayplan._proto.nri import api_pb2 as pb
from bayplan.nri.clock import Clock, Timer
from bayplan.nri.errors import EndlessListError, PayloadError
from bayplan.nri.events import events_of
from bayplan.nri.exchange import Exchange
from bayplan.nri.handler import Handler
from bayplan.nri.inventory import Inventory
from bayplan.nri.lane import Lane
from bayplan.nri.link import Link
from bayplan.nri.operations import METHODS, Operation, Synchronize, operation
from bayplan.nri.translate import runtime_from
from bayplan.nri.transport import Identity
from bayplan.nri.versions import SPOKEN, Runtime
from bayplan.nri.wire import Code, Request, Response, Role
from bayplan.printable import printable

logger = logging.getLogger(__name__)

PLUGIN_SERVICE: Final = "nri.pkg.api.v1alpha1.Plugin"
RUNTIME_SERVICE: Final = "nri.pkg.api.v1alpha1.Runtime"
_NS: Final = 1_000_000_000


class Patience(Struct, frozen=True):
    """How long we wait, and how long we let a runtime wait, in seconds.

    ``answer_s``: for an answer of ours, at most; NRI's own limit is 2 s, after which the runtime drops us.
    ``margin_s``: less than the runtime allows, for the way there and back.
    ``registration_s``: for the reply to our registration, which other plugins can delay: each is given 5 s to
    register and 2 s to synchronize, one after the other.
    """

    answer_s: float = 1.0
    margin_s: float = 0.25
    registration_s: float = 60.0

    def budget_s(self, timeout_ns: int) -> float:
        """The time for an answer when the runtime allows *timeout_ns*, 0 meaning any. The margin never takes
        more than half of what a runtime with short timeouts allows."""
        if timeout_ns == 0:
            return self.answer_s
        allowed_s = timeout_ns / _NS
        return max(0.0, min(self.answer_s, allowed_s - min(self.margin_s, allowed_s / 2)))


class Conversation:
    """What is said on one connection. ``ended`` is done, with the reason, when the socket is closed."""

    def __init__(
        self,
        handler: Handler,
        identity: Identity,
        lane: Lane,
        clock: Clock,
        patience: Patience,
        synchronized: Callable[[bool], None],
    ) -> None:
        self._handler = handler
        self._identity = identity
        self._lane = lane
        self._clock = clock
        self._patience = patience
        self._tell_synchronized = synchronized
        self._inventory = Inventory()
        self._registered = False
        self._timer: Timer | None = None
        self.runtime: Runtime | None = None
        self.synchronized = False
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.link = Link(Role.PLUGIN, self._received, self._lost)

    # ---- Registration --------------------------------------------------------------------------------

    def register(self) -> None:
        """Ask the runtime to take us. Once per connection: it accepts a second time silently and hangs at the
        third. Should the connection be gone already, ``ended`` says so."""
        if not self.link.open:
            return
        message = pb.RegisterPluginRequest(
            plugin_name=self._identity.name, plugin_idx=self._identity.index, NRI_version=SPOKEN
        )
        deadline = self._clock.time() + self._patience.registration_s
        self._timer = self._clock.call_at(deadline, self._not_accepted)
        wire = self.link.wire
        self.link.send(wire.request(RUNTIME_SERVICE, "RegisterPlugin", message.SerializeToString()))

    def _accepted(self, response: Response) -> None:
        if response.code is not Code.OK:
            # The runtime leaves the connection open and would wait for ever.
            self.link.abort(f"registration refused: {response.code.name}: {response.message}")
            return
        self._registered = True
        self._check_accepted()

    def _check_accepted(self) -> None:
        # Configure comes from another thread of the runtime, often before the reply to the registration.
        if self._registered and self.runtime is not None and self._timer is not None:
            self._timer.cancel()

    def _not_accepted(self) -> None:
        self.link.abort(f"not registered within {self._patience.registration_s:g} s")

    # ---- What the runtime says -----------------------------------------------------------------------

    def _received(self, message: Request | Response) -> None:
        if isinstance(message, Response):
            self._accepted(message)  # to the registration: we make no other call
            return
        try:
            self._route(message)
        except PayloadError as error:
            # An error status would stop a container; to Configure and Synchronize it is the right answer.
            logger.error("unreadable request", extra={"problem": str(error)})  # noqa: TRY400 - expected, so that a traceback says nothing
            code = Code.OK if message.method in METHODS else Code.INVALID_ARGUMENT
            self.link.send(Response(message.stream_id, code, printable(str(error))))
            if isinstance(error, EndlessListError):
                self.link.close(str(error))

    def _route(self, request: Request) -> None:
        method = request.method
        if request.service != PLUGIN_SERVICE:
            self._decline(request, f"service {request.service}")
        elif method in METHODS:
            todo = operation(method, request.payload)
            if todo is None:
                self.link.send(Response(request.stream_id))
            else:
                self._queue(request, todo)
        elif method == "Synchronize":
            self._synchronize(request)
        elif method == "Configure":
            self._configure(request)
        elif method == "ValidateContainerAdjustment":
            # We never subscribe to it; should it come, any other answer stops the container.
            self.link.send(Response(request.stream_id))
        elif method == "Shutdown":
            self.link.send(Response(request.stream_id))
            self.link.close("the runtime shuts down")
        else:
            self._decline(request, f"method {method}")

    def _decline(self, request: Request, what: str) -> None:
        logger.warning("unknown request", extra={"what": what})
        self.link.send(Response(request.stream_id, Code.UNIMPLEMENTED, printable(what)))

    def _configure(self, request: Request) -> None:
        try:
            runtime = runtime_from(pb.ConfigureRequest.FromString(request.payload))
        except DecodeError as error:
            raise PayloadError("Configure", f"cannot be decoded: {error}") from error
        mask = runtime.mask(self._handler.events(runtime))
        self.link.send(
            Response(request.stream_id, payload=pb.ConfigureResponse(events=mask).SerializeToString())
        )
        self.runtime = runtime
        self._check_accepted()
        logger.info("connected to the container runtime", extra=_description(runtime, mask))
        self._handler.connected(runtime)

    def _synchronize(self, request: Request) -> None:
        # One that cannot be read ends what was begun: the next message begins another.
        inventory, self._inventory = self._inventory, Inventory()
        if inventory.add(request.payload):
            self._inventory = inventory
            self.link.send(
                Response(request.stream_id, payload=pb.SynchronizeResponse(more=True).SerializeToString())
            )
            return
        self._queue(request, Synchronize(inventory.pods, inventory.containers))

    def _queue(self, request: Request, todo: Operation) -> None:
        is_synchronize = isinstance(todo, Synchronize)
        exchange = Exchange(
            todo,
            request.stream_id,
            self._handler,
            self.link.send,
            self._configured if is_synchronize else self._is_synchronized,
            self._concluded if is_synchronize else None,
        )
        self._lane.put(exchange, self._patience.budget_s(request.timeout_ns))

    def _configured(self) -> bool:
        return self.runtime is not None

    def _is_synchronized(self) -> bool:
        return self.synchronized

    def _concluded(self, well: bool) -> None:
        self.synchronized = well
        if self.link.open:
            self._tell_synchronized(well)

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
