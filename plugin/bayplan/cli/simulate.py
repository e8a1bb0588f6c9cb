"""`bayplan simulate`: what engines and policies would make of a machine and a trace. Needs no daemon."""

import argparse
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from bayplan.cli.cluster_options import KIND as CLUSTER_KIND
from bayplan.cli.cluster_options import (
    add_cluster_arguments,
    cluster_answer,
    cluster_blocks,
    refuse_cluster_arguments,
)
from bayplan.cli.table_layout import Block, Column, Table
from bayplan.errors import ConfigError, Problem
from bayplan.quantity import format_column

VERB: Final = "simulate"
HELP: Final = (
    "play a trace of pods on a described machine or cluster, with any engine and policy; needs no daemon"
)

_RESULTS: Final[tuple[tuple[str, Callable[[dict[str, Any]], str | int]], ...]] = (
    ("pods accepted", lambda run: str(run["accepted"])),
    ("pods refused", lambda run: str(run["refused"])),
    ("decisions degraded", lambda run: str(run["degraded"])),
    ("containers moved for others", lambda run: str(run["moves"])),
    ("memory accepted", lambda run: run["acceptedBytes"]),
    ("nodes per placement", lambda run: f"{run['meanWidth']:.2f}"),
    ("sum of distances", lambda run: str(run["totalDistance"])),
    ("free at the end", lambda run: run["atEnd"]["freeBytes"]),
    ("fits on one node at the end", lambda run: run["atEnd"]["largestOnOneNodeBytes"]),
    ("fragmentation at the end", lambda run: f"{run['atEnd']['fragmentation']:.2f}"),
)
"""What is shown of each run, a row for each; the runs are columns, so that many results fit on any screen. A
number is an amount of memory in bytes."""
_STEPS: Final = (
    Column("STEP", number=True, rank=2),
    Column("EVENT", rank=1),
    Column("WHO"),
    Column("DECISION"),
)
_CPUS: Final = (Column("CPUS"), Column("WHO RUNS THERE"))
_MOST_NAMES: Final = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The machine, the trace, and how to decide."""
    simulated = parser.add_mutually_exclusive_group(required=True)
    simulated.add_argument(
        "--cluster",
        type=Path,
        metavar="FILE",
        help="many nodes with a scheduler before them, in TOML, YAML or JSON: see docs/benchmark.md",
    )
    simulated.add_argument(
        "--topology",
        type=Path,
        metavar="PATH",
        help="a machine in TOML, YAML or JSON, a recorded one, lstopo's XML, the output of numactl -H or "
        "lscpu, files of sysfs as grep -rs prints them, or a directory with sys/ in it; - is stdin",
    )
    parser.add_argument(
        "--trace",
        type=Path,
        required=True,
        metavar="FILE",
        help="pods that come, go and change: JSON lines or YAML; with --cluster also CSV; - is stdin",
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
        metavar="[ENGINE:]KEY=VALUE",
        help="a key as baypland's flags have it, like topologyManagerPolicy=restricted; with ENGINE it is "
        "for that engine only",
    )
    parser.add_argument("--steps", action="store_true", help="show every decision, not only the refused ones")
    add_cluster_arguments(parser)


def answer(arguments: argparse.Namespace) -> dict[str, Any]:
    """The runs.

    Raises:
        ConfigError: a file or a key is wrong.
    """
    from bayplan.simulate.comparison import simulate  # noqa: PLC0415 - other verbs need no engines

    keys_of = _keys(arguments.set, arguments.engine)
    keys = keys_of.pop("", {})
    if arguments.cluster is not None:
        return cluster_answer(arguments, keys, keys_of)
    refuse_cluster_arguments(arguments)
    view = simulate(arguments.topology, arguments.trace, arguments.engine, arguments.config, keys, keys_of)
    return view if arguments.steps or arguments.output == "json" else _only_refused(view)


def _keys(texts: Sequence[str], engines: Sequence[str]) -> dict[str, dict[str, list[str]]]:
    """The texts of flags by key, for each of *engines* and, under no name, for all of them."""
    from bayplan.config.keys import KEYS  # noqa: PLC0415 - only this verb reads configuration
    from bayplan.config.values import unknown_key  # noqa: PLC0415 - as above

    found: dict[str, dict[str, list[str]]] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        engine, colon, key = name.rpartition(":")
        if not equals:
            problem = Problem("--set", repr(text), "[ENGINE:]KEY=VALUE with a key of docs/configuration.md")
            raise ConfigError("command line", (problem,))
        if key not in KEYS:
            raise ConfigError("command line", (unknown_key("--set", key, KEYS),))
        if colon and engine not in engines:
            expected = f"one of those in --engine: {', '.join(engines) or 'none'}"
            raise ConfigError("command line", (Problem(f"--set {key}", repr(engine), expected),))
        found.setdefault(engine, {}).setdefault(key, []).append(value)
    return found


def blocks(view: dict[str, Any]) -> list[Block]:
    """The runs for people: one column for each, then the decisions."""
    if view["kind"] == CLUSTER_KIND:
        return cluster_blocks(view)
    runs = view["runs"]
    columns = (Column(""), *(Column(_heading(run), number=True) for run in runs))
    shown: list[Block] = [Table(columns, tuple(_results(runs)))]
    for run in runs:
        heading = _heading(run)
        shown += [f"{heading}: {remark}." for remark in run["remarks"]]
        rows = tuple(row for step in run["steps"] for row in _step_rows(step))
        if rows:
            shown += [f"{heading}:", Table(_STEPS, rows)]
        cpus = tuple(_cpus_row(group) for group in run["atEnd"]["cpus"])
        if cpus:
            shown += [f"{heading}, CPUs at the end:", Table(_CPUS, cpus)]
    return shown


def _results(runs: list[dict[str, Any]]) -> Iterator[tuple[str, ...]]:
    found = [[value(run) for run in runs] for _, value in _RESULTS]
    amounts = iter(format_column(one for row in found for one in row if isinstance(one, int)))
    for (what, _), row in zip(_RESULTS, found, strict=True):
        yield (what, *(next(amounts) if isinstance(one, int) else one for one in row))


def _cpus_row(group: dict[str, Any]) -> tuple[str, ...]:
    names, more = group["containers"][:_MOST_NAMES], len(group["containers"]) - _MOST_NAMES
    whose = ", ".join(names) + (f" and {more} more" if more > 0 else "")
    return group["cpus"], whose


def _heading(run: dict[str, Any]) -> str:
    spread = ", spread" if run["strategy"] == "spread" and run["engine"] == "exact" else ""
    return f"{run['engine']}, {run['policy']}{spread}"


def _only_refused(view: dict[str, Any]) -> dict[str, Any]:
    runs = [
        {
            **run,
            "steps": [step for step in run["steps"] if step["outcome"] == "refused"],
            "atEnd": {**run["atEnd"], "cpus": []},
        }
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
