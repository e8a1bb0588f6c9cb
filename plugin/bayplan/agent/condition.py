"""A condition that may last: one line when it begins or becomes another one, and one when it is over."""

import logging

logger = logging.getLogger(__name__)


class Condition:
    """*failing* is the log line while there is a problem, *again* the one when there is none any more."""

    def __init__(self, failing: str, again: str) -> None:
        self._failing = failing
        self._again = again
        self._problem = ""
        self._times = 0

    def holds(self, problem: str) -> int:
        """There is *problem*; how many times in a row."""
        if problem != self._problem:
            self._problem, self._times = problem, 0
            logger.warning("%s", self._failing, extra={"problem": problem})
        self._times += 1
        return self._times

    def over(self) -> None:
        """There is none."""
        if self._problem:
            self._problem = ""
            logger.info("%s", self._again)
