"""How long to wait: before the next attempt, doubling, with jitter, for ever; and before more is said than
may be in a second.

Pure but for the randomness handed in.
"""

from collections.abc import Callable
from typing import Final

from msgspec import Struct

FIRST_S: Final = 0.1
LIMIT_S: Final = 2.0
"""While we are away, containers are created without us; an attempt costs one system call."""

_MOST_DOUBLINGS: Final = 32


def drawn(random: Callable[[], float], least_s: float, most_s: float) -> float:
    """A delay between both, so that what began at one moment does not come again at one moment; *random*
    gives numbers from 0 to below 1."""
    return least_s + (most_s - least_s) * random()


class Backoff:
    """Delays between *first_s* and *limit_s*; *random* gives numbers from 0 to below 1.

    Each delay is between half and the whole of its ceiling, so that the plugins of a node that lost the same
    runtime don't come back in step.
    """

    def __init__(
        self, random: Callable[[], float], first_s: float = FIRST_S, limit_s: float = LIMIT_S
    ) -> None:
        self._random = random
        self._first_s = first_s
        self.limit_s = limit_s
        self._attempts = 0

    @property
    def attempts(self) -> int:
        """Delays given since the last reset."""
        return self._attempts

    def next_s(self) -> float:
        """The delay before the next attempt, in seconds."""
        ceiling_s = min(self.limit_s, self._first_s * (1 << min(self._attempts, _MOST_DOUBLINGS)))
        self._attempts += 1
        return ceiling_s * (1 + self._random()) / 2

    def reset(self) -> None:
        """The attempts have led to something that lasts."""
        self._attempts = 0


class Allowance(Struct):
    """Who says more waits, and nothing is lost: *burst* at once, and *per_s* more in each second. ``left`` is
    what is not used up, below 0 what was used before its time."""

    per_s: float
    burst: float
    left: float = 0.0
    at_s: float = float("-inf")

    def wait_s(self, amount: float, now_s: float) -> float:
        """Take *amount* at the time *now_s*; how long to wait before more is taken."""
        self.left = min(self.burst, self.left + (now_s - self.at_s) * self.per_s) - amount
        self.at_s = now_s
        return max(0.0, -self.left / self.per_s)
