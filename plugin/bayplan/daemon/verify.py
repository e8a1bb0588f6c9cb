"""Does the kernel do what was decided? Compares cgroups with the ledger and repairs what drifted.

Runtimes log and ignore updates that fail, and anybody may write to a cgroup. A difference is repaired when
it is seen twice in a row: right after a reply the runtime may still be carrying it out.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol, TypeVar

from bayplan.domain.decision import Decision, Outcome
from bayplan.domain.exact.unconfined import open_mems
from bayplan.domain.kubelet.cgroup_values import OOM_GROUP
from bayplan.domain.ledger import Ledger
from bayplan.domain.origin import Origin
from bayplan.domain.rewrite import cpus_for
from bayplan.domain.topology import Machine
from bayplan.domain.workload import Adjustment, Container, Pod, Update
from bayplan.errors import BayplanError
from bayplan.host import proc
from bayplan.host.container import ContainerCgroup, Readings
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
    origin: Origin | None = None
    oom_group: bool = False

    @property
    def update(self) -> Update:
        """The change that makes it so."""
        amounts = self.amounts
        return Update(
            self.container.id,
            cpuset_cpus=self.cpus,
            cpuset_mems=self.mems,
            memory_limit_bytes=amounts.memory_limit_bytes,
            unified=amounts.unified,
        )

    @property
    def amounts(self) -> Adjustment:
        """What we set beside the cpusets, where nobody but us can restore it.

        Of a container that came over NRI that is memory.oom.group alone: runc keeps the rest in its record
        and in the unit, but does not tell systemd of this one, which was seen back at 0 after an update.
        """
        if self.origin is not None:
            return self.origin.applied
        return _OOM_GROUP_ONLY if self.oom_group else _NOTHING

    @property
    def first_process(self) -> proc.Process | None:
        """The process that oom_score_adj was set for, None where nobody told which it is."""
        if self.origin is None or self.origin.container.pid <= 1 or not self.origin.start_ticks:
            return None
        return proc.Process(self.origin.container.pid, self.origin.start_ticks)

    def differences(self, found: Readings, oom_score_adj: int | None = None) -> Mapping[str, str]:
        """What the cgroup shows otherwise, and the first process: texts by the name of what differs.

        An amount counts only where the kernel's default is back: that is what systemd and runtimes leave when
        they write their own idea of a container. Another amount is somebody's wish, and it stays.
        """
        pairs: list[tuple[str, object, object]] = [
            ("cpus", found.cpus_effective, self.cpus),
            ("mems", found.mems_effective, self.mems),
        ]
        if found.memory_max_bytes is None:
            pairs.append(("memory.max", "max", self.amounts.memory_limit_bytes))
        if self.origin is not None and oom_score_adj == (self.origin.container.oom_score_adj or 0):
            pairs.append((_OOM_SCORE_ADJ, oom_score_adj, self.amounts.oom_score_adj))
        for key, value in sorted(self.amounts.unified.items()):
            shown, default = _shown(found, key)
            if shown == default != value:
                pairs.append((key, shown, value))
        return {
            name: f"{name} is {is_now}, decided was {expected}"
            for name, is_now, expected in pairs
            if expected is not None and is_now != expected
        }


KEEP_HINT: Final = (
    "CPUs and nodes that others choose stay if the container is created with them, "
    "or with the annotation bayplan.dev/opt-out=true"
)
"""For those who wonder why their own values do not last."""

_NOTHING: Final = Adjustment()
_OOM_GROUP_ONLY: Final = Adjustment(unified={OOM_GROUP: "1"})
_OOM_SCORE_ADJ: Final = "oom_score_adj"


def _shown(found: Readings, key: str) -> tuple[str | None, str | None]:
    """A value as its cgroup file shows it, and the kernel's default; (None, None) for a file we never set."""
    if key == OOM_GROUP:
        return str(int(found.memory_oom_group)), "0"
    amounts = {
        "memory.high": (found.memory_high_bytes, None),
        "memory.low": (found.memory_low_bytes, 0),
        "memory.min": (found.memory_min_bytes, 0),
    }
    if key not in amounts:
        return None, None
    shown, default = ("max" if amount is None else str(amount) for amount in amounts[key])
    return shown, default


@dataclass(frozen=True, slots=True)
class Drift:
    """What the cgroup of a container shows otherwise than was decided."""

    expectation: Expectation
    differences: Mapping[str, str]

    def __str__(self) -> str:
        return f"{self.expectation.name}: {'; '.join(self.differences.values())}"

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


def expectations(
    machine: Machine,
    withheld: CpuSet,
    ledger: Ledger,
    pods: dict[str, Pod],
    containers: Iterable[Container],
) -> list[Expectation]:
    """What the kernel should show for *containers*, as far as the ledger has something to say. *withheld* are
    the CPUs on which no container runs. Of CPUs and nodes that are gone the kernel shows nothing. Who lost
    all its exclusive CPUs runs on the shared ones; the kernel would let it run on those of others."""
    shared = ledger.shared_cpus(machine, withheld)
    wanted = []
    for container in containers:
        entry = ledger.entries.get(container.id)
        if entry is None:
            continue
        decision, pod = entry.decision, pods.get(container.pod_id, Pod(container.pod_id))
        cpus, mems = cpus_for(decision, shared), _mems_for(machine, decision)
        cpus = None if cpus is None else cpus & machine.online_cpus or shared or None
        mems = None if mems is None else mems & machine.memory_nodes or None
        if cpus is not None or mems is not None or entry.origin is not None or entry.oom_group:
            name, parent = decision.request.name, pod.cgroup_parent
            wanted.append(Expectation(container, parent, name, cpus, mems, entry.origin, entry.oom_group))
    return wanted


