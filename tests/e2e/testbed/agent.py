"""Runs inside the virtual machine: carries out what the test on the other side of the serial port asks for.

One JSON object per line in each direction. Every request has a thread of its own, so that a command that
hangs does not stop the others; replies carry the request's id. Standard library only.
"""

import base64
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

PORT = "/dev/vport0p1"


def run(argv: list[str], stdin: str = "", timeout_s: float = 60, env: dict[str, str] | None = None) -> dict[str, Any]:
    """Run a command to its end; 124 is the exit code of one that took too long, as with timeout(1)."""
    try:
        done = subprocess.run(
            argv,
            input=stdin.encode(),
            capture_output=True,
            timeout=timeout_s,
            env={**os.environ, **(env or {})},
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        return _result(124, error.stdout or b"", (error.stderr or b"") + f"\nno end after {timeout_s} s".encode())
    except OSError as error:
        return _result(127, b"", str(error).encode())
    return _result(done.returncode, done.stdout, done.stderr)


def _result(exit_code: int, stdout: bytes, stderr: bytes) -> dict[str, Any]:
    return {
        "exit_code": exit_code,
        "stdout": stdout.decode(errors="replace"),
        "stderr": stderr.decode(errors="replace"),
    }


def spawn(argv: list[str], log: str, env: dict[str, str] | None = None) -> dict[str, Any]:
    """Start a service whose output is appended to *log*; it leads a process group of its own."""
    with Path(log).open("ab") as output:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            env={**os.environ, **(env or {})},
        )
    threading.Thread(target=process.wait, daemon=True).start()
    return {"pid": process.pid}


def kill(pid: int, number: int = signal.SIGTERM) -> dict[str, Any]:
    """Send a signal to one process."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return {"sent": False}
    return {"sent": True}


def write(path: str, content: str, mode: int = 0o644) -> dict[str, Any]:
    """Create a file (base64 *content*) and the folders above it."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(base64.b64decode(content))
    target.chmod(mode)
    return {}


def read(path: str) -> dict[str, Any]:
    """The content of a file, base64; None where there is none (any more)."""
    try:
        return {"content": base64.b64encode(Path(path).read_bytes()).decode()}
    except OSError:
        return {"content": None}


OPERATIONS: dict[str, Callable[..., dict[str, Any]]] = {
    "run": run,
    "spawn": spawn,
    "kill": kill,
    "write": write,
    "read": read,
}


def main() -> None:
    """Serve the port until the machine goes down."""
    port = os.open(PORT, os.O_RDWR)
    lock = threading.Lock()

    def send(reply: dict[str, Any]) -> None:
        line = json.dumps(reply).encode() + b"\n"
        with lock:
            while line:
                line = line[os.write(port, line) :]

    def answer(request: dict[str, Any]) -> None:
        try:
            reply = OPERATIONS[request["operation"]](**request["arguments"])
        except Exception as error:  # noqa: BLE001 - the other side must hear of everything
            reply = {"error": f"{type(error).__name__}: {error}"}
        send({"id": request["id"], **reply})

    send({"id": 0, "ready": True})
    buffer = b""
    while True:
        chunk = os.read(port, 1 << 16)
        if not chunk:
            # The host's end is not open (yet); reading would return at once for ever.
            threading.Event().wait(0.1)
            continue
        buffer += chunk
        *lines, buffer = buffer.split(b"\n")
        for line in lines:
            threading.Thread(target=answer, args=(json.loads(line),), daemon=True).start()


if __name__ == "__main__":
    sys.exit(main())
