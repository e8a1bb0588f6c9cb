"""`bayplan simulate --cluster` without its command line: schedulers times engines on one cluster and one
trace, and the files that come of it, among them one page of HTML with all results.

Runs are independent: each is a process of its own, as many at once as there are CPUs. With a directory for
results each finished run is a file there, named by what went into it, so that a batch that was ended goes on
with what is missing, and another batch adds to it. Equal inputs give equal files but for ``speed``.

Nothing outside the page is needed to show it.
"""

import csv
import hashlib
import io
import itertools
import json
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from multiprocessing import get_context
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from bayplan import __version__
from bayplan.admin_protocol import API_VERSION
from bayplan.drawing.svg import STYLE, box, element, fitting, plain, text
from bayplan.engines.interface import EXACT, Engine
from bayplan.errors import ConfigError, Problem
from bayplan.model.machine import Machine
from bayplan.quantity import counted, format_bytes
from bayplan.simulate.cluster_nodes import NodeKind, NodeSoftware, read_cluster, software_of
from bayplan.simulate.cluster_run import ClusterRun, run_view
from bayplan.simulate.cluster_schedulers import SCHEDULERS
from bayplan.simulate.pod_trace import TimedPod, peak, read_pod_trace, scaled

View = dict[str, Any]
Flags = Mapping[str, Sequence[str]]
Maker = Callable[[Machine], Engine]

_POLL_S: Final = 0.5
_MOST_LOAD, _MOST_RESYNC_S = 2, 3600
CLAIMS: Final = "claims"
"""What stands for the engine where claims are booked as they were allocated."""
_COLUMNS: Final = (
    "cluster",
    "scheduler",
    "engine",
    "policy",
    "nodes",
    "nodesReached",
    "pods",
    "started",
    "neverStarted",
    "refusedAtNode",
    "podsRefused",
    "waitedLong",
    "meanWaitSeconds",
    "degraded",
    "moves",
    "meanWidth",
    "remoteShare",
    "meanDistance",
    "overcommit.samples",
    "overcommit.found",
    "overcommit.worstBytes",
    "largestPods.cpus",
    "largestPods.memoryBytes",
    "writes.bindings",
    "writes.topology",
    "writes.busiestMinute",
    "seed",
    "load",
    "version",
    "trace",
)


class Batch(Struct, frozen=True):
    """What is to be run. *configs* and *keys* (texts of flags by key) are for every engine, *keys_of* for
    single ones. ``makers`` make engines that are none of ours, by the names that *engines* have for them;
    the rest of their nodes is as with the engine `exact`. ``load`` is the part of the cluster that the trace
    is cut to, None for the trace as it is; ``resync_s`` the period of NodeResourceTopologyMatch's cache, 0
    for none; ``processes`` 0 for one per CPU; ``version`` is what the results say they are of."""

    cluster: Path
    trace: Path
    trace_format: str = ""
    columns: tuple[str, ...] = ()
    schedulers: tuple[str, ...] = ("least-allocated",)
    engines: tuple[str, ...] = ("exact",)
    configs: tuple[Path, ...] = ()
    keys: Flags = MappingProxyType({})
    keys_of: Mapping[str, Flags] = MappingProxyType({})
    load: float | None = None
    seed: int = 0
    resync_s: float = 0.0
    results: Path | None = None
    processes: int = 0
    makers: Mapping[str, Maker] = MappingProxyType({})
    version: str = __version__


class _Job(Struct, frozen=True):
    """One run, as it is sent to a process."""

    kinds: list[NodeKind]
    pods: list[TimedPod]
    scheduler: str
    configs: tuple[Path, ...]
    flags: Flags
    label: View
    seed: int
    resync_s: float
    maker: Maker | None

    def software(self) -> list[NodeSoftware]:
        """That of each kind of nodes."""
        each = [software_of(kind, self.configs, self.flags) for kind in self.kinds]
        make = self.maker
        return each if make is None else [replace(one, engine=make(one.machine)) for one in each]


