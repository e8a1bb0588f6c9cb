"""The daemon's process: what systemd is told of it (sd_notify(3)), and what the kernel does with it.

A notification does nothing where systemd did not ask for it. A notification never waits and never fails: it
is advice.
"""

import logging
import os
import resource
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple, Self

from bayplan.admin import agent_server
from bayplan.admin import server as admin_server
from bayplan.errors import ConfigError, Problem
from bayplan.oci import protocol as oci_server
from bayplan.quantity import US_PER_S, whole_number

logger = logging.getLogger(__name__)

OOM_SCORE_ADJ: Final = -998
"""As in the systemd unit: between kubelet and runtimes, which take -999, and Guaranteed containers."""

NEEDED_FILES: Final = admin_server.MAX_CLIENTS + agent_server.MAX_CLIENTS + oci_server.MAX_CLIENTS + 128
"""Open files: all clients of the three sockets, and what the daemon opens itself, some 30 at a time."""


WATCHED_FILES: Final = 1280
"""Enough for some 300 containers, which need not be compared every ten seconds (`bayplan.control.verify`),
nor be looked for (`bayplan.host.container_processes`). The kernel keeps a page for each."""


class SpareFiles(NamedTuple):
    """How many files may be kept open, and for what. ``agreement``: three of a container, to see whether it
    still agrees with the ledger. ``occupancy``: one of a container, to see whether it has a process."""

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


class Notifier:
    """Notifies the service manager at *address* (NOTIFY_SOCKET); with None it does nothing.

    ``watchdog_interval_s`` is how often `watchdog` should be called, half of what systemd allows; None when
    it does not watch this process.
    """

    def __init__(self, address: str | None, watchdog_interval_s: float | None = None) -> None:
        self._address = address
        self.watchdog_interval_s = watchdog_interval_s

    @classmethod
    def of(cls, environ: Mapping[str, str] | None = None) -> Self:
        """The notifier that the environment asks for."""
        environ = os.environ if environ is None else environ
        address = environ.get("NOTIFY_SOCKET") or None
        if address is not None and address[0] not in "/@":
            logger.warning("NOTIFY_SOCKET is of an unknown kind", extra={"address": address})
            address = None
        return cls(address, _watchdog_interval_s(environ) if address else None)

    def ready(self) -> None:
        """Say that start-up, or a reload, is complete."""
        self._send("READY=1")

    def reloading(self) -> None:
        """Say that a reload begins; `ready` ends it."""
        self._send(f"RELOADING=1\nMONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")

    def stopping(self) -> None:
        """Say that the end begins."""
        self._send("STOPPING=1")

    def watchdog(self) -> None:
        """Say that the daemon is alive."""
        self._send("WATCHDOG=1")

    def status(self, text: str) -> None:
        """Set the line that ``systemctl status`` shows."""
        self._send(f"STATUS={' '.join(text.split())}")

    def _send(self, message: str) -> None:
        if self._address is None:
            return
        address = "\0" + self._address[1:] if self._address[0] == "@" else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as notify:
                notify.sendto(message.encode(), socket.MSG_DONTWAIT, address)
        except OSError as error:
            logger.debug("systemd was not notified", extra={"problem": str(error), "message_sent": message})


def _watchdog_interval_s(environ: Mapping[str, str]) -> float | None:
    limit_us, own = whole_number(environ.get("WATCHDOG_USEC", "")), str(os.getpid())
    if not limit_us or environ.get("WATCHDOG_PID", own) != own:
        return None
    return limit_us / US_PER_S / 2
