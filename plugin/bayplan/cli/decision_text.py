"""One decision as paragraphs and tables, laid out from the sentences that the daemon sends with it."""

from collections.abc import Iterable
from typing import Any, Final

from bayplan.cli.layout import Block, Column, Table
from bayplan.quantity import amounts, counted, format_column

_BESIDE: Final = (Column(""), Column(""))
"""A label, and the lines beside it."""
_LABEL: Final = 10
"""So wide is a label, that all decisions of an answer have their lines one below the other."""

IN_BYTES: Final = "room taken"
"""The criterion whose values are bytes; `bayplan.model.decision` has it too, and takes 40 ms to load."""

_ROOMS: Final = (
    Column("NODE", number=True),
    Column("FREE", number=True),
    Column("PROMISED", number=True),
    Column("FREE CPUS", number=True),
    Column("SHORT BY"),
)


def decision_blocks(decision: dict[str, Any]) -> list[Block]:
    """A decision for people: what was asked, what came of it and why, what it won against, who moved."""
    state = decision["state"]
    when = f", decided {decision['decidedAt']}" if decision.get("decidedAt") else ""
    rows = [*_beside("asked", decision["asked"]["lines"]), *_beside("outcome", [decision["outcome"]])]
    if decision["placement"] is not None:
        rows += _beside("placed", decision["placement"]["lines"])
    rows += _beside("why", [reason["text"] for reason in decision["reasons"]])
    if decision["advantage"] is not None:
        rows += _beside("won", [decision["advantage"]["text"]])
    rows += _beside("moved", [move["text"] for move in decision["moves"]])
    shortage = decision["shortage"]
    if shortage is not None and all(shortage["text"] not in one["text"] for one in decision["reasons"]):
        rows += _beside("short", [shortage["text"]])
    if decision["refusal"] is not None:
        # The whole error repeats the name and the reasons; the word it begins with is what kubelet shows.
        rows += _beside("error", [f"{decision['refusal'].partition(':')[0]}, with the reason above"])
    shown: list[Block] = [Table(_BESIDE, tuple(rows), inset=2, title=f"{decision['name']} ({state}{when})")]
    if decision.get("nodes"):
        shown.append(rooms(decision["nodes"]))
    elif len(decision["candidates"]) > 1:
        shown.append(_candidates(decision["candidates"]))
    return shown


def rooms(nodes: list[dict[str, Any]]) -> Table:
    """What each node has beside what was refused."""
    free, promised = (
        format_column([node["resources"]["memory"][f"{key}Bytes"] for node in nodes])
        for key in ("free", "promised")
    )
    return Table(
        _ROOMS,
        tuple(
            (str(node["id"]), there, kept, str(node["freeCpus"]), _short(node["short"]))
            for node, there, kept in zip(nodes, free, promised, strict=True)
        ),
    )


def _short(short: dict[str, Any] | None) -> str:
    if short is None:
        return "-"
    cpus = [counted(short["cpus"], "CPU")] if short["cpus"] else []
    memory = [amounts(short["bytes"])] if short["bytes"] else []
    return ", ".join(memory + cpus) or "nothing: it has room now"


def _candidates(candidates: list[dict[str, Any]]) -> Table:
    """The sets of nodes that were compared, the best first; a column for each criterion, in their order."""
    criteria = list(dict.fromkeys(name for one in candidates for name in one["criteria"]))
    obstacles = any(one["obstacle"] for one in candidates)
    columns = (
        Column("CANDIDATE"),
        *(Column(name.upper(), number=True, rank=rank) for rank, name in enumerate(criteria, 1)),
        *((Column("OBSTACLE"),) if obstacles else ()),
    )
    taken = format_column(one["criteria"].get(IN_BYTES) for one in candidates)
    return Table(
        columns,
        tuple(
            (
                one["nodes"],
                *(room if name == IN_BYTES else one["texts"].get(name, "-") for name in criteria),
                *((one["obstacle"] or "-",) if obstacles else ()),
            )
            for one, room in zip(candidates, taken, strict=True)
        ),
    )


def _beside(label: str, lines: Iterable[str]) -> list[tuple[str, str]]:
    """*lines* beside a label; nothing if there are none."""
    texts = [part for line in lines for part in line.splitlines()]
    return [(f"{label}:".ljust(_LABEL) if number == 0 else "", text) for number, text in enumerate(texts)]
