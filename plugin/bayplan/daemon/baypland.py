"""Where baypland starts: flags, files, logs, then the daemon.

Errors end here, as one message without a traceback and the exit status of their category.
"""

import gc
import logging
import signal
import sys
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Final

from bayplan import logs
from bayplan.config.keys import build_parser, given_flags
from bayplan.config.reservations import remarks_here, resolve_policy, wrong_here
from bayplan.config.settings import Settings
from bayplan.daemon import without
from bayplan.daemon.configuration import PATIENCE_S, Configuration, read_within
from bayplan.errors import BayplanError, HostError, Problem
from bayplan.host.kubelet_program import LIMIT_S
from bayplan.model.memory_kinds import with_owners
from bayplan.printable import printable_lines
from bayplan.quantity import format_bytes
from bayplan.sets import nodes_text
from bayplan.standard_streams import make_writable, write_answer, write_error

logger = logging.getLogger(__name__)

_PROGRAM: Final = "baypland"


def main(argv: Sequence[str] | None = None) -> int:
    """Run baypland with *argv* (the command line without the program's name); its exit status."""
    make_writable()
    arguments = build_parser().parse_args(argv)
    try:
        # A check of the configuration is in no hurry.
        patience_s = LIMIT_S if arguments.check_config else PATIENCE_S
        configuration = Configuration(
            arguments.config, given_flags(arguments), wrong_on_this_machine, patience_s=patience_s
        )
        settings = read_within(configuration.read)
        if arguments.check_config:
            findings = check(settings)
            return write_answer(_PROGRAM, lambda stream: stream.write(printable_lines(findings)))
    except BayplanError as error:
        write_error(f"{_PROGRAM}: {printable_lines(str(error))}\n")
        return error.exit_code
    return _run(settings, configuration)


def check(settings: Settings, root: Path = Path("/")) -> str:
    """What *settings* come to on the machine below *root*, as text for people.

    Raises:
        ConfigError: the machine does not have what they name.
        HostError: the machine can't be read.
    """
    from bayplan.host.sysfs import read_machine  # noqa: PLC0415 - --help and wrong flags do without it

    machine = with_owners(read_machine(root), settings.device_memory)
    policy = resolve_policy(settings, machine)
    lines = [f"The configuration is good. Read: {', '.join(settings.sources) or 'no files'}."]
    remarks = (*settings.remarks, *remarks_here(settings, machine))
    lines += [f"Note: {remark}." for remark in remarks]
    lines += [
        f"Engine {settings.engine}, policy {policy.topology.value} on NUMA {nodes_text(machine.node_ids)}."
    ]
    if settings.kubelet_known_by:
        lines.append(f"Rules of kubelet {settings.kubelet_rules}, by {settings.kubelet_known_by}.")
    for node, resources in sorted(policy.reserved_bytes.items()):
        kept = [f"{format_bytes(amount)} {resource}" for resource, amount in sorted(resources.items())]
        lines.append(f"Node {node} keeps {', '.join(kept)} from containers.")
    return "".join(f"{line}\n" for line in lines)


def wrong_on_this_machine(
    settings: Settings, unread: Collection[str], root: Path = Path("/")
) -> tuple[Problem, ...]:
    """What is wrong with *settings* on the machine below *root*, beside *unread*; nothing if that can't be
    read."""
    from bayplan.host.sysfs import read_machine  # noqa: PLC0415 - good settings do without it here

    try:
        machine = with_owners(read_machine(root), settings.device_memory)
    except HostError:
        return ()
    return tuple(wrong_here(settings, machine, unread))


def load() -> Callable[[Settings, Configuration], int]:
    """The function that serves. It is loaded only here: it brings asyncio, protobuf and SQLite."""
    with without("ssl"):
        import asyncio  # noqa: F401, PLC0415 - see bayplan.daemon
    from bayplan.daemon.app import run  # noqa: PLC0415 - see above

    return run


def _run(settings: Settings, configuration: Configuration) -> int:
    # Until the daemon listens for it: what it is to read again was read just now.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    # Until it serves: what modules make stays, and to look for cycles in it takes a tenth of a start.
    gc.disable()

    def serve() -> int:
        run = load()
        for remark in settings.remarks:
            logger.warning(remark)
        return run(settings, configuration)

    try:
        return logs.exit_status(settings.log_level, settings.log_format, serve)
    finally:
        gc.enable()


if __name__ == "__main__":
    sys.exit(main())
