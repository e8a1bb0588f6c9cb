"""Makes the lines of a recording, and hands them to a thread that writes them.

Nothing here waits for the disk. A recording that the disk does not take ends; the daemon goes on without it.
Invariant: each file can be replayed from its first line on, whatever was lost before and after it.
"""

import logging
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Final, Self

from msgspec import Struct

from bayplan.control.threads import StoreThread
from bayplan.model.basis import Basis
from bayplan.model.ledger import Ledger
from bayplan.model.ledger_changes import changed_ids, entries_of
from bayplan.model.machine import Machine
from bayplan.model.policy import PlacementPolicy
from bayplan.quantity import MIB
from bayplan.recording.file import RecordingFile
from bayplan.recording.questions import AnyQuestion, Begin, Changed, EngineOptions, encode

logger = logging.getLogger(__name__)

MAX_FILE_BYTES: Final = 32 * MIB
"""Some 5,000 decisions with what led to them. There are two such files at most."""

MAX_UNWRITTEN_BYTES: Final = 2 * MAX_FILE_BYTES
"""A disk that is so far behind is hung. The first lines alone may fill a file."""

CLOSING_S: Final = 1.0
"""A disk that takes longer keeps no daemon from ending."""


class _Asked(Struct, frozen=True):
    """What the questions so far were about."""

    engine: EngineOptions | None = None
    machine: Machine | None = None
    policy: PlacementPolicy | None = None
    ledger: Ledger = Ledger()


class Recording:
    """What is recorded in *file*, which *thread* writes. Any thread may `add` to it. ``problem`` says why
    nothing is recorded any more, empty as long as something is."""

    def __init__(self, file: RecordingFile, thread: StoreThread, most_bytes: int = MAX_FILE_BYTES) -> None:
        self.problem = ""
        self._file = file
        self._thread = thread
        self._most_bytes = most_bytes
        self._lock = Lock()
        self._unwritten_bytes = 0
        self._failed = False
        self._size_bytes = 0
        self._written = _Asked()
        self._begin()

    @classmethod
    def open(cls, path: Path) -> Self:
        """Begin a recording at *path*.

        Raises:
            ConfigError: something else is there, or the file cannot be made.
        """
        return cls(RecordingFile(path), StoreThread("recording"))

    def add(
        self,
        engine: EngineOptions,
        basis: Basis,
        question: AnyQuestion,
    ) -> None:
        """Record *question*, which *engine* was asked about the rest."""
        asked = _Asked(engine, basis.machine, basis.policy, basis.ledger)
        with self._lock:
            if self.problem:
                return
            lines = self._lines(asked, question)
            if self._size_bytes + len(lines) > self._most_bytes:
                self._thread.submit(partial(self._attempt, self._file.begin_anew))
                self._begin()
                lines = self._lines(asked, question)
                if self._size_bytes + len(lines) > self._most_bytes:
                    self._end(f"what there is takes more than {self._most_bytes} bytes")
                    return
            self._submit(lines)
            self._written = asked

    def close(self) -> None:
        """Write what was added, and close the file. Call it once, after the last `add`."""
        closing = self._thread.submit(self._file.close)
        closing.wait(CLOSING_S)
        if closing.done:
            self._thread.end()

    def _begin(self) -> None:
        self._size_bytes, self._written = 0, _Asked()
        self._submit(encode(Begin(time.time_ns() // 1000)))

    def _lines(self, asked: _Asked, question: AnyQuestion) -> bytes:
        """*question*, after what became different since the last one."""
        before = self._written
        ids = changed_ids(before.ledger, asked.ledger)
        entries = tuple(entries_of(asked.ledger, ids))
        changed = Changed(
            entries,
            tuple(sorted(ids.difference(entry.container_id for entry in entries))),
            None if asked.machine is before.machine else asked.machine,
            None if asked.policy is before.policy else asked.policy,
            None if asked.engine == before.engine else asked.engine,
        )
        return (encode(changed) if changed != Changed() else b"") + encode(question)

    def _submit(self, lines: bytes) -> None:
        if self._unwritten_bytes + len(lines) > MAX_UNWRITTEN_BYTES:
            self._end("the disk does not keep up")
            return
        self._unwritten_bytes += len(lines)
        self._size_bytes += len(lines)
        self._thread.submit(partial(self._write, lines))

    def _write(self, lines: bytes) -> None:
        self._attempt(partial(self._file.write, lines))
        with self._lock:
            self._unwritten_bytes -= len(lines)

    def _attempt(self, work: Callable[[], None]) -> None:
        """For the thread. After a failure nothing follows what may be half of a line."""
        if self._failed:
            return
        try:
            work()
        except OSError as error:
            self._failed = True
            self._end(error.strerror or str(error))

    def _end(self, problem: str) -> None:
        self.problem = problem
        extra = {"file": str(self._file.path), "problem": problem}
        logger.warning("nothing is recorded any more", extra=extra)
