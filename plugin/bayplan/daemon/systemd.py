"""systemd's notification protocol (sd_notify(3)): ready, stopping, watchdog, a line of status.

Does nothing where systemd did not ask for it. A notification never waits and never fails: it is advice.
"""

import logging
import os
import socket
import time
from collections.abc import Mapping
from typing import Self

from bayplan.quantity import US_PER_S, whole_number

logger = logging.getLogger(__name__)


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
        """Start-up, or a reload, is complete."""
        self._send("READY=1")

    def reloading(self) -> None:
        """A reload begins; `ready` ends it."""
        self._send(f"RELOADING=1\nMONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")

    def stopping(self) -> None:
        """The end begins."""
        self._send("STOPPING=1")

    def watchdog(self) -> None:
        """The daemon is alive."""
        self._send("WATCHDOG=1")

    def status(self, text: str) -> None:
        """A line for ``systemctl status``."""
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
