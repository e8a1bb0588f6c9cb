"""`bayplan simulate`: what engines and policies would make of a machine and a trace. Needs no daemon."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from bayplan.cli.table_layout import Block, Column, Table
from bayplan.errors import ConfigError, Problem
from bayplan.quantity import format_bytes

VERB: Final = "simulate"
HELP: Final = "play a trace of pods on a described machine, with any engine and policy; needs no daemon"

_RESULTS: Final[tuple[tuple[str, Callable[[dict[str, Any]], str]], ...]] = (
    ("pods accepted", lambda run: str(run["accepted"])),
    ("pods refused", lambda run: str(run["refused"])),
    ("decisions degraded", lambda run: str(run["degraded"])),
    ("containers moved for others", lambda run: str(run["moves"])),
    ("memory accepted", lambda run: format_bytes(run["acceptedBytes"])),
    ("nodes per placement", lambda run: f"{run['meanWidth']:.2f}"),
    ("sum of distances", lambda run: str(run["totalDistance"])),
    ("free at the end", lambda run: format_bytes(run["atEnd"]["freeBytes"])),
    ("fits on one node at the end", lambda run: format_bytes(run["atEnd"]["largestOnOneNodeBytes"])),
    ("fragmentation at the end", lambda run: f"{run['atEnd']['fragmentation']:.2f}"),
)
"""What is shown of each run, a row for each; the runs are columns, so that many results fit on any screen."""
_STEPS: Final = (
    Column("STEP", number=True, rank=2),
    Column("EVENT", rank=1),
    Column("WHO"),
    Column("DECISION"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The machine, the trace, and how to decide."""
    parser.add_argument(
        "--topology",
        type=Path,
        required=True,
        metavar="PATH",
        help="a machine in TOML, YAML or JSON, a recorded one, or a directory with sys/ in it",
    )
    parser.add_argument(
        "--trace",
        type=Path,
        required=True,
        metavar="FILE",
        help="pods that come, go and change: JSON lines or YAML",
    )
    parser.add_argument(
        "--engine", action="append", default=[], metavar="NAME", help="an engine; several are compared"
    )
    parser.add_argument(
        "--config",
        action="append",
        type=Path,
        default=[],
        metavar="PATH",
        help="a file that baypland would read",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a key as baypland's flags have it, like topologyManagerPolicy=restricted",
    )
    parser.add_argument("--steps", action="store_true", help="show every decision, not only the refused ones")


def answer(arguments: argparse.Namespace) -> dict[str, Any]:
    """The runs.

    Raises:
        ConfigError: a file or a key is wrong.
    """
    from bayplan.config.keys import KEYS  # noqa: PLC0415 - only this verb reads configuration
    from bayplan.config.values import unknown_key  # noqa: PLC0415 - as above
    from bayplan.simulate.comparison import simulate  # noqa: PLC0415 - other verbs need no engines

    keys: dict[str, list[str]] = {}
    for text in arguments.set:
        key, equals, value = text.partition("=")
        if not equals:
            problem = Problem("--set", repr(text), "KEY=VALUE with a key of docs/configuration.md")
            raise ConfigError("command line", (problem,))
        if key not in KEYS:
            raise ConfigError("command line", (unknown_key("--set", key, KEYS),))
        keys.setdefault(key, []).append(value)
    view = simulate(arguments.topology, arguments.trace, arguments.engine, arguments.config, keys)
    return view if arguments.steps or arguments.output == "json" else _only_refused(view)


def blocks(view: dict[str, Any]) -> list[Block]:
    """The runs for people: one column for each, then the decisions."""
    runs = view["runs"]
    columns = (Column(""), *(Column(_heading(run), number=True) for run in runs))
    results = tuple((what, *(text(run) for run in runs)) for what, text in _RESULTS)
    shown: list[Block] = [Table(columns, results)]
    for run in view["runs"]:
        rows = tuple(row for step in run["steps"] for row in _step_rows(step))
        if rows:
            shown.append(f"{_heading(run)}:")
            shown.append(Table(_STEPS, rows))
    return shown


def _heading(run: dict[str, Any]) -> str:
    spread = ", spread" if run["strategy"] == "spread" and run["engine"] == "exact" else ""
    return f"{run['engine']}, {run['policy']}{spread}"


def _only_refused(view: dict[str, Any]) -> dict[str, Any]:
    runs = [
        {**run, "steps": [step for step in run["steps"] if step["outcome"] == "refused"]}
        for run in view["runs"]
    ]
    return {**view, "runs": runs}


def _step_rows(step: dict[str, Any]) -> list[tuple[str, ...]]:
    number, event = str(step["step"]), step["event"]
    decided = [(event, one["name"], one["summary"]) for one in step["containers"]]
    back = [
        ("return", one["name"], f"back from node {one['before']} to node {one['after']}")
        for one in step["returned"]
    ]
    more = [("promise", name, "is promised what it lacked") for name in step["promised"]]
    rows = [*(decided or [(event, step["name"], step["outcome"])]), *back, *more]
    return [(number, *row) for row in rows]
