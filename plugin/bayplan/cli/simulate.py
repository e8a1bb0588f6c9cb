"""`bayplan simulate`: what engines and policies would make of a machine and a trace, or of a cluster. Needs
no daemon.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from bayplan.cli.layout import Block, Column, Table
from bayplan.errors import ConfigError, Problem
from bayplan.quantity import counted, format_bytes, format_column

CLUSTER_KIND: Final = "ClusterSimulation"

_COLUMNS: Final = (
    Column("SCHEDULER"),
    Column("ENGINE"),
    Column("STARTED", number=True),
    Column("NEVER", number=True),
    Column("REFUSED", number=True),
    Column("WAITED", number=True, rank=1),
    Column("DEGRADED", number=True, rank=2),
    Column("WIDTH", number=True, rank=1),
    Column("REMOTE", number=True, rank=1),
    Column("DISTANCE", number=True, rank=3),
    Column("OVERCOMMITTED", number=True, rank=2),
    Column("STILL FITS", number=True, rank=3),
    Column("WRITES", number=True, rank=3),
)
_BAR: Final = 30
_SOON: Final = 0.01
"""Before that part is over nothing is said of the rest."""


def add_cluster_arguments(parser: argparse.ArgumentParser) -> None:
    """What only a cluster has."""
    parser.add_argument(
        "--trace-format",
        default="",
        metavar="NAME",
        help="a public format: alibaba-gpu-2023 or alibaba-gpu-2025; else CSV or JSON lines whose columns "
        "are called name, cpus, memory, arrives, lasts and so on",
    )
    parser.add_argument(
        "--column",
        action="append",
        default=[],
        metavar="FIELD=COLUMN[:UNIT]",
        help="where a field of a pod stands, like cpus=cpu_milli:milli or resource.gpu=num_gpu; "
        "memory==4:Gi is the same for all",
    )
    parser.add_argument(
        "--scheduler",
        action="append",
        default=[],
        metavar="NAME",
        help="least-allocated (the default), most-allocated, nrt, nrt-least-numa, dra or ask; several are "
        "compared",
    )
    parser.add_argument(
        "--load",
        type=float,
        metavar="PART",
        help="cut the trace, or repeat its pods, so that at most this part of the "
        "cluster is asked for at once",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="NUMBER", help="of everything that is random")
    parser.add_argument(
        "--nrt-resync",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="cacheResyncPeriodSeconds of NodeResourceTopologyMatch; 0, the default, is without its cache",
    )
    parser.add_argument(
        "--results",
        type=Path,
        metavar="DIRECTORY",
        help="keep each finished run there, with results.csv and index.html; what is there is not run again",
    )
    parser.add_argument(
        "--jobs", type=int, default=0, metavar="NUMBER", help="runs at once; by default one for each CPU"
    )


def refuse_cluster_arguments(arguments: argparse.Namespace) -> None:
    """An option of clusters was given for a machine.

    Raises:
        ConfigError: all of them.
    """
    alone = argparse.ArgumentParser(add_help=False)
    add_cluster_arguments(alone)
    problems = tuple(
        Problem(f"--{name.replace('_', '-')}", "given with --topology", "--cluster")
        for name, default in vars(alone.parse_args([])).items()
        if getattr(arguments, name) != default
    )
    if problems:
        raise ConfigError("command line", problems)


def cluster_answer(
    arguments: argparse.Namespace, keys: Mapping[str, Sequence[str]], keys_of: Mapping[str, Any]
) -> dict[str, Any]:
    """The runs.

    Raises:
        ConfigError: a file or an option is wrong.
    """
    from bayplan.simulate.cluster_batch import Batch, simulate_cluster  # noqa: PLC0415 - needs the engines

    batch = Batch(
        arguments.cluster,
        arguments.trace,
        arguments.trace_format,
        tuple(arguments.column),
        tuple(arguments.scheduler) or ("least-allocated",),
        tuple(arguments.engine) or ("exact",),
        tuple(arguments.config),
        keys,
        keys_of,
        arguments.load,
        arguments.seed,
        arguments.nrt_resync,
        arguments.results,
        arguments.jobs,
    )
    progress = _Progress()
    try:
        return simulate_cluster(batch, progress.show)
    finally:
        progress.clear()


def cluster_blocks(view: dict[str, Any]) -> list[Block]:
    """A row for each run."""
    rows = tuple(
        (
            run["scheduler"],
            ", ".join(part for part in (run["engine"], run["policy"]) if part),
            f"{run['started']} of {run['pods']}",
            str(run["neverStarted"]),
            str(run["refusedAtNode"]),
            str(run["waitedLong"]),
            str(run["degraded"]),
            f"{run['meanWidth']:.2f}",
            f"{100 * run['remoteShare']:.1f} %",
            f"{run['meanDistance']:.1f}",
            f"{run['overcommit']['found']} of {run['overcommit']['samples']}",
            format_bytes(run["largestPods"]["memoryBytes"]),
            str(run["writes"]["bindings"] + run["writes"]["topology"]),
        )
        for run in view["runs"]
    )
    nodes, trace = sum(kind["nodes"] for kind in view["cluster"]), view["trace"]
    pods = f"trace of {counted(trace['pods'], 'pod')}, digest {trace['digest']}"
    return [f"{counted(nodes, 'node')}; {pods}.", Table(_COLUMNS, rows)]


class _Progress:
    """One line on a terminal: what is over, and how long the rest may take."""

    def __init__(self) -> None:
        self._stream = sys.stderr if sys.stderr is not None and sys.stderr.isatty() else None
        self._began = time.monotonic()

    def show(self, done: int, total: int, part: float) -> None:
        """*done* of *total* runs are over, and *part* of all their events."""
        if self._stream is None:
            return
        filled = int(part * _BAR)
        left_s = (time.monotonic() - self._began) * (1 - part) / part if part > _SOON else 0.0
        rest = f", some {left_s:.0f} s left" if left_s else ""
        bar = f"[{'#' * filled:<{_BAR}}] {done} of {total} runs, {100 * part:.0f} %{rest}"
        self._stream.write(f"\r\x1b[K{bar}")
        self._stream.flush()

    def clear(self) -> None:
        """Take the line away."""
        if self._stream is not None:
            self._stream.write("\r\x1b[K")
            self._stream.flush()


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
