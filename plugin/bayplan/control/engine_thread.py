"""Where an engine decides: at once on small machines, in a thread on machines of many nodes.

A decision on many nodes can take longer than the runtime waits. In a thread, it does not keep the event loop
from answering by default at the deadline. Nothing here knows what is decided.
"""

from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import Final, TypeVar

from bayplan.control.latency import DurationCounter
from bayplan.control.threads import InThread
from bayplan.engines.interface import Engine
from bayplan.model.decision import Decision
from bayplan.model.machine import Machine

FEW_NODES: Final = 8
"""Decisions on so many nodes take 10 ms at most (tests/bench/worst.py)."""

Answer = TypeVar("Answer", bound=Decision | None)


class EngineThread:
    """Decisions by an engine; without *in_thread* all are made at once. *durations* counts how long they
    take."""

    def __init__(self, in_thread: InThread | None, durations: DurationCounter) -> None:
        self._in_thread = in_thread
        self._durations = durations
        self._engines: tuple[Engine, Engine] | None = None
        """The engine, and the one that decides for it in the thread: an engine keeps what it worked out, and
        two threads must not write there."""

    async def run(self, engine: Engine, machine: Machine, decide: Callable[[Engine], Answer]) -> Answer:
        """What *decide* returns with *engine* on *machine*."""
        begun_s = perf_counter()
        try:
            if self._in_thread is None or len(machine.nodes) <= FEW_NODES:
                return decide(engine)
            if self._engines is None or self._engines[0] is not engine:
                self._engines = engine, engine.separate_copy()
            return await self._in_thread(partial(decide, self._engines[1]))
        finally:
            self._durations.observe(perf_counter() - begun_s)
