"""`bayplan report`: what bayplan did to containers since some time; in shadow mode, what it would have
done.
"""

import argparse
from typing import Any, Final

from bayplan.admin_protocol import REPORTED_SINCE_S
from bayplan.cli.client import ask
from bayplan.cli.decisions import add_since
from bayplan.cli.layout import Block, Column, Table
from bayplan.quantity import counted, format_column
from bayplan.views.attention import why

VERB: Final = "report"
HELP: Final = "say what each container got, who was refused and who was moved; in shadow mode: would have"

_CONTAINERS: Final = (
    Column("AT", rank=1),
    Column("CONTAINER", least=24),
    Column("OUTCOME"),
    Column("NODES"),
    Column("CPUS"),
    Column("LIMIT", number=True, rank=2),
    Column("WHY", least=24),
)
_MOVES: Final = (
    Column("MOVED AT", rank=1),
    Column("CONTAINER", least=24),
    Column("FROM NODE"),
    Column("TO NODE"),
    Column("MEMORY", number=True),
    Column("FOR", rank=2),
)
_EVICTIONS: Final = (Column("EVICTED AT", rank=1), Column("CONTAINER", least=24), Column("WHY", least=36))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Since when."""
    add_since(parser, REPORTED_SINCE_S, "1d")


def answer(arguments: argparse.Namespace) -> dict[str, Any]:
    """The daemon's answer."""
    return ask(arguments.admin_socket, VERB, sinceSeconds=arguments.since)


def blocks(view: dict[str, Any]) -> list[Block]:
    """The answer for people, the oldest first."""
    shown: list[Block] = [_summary(view)]
    if view["containers"]:
        limits = format_column(one["memoryLimitBytes"] for one in view["containers"])
        rows = map(_row, view["containers"], limits)
        shown.append(Table(_CONTAINERS, tuple(rows)))
    moves = [
        *(
            (one["at"], one["name"], one["before"], one["after"], one["bytes"], one["for"])
            for one in view["moves"]
        ),
        *(
            (
                *(one["at"], one["name"], str(one["fromNode"]), str(one["toNode"])),
                one["wantedBytes" if view["shadow"] else "movedBytes"],
                "promised memory" if one["done"] or view["shadow"] else f"not all: {one['obstacle']}",
            )
            for one in view["pageMoves"]
        ),
    ]
    if moves:
        moves.sort()
        sizes = format_column([amount for *_, amount, _ in moves])
        moved = tuple((*row[:4], size, row[5]) for row, size in zip(moves, sizes, strict=True))
        shown.append(Table(_MOVES, moved))
    if view["evictions"]:
        evicted = tuple((one["at"], one["name"], one["text"]) for one in view["evictions"])
        shown.append(Table(_EVICTIONS, evicted))
    return shown


def _summary(view: dict[str, Any]) -> str:
    def did(count: int, what: str, plural: str = "") -> str:
        verb = "would have been" if view["shadow"] else "was" if count == 1 else "were"
        return f"{counted(count, what, plural)} {verb}"

    outcomes, pages = view["outcomes"], view["pageMoves"]
    # A container that was given other nodes had memory moved only if it had any on those that it left.
    moved = [one for one in view["moves"] if one["bytes"]]
    done = [one for one in pages if one["done"] or view["shadow"]]
    failed = len(pages) - len(done)
    pieces = did(len(moved) + len(done), "piece of others' memory", "pieces of others' memory")
    not_moved = f", {failed} could not be moved as far as was wanted" if failed else ""
    return (
        f"Since {view['since']}: {did(outcomes['placed'], 'container')} placed as asked, "
        f"{outcomes['degraded']} less well, {outcomes['refused']} refused; "
        f"{pieces} moved{not_moved}; "
        f"{did(len(view['evictions']), 'container')} evicted."
    )


def _row(one: dict[str, Any], limit: str) -> tuple[str, ...]:
    refused = one["outcome"] == "refused"
    shared = "shared" if one["sharesCpus"] else "as in its spec"
    cpus = f"{one['exclusiveCpus']} alone" if one["exclusiveCpus"] else shared
    return (
        one["at"],
        one["name"],
        one["outcome"],
        "-" if refused else one["mems"] or "any",
        "-" if refused else cpus,
        limit,
        why(one["reasons"]),
    )
