"""The containers that are slowed down now, so that memory promised to others is not taken before it is freed.

`placement.brakes` says which containers, and by how much they may grow. Here that is applied at each look,
raised by what has been freed, and taken back. No container stays slowed down for long: one that waits in vain
is let go and named. Nor is any slowed down after this process, whichever way it ends: see `host.memory_high`.
A container that an earlier process left slowed down stays so until it was looked at: it would at once take
what others need. Everything blocks; any thread.
"""

import logging
import time
from collections.abc import Callable, Collection, Mapping
from threading import Lock
from typing import Final

from msgspec.structs import replace

from bayplan.control.state import NodeState
from bayplan.errors import HostError
from bayplan.host.hierarchy import MEMORY, Hierarchy
from bayplan.host.kernelfs import AbsentError
from bayplan.host.memory_high import (
    Attributes,
    Brake,
    KernelAttributes,
    give_back,
    left_slowed_down,
    used_bytes,
)
from bayplan.model.sentences import slowed_down
from bayplan.placement.brakes import allowed_growth, grown, unbacked
from bayplan.placement.page_placement import LivePages, NodeMemory
from bayplan.quantity import MIB

logger = logging.getLogger(__name__)

STALLED_S: Final = 15.0
"""A container that waits and has got nothing for so long is let go: probes give a container as little as 30
s."""
LET_GO_S: Final = 60.0
"""And for so long it is not slowed down again."""
URGENT_S: Final = 5.0
"""A container that was bound less than this ago may soon wait."""
_RISE_BYTES: Final = MIB
"""Less than this is no progress."""


class _Slowed:
    """A container that is bound since ``since_s``. ``waits``: it uses all that it may; it did so last at
    ``waited_s``. ``risen_s`` is when it last got more, or did not need more."""

    def __init__(self, brake: Brake, now_s: float) -> None:
        self.brake = brake
        self.since_s = self.risen_s = self.waited_s = now_s
        self.waits = False

    def most_bytes(self, used: int, more_bytes: int) -> int:
        """What it may use in all, if it uses *used* bytes and is to have *more_bytes*. The kernel lets it use
        a little more than its bound, which must not become the new bound."""
        before_bytes = self.brake.most_bytes
        return (before_bytes if before_bytes and used > before_bytes else used) + more_bytes

    def is_in_vain(self, used: int, more_bytes: int, now_s: float) -> bool:
        """Whether it has waited long enough for more than it has got."""
        self.waits = 0 < self.brake.bound_bytes <= used
        if self.waits:
            self.waited_s = now_s
        if self.most_bytes(used, more_bytes) >= self.brake.most_bytes + _RISE_BYTES or not self.waits:
            self.risen_s = now_s
        return now_s - self.risen_s >= STALLED_S


