"""What the session asks of the code that makes decisions. This docstring is the contract.

*One at a time.* The five coroutines are called strictly one after the other, in the order in which the
runtime's requests arrived, and never two at once: not across a lost connection either. A handler is the
single writer of whatever it owns. The runtime waits for most of them, with all its container operations.

*Late.* A request has a deadline, counted from its arrival (1 s, less if the runtime allows less). When it
is over the default is answered: ``fallback_adjustment`` for a creation, or its refusal; nothing for the
rest. Then the running coroutine is cancelled, once, wherever it waits; its result, should it return one
all the same, is thrown away. Requests that are still queued at their deadline are never begun. The next
request is not begun before the cancelled coroutine has ended; if it never ends, all that follow are
answered by default.

*Failed.* ``PlacementError`` from ``create_container`` or ``update_container`` refuses the operation, and
its text is shown to the user. Any other exception is logged with its traceback and the default is
answered.

*Missed.* For each request whose result did not reach the runtime, ``missed`` is called exactly once: when
the coroutine has ended (or will never begin) and before the next one begins. The reasons: late, failed,
or the connection ended in between. What the coroutine has changed by then is for the handler to undo. A
result that was written to the connection counts as delivered; if the runtime died over it, the next
``synchronize`` shows that.

*Connections.* ``events``, ``connected``, ``synchronize``, then the rest; ``disconnected`` after
everything of that connection has ended (a coroutine that does not end on being cancelled is waited for no
longer than a deadline). Until a ``synchronize`` has succeeded, all other requests are answered by
default, without the coroutine but with ``missed``; after one that failed the session connects again to
get another.

The plain methods are called from the event loop between two steps of a coroutine; they must not block,
and ``fallback_adjustment`` may find a decision half made.

*Events* are numbered as on the wire. A subscription is a mask with one bit per event. Which of them a
runtime knows is the business of ``versions``.

*Errors* are what can go wrong between us and a runtime, above the wire. Everything of that is raised to
code of ours; what the runtime is answered is decided in ``request_queue``.
"""

from collections.abc import Sequence
from typing import Protocol

from bayplan.errors import RemoteProtocolError
from bayplan.model.resources import Resources
from bayplan.model.workload import Adjustment, Container, Pod, Update
from bayplan.nri.versions import Event, Runtime


class PayloadError(RemoteProtocolError):
    """The payload of a message is not what its method says. The connection is still good."""


class EndlessListError(PayloadError):
    """A Synchronize lists more than any node has. Whoever sends that may go on for ever."""


class Handler(Protocol):
    """The receiver of a runtime's events. See the module's docstring for order, lateness and failure."""

    def events(self, runtime: Runtime) -> frozenset[Event]:
        """What to subscribe to. What *runtime* does not know is left out by the session."""

    def connected(self, runtime: Runtime) -> None:
        """The runtime has accepted us and said what it is."""

    def disconnected(self, why: str) -> None:
        """The connection to a runtime that was ``connected`` has ended."""

    async def synchronize(self, pods: Sequence[Pod], containers: Sequence[Container]) -> Sequence[Update]:
        """Everything that exists. A container's pod may be missing from the list."""

    async def create_container(self, pod: Pod, container: Container) -> tuple[Adjustment, Sequence[Update]]:
        """A container is about to be created: what to change in its spec, and in other containers.

        Raises:
            PlacementError: it must not be created.
        """

    async def update_container(
        self, pod: Pod, container: Container, resources: Resources
    ) -> Sequence[Update]:
        """A container's resources are about to change to *resources*, where they are not None. An update of
        the container itself is merged over that.

        Raises:
            PlacementError: they must not change.
        """

    async def stop_container(self, pod: Pod, container: Container) -> Sequence[Update]:
        """A container has ended, or its creation has failed. *pod* may be empty but for its id."""

    async def state_changed(self, event: Event, pod: Pod, container: Container | None) -> None:
        """Every other event. *pod* may be empty but for its id when it stops or is removed."""

    def fallback_adjustment(self, pod: Pod, container: Container) -> Adjustment:
        """The safe answer when ``create_container`` has none.

        Raises:
            PlacementError: it must not be created without a decision.
        """

    def refuses_undecided(self) -> bool:
        """Whether the runtime should fail a request that we do not answer, where it can (NRI 0.12.4)."""

    def missed(
        self, event: Event, container_id: str, why: str, described: tuple[Pod, Container] | None = None
    ) -> None:
        """A request was answered by default, or not at all. *container_id* is empty for events of pods;
        *described* is what `state_changed` would have been given of a container."""
