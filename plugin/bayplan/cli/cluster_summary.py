"""What `kubectl bayplan` shows of many nodes: a line for each pool of nodes, and what needs attention first.

Pure functions of the nodes' answers. Of an answer, a hundred kilobytes, only what is counted and listed is
kept, as soon as it comes (`status_digest`, `nodes_digest`). A view of a node has its ``name``, its
``pool``, and of its ``answer`` the digest, or the ``problem`` why there is none. A thousand nodes fit on
two screens: what is well is counted, what is not is listed as far as `MOST_ROWS`, the worst kind first and
what many nodes have once, and how to see the rest stands below.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from bayplan.cli.table_layout import Block, Column, Table
from bayplan.model.machine import MEMORY
from bayplan.quantity import counted, format_bytes
from bayplan.views.attention import attention

View = Mapping[str, Any]

FEW_NODES: Final = 8
"""Up to so many are shown whole."""
MOST_ROWS: Final = 30
_KINDS: Final = ("problem", "refused", "not promised", "differs", "unmanaged", "degraded")
"""What can need attention on a node (`bayplan.views.attention`), the worst first."""
_MOST_NAMES: Final = 5

_ATTENTION: Final = (Column("NODE"), Column("WHAT"), Column("WHO", rank=1), Column("MORE"))
_POOLS: Final = (
    Column("POOL"),
    Column("NODES", number=True),
    Column("NO ANSWER", number=True),
    Column("CONTAINERS", number=True),
    *(Column(kind.upper(), number=True, rank=1) for kind in _KINDS),
)
_ROOM: Final = (
    Column("POOL"),
    Column("NODES", number=True),
    Column("NO ANSWER", number=True),
    Column("NUMA NODES", number=True, rank=2),
    Column("MEMORY", number=True),
    Column("PROMISED", number=True),
    Column("SHARE", number=True, rank=1),
    Column("LARGEST FREE PIECE", number=True),
    Column("WHERE", rank=1),
)


def status_digest(answer: dict[str, Any]) -> dict[str, Any]:
    """What `status_summary` needs of a node's answer to ``status``."""
    return {"attention": attention(answer), "containers": len(answer["containers"])}


def nodes_digest(answer: dict[str, Any]) -> dict[str, Any]:
    """What `nodes_summary` needs of a node's answer to ``nodes``: the memory of each NUMA node."""
    rooms = ((node["id"], node["resources"].get(MEMORY)) for node in answer["nodes"])
    fields = ("allocatableBytes", "bookedBytes", "freeBytes")
    return {"rooms": [{"id": name, **{key: room[key] for key in fields}} for name, room in rooms if room]}


def status_summary(views: Sequence[View]) -> list[Block]:
    """Pools, what needs attention on which nodes, and who did not answer."""
    found = {view["name"]: view["answer"]["attention"] for view in _answered(views)}
    nodes_with: dict[tuple[str, str, str], list[str]] = {}
    for node, some in found.items():
        for kind, who, more in some:
            nodes_with.setdefault((kind, who, more), []).append(node)
    rows = sorted(nodes_with.items(), key=lambda row: (_KINDS.index(row[0][0]), -len(row[1]), row[1]))
    pools = Table(_POOLS, tuple(_pool_row(name, some, found) for name, some in _by_pool(views)))
    shown: list[Block] = [_heading(views, sum(map(bool, found.values()))), pools]
    if rows:
        listed = tuple((_first_of(nodes), *what) for what, nodes in rows[:MOST_ROWS])
        shown.append(Table(_ATTENTION, listed, title="Needs attention"))
    if len(rows) > MOST_ROWS:
        left = len({node for _, nodes in rows[MOST_ROWS:] for node in nodes})
        more = f"{len(rows) - MOST_ROWS} more on {counted(left, 'node')}"
        shown.append(f"And {more}: kubectl bayplan status --all, or --node NAME.")
    return [*shown, *silent_blocks(views)]


def nodes_summary(views: Sequence[View]) -> list[Block]:
    """For each pool its memory, what of it is promised, and the largest piece that one NUMA node has free."""
    rows = tuple(_room_row(name, some) for name, some in _by_pool(views))
    return [_heading(views, None), Table(_ROOM, rows), *silent_blocks(views)]


def silent_blocks(views: Iterable[View]) -> list[Block]:
    """The nodes that did not answer, those with the same reason together; last, so that they are not
    overlooked."""
    by_problem: dict[str, list[str]] = {}
    for view in views:
        if "problem" in view:
            by_problem.setdefault(view["problem"], []).append(view["name"])
    return [f"{_named(nodes)}: no answer: {problem}" for problem, nodes in by_problem.items()]


def _named(nodes: Sequence[str]) -> str:
    if len(nodes) == 1:
        return f"Node {nodes[0]}"
    more = len(nodes) - _MOST_NAMES
    return f"Nodes {', '.join(nodes[:_MOST_NAMES])}" + (f" and {more} more" if more > 0 else "")


def _first_of(nodes: Sequence[str]) -> str:
    return nodes[0] if len(nodes) == 1 else f"{nodes[0]} and {len(nodes) - 1} more"


def _answered(views: Iterable[View]) -> list[View]:
    return [view for view in views if "problem" not in view]


def _by_pool(views: Iterable[View]) -> list[tuple[str, list[View]]]:
    pools: dict[str, list[View]] = {}
    for view in views:
        pools.setdefault(view["pool"], []).append(view)
    return sorted(pools.items())


def _heading(views: Sequence[View], troubled: int | None) -> str:
    silent = len(views) - len(_answered(views))
    said = (
        f"{counted(len(views), 'node')}, {silent} without an answer"
        if silent
        else counted(len(views), "node")
    )
    return f"{said}." if troubled is None else f"{said}; {troubled} need attention."


def _pool_row(
    name: str, views: Sequence[View], found: Mapping[str, Sequence[Sequence[str]]]
) -> tuple[str, ...]:
    """With how many nodes have something of each kind."""
    answered = _answered(views)
    kinds = Counter(kind for view in answered for kind in {row[0] for row in found[view["name"]]})
    containers = sum(view["answer"]["containers"] for view in answered)
    return (
        name or "-",
        str(len(views)),
        str(len(views) - len(answered)),
        str(containers),
        *(str(kinds[kind]) for kind in _KINDS),
    )


def _room_row(name: str, views: Sequence[View]) -> tuple[str, ...]:
    answered = _answered(views)
    rooms = [(room, view["name"], room["id"]) for view in answered for room in view["answer"]["rooms"]]
    total = _sum(rooms, lambda room: room["allocatableBytes"])
    promised = _sum(rooms, lambda room: room["bookedBytes"])
    largest = max(rooms, key=lambda room: room[0]["freeBytes"], default=None)
    return (
        name or "-",
        str(len(views)),
        str(len(views) - len(answered)),
        str(len(rooms)),
        format_bytes(total),
        format_bytes(promised),
        f"{100 * promised / total:.0f} %" if total else "-",
        "-" if largest is None else format_bytes(largest[0]["freeBytes"]),
        "-" if largest is None else f"node {largest[2]} of {largest[1]}",
    )


def _sum(rooms: Iterable[tuple[Any, str, int]], amount: Callable[[Any], int]) -> int:
    return sum(amount(room) for room, _, _ in rooms)
