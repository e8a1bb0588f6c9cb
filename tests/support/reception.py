"""How a runtime takes plugins in: accept, register, configure, synchronize, one after the other; and drop.

Part of the fake runtime, which adds what happens to pods and containers.
"""

import abc
import asyncio
from collections.abc import Coroutine, Iterable
from pathlib import Path
from typing import Final

from bayplan._proto.nri import api_pb2 as pb
from bayplan.nri import Clock
from bayplan.nri.request_queue import wait
from bayplan.nri.wire import MAX_MESSAGE_BYTES, MessageTooLargeError
from support.flavors import Flavor
from support.plugin_connection import PluginConnection, PluginGoneError, PluginRefusedError

_FEWEST_OBJECTS: Final = 8
_LARGEST_STEP: Final = 0.9


class Reception(abc.ABC):
    """The plugins of a runtime. ``logged`` has what a real one writes into its log, ``dropped`` why each
    connection ended, ``synchronize_s`` how long each plugin took for its Synchronize, first message to last
    answer."""

    def __init__(
        self,
        flavor: Flavor,
        clock: Clock | None,
        request_timeout_s: float,
        registration_timeout_s: float,
        objects_per_message: int | None,
        *,
        reply_late: bool,
    ) -> None:
        self.flavor = flavor
        self.request_timeout_s = request_timeout_s
        self.registration_timeout_s = registration_timeout_s
        self.objects_per_message = objects_per_message
        self.plugins: list[PluginConnection] = []
        self.connected: list[PluginConnection] = []
        self.logged: list[str] = []
        self.dropped: list[str] = []
        self.synchronize_s: list[float] = []
        self.most_connections = 0
        self._clock: Clock = clock if clock is not None else asyncio.get_running_loop()
        self._reply_late = reply_late
        self._lock = asyncio.Lock()
        self._accepting = asyncio.Lock()
        self._changed = asyncio.Condition()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @abc.abstractmethod
    def _listed(self) -> tuple[list[pb.PodSandbox], list[pb.Container]]:
        """What a Synchronize lists."""

    @abc.abstractmethod
    def _apply(self, updates: Iterable[pb.ContainerUpdate]) -> None:
        """Carry out updates that a plugin answered."""

    async def listen(self, path: Path | str) -> None:
        """Accept plugins on a socket."""
        self._server = await asyncio.get_running_loop().create_unix_server(self.accept, path)

    async def stop(self) -> None:
        """Go away, as when the process ends: every connection is lost."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for plugin in list(self.connected):
            plugin.drop("the runtime stopped")
        async with self._changed:
            await self._changed.wait_for(lambda: not self.connected)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def accept(self) -> asyncio.Protocol:
        """The protocol for one more connection."""
        plugin = PluginConnection(self.flavor, self._clock, self._gone, reply_late=self._reply_late)
        self.connected.append(plugin)
        self.most_connections = max(self.most_connections, len(self.connected))
        self._spawn(self._welcome(plugin))
        return plugin.link

    async def synchronized(self, count: int = 1) -> PluginConnection:
        """Wait for so many plugins that are registered and synchronized; the last of them."""
        async with self._changed:
            await self._changed.wait_for(lambda: len(self.plugins) >= count)
        return self.plugins[-1]

    async def abandoned(self, count: int = 1) -> str:
        """Wait until so many connections have ended; why the last one did."""
        async with self._changed:
            await self._changed.wait_for(lambda: len(self.dropped) >= count)
        return self.dropped[-1]

    async def _welcome(self, plugin: PluginConnection) -> None:
        async with self._accepting:  # one after the other, also when that takes long
            try:
                await self._start(plugin)
            except (PluginGoneError, PluginRefusedError, MessageTooLargeError) as error:
                self.logged.append(f"plugin {plugin}: {error}")
                plugin.drop(str(error))

    async def _start(self, plugin: PluginConnection) -> None:
        if not await wait(plugin.registered, self.registration_timeout_s, self._clock):
            raise PluginGoneError("registration timed out")
        if plugin.registered.cancelled():
            raise PluginGoneError(plugin.why_gone)
        asked = pb.ConfigureRequest(
            runtime_name=self.flavor.name,
            runtime_version=self.flavor.version,
            NRI_version=self.flavor.told_version,
        )
        if self.flavor.tells_timeouts:
            asked.registration_timeout = int(self.registration_timeout_s * 1000)
            asked.request_timeout = int(self.request_timeout_s * 1000)
        reply = await plugin.call("Configure", asked, pb.ConfigureResponse, self.request_timeout_s)
        plugin.reply_to_registration()
        extra = reply.events & ~self.flavor.valid_mask
        if extra:
            raise PluginGoneError(f"invalid plugin events: {extra:#x}")
        plugin.mask = reply.events or self.flavor.valid_mask
        async with self._lock:
            self._apply(await self._synchronize(plugin))
            self.plugins.append(plugin)
            self.plugins.sort(key=lambda one: one.index)
        await self._announce()

    async def _synchronize(self, plugin: PluginConnection) -> list[pb.ContainerUpdate]:
        pods, containers = self._listed()
        most_pods = min(len(pods), self.objects_per_message or len(pods))
        most_containers = min(len(containers), self.objects_per_message or len(containers))
        begin = self._clock.time()
        end = begin + self.request_timeout_s
        while True:
            more = len(pods) > most_pods or len(containers) > most_containers
            asked = pb.SynchronizeRequest(
                pods=pods[:most_pods], containers=containers[:most_containers], more=more
            )
            try:
                reply = await plugin.call(
                    "Synchronize", asked, pb.SynchronizeResponse, end - self._clock.time()
                )
            except MessageTooLargeError as error:
                if not self.flavor.chunks or most_pods + most_containers <= _FEWEST_OBJECTS:
                    raise
                factor = min(MAX_MESSAGE_BYTES / error.size_bytes, _LARGEST_STEP)
                # containerd can arrive at 0 for a short list, and then sends empty messages for ever.
                most_pods = max(1, int(most_pods * factor))
                most_containers = max(1, int(most_containers * factor))
                if most_pods + most_containers < _FEWEST_OBJECTS:
                    most_pods = most_containers = _FEWEST_OBJECTS // 2
                continue
            if not more:
                self.synchronize_s.append(self._clock.time() - begin)
                return list(reply.update)
            if reply.update or not reply.more:
                raise PluginGoneError("plugin does not handle split sync requests")
            del pods[:most_pods], containers[:most_containers]

    def _gone(self, plugin: PluginConnection) -> None:
        self.connected.remove(plugin)
        self.dropped.append(plugin.why_gone)
        if plugin in self.plugins:
            self.plugins.remove(plugin)
        self._spawn(self._announce())

    async def _announce(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
