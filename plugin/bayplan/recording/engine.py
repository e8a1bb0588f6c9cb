"""An engine that answers as another one does, and has each question recorded with its answer."""

import time
from collections.abc import Collection, Mapping

from bayplan.engines.interface import Engine, EngineKind
from bayplan.model.basis import Basis
from bayplan.model.decision import Claim, Decision, Move, Placement, Request
from bayplan.model.ledger import Ledger
from bayplan.recording.questions import (
    Adopt,
    CompletedClaims,
    Converted,
    Decide,
    MovesBack,
    ResizedPools,
    WidenedPlacements,
    changed_entries,
    options_of,
)
from bayplan.recording.recording import Recording
from bayplan.sets import CpuSet, NodeSet


class RecordedEngine:
    """See the module. Each method is that of `Engine`."""

    def __init__(self, engine: Engine, recording: Recording) -> None:
        self._engine, self._recording = engine, recording
        self._options = options_of(engine)

    @property
    def name(self) -> str:
        """See `Engine`."""
        return self._engine.name

    @property
    def kind(self) -> EngineKind:
        """As of the engine."""
        return self._engine.kind

    def separate_copy(self) -> "RecordedEngine":
        """See `Engine`; both are recorded in the same file."""
        return RecordedEngine(self._engine.separate_copy(), self._recording)

    def decide(
        self,
        basis: Basis,
        request: Request,
        current: Placement | None = None,
    ) -> Decision:
        """See `Engine`."""
        answer = self._engine.decide(basis, request, current)
        question = Decide(_now_us(), answer, request, current)
        self._recording.add(self._options, basis, question)
        return answer

    def adopt(
        self,
        basis: Basis,
        request: Request,
        mems: NodeSet | None,
    ) -> Placement:
        """See `Engine`."""
        answer = self._engine.adopt(basis, request, mems)
        question = Adopt(_now_us(), answer, request, mems)
        self._recording.add(self._options, basis, question)
        return answer

    def moves_back(self, basis: Basis, staying: Collection[str] = ()) -> tuple[Move, ...]:
        """See `Engine`."""
        answer = self._engine.moves_back(basis, staying)
        question = MovesBack(_now_us(), answer, tuple(sorted(staying)))
        self._recording.add(self._options, basis, question)
        return answer

    def widened_placements(self, basis: Basis) -> Mapping[str, Placement]:
        """See `Engine`."""
        answer = self._engine.widened_placements(basis)
        self._recording.add(self._options, basis, WidenedPlacements(_now_us(), answer))
        return answer

    def completed_claims(self, basis: Basis) -> Mapping[str, Claim]:
        """See `Engine`."""
        answer = self._engine.completed_claims(basis)
        self._recording.add(self._options, basis, CompletedClaims(_now_us(), answer))
        return answer

    def resized_pools(self, basis: Basis) -> Mapping[str, CpuSet]:
        """See `Engine`."""
        answer = self._engine.resized_pools(basis)
        self._recording.add(self._options, basis, ResizedPools(_now_us(), answer))
        return answer

    def converted(self, basis: Basis) -> Ledger:
        """See `Engine`."""
        ledger = basis.ledger
        answer = self._engine.converted(basis)
        question = Converted(_now_us(), changed_entries(ledger, answer))
        self._recording.add(self._options, basis, question)
        return answer


def _now_us() -> int:
    return time.time_ns() // 1000
