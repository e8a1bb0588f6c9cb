"""`bayplan what-if`: what would become of a pod if it came now, to this node or to a machine from a file.

Nothing is changed.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from bayplan.cli.client import ask
from bayplan.cli.decision_text import decision_blocks
from bayplan.cli.sizes import add_size_arguments, manifest_of_sizes, numbered
from bayplan.cli.table_layout import Block, Column, Table
from bayplan.cli.texts import amounts_to_type
from bayplan.errors import ConfigError, Problem
from bayplan.quantity import counted
from bayplan.sets import CpuSet, cpus_text
from bayplan.views.attention import why

VERB: Final = "what-if"
HELP: Final = "say what would become of a pod if it came now; nothing is changed"

_PODS: Final = (
    Column("POD"),
    Column("OUTCOME"),
    Column("NODES"),
    Column("CPUS", rank=1),
    Column("WHY", rank=2),
)
_LARGEST: Final = (
    Column("NODE", number=True),
    Column("MEMORY NOW", number=True),
    Column("CPUS NOW", number=True),
    Column("MEMORY THEN", number=True),
    Column("CPUS THEN", number=True),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Manifests, or the sizes of one pod."""
    parser.add_argument(
        "manifests",
        nargs="*",
        metavar="FILE",
        help="pod manifests in YAML or JSON, in order; - is stdin",
    )
    parser.add_argument(
        "--topology",
        type=Path,
        metavar="PATH",
        help="ask about an empty machine from a file, in any form that simulate takes; needs no daemon",
    )
    parser.add_argument(
        "--config",
        action="append",
        type=Path,
        default=[],
        metavar="PATH",
        help="with --topology: a file that baypland would read",
    )
    add_size_arguments(parser)


def answer(arguments: argparse.Namespace) -> dict[str, Any]:
    """The daemon's answer.

    Raises:
        ConfigError: a file or a size is wrong, or there is neither.
    """
    from bayplan.cli.manifest_files import read_manifests  # noqa: PLC0415 - PyYAML costs other verbs 20 ms

    pods = [one for path in arguments.manifests for one in read_manifests(path)]
    sizes = manifest_of_sizes(arguments)
    pods += numbered(sizes, arguments.count) if sizes is not None else []
    if not pods:
        problem = Problem("pods", "none", "a manifest, or sizes such as --memory 4Gi --cpus 2")
        raise ConfigError("what-if", (problem,))
    if arguments.topology is not None:
        from bayplan.admin.questions import what_if_described  # noqa: PLC0415 - a daemon has an engine

        return what_if_described(arguments.topology, arguments.config, pods)
    if arguments.config:
        raise ConfigError("what-if", (Problem("--config", str(arguments.config[0]), "--topology with it"),))
    return ask(arguments.admin_socket, VERB, pods=pods)


def blocks(view: dict[str, Any]) -> list[Block]:
    """The answer for people: a row for each pod, the first refusal in full, and what fits on each node."""
    pods = view["pods"]
    if len(pods) == 1:
        shown = [block for container in pods[0]["containers"] for block in decision_blocks(container)]
    else:
        admitted = sum(pod["admitted"] for pod in pods)
        shown = [
            Table(_PODS, tuple(_reasons_once([_pod_row(pod) for pod in pods]))),
            f"{admitted} of {counted(len(pods), 'pod')} would be placed.",
            *_first_refusal(pods),
        ]
    fitting = _largest(view["nodesBefore"], view["nodes"])
    remarks = [f"{remark}." for remark in view.get("remarks", ())]
    caches = _l3_caches(view.get("l3Caches"))
    return [*shown, "The largest Guaranteed container that fits on one node:", fitting, *caches, *remarks]


def _l3_caches(caches: dict[str, Any] | None) -> list[Block]:
    """Which L3 caches are free as a whole then, or what would have to go so that one is."""
    if not caches or not (caches["free"] or caches["nearest"]):
        return []
    if caches["free"]:
        count = counted(len(caches["free"]), "whole L3 cache")
        return [f"Then {count} would be nobody's, by their CPUs: {'; '.join(caches['free'])}."]
    nearest = caches["nearest"]
    names, cpus = ", ".join(nearest["containers"]), cpus_text(CpuSet.parse(nearest["cpus"]))
    return [f"Then no whole L3 cache would be free; {cpus} would be one without {names}."]


def _pod_row(pod: dict[str, Any]) -> tuple[str, ...]:
    refused = [one for one in pod["containers"] if one["outcome"] == "refused"]
    if refused:
        return pod["name"], "refused", "-", "-", why(refused[0]["reasons"])
    degraded = [one for one in pod["containers"] if one["outcome"] == "degraded"]
    placements = [one["placement"] for one in pod["containers"]]
    return (
        pod["name"],
        "degraded" if degraded else "fits",
        "; ".join(dict.fromkeys(one["mems"] or "any" for one in placements)),
        "; ".join(one["exclusiveCpus"] or "shared" for one in placements),
        why((degraded or pod["containers"])[0]["reasons"]),
    )


def _reasons_once(rows: list[tuple[str, ...]]) -> Iterator[tuple[str, ...]]:
    """*rows* with a reference in place of a reason that stands above."""
    first: dict[str, str] = {}
    for name, *cells, reason in rows:
        above = first.setdefault(reason, name)
        yield (name, *cells, reason if above == name else f"as {above}")


def _first_refusal(pods: list[dict[str, Any]]) -> list[Block]:
    """In full; those of the others mostly say the same."""
    for pod in pods:
        for container in pod["containers"]:
            if container["outcome"] == "refused":
                return decision_blocks(container)
    return []


def _largest(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> Table:
    """What fits on each node, now and then; all amounts in one unit, which can be typed."""
    pairs = [(now["largest"], then["largest"]) for now, then in zip(before, after, strict=True)]
    sizes = iter(amounts_to_type([one["memoryBytes"] for pair in pairs for one in pair]))
    cells = [[text for one in pair for text in (next(sizes), str(one["cpus"]))] for pair in pairs]
    return Table(_LARGEST, tuple((str(node["id"]), *row) for node, row in zip(before, cells, strict=True)))
