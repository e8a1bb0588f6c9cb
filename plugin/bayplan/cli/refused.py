"""`bayplan refused`: which containers were refused lately, why, and how often."""

import argparse
from typing import Any, Final

from bayplan.admin_protocol import REFUSED_SINCE_S
from bayplan.cli.client import ask
from bayplan.cli.layout import Block, Column, Table
from bayplan.quantity import duration
from bayplan.views.attention import why

VERB: Final = "refused"
HELP: Final = "list the containers that were refused lately: when, how often and why"

_COLUMNS: Final = (
    Column("AT", rank=1),
    Column("CONTAINER", least=24),
    Column("TIMES", number=True),
    Column("LAST TIME"),
    Column("WHY", least=36),
)
_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Since when, and whose."""
    add_since(parser, REFUSED_SINCE_S, "1h")
    parser.add_argument("-n", "--namespace", metavar="NAME", help="only the pods of this namespace")


def add_since(parser: argparse.ArgumentParser, default_s: int, default: str) -> None:
    """How far to look back."""
    parser.add_argument(
        "--since",
        type=_seconds,
        default=default_s,
        metavar="DURATION",
        help=f"how far to look back: 30m, 12h, 7d (default: {default})",
    )


def answer(arguments: argparse.Namespace) -> dict[str, Any]:
    """The daemon's answer, of one namespace if only that was asked for."""
    view = ask(arguments.admin_socket, VERB, sinceSeconds=arguments.since)
    if arguments.namespace is not None:
        view["refusals"] = [
            one for one in view["refusals"] if one["name"].split("/")[0] == arguments.namespace
        ]
    return view


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
    return [Table(_COLUMNS, rows), "bayplan explain POD shows what each node has beside what was asked for."]


def names(view: dict[str, Any]) -> list[str]:
    """The containers, NAMESPACE/POD/CONTAINER."""
    return [one["name"] for one in view["refusals"]]


def _seconds(text: str) -> int:
    """A duration of one unit.

    >>> _seconds("90"), _seconds("2h")
    (90, 7200)
    """
    number, unit = (text[:-1], text[-1]) if text[-1:] in _UNITS else (text, "s")
    if not (number.isascii() and number.isdecimal()) or int(number[:9]) == 0:
        raise argparse.ArgumentTypeError(f"found {text!r}, expected a duration like 30m, 12h or 7d")
    return int(number[:9]) * _UNITS[unit]
