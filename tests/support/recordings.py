"""Recordings of simulated daemons: engines that are recorded, and the files in tests/data/recordings.

    PYTHONPATH=tests python -m support.recordings DIR

makes these files anew.
"""

import random
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

from bayplan.config.kubelet_rules import engine_of
from bayplan.config.settings import Settings
from bayplan.engines.exact.engine import ExactEngine
from bayplan.model.basis import Basis
from bayplan.model.decision import Outcome
from bayplan.model.ledger import Entry, Ledger
from bayplan.model.policy import PlacementPolicy
from bayplan.quantity import GIB
from bayplan.recording.recording import RecordedEngine, Recording
from bayplan.simulate.rehearsal import applied
from support.exact_draws import draw_request
from support.interleaving.schedule import play
from support.interleaving.simulated_host import SimulatedHost
from support.machines import machine

RECORDINGS: Final = Path(__file__).parents[1] / "data" / "recordings"

SCHEDULES: Final[Mapping[str, int]] = {"two-nodes-both-engines.jsonl": 8, "two-nodes-found.jsonl": 56}
"""The seeds of those that are schedules."""

TRACE: Final = "four-nodes-trace.jsonl"
CONTAINERS: Final = 40


@contextmanager
def recording_at(path: Path) -> Iterator[Recording]:
    """A recording whose file is whole at the end of the block."""
    recording = Recording.open(path)
    try:
        yield recording
    finally:
        recording.close()
    assert not recording.problem


def recorded_engine(recording: Recording, settings: Settings) -> RecordedEngine:
    """The engine that *settings* ask for, recorded."""
    return RecordedEngine(engine_of(settings), recording)


def record_trace(recording: Recording) -> None:
    """Have a random trace of containers of all kinds recorded, which come and go on four nodes."""
    draw = random.Random(4)
    distances = {(a, b): 10 if a == b else 12 if a // 2 == b // 2 else 32 for a in range(4) for b in range(4)}
    hardware = machine(4, cpus_per_node=8, memory_bytes=16 * GIB, threads_per_core=2, distances=distances)
    engine, policy, ledger = RecordedEngine(ExactEngine(), recording), PlacementPolicy(), Ledger()
    for number in range(CONTAINERS):
        decision = engine.decide(Basis(hardware, policy, ledger), draw_request(draw, hardware, f"c{number}"))
        if decision.outcome is not Outcome.REFUSED:
            ledger = applied(ledger, Entry(decision))
        if len(ledger.entries) > CONTAINERS // 4:
            ledger = ledger.without(draw.choice(sorted(ledger.entries)))
            for move in engine.moves_back(Basis(hardware, policy, ledger)):
                ledger = ledger.moved([move])
            ledger = ledger.with_claims(engine.completed_claims(Basis(hardware, policy, ledger)))


def main(directory: Path) -> None:
    """Make all of them in *directory*."""
    for name, seed in SCHEDULES.items():
        with recording_at(directory / name) as recording:
            play(seed, partial(SimulatedHost, engine_for=partial(recorded_engine, recording)))
    with recording_at(directory / TRACE) as recording:
        record_trace(recording)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
