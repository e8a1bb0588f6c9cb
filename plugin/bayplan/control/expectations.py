"""What the kernel should have of each container, by the ledger. Reads nothing and changes nothing:
`bayplan.control.verify` compares, `bayplan.control.cpusets` writes."""

from collections.abc import Collection, Iterable, Mapping
from typing import Final, Protocol

from msgspec import Struct

from bayplan.host import proc
from bayplan.host.container import ContainerCgroup, Readings
from bayplan.host.cpu_partitions import ISOLATED
from bayplan.host.hierarchy import Hierarchy
from bayplan.model.basis import Basis
from bayplan.model.decision import Booking, Decision, Outcome
from bayplan.model.machine import Machine
from bayplan.model.memory_kinds import open_mems
from bayplan.model.origin import NRI, Origin
from bayplan.model.qos import OOM_GROUP
from bayplan.model.workload import Adjustment, Container, Pod, Update
from bayplan.placement.adjustment import cpus_for, isolated_cpus
from bayplan.sets import CpuSet, NodeSet

OOM_SCORE_ADJ: Final = "oom_score_adj"
PARTITION: Final = "partition"
"""The names of differences in them."""


def _shown(found: Readings, key: str) -> tuple[str | None, str | None]:
    """A value as its cgroup file shows it, and the kernel's default; (None, None) for a file that is never
    set here."""
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


class Expectation(Struct, frozen=True):
    """What one container's cgroup should show; None is not checked. *starting*: it does not run yet, so that
    its runtime may still be about to write an earlier update. *isolated*: its CPUs are to be a partition.
    *apart*: some of them are its own."""

    container: Container
    cgroup_parent: str
    name: str
    cpus: CpuSet | None
    mems: NodeSet | None
    origin: Origin = NRI
    oom_group: bool = False
    starting: bool = False
    isolated: bool = False
    apart: bool = False

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
        """What bayplan set beside the cpusets, where only bayplan can restore it."""
        return self.origin.amounts(oom_group=self.oom_group)

    @property
    def first_process(self) -> proc.Process | None:
        """The process that oom_score_adj was set for, None where it is not known."""
        pid, start_ticks = self.origin.known(self.container).pid, self.origin.start_ticks
        return proc.Process(pid, start_ticks) if pid > 1 and start_ticks else None

    def differences(
        self, readings: Readings, oom_score_adj: int | None = None, partition: str = ""
    ) -> Mapping[str, str]:
        """What the cgroup shows otherwise, and the first process: texts by the name of what differs.

        An amount counts only where the kernel's default is back: that is what systemd and runtimes leave when
        they write their own values again. Another amount was chosen by another program, and it stays.
        """
        pairs: list[tuple[str, object, object]] = [
            ("cpus", readings.cpus_effective, self.cpus),
            ("mems", readings.mems_effective, self.mems),
        ]
        if self.isolated:
            pairs.append((PARTITION, partition, ISOLATED))
        if readings.memory_max_bytes is None:
            pairs.append(("memory.max", "max", self.amounts.memory_limit_bytes))
        if oom_score_adj == (self.origin.known(self.container).oom_score_adj or 0):
            pairs.append((OOM_SCORE_ADJ, oom_score_adj, self.amounts.oom_score_adj))
        for key, value in sorted(self.amounts.unified.items()):
            shown, default = _shown(readings, key)
            if shown == default != value:
                pairs.append((key, shown, value))
        return {
            name: f"{name} is {is_now}, decided was {expected}"
            for name, is_now, expected in pairs
            if expected is not None and is_now != expected
        }


class Expected(Protocol):
    """What the kernel should have now of those containers, of all if none are named."""

    def __call__(self, container_ids: Collection[str] | None = None, /) -> list[Expectation]:
        """What the kernel should have of those containers about which the ledger has something to say."""


def expectations(
    basis: Basis,
    pods: Mapping[str, Pod],
    containers: Iterable[Container],
    starting: Collection[str] = (),
    *,
    partitions: bool = True,
) -> list[Expectation]:
    """What the kernel should show for *containers*, as far as the ledger has something to say. Where somebody
    else chose the CPUs, they are to be read and not to be checked. CPUs and nodes that are gone are left out,
    as the kernel shows none of them. A container that lost all its exclusive CPUs is expected on the shared
    ones; the kernel would let it run on those of others. *starting* are the ids of the containers that do not
    run yet. *partitions*: the host has partitions."""
    machine, shared = basis.machine, basis.shared_cpus
    wanted = []
    for container in containers:
        entry = basis.ledger.entries.get(container.id)
        if entry is None:
            continue
        decision, pod = entry.decision, pods.get(container.pod_id, Pod(container.pod_id))
        cpus, mems = cpus_for(decision, shared), _mems_for(machine, decision)
        cpus = None if cpus is None else cpus & machine.online_cpus or shared or None
        mems = None if mems is None else mems & machine.memory_nodes or None
        chosen = decision.request.cpus_chosen_by_others
        restores = not entry.origin.runtime_applies or entry.oom_group
        if chosen or cpus is not None or mems is not None or restores:
            name, parent = decision.request.name, pod.cgroup_parent
            soon = container.id in starting
            own = isolated_cpus(decision) if partitions else CpuSet()
            isolated = cpus is not None and cpus == own & machine.online_cpus
            apart, origin = bool(decision.placement.apart_cpus), entry.origin
            wanted.append(
                Expectation(
                    container, parent, name, cpus, mems, origin, entry.oom_group, soon, isolated, apart
                )
            )
    return wanted


def _mems_for(machine: Machine, decision: Decision) -> NodeSet | None:
    """The nodes that a container should have. One that was left free when all memory was ordinary is kept off
    other memory that came since; what was found running is not moved."""
    placement, request = decision.placement, decision.request
    if placement.mems is not None or isinstance(placement.promise, Booking):
        return placement.mems
    if decision.outcome is Outcome.ADOPTED or request.pinned_mems is not None or request.opted_out:
        return None
    return open_mems(machine, request)


def cgroup_of(hierarchy: Hierarchy, one: Expectation) -> ContainerCgroup:
    """The open cgroup of a container; raises as `ContainerCgroup.find`."""
    if one.origin.cgroups:
        return ContainerCgroup(hierarchy, dict(one.origin.cgroups))
    return ContainerCgroup.find(hierarchy, one.container.cgroups_path, one.cgroup_parent, one.container.id)
