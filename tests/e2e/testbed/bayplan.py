"""The program under test in the guest: start, stop, kill and restart baypland, and ask it with bayplan."""

import contextlib
import io
import json
import signal
import time
from collections.abc import Iterable
from typing import Any

from bayplan.cli.bayplan import main
from testbed.channel import LIMIT_S
from testbed.containerd import NRI_SOCKET
from testbed.errors import CommandError, GuestError
from testbed.guest import Completed, Guest

SERVICE = "bayplan"
DAEMON = "/opt/bayplan/bin/baypland"
CLIENT = "/opt/bayplan/bin/bayplan"
STATE_DIRECTORY = "/var/lib/bayplan"
DATABASE = f"{STATE_DIRECTORY}/state.db"
SHRINK_LOG = "PRAGMA wal_checkpoint(TRUNCATE)"
FILLER = f"{STATE_DIRECTORY}/filler"
# ext4 refuses a large write while there is still room for small ones.
FILL = f"cat /dev/zero >{FILLER}; for _ in 1 2 3; do sync; dd if=/dev/zero bs=1k >>{FILLER}; done"
ADMIN_SOCKET = "/run/bayplan/admin.sock"
CONFIG = "/etc/bayplan/testbed.toml"
LOG = "/var/log/bayplan.log"
POLL_S = 0.2
SYNCHRONIZED = '"msg": "synchronized"'


