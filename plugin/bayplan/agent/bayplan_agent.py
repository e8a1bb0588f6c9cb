"""Where bayplan-agent starts: flags, logs, then its parts until a signal ends them. Each part is a coroutine
that runs until it is cancelled.
"""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Protocol

from bayplan import __version__, logs
from bayplan.agent.cluster.api import Api, Reachability, api_server
from bayplan.agent.cluster.events import EventRecorder
from bayplan.agent.cluster.node_objects import KubeletVersionWatch
from bayplan.agent.cluster.pods import EVICTION_TIMEOUT_S, ApiPodWatch, AwaitedPods, PodEvictions
from bayplan.agent.cluster.publisher import TopologyPublisher, remove_topology
from bayplan.agent.command_line import AgentSettings, ClusterTask, parse
from bayplan.agent.http.port import HttpPort
from bayplan.agent.http_client import Server
from bayplan.agent.kubelet_pods import PodEndpoint, PodWatch
from bayplan.agent.mirror import DaemonLink, Mirror
from bayplan.agent.pod_resources import KubeletPodResources, PodResourcesService
from bayplan.standard_streams import make_writable


class Part(Protocol):
    """A part that runs until it is cancelled."""

    async def run(self) -> None:
        """Run."""


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
    kubelet = list(_kubelet_pods(settings, link))
    api = None if settings.kubeconfig is None else Api(api_server(settings.kubeconfig))
    cluster = [] if api is None else list(_cluster(settings, api, mirror, link, kubelet))
    claims, driver = _claims(settings, api, mirror, link)
    async with AsyncExitStack() as serving:
        for service in (*_services(settings, mirror, link), *driver):
            await serving.enter_async_context(_running(service))
        async with asyncio.TaskGroup() as parts:
            for part in (link, *kubelet, *cluster, *claims):
                parts.create_task(part.run())


def _kubelet_pods(settings: AgentSettings, link: DaemonLink) -> Iterator[PodWatch | PodEndpoint]:
    """The parts that learn what kubelet says of pods: from its Pods service, and from its endpoint as long as
    that service is not there."""
    watch = None
    if settings.kubelet_pods_socket is not None:
        yield (watch := PodWatch(settings.kubelet_pods_socket, link))
    if settings.kubelet_url is not None:
        asked = Server(
            settings.kubelet_url, settings.kubelet_ca, settings.kubelet_server_name, settings.kubelet_token
        )
        endpoint = PodEndpoint(asked, link, lambda: watch is not None and watch.in_sync)
        link.wanted = lambda _: endpoint.ask_soon()
        link.connected.add(endpoint.ask_soon)
        yield endpoint


def _cluster(
    settings: AgentSettings,
    api: Api,
    mirror: Mirror,
    link: DaemonLink,
    kubelet: Sequence[PodWatch | PodEndpoint],
) -> Iterator[Part]:
    """The parts that work with the API server."""
    node_name, awaited = settings.node_name, AwaitedPods()
    yield KubeletVersionWatch(api, node_name, link)
    if ClusterTask.PODS in settings.cluster_tasks:
        objects = None
        if ClusterTask.CLAIMS in settings.cluster_tasks:
            from bayplan.agent.dra.claimed_devices import ClaimedDevices  # noqa: PLC0415 - loaded with that task

            yield (objects := ClaimedDevices(api, link, node_name))

        def needless() -> bool:
            return any(source.in_sync for source in kubelet)

        yield ApiPodWatch(api, node_name, link, awaited, needless, objects=objects)
    recorder = None
    if ClusterTask.EVENTS in settings.cluster_tasks:
        yield (recorder := EventRecorder(api, mirror, node_name, link.pod_named))
    if ClusterTask.TOPOLOGY in settings.cluster_tasks:
        yield TopologyPublisher(api, mirror, awaited, node_name, recorder.report if recorder else None)
    if ClusterTask.EVICTIONS in settings.cluster_tasks:
        # What is slow for one pod is a webhook, mostly, and says nothing of the others.
        own = Reachability(api.server, EVICTION_TIMEOUT_S)
        yield PodEvictions(Api(api.server, EVICTION_TIMEOUT_S, own), link)


def _claims(
    settings: AgentSettings, api: Api | None, mirror: Mirror, link: DaemonLink
) -> tuple[Sequence[Part], Sequence[Service]]:
    """What serves resource claims, if the settings ask for that: the parts that run, and the services that
    kubelet asks."""
    if api is None or ClusterTask.CLAIMS not in settings.cluster_tasks:
        return (), ()
    from bayplan.agent.dra.driver import ClaimDriver, DraService  # noqa: PLC0415 - loaded with that task
    from bayplan.agent.dra.former_driver import FormerDriver  # noqa: PLC0415 - likewise
    from bayplan.agent.dra.slices import SlicePublisher  # noqa: PLC0415 - likewise

    node_name = settings.node_name
    driver = ClaimDriver(api, link, mirror, node_name)
    sockets = settings.kubelet_plugins, settings.kubelet_plugins_registry
    former = FormerDriver(api, link, mirror, driver, node_name, sockets)
    return (SlicePublisher(api, mirror, node_name), driver, former), (
        DraService(*sockets, node_name, driver, mirror),
    )


def _services(settings: AgentSettings, mirror: Mirror, link: DaemonLink) -> Iterator[Service]:
    if settings.pod_resources_socket is not None:
        kubelet = KubeletPodResources(settings.kubelet_pod_resources)
        yield PodResourcesService(settings.pod_resources_socket, lambda: mirror.snapshot, kubelet)
    if settings.listen is not None:
        yield HttpPort(settings.listen, settings, mirror, link.ask)


@asynccontextmanager
async def _running(service: Service) -> AsyncIterator[None]:
    await service.start()
    try:
        yield
    finally:
        await service.close()


logger = logging.getLogger(__name__)


def main(argv: Sequence[str] | None = None) -> int:
    """Run bayplan-agent with *argv*; its exit status."""
    make_writable()
    settings = parse(argv)
    task = _remove_topology if settings.remove_topology else _until_signalled
    return logs.exit_status(settings.log_level, settings.log_format, lambda: asyncio.run(task(settings)))


async def _remove_topology(settings: AgentSettings) -> int:
    assert settings.kubeconfig is not None
    removed = await remove_topology(Api(api_server(settings.kubeconfig)), settings.node_name)
    logger.info(
        "the node's room is not published any more" if removed else "the node's room was not published"
    )
    return 0


async def _until_signalled(settings: AgentSettings) -> int:
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    logger.info("started", extra={"version": __version__, "pid": os.getpid()})
    serving = asyncio.create_task(serve(settings))
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait((serving, stopping), return_when=asyncio.FIRST_COMPLETED)
    if serving.done():
        serving.result()
    for task in (serving, stopping):
        task.cancel()
    await asyncio.gather(serving, stopping, return_exceptions=True)
    logger.info("stopping")
    return 0


if __name__ == "__main__":
    sys.exit(main())