class Brakes:
    """See the module. *read_nodes* reads what the nodes have at this moment."""

    def __init__(
        self,
        state: NodeState,
        hierarchy: Hierarchy,
        read_nodes: Callable[[], Mapping[int, NodeMemory]],
        clock_s: Callable[[], float] = time.monotonic,
        attributes: Attributes | None = None,
        *,
        applies: bool = True,
    ) -> None:
        self.is_possible = applies and hierarchy.unified
        """Whether containers can be slowed down here at all."""
        self._state = state
        self._hierarchy = hierarchy
        self._read_nodes = read_nodes
        self._clock_s = clock_s
        self._attributes = attributes or KernelAttributes()
        self._lock = Lock()
        self._ended = False
        self._slowed: dict[str, _Slowed] = {}
        self._let_go_s: dict[str, float] = {}
        """By id, until when a container that was let go is not slowed down again."""
        self._left_s: dict[str, float] = {}
        """The cgroups that an earlier process left slowed down, and until when they are waited for."""
        self._before: LivePages | None = None
        self.unbacked: frozenset[str] = frozenset()
        """The ids of the containers whose promises were not backed at the last look."""

    def __contains__(self, container_id: str) -> bool:
        return container_id in self._slowed

    def __bool__(self) -> bool:
        return bool(self._slowed or self._left_s)

    @property
    def is_urgent(self) -> bool:
        """Whether a slowed down container waits for memory, or has just been bound."""
        now_s = self._clock_s()
        return any(one.waits or now_s - one.since_s < URGENT_S for one in list(self._slowed.values()))

    def is_look_due(self) -> bool:
        """Whether a container that is slowed down waits by now."""
        if self.is_urgent or self._left_s:
            return True
        for one in list(self._slowed.values()):
            try:
                if used_bytes(one.brake.directory) >= one.brake.bound_bytes:
                    return True
            except HostError:
                return True
        return False

    def adjust(self, live: LivePages, cgroups: Mapping[str, str], starting: Collection[str] = ()) -> None:
        """Slow down the containers that could take what is promised to others by *live*, and no others.
        *cgroups* are the paths of the containers' cgroups, below their mount; containers that are *starting*
        take all of their promise soon."""
        if not self.is_possible:
            return
        with self._lock:
            if self._ended:
                return
            now_s = self._clock_s()
            self._let_go_s = {key: until_s for key, until_s in self._let_go_s.items() if until_s > now_s}
            # A container that an earlier process held back would be seen to grow only after it is let go.
            left = {key for key, path in cgroups.items() if self._directory(path) in self._left_s}
            starting = left.union(starting)
            took = grown(self._before, live)
            self._before = live
            self.unbacked = unbacked(live)
            if self._slowed or allowed_growth(live, took, starting):
                self._apply(live, took, cgroups, starting)
            looked_at = {self._directory(path) for path in cgroups.values()}
            in_use = {one.brake.directory for one in self._slowed.values()}
            for directory, until_s in list(self._left_s.items()):
                if directory in in_use:
                    del self._left_s[directory]
                elif directory in looked_at or now_s >= until_s:
                    self._give_back(directory)

    def _apply(
        self,
        live: LivePages,
        took: Mapping[str, Mapping[int, int]],
        cgroups: Mapping[str, str],
        starting: Collection[str],
    ) -> None:
        """Slow down by what the nodes have now."""
        # What was used is read before what is left: what somebody takes in between counts twice.
        used = {key: amount for key in live.containers if (amount := self._used(key, cgroups)) is not None}
        now = replace(live, nodes=self._read_nodes())
        allowed = allowed_growth(now, took, {*self._held_back(), *starting})
        self.unbacked = unbacked(now)
        for key in self._slowed.keys() - allowed.keys():
            self._release(key, "its memory is there")
        for key, more_bytes in allowed.items():
            if key in used:
                self._bind(key, cgroups[key], used[key], more_bytes)
            else:
                self._release(key, "it is gone, or not to be touched any more")

    def release_all(self, *, ended: bool = False) -> None:
        """Slow down no container any more; never again if the process *ended*."""
        with self._lock:
            self._ended = self._ended or ended
            for key in list(self._slowed):
                self._release(key, "nobody is slowed down any more")
            for directory in list(self._left_s):
                self._give_back(directory)

    def take_over(self) -> None:
        """Find what an earlier process left slowed down. What is known by then is looked at with the next
        `adjust`; the others are waited for, but not for long."""
        if not self.is_possible:
            return
        try:
            found = left_slowed_down(self._hierarchy.mounts[MEMORY], self._attributes)
        except HostError as error:
            logger.warning("whether somebody is slowed down cannot be seen", extra={"problem": str(error)})
            return
        self._left_s = dict.fromkeys(found, self._clock_s() + STALLED_S)

    def problems(self) -> tuple[str, ...]:
        """The containers that wait for memory, each as a sentence."""
        now_s, entries = self._clock_s(), self._state.ledger.entries
        return tuple(
            slowed_down(entries[key].decision.request.name, now_s - one.since_s)
            for key, one in sorted(self._slowed.items())
            if key in entries and one.waits
        )

    def _held_back(self) -> set[str]:
        """The ids of the containers that are slowed down or waited lately: their growth says nothing about
        what they want."""
        now_s = self._clock_s()
        return {key for key, one in self._slowed.items() if now_s - one.waited_s < URGENT_S}

    def _used(self, key: str, cgroups: Mapping[str, str]) -> int | None:
        """How many bytes a container uses; None if it is not there, or not to be touched."""
        entry = self._state.ledger.entries.get(key)
        if key not in cgroups or entry is None or entry.decision.request.opted_out:
            return None
        try:
            return used_bytes(self._directory(cgroups[key]))
        except HostError:
            return None

    def _bind(self, key: str, cgroup: str, used: int, more_bytes: int) -> None:
        if key in self._let_go_s:
            return
        now_s, slowed = self._clock_s(), self._slowed.get(key)
        if slowed is None:
            slowed = _Slowed(Brake(self._directory(cgroup), self._attributes), now_s)
        if slowed.is_in_vain(used, more_bytes, now_s):
            self._let_go_s[key] = now_s + LET_GO_S
            self._state.counters["slowed_in_vain"] += 1
            self._release(key, "no more memory was freed for it")
            return
        try:
            bound = slowed.brake.bind(slowed.most_bytes(used, more_bytes))
        except AbsentError:
            bound = False
        except HostError as error:
            extra = {"container_id": key, "problem": str(error)}
            logger.warning("a container cannot be slowed down", extra=extra)
            self._release(key, "the kernel refused")
            return
        if not bound:
            self._slowed.pop(key, None)
        elif key not in self._slowed:
            self._slowed[key] = slowed
            self._state.counters["slowed_down"] += 1
            uses = {"container_id": key, "used_bytes": used, "more_bytes": more_bytes}
            logger.info("slowed down", extra=uses)

    def _release(self, key: str, why: str) -> None:
        slowed = self._slowed.pop(key, None)
        if slowed is None:
            return
        extra = {"container_id": key, "after_s": round(self._clock_s() - slowed.since_s, 1), "why": why}
        try:
            slowed.brake.release()
        except HostError as error:
            logger.warning("memory.high cannot be given back", extra={**extra, "problem": str(error)})
            return
        logger.info("not slowed down any more", extra=extra)

    def _give_back(self, directory: str) -> None:
        """Give back memory.high of a cgroup that an earlier process has left slowed down."""
        del self._left_s[directory]
        extra = {"cgroup": directory}
        try:
            give_back(directory, self._attributes)
        except HostError as error:
            logger.warning("memory.high cannot be given back", extra={**extra, "problem": str(error)})
            return
        logger.info("no longer slowed down by an earlier daemon", extra=extra)

    def _directory(self, cgroup: str) -> str:
        return f"{self._hierarchy.mounts[MEMORY]}{cgroup}"
