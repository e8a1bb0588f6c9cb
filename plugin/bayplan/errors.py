"""The errors of bayplan: one root, one subclass for each party who must act.

Errors carry fields; the message is made from them in ``__str__``, so that logs, refusals and the command
line can show the same object. What others wrote is printable in a `Problem`, so that the line breaks in an
error are ours.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from bayplan.printable import printable

EXIT_FAILURE = 1
EXIT_CONFIG = 2
EXIT_UNAVAILABLE = 3
EXIT_DEGRADED = 4

_SHOWN_CHARACTERS: Final = 200


def excerpt(text: str) -> str:
    """A text that was found, cut to a length that a person still reads in an error."""
    left_out = len(text) - _SHOWN_CHARACTERS
    return f"{text[:_SHOWN_CHARACTERS]}[and {left_out} more]" if left_out > 0 else text


def meant_by(name: str, known: Iterable[str]) -> str:
    """The one of *known* that was probably meant by *name*, "" if none is like it: two thirds of the letters
    in order, as difflib has it."""
    from difflib import get_close_matches  # noqa: PLC0415 - only for what is wrong

    return next(iter(get_close_matches(name, tuple(known), n=1)), "")


class BayplanError(Exception):
    """Root of every error that bayplan raises on purpose. Any other exception is a defect."""

    exit_code = EXIT_FAILURE

    def on_one_line(self) -> str:
        """The message as a part of a sentence, or of a line of a log."""
        return str(self)


class Problem(NamedTuple):
    """One wrong value of an input: which value, what it is, what was expected there."""

    path: str
    found: str
    expected: str

    def __str__(self) -> str:
        return f"{printable(self.path)}: found {printable(self.found)}, expected {printable(self.expected)}"


class ConfigError(BayplanError):
    """The operator must change a flag, a configuration file or an annotation.

    All problems of one input are reported together.
    """

    exit_code = EXIT_CONFIG

    def __init__(self, source: str, problems: tuple[Problem, ...]) -> None:
        super().__init__(source, problems)
        self.source = source
        self.problems = problems

    def __str__(self) -> str:
        source = printable(self.source)
        if len(self.problems) == 1:
            return f"{source}: {self.problems[0]}"
        lines = "".join(f"\n  {problem}" for problem in self.problems)
        return f"{source}: {len(self.problems)} problems:{lines}"

    def on_one_line(self) -> str:
        """All problems, one after the other."""
        return f"{printable(self.source)}: {'; '.join(map(str, self.problems))}"


class ParseError(BayplanError, ValueError):
    """A piece of text is not what it should be. Raised by parsers, wrapped by those who know the source."""

    def __init__(self, kind: str, found: str, expected: str) -> None:
        super().__init__(kind, found, expected)
        self.kind = kind
        self.found = found
        self.expected = expected

    def __str__(self) -> str:
        return f"{self.kind}: found {excerpt(self.found)!r}, expected {self.expected}"


class SubjectError(BayplanError):
    """*subject* (a file, a socket, a field of a message) is not as it must be: *problem* says how. Only the
    subclasses are raised."""

    def __init__(self, subject: str, problem: str) -> None:
        super().__init__(subject, problem)
        self.subject = subject
        self.problem = problem

    def __str__(self) -> str:
        return f"{self.subject}: {self.problem}"


class HostError(SubjectError):
    """The kernel or a file system refused something, or showed something that cannot be, at a path."""


class UnavailableError(SubjectError):
    """Another process is in the way or not there: the daemon is not running, or a second one is."""

    exit_code = EXIT_UNAVAILABLE


class StateError(SubjectError):
    """The state store at a path cannot record or return decisions."""

    def __str__(self) -> str:
        return f"state store {self.subject}: {self.problem}"


class ProtocolError(SubjectError):
    """The rules of a protocol were broken. Only the two subclasses are raised."""


class LocalProtocolError(ProtocolError):
    """We were about to break the protocol; nothing was sent and the connection is still good."""


class RemoteProtocolError(ProtocolError):
    """The peer broke the protocol; the connection can't be used any more."""


class PlacementError(BayplanError):
    """A container cannot be placed under a strict policy; ``reason`` is what a human should read.

    The runtime shows the text to the user (and kubelet puts it into the pod's status), so that it starts
    with the word that kubelet has for its own refusals: *kind*, if empty that of the Topology Manager.
    """

    def __init__(self, container: str, reason: str, kind: str = "") -> None:
        super().__init__(container, reason, kind)
        self.container = container
        self.reason = reason
        self.kind = kind or "TopologyAffinityError"

    def __str__(self) -> str:
        return f"{self.kind}: {self.container}: {self.reason}"
