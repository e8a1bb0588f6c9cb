"""The daemon's state as the agent knows it: kept up to date by `daemon_link`, read by everything else.

Consumers take ``mirror.snapshot``, which is immutable and of one moment, make what they need of it (with
`bayplan.views`, for instance), and wait with `wait_for_change` until it is worth looking again. While the
daemon is away the last state stays; ``connected`` says so.
"""

import asyncio
from collections import deque
from typing import Final

from msgspec import Struct
from msgspec.structs import asdict

from bayplan.agent_protocol import Change, Evicted, FromDaemon, Observed, Refused, UpToDate, Welcome
from bayplan.model.ledger import Ledger
from bayplan.model.ledger_changes import with_changes
from bayplan.model.machine import Machine
from bayplan.model.policy import PlacementPolicy
from bayplan.views.snapshot import Observation, Snapshot

MAX_REFUSALS: Final = 1000
"""The latest; some hundred bytes each."""
MAX_EVICTIONS: Final = 100


class _State(Struct):
    """What the changes up to *position* come to."""

    machine: Machine | None = None
    policy: PlacementPolicy = PlacementPolicy()
    engine: str = ""
    ledger: Ledger = Ledger()
    position: int = 0
    refusals: tuple[Refused, ...] = ()

    def take(self, change: Change) -> None:
        """Take over *change*."""
        self.machine = change.machine or self.machine
        self.policy = change.policy or self.policy
        self.engine = self.engine if change.engine is None else change.engine
        self.ledger = with_changes(self.ledger, change.entries, change.gone)
        self.position = change.position


class Mirror:
    """See the module. ``epoch`` and ``position`` are where the daemon may resume.

    ``revision`` rises with everything that is new; ``refusals`` and ``evictions`` are the latest ones, the
    oldest first, the latter since the agent's start.
    """

    def __init__(self) -> None:
        self.epoch = ""
        self.connected = False
        self.revision = 0
        self.refusals: deque[Refused] = deque(maxlen=MAX_REFUSALS)
        self.evictions: deque[Evicted] = deque(maxlen=MAX_EVICTIONS)
        self._current = _State()
        self._next: _State | None = None
        """What is being sent in place of all that was known; nobody sees a half of it."""
        self._next_epoch = ""
        self._observation: Observation | None = None
        self._snapshot: Snapshot | None = None
        self._news = asyncio.Event()

    @property
    def position(self) -> int:
        """The position of what is known."""
        return self._current.position

    @property
    def snapshot(self) -> Snapshot | None:
        """The daemon's state, as in the daemon itself; None before the first one is complete."""
        state, observation = self._current, self._observation
        if self._snapshot is None and state.machine is not None and observation is not None:
            self._snapshot = Snapshot(
                **asdict(observation),
                machine=state.machine,
                policy=state.policy,
                ledger=state.ledger,
                engine=state.engine,
            )
        return self._snapshot

    async def wait_for_change(self, seen: int) -> int:
        """Wait until ``revision`` is not *seen*; what it is then. Disconnection is a change, too."""
        while self.revision == seen:
            await self._news.wait()
        return self.revision

    def disconnected(self) -> None:
        """The daemon is away. What is known stays; what was half sent does not."""
        self._next = None
        if self.connected:
            self.connected = False
            self._publish()

    def take(self, message: FromDaemon) -> None:
        """Take over what the daemon says; messages about other things are passed over."""
        match message:
            case Welcome(epoch, resumed):
                self._next, self._next_epoch = None if resumed else _State(), epoch
            case UpToDate(position):
                if self._next is not None:
                    self._current, self._next, self.epoch = self._next, None, self._next_epoch
                    self._current.position = position
                    self.refusals = deque(self._current.refusals, MAX_REFUSALS)
                    self._current.refusals = ()
                self.connected = True
                self._publish()
            case Change() if self._next is not None:
                self._next.take(message)
            case Change():
                self._current.take(message)
                self._publish()
            case Refused() if self._next is not None:
                self._next.refusals = (*self._next.refusals, message)
            case Refused():
                self.refusals.append(message)
                self._current.position = message.position
                self._publish()
            case Evicted():
                self.evictions.append(message)
                (self._next or self._current).position = message.position
                self._publish()
            case Observed(observation):
                self._observation = observation
                self._publish()

    def _publish(self) -> None:
        self.revision += 1
        self._snapshot = None
        self._news.set()
        self._news = asyncio.Event()
