"""Everything that became different of what decisions depend on, in order, with refusals and evictions: for
those who follow it from outside (`bayplan.admin.agent_server`).

Only the latest changes are kept, within a bound. Who has fallen behind further than that starts again from
what holds now. Invariant: whoever applies all changes after a position to what held there has what holds now.
"""

import secrets
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from itertools import islice
from typing import Final, TypeAlias

from bayplan.agent_protocol import Change, Evicted, Refused
from bayplan.model.decision import Decision
from bayplan.model.eviction_records import EvictionRecord
from bayplan.model.ledger import Ledger
from bayplan.model.ledger_changes import entries_of
from bayplan.model.machine import Machine
from bayplan.model.policy import PlacementPolicy

MAX_KEPT: Final = 8192
"""Entries and changes together. An entry is some kilobytes, and most are those of the ledger itself."""

MAX_REFUSALS: Final = 100
"""So many refusals are part of what holds now."""

Item: TypeAlias = Change | Refused | Evicted


class ChangeLog:
    """The latest changes. ``epoch`` is drawn for each log: positions of another one mean nothing.
    ``position`` is the last change's, 0 before the first. ``listeners`` are called after each change; they
    must not block.
    """

    def __init__(self, most_kept: int = MAX_KEPT) -> None:
        self.epoch = secrets.token_hex(8)
        self.position = 0
        self.refusals: deque[Refused] = deque(maxlen=MAX_REFUSALS)
        self.listeners: set[Callable[[], None]] = set()
        self._most_kept = most_kept
        self._kept: deque[Item] = deque()
        self._weight = 0

    def note(
        self,
        ledger: Ledger,
        ids: Collection[str],
        *,
        machine: Machine | None = None,
        policy: PlacementPolicy | None = None,
        engine: str | None = None,
    ) -> None:
        """*ledger* holds from now on, and says something else about the containers *ids*; so does what else
        is given."""
        if not ids and (machine, policy, engine) == (None, None, None):
            return
        entries, gone = tuple(entries_of(ledger, ids)), list[str]()
        if len(entries) < len(ids):
            gone = sorted(set(ids).difference(entry.container_id for entry in entries))
        self.position += 1
        self._keep(Change(self.position, entries, tuple(gone), machine, policy, engine))

    def refused(self, decision: Decision) -> None:
        """A container was refused."""
        self.position += 1
        refusal = Refused(self.position, time.time_ns() // 1000, decision)
        self.refusals.append(refusal)
        self._keep(refusal)

    def evicted(self, record: EvictionRecord, annotations: Mapping[str, str]) -> None:
        """A pod is evicted; see `Evicted`."""
        self.position += 1
        self._keep(Evicted(self.position, record, annotations))

    def since(self, position: int) -> list[Item] | None:
        """The changes after *position*; None if they are not all kept any more, or it is none of ours."""
        behind = self.position - position
        if not 0 <= behind <= len(self._kept):
            return None
        return list(islice(reversed(self._kept), behind))[::-1]

    def _keep(self, item: Item) -> None:
        self._kept.append(item)
        self._weight += _weight(item)
        while self._weight > self._most_kept:
            self._weight -= _weight(self._kept.popleft())
        for listener in self.listeners:
            listener()


def _weight(item: Item) -> int:
    return 1 + len(item.entries) + len(item.gone) if isinstance(item, Change) else 1
