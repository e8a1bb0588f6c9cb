"""`bayplan map`: the machine as a picture."""

import argparse
import stat
from pathlib import Path
from typing import Any, Final

from bayplan.cli.client import ask
from bayplan.cli.layout import Block
from bayplan.errors import HostError
from bayplan.files import check_kind
from bayplan.quantity import counted

VERB: Final = "map"
HELP: Final = "draw the machine as a picture: sockets, nodes, CPUs, who holds what"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Where to, and how wide."""
    parser.add_argument(
        "--svg", type=Path, required=True, metavar="FILE", help="the file to write, in SVG; browsers show it"
    )


def answer(arguments: argparse.Namespace) -> dict[str, Any]:
    """The picture, written; the answer says where and of what.

    Raises:
        ConfigError: there is something that is not a regular file.
        HostError: the file cannot be written.
    """
    from bayplan.drawing.maps import machine_map  # noqa: PLC0415 - only this verb draws

    check_kind(arguments.svg, stat.S_IFREG, "a file to write the picture to")
    view = ask(arguments.admin_socket, "nodes")
    picture = machine_map(view["nodes"])
    try:
        arguments.svg.write_text(picture, encoding="utf-8")
    except OSError as error:
        raise HostError(str(arguments.svg), f"cannot be written: {error.strerror}") from error
    return {
        "apiVersion": view["apiVersion"],
        "kind": "Map",
        "file": str(arguments.svg),
        "nodes": len(view["nodes"]),
    }


def blocks(view: dict[str, Any]) -> list[Block]:
    """That it was written."""
    return [f"{view['file']}: {counted(view['nodes'], 'NUMA node')}"]
