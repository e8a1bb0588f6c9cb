"""The agent's parts, connected: each is a coroutine that runs until it is cancelled."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Protocol

from bayplan.agent.command_line import AgentSettings
from bayplan.agent.daemon_link import DaemonLink
from bayplan.agent.http.port import HttpPort
from bayplan.agent.kubelet_pods.endpoint import Endpoint, PodEndpoint
from bayplan.agent.kubelet_pods.watch import PodWatch
from bayplan.agent.mirror import Mirror
from bayplan.agent.pod_resources.kubelet import KubeletPodResources
from bayplan.agent.pod_resources.service import PodResourcesService


class Service(Protocol):
    """A part that serves clients of its own."""

    async def start(self) -> None:
        """Begin to serve; raises BayplanError."""

    async def close(self) -> None:
        """Stop serving."""


async def serve(settings: AgentSettings) -> None:
    """Run all parts until cancelled, or until one of them fails."""
    mirror = Mirror()
    link = DaemonLink(settings.daemon_socket, mirror)
    sources = list(_kubelet_pods(settings, link))
    async with AsyncExitStack() as serving:
        for service in _services(settings, mirror):
            await serving.enter_async_context(_running(service))
        async with asyncio.TaskGroup() as parts:
            parts.create_task(link.run())
            for source in sources:
                parts.create_task(source.run())


def _kubelet_pods(settings: AgentSettings, link: DaemonLink) -> Iterator[PodWatch | PodEndpoint]:
    """Where it is learned what kubelet says of pods: its Pods service, and its endpoint while that is not
    there."""
    watch = None
    if settings.kubelet_pods_socket is not None:
        yield (watch := PodWatch(settings.kubelet_pods_socket, link))
    if settings.kubelet_url is not None:
        asked = Endpoint(
            settings.kubelet_url, settings.kubelet_token, settings.kubelet_ca, settings.kubelet_server_name
        )
        endpoint = PodEndpoint(asked, link, lambda: watch is not None and watch.in_sync)
        link.wanted = lambda _: endpoint.ask_soon()
        yield endpoint


def _services(settings: AgentSettings, mirror: Mirror) -> Iterator[Service]:
    if settings.pod_resources_socket is not None:
        kubelet = KubeletPodResources(settings.kubelet_pod_resources)
        yield PodResourcesService(settings.pod_resources_socket, lambda: mirror.snapshot, kubelet)
    if settings.listen is not None:
        yield HttpPort(settings.listen, settings, mirror)


@asynccontextmanager
async def _running(service: Service) -> AsyncIterator[None]:
    await service.start()
    try:
        yield
    finally:
        await service.close()
