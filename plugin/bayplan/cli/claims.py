"""`bayplan claims`: the resource claims that the node holds, what each has on which nodes, and who uses it.

A claim that is listed is prepared: it is recorded, and kubelet was told so or will be. One that is allocated
and not listed is not prepared here; `bayplan refused` says why, if it was refused.
"""

import argparse
from collections.abc import Sequence
from typing import Any, Final

from bayplan.cli.client import ask
from bayplan.cli.layout import Block, Column, Table
from bayplan.quantity import amounts

VERB: Final = "claims"
HELP: Final = "show the resource claims that are held (DRA): on which nodes, how much, and for whom"
NONE: Final = "No resource claims."

_COLUMNS: Final = (
    Column("RESOURCE CLAIM", least=16),
    Column("NODES"),
    Column("HELD"),
    Column("CPUS"),
    Column("CONTAINERS", rank=1),
    Column("DRIVER", rank=2),
)
_DEVICE_COLUMNS: Final = (
    Column("RESOURCE CLAIM", least=16),
    Column("REQUEST"),
    Column("NODE"),
    Column("HELD"),
    Column("CPUS"),
    Column("CONTAINERS", rank=1),
    Column("DRIVER", rank=2),
    Column("UID", rank=3),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The namespace whose claims are shown."""
    parser.add_argument("-n", "--namespace", metavar="NAME", help="only the claims of this namespace")


def answer(arguments: argparse.Namespace) -> dict[str, Any]:
    """What the daemon's answer to ``status`` says of claims."""
    status = ask(arguments.admin_socket, "status")
    namespace, claims = arguments.namespace, status["resourceClaims"]
    if namespace is not None:
        claims = [one for one in claims if one["name"].split("/")[0] == namespace]
    return {"apiVersion": status["apiVersion"], "kind": "ResourceClaims", "claims": claims}


def blocks(view: dict[str, Any]) -> list[Block]:
    """The answer for people, a row for each claim."""
    return held_claims(view["claims"]) or [NONE]


def wide_blocks(view: dict[str, Any]) -> list[Block]:
    """The same with a row for each device."""
    rows = tuple(
        (
            one["name"],
            device["request"],
            str(device["node"]),
            amounts(device["bytes"]),
            device["cpus"] or "-",
            _users(one),
            one["driver"],
            one["uid"],
        )
        for one in view["claims"]
        for device in one["devices"]
    )
    return [Table(_DEVICE_COLUMNS, rows)] if rows else [NONE]


def names(view: dict[str, Any]) -> list[str]:
    """The claims, NAMESPACE/NAME."""
    return [one["name"] for one in view["claims"]]


def held_claims(claims: Sequence[dict[str, Any]]) -> list[Block]:
    """*claims* as a table; nothing where there are none."""
    rows = tuple(
        (one["name"], one["nodes"], amounts(one["bytes"]), one["cpus"] or "-", _users(one), one["driver"])
        for one in claims
    )
    return [Table(_COLUMNS, rows)] if rows else []


def _users(one: dict[str, Any]) -> str:
    return ", ".join(one["containers"]) or "none yet"
