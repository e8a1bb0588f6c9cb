"""`bayplan simulate --cluster`: its options, its progress, and its table. Needs no daemon."""

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from bayplan.cli.table_layout import Block, Column, Table
from bayplan.errors import ConfigError, Problem
from bayplan.quantity import counted, format_bytes

KIND: Final = "ClusterSimulation"

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
        help="where a field of a pod stands, like cpus=cpu_milli:milli or resource.gpu=num_gpu",
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
            str(sum(run["writes"].values())),
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
