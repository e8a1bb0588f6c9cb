"""What the kernel does with the daemon's process: room for its clients, and who is killed before it."""

import logging
import resource
from pathlib import Path
from typing import Final, NamedTuple

from bayplan.admin import agent_server
from bayplan.admin import server as admin_server
from bayplan.errors import ConfigError, Problem
from bayplan.oci import server as oci_server

logger = logging.getLogger(__name__)

OOM_SCORE_ADJ: Final = -998
"""As in the systemd unit: between kubelet and runtimes, which take -999, and Guaranteed containers."""

NEEDED_FILES: Final = admin_server.MAX_CLIENTS + agent_server.MAX_CLIENTS + oci_server.MAX_CLIENTS + 128
"""Open files: all clients of the three sockets, and what the daemon opens itself, some 30 at a time."""


WATCHED_FILES: Final = 1280
"""Enough for some 300 containers, which need not be compared every ten seconds (`bayplan.control.agreement`),
nor be looked for (`bayplan.host.container_processes`). The kernel keeps a page for each."""


class SpareFiles(NamedTuple):
    """How many files may be kept open by whom: three of a container for its agreement with the ledger, one to
    see whether it has a process."""

    agreement: int
    occupancy: int


def raise_file_limit() -> None:
    """Have as many open files allowed as are needed and watched, as far as they are not yet.

    Raises:
        ConfigError: that is not for us to allow.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = NEEDED_FILES + WATCHED_FILES
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    if hard != resource.RLIM_INFINITY and hard < NEEDED_FILES:
        expected = f"at least {NEEDED_FILES} (LimitNOFILE= of a systemd unit, ulimit -n of a shell)"
        raise ConfigError("limits of this process", (Problem("open files", f"at most {hard}", expected),))
    wanted = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))


def spare_files() -> SpareFiles:
    """What is left of the files that may be open beside those that are needed, shared out."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    left = WATCHED_FILES if soft == resource.RLIM_INFINITY else min(WATCHED_FILES, soft - NEEDED_FILES)
    return SpareFiles(left - left // 4, left // 4)


def protect(root: Path = Path("/")) -> None:
    """Have the kernel kill others first when memory runs out, unless somebody (systemd, the runtime that
    started this program) chose otherwise: 0 is what nobody chose. It is logged where it is not allowed."""
    path = root / "proc/self/oom_score_adj"
    try:
        if path.read_text().strip() == "0":
            path.write_text(str(OOM_SCORE_ADJ))
    except OSError as error:
        logger.warning("not protected from being killed when memory runs out", extra={"problem": str(error)})
