"""Which containers of the wrapper are to be compared with the ledger before they start: a file for each.

A shell can see whether a file is there without a new process, so that only the starts that need it cost a
question: of a container with CPUs of its own, of one whose memory has to be freed first, and of one that
could not be given other cpusets because its spec was rewritten and its cgroup not made yet. docs/oci-hook.md
has the path, which the wrapper knows.
"""

import logging
import shutil
from contextlib import suppress
from pathlib import Path

logger = logging.getLogger(__name__)


class Starts:
    """Those containers, in a directory beside the OCI *socket*; without one nobody could ask. Any thread."""

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
