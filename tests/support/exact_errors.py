"""In what the `exact` engine and brute force can disagree."""

from typing import Final

OVERCOMMIT: Final = "hidden overcommit"
WRONG_REFUSAL: Final = "wrong refusals"
WRONG_MOVE: Final = "wrong moves"
WRONG_PLACE: Final = "wrong places"
WRONG_CHOICE: Final = "wrong choices"
WRONG_CPUS: Final = "wrong CPUs"
KINDS: Final = (OVERCOMMIT, WRONG_REFUSAL, WRONG_MOVE, WRONG_PLACE, WRONG_CHOICE, WRONG_CPUS)


class BrokenPromiseError(AssertionError):
    """The engine and brute force disagree; *kind* is one of `KINDS`."""

    def __init__(self, kind: str, what: str) -> None:
        super().__init__(what)
        self.kind = kind
