"""QEMU's machine protocol (QMP): one JSON object per line, over a socket pair whose other end QEMU holds."""

import json
import socket
from typing import Any

from testbed.channel import LIMIT_S
from testbed.errors import GuestError


class Monitor:
    """Commands one after the other; what QEMU tells unasked is passed over."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(LIMIT_S)
        self._connection = connection
        self._lines = connection.makefile("rb")

    def negotiate(self) -> None:
        """Take QEMU's greeting; before it no command is served."""
        self._read()
        self("qmp_capabilities")

    def __call__(self, command: str, **arguments: object) -> Any:
        """What QEMU answers. Raises GuestError when it refuses, is gone or does not answer."""
        request = {"execute": command, "arguments": arguments}
        try:
            self._connection.sendall(json.dumps(request).encode() + b"\n")
            while True:
                answer = self._read()
                if "error" in answer:
                    raise GuestError(f"QEMU refused `{command}`: {answer['error']['desc']}")
                if "return" in answer:
                    return answer["return"]
        except OSError as error:
            raise GuestError(f"QEMU did not answer `{command}`: {error}") from error

    def close(self) -> None:
        self._lines.close()
        self._connection.close()

    def _read(self) -> dict[str, Any]:
        line = self._lines.readline()
        if not line:
            raise ConnectionError("its monitor is closed")
        answer: dict[str, Any] = json.loads(line)
        return answer
