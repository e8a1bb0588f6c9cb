"""The hook and the runtime wrapper, killed in the guest while they are at work: programs that start them, and
kill them after a given time.
"""

import json
from typing import Any

from testbed.forms import HOOKS_DIR, WRAPPER
from testbed.guest import Guest

DIRECTORY = "/run/killer"
PROGRAM = f"{DIRECTORY}/killer"
WRAPPER_KILLER = f"{DIRECTORY}/wrapper"
AFTER = f"{DIRECTORY}/after"
HOOK = "/usr/libexec/bayplan/oci-hook"
# killer SECONDS PROGRAM WORD...: runs the program with its own input, and kills it after so long, unless it
# has become a runtime by then. Who is killed has failed.
_KILLER = """#!/usr/bin/python3 -IS
import os, signal, sys, time
child = os.fork()
if not child:
    os.execv(sys.argv[2], sys.argv[2:])
deadline = time.monotonic() + float(sys.argv[1])
while not (ended := os.waitpid(child, os.WNOHANG))[0]:
    if time.monotonic() >= deadline:
        try:
            running = os.path.basename(os.readlink(f"/proc/{child}/exe"))
        except OSError:
            running = ""
        if running.startswith(("python", "dash", "bash", "sh")):
            os.kill(child, signal.SIGKILL)
        ended = os.waitpid(child, 0)
        break
    time.sleep(0.001)
status = ended[1]
os._exit(1 if os.WIFSIGNALED(status) else os.WEXITSTATUS(status))
"""
_WRAPPER_KILLER = f"""#!/bin/sh
case " $* " in
*" create "*) read -r after <{AFTER}; exec {PROGRAM} "$after" {WRAPPER} "$@" ;;
esac
exec {WRAPPER} "$@"
"""
# How long a hook takes that has little to ask: the placing of a container takes up to twice as long.
_TIMED_HOOK = f"""
import subprocess, time
started = time.monotonic()
state = b'{{"ociVersion": "1.2.0", "id": "nobody", "status": "stopped", "bundle": "/nowhere"}}'
subprocess.run(["{HOOK}", "poststop"], input=state)
print(time.monotonic() - started)
"""


class Killer:
    """Forms that are installed are killed from `strike` on; the wrapper where WRAPPER_KILLER is the runtime.
    ``whole_s`` is how long a hook takes that has little to ask."""

    def __init__(self, guest: Guest) -> None:
        self.guest = guest
        guest.write(PROGRAM, _KILLER, mode=0o755)
        guest.write(WRAPPER_KILLER, _WRAPPER_KILLER, mode=0o755)
        self.whole_s = float(guest.run("python3", "-c", _TIMED_HOOK).stdout)
        self._path = f"{HOOKS_DIR}/90-bayplan.json"
        self._definition: dict[str, Any] = json.loads(guest.read(self._path))

    def strike(self, after_s: float) -> None:
        """Let hook and wrapper live for so long only."""
        self.guest.write(AFTER, f"{after_s:.3f}\n")
        hook = self._definition["hook"]
        words = [PROGRAM, f"{after_s:.3f}", HOOK, *hook["args"][1:]]
        self._write({**self._definition, "hook": {**hook, "path": PROGRAM, "args": words}})

    def spare(self) -> None:
        """Let the hook live again."""
        self._write(self._definition)

    def _write(self, definition: dict[str, Any]) -> None:
        self.guest.write(f"{self._path}.tmp", json.dumps(definition))
        self.guest.run("mv", f"{self._path}.tmp", self._path)
