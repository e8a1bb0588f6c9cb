"""`bayplan nodes`: what each NUMA node has, keeps, promised and has left, and who is there."""

import argparse
from typing import Any, Final

from bayplan.cli.client import ask
from bayplan.cli.render import Block, Column, Table
from bayplan.cli.status import kept_for_pods
from bayplan.quantity import MIB, format_bytes

VERB: Final = "nodes"
HELP: Final = "show every NUMA node: memory, huge pages, CPUs, distances and the containers there"

_NODE: Final = Column("NODE", number=True)
_COLUMNS: Final = (
    _NODE,
    Column("RESOURCE"),
    Column("TOTAL", number=True),
    Column("RESERVED", number=True),
    Column("BOOKED", number=True),
    Column("FREE", number=True),
    Column("SAFE TO ASK FOR", number=True),
    Column("SHARED CPUS"),
    Column("EXCLUSIVE CPUS"),
)
_KIND_COLUMNS: Final = (
    _NODE,
    Column("TIER", number=True),
    Column("ALSO CALLED"),
    Column("FOR"),
    Column("NEAREST TO NODES"),
    Column("READ LATENCY", number=True),
    Column("READ BANDWIDTH", number=True),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """None but those of every verb."""


def answer(arguments: argparse.Namespace) -> dict[str, Any]:
    """The daemon's answer."""
    return ask(arguments.admin_socket, VERB)


def blocks(answer: dict[str, Any]) -> list[Block]:
    """The answer to ``nodes`` for people."""
    nodes = answer["nodes"]
    shown: list[Block] = [Table(_COLUMNS, tuple(row for node in nodes for row in _resource_rows(node)))]
    if len(nodes) > 1:
        shown.append(_distances(nodes))
    if any(_is_of_note(node["kind"]) for node in nodes):
        shown.append(Table(_KIND_COLUMNS, tuple(_kind_row(node) for node in nodes)))
    if any(node["reservation"]["measuredAt"] for node in nodes):
        shown.append(_reservations(nodes))
    if any(node["live"] for node in nodes):
        shown.append(_live(nodes))
    residents = tuple(row for node in nodes for row in _resident_rows(node))
    if residents:
        columns = (
            _NODE,
            Column("CONTAINER"),
            Column("BOOKED HERE"),
            Column("HELD HERE", number=True),
            Column("EXCLUSIVE CPUS HERE"),
            Column("DEVICES HERE"),
        )
        shown.append(Table(columns, residents))
    else:
        shown.append("No container is bound to a node.")
    return [*shown, *kept_for_pods(answer)]


def _resource_rows(node: dict[str, Any]) -> list[tuple[str, ...]]:
    """One row for memory with the node's CPUs, one for each size of huge pages that the node has any of."""
    rows = []
    for name, amounts in node["resources"].items():
        first = name == "memory"
        if not first and not amounts["totalBytes"]:
            continue
        rows.append(
            (
                str(node["id"]) if first else "",
                name,
                *(format_bytes(amounts[f"{key}Bytes"]) for key in ("total", "reserved", "booked", "free")),
                format_bytes(amounts["safeBytes"]) if not first else f"{amounts['safeBytes'] // MIB}Mi",
                (node["cpus"]["shared"] or "-") if first else "",
                (node["cpus"]["exclusive"] or "-") if first else "",
            )
        )
    return rows


def _distances(nodes: list[dict[str, Any]]) -> Table:
    ids = [str(node["id"]) for node in nodes]
    columns = (Column("DISTANCE FROM", number=True), *(Column(f"TO {one}", number=True) for one in ids))
    return Table(
        columns,
        tuple((str(node["id"]), *(str(node["distances"].get(one, "-")) for one in ids)) for node in nodes),
    )


def _is_of_note(kind: dict[str, Any]) -> bool:
    """Whether there is more to say about a node's memory than that it is a machine's only kind."""
    return not kind["ordinary"] or any(kind["rated"].values())


def _kind_row(node: dict[str, Any]) -> tuple[str, ...]:
    kind = node["kind"]
    rated = kind["rated"]
    if kind["owner"]:
        who = f"containers with {kind['owner']}"
    else:
        who = "all containers" if kind["ordinary"] else "containers that ask for it"
    latency_ns, bandwidth_mib = rated["readLatencyNs"], rated["readBandwidthMiBPerSecond"]
    return (
        str(node["id"]),
        "-" if kind["tier"] is None else str(kind["tier"]),
        ", ".join(name for name in kind["tierNames"] if name != str(kind["tier"])) or "-",
        who if node["memTotalBytes"] else "nobody: it has no memory",
        kind["initiators"] or "-",
        f"{latency_ns} ns" if latency_ns else "-",
        f"{format_bytes(bandwidth_mib * MIB)}/s" if bandwidth_mib else "-",
    )


def _reservations(nodes: list[dict[str, Any]]) -> Table:
    columns = (
        _NODE,
        Column("KEEPS", number=True),
        Column("BECAUSE"),
        Column("CONFIGURED", number=True),
        Column("HELD OUTSIDE OF CONTAINERS", number=True),
        Column("MEASURED AT"),
    )
    return Table(columns, tuple(_reservation_row(node) for node in nodes if node["memTotalBytes"]))


def _reservation_row(node: dict[str, Any]) -> tuple[str, ...]:
    known = node["reservation"]
    held_bytes = known["heldOutsideBytes"]
    return (
        str(node["id"]),
        format_bytes(node["resources"]["memory"]["reservedBytes"]),
        known["source"],
        format_bytes(known["configuredBytes"]),
        "-" if held_bytes is None else format_bytes(held_bytes),
        known["measuredAt"] or "-",
    )


def _live(nodes: list[dict[str, Any]]) -> Table:
    keys = ("outstanding", "free", "reclaimable", "usedByOwners", "movable", "heldOutside")
    columns = (
        _NODE,
        Column("OUTSTANDING", number=True),
        Column("FREE NOW", number=True),
        Column("RECLAIMABLE", number=True),
        Column("USED BY OWNERS", number=True),
        Column("MAY LIE ELSEWHERE", number=True),
        Column("HELD OUTSIDE", number=True),
        Column("SEEN AT"),
    )
    return Table(
        columns,
        tuple(
            (str(node["id"]), *(format_bytes(live[f"{key}Bytes"]) for key in keys), live["measuredAt"])
            for node in nodes
            if (live := node["live"]) is not None
        ),
    )


def _resident_rows(node: dict[str, Any]) -> list[tuple[str, ...]]:
    return [
        (
            str(node["id"]),
            one["name"],
            ", ".join(f"{format_bytes(amount)} {name}" for name, amount in one["bookedBytes"].items()) or "-",
            "-" if one["heldBytes"] is None else format_bytes(one["heldBytes"]),
            one["exclusiveCpus"] or "-",
            ", ".join(one["devices"]) or "-",
        )
        for one in node["containers"]
    ]
