"""The runtime's end of one plugin's connection: registration, calls with NRI's timeouts, what becomes of it.

Part of the fake runtime. What a runtime does with the answers is not known here.
"""

import asyncio
import re
from collections.abc import Callable
from functools import partial
from typing import Final, TypeVar

from google.protobuf.message import Message

from bayplan._proto.nri import api_pb2 as pb
from bayplan.nri import PLUGIN_SERVICE, RUNTIME_SERVICE, Clock, Event, Link
from bayplan.nri.wire import Code, Role, TtrpcRequest, TtrpcResponse
from support.flavors import Flavor

_NS: Final = 1_000_000_000
_HANGS_AT: Final = 3
"""The registration on one connection to which a runtime never replies."""

Answer = TypeVar("Answer", bound=Message)


class PluginGoneError(Exception):
    """The plugin was dropped: it did not answer in time, or broke the rules, or its connection ended."""


class PluginRefusedError(Exception):
    """The plugin answered with an error status."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(f"rpc error: code = {code.name} desc = {message}")
        self.code = code
        self.message = message


class PluginConnection:
    """One plugin. *ended* is called when it is gone."""

    def __init__(
        self,
        flavor: Flavor,
        clock: Clock,
        ended: Callable[["PluginConnection"], None],
        *,
        reply_late: bool = False,
    ) -> None:
        self.flavor = flavor
        self.index = ""
        self.name = ""
        self.told_version = ""
        self.mask = 0
        self.why_gone = ""
        self.registrations = 0
        self.requests: list[str] = []
        self.link = Link(Role.RUNTIME, self._received, self._ended)
        self.registered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._clock = clock
        self._tell_ended = ended
        self._pending: dict[int, asyncio.Future[TtrpcResponse]] = {}
        self._reply_late = reply_late
        self._accepted: list[TtrpcResponse] = []

    def __str__(self) -> str:
        return f"{self.index}-{self.name}"

    def subscribed(self, event: Event) -> bool:
        """Whether it wants to hear of *event*."""
        return self.mask & event.bit != 0

    def drop(self, why: str) -> None:
        """Close the connection, as a runtime does at every fault."""
        self.why_gone = self.why_gone or why
        self.link.abort(why)

    async def call(self, method: str, message: Message, answer: type[Answer], timeout_s: float) -> Answer:
        """Call the plugin.

        Raises:
            PluginGoneError: it is gone, or is so from now on because it did not answer in time.
            PluginRefusedError: it answered with an error.
            MessageTooLargeError: the request is too large and was not sent.
        """
        request = self.link.wire.request(
            PLUGIN_SERVICE, method, message.SerializeToString(), int(timeout_s * _NS)
        )
        if not self.link.send(request):
            raise PluginGoneError(self.why_gone)
        self.requests.append(method)
        future: asyncio.Future[TtrpcResponse] = asyncio.get_running_loop().create_future()
        self._pending[request.stream_id] = future
        timer = self._clock.call_at(self._clock.time() + timeout_s, partial(self.drop, f"{method} timed out"))
        try:
            response = await future
        finally:
            timer.cancel()
            self._pending.pop(request.stream_id, None)
        if response.code is not Code.OK:
            raise PluginRefusedError(response.code, response.message)
        return answer.FromString(response.payload)

    def _received(self, message: TtrpcRequest | TtrpcResponse) -> None:
        if isinstance(message, TtrpcResponse):
            future = self._pending.get(message.stream_id)
            if future is not None and not future.done():
                future.set_result(message)
        elif message.service != RUNTIME_SERVICE:
            self.link.send(TtrpcResponse(message.stream_id, Code.UNIMPLEMENTED, f"service {message.service}"))
        elif message.method == "RegisterPlugin":
            self._register(message)
        else:
            self.link.send(TtrpcResponse(message.stream_id, Code.UNIMPLEMENTED, f"method {message.method}"))

    def _register(self, request: TtrpcRequest) -> None:
        self.registrations += 1
        if self.registrations >= _HANGS_AT:
            return
        asked = pb.RegisterPluginRequest.FromString(request.payload)
        names = r"[a-zA-Z0-9_.+-]+" if self.flavor.nri >= (0, 12, 0) else r".+"
        if not re.fullmatch(names, asked.plugin_name):
            problem = f"invalid plugin name: {asked.plugin_name!r}"
        elif not re.fullmatch(r"[0-9]{2}", asked.plugin_idx):
            problem = f"invalid plugin index: {asked.plugin_idx!r}"
        else:
            problem = ""
            self.name, self.index, self.told_version = asked.plugin_name, asked.plugin_idx, asked.NRI_version
        if problem:  # and the connection stays open
            self.link.send(TtrpcResponse(request.stream_id, Code.UNKNOWN, problem))
            return
        if not self.registered.done():
            self.registered.set_result(None)
        self._accepted.append(TtrpcResponse(request.stream_id))
        if not self._reply_late:
            self.reply_to_registration()

    def reply_to_registration(self) -> None:
        """The reply comes from another thread than Configure, and either may be first."""
        while self._accepted:
            self.link.send(self._accepted.pop())

    def _ended(self, why: str) -> None:
        self.why_gone = self.why_gone or why
        for future in self._pending.values():
            if not future.done():
                future.set_exception(PluginGoneError(self.why_gone))
        if not self.registered.done():
            self.registered.cancel()
        self._tell_ended(self)
