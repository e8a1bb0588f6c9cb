"""A running guest: run commands, keep services, read and write files in it. `machine.py` starts it."""

import base64
import shutil
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from testbed.channel import LIMIT_S, Channel
from testbed.errors import CommandError, GuestError
from testbed.forwarding import Forwarding
from testbed.monitor import Monitor


class GuestProcess(Protocol):
    """What the guest ends with: QEMU's process, or the first one in the namespaces."""

    @property
    def process(self) -> subprocess.Popen[bytes]: ...
    def alive(self) -> bool: ...
    def aborted(self) -> bool: ...
    def kill(self) -> None: ...
    def console_text(self) -> str: ...
    def why(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Completed:
    """How a command in the guest ended."""

    exit_code: int
    stdout: str
    stderr: str


class Guest:
    """A machine whose agent can be asked, most often a virtual one; `directory` goes with it."""

    def __init__(
        self,
        qemu: GuestProcess,
        channel: Channel,
        forwarding: Forwarding,
        monitor: Monitor | None,
        directory: Path,
    ) -> None:
        self.qemu = qemu
        self._monitor = monitor
        self._channel = channel
        self._forwarding = forwarding
        self._directory = directory
        # What QEMU refuses to start with, it says in its log: whoever waits for the agent tells it.
        if monitor is not None and qemu.alive():
            monitor.negotiate()

    @property
    def monitor(self) -> Monitor:
        """QEMU's; raises GuestError where there is no machine of its own."""
        if self._monitor is None:
            raise GuestError("a node in namespaces has no monitor")
        return self._monitor

    def forwarded(self, path: str) -> Path:
        """A socket of this machine behind which is the guest's socket of that path."""
        return self._forwarding.forwarded(path)

    def await_agent(self, limit_s: float) -> None:
        """Wait until the agent answers."""
        self._call("ping", limit_s=limit_s)

    def resume(self, *, disk: str) -> None:
        """After it was restored: set its clock, and mount the disk that was exchanged."""
        self._call("resume", limit_s=LIMIT_S, time_s=time.time(), disk=disk)

    def run(
        self,
        *argv: str,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        limit_s: float = LIMIT_S,
        check: bool = True,
    ) -> Completed:
        """Run a command to its end. Raises CommandError unless it ends with 0, or `check` is off."""
        reply = self._call(
            "run",
            limit_s=limit_s,
            argv=list(argv),
            stdin=base64.b64encode(stdin).decode(),
            env=dict(env or {}),
        )
        stdout, stderr = _text(reply["stdout"]), _text(reply["stderr"])
        if reply.get("timed_out"):
            raise GuestError(
                f"`{' '.join(argv)}` took longer than {limit_s} s in the guest: {stderr or stdout}"
            )
        done = Completed(reply["exit_code"], stdout, stderr)
        if check and done.exit_code:
            raise CommandError(list(argv), done.exit_code, stdout, stderr)
        return done

    def start(
        self,
        name: str,
        *argv: str,
        log: str,
        env: Mapping[str, str] | None = None,
        ready_limit_s: float | None = None,
    ) -> int:
        """Start a background service in a cgroup of its own, output to a log; its process id.

        With `ready_limit_s`, returns once the service has said READY=1 to NOTIFY_SOCKET.
        """
        fields: dict[str, object] = {"ready_limit_s": ready_limit_s} if ready_limit_s else {}
        limit_s = LIMIT_S + (ready_limit_s or 0)
        return int(
            self._call(
                "start", limit_s=limit_s, name=name, argv=list(argv), log=log, env=dict(env or {}), **fields
            )["pid"]
        )

    def signal(self, name: str, number: int, *, wait_s: float | None = LIMIT_S) -> int | None:
        """Send a signal to a service and wait for its end; its exit code, None while it runs."""
        return self._call("signal", limit_s=LIMIT_S, name=name, signal=int(number), wait_s=wait_s)[
            "exit_code"
        ]

    def running(self, name: str) -> int | None:
        """The process id of a service that runs, else None."""
        state = self._call("service", limit_s=LIMIT_S, name=name)
        return state["pid"] if state["known"] and state["exit_code"] is None else None

    def exit_code(self, name: str) -> int | None:
        return self._call("service", limit_s=LIMIT_S, name=name).get("exit_code")

    def read(self, path: str) -> str:
        found = self.read_files(path)
        if path not in found:
            raise GuestError(f"{path} cannot be read in the guest")
        return found[path]

    def read_files(self, *paths: str, pattern: bool = False) -> dict[str, str]:
        """Path -> contents, in one round trip; what cannot be read is left out. `pattern`: the paths are
        globs.
        """
        reply = self._call("read", limit_s=LIMIT_S, paths=list(paths), glob=pattern)
        return {path: _text(content) for path, content in reply["files"].items()}

    def write(self, path: str, content: str | bytes, *, mode: int = 0o644) -> None:
        raw = content.encode() if isinstance(content, str) else content
        self._call("write", limit_s=LIMIT_S, path=path, content=base64.b64encode(raw).decode(), mode=mode)

    def await_socket(self, path: str, *, service: str | None = None, limit_s: float = LIMIT_S) -> None:
        """Wait until something listens on a Unix socket; fails at once when the service that should ends."""
        self._call("await_socket", limit_s=limit_s, path=path, service=service)

    def await_text(self, path: str, text: str, *, offset: int = 0, limit_s: float = LIMIT_S) -> str:
        """Wait until a file holds a text beyond a byte offset; the contents from there."""
        return _text(
            self._call("await_text", limit_s=limit_s, path=path, text=text, offset=offset)["content"]
        )

    def alive(self) -> bool:
        return self.qemu.alive()

    def shut_down(self) -> None:
        self._channel.close()
        self._forwarding.close()
        if self._monitor is not None:
            self._monitor.close()
        self.qemu.kill()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _call(self, op: str, *, limit_s: float, **fields: object) -> dict[str, Any]:
        try:
            return self._channel.call(op, limit_s=limit_s, **fields)
        except GuestError as error:
            if self.qemu.alive() and "in the guest" in str(error):
                raise
            raise GuestError(f"{error}; {self.qemu.why()}", console=self.qemu.console_text()) from error


def _text(encoded: str) -> str:
    return base64.b64decode(encoded).decode(errors="replace")
