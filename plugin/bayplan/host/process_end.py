"""Ends all processes of some cgroups: SIGTERM, time to end by themselves, then SIGKILL for all at once. Or
waits until somebody else has ended them.

A process is signalled through a pidfd, opened before it was seen to be in the cgroup, so that no successor
of its id is meant. cgroup v2 kills a whole cgroup itself from Linux 5.14 on, however fast it forks. Blocks.
"""

import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from bayplan.errors import HostError
from bayplan.host import shadow_mode
from bayplan.host.container import ContainerCgroup
from bayplan.host.hierarchy import CPUSET, MEMORY, Hierarchy
from bayplan.host.kernelfs import AbsentError, write_text

LOOK_S: Final = 0.1
KILLED_S: Final = 10.0
"""So long the kernel may take to end what was killed, e.g. processes that wait for a disk."""

_KILL: Final = "cgroup.kill"


def wait_for_end(
    hierarchy: Hierarchy,
    cgroups: Sequence[str],
    limit_s: float,
    clock_s: Callable[[], float] = time.monotonic,
    pause: Callable[[float], object] = time.sleep,
) -> bool:
    """Whether nobody is in *cgroups* any more within *limit_s*.

    Raises:
        HostError: they cannot be listed.
    """
    end_s = clock_s() + limit_s
    while running := any(_pids(hierarchy, path) for path in cgroups):
        if clock_s() >= end_s:
            break
        pause(LOOK_S)
    return not running


def end_processes(
    hierarchy: Hierarchy,
    cgroups: Sequence[str],
    grace_s: float,
    clock_s: Callable[[], float] = time.monotonic,
    pause: Callable[[float], object] = time.sleep,
) -> str:
    """End everybody in *cgroups*, paths below the mount; what is still there at last as a sentence, empty for
    nobody.

    Raises:
        ShadowModeError: nobody is ended.
        HostError: they cannot be listed, or not be killed.
    """
    for path in cgroups:
        shadow_mode.check_off(path)
        if (reason := hierarchy.why_protected(path)) is not None:
            raise HostError(path, f"nobody there is ended: {reason}")
    for path in cgroups:
        _signal(hierarchy, path, signal.SIGTERM)
    if wait_for_end(hierarchy, cgroups, grace_s, clock_s, pause):
        return ""
    for path in cgroups:
        _kill(hierarchy, path)
    if wait_for_end(hierarchy, cgroups, KILLED_S, clock_s, pause):
        return ""
    left = [pid for path in cgroups for pid in _pids(hierarchy, path)]
    return f"processes {', '.join(map(str, left))} were killed and are still there after {KILLED_S:g} s"


def _kill(hierarchy: Hierarchy, path: str) -> None:
    directory = Path(f"{hierarchy.mounts[CPUSET]}{path}")
    if hierarchy.unified and (directory / _KILL).exists():
        with suppress(AbsentError):
            write_text(str(directory / _KILL), "1")
        return
    # Those that are forked meanwhile, too: nothing forks faster for long than it is killed.
    for _ in range(10):
        if not _signal(hierarchy, path, signal.SIGKILL):
            return


def _signal(hierarchy: Hierarchy, path: str, number: signal.Signals) -> int:
    """Send a signal to everybody in the cgroup; how many there were."""
    pids = _pids(hierarchy, path)
    for pid in pids:
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            if pid in _pids(hierarchy, path):
                signal.pidfd_send_signal(descriptor, number)
        except ProcessLookupError:
            continue
        except OSError as error:
            raise HostError(f"process {pid}", f"cannot be ended: {error.strerror}") from error
        finally:
            os.close(descriptor)
    return len(pids)


def _pids(hierarchy: Hierarchy, path: str) -> tuple[int, ...]:
    try:
        with ContainerCgroup(hierarchy, dict.fromkeys((CPUSET, MEMORY), path)) as cgroup:
            return cgroup.processes()
    except AbsentError:
        return ()
