"""Whether what was compared with the ledger, and agreed with it, is still as it was: much cheaper to see than
to compare it again.

What the ledger says follows from values that are replaced when they change; what the kernel shows is watched.
Nothing here says what agrees: `bayplan.control.verify` does.
"""

import operator
import os
import posixpath
from collections.abc import Iterable
from typing import Final

from bayplan.control.expectations import Expectation, cgroup_of
from bayplan.control.state import NodeState
from bayplan.errors import BayplanError
from bayplan.host.hierarchy import Hierarchy
from bayplan.host.kernelfs import AbsentError, WatchedFiles

_AMOUNTS: Final = ("memory_max", "memory_high", "memory_low", "memory_min", "memory_oom_group")
_OOM_GROUP: Final = _AMOUNTS[-1:]

Grounds = tuple[object, ...]
"""What the expectations follow from: immutable values."""


def grounds_of(state: NodeState) -> Grounds:
    """What `Controller.expectations` follow from now."""
    basis, known = state.basis, state.known
    return (basis.machine, basis.policy, basis.ledger, *known.containers.values(), *known.pods.values())


class Agreement:
    """What agreed at the latest comparison, if all did. At most about *most_files* are kept open; where that
    is not enough, nothing ever counts as agreed. Blocks."""

    def __init__(self, hierarchy: Hierarchy, most_files: int) -> None:
        self._hierarchy = hierarchy
        self._most_files = most_files
        self._files = WatchedFiles()
        self._absent: list[str] = []
        self._grounds: Grounds | None = None

    def watch(self, grounds: Grounds, wanted: Iterable[Expectation]) -> None:
        """Watch what is *wanted*, by these *grounds*. To be called before it is compared: what changes
        meanwhile is then seen by the one or the other."""
        self.forget()
        try:
            for one in wanted:
                self._watch(one)
                if len(self._files) > self._most_files:
                    self.forget()
                    return
        except BayplanError:
            self.forget()
            return
        self._grounds = grounds

    def lasts(self, grounds: Grounds) -> bool:
        """Whether that, by *grounds* now, would be found to agree again."""
        before = self._grounds
        return (
            before is not None
            and len(grounds) == len(before)
            and all(map(operator.is_, grounds, before))
            and self._files.are_unchanged()
            and not any(os.access(one, os.F_OK) for one in self._absent)
        )

    def forget(self) -> None:
        """Nothing is known to agree."""
        self._files.close()
        self._absent.clear()
        self._grounds = None

    def _watch(self, one: Expectation) -> None:
        try:
            with cgroup_of(self._hierarchy, one) as cgroup:
                everything = not one.origin.runtime_applies
                names = _AMOUNTS if everything else _OOM_GROUP if one.oom_group else ()
                cgroup.watch(self._files, (*names, "partition") if one.isolated else names)
        except AbsentError as error:
            # A pod's directory that is not there has no container's. A container's may come at any time.
            pod_directory = posixpath.dirname(error.path)
            if os.access(pod_directory, os.F_OK):
                raise
            self._absent.append(pod_directory)
            return
        process = one.first_process
        if process is not None and one.amounts.oom_score_adj is not None:
            self._files.add(str(self._hierarchy.root / f"proc/{process.pid}/oom_score_adj"))
