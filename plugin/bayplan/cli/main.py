"""Where `bayplan` starts: the command line, one question, its answer, an exit status.

Kept light: `bayplan --help` imports nothing but the standard library and what is needed to print it.
"""

import argparse
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol, TextIO

from bayplan import __version__
from bayplan.admin_protocol import DEFAULT_SOCKET, printable_answer
from bayplan.cli import (
    doctor,
    explain,
    log_level,
    metrics,
    nodes,
    record_topology,
    release,
    simulate,
    status,
    what_if,
)
from bayplan.cli.render import Block, show
from bayplan.errors import EXIT_DEGRADED, EXIT_FAILURE, BayplanError
from bayplan.printable import printable_lines
from bayplan.standard_streams import CommandLineParser, make_writable, write_answer, write_error


class Verb(Protocol):
    """A module for one thing to ask for."""

    VERB: str
    HELP: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """The verb's own arguments."""

    def answer(self, arguments: argparse.Namespace) -> dict[str, Any]:
        """The answer as plain values; raises BayplanError."""

    def blocks(self, said: dict[str, Any], /) -> list[Block]:
        """The answer for people."""


_MODULES: Final[tuple[Verb, ...]] = (
    status,
    nodes,
    explain,
    what_if,
    simulate,
    record_topology,
    doctor,
    metrics,
    log_level,
    release,
)
VERBS: Final[Mapping[str, Verb]] = {module.VERB: module for module in _MODULES}

_PROGRAM: Final = "bayplan"

_HEALTH: Final = {"ok": 0, "error": EXIT_FAILURE, "warning": EXIT_DEGRADED}
"""Exit statuses of answers that say how well something is."""

_INTERRUPTED: Final = 128 + signal.SIGINT
"""What a shell makes of a program that was interrupted."""

_DESCRIPTION: Final = """\
Shows which NUMA nodes and CPUs the daemon baypland gave to each container, and why, and what it would do."""
_EPILOG: Final = """\
  bayplan explain default/web-0                    why it is there, or why it was refused
  bayplan what-if --memory 40Gi --cpus 8           what would become of such a pod
  bayplan simulate --topology m.toml --trace t.jsonl --engine exact --engine kubelet

Exit status: 0 fine, 1 the daemon could not answer or the answer not be written, 2 wrong usage, 3 no daemon
answers, 141 the reader of a pipe has seen enough.
Of doctor: 0 nothing is wrong, 1 errors, 4 only warnings.
Tables are for people; scripts should use --output json, whose fields stay."""


def build_parser() -> argparse.ArgumentParser:
    """The parser of bayplan's command line. The options are understood before and after the verb."""
    parser = CommandLineParser(
        prog=_PROGRAM,
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    python = ".".join(str(part) for part in sys.version_info[:3])
    parser.add_argument("--version", action="version", version=f"bayplan {__version__} (python {python})")
    _add_options(parser, absent=False)
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for name, verb in VERBS.items():
        below = verbs.add_parser(name, help=verb.HELP, description=f"{verb.HELP[0].upper()}{verb.HELP[1:]}.")
        verb.add_arguments(below)
        _add_options(below, absent=True)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run bayplan with *argv* (the command line without the program's name); its exit status.

    Raises:
        SystemExit: help, version or wrong usage was written.
    """
    make_writable()
    try:
        return _answered(build_parser().parse_args(argv))
    except SystemExit:
        # argparse does not check whether its output could be written.
        write_error("")
        if sys.stdout is not None and (status := write_answer(_PROGRAM, lambda _: None)):
            return status
        raise
    except BayplanError as error:
        write_error(f"{_PROGRAM}: {printable_lines(str(error))}\n")
        return error.exit_code
    except KeyboardInterrupt:
        return _INTERRUPTED


def _answered(arguments: argparse.Namespace) -> int:
    verb = VERBS[arguments.verb]
    answer = printable_answer(verb.answer(arguments))
    color = not arguments.no_color and not os.environ.get("NO_COLOR")

    def write(stream: TextIO) -> None:
        if arguments.output == "json":
            stream.write(json.dumps(answer, indent=2) + "\n")
        else:
            show(verb.blocks(answer), stream, color=color)

    return write_answer(_PROGRAM, write) or _HEALTH[answer.get("health", "ok")]


def _add_options(parser: argparse.ArgumentParser, *, absent: bool) -> None:
    """The options of every verb; *absent* leaves no value behind when one is not given, so that a verb's own
    parser does not undo what was given before the verb."""

    def default(value: object) -> object:
        return argparse.SUPPRESS if absent else value

    parser.add_argument(
        "--output", choices=("table", "json"), default=default("table"), help="for people, or for scripts"
    )
    parser.add_argument(
        "--json",
        dest="output",
        action="store_const",
        const="json",
        default=argparse.SUPPRESS,
        help="the same as --output json",
    )
    parser.add_argument(
        "--admin-socket",
        type=Path,
        metavar="PATH",
        default=default(DEFAULT_SOCKET),
        help=f"the daemon's socket (default: {DEFAULT_SOCKET})",
    )
    parser.add_argument(
        "--no-color",
        action="store_true",
        default=default(False),  # noqa: FBT003 - a value, not a switch
        help="no colours on a terminal; the environment variable NO_COLOR does the same",
    )


if __name__ == "__main__":
    sys.exit(main())
