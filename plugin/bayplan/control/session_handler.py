"""The NRI session at the controller: the runtime is answered only about containers of that runtime. What is
due for others is written to the kernel.
"""

import logging
from collections.abc import Callable, Iterable, Sequence

from bayplan.control.controller import Controller
from bayplan.model.workload import Adjustment, Container, Pod, Resources, Update
from bayplan.nri import Event, Runtime

logger = logging.getLogger(__name__)


class SessionHandler:
    """The handler of the NRI session: the controller's. `bayplan.nri.handler` has the contract."""

    def __init__(self, controller: Controller, verify_soon: Callable[[], None]) -> None:
        self._controller = controller
        self._verify_soon = verify_soon

    def events(self, runtime: Runtime) -> frozenset[Event]:
        """The controller's."""
        return self._controller.events(runtime)

    def connected(self, runtime: Runtime) -> None:
        """The controller's. What the runtime read from its own directory for plugins is not ours to apply."""
        if runtime.config.strip():
            logger.warning("the runtime's file for this plugin is not read; keys belong into /etc/bayplan")
        self._controller.connected(runtime)

    def disconnected(self, why: str) -> None:
        """The controller's."""
        self._controller.disconnected(why)

    async def synchronize(self, pods: Sequence[Pod], containers: Sequence[Container]) -> Sequence[Update]:
        """The controller's, with the updates of the *containers* that this runtime has."""
        updates = await self._controller.synchronize(pods, containers)
        return self._own(updates, {container.id for container in containers})

    async def create_container(self, pod: Pod, container: Container) -> tuple[Adjustment, Sequence[Update]]:
        """The controller's, with the updates of containers that came over NRI."""
        adjustment, updates = await self._controller.create_container(pod, container)
        return adjustment, self._own(updates)

    async def update_container(
        self, pod: Pod, container: Container, resources: Resources
    ) -> Sequence[Update]:
        """The controller's, with the updates of containers that came over NRI, and of this one."""
        updates = await self._controller.update_container(pod, container, resources)
        return self._own(updates, {container.id})

    async def stop_container(self, pod: Pod, container: Container) -> Sequence[Update]:
        """The controller's, with the updates of containers that came over NRI."""
        return self._own(await self._controller.stop_container(pod, container))

    async def state_changed(self, event: Event, pod: Pod, container: Container | None) -> None:
        """The controller's."""
        await self._controller.state_changed(event, pod, container)

    def fallback_adjustment(self, pod: Pod, container: Container) -> Adjustment:
        """The controller's."""
        return self._controller.fallback_adjustment(pod, container)

    def missed(
        self, event: Event, container_id: str, why: str, news: tuple[Pod, Container] | None = None
    ) -> None:
        """The controller's."""
        self._controller.missed(event, container_id, why, news)

    def _own(self, updates: Sequence[Update], listed: Iterable[str] = ()) -> Sequence[Update]:
        """The *updates* that this runtime can carry out: of containers that came over NRI, and of those that
        it has *listed*."""
        entries, known = self._controller.ledger.entries, frozenset(listed)
        own = [
            one
            for one in updates
            if one.container_id in known
            or one.container_id not in entries
            or entries[one.container_id].origin is None
        ]
        if len(own) != len(updates):
            self._verify_soon()
        return own