class Bayplan:
    def __init__(self, guest: Guest) -> None:
        self.guest = guest
        self._flags: tuple[str, ...] = ()
        self._started_at = 0

    def start(self, *flags: str, config: str = "", fresh: bool = False) -> None:
        """Start baypland with these flags and the text of a TOML file; returns once it says that it is ready.

        `fresh` erases the state directory first.
        """
        if fresh:
            self.erase()
        self.guest.write(CONFIG, config)
        self._flags = flags
        self.start_again()

    def start_again(self) -> None:
        """Start baypland with the flags and the file of the last start."""
        self._started_at = self.log_position()
        self.guest.start(SERVICE, *self._argv(), log=LOG, ready_limit_s=LIMIT_S)

    def start_refused(self, *flags: str, config: str = "") -> Completed:
        """Run baypland where it must not come up; how it ended."""
        self.guest.write(CONFIG, config)
        return self.guest.run(*self._argv(flags), limit_s=LIMIT_S, check=False)

    def stop(self) -> int | None:
        """SIGTERM, and wait for the end; the exit code."""
        return self.guest.signal(SERVICE, signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL."""
        self.guest.signal(SERVICE, signal.SIGKILL)

    def reload(self) -> None:
        """SIGHUP."""
        self.guest.signal(SERVICE, signal.SIGHUP, wait_s=None)

    def pause(self) -> None:
        """SIGSTOP: it is there, and answers nothing."""
        self.guest.signal(SERVICE, signal.SIGSTOP, wait_s=None)

    def resume(self) -> None:
        """SIGCONT."""
        self.guest.signal(SERVICE, signal.SIGCONT, wait_s=None)

    def restart(self) -> None:
        """SIGTERM, then start again with the same flags and state."""
        self.stop()
        self.start_again()

    def fill_disk(self) -> None:
        """Have every commit fail for lack of room, on a state directory that is a file system of its own.

        The database's log has room of its own, which is given back first: a log in use may have to grow.
        Nothing may be under way.
        """
        shrink = f"import sqlite3; print(sqlite3.connect('{DATABASE}').execute('{SHRINK_LOG}').fetchone())"
        assert self.guest.run("python3", "-c", shrink).stdout.strip() == "(0, 0, 0)"
        self.guest.run("sh", "-c", FILL, check=False)

    def empty_disk(self) -> None:
        """There is room again."""
        self.guest.run("rm", FILLER)

    def running(self) -> bool:
        return self.guest.running(SERVICE) is not None

    def erase(self) -> None:
        """Forget all decisions; the daemon must be down."""
        self.guest.run("rm", "-rf", STATE_DIRECTORY)

    def status(self) -> dict[str, Any]:
        return self.ask("status")

    def nodes(self) -> dict[str, Any]:
        return self.ask("nodes")

    def available_mib(self, node_id: int) -> int:
        """What a node can give, once the daemon has looked at it."""
        deadline = time.monotonic() + LIMIT_S
        while (live := self.nodes()["nodes"][node_id]["live"]) is None:
            if time.monotonic() > deadline:
                raise GuestError(f"nobody has looked at node {node_id} within {LIMIT_S:g} s")
            time.sleep(POLL_S)
        return int(live["freeBytes"] + live["reclaimableBytes"]) // (1 << 20)

    def ask(self, *words: str) -> dict[str, Any]:
        """What `bayplan WORDS --output json` says."""
        answer: dict[str, Any] = json.loads(self.command(*words, "--output", "json").stdout)
        return answer

    def ask_in_guest(self, *words: str) -> dict[str, Any]:
        """The same in the guest, for what the command line finds out by itself, whatever its exit status."""
        argv = (CLIENT, *words, "--admin-socket", ADMIN_SOCKET, "--output", "json")
        answer: dict[str, Any] = json.loads(self.guest.run(*argv, check=False).stdout)
        return answer

    def command(self, *words: str, check: bool = True) -> Completed:
        """What the command line tool says of the daemon. It runs here, where it takes a tenth of the time."""
        argv = [*words, "--admin-socket", str(self.guest.forwarded(ADMIN_SOCKET))]
        stdout, stderr = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
            exit_code = main(argv)
        if check and exit_code:
            raise CommandError(["bayplan", *argv], exit_code, stdout.getvalue(), stderr.getvalue())
        return Completed(exit_code, stdout.getvalue(), stderr.getvalue())

    def await_synchronized(self, *, since: int | None = None, limit_s: float = LIMIT_S) -> str:
        """Wait until the daemon has reconciled itself with the runtime; what the log says from `since` on.

        `since` is a log position; without it, where the log ended when the daemon was last started.
        """
        position = self._started_at if since is None else since
        return self.await_log(SYNCHRONIZED, since=position, limit_s=limit_s)

    def log_position(self) -> int:
        """Where the log ends now; give it to `await_log` to look only at what comes later."""
        return len(self.log().encode())

    def await_log(self, text: str, *, since: int = 0, limit_s: float = LIMIT_S) -> str:
        """Wait until the log says something; what it says from `since` on."""
        return self.guest.await_text(LOG, text, offset=since, limit_s=limit_s)

    def await_runtime_updated(self, container_id: str, *, since: int = 0) -> None:
        """Wait until the OCI runtime has carried out the update that follows the hook of a container."""
        message = '"the OCI runtime has what was set"'
        self.await_log(f'{message}, "container_id": "{container_id}"', since=since)

    def log(self) -> str:
        return self.guest.read_files(LOG).get(LOG, "")

    def decided(self, container_id: str) -> dict[str, Any] | None:
        """The entry of a container in the status, None if there is none."""
        try:
            status = self.status()
        except CommandError as error:
            raise AssertionError(f"bayplan status failed: {error}") from error
        return _find(status, container_id)

    def known(self) -> set[str]:
        """The ids of all containers in the ledger."""
        return {entry["id"] for entry in self.status()["containers"]}

    def await_known(self, container_ids: Iterable[str], *, limit_s: float = LIMIT_S) -> None:
        """Wait until the ledger holds exactly these containers."""
        wanted, deadline = set(container_ids), time.monotonic() + limit_s
        while (known := self.known()) != wanted:
            assert time.monotonic() < deadline, f"the ledger holds {known}, expected {wanted}"
            time.sleep(POLL_S)

    def _argv(self, flags: tuple[str, ...] | None = None) -> tuple[str, ...]:
        fixed = ("--nri-socket", NRI_SOCKET, "--state-dir", STATE_DIRECTORY, "--admin-socket", ADMIN_SOCKET)
        # Scenarios count in MiB; those about what is measured, or about pages, say so. Nor are they about a
        # late answer, which emulation on a busy machine would give.
        fixed = (*fixed, "--measured-reservation", "false", "--memory-pressure", "off")
        fixed = (*fixed, "--request-deadline", "15s")
        return (DAEMON, "--config", CONFIG, *fixed, *(self._flags if flags is None else flags))


def _find(value: object, container_id: str) -> dict[str, Any] | None:
    """The innermost object that names the container, wherever the answer keeps its list."""
    if isinstance(value, dict):
        for inner in value.values():
            if (found := _find(inner, container_id)) is not None:
                return found
        return value if container_id in value.values() else None
    if isinstance(value, list):
        return next((found for inner in value if (found := _find(inner, container_id)) is not None), None)
    return None
