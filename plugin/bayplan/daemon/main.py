"""Where baypland starts: flags, files, logs, then the daemon.

Errors end here, as one message without a traceback and the exit status of their category.
"""

import argparse
import logging
import os
import signal
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Final

from bayplan import logs
from bayplan.config.eviction import remarks_here
from bayplan.config.flags import build_parser, given_flags
from bayplan.config.load import read_contents, settings_of
from bayplan.config.reservations import resolve_policy, wrong_here
from bayplan.config.settings import Settings
from bayplan.control.reading import read_within
from bayplan.errors import EXIT_FAILURE, BayplanError, HostError, Problem
from bayplan.host.kubelet_program import KubeletVersion, kubelet_of_node
from bayplan.model.memory_kinds import with_owners
from bayplan.printable import printable_lines
from bayplan.quantity import format_bytes
from bayplan.standard_streams import make_writable, write_answer, write_error

logger = logging.getLogger(__name__)

_PROGRAM: Final = "baypland"
_CLUSTER_VERSION: Final = "BAYPLAN_CLUSTER_VERSION"
"""In the environment: the version of the API server, which the Helm chart knows."""
_BY_NODE: Final = "status.nodeInfo.kubeletVersion of the node, from bayplan-agent"


def main(argv: Sequence[str] | None = None) -> int:
    """Run baypland with *argv* (the command line without the program's name); its exit status."""
    make_writable()
    arguments = build_parser().parse_args(argv)
    try:
        configuration = Configuration(arguments)
        settings = read_within(configuration.read)
        if arguments.check_config:
            findings = check(settings)
            return write_answer(_PROGRAM, lambda stream: stream.write(printable_lines(findings)))
    except BayplanError as error:
        write_error(f"{_PROGRAM}: {printable_lines(str(error))}\n")
        return error.exit_code
    return _run(settings, configuration)


class Configuration:
    """The files and flags of one command line, and what was found out about the node's kubelet.

    Settings are made of the files as they were read last, so that what was changed in a file counts from the
    reload on that was asked for, and not from when kubelet becomes another one.
    """

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._paths: Sequence[Path] = arguments.config
        self._flags = given_flags(arguments)
        self._node_says = ""

    def read(self) -> Settings:
        """The settings of the files as they are now. Raises ConfigError."""
        contents = read_contents(self._paths)
        settings = settings_of(contents, self._flags, wrong_on_this_machine, self._find_kubelet)
        self._contents = contents
        return settings

    def of_kubelet(self, version: str) -> Settings:
        """The settings of the same files beside the kubelet that the Node object names, from now on. Raises
        ConfigError; then it is remembered all the same."""
        self._node_says = version
        return settings_of(self._contents, self._flags, wrong_on_this_machine, self._find_kubelet)

    def _find_kubelet(self) -> KubeletVersion | None:
        if self._node_says:
            return KubeletVersion(self._node_says, _BY_NODE)
        found = kubelet_of_node()
        cluster = os.environ.get(_CLUSTER_VERSION)
        return KubeletVersion(cluster, _CLUSTER_VERSION) if found is None and cluster else found


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
    lines += [f"Engine {settings.engine}, policy {policy.topology.value} on NUMA nodes {machine.node_ids}."]
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


def _run(settings: Settings, configuration: Configuration) -> int:
    # Until the daemon listens for it: what it is to read again was read just now.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    handler = logs.start(settings.log_level, settings.log_format)
    try:
        from bayplan.daemon.app import run  # noqa: PLC0415 - it brings protobuf and SQLite

        for remark in settings.remarks:
            logger.warning(remark)
        return run(settings, configuration)
    except BayplanError as error:
        logger.critical("%s", error)
        return error.exit_code
    except Exception:
        logger.critical("this is a defect of bayplan; please report it", exc_info=True)
        return EXIT_FAILURE
    finally:
        handler.close()


if __name__ == "__main__":
    sys.exit(main())
