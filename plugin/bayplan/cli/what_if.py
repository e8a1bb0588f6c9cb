"""`bayplan what-if`: what would become of a pod if it came now. Nothing is changed."""

import argparse
from typing import Any, Final

from bayplan.cli.client import ask
from bayplan.cli.decision_text import decision_blocks
from bayplan.cli.render import Block
from bayplan.cli.sizes import add_size_arguments, manifest_of_sizes, numbered
from bayplan.errors import ConfigError, Problem

VERB: Final = "what-if"
HELP: Final = "say what would become of a pod if it came now; nothing is changed"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Manifests, or the sizes of one pod."""
    parser.add_argument(
        "manifests",
        nargs="*",
        metavar="FILE",
        help="pod manifests in YAML or JSON, in order; - is stdin",
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
    return ask(arguments.admin_socket, VERB, pods=pods)


def blocks(said: dict[str, Any]) -> list[Block]:
    """The answer for people, one container after the other."""
    return [
        block
        for pod in said["pods"]
        for container in pod["containers"]
        for block in decision_blocks(container)
    ]
