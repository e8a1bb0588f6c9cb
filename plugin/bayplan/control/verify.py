"""Does the kernel do what was decided? Compares cgroups with the ledger and repairs what drifted.

Whether what agreed is still as it was is much cheaper to see than to compare it again: what the ledger says
follows from values that are replaced when they change; what the kernel shows is watched.

Runtimes log and ignore updates that fail, and anybody may write to a cgroup. A difference is repaired when
it is seen twice in a row: right after a reply the runtime may still be carrying it out. What does not run yet
is repaired as well, but not reported: its cgroup is just being made. Only what the kernel was seen to have
afterwards counts as repaired; what it does not take is tried again less and less often.
"""

import logging
import operator
import os
import posixpath
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from bayplan.control.cpusets import Cpusets
from bayplan.control.expectations import (
    OOM_SCORE_ADJ,
    PARTITION,
    Expectation,
    Expected,
    cgroup_of,
)
from bayplan.control.state import NodeState
from bayplan.control.threads import InThread
from bayplan.errors import BayplanError
from bayplan.host import proc
from bayplan.host.hierarchy import Hierarchy
from bayplan.host.kernelfs import AbsentError, WatchedFiles
from bayplan.model.sentences import not_repaired
from bayplan.model.workload import Update
from bayplan.sets import CpuSet

_AMOUNTS: Final = ("memory_max", "memory_high", "memory_low", "memory_min", "memory_oom_group")
_OOM_GROUP: Final = _AMOUNTS[-1:]

Grounds = tuple[object, ...]
"""What expectations follow from: immutable values, compared by identity."""


def grounds_of(state: NodeState) -> Grounds:
    """What `Controller.expectations` follow from now."""
    basis, known = state.basis, state.known
    return (basis.machine, basis.policy, basis.ledger, *known.containers.values(), *known.pods.values())


def is_same(grounds: Grounds, before: Grounds) -> bool:
    """Whether both are the same objects: to compare their contents takes long."""
    return len(grounds) == len(before) and all(map(operator.is_, grounds, before))


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
            and is_same(grounds, before)
            and self._files.are_unchanged()
            and not any(os.access(one, os.F_OK) for one in self._absent)
        )

    def forget(self) -> None:
        """From now on nothing is known to agree."""
        self._files.close()
        self._absent.clear()
        self._grounds = None

    def _watch(self, expectation: Expectation) -> None:
        try:
            with cgroup_of(self._hierarchy, expectation) as cgroup:
                everything = not expectation.origin.runtime_applies
                names = _AMOUNTS if everything else _OOM_GROUP if expectation.oom_group else ()
                cgroup.watch(self._files, (*names, "partition") if expectation.isolated else names)
        except AbsentError as error:
            # A pod's directory that is not there has no container's. A container's may come at any time.
            pod_directory = posixpath.dirname(error.subject)
            if os.access(pod_directory, os.F_OK):
                raise
            self._absent.append(pod_directory)
            return
        process = expectation.first_process
        if process is not None and expectation.amounts.oom_score_adj is not None:
            self._files.add(str(self._hierarchy.root / f"proc/{process.pid}/oom_score_adj"))


logger = logging.getLogger(__name__)


KEEP_HINT: Final = (
    "CPUs and nodes that others choose stay if the container is created with them, "
    "or with the annotation bayplan.dev/opt-out=true"
)
"""For users whose own values were overwritten."""


MAX_PAUSE_LOOKS: Final = 32
"""So many comparisons at most lie between two attempts to repair the same: five minutes."""


class Drift(Struct, frozen=True):
    """What the cgroup of a container shows otherwise than was decided; ``cpus`` are the CPUs that it has."""

    expectation: Expectation
    differences: Mapping[str, str]
    cpus: CpuSet = CpuSet()

    def __str__(self) -> str:
        return f"{self.expectation.name}: {'; '.join(self.differences.values())}"

    @property
    def has_other_cpus(self) -> bool:
        """Whether it has CPUs that were not decided. What does not run yet has no process on them but the
        runtime's."""
        return not self.expectation.starting and self.expectation.cpus != self.cpus

    @property
    def repair(self) -> Update:
        """The change that undoes it, and nothing else."""
        whole, names = self.expectation.update, self.differences
        return Update(
            whole.container_id,
            cpuset_cpus=whole.cpuset_cpus if "cpus" in names else None,
            cpuset_mems=whole.cpuset_mems if "mems" in names else None,
            memory_limit_bytes=whole.memory_limit_bytes if "memory.max" in names else None,
            unified={key: value for key, value in whole.unified.items() if key in names},
        )


