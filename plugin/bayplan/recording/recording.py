"""A recording as it is made: an engine has each question recorded with its answer, the lines are handed to a
thread, and that writes them to a file.

The file is a regular file of its own, which replaces nothing but an earlier recording: that is kept beside
it, as ``FILE.1``, in place of one before that.

Nothing here waits for the disk. A recording that the disk does not take ends; the daemon goes on without it.
Invariant: each file can be replayed from its first line on, whatever was lost before and after it.

A line is JSON with its ``kind``: what opens the file, what became different before a question, a question
with its answer. Fields are added with a default, never renamed. Of containers there are names, amounts and
places; nothing of their environment, arguments, annotations or labels.
"""

import logging
import os
import stat
import time
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any, Final, Self, TypeAlias, cast

import msgspec
from msgspec import Struct

from bayplan import __version__
from bayplan.control.threads import StoreThread
from bayplan.engines.exact.engine import ExactEngine
from bayplan.engines.interface import Engine, EngineKind
from bayplan.engines.kubelet.engine import KubeletEngine
from bayplan.errors import ConfigError, ParseError, Problem
from bayplan.files import kind_of
from bayplan.kubelet.manager_options import ManagerOptions
from bayplan.model.basis import Basis, SeenSize
from bayplan.model.decision import Claim, Decision, Move, Placement, Request
from bayplan.model.ledger import Entry, Ledger, changed_ids, entries_of
from bayplan.model.machine import Machine
from bayplan.model.policy import PlacementPolicy, TopologyScope
from bayplan.quantity import MIB
from bayplan.sets import CpuSet, NodeSet, set_to_text, text_to_set

FORMAT: Final = 1
"""Raised when a recording can no longer be read by an earlier version."""


class Begin(Struct, frozen=True, tag="Begin", tag_field="kind"):
    """The first line: which version recorded, and since when (microseconds since the epoch)."""

    begun_us: int
    format: int = FORMAT
    version: str = __version__


class Exact(Struct, frozen=True, tag="exact", tag_field="name"):
    """The engine `exact`, as configured."""

    scope: TopologyScope

    def engine(self) -> Engine:
        """A new engine `exact` with these options."""
        return ExactEngine(self.scope)


class Kubelet(Struct, frozen=True, tag="kubelet", tag_field="name"):
    """The engine `kubelet`, as configured."""

    managers: ManagerOptions

    def engine(self) -> Engine:
        """A new engine `kubelet` with these options."""
        return KubeletEngine(self.managers)


EngineOptions: TypeAlias = Exact | Kubelet


def options_of(engine: Engine) -> EngineOptions:
    """How *engine*, one of this package's, is configured."""
    if isinstance(engine, KubeletEngine):
        return Kubelet(engine.managers)
    assert isinstance(engine, ExactEngine), engine.name
    return Exact(engine.scope)


class Changed(Struct, frozen=True, tag="Changed", tag_field="kind"):
    """What became different since the last question. Every entry replaces the one of the same container; the
    containers in ``gone`` have none any more. What is None is as before."""

    entries: tuple[Entry, ...] = ()
    gone: tuple[str, ...] = ()
    machine: Machine | None = None
    policy: PlacementPolicy | None = None
    engine: EngineOptions | None = None
    seen: tuple[SeenSize, ...] | None = None


class EngineCall(Struct, frozen=True, tag=True, tag_field="kind"):
    """A question to an engine, answered at ``at_us`` (since the epoch), with its ``answer``. Each subclass is
    for a method of `Engine`, with its arguments as they are recorded; msgspec has no abstract ones."""

    at_us: int
    answer: object

    @property
    def about(self) -> str:
        """The name of the container that it is about, empty for questions about all of them."""
        return ""

    def ask(self, engine: Engine, basis: Basis) -> object:
        """The answer of *engine*, in the form of ``answer``."""
        raise NotImplementedError


class Decide(EngineCall, frozen=True):
    """`Engine.decide`."""

    answer: Decision
    request: Request
    current: Placement | None = None

    @property
    def about(self) -> str:
        """See `EngineCall`."""
        return self.request.name

    def ask(self, engine: Engine, basis: Basis) -> Decision:
        """See `EngineCall`."""
        return engine.decide(basis, self.request, self.current)


class Adopt(EngineCall, frozen=True):
    """`Engine.adopt`."""

    answer: Placement
    request: Request
    mems: NodeSet | None = None

    @property
    def about(self) -> str:
        """See `EngineCall`."""
        return self.request.name

    def ask(self, engine: Engine, basis: Basis) -> Placement:
        """See `EngineCall`."""
        return engine.adopt(basis, self.request, self.mems)


