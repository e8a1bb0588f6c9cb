"""How much work a search may take: counted in steps, so that the same question always has the same answer."""

from typing import Final

MAX_STEPS: Final = 20_000
"""Steps of one decision, some 70 us each: the runtime gives a plugin up after 2 s by default."""
_SHARE_OF_IMPROVEMENTS: Final = 8


class Effort:
    """The steps that are left for one question.

    To prove that nothing fits may take half of what is left each time, so that others get their share; to
    prove that nothing is better an eighth. ``ended``: a proof was given up.
    """

    __slots__ = ("_until", "ended", "most", "spent")

    def __init__(self, most: int = MAX_STEPS) -> None:
        self.most = most
        self.spent = 0
        self.ended = False
        self._until = most

    def begin_proof(self) -> None:
        """Start to look for anything that fits."""
        self._until = self.spent + max(0, self.most - self.spent + 1) // 2

    def begin_improvement(self) -> None:
        """Start to look for something better."""
        self._until = self.spent + max(0, self.most - self.spent + 1) // _SHARE_OF_IMPROVEMENTS

    def rest(self) -> "Effort":
        """What is left for another question of the same decision."""
        return Effort(max(0, self.most - self.spent))

    def take(self, steps: int) -> bool:
        """Account for *steps*; False once the proof has to be given up."""
        self.spent += steps
        if self.spent > self._until:
            self.ended = True
            return False
        return True
