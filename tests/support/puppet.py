"""A runtime that does nothing by itself: a test says what it sends, and sees what comes.

For what a real one would not do, or not at that moment. `FakeRuntime` is the one that behaves.
"""

import asyncio

from google.protobuf.message import Message

from bayplan._proto.nri import api_pb2 as pb
from bayplan.errors import UnavailableError
from bayplan.nri import PLUGIN_SERVICE, Link
from bayplan.nri.wire import Role, TtrpcRequest, TtrpcResponse
from support.flavors import CONTAINERD_2_2, Flavor
from support.memory_transport import MemoryTransport, pair

NS = 1_000_000_000


class Puppet:
    """One end of a connection, in the hands of a test."""

    def __init__(self) -> None:
        self.link = Link(Role.RUNTIME, self._received, self._ended)
        self.transport: MemoryTransport | None = None
        self.calls: asyncio.Queue[TtrpcRequest] = asyncio.Queue()
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._pending: dict[int, asyncio.Future[TtrpcResponse]] = {}

    def call(
        self,
        method: str,
        message: Message | bytes = b"",
        timeout_s: float = 2.0,
        service: str = PLUGIN_SERVICE,
    ) -> "asyncio.Future[TtrpcResponse]":
        """Call the plugin; its answer will come."""
        payload = message if isinstance(message, bytes) else message.SerializeToString()
        request = self.link.wire.request(service, method, payload, int(timeout_s * NS))
        future: asyncio.Future[TtrpcResponse] = asyncio.get_running_loop().create_future()
        self._pending[request.stream_id] = future
        self.link.send(request)
        return future

    def call_and_forget(self, method: str, message: Message | bytes = b"") -> None:
        """Call the plugin and never look at its answer. Any number may be under way."""
        payload = message if isinstance(message, bytes) else message.SerializeToString()
        request = self.link.wire.request(PLUGIN_SERVICE, method, payload)
        self.link.send(request)
        self.link.wire.forget(request.stream_id)

    def answer(self, request: TtrpcRequest, message: Message | None = None) -> None:
        """Answer a call of the plugin."""
        payload = b"" if message is None else message.SerializeToString()
        self.link.send(TtrpcResponse(request.stream_id, payload=payload))

    async def registration(self) -> pb.RegisterPluginRequest:
        """Wait for the plugin to register, and accept it."""
        request = await self.calls.get()
        self.answer(request)
        return pb.RegisterPluginRequest.FromString(request.payload)

    async def configure(self, flavor: Flavor = CONTAINERD_2_2) -> int:
        """Configure the plugin; the mask that it subscribes to."""
        asked = pb.ConfigureRequest(
            runtime_name=flavor.name, runtime_version=flavor.version, NRI_version=flavor.told_version
        )
        if flavor.tells_timeouts:
            asked.registration_timeout, asked.request_timeout = 5000, 2000
        response = await self.call("Configure", asked)
        return pb.ConfigureResponse.FromString(response.payload).events

    async def take_in(self, flavor: Flavor = CONTAINERD_2_2) -> None:
        """Register, configure and synchronize a plugin, of a runtime that runs nothing."""
        await self.registration()
        await self.configure(flavor)
        await self.call("Synchronize", pb.SynchronizeRequest())

    def _received(self, message: TtrpcRequest | TtrpcResponse) -> None:
        if isinstance(message, TtrpcRequest):
            self.calls.put_nowait(message)
        else:
            self._pending.pop(message.stream_id).set_result(message)

    def _ended(self, why: str) -> None:
        self.ended.set_result(why)


class PuppetEndpoint:
    """Where plugins find a new `Puppet` each time, unless ``refusing``."""

    def __init__(self, piece_bytes: int | None = None) -> None:
        self.refusing = False
        self.attempts = 0
        self.puppets: asyncio.Queue[Puppet] = asyncio.Queue()
        self.open: list[Puppet] = []
        self._piece_bytes = piece_bytes

    @property
    def again(self) -> bool:
        """As with a socket."""
        return True

    async def connect(self, protocol: asyncio.Protocol) -> None:
        """Connect to a new one."""
        self.attempts += 1
        if self.refusing:
            raise UnavailableError("puppet", "nobody listens")
        assert all(puppet.ended.done() for puppet in self.open), "two connections at once"
        puppet = Puppet()
        _, puppet.transport = pair(protocol, puppet.link, self._piece_bytes)
        self.open = [one for one in self.open if not one.ended.done()] + [puppet]
        self.puppets.put_nowait(puppet)
