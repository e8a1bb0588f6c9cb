"""How fast a client may say something: who says more waits, and nothing that it says is lost."""

from msgspec import Struct


class Allowance(Struct):
    """*burst* at once, and *per_s* more in each second. ``left`` is what is not used up, below 0 what was
    used before its time."""

    per_s: float
    burst: float
    left: float = 0.0
    at_s: float = float("-inf")

    def wait_s(self, amount: float, now_s: float) -> float:
        """Take *amount* at the time *now_s*; how long to wait before more is taken."""
        self.left = min(self.burst, self.left + (now_s - self.at_s) * self.per_s) - amount
        self.at_s = now_s
        return max(0.0, -self.left / self.per_s)
