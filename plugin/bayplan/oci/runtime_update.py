"""One ``runc update`` after a hook has placed a container, so that the OCI runtime has the same values.

The hook's values are written to the cgroup without the OCI runtime. The runtime (and systemd, where that
manages the cgroups) later writes the values of its own record again: on an update, on a ``daemon-reload``.
One update by the runtime itself, as soon as the container is created, puts our values into that record. It
runs in the background and no container waits for it. Where it fails, or somebody else updates the container
first, the verification restores the values that were overwritten.
"""

import asyncio
import logging
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct, field

from bayplan.errors import BayplanError
from bayplan.host import shadow_mode
from bayplan.host.kernelfs import AbsentError, RefusedError, read_text
from bayplan.model.workload import Adjustment
from bayplan.oci.documents import LinuxResources, Spec, merged, resources_patch
from bayplan.printable import pattern

logger = logging.getLogger(__name__)

PAUSES_S: Final = (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8)
"""Before each attempt: the runtime can update the container only some time after its createRuntime hooks."""

AT_ONCE: Final = 2
"""The number of updates that run at the same time: when a hundred containers start together, they need the
CPUs more."""

UPDATE_TIMEOUT_S: Final = 10.0
_RUNTIMES: Final = pattern(r"(runc|crun|youki)[\w.-]*")
_CREATING: Final = frozenset({"create", "run"})
_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_KEPT: Final = ("cpu", "memory", "pids", "unified")
"""The parts of a spec's resources that an update must repeat: runc takes what is missing for "none"."""

_PARENT_AFTER_NAME: Final = 1
"""proc_pid_stat(5): the parent's id is field 4, the second one after the name."""


class RuntimeCommand(Struct, frozen=True):
    """The command line of an OCI runtime, as far as its later calls need it too."""

    executable: str
    options: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)

    def update(self, container_id: str) -> list[str]:
        """The command that updates a container with resources on its standard input."""
        return [self.executable, *self.options, "update", "-r", "-", container_id]


def runtime_of(hook_pid: int, root: Path = Path("/")) -> RuntimeCommand | None:
    """The runtime that runs the hook *hook_pid*: its parent process. None where that is no runtime we know,
    or cannot be read without CAP_SYS_PTRACE; placing the container does not depend on it."""
    try:
        stat = read_text(str(root / "proc" / str(hook_pid) / "stat"))
        parent = root / "proc" / stat.rpartition(")")[2].split()[_PARENT_AFTER_NAME]
        words = read_text(str(parent / "cmdline")).split("\0")
        environment = read_text(str(parent / "environ")).split("\0")
    except (AbsentError, IndexError):
        return None
    except RefusedError as error:
        logger.warning("the OCI runtime cannot be updated with what is set", extra={"problem": str(error)})
        return None
    return _command(words, _executable(parent, words[0]), environment)


def resources_for(document: bytes, spec: Spec, applied: Adjustment) -> bytes:
    """The resources of a container's spec with what was *applied*, for an update.

    Raises:
        OciError: *document* is not that spec.
    """
    present = (spec.linux and spec.linux.resources) or LinuxResources()
    whole: dict[str, Any] = msgspec.json.decode(document, type=dict[str, msgspec.Raw])
    for key in ("linux", "resources"):
        inner = bytes(whole.get(key, b"null"))
        whole = msgspec.json.decode(inner, type=dict[str, msgspec.Raw] | None) or {}
    kept = msgspec.json.encode({key: whole[key] for key in _KEPT if key in whole})
    return merged(kept, resources_patch(applied, present), "resources")


class UpdateContent(Struct, frozen=True):
    """The content of an update. ``resources`` makes the resources of this moment; None: the container is gone
    and needs no update. ``amounts`` reads what the cgroup has of the values that an update repeats from the
    spec, and raises BayplanError where they cannot be read."""

    resources: Callable[[], bytes | None]
    amounts: Callable[[], Mapping[str, str]]


class RuntimeUpdater:
    """Runs the updates, each in one of its ``tasks``. *pauses_s* come before the attempts."""

    def __init__(self, pauses_s: Sequence[float] = PAUSES_S) -> None:
        self._pauses_s = pauses_s
        self._at_once = asyncio.Semaphore(AT_ONCE)
        self.tasks: set[asyncio.Task[bool]] = set()

    def begin(self, command: RuntimeCommand, container_id: str, content: UpdateContent) -> asyncio.Task[bool]:
        """Update the container as soon as the runtime can; the task's result is whether it was done."""
        task = asyncio.get_running_loop().create_task(self._update_runtime(command, container_id, content))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    async def close(self) -> None:
        """Cancel the updates that are not done."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    async def _update_runtime(
        self, command: RuntimeCommand, container_id: str, content: UpdateContent
    ) -> bool:
        problem = "no attempt"
        try:
            # No update by others can have come before: the runtime takes them only after its creation.
            at_first = await asyncio.to_thread(content.amounts)
            for pause_s in self._pauses_s:
                await asyncio.sleep(pause_s)
                resources = content.resources()
                if resources is None:
                    return False
                async with self._at_once:
                    if await asyncio.to_thread(content.amounts) != at_first:
                        logger.info(
                            "the container was updated by another program; left as it is",
                            extra={"container_id": container_id},
                        )
                        return False
                    failed = await asyncio.to_thread(_run, command, container_id, resources)
                if failed is None:
                    logger.debug("the OCI runtime has what was set", extra={"container_id": container_id})
                    return True
                problem = failed
        except AbsentError:
            return False
        except BayplanError as error:
            problem = str(error)
        extra = {"container_id": container_id, "runtime": command.executable, "problem": problem}
        logger.warning("the OCI runtime could not be updated with what was set", extra=extra)
        return False


def _run(command: RuntimeCommand, container_id: str, resources: bytes) -> str | None:
    """One attempt; returns what went wrong, None if nothing did."""
    shadow_mode.check_off(f"container {container_id}")
    try:
        finished = subprocess.run(  # noqa: S603 - the program that root runs as its container runtime
            command.update(container_id),
            input=resources,
            capture_output=True,
            timeout=UPDATE_TIMEOUT_S,
            check=False,
            env={"PATH": _PATH, **command.environment},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if finished.returncode == 0:
        return None
    message = " ".join(finished.stderr.decode("utf-8", "replace").split())
    return f"exit status {finished.returncode}: {message[-300:]}"


def _command(
    words: Sequence[str], executable: str | None, environment: Sequence[str]
) -> RuntimeCommand | None:
    verb = next((place for place, word in enumerate(words) if place and word in _CREATING), None)
    if verb is None or executable is None:
        return None
    options = []
    for place, word in enumerate(words[:verb]):
        if word.startswith("--root="):
            options.append(word)
        elif word == "--root" and place + 1 < verb:
            options.append(f"--root={words[place + 1]}")
    # Without --root, runtimes find the directory of their state by this variable.
    found = [one.partition("=") for one in environment if one.startswith("XDG_RUNTIME_DIR=")]
    return RuntimeCommand(executable, tuple(options), {name: value for name, _, value in found})


def _executable(process: Path, called: str) -> str | None:
    """The program of a process: the file it runs, or where that is a copy without a name (crun makes one of
    itself), what it was called as."""
    try:
        running = str((process / "exe").readlink())
    except OSError:
        running = ""
    from shutil import which  # noqa: PLC0415 - bz2, lzma and zlib come with it

    for candidate in (running, which(called, path=_PATH) or ""):
        if _RUNTIMES.fullmatch(Path(candidate).name) and Path(candidate).is_file():
            return candidate
    return None
