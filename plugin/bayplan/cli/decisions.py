"""What the daemon decided: why a container is where it is (`bayplan explain`), all that was decided about a
pod (`history`), what was refused lately (`refused`), and what was done to containers since some time
(`report`).

A decision is laid out from the sentences that the daemon sends with it.
"""

import argparse
from collections.abc import Iterable
from typing import Any, Final

from bayplan.admin_protocol import REFUSED_SINCE_S, REPORTED_SINCE_S
from bayplan.cli.client import ask
from bayplan.cli.layout import Block, Column, Table
from bayplan.quantity import amounts, counted, duration, format_column
from bayplan.views.attention import why

_HISTORY_COLUMNS: Final = (
    Column("AT"),
    Column("EVENT"),
    Column("CONTAINER", rank=1),
    Column("WHAT"),
    Column("ID", rank=2),
)
_ID_CHARACTERS: Final = 13
"""As many as crictl shows; `bayplan explain` takes them."""
_REFUSED_COLUMNS: Final = (
    Column("AT", rank=1),
    Column("CONTAINER", least=24),
    Column("TIMES", number=True),
    Column("LAST TIME"),
    Column("WHY", least=36),
)
_REPORT_COLUMNS: Final = (
    Column("AT", rank=1),
    Column("CONTAINER", least=24),
    Column("OUTCOME"),
    Column("NODES"),
    Column("CPUS"),
    Column("LIMIT", number=True, rank=2),
    Column("WHY", least=24),
)
_MOVE_COLUMNS: Final = (
    Column("MOVED AT", rank=1),
    Column("CONTAINER", least=24),
    Column("FROM NODE"),
    Column("TO NODE"),
    Column("MEMORY", number=True),
    Column("FOR", rank=2),
)
_EVICTION_COLUMNS: Final = (
    Column("EVICTED AT", rank=1),
    Column("CONTAINER", least=24),
    Column("WHY", least=36),
)
_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def add_subject(parser: argparse.ArgumentParser) -> None:
    """A pod or a container that something was decided about."""
    parser.add_argument(
        "subject",
        metavar="NAME",
        help="a pod, NAMESPACE/POD, POD/CONTAINER, NAMESPACE/POD/CONTAINER, a container's id, or a part of a "
        "name that only one pod has",
    )


class Explain:
    """`bayplan explain`: why a container is where it is, or was refused."""

    VERB = "explain"
    HELP = "say why a container is where it is, or why it was refused: also one that is gone"

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        """The pod or container to explain."""
        add_subject(parser)

    @staticmethod
    def answer(arguments: argparse.Namespace) -> dict[str, Any]:
        """The daemon's answer."""
        return ask(arguments.admin_socket, "explain", subject=arguments.subject)

    @staticmethod
    def blocks(explanation: dict[str, Any]) -> list[Block]:
        """The answer for people, one container after the other."""
        return [block for one in explanation["containers"] for block in _container(one)]


class History:
    """`bayplan history`: everything that was decided about a pod, in the order in which it happened."""

    VERB = "history"
    HELP = "show all that was decided about a pod, the oldest first, and when pages of it were moved"

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        """The pod or container."""
        add_subject(parser)

    @staticmethod
    def answer(arguments: argparse.Namespace) -> dict[str, Any]:
        """The daemon's answer."""
        return ask(arguments.admin_socket, "history", subject=arguments.subject)

    @staticmethod
    def blocks(view: dict[str, Any]) -> list[Block]:
        """The answer for people."""
        rows = tuple(
            (one["at"], one["event"], one["name"], one["text"], one["id"][:_ID_CHARACTERS])
            for one in view["events"]
        )
        shown: list[Block] = [Table(_HISTORY_COLUMNS, rows)]
        return shown if view["complete"] else [*shown, "There is more; these are the latest."]