class Unrepaired(Struct, frozen=True):
    """A difference that stays: how often it was to be repaired; when that is tried next, as the number of a
    look; and what the kernel said, "" where it took the values and shows others all the same."""

    drift: Drift
    times: int
    next_look: int
    problem: str = ""

    @property
    def sentence(self) -> str:
        """The problem for people."""
        return not_repaired(str(self.drift), self.times, self.problem)


class Verifier:
    """Finds and repairs drift. ``drift`` is what the last comparison reported; ``unrepaired`` is what differs
    although it was to be repaired, by container, and ``failed`` how often that has been."""

    def __init__(
        self,
        hierarchy: Hierarchy,
        cpusets: Cpusets,
        expected: Expected,
        in_thread: InThread,
        *,
        grounds: Callable[[], Grounds],
        most_files: int,
    ) -> None:
        """*expected* follows from *grounds*; as to *most_files* see `Agreement`."""
        self.drift: tuple[Drift, ...] = ()
        self.unrepaired: dict[str, Unrepaired] = {}
        self.failed = 0
        self._looks = 0
        self._hierarchy = hierarchy
        self._cpusets = cpusets
        self._expected = expected
        self._in_thread = in_thread
        self._grounds = grounds
        self._agreement = Agreement(hierarchy, most_files)
        # By container: what was expected when it differed, and when it did not; how often which difference
        # was put right.
        self._suspected: dict[str, Update] = {}
        self._agreed: dict[str, Update] = {}
        self._writes = 0
        self._times: dict[str, Counter[str]] = {}
        self._otherwise: dict[str, Drift] = {}

    def kernel_cpus(self) -> dict[str, CpuSet]:
        """The CPUs that containers had at the last comparison, by id, where these are not the decided ones,
        or where somebody else decides. A container about which something else was decided since is left
        out."""
        now = self._expected(self._otherwise.keys()) if self._otherwise else ()
        return {
            key: found.cpus
            for one in now
            if (found := self._otherwise[key := one.container.id]).expectation.cpus == one.cpus
        }

    async def verify(self, *, at_once: bool) -> tuple[Drift, ...]:
        """Compare once, and repair what differed the last time too; the drift that was reported.

        *at_once* repairs without a second look: updates are due that no reply could carry. Of what it finds
        only that is drift which the kernel was seen to have before: another program undid it.
        """
        grounds = self._grounds()
        if not at_once and await self._in_thread(partial(self._agreement.lasts, grounds)):
            return ()
        expected = self._expected()
        self._cpusets.keep({one.container.id for one in expected})
        compared = await self._in_thread(partial(self._compare, expected, None if at_once else grounds))
        if self._cpusets.writes != self._writes:
            # Since the last look, or during this one: what they have is what was expected in between.
            self._writes, self._agreed = self._cpusets.writes, {}
        differing = tuple(one for one in compared if one.differences)
        due = tuple(one for one in differing if at_once or self._is_in(self._suspected, one))
        drift = tuple(one for one in due if not at_once or self._is_in(self._agreed, one))
        self._otherwise = {_id(one): one for one in compared if one.has_other_cpus}
        self._suspected = {_id(one): one.expectation.update for one in differing}
        self._agreed = {_id(one): one.expectation.update for one in compared if not one.differences}
        self._times = {key: self._times.get(key, Counter()) for key in map(_id, compared)}
        self._report(drift)
        self.drift = drift
        self._looks += 1
        # What differs no more was repaired by somebody else, or is wanted otherwise by now.
        self.unrepaired = {
            key: one
            for key, one in self.unrepaired.items()
            if self._suspected.get(key) == one.drift.expectation.update
        }
        wanted = self._still_expected(one for one in due if not self._waits(one))
        if wanted:
            left = await self._in_thread(partial(self._repair, wanted))
            self._note(wanted, {_id(one): one for one in left})
        return drift

    def _waits(self, one: Drift) -> bool:
        """Whether a repair was tried in vain, and is not to be tried again yet."""
        before = self.unrepaired.get(_id(one))
        return before is not None and self._looks < before.next_look

    def _repair(self, wanted: list[Drift]) -> list[Drift]:
        """Repair, and look whether it was of use: what still differs of the same. Blocks."""
        repair(self._hierarchy, self._cpusets, wanted)
        tried = {_id(one): one.differences.keys() for one in wanted}
        after = compare(self._hierarchy, [one.expectation for one in wanted])
        return [one for one in after if one.differences.keys() & tried[_id(one)]]

    def _note(self, wanted: list[Drift], left: Mapping[str, Drift]) -> None:
        for key in map(_id, wanted):
            self._otherwise.pop(key, None)
        self._otherwise |= {key: one for key, one in left.items() if one.has_other_cpus}
        repaired = [one.expectation.name for one in wanted if _id(one) not in left]
        for key, drift in left.items():
            before = self.unrepaired.get(key)
            times = 1 if before is None else before.times + 1
            next_look = self._looks + min(1 << times - 1, MAX_PAUSE_LOOKS)
            problem = self._cpusets.refusals.get(key, "")
            self.unrepaired[key] = Unrepaired(drift, times, next_look, problem)
        self.failed += len(left)
        for drift in wanted:
            if _id(drift) not in left:
                self.unrepaired.pop(_id(drift), None)
        if repaired:
            logger.info("repaired", extra={"containers": repaired})

    def _compare(self, expected: list[Expectation], grounds: Grounds | None) -> list[Drift]:
        """With *grounds* what is compared is watched from now on. What is asked for at once comes with a
        change, and others may follow."""
        if grounds is None:
            self._agreement.forget()
        else:
            self._agreement.watch(grounds, expected)
        compared = compare(self._hierarchy, expected)
        if any(one.differences for one in compared):
            self._agreement.forget()
        return compared

    def _is_in(self, seen: Mapping[str, Update], one: Drift) -> bool:
        """Whether the same was expected of the container when it was *seen* so, and it runs."""
        return not one.expectation.starting and seen.get(_id(one)) == one.expectation.update

    def _report(self, drift: Iterable[Drift]) -> None:
        """Log what differs, the first, second, fourth, eighth... time: two managers of one cpuset may
        overwrite each other for ever."""
        for one in drift:
            difference = str(one)
            self._times[_id(one)][difference] += 1
            times = self._times[_id(one)][difference]
            if times.bit_count() == 1:
                extra = {"difference": difference, "times": times, "hint": KEEP_HINT}
                logger.warning("the kernel differs from the decision", extra=extra)

    def _still_expected(self, due: Iterable[Drift]) -> list[Drift]:
        """The ledger may have changed while the kernel was read."""
        current = {one.container.id: one.update for one in self._expected()}
        return [one for one in due if current.get(_id(one)) == one.expectation.update]


