"""The results of cluster simulations as one page of HTML: a table, and a picture of bars for each measure.

Pure; nothing outside the page is needed to show it.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

from bayplan.drawing.svg import STYLE, box, element, fitting, plain, text
from bayplan.quantity import counted, format_bytes

View = dict[str, Any]

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
    ("writes to the API server", lambda run: sum(run["writes"].values()), lambda value: f"{value:.0f}"),
)  # fmt: skip
"""What is compared: its name, where it is in a run, how it is written."""


def run_name(run: View) -> str:
    """Scheduler, engine and policy."""
    return ", ".join(part for part in (run["scheduler"], run["engine"], run["policy"]) if part)


def results_page(runs: Sequence[View]) -> str:
    """The page. Runs of different clusters or traces are in sections of their own."""
    sections: dict[tuple[Any, ...], list[View]] = {}
    for run in runs:
        sections.setdefault((run["nodes"], run["pods"], run["trace"], run["load"], run["seed"]), []).append(
            run
        )
    body = "".join(
        _section(key, found) for key, found in sorted(sections.items(), key=lambda one: str(one[0]))
    )
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>bayplan: simulated clusters</title><style>{_CSS}{STYLE}</style>"
        f"<h1>Simulated clusters</h1>{body}</html>\n"
    )


def _section(key: tuple[Any, ...], runs: Sequence[View]) -> str:
    nodes, pods, trace, load, seed = key
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
        + element("p", plain(f"Trace {trace}, {share}; seed {seed}; bayplan {runs[0]['version']}."))
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