def _mems_for(machine: Machine, decision: Decision) -> NodeSet | None:
    """The nodes that a container should have. One that was left free when all memory was ordinary is kept off
    other memory that came since; what was found running is not moved."""
    placement, request = decision.placement, decision.request
    if placement.mems is not None or placement.claim is None:
        return placement.mems
    if decision.outcome is Outcome.ADOPTED or request.pinned_mems is not None or request.opted_out:
        return None
    return open_mems(machine, request)


class InThread(Protocol):
    """Runs a blocking call where blocking harms nobody."""

    async def __call__(self, work: Callable[[], Result]) -> Result:
        """The result of *work*."""


class Verifier:
    """Finds and repairs drift. ``drift`` is what the last comparison reported."""

    def __init__(
        self, hierarchy: Hierarchy, expected: Callable[[], list[Expectation]], in_thread: InThread
    ) -> None:
        self.drift: tuple[Drift, ...] = ()
        self._hierarchy = hierarchy
        self._expected = expected
        self._in_thread = in_thread
        self._suspected: frozenset[str] = frozenset()
        # By container: what the kernel was last seen to have, and how often which difference was put right.
        self._agreed: dict[str, Update] = {}
        self._times: dict[str, Counter[str]] = {}

    async def verify(self, *, at_once: bool) -> tuple[Drift, ...]:
        """Compare once, and repair what differed the last time too; the drift that was reported.

        *at_once* repairs without a second look: updates are due that no reply could carry. Of what it finds
        only that is drift which the kernel had been seen to have already: somebody undid it.
        """
        compared = await self._in_thread(partial(compare, self._hierarchy, self._expected()))
        differing = tuple(one for one in compared if one.differences)
        drift = tuple(one for one in differing if self._is_drift(one, at_once=at_once))
        self._suspected = frozenset(map(_id, differing))
        self._agreed = {_id(one): one.expectation.update for one in compared if not one.differences}
        self._times = {key: self._times.get(key, Counter()) for key in map(_id, compared)}
        self._report(drift)
        self.drift = drift
        wanted = self._still_expected(differing if at_once else drift)
        if wanted:
            await self._in_thread(partial(repair, self._hierarchy, wanted))
            logger.info("repaired", extra={"containers": [one.expectation.name for one in wanted]})
        return drift

    def _is_drift(self, one: Drift, *, at_once: bool) -> bool:
        if at_once:
            return self._agreed.get(_id(one)) == one.expectation.update
        return _id(one) in self._suspected

    def _report(self, drift: Iterable[Drift]) -> None:
        """Name what somebody else made of the container, the first, second, fourth... time: two managers of
        one cpuset may go on for ever."""
        for one in drift:
            said = str(one)
            self._times[_id(one)][said] += 1
            times = self._times[_id(one)][said]
            if times.bit_count() == 1:
                extra = {"difference": said, "times": times, "hint": KEEP_HINT}
                logger.warning("the kernel differs from the decision", extra=extra)

    def _still_expected(self, due: Iterable[Drift]) -> list[Drift]:
        """The ledger may have changed while the kernel was read."""
        current = {one.container.id: one.update for one in self._expected()}
        return [one for one in due if current.get(_id(one)) == one.expectation.update]


def _id(drift: Drift) -> str:
    return drift.expectation.container.id


def compare(hierarchy: Hierarchy, wanted: Iterable[Expectation]) -> list[Drift]:
    """Read the cgroups and say of each how it differs, perhaps in nothing. Blocks; containers that are gone
    are passed over."""
    compared = []
    for one in wanted:
        try:
            with cgroup_of(hierarchy, one) as cgroup:
                found = cgroup.read()
            oom_score_adj = _first_oom_score_adj(hierarchy, one)
        except AbsentError:
            continue
        except BayplanError as error:
            logger.warning("cannot verify", extra={"container": one.name, "problem": str(error)})
            continue
        compared.append(Drift(one, one.differences(found, oom_score_adj)))
    return compared


def repair(hierarchy: Hierarchy, drifted: Iterable[Drift]) -> None:
    """Undo what drifted. Blocks; what the kernel refuses is logged."""
    for drift in drifted:
        one = drift.expectation
        write(hierarchy, [(one, drift.repair)])
        value, process = one.amounts.oom_score_adj, one.first_process
        if _OOM_SCORE_ADJ in drift.differences and value is not None and process is not None:
            try:
                proc.write_oom_score_adj(process, value, hierarchy.root)
            except AbsentError:
                continue
            except BayplanError as error:
                logger.warning("cannot repair", extra={"container": one.name, "problem": str(error)})


def write(hierarchy: Hierarchy, changes: Iterable[tuple[Expectation, Update]]) -> None:
    """Write changes into the cgroups of their containers. Blocks; what the kernel refuses is logged."""
    for one, change in changes:
        try:
            with cgroup_of(hierarchy, one) as cgroup:
                cgroup.apply(change)
        except AbsentError:
            continue
        except BayplanError as error:
            logger.warning("cannot repair", extra={"container": one.name, "problem": str(error)})


def _first_oom_score_adj(hierarchy: Hierarchy, one: Expectation) -> int | None:
    process = one.first_process
    if process is None or one.amounts.oom_score_adj is None:
        return None
    try:
        return proc.read_oom_score_adj(process, hierarchy.root)
    except AbsentError:
        return None  # in the host's PID namespace others may outlive it


def cgroup_of(hierarchy: Hierarchy, one: Expectation) -> ContainerCgroup:
    """The open cgroup of a container; raises as `ContainerCgroup.find`."""
    if one.origin is not None and one.origin.cgroups:
        return ContainerCgroup(hierarchy, dict(one.origin.cgroups))
    return ContainerCgroup.find(hierarchy, one.container.cgroups_path, one.cgroup_parent, one.container.id)
