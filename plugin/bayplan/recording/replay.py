"""A recording's questions asked again, of the engines of this version, and what they answer otherwise.

Each question is asked about the ledger that was recorded with it: an answer that differs changes none of the
questions after it.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import fields, replace

from bayplan import __version__
from bayplan.admin_protocol import API_VERSION
from bayplan.engines.interface import Engine
from bayplan.errors import ConfigError, ParseError, Problem
from bayplan.files import read_file
from bayplan.model import sentences
from bayplan.model.basis import Basis, SeenSize
from bayplan.model.decision import Decision, Move
from bayplan.model.ledger import Ledger, with_changes
from bayplan.model.machine import Machine
from bayplan.model.policy import PlacementPolicy
from bayplan.recording.recording import FORMAT, MAX_FILE_BYTES, AnyQuestion, Begin, Changed, Line, decode
from bayplan.sets import set_to_text

_EXPLANATION: Final = frozenset({"reasons", "candidates", "advantage", "shortage"})
"""What a decision says of itself. It may be worded otherwise, and the container is where it was."""

_MAX_PROBLEMS: Final = 10


class Difference(Struct, frozen=True):
    """A question that this version answers otherwise. ``line`` is its line in the file, ``changed`` what
    differs of a decision, ``recorded`` and ``now`` the answers in words."""

    line: int
    question: AnyQuestion
    recorded: str
    now: str
    changed: tuple[str, ...] = ()

    @property
    def explanation(self) -> bool:
        """Whether the decision itself is the same."""
        return bool(self.changed) and _EXPLANATION.issuperset(self.changed)


class Recorded(Struct, frozen=True):
    """The lines of a file, the first one apart. ``cut_off``: the last line is not whole, and left out."""

    begin: Begin
    lines: tuple[Line, ...]
    cut_off: bool


class _Taken(Struct):
    """What the lines so far say that the questions depend on."""

    machine: Machine | None = None
    policy: PlacementPolicy | None = None
    engine: Engine | None = None
    ledger: Ledger = Ledger()
    seen: tuple[SeenSize, ...] = ()

    def take(self, changed: Changed) -> None:
        """Take over what became different."""
        self.machine = changed.machine or self.machine
        self.policy = changed.policy or self.policy
        self.engine = self.engine if changed.engine is None else changed.engine.engine()
        self.ledger = with_changes(self.ledger, changed.entries, changed.gone)
        self.seen = self.seen if changed.seen is None else changed.seen


def read_recording(path: Path) -> Recorded:
    """The lines of the file at *path*.

    Raises:
        ConfigError: it cannot be read, or is no recording, or one of a later version; all wrong lines are
            named.
    """
    try:
        content = read_file(path, MAX_FILE_BYTES).content
    except OSError as error:
        problem = Problem("the file", error.strerror or str(error), "a recording of baypland --record")
        raise ConfigError(str(path), (problem,)) from error
    *whole, last = content.split(b"\n")
    lines, problems = list[Line](), list[Problem]()
    for number, text in enumerate(whole, start=1):
        try:
            lines.append(decode(text))
        except ParseError as error:
            problems.append(Problem(f"line {number}", error.found, f"what was recorded ({error.expected})"))
            if len(problems) == _MAX_PROBLEMS or number == 1:
                break
    if not problems and not (lines and isinstance(lines[0], Begin)):
        found = "nothing whole" if not lines else "another one"
        problems.append(Problem("line 1", found, "the first line of a recording"))
    if not problems and isinstance(begin := lines[0], Begin) and begin.format > FORMAT:
        found = f"format {begin.format} of bayplan {begin.version}"
        problems.append(
            Problem("line 1", found, f"format {FORMAT} at most, which bayplan {__version__} reads")
        )
    if problems:
        raise ConfigError(str(path), tuple(problems))
    begin = lines[0]
    assert isinstance(begin, Begin)
    return Recorded(begin, tuple(lines[1:]), bool(last))


def replay(path: Path, recorded: Recorded) -> Iterator[tuple[AnyQuestion, Difference | None]]:
    """Every question of *recorded*, which is from *path*, with how this version answers otherwise.

    Raises:
        ConfigError: a question comes before what it is about.
    """
    taken = _Taken()
    for number, line in enumerate(recorded.lines, start=2):
        if isinstance(line, Changed):
            taken.take(line)
        elif isinstance(line, Begin):
            raise ConfigError(str(path), (Problem(f"line {number}", "a second beginning", "one, in line 1"),))
        elif taken.machine is None or taken.policy is None or taken.engine is None:
            expected = "machine, policy and engine before it"
            raise ConfigError(str(path), (Problem(f"line {number}", "a question", expected),))
        else:
            now = line.ask(taken.engine, Basis(taken.machine, taken.policy, taken.ledger, taken.seen))
            yield line, _difference(number, line, now)


def replay_view(path: Path) -> dict[str, Any]:
    """What `bayplan replay` says of the file at *path*, ready for JSON.

    Raises:
        ConfigError: as `read_recording` and `replay`.
    """
    recorded = read_recording(path)
    asked = list(replay(path, recorded))
    differences = [difference for _, difference in asked if difference is not None]
    others = [one for one in differences if not one.explanation]
    return {
        "apiVersion": API_VERSION,
        "kind": "Replay",
        "health": "error" if others else "ok",
        "file": str(path),
        "begunUs": recorded.begin.begun_us,
        "recordedBy": recorded.begin.version,
        "replayedBy": __version__,
        "cutOff": recorded.cut_off,
        "questions": len(asked),
        "different": len(others),
        "explainedOtherwise": len(differences) - len(others),
        "differences": [
            {
                "line": one.line,
                "atUs": one.question.at_us,
                "question": type(one.question).__name__,
                "name": one.question.about,
                "changed": list(one.changed),
                "explanationOnly": one.explanation,
                "recorded": one.recorded,
                "now": one.now,
            }
            for one in differences
        ],
    }


def _difference(number: int, question: AnyQuestion, now: object) -> Difference | None:
    before = question.answer
    if before == now:
        return None
    if isinstance(before, Decision) and isinstance(now, Decision):
        changed = tuple(_changed(before, now))
        if not changed:
            return None
        texts = [sentences.summary(one) for one in (before, now)]
        if texts[0] == texts[1]:
            texts = [_told(one, changed) for one in (before, now)]
        return Difference(number, question, texts[0], texts[1], changed)
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        differ = sorted(key for key in before.keys() | now.keys() if before.get(key) != now.get(key))
        was, is_now = (
            _of_containers({key: one[key] for key in differ if key in one}) for one in (before, now)
        )
        return Difference(number, question, was, is_now)
    return Difference(number, question, _text(before), _text(now))


def _changed(before: Decision, now: Decision) -> Iterator[str]:
    """The fields in which two decisions differ."""
    for field in fields(Decision):
        one, other = (getattr(_comparable(decision), field.name) for decision in (before, now))
        if one != other:
            yield field.name


def _comparable(decision: Decision) -> Decision:
    """*decision* without the witness of its claim: it promises nothing, and others may route it otherwise."""
    witnessless = replace(decision.placement, booked_bytes=decision.placement.promise.booked_bytes)
    return replace(decision, placement=witnessless)


def _told(decision: Decision, changed: tuple[str, ...]) -> str:
    """What *decision* says in the fields that *changed*."""
    if "reasons" in changed:
        return decision.explanation()
    return "; ".join(f"{name} {_text(getattr(decision, name))}" for name in changed)


def _of_containers(answers: Mapping[str, object]) -> str:
    return "; ".join(f"{key}: {_text(one)}" for key, one in answers.items()) or "no container"


def _text(answer: object) -> str:
    if isinstance(answer, tuple):
        return "; ".join(map(_text, answer)) or "nothing"
    if isinstance(answer, Move):
        return f"{answer.name}: {sentences.move(answer)}"
    return msgspec.json.encode(answer, enc_hook=set_to_text).decode()
