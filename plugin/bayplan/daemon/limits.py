"""The limits that the kernel sets for the daemon's process: whether they leave room for its clients."""

import resource
from typing import Final

from bayplan.admin import server as admin_server
from bayplan.errors import ConfigError, Problem
from bayplan.oci import server as oci_server

NEEDED_FILES: Final = admin_server.MAX_CLIENTS + oci_server.MAX_CLIENTS + 128
"""Open files: all clients of both sockets, and what the daemon opens itself, some 30 at a time."""


def raise_file_limit() -> None:
    """Have as many open files allowed as are needed, if they are not yet.

    Raises:
        ConfigError: that is not for us to allow.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= NEEDED_FILES:
        return
    if hard != resource.RLIM_INFINITY and hard < NEEDED_FILES:
        expected = f"at least {NEEDED_FILES} (LimitNOFILE= of a systemd unit, ulimit -n of a shell)"
        raise ConfigError("limits of this process", (Problem("open files", f"at most {hard}", expected),))
    resource.setrlimit(resource.RLIMIT_NOFILE, (NEEDED_FILES, hard))
