"""`bayplan doctor`: which way each container engine reaches the daemon, and what is wrong with it."""

import argparse
import stat
from pathlib import Path
from typing import Any, Final

from bayplan.cli.client import AnswerError, ask
from bayplan.cli.layout import Block, Column, Table
from bayplan.errors import UnavailableError
from bayplan.files import check_kind

VERB: Final = "doctor"
HELP: Final = (
    "show which of NRI, OCI hook, precreate and runtime wrapper is active, and what is wrong with it or with "
    "what the daemon has promised"
)

_COLUMNS: Final = (
    Column("ENGINE"),
    Column("VERSION", rank=1),
    Column("NRI"),
    Column("HOOK"),
    Column("PRECREATE"),
    Column("WRAPPER"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The node whose files are examined, and how far."""
    parser.add_argument(
        "--root",
        type=Path,
        default=Path("/"),
        metavar="DIR",
        help="the node's root directory (default: /)",
    )
    parser.add_argument(
        "--before-start",
        action="store_true",
        help="only say what would keep a daemon that is asked over NRI from placing containers",
    )
    parser.add_argument(
        "--nri-socket",
        type=Path,
        metavar="PATH",
        help="with --before-start: where the runtime serves NRI, if it is not /run/nri/nri.sock",
    )


def answer(arguments: argparse.Namespace) -> dict[str, Any]:
    """The examination. A daemon that does not answer is part of it, and no error."""
    # Only this verb parses TOML and YAML.
    from bayplan.oci.doctor import Examination  # noqa: PLC0415 - see above
    from bayplan.oci.node_checks import DaemonState  # noqa: PLC0415 - see above

    check_kind(arguments.root, stat.S_IFDIR, "the node's root directory")
    if arguments.nri_socket is not None:
        place = arguments.root / str(arguments.nri_socket).lstrip("/")
        check_kind(place, stat.S_IFSOCK, "the runtime's NRI socket")
    if arguments.before_start:
        from bayplan.oci.doctor import prerequisites  # noqa: PLC0415 - see above

        return prerequisites(arguments.root, arguments.nri_socket)
    try:
        status = ask(arguments.admin_socket, "status")
        runtime, pid = status["runtime"], status["daemon"]["pid"]
        faults = _faults(arguments.admin_socket)
        kubelet = status["kubelet"]
        assumed = "" if kubelet["knownBy"] else kubelet["version"]
        names = ("name", "version", "nriVersion")
        name, version, nri = (runtime[key] if runtime["connected"] else "" for key in names)
        directory, wishes = status["daemon"].get("placementDirectory", ""), _wishes(status["containers"])
        pools = bool(status["policy"].get("hugepagePools"))
        refuses = status["policy"].get("whenDown") == "refuse"
        daemon = DaemonState(name, version, nri, pid, faults, assumed, directory, wishes, pools, refuses)
    except UnavailableError:
        daemon = None
    return Examination(arguments.root, daemon).view()


def _wishes(containers: list[dict[str, Any]]) -> frozenset[str]:
    """The wishes of containers that need something of the node."""
    fields = {"cpu-partition": "cpuPartitionWanted", "irqs": "irqs"}
    return frozenset(key for key, field in fields.items() if any(one.get(field) for one in containers))


def _faults(socket_path: Path) -> dict[str, bool]:
    """What does not hold of the daemon's ledger, and whether it was put right."""
    try:
        return {one["text"]: one["mended"] for one in ask(socket_path, "check")["faults"]}
    except AnswerError as error:
        # A daemon from before an upgrade knows no such question.
        return {f"it could not be checked: {error}": False}


def blocks(view: dict[str, Any]) -> list[Block]:
    """The examination for people."""
    shown: list[Block] = []
    if view["engines"]:
        cells = ("name", "version", "nri", "hook", "precreate", "wrapper")
        rows = tuple(tuple(engine[cell] or "-" for cell in cells) for engine in view["engines"])
        shown.append(Table(_COLUMNS, rows))
    else:
        shown.append("No container engine was found.")
    for finding in view["findings"]:
        advice = f"\n  {finding['advice']}" if finding["advice"] else ""
        shown.append(f"{finding['level']}: {finding['subject']}: {finding['text']}{advice}")
    if view["health"] == "ok":
        shown.append("Nothing is wrong.")
    return shown
