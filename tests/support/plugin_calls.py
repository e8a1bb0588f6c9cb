"""How a runtime asks its plugins about an event, or notifies them: who subscribed, in which style, what
becomes of errors, and who may set which field.

Part of the fake runtime, which has the pods and containers.
"""

from collections.abc import Iterable
from typing import Final, TypeAlias, TypeVar

from google.protobuf.message import Message

from bayplan._proto.nri import api_pb2 as pb
from bayplan.nri import Event
from bayplan.nri.wire import Code
from support.plugin_connection import PluginConnection, PluginGoneError, PluginRefusedError
from support.reception import Reception
from support.spec import claims, shown

Answer = TypeVar("Answer", bound=Message)

_PodEvent: TypeAlias = type[
    pb.RunPodSandboxRequest
    | pb.StopPodSandboxRequest
    | pb.RemovePodSandboxRequest
    | pb.PostUpdatePodSandboxRequest
]
_ContainerEvent: TypeAlias = type[
    pb.PostCreateContainerRequest
    | pb.StartContainerRequest
    | pb.PostStartContainerRequest
    | pb.PostUpdateContainerRequest
    | pb.RemoveContainerRequest
]
_POD_EVENTS: Final[dict[Event, tuple[str, _PodEvent]]] = {
    Event.RUN_POD_SANDBOX: ("RunPodSandbox", pb.RunPodSandboxRequest),
    Event.STOP_POD_SANDBOX: ("StopPodSandbox", pb.StopPodSandboxRequest),
    Event.REMOVE_POD_SANDBOX: ("RemovePodSandbox", pb.RemovePodSandboxRequest),
}
_CONTAINER_EVENTS: Final[dict[Event, tuple[str, _ContainerEvent]]] = {
    Event.POST_CREATE_CONTAINER: ("PostCreateContainer", pb.PostCreateContainerRequest),
    Event.START_CONTAINER: ("StartContainer", pb.StartContainerRequest),
    Event.POST_START_CONTAINER: ("PostStartContainer", pb.PostStartContainerRequest),
    Event.POST_UPDATE_CONTAINER: ("PostUpdateContainer", pb.PostUpdateContainerRequest),
    Event.REMOVE_CONTAINER: ("RemoveContainer", pb.RemoveContainerRequest),
}
_FATAL: Final = {Event.RUN_POD_SANDBOX, Event.START_CONTAINER}
"""Events that fail when a plugin answers with an error; elsewhere the error is logged."""


class OperationError(Exception):
    """The runtime could not do what its user asked for. The text is what the user sees."""


class PluginCalls(Reception):
    """The calls of a runtime to those of its plugins that subscribed to an event."""

    def _subscribers(self, event: Event) -> list[PluginConnection]:
        return [plugin for plugin in self.plugins if plugin.subscribed(event)]

    async def _ask(
        self, plugin: PluginConnection, method: str, asked: Message, answer: type[Answer]
    ) -> Answer:
        """A plugin's answer; an empty one from a plugin that is gone: the operation goes on without it."""
        try:
            return await plugin.call(method, asked, answer, self.request_timeout_s)
        except PluginGoneError as error:
            self.logged.append(f"closing plugin {plugin}, failed to handle {method}: {error}")
            return answer()
        except PluginRefusedError as error:
            raise OperationError(f"plugin {plugin}: {method}: {error}") from error

    async def _notify_of_pod(self, event: Event, pod: pb.PodSandbox) -> None:
        method, kind = _POD_EVENTS[event]
        await self._notify(event, method, kind(pod=pod), _state_change(event, pod))

    async def _notify_of_container(self, event: Event, pod: pb.PodSandbox, container: pb.Container) -> None:
        method, kind = _CONTAINER_EVENTS[event]
        seen = shown(container, self.flavor)
        await self._notify(event, method, kind(pod=pod, container=seen), _state_change(event, pod, seen))

    async def _notify(self, event: Event, method: str, new: Message, old: pb.StateChangeEvent) -> None:
        """Tell the plugins, in the style of this runtime."""
        async with self._lock:
            for plugin in self._subscribers(event):
                try:
                    if not self.flavor.one_rpc_per_event or not await self._implemented(plugin, method, new):
                        await self._ask(plugin, "StateChange", old, pb.Empty)
                except OperationError as error:
                    if event in _FATAL:
                        raise
                    self.logged.append(str(error))

    async def _implemented(self, plugin: PluginConnection, method: str, asked: Message) -> bool:
        try:
            await plugin.call(method, asked, pb.Empty, self.request_timeout_s)
        except PluginGoneError as error:
            self.logged.append(f"closing plugin {plugin}, failed to handle {method}: {error}")
        except PluginRefusedError as error:
            if error.code is Code.UNIMPLEMENTED:
                return False
            raise OperationError(f"plugin {plugin}: {method}: {error}") from error
        return True


def _state_change(
    event: Event, pod: pb.PodSandbox, container: pb.Container | None = None
) -> pb.StateChangeEvent:
    return pb.StateChangeEvent(event=pb.Event.Value(event.name), pod=pod, container=container)


def claim(owners: dict[str, str], plugin: PluginConnection, fields: Iterable[str]) -> None:
    """Note which plugin sets which fields.

    Raises:
        OperationError: another plugin set one of them.
    """
    for field in fields:
        if field in owners:
            raise OperationError(f'plugins "{owners[field]}" and "{plugin}" both tried to set {field}')
        owners[field] = str(plugin)


def claim_updates(
    owners: dict[str, str], plugin: PluginConnection, updates: Iterable[pb.ContainerUpdate]
) -> None:
    """A conflict fails the request unless the update may fail."""
    for update in updates:
        try:
            claim(owners, plugin, claims(update.linux.resources, update.container_id))
        except OperationError:
            if not update.ignore_failure:
                raise