class Refusals:
    """`bayplan refused`: which containers were refused lately, why, and how often."""

    VERB = "refused"
    HELP = "list the containers that were refused lately: when, how often and why"

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        """How far to look back, and in which namespace."""
        add_since(parser, REFUSED_SINCE_S, "1h")
        parser.add_argument("-n", "--namespace", metavar="NAME", help="only the pods of this namespace")

    @staticmethod
    def answer(arguments: argparse.Namespace) -> dict[str, Any]:
        """The daemon's answer, of one namespace if only that was asked for."""
        view = ask(arguments.admin_socket, "refused", sinceSeconds=arguments.since)
        if arguments.namespace is not None:
            view["refusals"] = [
                one for one in view["refusals"] if one["name"].split("/")[0] == arguments.namespace
            ]
        return view

    @staticmethod
    def blocks(view: dict[str, Any]) -> list[Block]:
        """The answer for people, the latest first."""
        if not view["refusals"]:
            return [f"Nothing was refused since {view['since']}."]
        rows = tuple(
            (
                one["lastAt"],
                one["name"],
                str(one["times"]),
                f"{duration(one['secondsAgo'])} ago" + (", placed since" if one["placedSince"] else ""),
                why(one["reasons"]),
            )
            for one in view["refusals"]
        )
        return [
            Table(_REFUSED_COLUMNS, rows),
            "bayplan explain POD shows what each node has beside what was asked for.",
        ]

    @staticmethod
    def names(view: dict[str, Any]) -> list[str]:
        """The containers, NAMESPACE/POD/CONTAINER."""
        return [one["name"] for one in view["refusals"]]


def _container(one: dict[str, Any]) -> list[Block]:
    shown = decision_blocks(one)
    if one["earlier"]:
        rows = tuple((item["at"], item["id"], item["summary"]) for item in one["earlier"])
        columns = (Column("EARLIER"), Column("CONTAINER ID", rank=1), Column("DECISION"))
        shown.append(Table(columns, rows))
    if one["pageMoves"]:
        moves = tuple((item["at"], item["text"]) for item in one["pageMoves"])
        shown.append(Table((Column("PAGES MOVED"), Column("WHAT")), moves))
    if one["evictions"]:
        evictions = tuple((item["at"], item["text"]) for item in one["evictions"])
        shown.append(Table((Column("EVICTED"), Column("WHY")), evictions))
    return shown


def add_since(parser: argparse.ArgumentParser, default_s: int, default: str) -> None:
    """How far to look back."""
    parser.add_argument(
        "--since",
        type=_seconds,
        default=default_s,
        metavar="DURATION",
        help=f"how far to look back: 30m, 12h, 7d (default: {default})",
    )


def _seconds(text: str) -> int:
    """A duration of one unit.

    >>> _seconds("90"), _seconds("2h")
    (90, 7200)
    """
    number, unit = (text[:-1], text[-1]) if text[-1:] in _UNITS else (text, "s")
    if not (number.isascii() and number.isdecimal()) or int(number[:9]) == 0:
        raise argparse.ArgumentTypeError(f"found {text!r}, expected a duration like 30m, 12h or 7d")
    return int(number[:9]) * _UNITS[unit]


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
    rows += _beside("CPUs", decision.get("cpuUse", ()))
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
    """The sets of nodes that were compared, the best first; a column for each criterion, in the order of the
    criteria."""
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


class ReportVerb:
    """`bayplan report`: what was done to containers since some time; in shadow mode, what would have been."""

    VERB = "report"
    HELP = "say what each container got, who was refused and who was moved; in shadow mode: would have"

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        """How far to look back."""
        add_since(parser, REPORTED_SINCE_S, "1d")

    @staticmethod
    def answer(arguments: argparse.Namespace) -> dict[str, Any]:
        """The daemon's answer."""
        return ask(arguments.admin_socket, ReportVerb.VERB, sinceSeconds=arguments.since)

    @staticmethod
    def blocks(view: dict[str, Any]) -> list[Block]:
        """The answer for people, the oldest first."""
        shown: list[Block] = [_report_summary(view)]
        if view["containers"]:
            limits = format_column(one["memoryLimitBytes"] for one in view["containers"])
            rows = map(_reported_row, view["containers"], limits)
            shown.append(Table(_REPORT_COLUMNS, tuple(rows)))
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
            shown.append(Table(_MOVE_COLUMNS, moved))
        if view["evictions"]:
            evicted = tuple((one["at"], one["name"], one["text"]) for one in view["evictions"])
            shown.append(Table(_EVICTION_COLUMNS, evicted))
        return shown


def _report_summary(view: dict[str, Any]) -> str:
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


def _reported_row(one: dict[str, Any], limit: str) -> tuple[str, ...]:
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