def simulate_cluster(batch: Batch, report: Callable[[int, int, float], None] = lambda *_: None) -> View:
    """Run *batch*; *report* is told how many runs are over, of how many, and which part of all of them.

    Raises:
        ConfigError: a file or a flag is wrong.
    """
    _check(batch)
    kinds = read_cluster(batch.cluster)
    pods = read_pod_trace(batch.trace, batch.trace_format, batch.columns)
    digest = _digest(pods)
    prepared: dict[str, tuple[Flags, str, list[TimedPod]]] = {}
    for engine in batch.engines:
        ours = EXACT if engine in batch.makers else engine
        flags: Flags = {**batch.keys, **batch.keys_of.get(engine, {}), "engine": [ours]}
        software = [software_of(kind, batch.configs, flags) for kind in kinds]
        chosen = pods if batch.load is None else _cut(pods, kinds, software, batch.load, batch.seed)
        prepared[engine] = (flags, software[0].policy.topology.value, chosen)
    jobs: list[_Job] = []
    for scheduler, engine in itertools.product(batch.schedulers, batch.engines):
        claims = scheduler == "dra"
        if claims and engine != batch.engines[0]:
            continue  # whatever the engine: the node books what was allocated
        flags, policy, chosen = prepared[engine]
        label = {
            "cluster": ", ".join(map(_described, kinds)),
            "scheduler": scheduler,
            "engine": CLAIMS if claims else engine,
            "policy": "" if claims else policy,
            "seed": batch.seed,
            "load": batch.load,
            "version": batch.version,
            "trace": digest,
        }
        maker = None if claims else batch.makers.get(engine)
        jobs.append(
            _Job(kinds, chosen, scheduler, batch.configs, flags, label, batch.seed, batch.resync_s, maker)
        )
    runs = _run_all(jobs, batch, report)
    most_milli, most_bytes = peak(pods)
    view: View = {
        "apiVersion": API_VERSION,
        "kind": "ClusterSimulation",
        "cluster": [{"name": kind.name, "nodes": kind.count} for kind in kinds],
        "trace": {
            "pods": len(pods),
            "digest": digest,
            "peakMilliCpus": most_milli,
            "peakMemoryBytes": most_bytes,
        },
        "runs": runs,
    }
    if batch.results is not None:
        everything = [*_finished(batch.results).values()]
        _write(batch.results / "results.csv", results_csv(everything))
        _write(batch.results / "index.html", results_page(everything))
    return view


def _cut(
    pods: list[TimedPod],
    kinds: Sequence[NodeKind],
    software: Sequence[NodeSoftware],
    load: float,
    seed: int,
) -> list[TimedPod]:
    """As many of *pods* as are to load the cluster."""
    each = list(zip(kinds, software, strict=True))
    milli = sum(kind.count * one.milli_cpus for kind, one in each)
    size_bytes = sum(kind.count * one.memory_bytes for kind, one in each)
    return scaled(pods, milli, size_bytes, load, seed)


def _described(kind: NodeKind) -> str:
    machine = kind.machine
    numa_nodes, cpus = counted(len(machine.ordinary_nodes), "NUMA node"), counted(len(machine.cpus), "CPU")
    return f"{kind.count} {kind.name} of {numa_nodes}, {cpus}, {format_bytes(machine.memory_bytes)}"


