"""`bayplan nodes`: what each NUMA node has, has promised and really holds, its CPUs, and who is there."""

import argparse
from typing import Any, Final

from bayplan.cli.client import ask
from bayplan.cli.status import kept_for_pods
from bayplan.cli.table_layout import Block, Column, Table
from bayplan.cli.texts import amount_to_type, amounts, optional_bytes
from bayplan.quantity import MIB, format_bytes
from bayplan.sets import CpuSet

VERB: Final = "nodes"
HELP: Final = (
    "show every NUMA node: memory promised and really used, CPUs, distances and the containers there"
)

_NODE: Final = Column("NODE", number=True)
_MEMORY_COLUMNS: Final = (
    _NODE,
    Column("RESOURCE"),
    Column("TOTAL", number=True, rank=1),
    Column("RESERVED", number=True, rank=4),
    Column("PROMISED", number=True),
    Column("STILL FITS", number=True),
    Column("USED BY CONTAINERS", number=True),
    Column("HELD OUTSIDE", number=True, rank=2),
    Column("FREE NOW", number=True),
    Column("NOT USED YET", number=True, rank=3),
)
_CPU_COLUMNS: Final = (
    _NODE,
    Column("SOCKET", rank=1),
    Column("SHARED CPUS"),
    Column("EXCLUSIVE CPUS"),
    Column("L3 CACHES", rank=3),
    Column("DISTANCES", rank=2),
)
_CPU_KIND_COLUMNS: Final = (_NODE, Column("ISOLATED CPUS"), Column("KINDS OF CORES"))
_KIND_COLUMNS: Final = (
    _NODE,
    Column("TIER", number=True),
    Column("ALSO CALLED"),
    Column("FOR"),
    Column("NEAREST TO NODES", rank=1),
    Column("READ LATENCY", number=True, rank=3),
    Column("READ BANDWIDTH", number=True, rank=2),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """None but those of every verb."""


def answer(arguments: argparse.Namespace) -> dict[str, Any]:
    """The daemon's answer."""
    return ask(arguments.admin_socket, VERB)


def blocks(answer: dict[str, Any]) -> list[Block]:
    """The answer to ``nodes`` for people."""
    nodes = answer["nodes"]
    shown: list[Block] = [
        Table(_MEMORY_COLUMNS, tuple(row for node in nodes for row in _memory_rows(node))),
        Table(_CPU_COLUMNS, tuple(_cpu_row(node, nodes) for node in nodes)),
    ]
    if any(node["cpus"]["isolated"] or node["cpus"]["kinds"] for node in nodes):
        shown.append(Table(_CPU_KIND_COLUMNS, tuple(_cpu_kind_row(node) for node in nodes)))
    if any(_is_of_note(node["kind"]) for node in nodes):
        shown.append(Table(_KIND_COLUMNS, tuple(_kind_row(node) for node in nodes)))
    containers = tuple(row for node in nodes for row in _container_rows(node))
    if containers:
        columns = (
            _NODE,
            Column("CONTAINER", least=24),
            Column("PROMISED HERE"),
            Column("USED HERE", number=True),
            Column("EXCLUSIVE CPUS HERE", rank=1),
            Column("DEVICES HERE", rank=2),
        )
        shown.append(Table(columns, containers))
    else:
        shown.append("No container is bound to a node.")
    return [*shown, *kept_for_pods(answer)]


def wide_blocks(answer: dict[str, Any]) -> list[Block]:
    """The same, and how it is known what the nodes keep for others than containers, and what lies there."""
    nodes = answer["nodes"]
    shown = blocks(answer)
    if any(node["reservation"]["measuredAt"] for node in nodes):
        shown.append(_reservations(nodes))
    if any(node["live"] for node in nodes):
        shown.append(_live(nodes))
    return shown


def names(answer: dict[str, Any]) -> list[str]:
    """The ids of the nodes."""
    return [str(node["id"]) for node in answer["nodes"]]


def _memory_rows(node: dict[str, Any]) -> list[tuple[str, ...]]:
    """One row for memory, one for each size of huge pages that the node has any of."""
    rows, live = [], node["live"]
    for name, held in node["resources"].items():
        first = name == "memory"
        if not first and not held["totalBytes"]:
            continue
        seen: tuple[str, ...] = ("-",) * 4
        if first and live is not None:
            used_bytes = live["usedByOwnersBytes"] + live["movableBytes"]
            rest = (live[f"{key}Bytes"] for key in ("heldOutside", "free", "outstanding"))
            seen = (format_bytes(used_bytes), *map(format_bytes, rest))
        rows.append(
            (
                str(node["id"]) if first else "",
                name,
                *(format_bytes(held[f"{key}Bytes"]) for key in ("total", "reserved", "booked")),
                amount_to_type(held["safeBytes"]) if first else format_bytes(held["safeBytes"]),
                *seen,
            )
        )
    return rows


def _cpu_row(node: dict[str, Any], nodes: list[dict[str, Any]]) -> tuple[str, ...]:
    cpus = node["cpus"]
    return (
        str(node["id"]),
        ", ".join(map(str, cpus["sockets"])) or "-",
        cpus["shared"] or "-",
        _own(cpus["exclusive"], cpus["contested"]),
        " ".join(cpus["l3Caches"]) or "-",
        " ".join(str(node["distances"].get(str(other["id"]), "-")) for other in nodes),
    )


def _cpu_kind_row(node: dict[str, Any]) -> tuple[str, ...]:
    cpus = node["cpus"]
    kinds = ", ".join(f"{ids} {kind}" for kind, ids in cpus["kinds"].items())
    return str(node["id"]), cpus["isolated"] or "-", kinds or "-"


def _apart(cpus: str, contested: str) -> tuple[str, str]:
    """Those of *cpus* that are not *contested*, and those that are."""
    own, theirs = CpuSet.parse(cpus), CpuSet.parse(contested)
    return str(own - theirs), str(own & theirs)


def _own(alone: str, contested: str) -> str:
    """CPUs that were given to somebody as its own, those apart that others' cpusets have too."""
    return ", ".join([*([alone] if alone else []), *([f"{contested} not alone"] if contested else [])]) or "-"


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
    return (
        str(node["id"]),
        format_bytes(node["resources"]["memory"]["reservedBytes"]),
        known["source"],
        format_bytes(known["configuredBytes"]),
        optional_bytes(known["heldOutsideBytes"]),
        known["measuredAt"] or "-",
    )


def _live(nodes: list[dict[str, Any]]) -> Table:
    keys = ("outstanding", "free", "reclaimable", "usedByOwners", "movable", "heldOutside")
    columns = (
        _NODE,
        Column("NOT USED YET", number=True),
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


def _container_rows(node: dict[str, Any]) -> list[tuple[str, ...]]:
    return [
        (
            str(node["id"]),
            one["name"],
            amounts(one["bookedBytes"]),
            optional_bytes(one["heldBytes"]),
            _own(*_apart(one["exclusiveCpus"], node["cpus"]["contested"])),
            ", ".join(one["devices"]) or "-",
        )
        for one in node["containers"]
    ]
