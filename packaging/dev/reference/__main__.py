"""``python -m reference ROOT`` writes all that is made from the code below ROOT, the source tree: man pages,
completions, the page of metrics and the pictures. `make reference` runs it.

shtab makes the completions from the parser of bayplan. What the daemon knows, names of containers and
namespaces, is asked from it at the moment of completion.
"""

import argparse
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

import shtab

from bayplan import __version__
from bayplan.agent import command_line as agent
from bayplan.cli import kubectl_bayplan
from bayplan.cli.bayplan import EXIT_STATUSES, build_parser
from bayplan.config import keys
from bayplan.errors import EXIT_CONFIG, EXIT_FAILURE, EXIT_UNAVAILABLE
from reference import import_map, kernel_files
from reference.machines import machine_pages
from reference.man_pages import command_of, man_page
from reference.metrics_page import page
from reference.pictures import pictures

_CONTAINERS: Final = shtab.cmd("bayplan status -o name 2>/dev/null")
_NAMESPACES: Final = shtab.cmd("bayplan status -o name 2>/dev/null | cut -d/ -f1 | sort -u")
_COMPLETIONS: Final = {
    "bash": "packaging/completions/{}.bash",
    "zsh": "packaging/completions/_{}",
    "fish": "packaging/completions/{}.fish",
}

_DAEMON_STATUSES: Final = {
    0: "it was asked to end, or the runtime that launched it is gone",
    EXIT_FAILURE: "it cannot run here; standard error says why",
    EXIT_CONFIG: "a flag or a file is wrong; to start it again does not help",
    EXIT_UNAVAILABLE: "another one runs already",
}

_CLUSTER_STATUSES: Final = {
    0: "all nodes answered",
    EXIT_FAILURE: "no node knows the name, or the answer could not be written",
    EXIT_CONFIG: "wrong usage",
    EXIT_UNAVAILABLE: "a node did not answer, and the others are shown, or none could be asked",
}

_AGENT_STATUSES: Final = {
    0: "it was asked to end",
    EXIT_FAILURE: "it cannot run here; its log says why",
    EXIT_CONFIG: "a flag or a file is wrong; to start it again does not help",
}


def reference() -> dict[str, str]:
    """Every file, by its path in the source tree."""
    bayplan, baypland = command_of(build_parser()), command_of(keys.build_parser())
    return {
        "docs/man/bayplan.1": man_page(
            bayplan, 1, __version__, EXIT_STATUSES, ["baypland(8)", "bayplan-agent(8)"]
        ),
        "docs/man/kubectl-bayplan.1": man_page(
            replace(command_of(kubectl_bayplan.build_parser()), name="kubectl-bayplan"),
            1,
            __version__,
            _CLUSTER_STATUSES,
            ["bayplan(1)", "kubectl(1)"],
        ),
        "docs/man/baypland.8": man_page(
            baypland, 8, __version__, _DAEMON_STATUSES, ["bayplan(1)", "bayplan-agent(8)"]
        ),
        "docs/man/bayplan-agent.8": man_page(
            command_of(agent.build_parser()), 8, __version__, _AGENT_STATUSES, ["bayplan(1)", "baypland(8)"]
        ),
        **completions(),
    }


def completions() -> dict[str, str]:
    """The files of each command, by their paths in the source tree."""
    parsers = {
        "bayplan": build_parser(),
        "baypland": keys.build_parser(),
        "bayplan-agent": agent.build_parser(),
        "kubectl-bayplan": kubectl_bayplan.build_parser(),
    }
    for name, parser in parsers.items():
        parser.prog = name  # kubectl's plugins are called by two words, and completed by one.
        _complete_values(parser)
    return {
        path.format(name): shtab.complete(parser, shell)
        for name, parser in parsers.items()
        for shell, path in _COMPLETIONS.items()
    }


def _complete_values(parser: argparse.ArgumentParser) -> None:
    for action in _actions(parser):
        if action.type is Path or action.metavar in ("FILE", "PATH", "DIR"):
            _complete_with(action, shtab.FILE)
        elif action.dest == "subject":
            _complete_with(action, _CONTAINERS)
        elif action.dest == "namespace":
            _complete_with(action, _NAMESPACES)


def _complete_with(action: argparse.Action, words: object) -> None:
    action.complete = words  # type: ignore[attr-defined]  # what shtab reads, argparse does not know


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """The options and operands of *parser* and of the commands below it."""
    for action in parser._actions:  # noqa: SLF001 - argparse has no other way
        yield action
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001 - argparse has no other way
            for below in action.choices.values():
                yield from _actions(below)


def _pages() -> dict[str, str]:
    return {
        "docs/metrics.md": page(),
        import_map.PICTURE: import_map.picture(),
        kernel_files.PAGE: kernel_files.page(),
        **machine_pages(),
    }


if __name__ == "__main__":
    for path, text in (reference() | pictures() | _pages()).items():
        Path(sys.argv[1], path).write_text(text)
