"""`bayplan record-topology`: a machine's NUMA and CPU topology as one text, for `bayplan simulate`."""

import argparse
import stat
from pathlib import Path
from typing import Any, Final

from bayplan.cli.layout import Block
from bayplan.files import check_kind

VERB: Final = "record-topology"
HELP: Final = "print a machine's topology as a text that bayplan simulate takes; needs no daemon"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Whose topology."""
    parser.add_argument(
        "--root",
        type=Path,
        default=Path("/"),
        metavar="DIR",
        help="its root directory (default: /)",
    )
    parser.add_argument(
        "--from",
        dest="sources",
        action="append",
        type=Path,
        default=[],
        metavar="FILE",
        help="another machine: a machine file, lstopo's XML, the output of numactl -H and lscpu, files of "
        "sysfs as grep -rs prints them, a tree; repeatable for outputs of one machine; - is stdin",
    )


def answer(arguments: argparse.Namespace) -> dict[str, Any]:
    """The recording; raises HostError, and ConfigError if the root is no directory or a file is wrong."""
    from bayplan.simulate import topology_sources  # noqa: PLC0415 - only this verb reads sysfs

    if arguments.sources:
        return topology_sources.converted_topology(arguments.sources)
    check_kind(arguments.root, stat.S_IFDIR, "the machine's root directory")
    return topology_sources.recorded_topology(arguments.root)


def blocks(view: dict[str, Any]) -> list[Block]:
    """The text itself."""
    return [view["listing"].rstrip("\n")]
