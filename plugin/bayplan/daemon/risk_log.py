"""Logs and counts sets of nodes on which memory can run out.

On a full node a risk comes and goes every few seconds. It is logged when it begins, and when all are over.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Final

from bayplan.config.settings import MemoryPressure
from bayplan.control.state import NodeState
from bayplan.model.page_records import PageMoveRecord
from bayplan.placement.page_placement import LivePages, PageMove, Risk
from bayplan.sets import NodeSet

logger = logging.getLogger(__name__)

QUIET_S: Final = 60.0
"""A set of nodes was not at risk for so long when it is logged that it is, or that nothing is any more."""


Unmoved = Callable[[LivePages, Risk, Sequence[PageMove]], Sequence[PageMoveRecord]]


class RiskLog:
    """See the module. *unmoved* is `PageRelief.unmoved`."""

    def __init__(self, state: NodeState, unmoved: Unmoved, clock_s: Callable[[], float]) -> None:
        self._state = state
        self._unmoved = unmoved
        self._clock_s = clock_s
        self._at_risk_at_s: dict[NodeSet, float] = {}

    def report(self, seen: LivePages, mode: MemoryPressure) -> None:
        """Log what is new in *seen*; *mode* says what is done about it."""
        now_s = self._clock_s()
        for risk in seen.plan.risks:
            last_s = self._at_risk_at_s.get(risk.nodes, -QUIET_S)
            self._at_risk_at_s[risk.nodes] = now_s
            if now_s - last_s >= QUIET_S:
                self._begun(seen, risk, mode)
        if self._at_risk_at_s and now_s - max(self._at_risk_at_s.values()) >= QUIET_S:
            logger.info("nodes can give what is outstanding again")
            self._at_risk_at_s.clear()

    def _begun(self, seen: LivePages, risk: Risk, mode: MemoryPressure) -> None:
        self._state.counters["memory_at_risk"] += 1
        moves = [move for move in seen.plan.moves if move.source in risk.nodes]
        logger.warning(
            "less memory than is outstanding",
            extra={
                "problem": str(risk),
                "mode": mode.value,
                "to_move_bytes": sum(move.amount_bytes for move in moves),
                "to_move": sorted({move.container_id for move in moves}),
            },
        )
        if records := self._unmoved(seen, risk, moves):
            self._state.recorder.pages_moved(records)