def _id(drift: Drift) -> str:
    return drift.expectation.container.id


@contextmanager
def _passed_over(message: str, expectation: Expectation) -> Iterator[None]:
    """Go on where the container is gone; and where anything else fails, which is logged as *message*."""
    try:
        yield
    except AbsentError:
        pass
    except BayplanError as error:
        logger.warning("%s", message, extra={"container": expectation.name, "problem": str(error)})


_NOT_COMPARED: Final = "a container's cgroup cannot be compared with the decision"
_NOT_SET: Final = "a container's cgroup cannot be set to the decision"


def compare(hierarchy: Hierarchy, wanted: Iterable[Expectation]) -> list[Drift]:
    """Read the cgroups and say of each how it differs, perhaps in nothing. Blocks; containers that are gone
    are passed over."""
    compared = []
    for expectation in wanted:
        with _passed_over(_NOT_COMPARED, expectation):
            with cgroup_of(hierarchy, expectation) as cgroup:
                found, partition = cgroup.read(), cgroup.partition() if expectation.isolated else ""
            oom_score_adj = _first_oom_score_adj(hierarchy, expectation)
            differences = expectation.differences(found, oom_score_adj, partition)
            compared.append(Drift(expectation, differences, found.cpus_effective))
    return compared


def repair(hierarchy: Hierarchy, cpusets: Cpusets, drifted: Iterable[Drift]) -> None:
    """Undo what drifted. Blocks; what the kernel refuses is logged."""
    for drift in drifted:
        expectation = drift.expectation
        if "cpus" in drift.differences or PARTITION in drift.differences:
            cpusets.write([expectation.container.id])
        if "mems" in drift.differences:
            cpusets.move_memory([expectation.container.id])
        write(hierarchy, [(expectation, replace(drift.repair, cpuset_cpus=None, cpuset_mems=None))])
        value, process = expectation.amounts.oom_score_adj, expectation.first_process
        if OOM_SCORE_ADJ in drift.differences and value is not None and process is not None:
            with _passed_over(_NOT_SET, expectation):
                proc.write_oom_score_adj(process, value, hierarchy.root)


def write(hierarchy: Hierarchy, changes: Iterable[tuple[Expectation, Update]]) -> None:
    """Write changes into the cgroups of their containers. Blocks; what the kernel refuses is logged."""
    for expectation, change in changes:
        with _passed_over(_NOT_SET, expectation), cgroup_of(hierarchy, expectation) as cgroup:
            cgroup.apply(change)


def _first_oom_score_adj(hierarchy: Hierarchy, one: Expectation) -> int | None:
    process = one.first_process
    if process is None or one.amounts.oom_score_adj is None:
        return None
    try:
        return proc.read_oom_score_adj(process, hierarchy.root)
    except AbsentError:
        return None  # in the host's PID namespace others may outlive it
