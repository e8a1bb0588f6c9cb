"""The handler of the NRI runtime in shadow mode: asks the real one, and answers nothing.

So everything is decided and recorded as if the runtime had carried out each answer. Answers go to the runtime
through a handler only.
"""

import logging
from collections.abc import Sequence
from typing import Final

from bayplan.errors import PlacementError
from bayplan.model.resources import Resources
from bayplan.model.workload import Adjustment, Container, Pod, Update
from bayplan.nri import Event, Handler, Runtime

logger = logging.getLogger(__name__)

_NOTHING: Final[Sequence[Update]] = ()


class ShadowHandler:
    """See the module; *decides* is the real handler, and `bayplan.nri.handler` says what each method is."""

    def __init__(self, decides: Handler) -> None:
        self._decides = decides

    def events(self, runtime: Runtime) -> frozenset[Event]:
        """The same as ever."""
        return self._decides.events(runtime)

    def connected(self, runtime: Runtime) -> None:
        """The decisions depend on it."""
        self._decides.connected(runtime)

    def disconnected(self, why: str) -> None:
        """The decisions depend on it."""
        self._decides.disconnected(why)

    async def synchronize(self, pods: Sequence[Pod], containers: Sequence[Container]) -> Sequence[Update]:
        """What runs is recorded."""
        await self._decides.synchronize(pods, containers)
        return _NOTHING

    async def create_container(self, pod: Pod, container: Container) -> tuple[Adjustment, Sequence[Update]]:
        """A container that would be refused is created."""
        try:
            await self._decides.create_container(pod, container)
        except PlacementError as error:
            _log_not_applied(container, error)
        return Adjustment(), _NOTHING

    async def update_container(
        self, pod: Pod, container: Container, resources: Resources
    ) -> Sequence[Update]:
        """A change that would be refused is made."""
        try:
            await self._decides.update_container(pod, container, resources)
        except PlacementError as error:
            _log_not_applied(container, error)
        return _NOTHING

    async def stop_container(self, pod: Pod, container: Container) -> Sequence[Update]:
        """What it would have held is released."""
        await self._decides.stop_container(pod, container)
        return _NOTHING

    async def state_changed(self, event: Event, pod: Pod, container: Container | None) -> None:
        """There is no answer to these."""
        await self._decides.state_changed(event, pod, container)

    def refuses_undecided(self) -> bool:
        """Nothing is refused."""
        return False

    def fallback_adjustment(self, pod: Pod, container: Container) -> Adjustment:  # noqa: ARG002 - NRI's
        """Nothing, as for every other container."""
        return Adjustment()

    def missed(
        self, event: Event, container_id: str, why: str, described: tuple[Pod, Container] | None = None
    ) -> None:
        """As ever: what is not known of it is found later."""
        self._decides.missed(event, container_id, why, described)


def _log_not_applied(container: Container, error: PlacementError) -> None:
    logger.warning(
        "would be refused, but for shadow mode", extra={"container_id": container.id, "problem": str(error)}
    )
