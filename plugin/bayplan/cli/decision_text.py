"""One decision as paragraphs and tables, laid out from the sentences that the daemon sends with it."""

from collections.abc import Iterable
from typing import Any

from bayplan.cli.render import Block, Column, Table

_WIDTH = 12


def decision_blocks(decision: dict[str, Any]) -> list[Block]:
    """A decision for people: what was asked, what came of it and why, what it won against, who moved."""
    state = decision["state"]
    when = f", decided {decision['decidedAt']}" if decision.get("decidedAt") else ""
    lines = [f"{decision['name']} ({state}{when})", *_paragraph("asked", decision["asked"]["lines"])]
    lines += _paragraph("outcome", [decision["outcome"]])
    if decision["placement"] is not None:
        lines += _paragraph("placed", decision["placement"]["lines"])
    lines += _paragraph("why", [reason["text"] for reason in decision["reasons"]])
    if decision["advantage"] is not None:
        lines += _paragraph("won", [decision["advantage"]["text"]])
    lines += _paragraph("moved", [move["text"] for move in decision["moves"]])
    shortage = decision["shortage"]
    if shortage is not None and all(shortage["text"] not in one["text"] for one in decision["reasons"]):
        lines += _paragraph("short", [shortage["text"]])
    if decision["refusal"] is not None:
        lines += _paragraph("error", [decision["refusal"]])
    blocks: list[Block] = ["\n".join(lines)]
    if len(decision["candidates"]) > 1:
        blocks.append(_candidates(decision["candidates"]))
    return blocks


def _candidates(candidates: list[dict[str, Any]]) -> Table:
    """The sets of nodes that were compared, the best first; a column for each criterion, in their order."""
    criteria = list(dict.fromkeys(name for one in candidates for name in one["criteria"]))
    obstacles = any(one["obstacle"] for one in candidates)
    columns = (
        Column("CANDIDATE"),
        *(Column(name.upper(), number=True) for name in criteria),
        *((Column("OBSTACLE"),) if obstacles else ()),
    )
    return Table(
        columns,
        tuple(
            (
                one["nodes"],
                *(one["texts"].get(name, "-") for name in criteria),
                *((one["obstacle"] or "-",) if obstacles else ()),
            )
            for one in candidates
        ),
    )


def _paragraph(label: str, lines: Iterable[str]) -> list[str]:
    """*lines* beside a label; nothing if there are none."""
    texts = [part for line in lines for part in line.splitlines()]
    return [
        f"  {f'{label}:' if number == 0 else '':{_WIDTH}}{text}".rstrip() for number, text in enumerate(texts)
    ]
