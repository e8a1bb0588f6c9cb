"""`bayplan nodes`: what each NUMA node has, has promised and really holds, its CPUs, and who is there."""

import argparse
from typing import Any, Final

from bayplan.cli.claims import held_claims
from bayplan.cli.client import ask
from bayplan.cli.layout import Block, Column, Table, amounts_to_type
from bayplan.cli.status import cpu_pools, kept_for_pods
from bayplan.quantity import MIB, amounts_column, counted, format_bytes, format_column
from bayplan.sets import CpuSet, NodeSet

VERB: Final = "nodes"
_OF_NOTE_BYTES: Final = MIB
"""What a container holds less of on a node is not listed there; the JSON has it."""
HELP: Final = (
    "show every NUMA node: memory promised and really used, CPUs, distances and the containers there"
)

MEMORY: Final = "memory"
_NODE: Final = Column("NODE", number=True)
_MEMORY_COLUMNS: Final = (
    _NODE,
    Column("RESOURCE"),
    Column("TOTAL", number=True, rank=1),
    Column("RESERVED", number=True, rank=4),
    Column("PROMISED", number=True),
    Column("STILL FITS", number=True),
)
_LIVE_COLUMNS: Final = (
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
    Column("WHOLE CORES LEFT", rank=3),
)
_CACHE_COLUMNS: Final = (
    _NODE,
    Column("L3 CACHE"),
    Column("WHOLE CORES LEFT"),
    Column("WHO HAS CPUS THERE", least=24),
)
_CORE_COLUMNS: Final = (_NODE, Column("BROKEN CORE"), Column("WHOSE ITS CPUS ARE", least=24))
_AS_A_MATRIX: Final = 8
_DISTANCE_COLUMNS: Final = (_NODE, Column("DISTANCES TO NODES"))
_CPU_KIND_COLUMNS: Final = (
    _NODE,
    Column("ISOLATED CPUS"),
    Column("NOHZ_FULL", rank=1),
    Column("KINDS OF CORES"),
)
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
    shown: list[Block] = _memory([node for node in nodes if _has_memory(node)])
    with_cpus = [node for node in nodes if node["cpus"]["all"]]
    shown.append(Table(_CPU_COLUMNS, tuple(_cpu_row(node) for node in with_cpus)))
    shown += [*_nothing(nodes), *_caches(with_cpus), *_broken_cores(with_cpus)]
    if any(node["cpus"][key] for node in with_cpus for key in ("isolated", "kinds", "nohzFull")):
        shown.append(Table(_CPU_KIND_COLUMNS, tuple(_cpu_kind_row(node) for node in with_cpus)))
    if len(nodes) > 1:
        shown.append(_distances([node for node in nodes if _has_memory(node) or node["cpus"]["all"]]))
    if any(_is_of_note(node["kind"]) for node in nodes if _has_memory(node)):
        shown.append(_kinds([node for node in nodes if _has_memory(node)]))
    return [
        *shown,
        *_containers(nodes),
        *cpu_pools(answer),
        *kept_for_pods(answer),
        *held_claims(answer["resourceClaims"]),
    ]


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


def _has_memory(node: dict[str, Any]) -> bool:
    return any(held["totalBytes"] for held in node["resources"].values())


def _nothing(nodes: list[dict[str, Any]]) -> list[Block]:
    """In a sentence, which nodes have no row above."""
    sentences = []
    for has_memory, has_cpus, what in (
        (False, False, "neither memory nor CPUs"),
        (False, True, "no memory"),
        (True, False, "no CPUs"),
    ):
        found = NodeSet(
            node["id"]
            for node in nodes
            if (_has_memory(node), bool(node["cpus"]["all"])) == (has_memory, has_cpus)
        )
        if found:
            sentences.append(f"{counted(len(found), 'node')} with {what}: {found}")
    return ["\n".join(sentences)] if sentences else []


