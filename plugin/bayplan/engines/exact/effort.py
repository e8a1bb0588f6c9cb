"""How much work a search may take: counted in steps, so that the same question always has the same answer."""

from typing import Final

MAX_STEPS: Final = 40_000
"""Steps of one decision, about a microsecond each, so that with everything around it no decision takes more
than 100 ms of CPU (tests/bench/worst.py): so long no timer of the event loop runs.

Every part of a search is counted by what it was measured to take: branches and the nodes left in them, the
nodes that a flow looks at and the loads it moves, the sets that are looked at one by one, the moves that are
tried. It must not depend on how the flows came to be, which is why a search starts its own (`Lookup.trial`).
"""
SHARE_OF_MOVES: Final = 1 / 4
"""What of a decision's steps is kept for moves of others."""
_SHARE_OF_REFUSALS: Final = 7 / 8
_SHARE_OF_PROOFS: Final = 1 / 2
_SHARE_OF_A_WIDTH: Final = 1 / 6


class Effort:
    """The steps that are left for one question.

    Of what is left each time the proof that nothing fits at all may take seven eighths, other proofs (that
    nothing fits on so few nodes, or is better) half, and to look at the sets of a width one by one a sixth.
    ``ended``: a proof was given up.
    """

    __slots__ = ("_until", "ended", "most", "spent")

    def __init__(self, most: int = MAX_STEPS) -> None:
        self.most = most
        self.spent = 0
        self.ended = False
        self._until = most

    def begin_proof(self, *, at_all: bool = False) -> None:
        """Start to look for what fits on so many nodes or is better; *at_all*: for anything that fits."""
        self._until = self.spent + self._share(_SHARE_OF_REFUSALS if at_all else _SHARE_OF_PROOFS)

    @property
    def for_a_width(self) -> int:
        """What it may take to look at the sets of a width one by one."""
        return self._share(_SHARE_OF_A_WIDTH)

    @property
    def exhausted(self) -> bool:
        """Whether nothing is left."""
        return self.spent >= self.most

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

    def _share(self, part: float) -> int:
        return int(max(0, self.most - self.spent) * part)
