"""Where `bayplan` starts: the command line, one question, its answer, an exit status.

Kept light: `bayplan --help` imports nothing but the standard library and what is needed to print it.
"""

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TextIO

from bayplan import __version__
from bayplan.admin_protocol import DEFAULT_SOCKET, printable_answer
from bayplan.cli import (
    claims,
    doctor,
    nodes,
    simulate,
    status,
    top,
    what_if,
)
from bayplan.cli.daemon import LogLevel, Map, Metrics, Ping, Release
from bayplan.cli.decisions import Explain, History, Refusals, ReportVerb
from bayplan.cli.kubelet_state import ExportState, ImportState
from bayplan.cli.layout import Block, CommandVerb, show
from bayplan.cli.recordings import RecordTopology, Replay
from bayplan.errors import (
    EXIT_CONFIG,
    EXIT_DEGRADED,
    EXIT_FAILURE,
    EXIT_UNAVAILABLE,
    BayplanError,
    ConfigError,
    Problem,
)
from bayplan.printable import printable_lines
from bayplan.standard_streams import (
    EXIT_UNREAD,
    CommandLineParser,
    make_writable,
    write_answer,
    write_error,
)

OUTPUTS: Final = ("table", "wide", "json", "yaml", "name")

_VERBS: Final[tuple[CommandVerb, ...]] = (
    status,
    Refusals(),
    Explain(),
    History(),
    ReportVerb(),
    nodes,
    claims,
    Map(),
    top,
    what_if,
    simulate,
    RecordTopology(),
    Replay(),
    doctor,
    Ping(),
    Metrics(),
    LogLevel(),
    ImportState(),
    ExportState(),
    Release(),
)
VERBS: Final[Mapping[str, CommandVerb]] = {verb.VERB: verb for verb in _VERBS}

_WIDE: Final[Mapping[str, Callable[[dict[str, Any]], list[Block]]]] = {
    status.VERB: status.wide_blocks,
    nodes.VERB: nodes.wide_blocks,
    claims.VERB: claims.wide_blocks,
}
"""Verbs that have more to show where there is room."""
_NAMES: Final[Mapping[str, Callable[[dict[str, Any]], list[str]]]] = {
    status.VERB: status.names,
    Refusals.VERB: Refusals.names,
    nodes.VERB: nodes.names,
    claims.VERB: claims.names,
}
"""Verbs that list something, and its names."""
_OF_DECISIONS: Final = (status.VERB, Refusals.VERB, Explain.VERB, History.VERB, ReportVerb.VERB, nodes.VERB)
"""Verbs that show what the daemon decided."""
_SHADOW_MODE: Final = (
    "SHADOW MODE: nothing of this is applied. Containers run as if bayplan were not here; this is what it "
    "would do."
)
_WATCHABLE: Final = (status.VERB, Refusals.VERB, nodes.VERB)

_PROGRAM: Final = "bayplan"

_HEALTH: Final = {"ok": 0, "error": EXIT_FAILURE, "warning": EXIT_DEGRADED}
"""Exit statuses of answers that say how well something is."""

_INTERRUPTED: Final = 128 + signal.SIGINT
"""What a shell makes of a program that was interrupted."""
_WATCH_S: Final = 2.0
_ABOVE: Final = "\x1b[H\x1b[J"
"""To the corner of a terminal, and everything cleared from there (ECMA-48)."""

_DESCRIPTION: Final = """\
Shows which NUMA nodes and CPUs the daemon baypland gave to each container, and why, and what it would do."""
EXIT_STATUSES: Final[Mapping[int, str]] = {
    0: "fine; of doctor: nothing is wrong",
    EXIT_FAILURE: "the daemon could not answer, or the answer not be written; of doctor: errors; of replay: "
    "something is decided otherwise",
    EXIT_CONFIG: "wrong usage, or a wrong file",
    EXIT_UNAVAILABLE: "no daemon answers; of ping --runtime: or no runtime asks it",
    EXIT_DEGRADED: "of doctor: only warnings",
    _INTERRUPTED: "interrupted",
    EXIT_UNREAD: "the reader of a pipe has seen enough",
}
"""They stay what they are; the help and the man page say them."""
_EPILOG: Final = f"""\
  bayplan status -n prod                           what needs attention, and the pods of a namespace
  bayplan explain web-0                            why it is there, or why it was refused
  bayplan what-if --memory 40Gi --cpus 8           what would become of such a pod
  bayplan simulate --topology m.toml --trace t.jsonl --engine exact --engine kubelet

Exit status:
{chr(10).join(f"  {status:<4} {meaning}" for status, meaning in EXIT_STATUSES.items())}
Tables are for people; scripts should use --output json, whose fields stay."""