def _memory(nodes: list[dict[str, Any]]) -> list[Block]:
    """One row for memory, one for each size of huge pages that a node has any of. What is used is a column
    only where it was measured."""
    held = [
        (node, name, amounts)
        for node in nodes
        for name, amounts in node["resources"].items()
        if amounts["totalBytes"]
    ]
    measured = any(node["live"] for node in nodes)
    columns = [
        ["" if name != MEMORY and MEMORY in _held_of(node) else str(node["id"]) for node, name, _ in held],
        [name for _, name, _ in held],
        *(format_column(one[f"{key}Bytes"] for _, _, one in held) for key in ("total", "reserved", "booked")),
        amounts_to_type([one["safeBytes"] for _, _, one in held]),
    ]
    if measured:
        lives = [node["live"] if name == MEMORY else None for node, name, _ in held]
        columns.append(
            format_column(live and live["usedByOwnersBytes"] + live["movableBytes"] for live in lives)
        )
        columns += (
            format_column(live and live[f"{key}Bytes"] for live in lives)
            for key in ("heldOutside", "free", "outstanding")
        )
    headings = (*_MEMORY_COLUMNS, *(_LIVE_COLUMNS if measured else ()))
    return [Table(headings, tuple(zip(*columns, strict=True)))]


def _held_of(node: dict[str, Any]) -> set[str]:
    return {name for name, amounts in node["resources"].items() if amounts["totalBytes"]}


def _cpu_row(node: dict[str, Any]) -> tuple[str, ...]:
    cpus = node["cpus"]
    return (
        str(node["id"]),
        ", ".join(map(str, cpus["sockets"])) or "-",
        cpus["shared"] or "-",
        _own(cpus["exclusive"], cpus["contested"]),
        f"{cpus['wholeCores']} of {len(cpus['cores'])}",
    )


def _caches(nodes: list[dict[str, Any]]) -> list[Block]:
    """Each L3 cache, those of a node that are whole in one row; none where no node has several."""
    rows = []
    if all(len(node["cpus"]["l3CacheUse"]) <= 1 for node in nodes):
        return []
    for node in nodes:
        caches = node["cpus"]["l3CacheUse"]
        whole = [one for one in caches if one["wholeCores"] == one["cores"]]
        for one in caches:
            if one not in whole:
                left = f"{one['wholeCores']} of {one['cores']}"
                rows.append((str(node["id"]), one["cpus"], left, ", ".join(one["owners"]) or "-"))
        if whole:
            which = "; ".join(one["cpus"] for one in whole)
            rows.append((str(node["id"]), which, f"all: {counted(len(whole), 'whole cache')}", "-"))
    return [Table(_CACHE_COLUMNS, tuple(rows))]


def _broken_cores(nodes: list[dict[str, Any]]) -> list[Block]:
    """The cores whose CPUs are not all of the same container, or all shared."""
    rows = tuple(
        (
            str(node["id"]),
            core["cpus"],
            "; ".join(f"{part['cpus']} {_whose(part)}" for part in core["parts"]),
        )
        for node in nodes
        for core in node["cpus"]["brokenCores"]
    )
    return [Table(_CORE_COLUMNS, rows)] if rows else []


def _whose(part: dict[str, Any]) -> str:
    return ", ".join([*part["owners"], *(["reserved"] if part["reserved"] else [])]) or "shared"


def _distances(nodes: list[dict[str, Any]]) -> Table:
    """A matrix as long as it can be read; of more nodes, how far which are, the nearest first."""
    if len(nodes) <= _AS_A_MATRIX:
        columns = (_NODE, *(Column(f"TO {node['id']}", number=True) for node in nodes))
        return Table(
            columns,
            tuple(
                (str(node["id"]), *(str(node["distances"].get(str(other["id"]), "-")) for other in nodes))
                for node in nodes
            ),
        )
    rows = []
    shown = {node["id"] for node in nodes}
    for node in nodes:
        by_distance: dict[int, list[int]] = {}
        for other, distance in node["distances"].items():
            if int(other) in shown:
                by_distance.setdefault(distance, []).append(int(other))
        far = "; ".join(f"{distance} to {NodeSet(ids)}" for distance, ids in sorted(by_distance.items()))
        rows.append((str(node["id"]), far))
    return Table(_DISTANCE_COLUMNS, tuple(rows))


def _cpu_kind_row(node: dict[str, Any]) -> tuple[str, ...]:
    cpus = node["cpus"]
    kinds = ", ".join(f"{ids} {kind}" for kind, ids in cpus["kinds"].items())
    return str(node["id"]), cpus["isolated"] or "-", cpus["nohzFull"] or "-", kinds or "-"


def _apart(cpus: str, contested: str) -> tuple[str, str]:
    """Those of *cpus* that are not *contested*, and those that are, as texts."""
    own, theirs = CpuSet.parse(cpus), CpuSet.parse(contested)
    return str(own - theirs), str(own & theirs)


