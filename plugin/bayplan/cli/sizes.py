"""The sizes of one pod on a command line, as the manifest that they stand for."""

import argparse
from collections.abc import Sequence
from typing import Any, Final

from bayplan.errors import ConfigError, Problem, excerpt
from bayplan.quantity import whole_number
from bayplan.service.protocol import MAX_PODS

_QOS: Final = {name.lower(): name for name in ("Guaranteed", "Burstable", "BestEffort")}


def add_size_arguments(parser: argparse.ArgumentParser) -> None:
    """The options; none of them has a default, so that one can tell whether any was given."""
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
        ConfigError: an option is not what it should be.
    """
    # The command starts with this module for every verb.
    from bayplan.domain.manifest import sizes_manifest  # noqa: PLC0415

    given = (arguments.memory, arguments.memory_limit, arguments.cpus, arguments.hugepages, arguments.qos)
    if not any(given):
        return None
    return sizes_manifest(
        arguments.name or "pod",
        memory=arguments.memory,
        memory_limit=arguments.memory_limit,
        cpus=arguments.cpus,
        hugepages=_pairs("--hugepages", arguments.hugepages, "SIZE=AMOUNT, like 2Mi=64Mi"),
        qos=_QOS[arguments.qos] if arguments.qos else None,
        annotations=_pairs("--annotation", arguments.annotation, "KEY=VALUE"),
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


def _pairs(option: str, texts: Sequence[str] | None, expected: str) -> dict[str, str]:
    pairs = [text.partition("=") for text in texts or ()]
    problems = tuple(
        Problem(option, repr("".join(pair)), expected) for pair in pairs if not (pair[0] and pair[1])
    )
    if problems:
        raise ConfigError("command line", problems)
    return {key: value for key, _, value in pairs}
