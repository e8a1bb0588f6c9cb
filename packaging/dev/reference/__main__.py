"""``python -m bayplan.cli.reference ROOT`` writes all man pages, completions and pictures below ROOT, the
source tree."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Final

from bayplan import __version__
from bayplan.agent import command_line as agent
from bayplan.cli import kubectl_bayplan
from bayplan.cli.main import EXIT_STATUSES, build_parser
from bayplan.cli.reference.commands import command_of
from bayplan.cli.reference.completions import bash, fish, zsh
from bayplan.cli.reference.man_pages import man_page
from bayplan.cli.reference.pictures import pictures
from bayplan.config import flags
from bayplan.errors import EXIT_CONFIG, EXIT_FAILURE, EXIT_UNAVAILABLE

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
    bayplan, baypland = command_of(build_parser()), command_of(flags.build_parser())
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
        "packaging/completions/bayplan.bash": bash(bayplan),
        "packaging/completions/_bayplan": zsh(bayplan),
        "packaging/completions/bayplan.fish": fish(bayplan),
    }


if __name__ == "__main__":
    for path, text in (reference() | pictures()).items():
        Path(sys.argv[1], path).write_text(text)
