"""The Go side of NRI: the program in adaptation/, built once for each version of the module, and started.

The interop tests and `make bench` use it. It is a container runtime without containers, made of the very code
that runtimes link.
"""

import json
import queue
import subprocess
import sys
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "e2e"))

from testbed.gobuild import compiled

SOURCE = Path(__file__).parent / "adaptation"
# That of adaptation/go.mod; the others are in adaptation/versions, each with its own ttRPC and else with what
# go.mod has, which is compiled once for all. To add one: a vX.mod there that requires it, then
# `go mod tidy -modfile=versions/vX.mod` in adaptation.
NEWEST = "0.12.5"
VERSIONS = ["0.6.1", "0.8.0", "0.11.0", "0.12.0", NEWEST]
PATIENCE_S = 60  # until somebody gives up waiting; nothing takes that long when things work


class GoSideError(Exception):
    """The program does not answer."""


def build(nri_version: str) -> Path:
    """The program with that version of the module; built once for each state of its source."""
    module = "go" if nri_version == NEWEST else f"versions/v{nri_version}"
    # Without WASM plugins, which need a larger program and are not what is tested.
    return compiled(SOURCE, f"adaptation-{nri_version}", module, ("-tags", "nri_no_wasm"))


class GoSide:
    """The Go program, running."""

    def __init__(self, program: Path, directory: Path, *flags: str) -> None:
        self.socket = directory / "nri.sock"
        self.log = directory / "go.log"
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [program, "-socket", self.socket, *flags],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        self._commands = 0
        self._lines: dict[int, queue.Queue] = {}
        self._changed = threading.Condition()
        threading.Thread(target=self._read, daemon=True).start()
        assert "listening" in self.notice()

    def _read(self) -> None:
        for line in self._process.stdout:
            result = json.loads(line)
            with self._changed:
                self._queue(result.pop("number")).put(result)

    def _queue(self, number: int) -> queue.Queue:
        with self._changed:
            return self._lines.setdefault(number, queue.Queue())

    def start(self, do: str, **fields: object) -> int:
        """Give a command; its number."""
        self._process.stdin.write(json.dumps({"do": do, **fields}).encode() + b"\n")
        self._process.stdin.flush()
        self._commands += 1
        return self._commands

    def finish(self, number: int) -> dict:
        """The result of a command."""
        try:
            return self._queue(number).get(timeout=PATIENCE_S)
        except queue.Empty:
            raise GoSideError(f"no answer from the Go side; its log: {self.log.read_text()}") from None

    def do(self, do: str, **fields: object) -> dict:
        return self.finish(self.start(do, **fields))

    def notice(self) -> dict:
        """The next thing that it says without being asked."""
        return self.finish(0)

    def waits(self, number: int) -> bool:
        """Whether a command has no result so far."""
        return self._queue(number).empty()

    def close(self) -> None:
        self._process.stdin.close()
        try:
            self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise GoSideError(f"the Go side does not stop; its log: {self.log.read_text()}") from None
        finally:
            self._process.stdout.close()