def _own(alone: str, contested: str) -> str:
    """CPUs that are exclusive, as text; those that cpusets of others have too apart from the rest."""
    return ", ".join([*([alone] if alone else []), *([f"{contested} not alone"] if contested else [])]) or "-"


def _is_of_note(kind: dict[str, Any]) -> bool:
    """Whether there is more to say about a node's memory than that it is a machine's only kind."""
    return not kind["ordinary"] or any(kind["rated"].values())


def _kinds(nodes: list[dict[str, Any]]) -> Table:
    rated = (node["kind"]["rated"]["readBandwidthMiBPerSecond"] for node in nodes)
    bandwidths = format_column(None if mib is None else mib * MIB for mib in rated)
    return Table(_KIND_COLUMNS, tuple(map(_kind_row, nodes, bandwidths)))


def _kind_row(node: dict[str, Any], bandwidth: str) -> tuple[str, ...]:
    kind = node["kind"]
    rated = kind["rated"]
    if kind["owner"]:
        who = f"containers with {kind['owner']}"
    else:
        who = "all containers" if kind["ordinary"] else "containers that ask for it"
    latency_ns = rated["readLatencyNs"]
    return (
        str(node["id"]),
        "-" if kind["tier"] is None else str(kind["tier"]),
        ", ".join(name for name in kind["tierNames"] if name != str(kind["tier"])) or "-",
        who if node["memTotalBytes"] else "nobody: it has no memory",
        kind["initiators"] or "-",
        f"{latency_ns} ns" if latency_ns else "-",
        f"{bandwidth}/s" if rated["readBandwidthMiBPerSecond"] else "-",
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
    kept = [node for node in nodes if node["memTotalBytes"]]
    known = [node["reservation"] for node in kept]
    return Table(
        columns,
        tuple(
            zip(
                [str(node["id"]) for node in kept],
                format_column(node["resources"][MEMORY]["reservedBytes"] for node in kept),
                [one["source"] for one in known],
                format_column(one["configuredBytes"] for one in known),
                format_column(one["heldOutsideBytes"] for one in known),
                [one["measuredAt"] or "-" for one in known],
                strict=True,
            )
        ),
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
    seen = [(node["id"], node["live"]) for node in nodes if node["live"] is not None]
    measured = (format_column(live[f"{key}Bytes"] for _, live in seen) for key in keys)
    ids, times = [str(number) for number, _ in seen], [live["measuredAt"] for _, live in seen]
    return Table(columns, tuple(zip(ids, *measured, times, strict=True)))


def _containers(nodes: list[dict[str, Any]]) -> list[Block]:
    """What containers have on nodes. Containers that have nothing of note on any are only counted: most have
    some pages of the kernel's on each node."""
    there, without = [], set()
    for node in nodes:
        for one in node["containers"]:
            holds = (one["heldBytes"] or 0) >= _OF_NOTE_BYTES
            if any(one["bookedBytes"].values()) or holds or one["exclusiveCpus"] or one["devices"]:
                there.append((node, one))
            else:
                without.add(one["id"])
    if not there and not without:
        return ["No container is bound to a node."]
    without -= {one["id"] for _, one in there}
    # Nothing is, where memoryPressure is off.
    measured = any(one["heldBytes"] is not None for _, one in there)
    columns = (
        _NODE,
        Column("CONTAINER", least=24),
        Column("PROMISED HERE"),
        *((Column("USED HERE", number=True),) if measured else ()),
        Column("EXCLUSIVE CPUS HERE", rank=1),
        Column("DEVICES HERE", rank=2),
    )
    used = format_column(one["heldBytes"] for _, one in there)
    promised = amounts_column(one["bookedBytes"] for _, one in there)
    rows = tuple(
        (
            str(node["id"]),
            one["name"],
            promised_here,
            *((used_here,) if measured else ()),
            _own(*_apart(one["exclusiveCpus"], node["cpus"]["contested"])),
            ", ".join(one["devices"]) or "-",
        )
        for (node, one), promised_here, used_here in zip(there, promised, used, strict=True)
    )
    shown: list[Block] = [Table(columns, rows)] if rows else []
    if without:
        have = f"{counted(len(without), 'container')} {'has' if len(without) == 1 else 'have'}"
        shown.append(
            f"{have} nothing promised on nodes, and less than {format_bytes(_OF_NOTE_BYTES)} on each."
        )
    return shown
