"""Where `bayplan` starts: the command line, one question to the daemon, its answer, an exit status.

Kept light: `bayplan --help` imports nothing but the standard library and what is needed to print it.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from bayplan import __version__
from bayplan.cli import log_level, nodes, status
from bayplan.cli.client import ask
from bayplan.cli.render import Block, show
from bayplan.errors import EXIT_FAILURE, BayplanError
from bayplan.service.protocol import DEFAULT_SOCKET, LOG_LEVELS


class Verb(NamedTuple):
    """One thing to ask for: its help, and how its answer is shown to people."""

    help: str
    blocks: Callable[[dict[str, Any]], list[Block]]


VERBS: Final[Mapping[str, Verb]] = {
    module.VERB: Verb(module.HELP, module.blocks) for module in (status, nodes, log_level)
}

_DESCRIPTION: Final = "Shows which NUMA nodes and CPUs the daemon baypland gave to each container, and why."
_EPILOG: Final = """\
Exit status: 0 fine, 1 the daemon could not answer, 2 wrong usage, 3 no daemon answers.
Tables are for people; scripts should use --output json, whose fields stay."""


def build_parser() -> argparse.ArgumentParser:
    """The parser of bayplan's command line. The options are understood before and after the verb."""
    parser = argparse.ArgumentParser(
        prog="bayplan",
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
        below = verbs.add_parser(name, help=verb.help, description=f"{verb.help[0].upper()}{verb.help[1:]}.")
        _add_options(below, absent=True)
        if name == log_level.VERB:
            below.add_argument("level", nargs="?", choices=LOG_LEVELS, help="the new level; none shows it")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run bayplan with *argv* (the command line without the program's name); its exit status."""
    arguments = build_parser().parse_args(argv)
    try:
        fields = {"level": arguments.level} if getattr(arguments, "level", None) else {}
        answer = ask(arguments.admin_socket, arguments.verb, **fields)
    except BayplanError as error:
        sys.stderr.write(f"bayplan: {error}\n")
        return error.exit_code
    try:
        if arguments.output == "json":
            sys.stdout.write(json.dumps(answer, indent=2) + "\n")
        else:
            color = not arguments.no_color and not os.environ.get("NO_COLOR")
            show(VERBS[arguments.verb].blocks(answer), sys.stdout, color=color)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader of a pipe has seen enough (head). Python would complain once more while it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILURE
    return 0


def _add_options(parser: argparse.ArgumentParser, *, absent: bool) -> None:
    """The options of every verb; *absent* leaves no value behind when one is not given, so that a verb's own
    parser does not undo what was given before the verb."""

    def default(value: object) -> object:
        return argparse.SUPPRESS if absent else value

    parser.add_argument(
        "--output", choices=("table", "json"), default=default("table"), help="for people, or for scripts"
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
        default=default(False),  # noqa: FBT003
        help="no colours on a terminal; the environment variable NO_COLOR does the same",
    )


if __name__ == "__main__":
    sys.exit(main())
