"""`bayplan record-topology`: this machine's NUMA and CPU topology as one text, for `bayplan simulate`."""

import argparse
import stat
from pathlib import Path
from typing import Any, Final

from bayplan.cli.table_layout import Block
from bayplan.files import check_kind

VERB: Final = "record-topology"
HELP: Final = "print this machine's topology as a text that bayplan simulate takes; needs no daemon"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Whose topology."""
    parser.add_argument(
        "--root",
        type=Path,
        default=Path("/"),
        metavar="DIR",
        help="its root directory (default: /)",
    )


def answer(arguments: argparse.Namespace) -> dict[str, Any]:
    """The recording; raises HostError, and ConfigError if the root is no directory."""
    from bayplan.simulate.machine_file import recorded_topology  # noqa: PLC0415 - only this verb reads sysfs

    check_kind(arguments.root, stat.S_IFDIR, "the machine's root directory")
    return recorded_topology(arguments.root)


def blocks(view: dict[str, Any]) -> list[Block]:
    """The text itself."""
    return [view["listing"].rstrip("\n")]