class MovesBack(EngineCall, frozen=True):
    """`Engine.moves_back`."""

    answer: tuple[Move, ...]
    staying: tuple[str, ...] = ()

    def ask(self, engine: Engine, basis: Basis) -> tuple[Move, ...]:
        """See `EngineCall`."""
        return engine.moves_back(basis, self.staying)


class WidenedPlacements(EngineCall, frozen=True):
    """`Engine.widened_placements`."""

    answer: Mapping[str, Placement]

    def ask(self, engine: Engine, basis: Basis) -> Mapping[str, Placement]:
        """See `EngineCall`."""
        return engine.widened_placements(basis)


class CompletedClaims(EngineCall, frozen=True):
    """`Engine.completed_claims`."""

    answer: Mapping[str, Claim]

    def ask(self, engine: Engine, basis: Basis) -> Mapping[str, Claim]:
        """See `EngineCall`."""
        return engine.completed_claims(basis)


class ResizedPools(EngineCall, frozen=True):
    """`Engine.resized_pools`."""

    answer: Mapping[str, CpuSet]

    def ask(self, engine: Engine, basis: Basis) -> Mapping[str, CpuSet]:
        """See `EngineCall`."""
        return engine.resized_pools(basis)


class Converted(EngineCall, frozen=True):
    """`Engine.converted`; the answer are the entries that it changed, by container id."""

    answer: Mapping[str, Entry]

    def ask(self, engine: Engine, basis: Basis) -> Mapping[str, Entry]:
        """See `EngineCall`."""
        return changed_entries(basis.ledger, engine.converted(basis))


AnyQuestion: TypeAlias = (
    Decide | Adopt | MovesBack | WidenedPlacements | CompletedClaims | ResizedPools | Converted
)
Line: TypeAlias = Begin | Changed | AnyQuestion


def changed_entries(before: Ledger, after: Ledger) -> Mapping[str, Entry]:
    """The entries of *after* that *before* has otherwise, by container id."""
    return {one.container_id: one for one in entries_of(after, changed_ids(before, after))}


def encode(line: Line) -> bytes:
    """*line* as it is written."""
    return _ENCODER.encode(line) + b"\n"


def decode(line: bytes) -> Line:
    """The line that `encode` wrote.

    Raises:
        ParseError: it is none.
    """
    try:
        return cast(Line, _DECODER.decode(line))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ParseError("line of a recording", repr(line[:60]), str(error)) from error


_ENCODER: Final = msgspec.json.Encoder(enc_hook=set_to_text)
_DECODER: Final[msgspec.json.Decoder[Any]] = msgspec.json.Decoder(Line, dec_hook=text_to_set)


OPENING: Final = b'{"kind":"Begin"'
"""The first bytes of each recording."""

_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
_MODE: Final = 0o600
"""The names of pods are nobody else's business."""


class RecordingFile:
    """The file at *path*, which is new when this is made.

    Raises:
        ConfigError: something else is there, or the file cannot be made; all problems at once.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._earlier = path.with_name(f"{path.name}.1")
        problems = tuple(problem for one in (path, self._earlier) if (problem := _in_the_way(one)))
        if problems:
            raise ConfigError(str(path), problems)
        try:
            self._set_aside()
            self._descriptor = os.open(path, _FLAGS, _MODE)
        except OSError as error:
            found = error.strerror or str(error)
            raise ConfigError(str(path), (Problem("the file", found, "a file that can be made"),)) from error

    def write(self, lines: bytes) -> None:
        """Append *lines*; raises OSError."""
        rest = memoryview(lines)
        while rest:
            rest = rest[os.write(self._descriptor, rest) :]

    def begin_anew(self) -> None:
        """Go on in a new file; raises OSError."""
        self._set_aside()
        full, self._descriptor = self._descriptor, os.open(self.path, _FLAGS, _MODE)
        os.close(full)

    def close(self) -> None:
        """Close it."""
        os.close(self._descriptor)

    def _set_aside(self) -> None:
        if self.path.exists():
            self.path.replace(self._earlier)


def _in_the_way(path: Path) -> Problem | None:
    """What is at *path* if it is no recording."""
    expected = "nothing, or an earlier recording"
    try:
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode):
            return Problem(str(path), kind_of(status), expected)
        if status.st_size and _start(path) != OPENING:
            return Problem(str(path), "a file that is no recording", expected)
    except FileNotFoundError:
        return None
    except OSError as error:
        return Problem(str(path), error.strerror or str(error), expected)
    return None


def _start(path: Path) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        return os.read(descriptor, len(OPENING))
    finally:
        os.close(descriptor)


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
    seen: tuple[SeenSize, ...] = ()


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
        asked = _Asked(engine, basis.machine, basis.policy, basis.ledger, basis.seen)
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
        """Close the recording."""
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
            None if asked.seen == before.seen else asked.seen,
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