def results_csv(runs: Sequence[View]) -> str:
    """A line for each run, without ``speed``."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for run in runs:
        writer.writerow([_at(run, column) for column in _COLUMNS])
    return text.getvalue()


def _at(run: View, column: str) -> object:
    value: Any = run
    for part in column.split("."):
        value = value[part]
    return value


def _check(batch: Batch) -> None:
    problems = [
        Problem("--scheduler", repr(name), f"one of {', '.join(SCHEDULERS)}")
        for name in batch.schedulers
        if name not in SCHEDULERS
    ]
    if batch.load is not None and not 0 < batch.load <= _MOST_LOAD:
        problems.append(
            Problem("--load", str(batch.load), f"a part of the cluster, above 0 and up to {_MOST_LOAD}")
        )
    if not 0 <= batch.resync_s <= _MOST_RESYNC_S:
        problems.append(
            Problem("--nrt-resync", f"{batch.resync_s:g}", f"seconds, from 0 (no cache) to {_MOST_RESYNC_S}")
        )
    if batch.processes < 0:
        problems.append(Problem("--jobs", str(batch.processes), "runs at once, or 0 for one per CPU"))
    if problems:
        raise ConfigError("command line", tuple(problems))
    if batch.results is not None:
        try:
            batch.results.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            expected = "a directory that can be written"
            problem = Problem("--results", f"{batch.results}: {error.strerror}", expected)
            raise ConfigError("command line", (problem,)) from error


def _run_all(jobs: Sequence[_Job], batch: Batch, report: Callable[[int, int, float], None]) -> list[View]:
    known = {} if batch.results is None else _finished(batch.results)
    names = [_name(job) for job in jobs]
    views = {number: known[name] for number, name in enumerate(names) if name in known}
    context = get_context("spawn")
    parts = context.Array("d", len(jobs))
    for number in views:
        parts[number] = 1.0
    processes = batch.processes or len(os.sched_getaffinity(0))
    with ProcessPoolExecutor(processes, mp_context=context, initializer=_share, initargs=(parts,)) as pool:
        waiting: dict[Future[View], int] = {
            pool.submit(_run, number, job): number for number, job in enumerate(jobs) if number not in views
        }
        while waiting:
            done, _ = wait(waiting, _POLL_S, FIRST_COMPLETED)
            for future in done:
                number = waiting.pop(future)
                views[number] = future.result()
                if batch.results is not None:
                    text = json.dumps(views[number], indent=2) + "\n"
                    _write(batch.results / f"{names[number]}.json", text)
            report(len(views), len(jobs), sum(parts[:]) / len(jobs))
    return [views[number] for number in range(len(jobs))]


_parts: Any = None
"""In a process of the pool: which part of each run is over, shared with the parent."""


def _share(parts: Any) -> None:
    global _parts  # noqa: PLW0603 - how a pool hands something shared to its processes
    _parts = parts


def _run(number: int, job: _Job) -> View:
    run = ClusterRun(job.kinds, job.software(), job.scheduler, seed=job.seed, resync_s=job.resync_s)
    for part in run.play(job.pods):
        _parts[number] = part
    return {**job.label, **run_view(run)}


def _name(job: _Job) -> str:
    """By all that a run depends on."""
    kinds = [
        (kind.name, kind.count, kind.max_pods, dict(kind.resources), repr(kind.machine)) for kind in job.kinds
    ]
    inputs = (
        job.label,
        kinds,
        _digest(job.pods),
        job.flags,
        [str(path) for path in job.configs],
        job.resync_s,
    )
    configs = [path.read_bytes().hex() for path in job.configs if path.is_file()]
    digest = hashlib.sha256(json.dumps([inputs, configs], default=str).encode()).hexdigest()[:12]
    return f"{job.scheduler}-{job.label['engine']}-{digest}"


def _write(path: Path, text: str) -> None:
    """Whole or not at all: a batch may end at any time."""
    unfinished = path.with_name(f".{path.name}.unfinished")
    unfinished.write_text(text)
    unfinished.replace(path)


def _digest(pods: Sequence[TimedPod]) -> str:
    whole = hashlib.sha256()
    for pod in pods:
        whole.update(repr((pod.name, pod.arrives_s, pod.lasts_s, pod.shape)).encode())
    return whole.hexdigest()[:16]


def _finished(directory: Path) -> dict[str, View]:
    """The results in *directory* by name; what is no result is passed over."""
    found: dict[str, View] = {}
    for path in sorted(directory.glob("*-*.json")):
        try:
            view = json.loads(path.read_text())
        except (OSError, ValueError, RecursionError):
            continue
        if isinstance(view, dict) and all(column.split(".")[0] in view for column in _COLUMNS):
            found[path.stem] = view
    return found


_WIDTH, _NAMES, _VALUES, _ROW = 720, 250, 90, 22
_CSS: Final = (
    ":root{color-scheme:light dark}body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:60rem;"
    "padding:0 1rem}table{border-collapse:collapse;font-size:13px}th,td{padding:.3rem .6rem;text-align:right;"
    "border-bottom:1px solid #8884}th:first-child,td:first-child{text-align:left}div{overflow-x:auto}"
    "svg{max-width:100%;height:auto}"
)


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"


MEASURES: Final[Sequence[tuple[str, Callable[[View], float], Callable[[float], str]]]] = (
    ("refused by nodes", lambda run: run["refusedAtNode"], lambda value: f"{value:.0f}"),
    ("pods refused at least once", lambda run: run["podsRefused"], lambda value: f"{value:.0f}"),
    ("pods that waited for more than 10 min", lambda run: run["waitedLong"], lambda value: f"{value:.0f}"),
    ("pods that never started", lambda run: run["neverStarted"], lambda value: f"{value:.0f}"),
    ("pods placed less well than asked", lambda run: run["degraded"], lambda value: f"{value:.0f}"),
    ("NUMA nodes per pod", lambda run: run["meanWidth"], lambda value: f"{value:.2f}"),
    ("accesses to other NUMA nodes", lambda run: run["remoteShare"], _percent),
    ("mean distance", lambda run: run["meanDistance"], lambda value: f"{value:.1f}"),
    ("nodes found overcommitted", lambda run: run["overcommit"]["found"], lambda value: f"{value:.0f}"),
    ("memory that one NUMA node still has", lambda run: run["largestPods"]["memoryBytes"],
     lambda value: format_bytes(int(value))),
    ("writes to the API server", lambda run: run["writes"]["bindings"] + run["writes"]["topology"],
     lambda value: f"{value:.0f}"),
    ("writes in the busiest minute", lambda run: run["writes"]["busiestMinute"],
     lambda value: f"{value:.0f}"),
    ("decisions in a second of CPU time",
     lambda run: run["speed"]["decisions"] / max(run["speed"]["decidingSeconds"], 0.001),
     lambda value: f"{value:.0f}"),
)  # fmt: skip
"""What is compared: its name, where it is in a run, how it is written."""


def run_name(run: View) -> str:
    """Scheduler, engine and policy."""
    return ", ".join(part for part in (run["scheduler"], run["engine"], run["policy"]) if part)


def results_page(runs: Sequence[View]) -> str:
    """The page. Runs of different clusters or traces are in sections of their own."""
    sections: dict[tuple[Any, ...], list[View]] = {}
    for run in runs:
        key = tuple(run[name] for name in ("nodes", "cluster", "pods", "trace", "load", "seed", "version"))
        sections.setdefault(key, []).append(run)
    body = "".join(
        _section(key, found) for key, found in sorted(sections.items(), key=lambda one: (one[0][0], str(one)))
    )
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>bayplan: simulated clusters</title><style>{_CSS}{STYLE}</style>"
        f"<h1>Simulated clusters</h1>{body}</html>\n"
    )


def _section(key: tuple[Any, ...], runs: Sequence[View]) -> str:
    nodes, cluster, pods, trace, load, seed, version = key
    share = "as it is" if load is None else f"cut to {load} of the cluster"
    headings = "".join(element("th", plain(name)) for name in ("", *(name for name, _, _ in MEASURES)))
    rows = "".join(
        element(
            "tr",
            element("td", plain(run_name(run))),
            *(element("td", plain(show(value(run)))) for _, value, show in MEASURES),
        )
        for run in runs
    )
    pictures = "".join(
        element("h3", plain(name)) + _bars(name, [(run_name(run), value(run)) for run in runs], show)
        for name, value, show in MEASURES
    )
    return (
        element("h2", plain(f"{counted(nodes, 'node')}, {counted(pods, 'pod')}"))
        + element("p", plain(f"{cluster}. Trace {trace}, {share}; seed {seed}; bayplan {version}."))
        + element("div", element("table", element("tr", headings) + rows))
        + pictures
    )


def _bars(name: str, values: Sequence[tuple[str, float]], show: Callable[[float], str]) -> str:
    most = max((value for _, value in values), default=0) or 1
    span = _WIDTH - _NAMES - _VALUES
    drawn = []
    for row, (who, value) in enumerate(values):
        y = row * _ROW
        drawn += [
            text(_NAMES - 8, y + 15, fitting(who, _NAMES - 8, 12), anchor="end"),
            box(_NAMES, y + 3, span, _ROW - 6, "free", radius=2),
            box(_NAMES, y + 3, span * value / most, _ROW - 6, "c0", f"{who}: {show(value)}", radius=2),
            text(_WIDTH - _VALUES + 8, y + 15, show(value)),
        ]
    height = _ROW * len(values)
    return element("svg", *drawn, class_="map", viewBox=f"0 0 {_WIDTH} {height}", role="img", aria_label=name)
