"""Whether others write the object that is published here: another agent under the same name does.

The API server raises an object's generation by one with each change of its content. Between two writes of
one's own it rises by one at most.
"""

import time
from collections.abc import Callable

from msgspec import Struct

from bayplan.agent.condition import Condition


class _Metadata(Struct, frozen=True):
    uid: str = ""
    generation: int = 0


class Written(Struct, frozen=True):
    """What the API server answers to a write."""

    metadata: _Metadata = _Metadata()


class OtherWriters:
    """Looks at each write of one's own. *report* is called with *problem* when there is another writer; it is
    over when nobody else has written for *quiet_s*."""

    def __init__(self, problem: str, report: Callable[[str], None], quiet_s: float) -> None:
        self._problem = problem
        self._report = report
        self._quiet_s = quiet_s
        self._condition = Condition(
            "the node's room is written by others, too", "the node's room is written by nobody else any more"
        )
        self._last = _Metadata()
        self._seen_s = float("-inf")

    def wrote(self, written: Written) -> None:
        """This was the answer to a write."""
        last, self._last = self._last, written.metadata
        now_s = time.monotonic()
        if last.uid == self._last.uid and last.generation + 1 < self._last.generation:
            self._seen_s = now_s
            if self._condition.holds(self._problem) == 1:
                self._report(self._problem)
        elif self._seen_s + self._quiet_s <= now_s:
            self._condition.over()

    def failed(self) -> None:
        """A write may have been carried out all the same: the next one says nothing about others."""
        self._last = _Metadata()
