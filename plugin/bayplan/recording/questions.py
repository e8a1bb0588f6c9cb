"""The lines of a recording: what opens it, what became different before a question, and each question with
its answer.

A line is JSON with its ``kind``. Fields are added with a default, never renamed. Of containers there are
names, amounts and places; nothing of their environment, arguments, annotations or labels.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Final, Protocol, TypeAlias, cast

import msgspec
from msgspec import Struct

from bayplan import __version__
from bayplan.engines.exact.engine import ExactEngine
from bayplan.engines.interface import Engine
from bayplan.engines.kubelet.engine import KubeletEngine
from bayplan.errors import ParseError
from bayplan.kubelet.manager_options import ManagerOptions
from bayplan.model.basis import Basis, SeenSize
from bayplan.model.decision import Claim, Decision, Move, Placement, Request
from bayplan.model.ledger import Entry, Ledger
from bayplan.model.machine import Machine
from bayplan.model.policy import PlacementPolicy, TopologyScope
from bayplan.model.records import changed_ids, entries_of
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
        """Such an engine."""
        return ExactEngine(self.scope)


class Kubelet(Struct, frozen=True, tag="kubelet", tag_field="name"):
    """The engine `kubelet`, as configured."""

    managers: ManagerOptions

    def engine(self) -> Engine:
        """Such an engine."""
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


class EngineCall(Protocol):
    """A question to an engine, asked at ``at_us``, with its ``answer``."""

    @property
    def at_us(self) -> int:
        """When it was answered, in microseconds since the epoch."""
        ...

    @property
    def answer(self) -> object:
        """What was answered."""
        ...

    @property
    def about(self) -> str:
        """The name of the container it is about, empty for questions about all of them."""
        ...

    def ask(self, engine: Engine, basis: Basis) -> object:
        """The answer of *engine*."""
        ...


class Decide(Struct, frozen=True, tag="Decide", tag_field="kind"):
    """`Engine.decide`."""

    at_us: int
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


class Adopt(Struct, frozen=True, tag="Adopt", tag_field="kind"):
    """`Engine.adopt`."""

    at_us: int
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


class MovesBack(Struct, frozen=True, tag="MovesBack", tag_field="kind"):
    """`Engine.moves_back`."""

    at_us: int
    answer: tuple[Move, ...]
    staying: tuple[str, ...] = ()
    about: ClassVar[str] = ""

    def ask(self, engine: Engine, basis: Basis) -> tuple[Move, ...]:
        """See `EngineCall`."""
        return engine.moves_back(basis, self.staying)


class WidenedPlacements(Struct, frozen=True, tag="WidenedPlacements", tag_field="kind"):
    """`Engine.widened_placements`."""

    at_us: int
    answer: Mapping[str, Placement]
    about: ClassVar[str] = ""

    def ask(self, engine: Engine, basis: Basis) -> Mapping[str, Placement]:
        """See `EngineCall`."""
        return engine.widened_placements(basis)


class CompletedClaims(Struct, frozen=True, tag="CompletedClaims", tag_field="kind"):
    """`Engine.completed_claims`."""

    at_us: int
    answer: Mapping[str, Claim]
    about: ClassVar[str] = ""

    def ask(self, engine: Engine, basis: Basis) -> Mapping[str, Claim]:
        """See `EngineCall`."""
        return engine.completed_claims(basis)


class ResizedPools(Struct, frozen=True, tag="ResizedPools", tag_field="kind"):
    """`Engine.resized_pools`."""

    at_us: int
    answer: Mapping[str, CpuSet]
    about: ClassVar[str] = ""

    def ask(self, engine: Engine, basis: Basis) -> Mapping[str, CpuSet]:
        """See `EngineCall`."""
        return engine.resized_pools(basis)


class Converted(Struct, frozen=True, tag="Converted", tag_field="kind"):
    """`Engine.converted`; the answer are the entries that it changed, by container id."""

    at_us: int
    answer: Mapping[str, Entry]
    about: ClassVar[str] = ""

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
