"""Does the kernel do what was decided? Compares cgroups with the ledger and repairs what drifted.

Runtimes log and ignore updates that fail, and anybody may write to a cgroup. A difference is repaired when
it is seen twice in a row: right after a reply the runtime may still be carrying it out.
"""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar

from bayplan.domain.ledger import Ledger
from bayplan.domain.rewrite import cpus_for
from bayplan.domain.topology import Machine
from bayplan.domain.workload import Container, Pod, Update
from bayplan.errors import BayplanError
from bayplan.host.container import ContainerCgroup
from bayplan.host.hierarchy import Hierarchy
from bayplan.host.kernelfs import AbsentError
from bayplan.sets import CpuSet, NodeSet

logger = logging.getLogger(__name__)

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Expectation:
    """What one running container's cgroup should show; None is not checked."""

    container: Container
    cgroup_parent: str
    name: str
    cpus: CpuSet | None
    mems: NodeSet | None

    @property
    def update(self) -> Update:
        """The change that makes it so."""
        return Update(self.container.id, cpuset_cpus=self.cpus, cpuset_mems=self.mems)


@dataclass(frozen=True, slots=True)
class Drift:
    """A container whose cgroup shows something else than was decided."""

    expectation: Expectation
    cpus: CpuSet
    mems: NodeSet

    def __str__(self) -> str:
        wanted = self.expectation
        parts = [
            f"{name} is {found}, decided was {expected}"
            for name, found, expected in (("cpus", self.cpus, wanted.cpus), ("mems", self.mems, wanted.mems))
            if expected is not None and found != expected
        ]
        return f"{wanted.name}: {'; '.join(parts)}"


def expectations(
    machine: Machine,
    withheld: CpuSet,
    ledger: Ledger,
    pods: dict[str, Pod],
    containers: Iterable[Container],
) -> list[Expectation]:
    """What the kernel should show for *containers*, as far as the ledger has something to say. *withheld* are
    the CPUs on which no container runs."""
    shared = ledger.shared_cpus(machine, withheld)
    wanted = []
    for container in containers:
        entry = ledger.entries.get(container.id)
        if entry is None:
            continue
        decision, pod = entry.decision, pods.get(container.pod_id, Pod(container.pod_id))
        cpus, mems = cpus_for(decision, shared), decision.placement.mems
        if cpus is not None or mems is not None:
            wanted.append(Expectation(container, pod.cgroup_parent, decision.request.name, cpus, mems))
    return wanted


class InThread(Protocol):
    """Runs a blocking call where blocking harms nobody."""

    async def __call__(self, work: Callable[[], Result]) -> Result:
        """The result of *work*."""


class Verifier:
    """Finds and repairs drift. ``drift`` is what the last regular comparison found for the second time."""

    def __init__(
        self, hierarchy: Hierarchy, expected: Callable[[], list[Expectation]], in_thread: InThread
    ) -> None:
        self.drift: tuple[Drift, ...] = ()
        self._hierarchy = hierarchy
        self._expected = expected
        self._in_thread = in_thread
        self._suspected: frozenset[str] = frozenset()

    async def verify(self, *, at_once: bool) -> tuple[Drift, ...]:
        """Compare once, and repair what differed the last time too; the drift that was reported.

        *at_once* repairs without a second look, and reports nothing: updates are due that no reply could
        carry.
        """
        found = await self._in_thread(partial(find_drift, self._hierarchy, self._expected()))
        due = tuple(one for one in found if at_once or one.expectation.container.id in self._suspected)
        self._suspected = frozenset(one.expectation.container.id for one in found)
        if not at_once:
            self.drift = due
            for one in due:
                logger.warning("the kernel differs from the decision", extra={"difference": str(one)})
        wanted = self._still_expected(due)
        if wanted:
            await self._in_thread(partial(repair, self._hierarchy, wanted))
            logger.info("repaired", extra={"containers": [one.name for one in wanted]})
        return () if at_once else due

    def _still_expected(self, due: Iterable[Drift]) -> list[Expectation]:
        """The ledger may have changed while the kernel was read."""
        current = {one.container.id: (one.cpus, one.mems) for one in self._expected()}
        expected = [one.expectation for one in due]
        return [one for one in expected if current.get(one.container.id) == (one.cpus, one.mems)]


def find_drift(hierarchy: Hierarchy, wanted: Iterable[Expectation]) -> list[Drift]:
    """Read the cgroups and list those that differ. Blocks; containers that are gone are passed over."""
    drifted = []
    for one in wanted:
        try:
            with _open(hierarchy, one) as cgroup:
                found = cgroup.read()
        except AbsentError:
            continue
        except BayplanError as error:
            logger.warning("cannot verify", extra={"container": one.name, "problem": str(error)})
            continue
        differs = one.cpus not in (None, found.cpus_effective) or one.mems not in (None, found.mems_effective)
        if differs:
            drifted.append(Drift(one, found.cpus_effective, found.mems_effective))
    return drifted


def repair(hierarchy: Hierarchy, wanted: Iterable[Expectation]) -> None:
    """Write what was decided into the cgroups. Blocks; what the kernel refuses is logged."""
    for one in wanted:
        try:
            with _open(hierarchy, one) as cgroup:
                cgroup.apply(one.update)
        except AbsentError:
            continue
        except BayplanError as error:
            logger.warning("cannot repair", extra={"container": one.name, "problem": str(error)})


def _open(hierarchy: Hierarchy, one: Expectation) -> ContainerCgroup:
    return ContainerCgroup.find(hierarchy, one.container.cgroups_path, one.cgroup_parent, one.container.id)
