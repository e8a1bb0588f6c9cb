"""`bayplan what-if`: what would become of a pod if it came now, to this node or to a machine from a file.
Nothing is changed.
"""

import argparse
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from bayplan.admin_protocol import MAX_PODS
from bayplan.cli.client import ask
from bayplan.cli.decisions import decision_blocks
from bayplan.cli.layout import Block, Column, Table, amounts_to_type
from bayplan.errors import ConfigError, ParseError, Problem, excerpt
from bayplan.quantity import counted, first_of_many, parse_bytes, parse_milli_cpus, whole_number
from bayplan.sets import CpuSet, cpus_text
from bayplan.views.attention import why

_QOS: Final = {name.lower(): name for name in ("Guaranteed", "Burstable", "BestEffort")}


def add_size_arguments(parser: argparse.ArgumentParser) -> None:
    """The options; none of them has a default, which shows whether any was given."""
    group = parser.add_argument_group("the sizes of a pod with one container, instead of a manifest")
    group.add_argument("--name", metavar="NAME", help="POD or NAMESPACE/POD[/CONTAINER] (default: pod)")
    group.add_argument("--memory", metavar="AMOUNT", help="memory request, like 4Gi")
    group.add_argument("--memory-limit", metavar="AMOUNT", help="memory limit, where it is another one")
    group.add_argument("--cpus", metavar="NUMBER", help="CPU request, like 2 or 500m")
    group.add_argument(
        "--hugepages",
        metavar="SIZE=AMOUNT",
        action="append",
        help="huge pages, like 2Mi=64Mi; repeatable",
    )
    group.add_argument(
        "--qos",
        type=str.lower,
        choices=_QOS,
        metavar="CLASS",
        help=f"{', '.join(_QOS.values())} (default: Guaranteed with --memory and --cpus, else what the "
        "manifest would be)",
    )
    group.add_argument(
        "--annotation", metavar="KEY=VALUE", action="append", help="an annotation of the pod; repeatable"
    )
    group.add_argument("--count", type=_count, default=1, metavar="N", help="so many, one after the other")


def manifest_of_sizes(arguments: argparse.Namespace) -> dict[str, Any] | None:
    """The manifest; None if no size was given.

    Raises:
        ConfigError: options are not what they should be; all of them are named.
    """
    # The command starts with this module for every verb.
    from bayplan.simulate.manifest import sizes_manifest  # noqa: PLC0415 - other verbs need no engines

    given = (arguments.memory, arguments.memory_limit, arguments.cpus, arguments.hugepages, arguments.qos)
    if all(one is None for one in given):
        return None
    amounts = (
        ("--memory", arguments.memory, parse_bytes),
        ("--memory-limit", arguments.memory_limit, parse_bytes),
        ("--cpus", arguments.cpus, parse_milli_cpus),
    )
    problems = [*_problems(amounts)]
    hugepages = _pairs("--hugepages", arguments.hugepages, "SIZE=AMOUNT, like 2Mi=64Mi", problems)
    for size, amount in hugepages.items():
        pages = (("--hugepages: SIZE", size, _page_size), ("--hugepages: AMOUNT", amount, parse_bytes))
        problems += _problems(pages)
    annotations = _pairs("--annotation", arguments.annotation, "KEY=VALUE", problems)
    if problems:
        raise ConfigError("command line", tuple(problems))
    return sizes_manifest(
        arguments.name or "pod",
        memory=arguments.memory,
        memory_limit=arguments.memory_limit,
        cpus=arguments.cpus,
        hugepages=hugepages,
        qos=_QOS[arguments.qos] if arguments.qos else None,
        annotations=annotations,
    )


def numbered(manifest: dict[str, Any], count: int) -> list[dict[str, Any]]:
    """*manifest* so many times; several have a number behind the pod's name, so that a shortage names the one
    that is in the way."""
    if count == 1:
        return [manifest]
    metadata = manifest["metadata"]
    return [
        {**manifest, "metadata": {**metadata, "name": f"{metadata['name']}-{number}"}}
        for number in range(1, count + 1)
    ]


def _count(text: str) -> int:
    count = whole_number(text)
    if count is None or not 1 <= count <= MAX_PODS:
        raise argparse.ArgumentTypeError(f"found {excerpt(text)!r}, expected a number from 1 to {MAX_PODS}")
    return count


def _problems(amounts: Iterable[tuple[str, str | None, Callable[[str], int]]]) -> Iterator[Problem]:
    """What is wrong with options, each with its text, if it was given, and its parser."""
    for option, text, parse in amounts:
        try:
            if text is not None:
                parse(text)
        except ParseError as error:
            yield Problem(option, repr(excerpt(error.found)), error.expected)


def _page_size(text: str) -> int:
    size_bytes = parse_bytes(text)
    if not size_bytes:
        raise ParseError("huge page size", text, "a size such as 2Mi or 1Gi")
    return size_bytes


def _pairs(
    option: str, texts: Sequence[str] | None, expected: str, problems: list[Problem]
) -> dict[str, str]:
    """The pairs in *texts*; those that are none become *problems*."""
    pairs = {}
    for text in texts or ():
        key, _, value = text.partition("=")
        if key and value:
            pairs[key] = value
        else:
            problems.append(Problem(option, repr(excerpt(text)), expected))
    return pairs


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
    from bayplan.config.yaml_text import read_manifests  # noqa: PLC0415 - PyYAML costs other verbs 20 ms

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
    unmatched = (*view.get("unmatchedCpuRules", ()), *view.get("unmatchedCpuPools", ()))
    remarks = [f"{remark}." for remark in (*view.get("remarks", ()), *unmatched)]
    caches = _l3_caches(view.get("l3Caches"))
    return [*shown, "The largest Guaranteed container that fits on one node:", fitting, *caches, *remarks]


def _l3_caches(caches: dict[str, Any] | None) -> list[Block]:
    """Which L3 caches are free as a whole then, or what would have to go so that one is."""
    if not caches or not (caches["free"] or caches["nearest"]):
        return []
    if caches["free"]:
        count = counted(len(caches["free"]), "whole L3 cache")
        which = first_of_many(caches["free"])
        return [f"Then {count} would be nobody's, by their CPUs: {which}."]
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
