"""The sizes of one pod on a command line, as the manifest that they stand for."""

import argparse
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from bayplan.admin_protocol import MAX_PODS
from bayplan.errors import ConfigError, ParseError, Problem, excerpt
from bayplan.quantity import parse_bytes, parse_milli_cpus, whole_number

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
