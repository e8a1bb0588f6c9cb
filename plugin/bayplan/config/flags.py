"""The command line of baypland: one flag for every key, in kubelet's spelling, and what is not a key.

Made from the table of keys. The values are read by `bayplan.config.load`: a flag is checked like a file.
"""

import argparse
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from bayplan import __version__
from bayplan.config.keys import GROUPS, KEYS, Key
from bayplan.config.syntax import switch
from bayplan.standard_streams import CommandLineParser

_DESCRIPTION: Final = """\
Decides which NUMA nodes hold each container's memory and which CPUs run it, and has the container runtime
make it so before the container's first instruction. Runs on every node, as root."""

_EPILOG: Final = """\
Flags win over files, later files over earlier ones. Without --config, /etc/bayplan/bayplan.toml is read if
it is there, then /etc/bayplan/conf.d/*.toml (or .yaml) in lexical order. kubelet's own file can be given too.

Exit status: 0 stopped as asked, 1 failure, 2 wrong flags or files, 3 another daemon is in the way."""


def build_parser() -> argparse.ArgumentParser:
    """The parser of baypland's command line."""
    parser = CommandLineParser(
        prog="baypland",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        usage="%(prog)s [--config PATH]... [--KEY VALUE]...",
    )
    parser.add_argument(
        "--config",
        action="append",
        type=Path,
        default=[],
        metavar="PATH",
        help="read this TOML or YAML file, or all of this directory; may be given more than once",
    )
    parser.add_argument(
        "--check-config", action="store_true", help="check files and flags against this machine, and exit"
    )
    version = f"%(prog)s {__version__} (python {platform.python_version()})"
    parser.add_argument("--version", action="version", version=version)
    for heading, keys in GROUPS.items():
        group = parser.add_argument_group(heading)
        for key in keys:
            _add(group, key)
    return parser


def given_flags(arguments: argparse.Namespace) -> Mapping[str, Sequence[str]]:
    """The keys that were set on the command line, with the texts they were set to."""
    values = {name: getattr(arguments, key.field) for name, key in KEYS.items()}
    return {name: texts for name, texts in values.items() if texts is not None}


def _add(group: argparse._ArgumentGroup, key: Key) -> None:
    # A switch without a value means true, as for kubelet's own switches.
    bare: dict[str, object] = {"nargs": "?", "const": "true"} if key.plain is switch else {}
    group.add_argument(
        f"--{key.flag}",
        dest=key.field,
        action="append",
        metavar=key.metavar,
        help=f"{key.meaning} (default: {key.default})".replace("%", "%%"),
        **bare,  # type: ignore[arg-type]  # keywords of several types
    )