def build_parser(words: Collection[str] = VERBS) -> argparse.ArgumentParser:
    """The parser of bayplan's command line. The options are understood before and after the verb. Only verbs
    that are among *words* get their own arguments: to make all of them takes a twentieth of the time that a
    command takes."""
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
        if name not in words:
            continue
        verb.add_arguments(below)
        if name in _WATCHABLE:
            _add_watch(below)
        _add_options(below, absent=True)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run bayplan with *argv* (the command line without the program's name); its exit status.

    Raises:
        SystemExit: help, version or wrong usage was written.
    """
    make_writable()
    try:
        words = sys.argv[1:] if argv is None else argv
        return _answered(build_parser(words).parse_args(words))
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
    interval_s = _interval_s(arguments)
    while True:
        answer = printable_answer(verb.answer(arguments))
        status = _written(arguments, answer, above=_ABOVE if interval_s is not None else "")
        if interval_s is None or status:
            return status or _HEALTH[answer.get("health", "ok")]
        time.sleep(interval_s)


def _interval_s(arguments: argparse.Namespace) -> float | None:
    """How long to wait before the same is asked again; None: it is asked once."""
    if arguments.verb == top.VERB:
        # It measures over an interval of its own, so that nothing is to be waited for in between.
        on_terminal = sys.stdout is not None and sys.stdout.isatty()
        return 0.0 if on_terminal and not arguments.once and arguments.output == "table" else None
    interval_s: float | None = getattr(arguments, "watch", None)
    return interval_s


def _written(arguments: argparse.Namespace, answer: dict[str, Any], above: str) -> int:
    color = not arguments.no_color and not os.environ.get("NO_COLOR")
    text = _text(arguments.verb, arguments.output, answer)

    def write(stream: TextIO) -> None:
        if isinstance(text, str):
            stream.write(text)
        else:
            stream.write(above if stream.isatty() else "")
            show(text, stream, color=color)

    return write_answer(_PROGRAM, write)


def _text(verb: str, output: str, answer: dict[str, Any]) -> str | list[Block]:
    """*answer* as scripts want it, or the blocks for people.

    Raises:
        ConfigError: the verb has no such output.
    """
    if output == "json":
        return json.dumps(answer, indent=2) + "\n"
    if output == "yaml":
        import yaml  # noqa: PLC0415 - loading PyYAML takes 20 ms

        return str(yaml.safe_dump(answer, sort_keys=False, allow_unicode=False))
    if output == "wide":
        return [*_shadow(verb, answer), *_WIDE.get(verb, VERBS[verb].blocks)(answer)]
    if output == "name":
        if verb not in _NAMES:
            others = f"table, wide, json or yaml; name is for {', '.join(_NAMES)}"
            problem = Problem("--output", "name", others)
            raise ConfigError(f"bayplan {verb}", (problem,))
        return "".join(f"{one}\n" for one in _NAMES[verb](answer))
    return [*_shadow(verb, answer), *VERBS[verb].blocks(answer)]


def _shadow(verb: str, answer: Mapping[str, Any]) -> list[Block]:
    """What stands above decisions that are not applied."""
    return [_SHADOW_MODE] if verb in _OF_DECISIONS and answer.get("shadow") else []


def _add_options(parser: argparse.ArgumentParser, *, absent: bool) -> None:
    """The options of every verb; *absent* leaves no value behind when one is not given, so that a verb's own
    parser does not undo what was given before the verb."""

    def default(value: object) -> object:
        return argparse.SUPPRESS if absent else value

    parser.add_argument(
        "-o",
        "--output",
        choices=OUTPUTS,
        default=default("table"),
        help="table or wide, with more in it, for people; json, yaml or name for scripts (default: table)",
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


def _add_watch(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-w",
        "--watch",
        nargs="?",
        type=top.interval,
        const=_WATCH_S,
        metavar="SECONDS",
        help=f"show it again every so often (default: {_WATCH_S:g}), until interrupted",
    )


if __name__ == "__main__":
    sys.exit(main())
