"""What the wrapper has to know without asking: a file for each container, beside the OCI socket.

A shell can see whether a file is there without a new process. So only the starts that need it cost a
question: of a container with CPUs of its own, of one whose memory has to be freed first, and of one that
could not be given other cpusets because its spec was rewritten and its cgroup not made yet. And crun takes
the CPUs of a process that enters a container from that process' own document, which the wrapper adds them
to. docs/oci-hook.md has the paths, which the wrapper knows.
"""

import logging
import shutil
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from bayplan.control.threads import InThread
from bayplan.model.basis import Basis
from bayplan.placement.adjustment import exec_cpus_of
from bayplan.sets import CpuSet

logger = logging.getLogger(__name__)


class Execs:
    """The CPUs of processes that enter a container later, by the ledger, in a directory beside the OCI
    *socket*; without one there is no wrapper to read them. Those of containers that are gone go with the next
    change."""

    def __init__(self, socket: Path | None, in_thread: InThread, basis: Callable[[], Basis]) -> None:
        self._directory = None if socket is None else socket.with_name(f"{socket.name}.execs")
        self._do = in_thread
        self._basis = basis
        self._noted: dict[str, CpuSet] | None = None

    async def update(self) -> None:
        """Have the files as the ledger says."""
        basis = self._basis()
        if basis.ledger.followed_ids or self._noted != {}:
            await self._do(partial(self._update, basis))

    def _update(self, basis: Basis) -> None:
        decisions = {key: basis.ledger.entries[key].decision for key in basis.ledger.followed_ids}
        found = {key: exec_cpus_of(basis.machine, decision) for key, decision in decisions.items()}
        wanted = {key: cpus for key, cpus in found.items() if cpus}
        if self._directory is None or wanted == self._noted:
            return
        try:
            for path in self._directory.iterdir() if self._directory.is_dir() else ():
                if path.name not in wanted:
                    path.unlink()
            for container_id, cpus in wanted.items():
                self._directory.mkdir(mode=0o755, parents=True, exist_ok=True)
                unfinished = self._directory / f".{container_id}"
                unfinished.write_text(f"{cpus}\n", encoding="ascii")
                unfinished.replace(self._directory / container_id)
        except OSError as error:
            extra = {"directory": str(self._directory), "problem": str(error)}
            logger.warning("the wrapper does not know the CPUs of later processes", extra=extra)
            return
        self._noted = wanted


class Starts:
    """The containers that are to be compared with the ledger before they start, in a directory beside the OCI
    *socket*; without one nobody could ask. Any thread."""

    def __init__(self, socket: Path | None) -> None:
        self._directory = None if socket is None else socket.with_name(f"{socket.name}.starts")

    def clear(self) -> None:
        """Forget all that an earlier daemon noted."""
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)

    def expect(self, container_id: str) -> bool:
        """Have the wrapper ask before that container starts; whether it will."""
        if self._directory is None:
            return False
        try:
            self._directory.mkdir(mode=0o755, parents=True, exist_ok=True)
            (self._directory / container_id).touch(mode=0o644)
        except OSError as error:
            extra = {"container_id": container_id, "problem": str(error)}
            logger.warning("the wrapper will not ask before the start of a container", extra=extra)
            return False
        return True

    def forget(self, container_id: str) -> None:
        """It asks, or it is gone."""
        if self._directory is not None:
            with suppress(OSError):
                (self._directory / container_id).unlink()
