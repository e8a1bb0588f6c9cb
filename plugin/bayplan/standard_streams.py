"""Standard output and error of our programs: they may be closed, full, or without a reader.

A failed write ends in an exit status and at most one sentence, never in a traceback. Logs have
a stream of their own (`bayplan.logs`).
"""

import argparse
import errno
import os
import signal
import sys
from collections.abc import Callable, Sequence
from io import TextIOWrapper
from typing import Any, Final, NoReturn, TextIO

from bayplan.errors import EXIT_CONFIG, EXIT_FAILURE, meant_by
from bayplan.printable import printable

EXIT_UNREAD: Final = 128 + signal.SIGPIPE
"""What a shell makes of a program whose reader has seen enough (head), as most programs end then."""


def make_writable() -> None:
    """Let both streams take any character: what the terminal's encoding does not have is written as Python
    writes it in a literal. Once, before anything is written."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def write_answer(program: str, write: Callable[[TextIO], object]) -> int:
    """Have *write* write to standard output, to its end; the exit status, 0 if all went well. A complaint
    names *program*."""
    if sys.stdout is None:  # it was closed when Python started
        write_error(f"{program}: the answer cannot be written: {os.strerror(errno.EBADF)}\n")
        return EXIT_FAILURE
    try:
        write(sys.stdout)
        sys.stdout.flush()
    except BrokenPipeError:
        _discard(sys.stdout)
        return EXIT_UNREAD
    except OSError as error:
        _discard(sys.stdout)
        write_error(f"{program}: the answer cannot be written: {error.strerror}\n")
        return EXIT_FAILURE
    return 0


def write_error(text: str) -> None:
    """Write *text* to standard error; if that fails, only the exit status says what happened."""
    if sys.stderr is None:
        return
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except OSError:
        _discard(sys.stderr)


class CommandLineParser(argparse.ArgumentParser):
    """A parser whose errors keep their exit status where standard error cannot be written, and name what was
    probably meant. Before Python 3.11.4 argparse ended in a traceback there."""

    def parse_known_args(  # type: ignore[override]  # argparse's overloads are for namespaces of other types
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        """As argparse's, but no argument is left over. A verb's own parser says what its verb has."""
        parsed, unknown = super().parse_known_args(args, namespace)
        if unknown:
            flag = unknown[0].partition("=")[0]
            near = meant_by(flag, self._option_string_actions) if flag[:1] == "-" else ""
            meant = f"; did you mean {near}?" if near else ""
            self.error(f"unrecognized arguments: {printable(' '.join(unknown))}{meant}")
        return parsed, unknown

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        """Raises SystemExit, after *message*."""
        write_error(message or "")
        raise SystemExit(status)

    def _check_value(self, action: argparse.Action, value: object) -> None:
        """Name the nearest of the choices, where argparse lists all of them."""
        if action.choices is None or value in action.choices:
            return
        choices = [str(one) for one in action.choices]
        near = meant_by(str(value), choices)
        meant = f"did you mean {near}?" if near else f"expected one of {', '.join(choices)}"
        raise argparse.ArgumentError(action, f"found {printable(str(value))!r}; {meant}")

    def error(self, message: str) -> NoReturn:
        """Raises SystemExit, after how the program is used and *message*."""
        self.exit(EXIT_CONFIG, f"{self.format_usage()}{self.prog}: error: {message}\n")


def _discard(stream: TextIO) -> None:
    """Discard what *stream* still buffers: Python would print another error while it exits."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
